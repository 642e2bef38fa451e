#include "embedding/tiers/cached_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// Rows are pinned while their bytes are copied in, so many at a time: few beside the ways of an
// ordinary cache.
constexpr size_t kChunkKeys = 1024;
// Bytes of CachedStore's scratch and RowCache's for each of them.
constexpr int64_t kScratchBytesPerKey = 128;

int64_t ScratchBytes() { return static_cast<int64_t>(kChunkKeys) * kScratchBytesPerKey; }

}  // namespace

int64_t CachedStore::MinCacheBytes(int64_t row_bytes) {
  return RowCache::BudgetForRows(1, row_bytes) + ScratchBytes();
}

absl::StatusOr<std::unique_ptr<CachedStore>> CachedStore::Create(
    RowStore* store, std::span<const CachedStoreWidth> widths, CachePolicy policy,
    CacheFactory make_cache) {
  HOTROW_CHECK(store != nullptr);
  std::unique_ptr<CachedStore> cached(new CachedStore(store, std::move(make_cache)));
  for (const CachedStoreWidth& width : widths) {
    const int64_t least = MinCacheBytes(width.row_bytes);
    if (width.cache_bytes < least) {
      return absl::ResourceExhaustedError(
          absl::StrCat("host cache: a budget of ", width.cache_bytes, " bytes for rows of ",
                       width.row_bytes, " bytes; the least is ", least));
    }
    cached->budget_bytes_ += width.cache_bytes;
    cached->caches_.push_back({{.row_bytes = width.row_bytes,
                                .budget_bytes = width.cache_bytes - ScratchBytes(),
                                .policy = policy},
                               nullptr});
  }
  for (const StoreTable& table : store->tables()) {
    const auto width = std::find_if(widths.begin(), widths.end(), [&](const CachedStoreWidth& w) {
      return w.row_bytes == table.row_bytes;
    });
    HOTROW_CHECK(width != widths.end());
    if (std::ssize(cached->cache_of_table_) <= table.table) {
      cached->cache_of_table_.resize(table.table + 1, -1);
    }
    cached->cache_of_table_[table.table] = static_cast<int32_t>(width - widths.begin());
  }
  HOTROW_RETURN_IF_ERROR(cached->MakeMissingCaches());
  cached->Publish();
  return cached;
}

void CachedStore::Publish() {
  int64_t used_bytes = 0;
  int64_t evictions = 0;
  for (const Cache& cache : caches_) {
    used_bytes += ScratchBytes();
    if (cache.rows == nullptr) continue;
    const absl::StatusOr<RowCacheStats> rows = cache.rows->Stats(ExecContext());
    HOTROW_CHECK(rows.ok());  // a cache of the CPU
    used_bytes += rows->used_bytes;
    evictions += rows->evictions;
  }
  used_bytes_.store(used_bytes, std::memory_order_relaxed);
  evictions_.store(evictions, std::memory_order_relaxed);
}

bool CachedStore::HasAnyOf(std::span<const RowKey> keys) const {
  std::vector<RowKey> asked;
  std::vector<std::byte*> rows;
  for (const Cache& cache : caches_) {
    if (cache.rows == nullptr) continue;
    asked.clear();
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(asked),
                 [&](const RowKey& key) { return CacheOf(key) == cache.rows.get(); });
    rows.assign(asked.size(), nullptr);
    if (!cache.rows->Find(ExecContext(), asked, rows).ok()) return true;
    if (std::any_of(rows.begin(), rows.end(), [](std::byte* row) { return row != nullptr; })) {
      return true;
    }
  }
  return false;
}

void CachedStore::DropCaches() {
  // All of them before the first new one, to stay within the budget.
  for (Cache& cache : caches_) cache.rows = nullptr;
  MakeMissingCaches().IgnoreError();  // the store below has all rows
}

absl::Status CachedStore::MakeMissingCaches() {
  absl::Status status;
  for (Cache& cache : caches_) {
    if (cache.rows != nullptr) continue;
    absl::StatusOr<std::unique_ptr<RowCache>> made = make_cache_(cache.options);
    status.Update(made.status());
    if (made.ok()) cache.rows = *std::move(made);
  }
  return status;
}

RowCache* CachedStore::CacheOf(RowKey key) const {
  if (key.table >= cache_of_table_.size() || cache_of_table_[key.table] < 0) return nullptr;
  return caches_[cache_of_table_[key.table]].rows.get();
}

