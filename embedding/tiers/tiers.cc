#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/out_of_room.h"
#include "base/own_status.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "embedding/storage_fields.h"
#include "embedding/tiers/store_reads.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

using Placed = TieredTable::Placed;

absl::StatusOr<std::unique_ptr<Tiers>> Tiers::Create(const EmbeddingCollectionOptions& options,
                                                     const Plan& plan, CachePlace place,
                                                     ThreadPool* pool) {
  const std::string name = CacheBudgetName(options, place);
  Plan split = plan;
  const int64_t cache_budget = CacheBudget(options, place);
  if (cache_budget > 0) {
    if (cache_budget < plan.min_cache_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name, ": the cache budget is ", cache_budget, " bytes, but one step of ",
                       options.max_batch_size, " samples needs at least ", plan.min_cache_bytes,
                       " bytes; raise ", name, " or lower the batch size"));
    }
    SplitCacheBytes(options, place, &split);
    HOTROW_RETURN_IF_ERROR(SplitIndexBytes(options, place.device, &split));
  }
  std::unique_ptr<Tiers> tiers(new Tiers());
  tiers->place_ = place;
  tiers->cache_option_ = name;
  tiers->cache_.name = place.staged ? "device_cache" : "cache";
  tiers->cache_.budget_bytes = cache_budget;
  tiers->disk_.name = std::string(StoreKindName(FieldsOf(options.store).kind));
  StoreUse use;
  use.device = place.device;
  use.pool = pool;
  tiers->frozen_.resize(options.tables.size());
  for (const PlannedTable& table : plan.tables) {
    tiers->frozen_[static_cast<size_t>(table.config)] = table.frozen;
    use.tables.push_back({static_cast<uint32_t>(table.config), table.layout.row_bytes});
    use.rows_max.push_back(RowsOfRank(options, table.config));
  }
  HOTROW_ASSIGN_OR_RETURN(tiers->store_, OpenCollectionStore(options, use));
  tiers->below_ = tiers->store_.store.get();
  if (place.staged && options.cache.bytes > 0) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<CachedStoreWidth> widths,
                            SplitHostCacheBytes(options, plan));
    HOTROW_ASSIGN_OR_RETURN(tiers->host_cache_,
                            CachedStore::Create(tiers->below_, widths, options.cache.policy));
    tiers->below_ = tiers->host_cache_.get();
  }
  for (const WidthClass& width : split.classes) {
    TieredTableOptions table_options;
    table_options.seed = options.seed;
    table_options.place = place;
    table_options.pool = pool;
    table_options.cache_bytes = cache_budget > 0 ? width.cache_bytes : 0;
    table_options.cache_policy = options.cache.policy;
    table_options.index_bytes = width.index_bytes;
    std::vector<int32_t> trained;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const PlannedTable& table = plan.tables[t];
      if (!table.frozen) trained.push_back(t);
      const TableConfig& config = options.tables[table.config];
      table_options.tables.push_back({static_cast<uint32_t>(table.config), table.layout,
                                      config.initializer, config.optimizer});
    }
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<TieredTable> table,
                            TieredTable::Create(table_options, tiers->below_, tiers->store_.host));
    const int64_t cache_rows = table_options.cache_bytes / table->row_bytes();
    tiers->widths_.push_back({.first_table = width.first_table,
                              .last_table = width.last_table,
                              .table = std::move(table),
                              .trained = std::move(trained),
                              .cache_rows = cache_rows});
  }
  return tiers;
}

// --- Making rows resident

absl::StatusOr<Placed> Tiers::Place(const ExecContext& ctx, TierStep* step) {
  TraceSpan span(ctx.trace, "place");
  step->widths.resize(widths_.size());
  for (size_t w = 0; w < widths_.size(); ++w) {
    const StepKeys& keys = step->keys;
    HOTROW_ASSIGN_OR_RETURN(
        const Placed placed,
        widths_[w].table->Place(ctx, PartOf(widths_[w], keys, keys.keys),
                                PartOf(widths_[w], keys, keys.counts), &step->widths[w]));
    if (placed != Placed::kAll) return placed;
  }
  return Placed::kAll;
}

