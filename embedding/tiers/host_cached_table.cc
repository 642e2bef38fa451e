#include "embedding/tiers/host_cached_table_impl.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace hotrow::internal {

absl::Status HostCachedTable::TakeKeys(const ExecContext& /*ctx*/, std::span<const RowKey> keys,
                                       std::span<const int32_t> counts, Placing* /*placing*/,
                                       StepRows* step) {
  step->keys = keys;
  step->counts = counts;
  return absl::OkStatus();
}

absl::Status HostCachedTable::EnqueueChunk(const ExecContext& ctx, int64_t size,
                                           RowOutflow::Chunk* chunk) {
  return cache_->get()->FindOrInsert(ctx, chunk->keys.first(size), chunk->Result(size));
}

absl::Status HostCachedTable::ResolveForRead(const ExecContext& /*ctx*/, StepRows* step,
                                             std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  for (size_t i = 0; i < step->keys.size(); ++i) rows[i] = cache_->row(step->slots[i]);
  return absl::OkStatus();
}

void HostCachedTable::Unpin(const ExecContext& ctx, StepRows* step, bool updated) {
  if (!updated || step->trained.empty()) {
    cache_->Note(cache_->get()->Unpin(ctx, step->slots, updated));
    return;
  }
  clean_slots_.clear();
  dirty_slots_.clear();
  for (size_t i = 0; i < step->slots.size(); ++i) {
    (step->trained[i] != 0 ? dirty_slots_ : clean_slots_).push_back(step->slots[i]);
  }
  cache_->Note(cache_->get()->Unpin(ctx, clean_slots_, /*dirty=*/false));
  cache_->Note(cache_->get()->Unpin(ctx, dirty_slots_, /*dirty=*/true));
}

absl::Status HostCachedTable::ReadCached(const ExecContext& ctx, std::span<const RowKey> keys,
                                         std::byte* staging, std::span<std::byte*> rows) {
  miss_keys_.clear();
  miss_rows_.clear();
  HOTROW_RETURN_IF_ERROR(cache_->get()->Find(ctx, keys, rows));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] != nullptr) continue;
    rows[i] = staging;
    staging += row_bytes();
    if (const std::byte* const row = outflow_->FindUnwritten(keys[i]); row != nullptr) {
      std::memcpy(rows[i], row, static_cast<size_t>(row_bytes()));
      continue;
    }
    miss_keys_.push_back(keys[i]);
    miss_rows_.push_back(rows[i]);
  }
  return absl::OkStatus();
}

absl::Status HostCachedTable::OverwriteCached(const ExecContext& ctx, std::span<const RowKey> keys,
                                              std::span<const std::byte* const> rows) {
  std::vector<std::byte*> resident(keys.size());
  HOTROW_RETURN_IF_ERROR(cache_->get()->Find(ctx, keys, resident));
  miss_keys_.clear();
  miss_rows_.clear();
  miss_values_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (resident[i] == nullptr) continue;
    miss_keys_.push_back(keys[i]);
    miss_rows_.push_back(resident[i]);
    if (!rows.empty()) miss_values_.push_back(rows[i]);
  }
  return CopyToMissRows(ctx, rows.empty());
}

}  // namespace hotrow::internal
