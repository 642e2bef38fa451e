#include "embedding/tiered_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// A chunk of keys this long keeps the store's prefetching (and later an SSD's queue) full; more
// only costs staging. Few enough that staging stays a small part of a cache of ordinary size.
constexpr int64_t kMaxStagingRows = 4096;
constexpr int64_t kMinStagingRows = 32;
// Staging may take this share of a cache's budget.
constexpr int64_t kStagingShare = 16;
// Keys, marks and pointers beside each staged row (the scratch vectors of TieredTable and
// RowCache's 16 bytes).
constexpr int64_t kScratchBytesPerStagingRow = 96;
// Keys that one thread asks of the store in one call.
constexpr int64_t kStoreGrain = 2048;

int64_t StagingRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerStagingRow; }

int64_t StagingRows(int64_t cache_bytes, int64_t row_bytes) {
  return std::clamp(cache_bytes / kStagingShare / StagingRowBytes(row_bytes), kMinStagingRows,
                    kMaxStagingRows);
}

// The first error of the bodies of a ParallelFor.
class FirstError {
 public:
  void Update(const absl::Status& status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  }
  absl::Status status() const { return status_; }

 private:
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

int64_t TieredTable::MinCacheBytes(int64_t rows, int64_t row_bytes) {
  // staging(B) <= max(B / share, least staging), so this B leaves BudgetForRows(rows) for the
  // cache.
  const int64_t least =
      RowCache::BudgetForRows(rows, row_bytes) + kMinStagingRows * StagingRowBytes(row_bytes);
  return CeilDiv(least * kStagingShare, kStagingShare - 1);
}

absl::StatusOr<std::unique_ptr<TieredTable>> TieredTable::Create(const TieredTableOptions& options,
                                                                 HostStore* store) {
  HOTROW_CHECK(!options.tables.empty());
  HOTROW_CHECK(store != nullptr);
  std::unique_ptr<TieredTable> table(new TieredTable());
  table->tables_ = options.tables;
  table->seed_ = options.seed;
  table->row_bytes_ = options.tables[0].layout.row_bytes;
  table->store_ = store;
  for (const TieredTableSpec& spec : options.tables) {
    HOTROW_CHECK(spec.layout.row_bytes == table->row_bytes_);
  }
  if (options.cache_bytes > 0) {
    table->staging_rows_ = StagingRows(options.cache_bytes, table->row_bytes_);
    const int64_t staging_bytes = table->staging_rows_ * StagingRowBytes(table->row_bytes_);
    if (options.cache_bytes < MinCacheBytes(1, table->row_bytes_)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cache budget ", options.cache_bytes, " bytes for rows of ", table->row_bytes_,
          " bytes; the least is ", MinCacheBytes(1, table->row_bytes_)));
    }
    HOTROW_ASSIGN_OR_RETURN(table->cache_,
                            RowCache::Create({.row_bytes = table->row_bytes_,
                                              .budget_bytes = options.cache_bytes - staging_bytes,
                                              .policy = options.cache_policy}));
    HOTROW_ASSIGN_OR_RETURN(
        table->staging_,
        HostBuffer<std::byte>::Create(table->staging_rows_ * table->row_bytes_, HugePages::kTry));
    table->cache_budget_bytes_ = options.cache_bytes;
  }
  return table;
}

const TieredTableSpec& TieredTable::SpecOf(uint32_t table) const {
  for (const TieredTableSpec& spec : tables_) {
    if (spec.table == table) return spec;
  }
  HOTROW_CHECK(false);
}

int64_t TieredTable::cache_used_bytes() const {
  if (cache_ == nullptr) return 0;
  return cache_->Stats().used_bytes + staging_rows_ * StagingRowBytes(row_bytes_);
}

