#ifndef HOTROW_OPS_PRODUCTS_BESIDE_WORK_IMPL_CUH_
#define HOTROW_OPS_PRODUCTS_BESIDE_WORK_IMPL_CUH_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/exec_context.h"
#include "base/status_macros.h"
#include "ops/products/gemm_cuda_impl.h"

namespace hotrow::internal {

// What a network enqueues on the second stream of its products, in parts, each of which its own
// stream waits for where its results are read. So products of weight gradients, which nothing waits
// for but the optimizer, run beside what the backward pass goes on with.
//
// Threads: one call at a time.
class BesideWork {
 public:
  BesideWork() = default;
  BesideWork(const BesideWork&) = delete;
  BesideWork& operator=(const BesideWork&) = delete;
  // Memory of the network goes back in the order of its stream.
  ~BesideWork() { AwaitAll().IgnoreError(); }

  // `stream` is that of the network's memory.
  absl::Status Init(std::shared_ptr<GemmCuda> gemm, size_t parts, CudaStream stream) {
    gemm_ = std::move(gemm);
    stream_ = stream;
    ends_.resize(parts);
    for (EventHandle& end : ends_) {
      HOTROW_ASSIGN_OR_RETURN(end, CreateEvent());
    }
    return absl::OkStatus();
  }

  // enqueue(beside) enqueues part `part` on `beside`, behind all that `stream` has now. What it
  // reads and writes is left alone until Await.
  template <typename Enqueue>
  absl::Status Run(CudaStream stream, size_t part, Enqueue&& enqueue) {
    HOTROW_ASSIGN_OR_RETURN(const CudaStream beside, gemm_->Fork(stream));
    ++under_way_;
    const absl::Status status = enqueue(beside);
    // Also behind half of a part, which a graph that is recorded must not be left with.
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(ends_[part].get(), beside));
    if (!status.ok()) Await(stream, part).IgnoreError();
    return status;
  }
  // `stream` goes on behind this part.
  absl::Status Await(CudaStream stream, size_t part) {
    if (under_way_ > 0) --under_way_;
    HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, ends_[part].get(), 0));
    return absl::OkStatus();
  }
  // Where a pass was left before its end: the stream of Init goes on behind it all. Not by way of
  // ends_, which may have been recorded in a graph that came to nothing.
  absl::Status AwaitAll() {
    if (std::exchange(under_way_, 0) == 0) return absl::OkStatus();
    return gemm_->Join(stream_);
  }

 private:
  std::shared_ptr<GemmCuda> gemm_;
  CudaStream stream_ = nullptr;
  std::vector<EventHandle> ends_;  // of the parts
  int under_way_ = 0;              // parts that nobody has waited for
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_BESIDE_WORK_IMPL_CUH_
