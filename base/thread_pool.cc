#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/thread.h"

namespace hotrow {
namespace {

// Set while this thread runs a body, so that a loop inside it knows that the threads are taken.
thread_local bool in_loop_body = false;

// (n - 1) / grain + 1 cannot overflow, unlike (n + grain - 1) / grain.
int64_t NumChunks(int64_t n, int64_t grain) { return n == 0 ? 0 : (n - 1) / grain + 1; }

void RunChunk(int64_t chunk, int64_t n, int64_t grain,
              absl::FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t begin = chunk * grain;
  body(begin, begin + std::min(grain, n - begin));
}

void RunInPlace(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t chunks = NumChunks(n, grain);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) RunChunk(chunk, n, grain, body);
}

class LoopBodyScope {
 public:
  LoopBodyScope() : outer_(std::exchange(in_loop_body, true)) {}
  ~LoopBodyScope() { in_loop_body = outer_; }
  LoopBodyScope(const LoopBodyScope&) = delete;
  LoopBodyScope& operator=(const LoopBodyScope&) = delete;

 private:
  bool outer_;
};

// One ParallelFor in progress; lives on its caller's stack.
struct Loop {
  const int64_t n;
  const int64_t grain;
  const int64_t num_chunks;
  const absl::FunctionRef<void(int64_t, int64_t)> body;
  std::atomic<int64_t> next_chunk{0};
  int helpers = 0;  // workers inside Work(); guarded by State::mutex
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // set by who sets `failed`, read by the caller once all are done

  // Claims chunks until none is left. Relaxed is enough: who claims a chunk needs nothing from who
  // claimed another, and the mutex orders the results before the caller's return.
  void Work() {
    const LoopBodyScope scope;
    for (;;) {
      const int64_t chunk = next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= num_chunks) return;
      // After an exception the rest is claimed and left out.
      if (failed.load(std::memory_order_relaxed)) continue;
      try {
        RunChunk(chunk, n, grain, body);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  }
};

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable work_added;   // workers wait for it
  std::condition_variable helper_left;  // callers of ParallelFor wait for it
  std::vector<Loop*> loops;             // those that may have unclaimed chunks
  bool stopping = false;
  std::vector<std::thread> workers;
  absl::Status status;  // why there are no more

  void Close(Loop* loop) { std::erase(loops, loop); }

  void Help(Loop* loop, std::unique_lock<std::mutex>& lock) {
    ++loop->helpers;
    lock.unlock();
    loop->Work();
    lock.lock();
    Close(loop);
    // Notified under the lock: once it is released the loop may be gone.
    if (--loop->helpers == 0) helper_left.notify_all();
  }

  void WorkerMain() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      work_added.wait(lock, [this] { return stopping || !loops.empty(); });
      if (loops.empty()) return;
      Help(loops.front(), lock);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  HOTROW_CHECK(num_threads >= 1);
  state_->workers.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) {
    absl::StatusOr<std::thread> worker =
        StartThread("a pool", [state = state_.get()] { state->WorkerMain(); });
    if (!worker.ok()) {
      state_->status = worker.status();
      return;
    }
    state_->workers.push_back(*std::move(worker));
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work_added.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

absl::Status ThreadPool::status() const { return state_->status; }

void ThreadPool::ParallelFor(int64_t n, int64_t grain,
                             absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  HOTROW_CHECK(n >= 0);
  HOTROW_CHECK(grain >= 1);
  const int64_t num_chunks = NumChunks(n, grain);
  if (num_chunks <= 1 || state_->workers.empty() || in_loop_body) {
    const LoopBodyScope scope;
    RunInPlace(n, grain, body);
    return;
  }
  Loop loop{.n = n, .grain = grain, .num_chunks = num_chunks, .body = body};
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->loops.push_back(&loop);
  }
  const int64_t wanted = std::min(num_chunks - 1, static_cast<int64_t>(state_->workers.size()));
  for (int64_t i = 0; i < wanted; ++i) state_->work_added.notify_one();
  loop.Work();
  // No chunk is left to claim; once the loop is closed nobody new joins it, and those still inside
  // finish the chunk they hold.
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->Close(&loop);
  state_->helper_left.wait(lock, [&loop] { return loop.helpers == 0; });
  lock.unlock();
  if (loop.failed) std::rethrow_exception(loop.error);
}

void ParallelFor(ThreadPool* pool, int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (pool != nullptr) {
    pool->ParallelFor(n, grain, body);
    return;
  }
  HOTROW_CHECK(n >= 0);
  HOTROW_CHECK(grain >= 1);
  RunInPlace(n, grain, body);
}

}  // namespace hotrow
