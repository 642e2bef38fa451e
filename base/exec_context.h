#ifndef HOTROW_BASE_EXEC_CONTEXT_H_
#define HOTROW_BASE_EXEC_CONTEXT_H_

#include "base/device.h"
#include "base/thread_pool.h"

struct CUstream_st;

namespace hotrow {

class TraceRecorder;

using CudaStream = CUstream_st*;  // a view of a cudaStream_t; base/cuda_handles.h owns them

// Where and how an operation runs; passed to every op, owned by the caller. Cheap to copy.
struct ExecContext {
  Device device = Device::kCpu;
  ThreadPool* pool = nullptr;      // CPU: threads for loops; null = the calling thread alone
  CudaStream stream = nullptr;     // CUDA: work is enqueued here; never the default stream
  TraceRecorder* trace = nullptr;  // null = no spans
  // CUDA: which of the machine's devices `stream` belongs to. The calling thread has made it the
  // current one; threads that work for this context make it theirs (UseDevice).
  int device_index = 0;

  // The same threads and trace, for loops over host memory.
  ExecContext OnHost() const { return {.pool = pool, .trace = trace}; }
};

}  // namespace hotrow

#endif  // HOTROW_BASE_EXEC_CONTEXT_H_
