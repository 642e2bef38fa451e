#ifndef HOTROW_BASE_THREAD_POOL_H_
#define HOTROW_BASE_THREAD_POOL_H_

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace hotrow {

// A fixed set of threads for data-parallel loops.
//
// Threads: every method may be called from any thread. ParallelFor may be called from inside a
//          ParallelFor body; the inner loop then runs on the calling thread alone.
// Order:   chunks run in no particular order, so bodies must write to disjoint places. The chunks
//          themselves depend only on n and grain, never on the number of threads: a body that sums
//          per chunk gives the same bits on any pool.
// Errors:  when no body runs any more, ParallelFor rethrows the first exception of a body.
class ThreadPool {
 public:
  // num_threads, at least 1, counts the calling thread: a pool of 1 starts none and runs loops in
  // place. If the system has no room for that many, the pool works with fewer; num_threads() and
  // status() tell.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;
  // Unavailable, with the system's text, when the pool has fewer threads than were asked for.
  absl::Status status() const;

  // Calls body(begin, end) for consecutive chunks of `grain` items covering [0, n), the last one
  // shorter, and returns when all are done. The caller works too. n = 0 calls nothing.
  void ParallelFor(int64_t n, int64_t grain,
                   absl::FunctionRef<void(int64_t begin, int64_t end)> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// pool->ParallelFor, or the same chunks on this thread when pool is null.
void ParallelFor(ThreadPool* pool, int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace hotrow

#endif  // HOTROW_BASE_THREAD_POOL_H_
