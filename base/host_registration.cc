#include "base/host_registration.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_device.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#endif

namespace hotrow {

#if HOTROW_HAVE_CUDA

absl::StatusOr<HostRegistration> HostRegistration::Create(Device device, void* data,
                                                          int64_t bytes) {
  if (device == Device::kCpu || bytes == 0) return HostRegistration();
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  int current = 0;
  int same_address = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&current));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, current));
  if (same_address == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no usable GPU: device ", current, " cannot use the host's addresses of locked memory"));
  }
  const cudaError_t error = cudaHostRegister(data, static_cast<size_t>(bytes),
                                             cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrCat("cudaHostRegister: the system does not let us lock ", bytes,
                     " bytes of memory; raise `ulimit -l` or lower the budget"));
  }
  HOTROW_RETURN_IF_ERROR(
      CudaToStatus(error, absl::StrCat("cudaHostRegister of ", bytes, " bytes")));
  return HostRegistration(data);
}

void HostRegistration::Release() {
  if (data_ != nullptr) cudaHostUnregister(data_);
  data_ = nullptr;
}

absl::StatusOr<ExecContext> CurrentDevice(Device device) {
  ExecContext current = {.device = device};
  if (device != Device::kCpu) HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&current.device_index));
  return current;
}

bool IsPageLocked(Device device, const void* data, int64_t bytes) {
  if (device == Device::kCpu || bytes == 0) return true;
  const auto locked = [](const void* address) {
    cudaPointerAttributes attributes = {};
    if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess) {
      return attributes.type == cudaMemoryTypeHost;
    }
    cudaGetLastError();
    return false;
  };
  return locked(data) && locked(static_cast<const std::byte*>(data) + bytes - 1);
}

namespace {

absl::StatusOr<cudaMemoryType> TypeOfMemory(const ExecContext& ctx, const void* data,
                                            std::string_view name) {
  cudaPointerAttributes attributes = {};
  HOTROW_CUDA_RETURN_IF_ERROR(cudaPointerGetAttributes(&attributes, data));
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != ctx.device_index) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": is memory of GPU ", attributes.device,
                     ", and the tables are on GPU ", ctx.device_index, "; copy it there first"));
  }
  return attributes.type;
}

}  // namespace

absl::StatusOr<bool> IsOnDevice(const ExecContext& ctx, const void* data, std::string_view name) {
  if (ctx.device == Device::kCpu) return false;
  HOTROW_ASSIGN_OR_RETURN(const cudaMemoryType type, TypeOfMemory(ctx, data, name));
  return type == cudaMemoryTypeDevice || type == cudaMemoryTypeManaged;
}

absl::Status CheckReached(const ExecContext& ctx, const void* data, std::string_view name) {
  if (ctx.device == Device::kCpu || data == nullptr) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const cudaMemoryType type, TypeOfMemory(ctx, data, name));
  if (type != cudaMemoryTypeUnregistered) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), ": is memory of the host that is not page-locked, which GPU ",
                   ctx.device_index, " does not reach; give memory of that GPU"));
}

#else

absl::StatusOr<HostRegistration> HostRegistration::Create(Device device, void*, int64_t bytes) {
  if (device == Device::kCpu || bytes == 0) return HostRegistration();
  return absl::FailedPreconditionError(
      "no usable GPU: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
}

void HostRegistration::Release() { data_ = nullptr; }

absl::StatusOr<ExecContext> CurrentDevice(Device device) { return ExecContext{.device = device}; }

bool IsPageLocked(Device device, const void*, int64_t) { return device == Device::kCpu; }

absl::StatusOr<bool> IsOnDevice(const ExecContext&, const void*, std::string_view) { return false; }

absl::Status CheckReached(const ExecContext&, const void*, std::string_view) {
  return absl::OkStatus();
}

#endif

}  // namespace hotrow