void Tiers::FinishPlacing(const ExecContext& ctx) {
  for (const Width& width : widths_) width.table->FinishPlacing(ctx);
}

// One call of the store for all tables: the more it knows, the better it can sort and merge, and
// its queue of reads drains only once. With caches on a GPU there are more calls when staging is
// too small, and none where the GPU reads the rows itself.
absl::Status Tiers::Fetch(const ExecContext& ctx, TierStep* step) {
  if (widths_[0].table->fills_in_place()) {
    TraceSpan span(ctx.trace, "read_rows");
    for (size_t w = 0; w < widths_.size(); ++w) {
      HOTROW_RETURN_IF_ERROR(widths_[w].table->FillInPlace(ctx, &step->widths[w]));
    }
    return absl::OkStatus();
  }
  for (;;) {
    fetch_keys_.clear();
    fetch_rows_.clear();
    fetch_sizes_.clear();
    for (size_t w = 0; w < widths_.size(); ++w) {
      HOTROW_ASSIGN_OR_RETURN(const int64_t n, widths_[w].table->NextMisses(
                                                   &step->widths[w], &fetch_keys_, &fetch_rows_));
      fetch_sizes_.push_back(n);
    }
    if (fetch_keys_.empty()) return absl::OkStatus();
    fetch_found_.assign(fetch_keys_.size(), 0);
    {
      TraceSpan span(ctx.trace, "read_rows");
      HOTROW_RETURN_IF_ERROR(
          FindInStore(ctx, below_, store_.host != nullptr, fetch_keys_, fetch_rows_, fetch_found_));
    }
    if (store_.room != nullptr) HOTROW_RETURN_IF_ERROR(CheckMade());
    size_t first = 0;
    for (size_t w = 0; w < widths_.size(); ++w) {
      const auto n = static_cast<size_t>(fetch_sizes_[w]);
      HOTROW_RETURN_IF_ERROR(
          widths_[w].table->Fill(ctx, &step->widths[w], std::span(fetch_found_).subspan(first, n)));
      first += n;
    }
  }
}

std::vector<RowsToCome> Tiers::ToCome() const {
  std::vector<RowsToCome> to_come;
  for (const Width& width : widths_) {
    // The cache has no more than it has room for.
    to_come.push_back(
        {.row_bytes = width.table->row_bytes(),
         .rows = 0,
         .changed = std::min(width.unwritten.changed + width.in_steps, width.cache_rows),
         .unwritten = std::min(width.unwritten.made, width.cache_rows)});
  }
  return to_come;
}

absl::Status Tiers::CheckMade() {
  const std::lock_guard lock(room_mutex_);
  std::vector<RowsToCome> to_come = ToCome();
  std::vector<int64_t> made;
  size_t at = 0;
  for (size_t w = 0; w < widths_.size(); ++w) {
    made.push_back(0);
    for (const size_t end = at + static_cast<size_t>(fetch_sizes_[w]); at < end; ++at) {
      made.back() += fetch_found_[at] == 0 && !frozen_[fetch_keys_[at].table];
    }
  }
  const bool any = std::any_of(made.begin(), made.end(), [](int64_t n) { return n > 0; });
  for (size_t w = 0; w < widths_.size() && any; ++w) {
    to_come[w].rows = made[w] + to_come[w].unwritten;
  }
  HOTROW_RETURN_IF_ERROR(store_.room->CheckRoom(to_come));
  for (size_t w = 0; w < widths_.size(); ++w) widths_[w].unwritten.made += made[w];
  return absl::OkStatus();
}

