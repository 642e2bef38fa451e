#include "tests/emulated_gpu/emulated_gpu.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace hotrow::emulated {

thread_local const ThreadView* current = nullptr;

namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// --- Fibers
// ------------------------------------------------------------------------------------------

#if !defined(__x86_64__)
#error "the emulated GPU switches stacks by hand, on x86-64 only"
#endif
// Saves the registers that a call keeps, and where the stack is, and goes on where another left.
// swapcontext would do, but it asks the kernel for signal masks each time, and a test switches a
// hundred million times.
extern "C" void HotrowEmulatedSwitch(void** save, void* load);
asm(R"(
.text
.globl HotrowEmulatedSwitch
.type HotrowEmulatedSwitch, @function
HotrowEmulatedSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size HotrowEmulatedSwitch, . - HotrowEmulatedSwitch
)");

constexpr size_t kStackBytes = 192 << 10;
constexpr size_t kGuardBytes = 4096;

// A stack to run on. What runs on it is up to who resumes it; it never ends.
class Fiber {
 public:
  Fiber() {
    stack_ = static_cast<char*>(mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stack_ == MAP_FAILED) Fail("no memory for the stack of a thread");
    if (mprotect(stack_, kGuardBytes, PROT_NONE) != 0) Fail("mprotect");
    // As if it had been left at the beginning of Main: six registers, and where to go on.
    auto* const top = reinterpret_cast<void**>(stack_ + kGuardBytes + kStackBytes);
    top[-2] = reinterpret_cast<void*>(&Fiber::Main);
    here_ = top - 8;
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the thread's own stack: runs the fiber until it suspends. `loop` is called again and again
  // by a fiber that has just been made or whose last call has returned.
  void Resume(const std::function<void()>* loop) {
    loop_ = loop;
    resumed_ = this;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_ + kGuardBytes, kStackBytes);
#endif
    HotrowEmulatedSwitch(&caller_, here_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // From the fiber: returns when it is resumed.
  void Suspend() {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, caller_stack_, caller_stack_bytes_);
#endif
    HotrowEmulatedSwitch(&here_, caller_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &caller_stack_, &caller_stack_bytes_);
#endif
  }

 private:
  static void Main() {
    Fiber* const self = resumed_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
    for (;;) {
      (*self->loop_)();
      self->Suspend();
    }
  }

  static thread_local Fiber* resumed_;

  char* stack_ = nullptr;
  void* here_ = nullptr;    // its stack pointer, suspended
  void* caller_ = nullptr;  // that of who resumed it
  const std::function<void()>* loop_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
#endif
};

thread_local Fiber* Fiber::resumed_ = nullptr;

// Fibers that nobody uses; kept, for there are many launches.
class FiberPool {
 public:
  static FiberPool& Get() {
    static auto* const pool = new FiberPool();
    return *pool;
  }
  Fiber* Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        Fiber* const fiber = idle_.back();
        idle_.pop_back();
        return fiber;
      }
    }
    return new Fiber();
  }
  void Give(const std::vector<Fiber*>& fibers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.insert(idle_.end(), fibers.begin(), fibers.end());
  }

 private:
  std::mutex mutex_;
  std::vector<Fiber*> idle_;
};

// --- Blocks
// ------------------------------------------------------------------------------------------

constexpr int kWarpLanes = 32;

