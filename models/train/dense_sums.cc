#include <utility>

#include "base/math.h"
#include "base/status_macros.h"
#include "models/data/slice_batch.h"
#include "models/train/dense_sums_impl.h"
#include "ops/training/ordered_sum.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<DenseSums>> DenseSums::Create(Communicator& host, Device device,
                                                             int64_t floats_max) {
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DeviceChannel> channel,
                          DeviceChannel::Create(host, device));
  std::unique_ptr<DenseSums> out(new DenseSums(std::move(channel), std::move(stream)));
  const MemoryOfDevice memory = {device, out->stream_.get()};
  const int64_t slice = CeilDiv(floats_max, int64_t{out->world_size()});
  HOTROW_RETURN_IF_ERROR(out->parts_.Reserve(slice * out->world_size(), memory));
  HOTROW_RETURN_IF_ERROR(out->own_sum_.Reserve(slice, memory));
  return out;
}

absl::Status DenseSums::Start(const ExecContext& ctx, const float* values, std::span<float> sums) {
  constexpr int64_t kFloatBytes = sizeof(float);
  HOTROW_RETURN_IF_ERROR(channel_->status());
  HOTROW_RETURN_IF_ERROR(stream_.RunAfter(ctx.stream));
  const auto n = static_cast<size_t>(world_size());
  const auto size = static_cast<int64_t>(sums.size());
  std::vector<int64_t> begins(n + 1);
  for (size_t p = 0; p <= n; ++p) {
    begins[p] = SliceBegin(size, static_cast<int64_t>(p), world_size());
  }
  const auto rank = static_cast<size_t>(channel_->rank());
  const int64_t own = begins[rank + 1] - begins[rank];

  // Every rank's part of this one's slice.
  std::vector<int64_t> slice_bytes(n), slice_offsets(n);
  std::vector<int64_t> own_bytes(n, own * kFloatBytes), part_offsets(n), no_offsets(n);
  for (size_t p = 0; p < n; ++p) {
    slice_bytes[p] = (begins[p + 1] - begins[p]) * kFloatBytes;
    slice_offsets[p] = begins[p] * kFloatBytes;
    part_offsets[p] = static_cast<int64_t>(p) * own * kFloatBytes;
  }
  HOTROW_RETURN_IF_ERROR(channel_->AllToAllV({.send = values,
                                              .send_bytes = slice_bytes,
                                              .send_offsets = slice_offsets,
                                              .recv = parts_.data(),
                                              .recv_bytes = own_bytes,
                                              .recv_offsets = part_offsets},
                                             stream_));
  HOTROW_RETURN_IF_ERROR(
      stream_.Run(ctx, [sum = OrderedSumArgs{.parts = parts_.data(),
                                             .num_parts = world_size(),
                                             .stride = own,
                                             .size = own,
                                             .sum = own_sum_.data()}](const ExecContext& here) {
        return OrderedSum(here, sum);
      }));
  // Its sum to every rank.
  return channel_->AllToAllV({.send = own_sum_.data(),
                              .send_bytes = own_bytes,
                              .send_offsets = no_offsets,
                              .recv = sums.data(),
                              .recv_bytes = slice_bytes,
                              .recv_offsets = slice_offsets},
                             stream_);
}

absl::Status DenseSums::Finish(const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(stream_.RunBefore(ctx));
  return channel_->status();
}

}  // namespace hotrow