absl::Status Tiers::CheckStep(TierStep* step) {
  if (!step->to_change.empty()) return absl::OkStatus();
  const std::lock_guard lock(room_mutex_);
  std::vector<RowsToCome> to_come = ToCome();
  std::vector<int64_t> rows;
  for (size_t w = 0; w < widths_.size(); ++w) {
    rows.push_back(0);
    for (const int32_t t : widths_[w].trained) {
      rows.back() += step->keys.table_offsets[t + 1] - step->keys.table_offsets[t];
    }
    to_come[w].changed = std::min(to_come[w].changed + rows.back(), widths_[w].cache_rows);
  }
  HOTROW_RETURN_IF_ERROR(store_.room->CheckRoom(to_come));
  for (size_t w = 0; w < widths_.size(); ++w) {
    widths_[w].in_steps += rows[w];
    widths_[w].step_rows_max = std::max(widths_[w].step_rows_max, rows[w]);
  }
  step->to_change = std::move(rows);
  return absl::OkStatus();
}

void Tiers::CountOut(TierStep* step, bool updated) {
  if (step->to_change.empty()) return;
  bool write = false;
  {
    const std::lock_guard lock(room_mutex_);
    for (size_t w = 0; w < widths_.size(); ++w) {
      widths_[w].in_steps -= step->to_change[w];
      if (updated) widths_[w].unwritten.changed += step->to_change[w];
    }
    if (updated && !in_snapshot_) {
      // As if the largest step came next.
      std::vector<RowsToCome> to_come = ToCome();
      for (size_t w = 0; w < widths_.size(); ++w) {
        to_come[w].changed =
            std::min(to_come[w].changed + widths_[w].step_rows_max, widths_[w].cache_rows);
      }
      write = store_.room->IsTight(to_come, /*in_snapshot=*/false);
    }
  }
  step->to_change.clear();
  // Then it is known how many rows have changed. Whoever needs them written says what is wrong.
  if (write) FlushCaches().IgnoreError();
}

absl::Status Tiers::MakeResident(const ExecContext& ctx, TierStep* step) {
  if (store_.room != nullptr) HOTROW_RETURN_IF_ERROR(CheckStep(step));
  HOTROW_RETURN_IF_ERROR(Fetch(ctx, step));
  for (StepRows& rows : step->widths) rows.resident = true;
  return absl::OkStatus();
}

void Tiers::GiveUp(TierStep* step) {
  const auto give_up = [&]() -> absl::Status {
    for (size_t w = 0; w < step->widths.size(); ++w) widths_[w].table->GiveUp(&step->widths[w]);
    CountOut(step, /*updated=*/false);
    return absl::OkStatus();
  };
  // Whoever gives a step up has an error already.
  Caught("giving a step up", give_up, [this](const absl::Status& thrown) {
    Break(thrown);
  }).IgnoreError();
}

void Tiers::Break(const absl::Status& thrown) {
  absl::Status why = Caught("", [&] {
    return WithText(thrown, absl::StrCat(std::string(thrown.message()),
                                         "; rows may lack what belongs to them since then, so no "
                                         "call may follow: go on from the last checkpoint"));
  });
  for (const Width& width : widths_) width.table->Break(why);
  const std::lock_guard lock(broken_mutex_);
  broken_.Update(std::move(why));
}

absl::Status Tiers::Broken() const {
  const std::lock_guard lock(broken_mutex_);
  return OwnStatus(broken_);
}

// --- A resident step

absl::Status Tiers::Resolve(const ExecContext& ctx, TierStep* step, std::span<std::byte*> rows) {
  HOTROW_CHECK(std::ssize(rows) == step->keys.size());
  for (size_t w = 0; w < widths_.size(); ++w) {
    const Width& width = widths_[w];
    HOTROW_RETURN_IF_ERROR(
        width.table->ResolveForRead(ctx, &step->widths[w], PartOf(width, step->keys, rows.data())));
  }
  return absl::OkStatus();
}