// One block, run by the calling thread of the CPU.
class BlockRun {
  // Lanes that have come to one place.
  struct Meeting {
    const char* what;
    uint32_t mask;
    uint32_t here;
    uint32_t left;  // they look at what was brought no more
    LaneValues values;
    LaneBlocks blocks;
  };
  // A copy that has begun and not arrived.
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    uint64_t* barrier;  // null: of the thread's groups
  };

 public:
  BlockRun(const std::function<void()>& kernel, dim3 grid, dim3 block, size_t shared_bytes,
           uint3 index, uint64_t seed)
      : kernel_(kernel),
        random_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du),
        shared_bytes_(shared_bytes) {
    if (shared_bytes > 0) {
      void* shared = nullptr;
      if (posix_memalign(&shared, kSharedAlignment, shared_bytes) != 0) Fail("no shared memory");
      std::memset(shared, 0xff, shared_bytes);
      shared_.reset(static_cast<std::byte*>(shared));
    }
    const auto size = static_cast<size_t>(block.x) * block.y * block.z;
    threads_.resize(size);
    warps_.resize((size + kWarpLanes - 1) / kWarpLanes);
    size_t i = 0;
    for (unsigned z = 0; z < block.z; ++z) {
      for (unsigned y = 0; y < block.y; ++y) {
        for (unsigned x = 0; x < block.x; ++x, ++i) {
          Thread& thread = threads_[i];
          thread.view = {{x, y, z}, index, block, grid};
          thread.index = i;
        }
      }
    }
  }

  void Run() {
    running_ = this;
    const std::function<void()> loop = [this] { TakeThreads(); };
    while (finished_ < threads_.size()) {
      const bool can_start = started_ < threads_.size();
      if (!ready_.empty() && (!can_start || Draw(4) != 0)) {
        std::swap(ready_[Draw(ready_.size())], ready_.back());
        Thread* const thread = ready_.back();
        ready_.pop_back();
        thread->waits = nullptr;
        Become(thread);
        thread->fiber->Resume(&loop);
      } else if (can_start) {
        if (idle_.empty()) {
          idle_.push_back(FiberPool::Get().Take());
          fibers_.push_back(idle_.back());
        }
        starting_ = idle_.back();
        idle_.pop_back();
        starting_->Resume(&loop);
      } else {
        FailStuck();
      }
    }
    if (!bulk_copies_.empty()) Fail("a block ends with bulk copies under way");
    FiberPool::Get().Give(fibers_);
    Become(nullptr);
    running_ = nullptr;
  }

  void SyncThreads() {
    barrier_.push_back(self_);
    if (!OpenBarrier()) Wait("__syncthreads");
  }

  const LaneValues& MeetLanes(const char* what, uint32_t mask, uint64_t value) {
    const size_t lane = self_->index % kWarpLanes;
    return Meet(what, mask, [=](Meeting& meeting) { meeting.values[lane] = value; }).values;
  }
  const LaneBlocks& MeetLanesWith(const char* what, uint32_t mask, const LaneBlock& block) {
    const size_t lane = self_->index % kWarpLanes;
    return Meet(what, mask, [&](Meeting& meeting) { meeting.blocks[lane] = block; }).blocks;
  }

  std::byte* shared() {
    if (shared_ == nullptr) Fail("the launch asked for no dynamic shared memory");
    return shared_.get();
  }

  void BeginCopy(const Copy& copy) {
    CheckCopy(copy);
    MayYield();
    if (Draw(2) == 0) {
      Arrive(copy);
    } else {
      self_->copies.push_back(copy);
    }
  }
  void CommitCopies() { self_->groups.push_back(std::exchange(self_->copies, {})); }
  void WaitForCopies(size_t latest) {
    while (self_->groups.size() > latest) {
      for (const Copy& copy : self_->groups.front()) Arrive(copy);
      self_->groups.pop_front();
    }
    MayYield();
  }

  void BeginBulkCopy(const Copy& copy) {
    if (ComputeCapability() < 90) Fail("a bulk copy on a GPU that has none");
    CheckCopy(copy);
    static_cast<void>(BarrierState::Read(copy.barrier));
    if (Draw(2) == 0) {
      Arrive(copy);
    } else {
      bulk_copies_.push_back(copy);
    }
    MayYield();
  }
  void WaitForPhase(uint64_t* barrier, uint32_t parity) {
    for (int i = 0; BarrierState::Read(barrier).phase == (parity & 1); ++i) {
      for (size_t k = 0; k < bulk_copies_.size();) {
        if (bulk_copies_[k].barrier != barrier) {
          ++k;
          continue;
        }
        const Copy copy = bulk_copies_[k];
        bulk_copies_.erase(bulk_copies_.begin() + static_cast<ptrdiff_t>(k));
        Arrive(copy);
      }
      constexpr int kTurnsMax = 100'000;
      if (i == kTurnsMax) Fail("a wait for a phase that does not end");
      if (BarrierState::Read(barrier).phase == (parity & 1)) Yield();
    }
    MayYield();
  }

  // What the eight bytes of a barrier hold. A phase ends when nobody is awaited and no bytes are.
  struct BarrierState {
    static constexpr uint64_t kMagic = 0x6ba77;
    uint32_t arrivals;  // of a phase
    uint32_t pending;
    int32_t bytes;  // announced and not there, or there and not announced yet
    uint32_t phase;

    static BarrierState Read(const uint64_t* barrier) {
      const uint64_t word = *barrier;
      if (word >> 44 != kMagic) Fail("no mbarrier was made here");
      const auto bytes = static_cast<int32_t>(static_cast<uint32_t>(word) << 11);
      return {static_cast<uint32_t>(word >> 33) & 0x7ff, static_cast<uint32_t>(word >> 22) & 0x7ff,
              bytes >> 11, static_cast<uint32_t>(word >> 21) & 1};
    }
    void Write(uint64_t* barrier) {
      if (pending == 0 && bytes == 0) {
        pending = arrivals;
        phase ^= 1;
      }
      constexpr int32_t kBytesMax = (1 << 20) - 1;
      if (bytes > kBytesMax || bytes < -kBytesMax) Fail("too many bytes for a phase");
      *barrier = kMagic << 44 | uint64_t{arrivals} << 33 | uint64_t{pending} << 22 |
                 uint64_t{phase} << 21 | (static_cast<uint32_t>(bytes) & 0x1fffff);
    }
  };

  void Yield() {
    ready_.push_back(self_);
    Wait("its turn");
  }
  void MayYield() {
    if (Draw(4) == 0) Yield();
  }
  int Lane() const { return static_cast<int>(self_->index % kWarpLanes); }

  static BlockRun* running() { return running_; }

 private:
  static constexpr size_t kSharedAlignment = 128;

  void CheckCopy(const Copy& copy) {
    const uintptr_t unit = copy.barrier == nullptr && copy.bytes == 8 ? 8 : 16;
    if (reinterpret_cast<uintptr_t>(copy.to) % unit != 0 ||
        reinterpret_cast<uintptr_t>(copy.from) % unit != 0 || copy.bytes % unit != 0) {
      Fail("a copy to shared memory that is not of whole, aligned sixteen bytes, or eight");
    }
    const auto* const to = static_cast<const std::byte*>(copy.to);
    if (to < shared() || to + copy.bytes > shared() + shared_bytes_) {
      Fail("a copy that ends outside of dynamic shared memory");
    }
  }
  void Arrive(const Copy& copy) {
    std::memcpy(copy.to, copy.from, copy.bytes);
    if (copy.barrier == nullptr) return;
    BarrierState state = BarrierState::Read(copy.barrier);
    state.bytes -= static_cast<int32_t>(copy.bytes);
    state.Write(copy.barrier);
  }

  template <typename Bring>
  const Meeting& Meet(const char* what, uint32_t mask, Bring&& bring) {
    Warp& warp = warps_[self_->index / kWarpLanes];
    const uint32_t lane = 1u << (self_->index % kWarpLanes);
    if ((mask & lane) == 0) Fail("a thread calls for lanes of which it is none");
    if ((mask & warp.ended) != 0) FailLanes(what, "names a lane that has ended");
    const size_t first = self_->index / kWarpLanes * kWarpLanes;
    for (size_t i = threads_.size() - first; i < kWarpLanes; ++i) {
      if (((mask >> i) & 1) != 0) FailLanes(what, "names a lane that the block does not have");
    }
    Leave(self_);
    auto at = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                           [&](const Meeting* meeting) { return meeting->mask == mask; });
    if (at == warp.meetings.end()) {
      warp.meetings.push_back(NewMeeting(what, mask));
      at = warp.meetings.end() - 1;
    }
    Meeting* const meeting = *at;
    if (std::strcmp(meeting->what, what) != 0) FailLanes(what, meeting->what);
    meeting->here |= lane;
    bring(*meeting);
    self_->meeting = meeting;
    if (meeting->here != mask) {
      Wait(what);
      return *meeting;
    }
    warp.meetings.erase(at);
    for (uint32_t rest = mask & ~lane; rest != 0; rest &= rest - 1) {
      ready_.push_back(&threads_[first + static_cast<size_t>(std::countr_zero(rest))]);
    }
    if (Draw(2) == 0) Yield();  // else the last one to come is always the first to go on
    return *meeting;
  }

  struct Thread {
    ThreadView view;
    size_t index = 0;
    Fiber* fiber = nullptr;
    const char* waits = nullptr;
    Meeting* meeting = nullptr;  // the last one, until the next begins
    std::vector<Copy> copies;    // since the last group
    std::deque<std::vector<Copy>> groups;
  };
  struct Warp {
    std::vector<Meeting*> meetings;  // that some lanes have not come to yet
    uint32_t ended = 0;
  };

  size_t Draw(size_t n) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<size_t>((random_ >> 11) % n);
  }

  void Become(Thread* thread) {
    self_ = thread;
    current = thread == nullptr ? nullptr : &thread->view;
  }

  Meeting* NewMeeting(const char* what, uint32_t mask) {
    if (free_meetings_.empty()) {
      free_meetings_.push_back(&all_meetings_.emplace_back());
    }
    Meeting* const meeting = free_meetings_.back();
    free_meetings_.pop_back();
    meeting->what = what;
    meeting->mask = mask;
    meeting->here = 0;
    meeting->left = 0;
    return meeting;
  }
  void Leave(Thread* thread) {
    Meeting* const meeting = std::exchange(thread->meeting, nullptr);
    if (meeting == nullptr) return;
    meeting->left |= 1u << (thread->index % kWarpLanes);
    if (meeting->left == meeting->mask) free_meetings_.push_back(meeting);
  }

  // On a fiber: runs threads that have not begun, one after the other, as long as they do not wait.
  void TakeThreads() {
    Fiber* const fiber = starting_;
    do {
      Thread* const thread = &threads_[started_++];
      thread->fiber = fiber;
      Become(thread);
      kernel_();
      End(thread);
    } while (started_ < threads_.size() && Draw(8) != 0);
    idle_.push_back(fiber);
  }

  void End(Thread* thread) {
    ++finished_;
    for (const std::vector<Copy>& group : thread->groups) {
      if (!group.empty()) Fail("a thread ends with copies under way");
    }
    if (!thread->copies.empty()) Fail("a thread ends with copies under way");
    Warp& warp = warps_[thread->index / kWarpLanes];
    const uint32_t lane = 1u << (thread->index % kWarpLanes);
    warp.ended |= lane;
    Leave(thread);
    for (const Meeting* const meeting : warp.meetings) {
      if ((meeting->mask & lane) != 0) FailLanes(meeting->what, "names a lane that has ended");
    }
    OpenBarrier();
  }

  // Lets all go when all are there that have not ended. The last one to come needs no wait.
  bool OpenBarrier() {
    if (barrier_.empty() || barrier_.size() + finished_ < threads_.size()) return false;
    bool own = false;
    for (Thread* const thread : barrier_) {
      if (thread == self_ && thread->waits == nullptr) {
        own = true;
      } else {
        ready_.push_back(thread);
      }
    }
    barrier_.clear();
    return own;
  }

  void Wait(const char* what) {
    Thread* const thread = self_;
    thread->waits = what;
    thread->fiber->Suspend();
  }

  [[noreturn]] void FailLanes(const char* what, const char* why) {
    Fail((std::string(what) + " and lanes that differ: " + why).c_str());
  }
  [[noreturn]] void FailStuck() {
    std::map<std::string, int> waiting;
    for (const Thread& thread : threads_) {
      if (thread.waits != nullptr) ++waiting[thread.waits];
    }
    std::string message = "a block is stuck:";
    for (const auto& [what, n] : waiting) {
      message += " " + std::to_string(n) + " threads wait in " + what + ",";
    }
    message += " " + std::to_string(finished_) + " have ended";
    Fail(message.c_str());
  }

  static thread_local BlockRun* running_;

  struct FreeBytes {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  const std::function<void()>& kernel_;
  uint64_t random_;
  size_t shared_bytes_;
  std::unique_ptr<std::byte, FreeBytes> shared_;
  std::vector<Copy> bulk_copies_;  // that have not arrived
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Thread*> ready_;
  std::vector<Thread*> barrier_;
  std::deque<Meeting> all_meetings_;
  std::vector<Meeting*> free_meetings_;
  std::vector<Fiber*> idle_;
  std::vector<Fiber*> fibers_;
  Fiber* starting_ = nullptr;
  Thread* self_ = nullptr;
  size_t started_ = 0;
  size_t finished_ = 0;
};

