#include "store/host/host_store.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/metrics.h"
#include "base/status_macros.h"
#include "store/host/host_memory_impl.h"
#include "store/host/host_rows_impl.h"
#include "store/host/host_snapshot_dir_impl.h"

namespace hotrow {

using internal::HostRows;
using internal::HostSnapshotDir;
using internal::MemoryBudget;

absl::Status HostStoreOptions::Validate() const {
  if (tables.empty()) {
    return absl::InvalidArgumentError("HostStoreOptions.tables: at least one is needed");
  }
  std::map<uint32_t, size_t> seen;
  for (size_t i = 0; i < tables.size(); ++i) {
    const StoreTable& table = tables[i];
    if (table.row_bytes < 1 || table.row_bytes > HostRows::kRowBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("HostStoreOptions.tables[", i, "]: row_bytes of table ", table.table,
                       " must lie in [1, ", HostRows::kRowBytesMax, "], it is ", table.row_bytes));
    }
    if (!seen.emplace(table.table, i).second) {
      return absl::InvalidArgumentError(absl::StrCat("HostStoreOptions.tables[", i, "]: table ",
                                                     table.table, " is there already, at [",
                                                     seen[table.table], "]"));
    }
  }
  if (budget_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory_option, " must be at least 1, it is ", budget_bytes));
  }
  if (!rows_max.empty() && rows_max.size() != tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("HostStoreOptions.rows_max must have a number for each of ", tables.size(),
                     " tables, or none, it has ", rows_max.size()));
  }
  for (size_t i = 0; i < rows_max.size(); ++i) {
    if (rows_max[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("HostStoreOptions.rows_max[", i,
                                                   "] must not be negative, it is ", rows_max[i]));
  }
  if (open_at != 0 && snapshot_dir.empty() && open_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("HostStoreOptions.open_at is ", open_at,
                                                   ", but snapshot_dir is empty, and so is "
                                                   "open_dir"));
  }
  return absl::OkStatus();
}

// Locks are taken in this order: that of the snapshots, the rows' writers, a shard, then those of
// arena and pool.
struct HostStore::Impl {
  explicit Impl(const HostStoreOptions& options)
      : options(options),
        budget(options.budget_bytes, "host store", this->options.memory_option.c_str()),
        rows(this->options, budget),
        snapshots(this->options, rows) {}

  absl::Status Init() {
    HOTROW_RETURN_IF_ERROR(budget.Reserve(
        static_cast<int64_t>(sizeof(Impl) + options.tables.size() * sizeof(StoreTable)) +
        rows.metadata_bytes()));
    HOTROW_RETURN_IF_ERROR(rows.Init());
    return snapshots.Init(budget);
  }

  template <typename Visit>
  absl::Status FindBatch(std::span<const RowKey> keys, const Visit& visit) {
    HOTROW_ASSIGN_OR_RETURN(const int64_t hits, rows.FindBatch(keys, visit));
    finds.Add(static_cast<int64_t>(keys.size()));
    found.Add(hits);
    return absl::OkStatus();
  }

  const HostStoreOptions options;
  MemoryBudget budget;  // outlives everything that is counted in it
  HostRows rows;
  HostSnapshotDir snapshots;

  std::mutex aging_mutex;  // guards what follows; before all other locks
  std::vector<RowAgeLine> age_lines;
  HostRows::AgeCursor age_cursor;

  Counter finds;
  Counter found;
  Counter rows_written;
  Counter rows_erased;
  Counter rows_aged;  // the part of rows_erased that DropAged dropped
};

HostStore::HostStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HostStore::~HostStore() = default;

absl::StatusOr<std::unique_ptr<HostStore>> HostStore::Open(const HostStoreOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>(options);
  HOTROW_RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<HostStore>(new HostStore(std::move(impl)));
}

namespace {

absl::Status CheckSizes(size_t num_keys, size_t num_rows, size_t num_flags) {
  if (num_keys == num_rows && num_keys == num_flags) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("host store: ", num_keys, " keys, ", num_rows,
                                                 " rows and ", num_flags,
                                                 " flags; the numbers must be equal"));
}

}  // namespace

absl::Status HostStore::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                             std::span<uint8_t> found) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), found.size()));
  return impl_->FindBatch(keys, [&](size_t i, int64_t row_bytes, const std::byte* row) {
    found[i] = row != nullptr ? 1 : 0;
    if (row != nullptr) std::memcpy(rows[i], row, static_cast<size_t>(row_bytes));
  });
}

absl::Status HostStore::FindInPlace(std::span<const RowKey> keys, std::span<std::byte*> rows) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), keys.size()));
  return impl_->FindBatch(keys, [&](size_t i, int64_t, std::byte* row) { rows[i] = row; });
}

absl::Status HostStore::InsertOrAssign(std::span<const RowKey> keys,
                                       std::span<const std::byte* const> rows) {
  return InsertOrAssign(keys, rows, /*pool=*/nullptr);
}

