#ifndef HOTROW_TESTS_SUPPORT_LAGGING_STREAMS_H_
#define HOTROW_TESTS_SUPPORT_LAGGING_STREAMS_H_

#include <chrono>

namespace hotrow::test {

// While one lives, streams created for the CPU run work as late as a GPU might: on a thread of the
// stream's own, no sooner than `lag` after it was enqueued. Memory that is reused too early then
// holds wrong bytes, and ThreadSanitizer sees the race.
class LaggingStreams {
 public:
  explicit LaggingStreams(std::chrono::microseconds lag);
  ~LaggingStreams();
  LaggingStreams(const LaggingStreams&) = delete;
  LaggingStreams& operator=(const LaggingStreams&) = delete;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_LAGGING_STREAMS_H_
