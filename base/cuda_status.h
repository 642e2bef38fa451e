#ifndef HOTROW_BASE_CUDA_STATUS_H_
#define HOTROW_BASE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// Turns the result of a CUDA call into a Status with the message "what: name (description)". Out of
// memory is ResourceExhausted. A missing, too old or unusable driver or device is
// FailedPrecondition "no usable GPU: ...". Anything else is Internal: after a kernel fault the
// context is gone, so never retry. Also clears cudaGetLastError, so that the next kernel launch
// does not report a failed allocation again.
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
