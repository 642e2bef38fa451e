#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "embedding/tiers/device_index_impl.h"

namespace hotrow::internal {

absl::StatusOr<std::unique_ptr<DeviceIndex>> DeviceIndex::Create(GuardedCache* cache,
                                                                 HostStore* store,
                                                                 int64_t budget_bytes,
                                                                 int64_t batch_keys) {
  const Device device = cache->device();
  std::unique_ptr<DeviceIndex> index(new DeviceIndex(cache, store));
  HOTROW_ASSIGN_OR_RETURN(index->index_,
                          AddressIndex::Create({.budget_bytes = budget_bytes, .device = device}));
  index->aged_rows_ = store->aged_rows();
  for (Area& area : index->areas_) {
    HOTROW_ASSIGN_OR_RETURN(area.keys, SharedBuffer<RowKey>::Create(batch_keys, {device}));
    HOTROW_ASSIGN_OR_RETURN(area.rows, SharedBuffer<std::byte*>::Create(batch_keys, {device}));
    HOTROW_ASSIGN_OR_RETURN(area.done, DeviceEvent::Create(device));
  }
  return index;
}

int64_t DeviceIndex::host_bytes() const {
  return std::ssize(areas_) * (areas_[0].keys.bytes() + areas_[0].rows.bytes());
}

absl::StatusOr<DeviceIndex::Area*> DeviceIndex::NextArea() {
  Area* const area = &areas_[turn_++ % areas_.size()];
  HOTROW_RETURN_IF_ERROR(area->done.Wait());
  return area;
}

absl::Status DeviceIndex::InsertOrAssign(std::span<const RowKey> keys,
                                         std::span<std::byte* const> rows) {
  const std::lock_guard<std::mutex> own(mutex_);
  for (size_t i = 0; i < keys.size();) {
    HOTROW_ASSIGN_OR_RETURN(Area* const area, NextArea());
    int64_t n = 0;
    for (; i < keys.size() && n < area->keys.size(); ++i) {
      if (rows[i] == nullptr) continue;
      area->keys[n] = keys[i];
      area->rows[n] = rows[i];
      ++n;
    }
    if (n == 0) continue;
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    const DeviceStream& stream = cache_->stream();
    HOTROW_RETURN_IF_ERROR(
        stream.Run(ExecContext(), [index = index_.get(), its_keys = area->keys.first(n),
                                   its_rows = area->rows.first(n)](const ExecContext& here) {
          return index->InsertOrAssign(here, its_keys, its_rows);
        }));
    HOTROW_RETURN_IF_ERROR(area->done.Record(stream));
  }
  return absl::OkStatus();
}

absl::Status DeviceIndex::Write(std::span<const RowKey> keys,
                                std::span<const std::byte* const> rows, ThreadPool* pool) {
  std::vector<std::byte*> at(keys.size());
  std::vector<uint8_t> added(keys.size());
  const absl::Status written = store_->InsertOrAssign(keys, rows, at, added, pool);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (added[i] == 0) at[i] = nullptr;
  }
  HOTROW_RETURN_IF_ERROR(InsertOrAssign(keys, at));
  return written;
}

absl::Status DeviceIndex::Erase(std::span<const RowKey> keys) {
  const std::lock_guard<std::mutex> own(mutex_);
  while (!keys.empty()) {
    HOTROW_ASSIGN_OR_RETURN(Area* const area, NextArea());
    const size_t n = std::min(keys.size(), static_cast<size_t>(area->keys.size()));
    std::copy_n(keys.begin(), n, area->keys.data());
    keys = keys.subspan(n);
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    const DeviceStream& stream = cache_->stream();
    HOTROW_RETURN_IF_ERROR(stream.Run(
        ExecContext(), [index = index_.get(), its_keys = area->keys.first(static_cast<int64_t>(n))](
                           const ExecContext& here) { return index->Erase(here, its_keys); }));
    HOTROW_RETURN_IF_ERROR(area->done.Record(stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<const AddressIndex*> DeviceIndex::ForSearch() {
  const int64_t aged_rows = store_->aged_rows();
  if (aged_rows != aged_rows_) {
    HOTROW_RETURN_IF_ERROR(cache_->stream().Run(
        ExecContext(),
        [index = index_.get()](const ExecContext& here) { return index->Clear(here); }));
    aged_rows_ = aged_rows;
  }
  return index_.get();
}

absl::Status DeviceIndex::EnqueueStats() {
  return cache_->stream().Run(ExecContext(), [index = index_.get()](const ExecContext& here) {
    return index->EnqueueStats(here);
  });
}

}  // namespace hotrow::internal