absl::Status Tiers::ResolveForUpdate(TierStep* step, std::span<const uint8_t> trained,
                                     std::span<std::byte*> rows) {
  const StepKeys& keys = step->keys;
  for (size_t w = 0; w < widths_.size(); ++w) {
    step->widths[w].trained = trained.empty() ? trained : PartOf(widths_[w], keys, trained.data());
  }
  for (size_t w = 0; w < widths_.size(); ++w) {
    const absl::Status ready =
        widths_[w].table->ResolveForUpdate(&step->widths[w], PartOf(widths_[w], keys, rows.data()));
    if (ready.ok()) continue;
    for (size_t d = 0; d < w; ++d) {
      HOTROW_RETURN_IF_ERROR(widths_[d].table->Withdraw(step->widths[d]));
    }
    return ready;
  }
  return absl::OkStatus();
}

absl::Status Tiers::PrepareForUpdate(const ExecContext& ctx, const TierStep& step) {
  for (size_t w = 0; w < widths_.size(); ++w) {
    HOTROW_RETURN_IF_ERROR(widths_[w].table->PrepareForUpdate(ctx, step.widths[w]));
  }
  return absl::OkStatus();
}

void Tiers::Release(const ExecContext& ctx, TierStep* step, bool updated) {
  for (size_t w = 0; w < step->widths.size(); ++w) {
    widths_[w].table->Release(ctx, &step->widths[w], updated);
  }
  CountOut(step, updated);
}

// --- All rows

absl::Status Tiers::Read(const ExecContext& ctx, const TableKeys& keys, std::byte* staging,
                         std::vector<std::byte*>* rows) {
  rows->resize(keys.keys.size());
  for (const Width& width : widths_) {
    const std::span<const RowKey> own = PartOf(width, keys, keys.keys.data());
    HOTROW_RETURN_IF_ERROR(width.table->Read(ctx, own, staging, PartOf(width, keys, rows->data())));
    staging += static_cast<int64_t>(own.size()) * width.table->row_bytes();
  }
  return absl::OkStatus();
}

absl::Status Tiers::Flush() {
  HOTROW_RETURN_IF_ERROR(FlushCaches());
  return store_.store->Flush();
}

absl::Status Tiers::ForEachRow(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  const absl::Status flushed = Flush();
  if (!flushed.ok() && !absl::IsResourceExhausted(flushed)) return flushed;
  std::vector<RowKey> newer;  // than the store's
  const auto before = [](const RowKey& a, const RowKey& b) {
    return std::tie(a.table, a.key) < std::tie(b.table, b.key);
  };
  for (const Width& width : widths_) {
    if (flushed.ok()) break;
    const auto row_bytes = static_cast<size_t>(width.table->row_bytes());
    HOTROW_RETURN_IF_ERROR(width.table->ForEachUnwritten(
        [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) -> absl::Status {
          for (size_t i = 0; i < keys.size(); ++i) {
            HOTROW_RETURN_IF_ERROR(visit(keys[i], {rows[i], row_bytes}));
          }
          newer.insert(newer.end(), keys.begin(), keys.end());
          return absl::OkStatus();
        }));
  }
  std::sort(newer.begin(), newer.end(), before);
  return store_.store->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    return std::binary_search(newer.begin(), newer.end(), key, before) ? absl::OkStatus()
                                                                       : visit(key, row);
  });
}

absl::Status Tiers::FlushCaches() {
  for (Width& width : widths_) {
    std::unique_lock lock(room_mutex_);
    const Unwritten written = width.unwritten;  // rows that are made meanwhile may not be
    lock.unlock();
    HOTROW_RETURN_IF_ERROR(width.table->Flush());
    lock.lock();
    width.unwritten.made -= written.made;
    width.unwritten.changed -= written.changed;
    width.of_snapshot = {};
  }
  return absl::OkStatus();
}

absl::Status Tiers::Erase(const ExecContext& ctx, int32_t table, std::span<const RowKey> keys) {
  for (const Width& width : widths_) {
    if (table < width.last_table) return width.table->Erase(ctx, keys);
  }
  HOTROW_CHECK(false);
}

