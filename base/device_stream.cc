#include "base/device_stream.h"

#include <cstring>

#include "base/device_memory.h"

#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_buffer.h"
#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#endif

namespace hotrow {

DeviceStream& DeviceStream::operator=(DeviceStream&& other) noexcept {
  if (this != &other) {
    Release();
    device_ = other.device_;
    stream_ = std::exchange(other.stream_, nullptr);
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

#if HOTROW_HAVE_CUDA

absl::StatusOr<DeviceStream> DeviceStream::Create(Device device) {
  DeviceStream result;
  if (device == Device::kCpu) return result;
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  HOTROW_ASSIGN_OR_RETURN(StreamHandle stream, CreateStream());
  HOTROW_ASSIGN_OR_RETURN(EventHandle event, CreateEvent());
  result.device_ = device;
  result.stream_ = stream.release();
  result.event_ = event.release();
  return result;
}

void DeviceStream::Release() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  event_ = nullptr;
  stream_ = nullptr;
}

absl::Status WaitForStream(const ExecContext& ctx) {
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(ctx.stream));
  return absl::OkStatus();
}

absl::Status DeviceStream::RunAfter(CudaStream other) {
  if (device_ == Device::kCpu) return absl::OkStatus();
  // The event may still be awaited from the time before: a wait looks at what was recorded when it
  // was enqueued.
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(static_cast<cudaEvent_t>(event_), other));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event_), 0));
  return absl::OkStatus();
}

absl::Status EnqueueCopy(const ExecContext& ctx, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (ctx.device == Device::kCpu) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, ctx.stream));
  return absl::OkStatus();
}

namespace internal {

absl::StatusOr<void*> AllocateOnGpu(int64_t bytes, CudaStream stream) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  return AllocateDevice(bytes, stream);
}

void FreeOnGpu(void* data, CudaStream stream) { FreeDevice(data, stream); }

absl::StatusOr<void*> AllocateForGpu(int64_t bytes) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  return AllocatePinned(bytes);
}

void FreeForGpu(void* data) { FreePinned(data); }

}  // namespace internal

#else

namespace {
absl::Status NoCuda() {
  return absl::FailedPreconditionError("no usable GPU: this build has no CUDA");
}
}  // namespace

absl::StatusOr<DeviceStream> DeviceStream::Create(Device device) {
  if (device == Device::kCpu) return DeviceStream();
  return NoCuda();
}

void DeviceStream::Release() {}

absl::Status WaitForStream(const ExecContext&) { return absl::OkStatus(); }

absl::Status DeviceStream::RunAfter(CudaStream) { return absl::OkStatus(); }

absl::Status EnqueueCopy(const ExecContext&, void* to, const void* from, int64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

namespace internal {

absl::StatusOr<void*> AllocateOnGpu(int64_t, CudaStream) { return NoCuda(); }

void FreeOnGpu(void*, CudaStream) {}

absl::StatusOr<void*> AllocateForGpu(int64_t) { return NoCuda(); }

void FreeForGpu(void*) {}

}  // namespace internal

#endif

}  // namespace hotrow