absl::Status TieredTable::InitRowsOf(const ExecContext& ctx, std::span<const RowKey> keys,
                                     std::span<std::byte* const> rows) const {
  std::vector<uint64_t> raw;
  const auto n = static_cast<int64_t>(keys.size());
  for (int64_t begin = 0; begin < n;) {
    int64_t end = begin + 1;
    while (end < n && keys[end].table == keys[begin].table) ++end;
    raw.resize(end - begin);
    for (int64_t i = begin; i < end; ++i) raw[i - begin] = keys[i].key;
    const TieredTableSpec& spec = SpecOf(keys[begin].table);
    HOTROW_RETURN_IF_ERROR(InitRows(ctx, {.initializer = spec.initializer,
                                          .layout = &spec.layout,
                                          .initial_accumulator = spec.optimizer.initial_accumulator,
                                          .optimizer = spec.optimizer.kind,
                                          .seed = seed_,
                                          .table = spec.table,
                                          .num_rows = end - begin,
                                          .keys = raw.data(),
                                          .rows = rows.data() + begin}));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status TieredTable::FindInStore(const ExecContext& ctx, std::span<const RowKey> keys,
                                      std::span<std::byte* const> rows, std::span<uint8_t> found) {
  FirstError error;
  ParallelFor(ctx.pool, static_cast<int64_t>(keys.size()), kStoreGrain,
              [&](int64_t begin, int64_t end) {
                error.Update(store_->Find(keys.subspan(begin, end - begin),
                                          rows.subspan(begin, end - begin),
                                          found.subspan(begin, end - begin)));
              });
  return error.status();
}

absl::Status TieredTable::WriteBackPending() {
  if (pending_keys_.empty()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(store_->InsertOrAssign(pending_keys_, pending_rows_));
  rows_written_back_ += static_cast<int64_t>(pending_keys_.size());
  pending_keys_.clear();
  pending_rows_.clear();
  return absl::OkStatus();
}

absl::Status TieredTable::MakeChunkResident(const ExecContext& ctx, std::span<const RowKey> keys,
                                            std::span<const int32_t> counts, int64_t first,
                                            StepRows* step, bool* no_room) {
  const auto n = static_cast<int64_t>(keys.size());
  const std::span<int64_t> slots(step->slots.data() + first, static_cast<size_t>(n));
  placement_.resize(n);
  evicted_.resize(n);
  evicted_keys_.resize(n);
  cache_->FindOrInsert(ctx, keys,
                       {.slots = slots,
                        .placement = placement_,
                        .evicted = evicted_,
                        .evicted_keys = evicted_keys_,
                        .evicted_rows = staging_.data()});
  miss_keys_.clear();
  miss_rows_.clear();
  miss_slots_.clear();
  miss_counts_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (evicted_[i] != 0) {
      pending_keys_.push_back(evicted_keys_[i]);
      pending_rows_.push_back(staging_.data() + i * row_bytes_);
    }
    if (placement_[i] == Placement::kFilled) {
      miss_keys_.push_back(keys[i]);
      miss_rows_.push_back(cache_->row(slots[i]));
      miss_slots_.push_back(slots[i]);
      miss_counts_.push_back(counts[i]);
    } else if (placement_[i] == Placement::kNoRoom) {
      *no_room = true;
    }
    // A key is counted at its first probe only: a retry finds what the try before brought in.
    if (first + i >= step->probed) {
      const bool hit = placement_[i] == Placement::kHit;
      cache_counts_.unique_keys += 1;
      cache_counts_.unique_hits += hit ? 1 : 0;
      cache_counts_.lookups += counts[i];
      cache_counts_.lookup_hits += hit ? counts[i] : 0;
    }
  }
  step->probed = std::max(step->probed, first + n);

  const absl::Status filled = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(WriteBackPending());
    found_.resize(miss_keys_.size());
    HOTROW_RETURN_IF_ERROR(FindInStore(ctx, miss_keys_, miss_rows_, found_));
    // The keys that were not found move to the front and get their initial rows.
    size_t absent = 0;
    for (size_t i = 0; i < miss_keys_.size(); ++i) {
      store_counts_.unique_keys += 1;
      store_counts_.lookups += miss_counts_[i];
      if (found_[i] != 0) {
        store_counts_.unique_hits += 1;
        store_counts_.lookup_hits += miss_counts_[i];
        rows_read_ += 1;
      } else {
        miss_keys_[absent] = miss_keys_[i];
        miss_rows_[absent] = miss_rows_[i];
        ++absent;
      }
    }
    return InitRowsOf(ctx, std::span(miss_keys_).first(absent),
                      std::span(miss_rows_).first(absent));
  }();
  if (!filled.ok()) {
    cache_->Abandon(miss_slots_);
    for (int64_t i = 0; i < n; ++i) {
      if (placement_[i] == Placement::kFilled) slots[i] = -1;
    }
    return filled;
  }
  cache_->MarkFilled(miss_slots_);
  return absl::OkStatus();
}

absl::StatusOr<bool> TieredTable::MakeResident(const ExecContext& ctx, std::span<const RowKey> keys,
                                               std::span<const int32_t> counts, StepRows* step) {
  HOTROW_CHECK(!step->resident);
  HOTROW_CHECK(keys.size() == counts.size());
  if (cache_ == nullptr) {
    step->resident = true;
    return true;
  }
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  const auto n = static_cast<int64_t>(keys.size());
  step->slots.assign(n, -1);
  absl::Status status;
  bool no_room = false;
  for (int64_t begin = 0; begin < n && status.ok() && !no_room; begin += staging_rows_) {
    const int64_t size = std::min(staging_rows_, n - begin);
    status = MakeChunkResident(ctx, keys.subspan(begin, size), counts.subspan(begin, size), begin,
                               step, &no_room);
  }
  if (!status.ok() || no_room) {
    // What was brought in stays resident, unpinned: work that the retry need not do again.
    std::erase(step->slots, -1);
    cache_->Unpin(step->slots, /*dirty=*/false);
    step->slots.clear();
    if (!status.ok()) return status;
    return false;
  }
  cache_->EndStep(ctx);
  step->resident = true;
  return true;
}

absl::Status TieredTable::ResolveForRead(const ExecContext& ctx, std::span<const RowKey> keys,
                                         std::span<const int32_t> counts, StepRows* step,
                                         std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  if (cache_ != nullptr) {
    for (size_t i = 0; i < keys.size(); ++i) rows[i] = cache_->row(step->slots[i]);
    return absl::OkStatus();
  }
  FirstError error;
  ParallelFor(ctx.pool, static_cast<int64_t>(keys.size()), kStoreGrain,
              [&](int64_t begin, int64_t end) {
                error.Update(store_->FindInPlace(keys.subspan(begin, end - begin),
                                                 rows.subspan(begin, end - begin)));
              });
  HOTROW_RETURN_IF_ERROR(error.status());
  step->missing.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] == nullptr) step->missing.push_back(static_cast<int64_t>(i));
    if (step->probed == 0) {
      const bool hit = rows[i] != nullptr;
      store_counts_.unique_keys += 1;
      store_counts_.unique_hits += hit ? 1 : 0;
      store_counts_.lookups += counts[i];
      store_counts_.lookup_hits += hit ? counts[i] : 0;
    }
  }
  step->probed = static_cast<int64_t>(keys.size());
  // Addresses in a vector would be 16-byte aligned as well (operator new), and row_bytes is a
  // multiple of 16.
  step->staging.resize(step->missing.size() * static_cast<size_t>(row_bytes_));
  miss_keys_.clear();
  miss_rows_.clear();
  for (size_t m = 0; m < step->missing.size(); ++m) {
    std::byte* const row = step->staging.data() + m * static_cast<size_t>(row_bytes_);
    rows[step->missing[m]] = row;
    miss_keys_.push_back(keys[step->missing[m]]);
    miss_rows_.push_back(row);
  }
  return InitRowsOf(ctx, miss_keys_, miss_rows_);
}

