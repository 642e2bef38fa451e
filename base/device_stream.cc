#include "base/device_stream.h"

#include <atomic>
#include <cstring>

#include "base/device_memory.h"

#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/page_locked_impl.h"
#endif

namespace hotrow {

namespace {

std::atomic<internal::MakeLateQueue> make_late_queue{nullptr};

std::shared_ptr<internal::LateQueue> NewLateQueue() {
  const internal::MakeLateQueue make = make_late_queue.load();
  return make == nullptr ? nullptr : make();
}

}  // namespace

void internal::SetLateQueues(MakeLateQueue make) { make_late_queue.store(make); }

DeviceStream& DeviceStream::operator=(DeviceStream&& other) noexcept {
  if (this != &other) {
    Release();
    device_ = other.device_;
    device_index_ = other.device_index_;
    stream_ = std::exchange(other.stream_, nullptr);
    event_ = std::exchange(other.event_, nullptr);
    late_ = std::move(other.late_);
  }
  return *this;
}

absl::Status DeviceStream::RunLater(std::function<absl::Status()> work) const {
  return late_->Add(std::move(work));
}

absl::Status DeviceStream::Wait() const {
  if (late_ != nullptr) return late_->Wait(late_->added());
  return WaitForStream(On(ExecContext()));
}

DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  if (this != &other) {
    Release();
    event_ = std::exchange(other.event_, nullptr);
    late_ = std::move(other.late_);
    ticket_ = other.ticket_;
  }
  return *this;
}

#if HOTROW_HAVE_CUDA

absl::StatusOr<DeviceStream> DeviceStream::Create(Device device, bool is_urgent) {
  DeviceStream result;
  if (device == Device::kCpu) {
    result.late_ = NewLateQueue();
    return result;
  }
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  HOTROW_ASSIGN_OR_RETURN(StreamHandle stream, CreateStream(is_urgent ? StreamPriority::kHigh
                                                                      : StreamPriority::kNormal));
  HOTROW_ASSIGN_OR_RETURN(EventHandle event, CreateEvent());
  result.device_ = device;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&result.device_index_));
  result.stream_ = stream.release();
  result.event_ = event.release();
  return result;
}

void DeviceStream::Release() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  event_ = nullptr;
  stream_ = nullptr;
  late_ = nullptr;
}

absl::StatusOr<DeviceEvent> DeviceEvent::Create(Device device) {
  DeviceEvent result;
  if (device == Device::kCpu) return result;
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  HOTROW_ASSIGN_OR_RETURN(EventHandle event, CreateEvent());
  result.event_ = event.release();
  return result;
}

void DeviceEvent::Release() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
  event_ = nullptr;
  late_ = nullptr;
}

absl::Status DeviceEvent::Record(const DeviceStream& stream) {
  if (stream.device() == Device::kCpu) {
    late_ = stream.late_;
    if (late_ != nullptr) ticket_ = late_->added();
    return absl::OkStatus();
  }
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream.get()));
  return absl::OkStatus();
}

absl::Status DeviceEvent::Record(const ExecContext& ctx) {
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(static_cast<cudaEvent_t>(event_), ctx.stream));
  return absl::OkStatus();
}

absl::Status DeviceEvent::Wait() const {
  if (late_ != nullptr) return late_->Wait(ticket_);
  if (event_ == nullptr) return absl::OkStatus();
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(static_cast<cudaEvent_t>(event_)));
  return absl::OkStatus();
}

bool DeviceEvent::IsDone() const {
  if (late_ != nullptr) return late_->IsDone(ticket_);
  if (event_ == nullptr) return true;
  if (cudaEventQuery(static_cast<cudaEvent_t>(event_)) != cudaErrorNotReady) return true;
  cudaGetLastError();  // else the next launch would seem to have failed with this
  return false;
}

absl::Status DeviceStream::RunAfter(const DeviceEvent& event) {
  if (event.late_ != nullptr) return event.Wait();
  if (event.event_ == nullptr) return absl::OkStatus();
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event.event_), 0));
  return absl::OkStatus();
}

absl::Status UseDevice(const ExecContext& ctx) {
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  HOTROW_CUDA_RETURN_IF_ERROR(cudaSetDevice(ctx.device_index));
  return absl::OkStatus();
}

absl::StatusOr<int> NumDevices(Device device) {
  if (device == Device::kCpu) return 1;
  int count = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  if (count == 0) return absl::FailedPreconditionError("no usable GPU: there is none");
  return count;
}

absl::StatusOr<int> DeviceOfStream(const ExecContext& ctx) {
  int device = ctx.device_index;
#if CUDART_VERSION >= 12080
  if (ctx.device != Device::kCpu) {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamGetDevice(ctx.stream, &device));
  }