thread_local BlockRun* BlockRun::running_ = nullptr;

void RunGrid(const std::function<void()>& kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  static std::atomic<uint64_t> launches{0};
  static const uint64_t seed = Setting("HOTROW_EMULATED_GPU_SEED", 1);
  static const uint64_t processors = Setting("HOTROW_EMULATED_GPU_PROCESSORS", 2);
  const uint64_t launch = ++launches;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::atomic<uint64_t> next{0};
  const auto run = [&] {
    for (uint64_t i = next++; i < blocks; i = next++) {
      const uint3 index = {static_cast<unsigned>(i % grid.x),
                           static_cast<unsigned>(i / grid.x % grid.y),
                           static_cast<unsigned>(i / grid.x / grid.y)};
      BlockRun(kernel, grid, block, shared_bytes, index, (seed << 48) ^ (launch << 24) ^ i).Run();
    }
  };
  std::vector<std::thread> helpers;
  for (uint64_t i = 1; i < std::min(processors, blocks); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

void Fail(const char* what) {
  const ThreadView* const view = current;
  std::fprintf(stderr, "emulated GPU: %s", what);
  if (view != nullptr) {
    std::fprintf(stderr, " (block %u,%u, thread %u of %u)", view->block.x, view->block.y,
                 view->thread.x, view->block_size.x);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

uint64_t ClockNanos() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}

void SyncThreads() { BlockRun::running()->SyncThreads(); }
const LaneValues& MeetLanes(const char* what, uint32_t mask, uint64_t value) {
  return BlockRun::running()->MeetLanes(what, mask, value);
}
const LaneBlocks& MeetLanesWith(const char* what, uint32_t mask, const LaneBlock& block) {
  return BlockRun::running()->MeetLanesWith(what, mask, block);
}
std::byte* DynamicShared() { return BlockRun::running()->shared(); }
void BeginCopy(void* shared, const void* global, size_t bytes) {
  BlockRun::running()->BeginCopy({shared, global, bytes, nullptr});
}
void CommitCopies() { BlockRun::running()->CommitCopies(); }
void WaitForCopies(size_t latest) { BlockRun::running()->WaitForCopies(latest); }
void InitCopyBarrier(uint64_t* barrier, uint32_t arrivals) {
  if (ComputeCapability() < 90) Fail("an mbarrier for bulk copies on a GPU that has none");
  if (arrivals < 1 || arrivals > 1024) Fail("an mbarrier for no threads, or more than a block has");
  BlockRun::BarrierState{arrivals, arrivals, 0, 0}.Write(barrier);
}
void ArriveAndExpect(uint64_t* barrier, uint32_t bytes) {
  BlockRun::BarrierState state = BlockRun::BarrierState::Read(barrier);
  if (state.pending == 0) Fail("more threads arrive at an mbarrier than it was made for");
  state.bytes += static_cast<int32_t>(bytes);
  --state.pending;
  state.Write(barrier);
  MayYield();
}
void WaitForPhase(uint64_t* barrier, uint32_t parity) {
  BlockRun::running()->WaitForPhase(barrier, parity);
}
void BeginBulkCopy(void* shared, const void* global, size_t bytes, uint64_t* barrier) {
  BlockRun::running()->BeginBulkCopy({shared, global, bytes, barrier});
}
int CurrentLane() { return BlockRun::running()->Lane(); }
void Yield() {
  if (BlockRun::running() != nullptr) BlockRun::running()->Yield();
}
void MayYield() {
  if (BlockRun::running() != nullptr) BlockRun::running()->MayYield();
}

}  // namespace hotrow::emulated

// --- Streams, events, graphs
// --------------------------------------------------------------------------------------

using hotrow::emulated::Setting;

namespace {

// The device of this thread, as cudaSetDevice left it.
thread_local int current_device = 0;

}  // namespace

struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

// What is enqueued while a stream captures, on it and on those that have waited for its events, in
// the order of the calls, which is one that the events allow.
struct Capture {
  CUstream_st* const origin;
  bool open = true;
  std::vector<std::function<void()>> work;
  struct Branch {
    size_t added = 0;   // pieces of work
    size_t joined = 0;  // those that another stream has waited for
  };
  std::map<CUstream_st*, Branch> branches;
};

// Does what it is given in order, on its own thread.
struct CUstream_st {
  CUstream_st() : thread([this] { Run(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  void Add(std::function<void()> item) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      work.push_back(std::move(item));
      ++added;
    }
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    const int64_t all = added;
    changed.wait(lock, [&] { return done >= all; });
  }
  bool Idle() {
    const std::lock_guard<std::mutex> lock(mutex);
    return done == added;
  }

  void Run() {
    static const uint64_t lag = Setting("HOTROW_EMULATED_GPU_LAG_US", 0);
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopping || !work.empty(); });
      if (work.empty()) return;
      {
        const std::function<void()> item = std::move(work.front());
        work.pop_front();
        lock.unlock();
        if (lag > 0) std::this_thread::sleep_for(std::chrono::microseconds(lag));
        item();
      }
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }

  std::mutex mutex;  // guards what follows, but `capture`
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  int64_t added = 0;
  int64_t done = 0;
  bool stopping = false;
  std::shared_ptr<Capture> capture;   // while capturing
  const int device = current_device;  // of the thread that made it
  int priority = 0;
  std::thread thread;
};

struct CUevent_st {
  struct Moment {
    std::mutex mutex;
    std::condition_variable changed;
    bool passed = false;
    std::chrono::steady_clock::time_point time;

    void Pass() {
      const std::lock_guard<std::mutex> lock(mutex);
      passed = true;
      time = std::chrono::steady_clock::now();
      changed.notify_all();
    }
    void Wait() {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return passed; });
    }
    bool Passed() {
      const std::lock_guard<std::mutex> lock(mutex);
      return passed;
    }
  };
  // What the last record left, one of these:
  std::shared_ptr<Moment> moment;
  std::shared_ptr<Capture> capture;
  CUstream_st* stream = nullptr;  // of the capture, and how much was captured there
  size_t place = 0;
  const int device = current_device;
};

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Say(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// All streams that live, and the default one.
struct Streams {
  std::mutex mutex;
  std::vector<CUstream_st*> all;

  static Streams& Get() {
    static auto* const streams = new Streams();
    return *streams;
  }
};

constexpr uint64_t kDevicesMax = 64;
int NumDevices() {
  static const uint64_t devices =
      std::clamp(Setting("HOTROW_EMULATED_GPU_DEVICES", 1), uint64_t{1}, kDevicesMax);
  return static_cast<int>(devices);
}

// The default stream of a device is made when it is first used, by a thread whose device it is.
CUstream_st* Resolve(cudaStream_t stream) {
  static std::mutex mutex;
  static auto* const default_streams = new std::array<CUstream_st*, kDevicesMax>();
  if (stream != nullptr) return stream;
  const std::lock_guard<std::mutex> lock(mutex);
  CUstream_st*& of_device = (*default_streams)[static_cast<size_t>(current_device)];
  if (of_device == nullptr) of_device = new CUstream_st();
  return of_device;
}

// Memory that we know: of the device, or locked.
struct Memory {
  enum class Kind { kDevice, kLocked, kRegistered };
  struct Piece {
    size_t bytes;
    Kind kind;
    int device = 0;
  };
  std::mutex mutex;
  std::map<const char*, Piece> pieces;
  size_t device_bytes = 0;
  const size_t device_limit = Setting("HOTROW_EMULATED_GPU_MIB", 2048) << 20;

  static Memory& Get() {
    static auto* const memory = new Memory();
    return *memory;
  }
  // The piece that has all of it.
  std::optional<Piece> Find(const void* data, size_t bytes = 1) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto at = pieces.upper_bound(static_cast<const char*>(data));
    if (at == pieces.begin()) return std::nullopt;
    --at;
    if (static_cast<const char*>(data) + bytes > at->first + at->second.bytes) return std::nullopt;
    return at->second;
  }
  bool Knows(const void* data, size_t bytes = 1) { return Find(data, bytes).has_value(); }
  cudaError_t Allocate(void** data, size_t bytes, Kind kind) {
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(mutex);
    if (kind == Kind::kDevice && bytes > device_limit - device_bytes) {
      return Say(cudaErrorMemoryAllocation);
    }
    if (posix_memalign(data, 256, bytes) != 0) return Say(cudaErrorMemoryAllocation);
    std::memset(*data, 0xa5, bytes);
    pieces[static_cast<const char*>(*data)] = {bytes, kind, current_device};
    if (kind == Kind::kDevice) device_bytes += bytes;
    return cudaSuccess;
  }
  cudaError_t Free(void* data, Kind kind) {
    if (data == nullptr) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto at = pieces.find(static_cast<const char*>(data));
    if (at == pieces.end() || at->second.kind != kind) return Say(cudaErrorInvalidValue);
    if (kind == Kind::kDevice) device_bytes -= at->second.bytes;
    pieces.erase(at);
    std::free(data);
    return cudaSuccess;
  }
};

