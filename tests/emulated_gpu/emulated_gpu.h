#ifndef HOTROW_TESTS_EMULATED_GPU_EMULATED_GPU_H_
#define HOTROW_TESTS_EMULATED_GPU_EMULATED_GPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

// A GPU that is none: runs our kernels on the CPU, as they stand in the .cu files, so that they can
// be tested, under AddressSanitizer, on machines without a GPU.
//
// Threads: the threads of a block are fibers of one thread of the CPU. They take turns where they
//          meet (__syncthreads, votes, shuffles), where they end, and where a thread may lose its
//          turn on a GPU (some of the atomics, __nanosleep). Which goes next is drawn at random, so
//          that locks and other protocols meet many orders: HOTROW_EMULATED_GPU_SEED.
// Blocks:  run beside each other on HOTROW_EMULATED_GPU_PROCESSORS (2) threads of the CPU.
// Streams: are threads of the CPU, so that what is enqueued is done later; by
//          HOTROW_EMULATED_GPU_LAG_US (0) microseconds for each piece of work.
// Devices: HOTROW_EMULATED_GPU_DEVICES (1) of them. A thread begins on device 0; kernels that it
//          launches on a stream of another device than its own are refused, as by CUDA. They share
//          one memory, whose pieces know their device, so kernels do not find out a wrong one.
// Memory:  of the device is memory of the host, filled with 0xa5; HOTROW_EMULATED_GPU_MIB (2048).
//          With HOTROW_EMULATED_GPU_ANY_MEMORY=1 all memory of the process is said to be its, for
//          callers that can allocate no other: Python.
// Errors:  what leaves a GPU hanging or with undefined results ends the process with a message:
//          lanes that a vote names and that do not come, threads that all wait for each other, a
//          shuffle from a lane that is not in its mask. A thread that has ended is at every
//          barrier.
// Copies:  that go on beside a thread (base/hopper.cuh) are made when they begin or when somebody
//          waits for them, whichever is drawn. What nobody waits for is an error.
// Missing: the memory order of a GPU, caches that are not coherent, rounding of approximate
//          instructions, limits of registers and of static shared memory, speed. Host code that
//          touches memory of the device is not found out.
struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  dim3() = default;
  dim3(unsigned x_size, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};
struct CUstream_st;  // a cudaStream_t points to it

struct uint3 {
  unsigned x, y, z;
};

namespace hotrow::emulated {

// What a thread of a kernel sees of itself.
struct ThreadView {
  uint3 thread = {};
  uint3 block = {};
  dim3 block_size;
  dim3 grid_size;
};
extern thread_local const ThreadView* current;

// Enqueues what is no kernel of ours, in place of one of a library.
void EnqueueOnStream(CUstream_st* stream, std::function<void()> work);

// Whether all of these bytes are memory of the device, or locked memory of the host.
bool DeviceReaches(const void* data, size_t bytes);

// Enqueues a kernel; what is wrong with its shape, cudaGetLastError says.
void Enqueue(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream,
             std::function<void()> thread);

// What the device says that it is, 90 (Hopper) at first; 80 (Ampere) has no bulk copies and less
// shared memory. For tests, while nothing is enqueued.
int ComputeCapability();
void SetComputeCapability(int major_and_minor);

// What its cublasLt does wrong in products that do more than multiply. For tests, while nothing is
// enqueued.
enum class EpilogueFault {
  kNone,
  kUnknown,         // there is no algorithm
  kRefused,         // there is one, which does not run
  kNaNBecomesZero,  // by the ReLU
  kDoesNotRepeat,   // numbers that are not whole change from product to product
  kNoBias,          // is added
};
void SetEpilogueFault(EpilogueFault fault);

// Products of cublasLt whose lines are not whole 16 bytes, though their factors are no vectors of
// floats: a GPU loads these a number at a time. Text of each, since the last call.
std::vector<std::string> TakeUnalignedProducts();

// kernel<<<grid, block, shared, stream>>>(args), which translate.py writes as
// Configured([=](auto... values) { kernel(values...); }, grid, block, shared, stream)(args).
template <typename Kernel>
class Configured {
 public:
  Configured(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes = 0,
             CUstream_st* stream = nullptr)
      : kernel_(kernel), grid_(grid), block_(block), shared_bytes_(shared_bytes), stream_(stream) {}

  // Arguments are taken by value, as a GPU takes them.
  template <typename... Args>
  void operator()(Args... args) const {
    static_assert((0 + ... + sizeof(Args)) <= 4096, "kernels have 4 KiB for their parameters");
    static_assert((std::is_trivially_copyable_v<Args> && ...));
    Enqueue(grid_, block_, shared_bytes_, stream_,
            [kernel = kernel_, args...] { kernel(args...); });
  }

 private:
  Kernel kernel_;
  dim3 grid_;
  dim3 block_;
  size_t shared_bytes_;
  CUstream_st* stream_;
};

// --- Called by kernels

// Until all threads of the block that have not ended are here.
void SyncThreads();
// Until all lanes of the mask are here with the same `what`; what each of them brought, until the
// lane meets others again.
using LaneValues = std::array<uint64_t, 32>;
const LaneValues& MeetLanes(const char* what, uint32_t mask, uint64_t value);
// The same for those who bring more.
using LaneBlock = std::array<uint64_t, 3>;
using LaneBlocks = std::array<LaneBlock, 32>;
const LaneBlocks& MeetLanesWith(const char* what, uint32_t mask, const LaneBlock& block);
int CurrentLane();
// Others may go first.
void Yield();
// Sometimes they do.
void MayYield();
uint64_t ClockNanos();
// Shared memory that the launch asked for. All bytes are 0xff at first: a NaN in every format.
std::byte* DynamicShared();
// Copies to dynamic shared memory. Those of a thread that waits for groups of them ...
void BeginCopy(void* shared, const void* global, size_t bytes);
void CommitCopies();
void WaitForCopies(size_t latest);
// ... and those that arrive at a barrier of eight bytes: an mbarrier.
void InitCopyBarrier(uint64_t* barrier, uint32_t arrivals);
void ArriveAndExpect(uint64_t* barrier, uint32_t bytes);
void WaitForPhase(uint64_t* barrier, uint32_t parity);
void BeginBulkCopy(void* shared, const void* global, size_t bytes, uint64_t* barrier);
[[noreturn]] void Fail(const char* what);

}  // namespace hotrow::emulated

#endif  // HOTROW_TESTS_EMULATED_GPU_EMULATED_GPU_H_
