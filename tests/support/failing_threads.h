#ifndef HOTROW_TESTS_SUPPORT_FAILING_THREADS_H_
#define HOTROW_TESTS_SUPPORT_FAILING_THREADS_H_

#include <cstdint>
#include <limits>

namespace hotrow::test {

// While one lives, the system makes `good` more threads in this process and then refuses `bad` of
// them, as it does at a limit (EAGAIN). Stands in for pthread_create: a test binary that uses it
// lists failing_threads.cc among its sources. One at a time.
class FailingThreads {
 public:
  static constexpr int64_t kAllOthers = std::numeric_limits<int64_t>::max();

  explicit FailingThreads(int64_t good, int64_t bad = kAllOthers);
  ~FailingThreads();
  FailingThreads(const FailingThreads&) = delete;
  FailingThreads& operator=(const FailingThreads&) = delete;

  int64_t refused() const;  // so far
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_FAILING_THREADS_H_
