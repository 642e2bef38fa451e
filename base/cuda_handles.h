#ifndef HOTROW_BASE_CUDA_HANDLES_H_
#define HOTROW_BASE_CUDA_HANDLES_H_

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"

namespace hotrow {

template <auto kDestroy>
struct Destroy {
  void operator()(auto* handle) const noexcept { kDestroy(handle); }
};

using StreamHandle = std::unique_ptr<CUstream_st, Destroy<cudaStreamDestroy>>;
using EventHandle = std::unique_ptr<CUevent_st, Destroy<cudaEventDestroy>>;

// Which work that is ready a GPU takes first: that of kHigh.
enum class StreamPriority { kNormal, kHigh };
// A stream of the current device. It and the default stream do not wait for each other.
absl::StatusOr<StreamHandle> CreateStream(StreamPriority priority = StreamPriority::kNormal);

// Timing is for cudaEventElapsedTime; without it recording and waiting cost less.
enum class EventTiming { kOff, kOn };
absl::StatusOr<EventHandle> CreateEvent(EventTiming timing = EventTiming::kOff);

}  // namespace hotrow

#endif  // HOTROW_BASE_CUDA_HANDLES_H_