// Into the graph that the stream captures, or into the stream.
cudaError_t Add(cudaStream_t stream, std::function<void()> work) {
  CUstream_st* const target = Resolve(stream);
  if (target->capture != nullptr) {
    target->capture->work.push_back(std::move(work));
    ++target->capture->branches[target].added;
  } else {
    target->Add(std::move(work));
  }
  return cudaSuccess;
}

}  // namespace

namespace hotrow::emulated {

void EnqueueOnStream(cudaStream_t stream, std::function<void()> work) {
  Add(stream, std::move(work));
}

bool DeviceReaches(const void* data, size_t bytes) { return Memory::Get().Knows(data, bytes); }

// The shared memory of a block, as CUDA's guide lists them: with and without cudaFuncSetAttribute.
static constexpr size_t kSharedBytesPlain = 48 << 10;
static size_t SharedBytesMax() { return (ComputeCapability() >= 90 ? 227 : 163) << 10; }
static std::atomic<size_t> shared_bytes_allowed = kSharedBytesPlain;
static std::atomic<int> compute_capability = 90;

int ComputeCapability() { return compute_capability; }
void SetComputeCapability(int major_and_minor) { compute_capability = major_and_minor; }

void Enqueue(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
             std::function<void()> thread) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool valid = grid.x >= 1 && grid.x <= 0x7fffffff && grid.y >= 1 && grid.y <= 65535 &&
                     grid.z >= 1 && grid.z <= 65535 && threads >= 1 && threads <= 1024 &&
                     block.z <= 64;
  if (!valid) {
    Say(cudaErrorInvalidConfiguration);
    return;
  }
  // As CUDA has it: kernels on the current device's streams only, copies on any.
  if (Resolve(stream)->device != current_device) {
    Say(cudaErrorInvalidResourceHandle);
    return;
  }
  // Which kernel was allowed so much is not known here.
  if (shared_bytes > std::min(SharedBytesMax(), shared_bytes_allowed.load())) {
    Say(cudaErrorInvalidValue);
    return;
  }
  Add(stream, [=, thread = std::move(thread)] { RunGrid(thread, grid, block, shared_bytes); });
}

