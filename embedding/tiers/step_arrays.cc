#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/tiers/step_arrays_impl.h"

namespace hotrow::internal {

size_t StepArrays::AddBytes(std::span<const std::byte> array, bool shared) {
  const auto bytes = static_cast<int64_t>(array.size());
  parts_.push_back({array.data(), bytes, bytes_, shared});
  bytes_ += RoundUp(bytes, kAlignment);
  if (!shared) copied_bytes_ = bytes_;
  return parts_.size() - 1;
}

absl::Status StepArrays::Enqueue(DeviceStream* stream) {
  const Device device = stream->device();
  // A quarter more than is needed, so that batches of nearly equal size do not each take new
  // memory.
  if (host_.size() < copied_bytes_ || device_.size() < bytes_) {
    HOTROW_RETURN_IF_ERROR(stream->Wait());
    HOTROW_RETURN_IF_ERROR(host_.Reserve(copied_bytes_ + copied_bytes_ / 4, {device}));
    HOTROW_RETURN_IF_ERROR(device_.Reserve(bytes_ + bytes_ / 4, {device, stream->get()}));
    host_bytes_.store(host_.bytes(), std::memory_order_relaxed);
    device_bytes_.store(device_.bytes(), std::memory_order_relaxed);
  }
  for (Part& part : parts_) {
    const std::byte* from = part.data;
    if (!part.shared) {
      std::copy_n(from, part.bytes, host_.data() + part.offset);
      from = host_.data() + part.offset;
    }
    part.data = device_.data() + part.offset;
    HOTROW_RETURN_IF_ERROR(stream->Copy(device_.data() + part.offset, from, part.bytes));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