absl::Status TieredTable::ResolveForUpdate(std::span<const RowKey> keys, StepRows* step,
                                           std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  if (cache_ != nullptr || step->missing.empty()) return absl::OkStatus();
  miss_keys_.clear();
  for (const int64_t i : step->missing) miss_keys_.push_back(keys[i]);
  miss_rows_.resize(miss_keys_.size());
  found_.resize(miss_keys_.size());
  const absl::Status inserted = store_->InsertInPlace(miss_keys_, miss_rows_, found_);
  if (!inserted.ok()) {
    // Some may have been added before the budget ran out; they are zero and must not stay.
    HOTROW_RETURN_IF_ERROR(Withdraw(keys, *step));
    return inserted;
  }
  for (size_t m = 0; m < step->missing.size(); ++m) {
    std::memcpy(miss_rows_[m], rows[step->missing[m]], static_cast<size_t>(row_bytes_));
    rows[step->missing[m]] = miss_rows_[m];
  }
  rows_written_back_ += static_cast<int64_t>(step->missing.size());
  return absl::OkStatus();
}

absl::Status TieredTable::Withdraw(std::span<const RowKey> keys, const StepRows& step) {
  if (cache_ != nullptr) return absl::OkStatus();
  miss_keys_.clear();
  for (const int64_t i : step.missing) miss_keys_.push_back(keys[i]);
  return store_->Erase(miss_keys_);
}

void TieredTable::Release(StepRows* step, bool updated) {
  if (cache_ != nullptr && step->resident) cache_->Unpin(step->slots, updated);
  step->slots.clear();
  step->missing.clear();
  step->probed = 0;
  step->resident = false;
}

absl::Status TieredTable::Read(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::byte* staging, std::span<std::byte*> rows) {
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  if (cache_ != nullptr) {
    cache_->Find(ctx, keys, rows);
  } else {
    FirstError error;
    ParallelFor(ctx.pool, static_cast<int64_t>(keys.size()), kStoreGrain,
                [&](int64_t begin, int64_t end) {
                  error.Update(store_->FindInPlace(keys.subspan(begin, end - begin),
                                                   rows.subspan(begin, end - begin)));
                });
    HOTROW_RETURN_IF_ERROR(error.status());
  }
  miss_keys_.clear();
  miss_rows_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] != nullptr) continue;
    rows[i] = staging + miss_keys_.size() * static_cast<size_t>(row_bytes_);
    miss_keys_.push_back(keys[i]);
    miss_rows_.push_back(rows[i]);
  }
  found_.assign(miss_keys_.size(), 0);
  if (cache_ != nullptr) HOTROW_RETURN_IF_ERROR(FindInStore(ctx, miss_keys_, miss_rows_, found_));
  size_t absent = 0;
  for (size_t i = 0; i < miss_keys_.size(); ++i) {
    if (found_[i] != 0) continue;
    miss_keys_[absent] = miss_keys_[i];
    miss_rows_[absent] = miss_rows_[i];
    ++absent;
  }
  return InitRowsOf(ctx, std::span(miss_keys_).first(absent), std::span(miss_rows_).first(absent));
}

absl::Status TieredTable::Flush() {
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  if (cache_ == nullptr) return absl::OkStatus();
  return cache_->ForEachDirty(
      [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) {
        HOTROW_RETURN_IF_ERROR(store_->InsertOrAssign(keys, rows));
        rows_written_back_ += static_cast<int64_t>(keys.size());
        return absl::OkStatus();
      });
}

}  // namespace hotrow