absl::Status Tiers::Write(const ExecContext& ctx, int32_t table, std::span<const RowKey> keys,
                          std::span<const std::byte* const> rows) {
  // These go past the cache. What it has yet to write comes first, so that it still finds room.
  if (store_.room != nullptr) HOTROW_RETURN_IF_ERROR(FlushCaches());
  for (const Width& width : widths_) {
    if (table < width.last_table) return width.table->Write(ctx, keys, rows);
  }
  HOTROW_CHECK(false);
}

absl::Status Tiers::Close() { return store_.store->Close(); }

// --- Snapshots

absl::Status Tiers::BeginSnapshot() {
  unfinished_.clear();
  unfinished_.reserve(widths_.size());  // what has begun must end
  for (size_t w = 0; w < widths_.size(); ++w) {
    const absl::Status begun =
        Caught("beginning a snapshot", [&] { return widths_[w].table->BeginSnapshot(); });
    if (begun.ok()) continue;
    for (size_t d = 0; d < w; ++d) widths_[d].table->EndSnapshot();
    return begun;
  }
  for (const Width& width : widths_) unfinished_.push_back(width.table.get());
  next_unfinished_ = 0;
  const std::lock_guard lock(room_mutex_);
  in_snapshot_ = true;
  for (Width& width : widths_) width.of_snapshot = width.unwritten;
  return absl::OkStatus();
}

absl::StatusOr<bool> Tiers::WriteSnapshotPart() {
  if (unfinished_.empty()) return false;
  if (next_unfinished_ >= unfinished_.size()) next_unfinished_ = 0;
  HOTROW_ASSIGN_OR_RETURN(const bool more, unfinished_[next_unfinished_]->WriteSnapshotPart());
  if (more) {
    ++next_unfinished_;
  } else {
    unfinished_.erase(unfinished_.begin() + static_cast<int64_t>(next_unfinished_));
  }
  if (!unfinished_.empty()) return true;
  const std::lock_guard lock(room_mutex_);
  for (Width& width : widths_) {
    width.unwritten.made -= width.of_snapshot.made;
    width.unwritten.changed -= width.of_snapshot.changed;
    width.of_snapshot = {};
  }
  return false;
}

void Tiers::EndSnapshot() {
  for (const Width& width : widths_) width.table->EndSnapshot();
  const std::lock_guard lock(room_mutex_);
  in_snapshot_ = false;
}

bool Tiers::HasRoomBesideSnapshot() {
  if (store_.room == nullptr) return true;
  std::vector<RowsToCome> to_come;
  for (const Width& width : widths_) {
    to_come.push_back({.row_bytes = width.table->row_bytes(),
                       .rows = 0,
                       .changed = width.cache_rows,
                       .unwritten = 0});
  }
  return !store_.room->IsTight(to_come, /*in_snapshot=*/true);
}

absl::Status Tiers::WriteHeld() {
  for (const Width& width : widths_) HOTROW_RETURN_IF_ERROR(width.table->WriteHeld());
  return absl::OkStatus();
}

void Tiers::WaitForDevice() const {
  for (const Width& width : widths_) width.table->WaitForDevice();
}

absl::Status Tiers::NoRoomError(const StepKeys& keys, int64_t batch_size, bool alone) const {
  int64_t need = 0;
  for (const Width& width : widths_) {
    need += TieredTable::MinCacheBytes(std::ssize(PartOf(width, keys, keys.keys)),
                                       width.table->row_bytes(), place_);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(place_.staged ? "device cache" : "cache", " budget of ", cache_.budget_bytes,
                   " bytes: one batch of ", batch_size,
                   alone ? " samples has " : " samples and those of other ranks have ", keys.size(),
                   " distinct rows", alone ? "" : " here", ", which need ", need, " bytes",
                   need <= cache_.budget_bytes
                       ? " and find no room all the same: too many fall into the same buckets of "
                         "the cache, as keys do that were chosen to"
                       : "",
                   "; raise ", cache_option_, " or lower the batch size"));
}