cudaError_t AllowSharedBytes(int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > SharedBytesMax()) {
    return Say(cudaErrorInvalidValue);
  }
  size_t allowed = shared_bytes_allowed;
  while (allowed < static_cast<size_t>(bytes) &&
         !shared_bytes_allowed.compare_exchange_weak(allowed, static_cast<size_t>(bytes))) {
  }
  return cudaSuccess;
}

}  // namespace hotrow::emulated

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureMerge:
      return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    default:
      return "cudaErrorOfAnotherKind";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(error);
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  // As a driver has it: an empty list hides the device.
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  *count = visible != nullptr && *visible == '\0' ? 0 : NumDevices();
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= NumDevices()) return Say(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
// What the device says of itself, with any HOTROW_EMULATED_GPU_PROCESSORS.
static constexpr int kProcessors = 2;
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = hotrow::emulated::ComputeCapability() / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = hotrow::emulated::ComputeCapability() % 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(hotrow::emulated::SharedBytesMax());
      break;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      *value = 1;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {.name = "emulated GPU",
                 .uuid = {{'e', 'm', 'u', static_cast<char>(device)}},
                 .totalGlobalMem = Memory::Get().device_limit,
                 .l2CacheSize = 1 << 20,
                 .major = hotrow::emulated::ComputeCapability() / 10,
                 .minor = hotrow::emulated::ComputeCapability() % 10,
                 .multiProcessorCount = kProcessors};
  return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Resolve(nullptr)->Wait();
  Streams& streams = Streams::Get();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  for (CUstream_st* const stream : streams.all) {
    if (stream->device == current_device) stream->Wait();
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return Memory::Get().Allocate(data, bytes, Memory::Kind::kDevice);
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  if (Resolve(stream)->capture != nullptr) return Say(cudaErrorStreamCaptureUnsupported);
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  cudaDeviceSynchronize();
  return Memory::Get().Free(data, Memory::Kind::kDevice);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (data == nullptr) return cudaSuccess;
  return Add(stream, [data] {
    if (Memory::Get().Free(data, Memory::Kind::kDevice) != cudaSuccess) {
      hotrow::emulated::Fail("cudaFreeAsync of what is not memory of the device");
    }
  });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Memory& memory = Memory::Get();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  *total_bytes = memory.device_limit;
  *free_bytes = memory.device_limit - memory.device_bytes;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return Memory::Get().Allocate(data, bytes, Memory::Kind::kLocked);
}
cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  cudaDeviceSynchronize();
  return Memory::Get().Free(data, Memory::Kind::kLocked);
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  Memory& memory = Memory::Get();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const bool added = memory.pieces
                         .try_emplace(static_cast<const char*>(data),
                                      Memory::Piece{bytes, Memory::Kind::kRegistered})
                         .second;
  return added ? cudaSuccess : Say(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* data) {
  cudaDeviceSynchronize();
  Memory& memory = Memory::Get();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.pieces.erase(static_cast<const char*>(data)) == 1
             ? cudaSuccess
             : Say(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  static const bool any = Setting("HOTROW_EMULATED_GPU_ANY_MEMORY", 0) != 0;
  const std::optional<Memory::Piece> piece = Memory::Get().Find(data);
  attributes->type = !piece.has_value() ? any ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered
                     : piece->kind == Memory::Kind::kDevice ? cudaMemoryTypeDevice
                                                            : cudaMemoryTypeHost;
  attributes->device = piece.has_value() ? piece->device : current_device;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  CUstream_st* const target = Resolve(stream);
  // Memory that is not locked is read or written before the call returns.
  const bool waits = !Memory::Get().Knows(to) || !Memory::Get().Knows(from);
  if (waits && target->capture != nullptr) return Say(cudaErrorStreamCaptureUnsupported);
  Add(stream, [=] { std::memcpy(to, from, bytes); });
  if (waits) target->Wait();
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!Memory::Get().Knows(data)) return Say(cudaErrorInvalidValue);
  return Add(stream, [=] { std::memset(data, value, bytes); });
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) return Say(cudaErrorInvalidValue);
  *stream = new CUstream_st();
  Streams& streams = Streams::Get();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  streams.all.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const cudaError_t created = cudaStreamCreateWithFlags(stream, flags);
  if (created == cudaSuccess) (*stream)->priority = priority;
  return created;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = Resolve(stream)->priority;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = Resolve(stream)->device;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Streams& streams = Streams::Get();
  {
    const std::lock_guard<std::mutex> lock(streams.mutex);
    if (std::erase(streams.all, stream) != 1) return Say(cudaErrorInvalidValue);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st* const target = Resolve(stream);
  if (target->capture != nullptr) return Say(cudaErrorStreamCaptureUnsupported);
  target->Wait();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUstream_st* const target = Resolve(stream);
  if (target->capture != nullptr) return Say(cudaErrorStreamCaptureUnsupported);
  return target->Idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  return Add(stream, [=] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUstream_st* const target = Resolve(stream);
  if (target->device != event->device) return Say(cudaErrorInvalidResourceHandle);
  event->moment = nullptr;
  event->capture = target->capture;
  if (event->capture != nullptr) {
    event->stream = target;
    event->place = event->capture->branches[target].added;
    return cudaSuccess;
  }
  event->moment = std::make_shared<CUevent_st::Moment>();
  return Add(stream, [moment = event->moment] { moment->Pass(); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->moment != nullptr) event->moment->Wait();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->moment == nullptr || event->moment->Passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUstream_st* const target = Resolve(stream);
  if (event->capture != nullptr) {
    if (!event->capture->open) return Say(cudaErrorCapturedEvent);
    if (target->capture == nullptr) target->capture = event->capture;  // another branch of it
    if (target->capture != event->capture) return Say(cudaErrorStreamCaptureMerge);
    event->capture->branches[target];
    size_t& joined = event->capture->branches[event->stream].joined;
    joined = std::max(joined, event->place);
    return cudaSuccess;
  }
  if (event->moment == nullptr) return cudaSuccess;
  if (target->capture != nullptr) return Say(cudaErrorStreamCaptureIsolation);
  return Add(stream, [moment = event->moment] { moment->Wait(); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  cudaEventSynchronize(begin);
  cudaEventSynchronize(end);
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->moment->time - begin->moment->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capture = std::make_shared<Capture>(Capture{.origin = stream});
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode of_thread = cudaStreamCaptureModeGlobal;
  std::swap(*mode, of_thread);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = std::exchange(stream->capture, nullptr);
  if (capture == nullptr || capture->origin != stream) return Say(cudaErrorInvalidValue);
  capture->open = false;
  bool joined = true;
  for (const auto& [branch, counts] : capture->branches) {
    if (branch == stream) continue;
    branch->capture = nullptr;
    joined = joined && counts.joined == counts.added;
  }
  if (!joined) return Say(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->work)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return Add(stream, [work = exec->work] {
    for (const std::function<void()>& item : work) item();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