absl::Status HostStore::InsertOrAssign(std::span<const RowKey> keys,
                                       std::span<const std::byte* const> rows, ThreadPool* pool) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), keys.size()));
  int64_t written = 0;
  int64_t added = 0;
  const absl::Status status = impl_->rows.UpsertBatch(
      keys,
      [&](size_t i, int64_t row_bytes, std::byte* row, bool) {
        std::memcpy(row, rows[i], static_cast<size_t>(row_bytes));
      },
      &added, &written, pool);
  impl_->rows_written.Add(written);
  return status;
}

absl::Status HostStore::InsertOrAssign(std::span<const RowKey> keys,
                                       std::span<const std::byte* const> rows,
                                       std::span<std::byte*> at, std::span<uint8_t> added,
                                       ThreadPool* pool) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), added.size()));
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), at.size(), added.size()));
  std::fill(at.begin(), at.end(), nullptr);
  int64_t written = 0;
  int64_t num_added = 0;
  const absl::Status status = impl_->rows.UpsertBatch(
      keys,
      [&](size_t i, int64_t row_bytes, std::byte* row, bool is_new) {
        std::memcpy(row, rows[i], static_cast<size_t>(row_bytes));
        at[i] = row;
        added[i] = is_new ? 1 : 0;
      },
      &num_added, &written, pool);
  impl_->rows_written.Add(written);
  return status;
}

absl::Status HostStore::InsertInPlace(std::span<const RowKey> keys, std::span<std::byte*> rows,
                                      std::span<uint8_t> added) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), added.size()));
  int64_t num_added = 0;
  const absl::Status status = impl_->rows.UpsertBatch(
      keys,
      [&](size_t i, int64_t row_bytes, std::byte* row, bool is_new) {
        if (is_new) std::memset(row, 0, static_cast<size_t>(row_bytes));
        rows[i] = row;
        added[i] = is_new ? 1 : 0;
      },
      &num_added);
  impl_->rows_written.Add(num_added);
  return status;
}

absl::Status HostStore::Erase(std::span<const RowKey> keys) {
  HOTROW_ASSIGN_OR_RETURN(const int64_t erased, impl_->rows.EraseBatch(keys));
  impl_->rows_erased.Add(erased);
  return absl::OkStatus();
}

void HostStore::SetAgeLines(std::span<const RowAgeLine> lines) {
  const std::lock_guard lock(impl_->aging_mutex);
  impl_->age_lines.assign(lines.begin(), lines.end());
}

absl::StatusOr<int64_t> HostStore::DropAged(int64_t rows) {
  const std::lock_guard lock(impl_->aging_mutex);
  if (impl_->age_lines.empty()) return 0;
  const int64_t dropped = impl_->rows.DropAged(impl_->age_lines, rows, &impl_->age_cursor);
  impl_->rows_erased.Add(dropped);
  impl_->rows_aged.Add(dropped);
  return dropped;
}

int64_t HostStore::aged_rows() const { return impl_->rows_aged.value(); }

absl::Status HostStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  return impl_->rows.Iterate(visit);
}

void HostStore::IterateParts(ThreadPool* pool, VisitPart visit) {
  impl_->rows.IterateParts(pool, visit);
}

absl::Status HostStore::Flush() { return absl::OkStatus(); }

absl::Status HostStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  return impl_->snapshots.Prepare(snapshot, captured);
}

absl::Status HostStore::CommitSnapshot(SnapshotId snapshot) {
  return impl_->snapshots.Commit(snapshot);
}

absl::Status HostStore::DropSnapshot(SnapshotId snapshot) {
  return impl_->snapshots.Drop(snapshot);
}

absl::StatusOr<std::vector<SnapshotId>> HostStore::ListSnapshots() {
  return impl_->snapshots.List();
}

absl::StatusOr<SnapshotInfo> HostStore::DescribeSnapshot(SnapshotId snapshot) {
  return impl_->snapshots.Describe(snapshot);
}

RowStoreStats HostStore::Stats() const {
  const Impl& impl = *impl_;
  RowStoreStats stats;
  stats.rows = impl.rows.rows();
  stats.budget_bytes = impl.budget.budget();
  stats.used_bytes = impl.budget.used();
  stats.peak_bytes = impl.budget.peak();
  stats.metadata_bytes = stats.used_bytes - impl.rows.free_bytes() - impl.rows.row_space_bytes();
  stats.finds = impl.finds.value();
  stats.found = impl.found.value();
  stats.rows_written = impl.rows_written.value();
  stats.rows_erased = impl.rows_erased.value();
  stats.ios = impl.snapshots.ios();
  stats.bytes_read = impl.snapshots.bytes_read();
  stats.bytes_written = impl.snapshots.bytes_written();
  stats.snapshot_bytes = impl.snapshots.bytes();
  return stats;
}

std::span<const StoreTable> HostStore::tables() const { return impl_->options.tables; }

int64_t HostStore::row_bytes(uint32_t table) const { return impl_->rows.row_bytes(table); }

}  // namespace hotrow