static void AddCounts(const TierCounts& counts, TierStats* tier) {
  tier->unique_keys += counts.unique_keys;
  tier->unique_hits += counts.unique_hits;
  tier->lookups += counts.lookups;
  tier->lookup_hits += counts.lookup_hits;
}

void Tiers::AddTo(EmbeddingStats* stats) const {
  TierStats cache = cache_;
  TierStats store = disk_;
  for (const Width& width : widths_) {
    const TieredTableStats table = width.table->Stats();
    cache.used_bytes += table.cache_used_bytes;
    stats->transfer_host_bytes += table.host_bytes;
    stats->transfer_device_bytes += table.device_bytes;
    stats->device_index_bytes += table.index.used_bytes;
    stats->device_index_keys += table.index.entries;
    stats->device_index_left_out += table.index.no_room;
    stats->device_index_rows_read += table.known_rows_read;
    AddCounts(table.cache_counts, &cache);
    cache.evictions += table.cache.evictions;
    cache.dirty_writebacks += table.cache.dirty_evictions;
    stats->overflow_rows += table.cache.overflow_inserts;
    AddCounts(table.store_counts, &store);
    store.rows_read += table.rows_read;
    store.rows_written += table.rows_written;
    for (const TieredTableStats::Table& of : table.tables) {
      TableStats& counts = stats->tables[of.table];
      counts.cache_misses += of.cache.lookups;
      counts.cache_unique_misses += of.cache.unique_keys;
      counts.store_misses += of.store.lookups;
      counts.store_unique_misses += of.store.unique_keys;
    }
    stats->snapshot_rows += table.snapshot.rows;
    stats->snapshot_row_bytes += table.snapshot.rows * width.table->row_bytes();
    stats->snapshot_rows_copied += table.snapshot.copied;
    stats->snapshot_rows_held += table.snapshot.held;
    stats->snapshot_update_waits += table.snapshot.update_waits;
    stats->snapshot_update_wait_ns += table.snapshot.update_wait_ns;
    stats->snapshot_evict_waits += table.snapshot.evict_waits;
    stats->snapshot_evict_wait_ns += table.snapshot.evict_wait_ns;
  }
  cache.peak_bytes = cache.used_bytes;  // a cache takes its memory at creation
  if (cache.budget_bytes > 0) stats->tiers.push_back(std::move(cache));
  if (host_cache_ != nullptr) {
    const CachedStoreStats kept = host_cache_->cache_stats();
    TierStats host;
    host.name = "cache";
    host.budget_bytes = kept.budget_bytes;
    host.used_bytes = kept.used_bytes;
    host.peak_bytes = kept.used_bytes;
    host.unique_keys = kept.finds;
    host.unique_hits = kept.hits;
    host.evictions = kept.evictions;
    stats->tiers.push_back(std::move(host));
  }
  const RowStoreStats row_store = store_.store->Stats();
  store.budget_bytes = row_store.budget_bytes;
  store.used_bytes = row_store.used_bytes;
  store.peak_bytes = row_store.peak_bytes;
  store.ios = row_store.ios;
  store.bytes_read = row_store.bytes_read;
  store.bytes_written = row_store.bytes_written;
  store.snapshot_bytes = row_store.snapshot_bytes;
  store.disk_budget_bytes = row_store.disk_budget_bytes;
  store.disk_used_bytes = row_store.disk_used_bytes;
  store.index_bytes =
      store_.ssd != nullptr ? store_.ssd->SsdStats().index_bytes : row_store.metadata_bytes;
  store.payload_bytes_written = row_store.payload_bytes_written;
  store.SetWriteAmplification();
  stats->tiers.push_back(std::move(store));
}

}  // namespace hotrow::internal