#endif
  return device;
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

absl::Status DeviceStream::RunBefore(const ExecContext& ctx) {
  if (device_ == Device::kCpu) return Wait();
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream_));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(ctx.stream, static_cast<cudaEvent_t>(event_), 0));
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

namespace {

absl::StatusOr<void*> AllocateOnGpu(int64_t bytes, CudaStream stream) {
  if (bytes == 0) return nullptr;
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  void* data = nullptr;
  HOTROW_RETURN_IF_ERROR(CudaToStatus(cudaMallocAsync(&data, static_cast<size_t>(bytes), stream),
                                      absl::StrCat("cudaMallocAsync of ", bytes, " bytes")));
  return data;
}

void FreeOnGpu(void* data, CudaStream stream) { cudaFreeAsync(data, stream); }

// Not HostMemory that is registered: that would have to have its pages for itself.
absl::StatusOr<void*> AllocatePinned(int64_t bytes) {
  if (bytes == 0) return nullptr;
  return internal::PageLockedMemory::OfProcess().Take(bytes);
}

void FreePinned(void* data, int64_t bytes) {
  internal::PageLockedMemory::OfProcess().GiveBack(data, bytes);
}

}  // namespace

#else

namespace {
absl::Status NoCuda() {
  return absl::FailedPreconditionError(
      "no usable GPU: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
}
}  // namespace

absl::StatusOr<DeviceStream> DeviceStream::Create(Device device, bool /*is_urgent*/) {
  if (device != Device::kCpu) return NoCuda();
  DeviceStream result;
  result.late_ = NewLateQueue();
  return result;
}

void DeviceStream::Release() { late_ = nullptr; }

absl::StatusOr<DeviceEvent> DeviceEvent::Create(Device device) {
  if (device == Device::kCpu) return DeviceEvent();
  return NoCuda();
}

void DeviceEvent::Release() { late_ = nullptr; }

absl::Status DeviceEvent::Record(const DeviceStream& stream) {
  late_ = stream.late_;
  if (late_ != nullptr) ticket_ = late_->added();
  return absl::OkStatus();
}

absl::Status DeviceEvent::Record(const ExecContext&) { return absl::OkStatus(); }

absl::Status DeviceEvent::Wait() const {
  return late_ == nullptr ? absl::OkStatus() : late_->Wait(ticket_);
}

bool DeviceEvent::IsDone() const { return late_ == nullptr || late_->IsDone(ticket_); }

absl::Status UseDevice(const ExecContext& ctx) {
  return ctx.device == Device::kCpu ? absl::OkStatus() : NoCuda();
}

absl::StatusOr<int> NumDevices(Device device) {
  if (device == Device::kCpu) return 1;
  return NoCuda();
}

absl::StatusOr<int> DeviceOfStream(const ExecContext& ctx) { return ctx.device_index; }

absl::Status WaitForStream(const ExecContext&) { return absl::OkStatus(); }

absl::Status DeviceStream::RunAfter(CudaStream) { return absl::OkStatus(); }
absl::Status DeviceStream::RunAfter(const DeviceEvent& event) { return event.Wait(); }
absl::Status DeviceStream::RunBefore(const ExecContext&) { return Wait(); }

absl::Status EnqueueCopy(const ExecContext&, void* to, const void* from, int64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

namespace {

absl::StatusOr<void*> AllocateOnGpu(int64_t, CudaStream) { return NoCuda(); }
void FreeOnGpu(void*, CudaStream) {}
absl::StatusOr<void*> AllocatePinned(int64_t) { return NoCuda(); }
void FreePinned(void*, int64_t) {}

}  // namespace

#endif

absl::StatusOr<void*> MemoryOfDevice::Allocate(int64_t bytes) const {
  if (device == Device::kCpu) return HostMemory(huge_pages).Allocate(bytes);
  return AllocateOnGpu(bytes, stream);
}

void MemoryOfDevice::Free(void* data, int64_t bytes) const {
  if (device == Device::kCpu) return HostMemory(huge_pages).Free(data, bytes);
  FreeOnGpu(data, stream);
}

absl::StatusOr<void*> SharedMemory::Allocate(int64_t bytes) const {
  if (device == Device::kCpu) return HostMemory(huge_pages).Allocate(bytes);
  return AllocatePinned(bytes);
}

void SharedMemory::Free(void* data, int64_t bytes) const {
  if (device == Device::kCpu) return HostMemory(huge_pages).Free(data, bytes);
  FreePinned(data, bytes);
}

}  // namespace hotrow
