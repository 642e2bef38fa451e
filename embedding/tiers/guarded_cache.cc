#include <algorithm>

#include "base/status_macros.h"
#include "embedding/tiers/guarded_cache_impl.h"

namespace hotrow::internal {

absl::StatusOr<std::unique_ptr<GuardedCache>> GuardedCache::Create(const RowCacheOptions& options,
                                                                   bool staged,
                                                                   int64_t staging_rows) {
  std::unique_ptr<GuardedCache> cache(new GuardedCache());
  cache->staged_ = staged;
  HOTROW_ASSIGN_OR_RETURN(cache->stream_, DeviceStream::Create(options.device, /*is_urgent=*/true));
  HOTROW_ASSIGN_OR_RETURN(cache->rows_, RowCache::Create(options));
  if (staged) {
    HOTROW_ASSIGN_OR_RETURN(cache->call_slots_,
                            SharedBuffer<int64_t>::Create(staging_rows, {options.device}));
  }
  return cache;
}

absl::Status GuardedCache::WithSlots(
    std::span<const int64_t> slots,
    absl::FunctionRef<absl::Status(const ExecContext& ctx, std::span<const int64_t> slots)> call) {
  if (!staged_) return call(ExecContext(), slots);
  while (!slots.empty()) {
    const size_t n = std::min(slots.size(), static_cast<size_t>(call_slots_.size()));
    std::copy_n(slots.begin(), n, call_slots_.data());
    HOTROW_RETURN_IF_ERROR(stream_.RunAndWait(ExecContext(), [&](const ExecContext& ctx) {
      return call(ctx, call_slots_.first(static_cast<int64_t>(n)));
    }));
    slots = slots.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status GuardedCache::PutDirty(int64_t slot, const std::byte* row) {
  HOTROW_RETURN_IF_ERROR(stream_.Copy(rows_->row(slot), row, rows_->row_bytes()));
  return WithSlots({&slot, 1}, [&](const ExecContext& ctx, std::span<const int64_t> slots) {
    HOTROW_RETURN_IF_ERROR(rows_->MarkFilled(ctx, slots));
    return rows_->MarkDirty(ctx, slots);
  });
}

}  // namespace hotrow::internal