absl::Status CachedStore::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                               std::span<uint8_t> found) {
  if (keys.size() != rows.size() || keys.size() != found.size()) {
    return store_->Find(keys, rows, found);  // which says what is wrong
  }
  std::vector<RowKey> asked;
  std::vector<size_t> positions;
  std::vector<std::byte*> cached;
  std::vector<uint8_t> here(keys.size(), 0);
  int64_t hits = 0;
  {
    const std::shared_lock lock(mutex_);
    for (const Cache& cache : caches_) {
      if (cache.rows == nullptr) continue;
      asked.clear();
      positions.clear();
      for (size_t i = 0; i < keys.size(); ++i) {
        if (CacheOf(keys[i]) != cache.rows.get()) continue;
        asked.push_back(keys[i]);
        positions.push_back(i);
      }
      if (asked.empty()) continue;
      cached.resize(asked.size());
      HOTROW_RETURN_IF_ERROR(cache.rows->Find(ExecContext(), asked, cached));
      for (size_t a = 0; a < asked.size(); ++a) {
        if (cached[a] == nullptr) continue;
        const size_t i = positions[a];
        std::memcpy(rows[i], cached[a], static_cast<size_t>(cache.options.row_bytes));
        here[i] = 1;
        ++hits;
      }
    }
  }
  finds_.fetch_add(static_cast<int64_t>(keys.size()), std::memory_order_relaxed);
  hits_.fetch_add(hits, std::memory_order_relaxed);

  asked.clear();
  positions.clear();
  std::vector<std::byte*> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    found[i] = here[i];
    if (here[i] != 0) continue;
    asked.push_back(keys[i]);
    positions.push_back(i);
    missing.push_back(rows[i]);
  }
  if (asked.empty()) return absl::OkStatus();
  here.assign(asked.size(), 0);
  HOTROW_RETURN_IF_ERROR(store_->Find(asked, missing, here));
  for (size_t a = 0; a < asked.size(); ++a) found[positions[a]] = here[a];
  return absl::OkStatus();
}

// Under mutex_: the keys are distinct and of one cache.
absl::Status CachedStore::Keep(RowCache* cache, std::span<const RowKey> keys,
                               std::span<const std::byte* const> rows) {
  const size_t n = keys.size();
  slots_.resize(n);
  placement_.resize(n);
  evicted_.resize(n);
  evicted_keys_.resize(n);
  // Rows here are clean, so none is handed out and no memory is needed for that.
  HOTROW_RETURN_IF_ERROR(cache->FindOrInsert(ExecContext(), keys,
                                             {.slots = slots_,
                                              .placement = placement_,
                                              .evicted = evicted_,
                                              .evicted_keys = evicted_keys_,
                                              .evicted_rows = nullptr}));
  filled_.clear();
  pinned_.clear();
  for (size_t i = 0; i < n; ++i) {
    if (placement_[i] == Placement::kNoRoom) continue;  // it is not here, so nothing old is
    std::memcpy(cache->row(slots_[i]), rows[i], static_cast<size_t>(cache->row_bytes()));
    pinned_.push_back(slots_[i]);
    if (placement_[i] == Placement::kFilled) filled_.push_back(slots_[i]);
  }
  HOTROW_RETURN_IF_ERROR(cache->MarkFilled(ExecContext(), filled_));
  return cache->Unpin(ExecContext(), pinned_, /*dirty=*/false);
}

void CachedStore::Refresh(std::span<const RowKey> keys) {
  for (const Cache& cache : caches_) {
    if (cache.rows == nullptr) continue;
    keys_.clear();
    for (size_t i = 0; i < keys.size(); ++i) {
      if (CacheOf(keys[i]) == cache.rows.get()) keys_.push_back(keys[i]);
      if (keys_.size() < kChunkKeys && i + 1 < keys.size()) continue;
      if (!RefreshSome(cache.rows.get(), keys_).ok()) return DropCaches();
      keys_.clear();
    }
  }
}

// An error: what is here of these keys may not be what the store has.
absl::Status CachedStore::RefreshSome(RowCache* cache, std::span<const RowKey> keys) {
  std::vector<std::byte*> here(keys.size());
  HOTROW_RETURN_IF_ERROR(cache->Find(ExecContext(), keys, here));
  std::vector<RowKey> wanted;
  std::vector<std::byte*> rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (here[i] == nullptr) continue;
    wanted.push_back(keys[i]);
    rows.push_back(here[i]);
  }
  if (wanted.empty()) return absl::OkStatus();
  std::vector<uint8_t> found(wanted.size());
  HOTROW_RETURN_IF_ERROR(store_->Find(wanted, rows, found));
  if (std::find(found.begin(), found.end(), 0) == found.end()) return absl::OkStatus();
  return absl::NotFoundError("a row that is here is not in the store below");
}

