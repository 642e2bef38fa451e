#ifndef HOTROW_TESTS_SUPPORT_FAILING_ALLOCATIONS_H_
#define HOTROW_TESTS_SUPPORT_FAILING_ALLOCATIONS_H_

#include <cstdint>
#include <limits>

namespace hotrow::test {

// While one lives, operator new gives the thread that made it memory `good` more times and then
// throws std::bad_alloc `bad` times. Stands in for operator new: a test binary that uses it lists
// failing_allocations.cc among its sources. One at a time on a thread; other threads, malloc and
// memory of larger alignment are left alone.
class FailingAllocations {
 public:
  static constexpr int64_t kAllOthers = std::numeric_limits<int64_t>::max();

  explicit FailingAllocations(int64_t good, int64_t bad = 1);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  int64_t failed() const;  // so far
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_FAILING_ALLOCATIONS_H_
