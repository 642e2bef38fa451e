#ifndef HOTROW_BASE_CUDA_STATUS_H_
#define HOTROW_BASE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// Turns what a CUDA call returned into a Status whose message is "what: name (description)". Out of
// memory becomes ResourceExhausted; a missing, too old or unusable driver or device
// FailedPrecondition "no usable GPU: ..."; anything else Internal (after a kernel fault the context
// is gone: never retry). Also takes the error out of cudaGetLastError, so that a failed allocation
// is not reported a second time by the next kernel launch.
absl::Status CudaToStatus(cudaError_t error, std::string_view what);

}  // namespace hotrow

// HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(...)); the call's own text goes into the message.
#define HOTROW_CUDA_RETURN_IF_ERROR(expression)                       \
  do {                                                                \
    const cudaError_t hotrow_cuda_error_ = (expression);              \
    if (hotrow_cuda_error_ != cudaSuccess) {                          \
      return ::hotrow::CudaToStatus(hotrow_cuda_error_, #expression); \
    }                                                                 \
  } while (false)

#endif  // HOTROW_BASE_CUDA_STATUS_H_