absl::Status CachedStore::InsertOrAssign(std::span<const RowKey> keys,
                                         std::span<const std::byte* const> rows) {
  const std::lock_guard write_lock(write_mutex_);
  const absl::Status written = store_->InsertOrAssign(keys, rows);
  const std::unique_lock lock(mutex_);
  const absl::Status kept = KeepAll(written, keys, rows);
  Publish();
  return kept;
}

absl::Status CachedStore::KeepAll(const absl::Status& written, std::span<const RowKey> keys,
                                  std::span<const std::byte* const> rows) {
  if (!written.ok()) {
    // Some rows may have been written, and those here would be older.
    Refresh(keys);
    return written;
  }
  MakeMissingCaches().IgnoreError();
  // By cache, then by key, so that of a key that repeats the last row is kept.
  order_.resize(keys.size());
  for (uint32_t i = 0; i < keys.size(); ++i) order_[i] = i;
  const auto rank = [&](uint32_t i) {
    return std::tuple(cache_of_table_[keys[i].table], keys[i].table, keys[i].key, i);
  };
  std::sort(order_.begin(), order_.end(),
            [&](uint32_t a, uint32_t b) { return rank(a) < rank(b); });
  for (size_t at = 0; at < order_.size();) {
    RowCache* const cache = CacheOf(keys[order_[at]]);
    keys_.clear();
    rows_.clear();
    for (; at < order_.size() && keys_.size() < kChunkKeys; ++at) {
      const uint32_t i = order_[at];
      if (CacheOf(keys[i]) != cache) break;
      if (at + 1 < order_.size() && keys[order_[at + 1]] == keys[i]) continue;
      keys_.push_back(keys[i]);
      rows_.push_back(rows[i]);
    }
    if (cache == nullptr) continue;
    if (const absl::Status kept = Keep(cache, keys_, rows_); !kept.ok()) {
      DropCaches();  // of these keys they may have older rows
      return kept;
    }
  }
  for (const Cache& cache : caches_) {
    if (cache.rows != nullptr) HOTROW_RETURN_IF_ERROR(cache.rows->EndStep(ExecContext()));
  }
  return absl::OkStatus();
}

absl::Status CachedStore::Erase(std::span<const RowKey> keys) {
  const std::lock_guard write_lock(write_mutex_);
  const absl::Status erased = store_->Erase(keys);  // on an error some may be gone
  const std::unique_lock lock(mutex_);
  if (!HasAnyOf(keys)) return erased;
  DropCaches();
  Publish();
  return erased;
}

absl::Status CachedStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  return store_->Iterate(visit);
}

absl::Status CachedStore::Flush() { return store_->Flush(); }

void CachedStore::TidyForSnapshot() { store_->TidyForSnapshot(); }

absl::Status CachedStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  return store_->PrepareSnapshot(snapshot, captured);
}

absl::Status CachedStore::CommitSnapshot(SnapshotId snapshot) {
  return store_->CommitSnapshot(snapshot);
}

absl::Status CachedStore::DropSnapshot(SnapshotId snapshot) {
  return store_->DropSnapshot(snapshot);
}

absl::StatusOr<std::vector<SnapshotId>> CachedStore::ListSnapshots() {
  return store_->ListSnapshots();
}

absl::StatusOr<SnapshotInfo> CachedStore::DescribeSnapshot(SnapshotId snapshot) {
  return store_->DescribeSnapshot(snapshot);
}

RowStoreStats CachedStore::Stats() const { return store_->Stats(); }

std::span<const StoreTable> CachedStore::tables() const { return store_->tables(); }

int64_t CachedStore::row_bytes(uint32_t table) const { return store_->row_bytes(table); }

CachedStoreStats CachedStore::cache_stats() const {
  CachedStoreStats stats;
  stats.budget_bytes = budget_bytes_;
  stats.used_bytes = used_bytes_.load(std::memory_order_relaxed);
  stats.evictions = evictions_.load(std::memory_order_relaxed);
  stats.finds = finds_.load(std::memory_order_relaxed);
  stats.hits = hits_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace hotrow
