#include "base/cuda_device.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr int kComputeMajorMin = 8;

absl::Status NoUsableGpu(const std::string& reason) {
  return absl::FailedPreconditionError(absl::StrCat("no usable GPU: ", reason));
}

absl::StatusOr<int> DeviceAttribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

}  // namespace

absl::Status CudaToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const std::string message = absl::StrCat(std::string(what), ": ", cudaGetErrorName(error), " (",
                                           cudaGetErrorString(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInitializationError:
      return NoUsableGpu(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status CheckUsableGpu() {
  int count = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  if (count == 0) return NoUsableGpu("the driver knows of no device");
  int device = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  HOTROW_ASSIGN_OR_RETURN(const int major,
                          DeviceAttribute(cudaDevAttrComputeCapabilityMajor, device));
  HOTROW_ASSIGN_OR_RETURN(const int minor,
                          DeviceAttribute(cudaDevAttrComputeCapabilityMinor, device));
  if (major < kComputeMajorMin) {
    return NoUsableGpu(absl::StrCat("device ", device, " has compute capability ", major, ".",
                                    minor, "; ", kComputeMajorMin, ".0 is the lowest we support"));
  }
  HOTROW_ASSIGN_OR_RETURN(const int has_pools,
                          DeviceAttribute(cudaDevAttrMemoryPoolsSupported, device));
  if (has_pools == 0) {
    return NoUsableGpu(absl::StrCat("device ", device, " has no stream-ordered memory"));
  }
  // Creates the context, which fails when another process holds the device exclusively.
  HOTROW_CUDA_RETURN_IF_ERROR(cudaFree(nullptr));
  return absl::OkStatus();
}

absl::StatusOr<CudaDeviceGuard> CudaDeviceGuard::Set(int device) {
  int previous = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&previous));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaSetDevice(device));
  return CudaDeviceGuard(previous);
}

CudaDeviceGuard::~CudaDeviceGuard() {
  if (previous_ != kNone) cudaSetDevice(previous_);
}

absl::StatusOr<StreamHandle> CreateStream(StreamPriority priority) {
  int lowest = 0, highest = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking, priority == StreamPriority::kHigh ? highest : lowest));
  return StreamHandle(stream);
}

absl::StatusOr<EventHandle> CreateEvent(EventTiming timing) {
  cudaEvent_t event = nullptr;
  const unsigned flags = timing == EventTiming::kOn ? cudaEventDefault : cudaEventDisableTiming;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, flags));
  return EventHandle(event);
}

}  // namespace hotrow
