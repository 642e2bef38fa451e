#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "embedding/open_store_impl.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/storage_fields.h"
#include "store/store_facts.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kCopyBatchRows = 4096;
// Keys that are erased at a time when a store is emptied: 16 MiB.
constexpr int64_t kEraseBatchKeys = int64_t{1} << 20;

// Whether both name one directory, as far as that can be told without looking at it.
bool SamePath(const std::string& a, const std::string& b) {
  const auto normal = [](const std::string& path) {
    std::error_code error;
    std::filesystem::path full = std::filesystem::weakly_canonical(path, error);
    if (error) full = std::filesystem::path(path).lexically_normal();
    // "dir/" and "dir" are one.
    if (!full.has_filename()) full = full.parent_path();
    return full;
  };
  return normal(a) == normal(b);
}

// Whether the collection's own store has the snapshot, wherever that is said to lie: a store that
// was moved or copied is known by the identities of its snapshots.
bool HasSnapshot(const EmbeddingCollectionOptions& options, const SnapshotSource& source) {
  const StorageFields storage = FieldsOf(options.store);
  return source.identity.known() && !storage.dir.empty() &&
         CheckSnapshot(storage.kind, {.path = storage.dir,
                                      .snapshot = source.snapshot,
                                      .identity = source.identity,
                                      .env = options.env})
             .ok();
}

// Whether the place for a new store holds one that may be emptied. Refuses what may not be.
absl::StatusOr<bool> CheckNewPlace(const EmbeddingCollectionOptions& options) {
  const StorageFields storage = FieldsOf(options.store);
  HOTROW_ASSIGN_OR_RETURN(const StoreContents found,
                          PeekStore(storage.kind, storage.dir, options.env));
  if (!found.has_rows && found.snapshots.empty()) return false;
  if (options.start.start_over && !found.has_commits) return true;
  std::string what = found.has_rows ? "rows" : "";
  if (!found.snapshots.empty()) {
    absl::StrAppend(&what, found.has_rows ? " and " : "", found.snapshots.size(), " snapshot",
                    found.snapshots.size() == 1 ? "" : "s");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      storage.dir, ": there is a store already, with ", what,
      "; go on from the checkpoints that it belongs to (checkpoint_dir, resume), name another "
      "directory, or remove this one if nobody wants its rows"));
}

// own: a snapshot that is opened in place; null: an empty store.
absl::StatusOr<OpenedStore> Open(const EmbeddingCollectionOptions& options, const StoreUse& use,
                                 const SnapshotSource* own) {
  const StorageFields storage = FieldsOf(options.store);
  StoreOptions store = MakeStoreOptions(
      storage.kind, {.path = storage.dir,
                     .more_paths = storage.more_dirs,
                     .tables = use.tables,
                     .memory_budget_bytes = storage.memory_bytes,
                     .disk_budget_bytes = storage.disk_bytes,
                     .memory_option = options.NameOf("store.memory_bytes"),
                     .disk_option = options.NameOf("store.disk_bytes"),
                     .open_at = own == nullptr ? 0 : own->snapshot,
                     .open_at_identity = own == nullptr ? UniqueId() : own->identity,
                     .env = options.env});
  if (auto* const host = std::get_if<HostStoreOptions>(&store); host != nullptr) {
    if (own != nullptr) host->open_dir = own->dir;
    host->device = use.device;
    host->rows_max = use.rows_max;
    host->pool = use.pool;
  }
  OpenedStore opened;
  HOTROW_ASSIGN_OR_RETURN(opened.store, OpenStore(store));
  opened.host = dynamic_cast<HostStore*>(opened.store.get());
  opened.ssd = dynamic_cast<SsdStore*>(opened.store.get());
  opened.room = dynamic_cast<DiskRoom*>(opened.store.get());
  return opened;
}

// Removes all snapshots and rows.
absl::Status Empty(RowStore& store) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, store.ListSnapshots());
  for (const SnapshotId snapshot : snapshots) HOTROW_RETURN_IF_ERROR(store.DropSnapshot(snapshot));
  std::vector<RowKey> keys;
  do {
    keys.clear();
    const absl::Status status = store.Iterate([&](const RowKey& key, std::span<const std::byte>) {
      keys.push_back(key);
      return std::ssize(keys) < kEraseBatchKeys ? absl::OkStatus() : absl::CancelledError();
    });
    if (!status.ok() && !absl::IsCancelled(status)) return status;
    HOTROW_RETURN_IF_ERROR(store.Erase(keys));
  } while (!keys.empty());
  return absl::OkStatus();
}

absl::Status CheckTables(const std::string& path, std::span<const StoreTable> there,
                         const std::vector<StoreTable>& tables) {
  if (there.size() != tables.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the snapshot has ", there.size(),
                                                   " tables, the collection ", tables.size()));
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    if (there[i].table != tables[i].table || there[i].row_bytes != tables[i].row_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": table ", there[i].table, " of the snapshot has rows of ", there[i].row_bytes,
          " bytes, the collection's table ", tables[i].table, " has ", tables[i].row_bytes));
    }
  }
  return absl::OkStatus();
}

// Copies the rows that rank `rank` of world_size keeps.
absl::Status CopyRows(SnapshotReader& from, int32_t rank, int32_t world_size, RowStore& to) {
  std::vector<RowKey> keys;
  std::vector<int64_t> offsets;
  std::vector<std::byte> bytes;
  std::vector<const std::byte*> rows;
  const auto write = [&]() -> absl::Status {
    rows.clear();
    for (const int64_t offset : offsets) rows.push_back(bytes.data() + offset);
    HOTROW_RETURN_IF_ERROR(to.InsertOrAssign(keys, rows));
    keys.clear();
    offsets.clear();
    bytes.clear();
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(from.Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    if (world_size > 1 && OwnerRank(key, world_size) != rank) return absl::OkStatus();
    keys.push_back(key);
    offsets.push_back(std::ssize(bytes));
    bytes.insert(bytes.end(), row.begin(), row.end());
    return std::ssize(keys) < kCopyBatchRows ? absl::OkStatus() : write();
  }));
  return write();
}

}  // namespace

absl::StatusOr<OpenedStore> OpenCollectionStore(const EmbeddingCollectionOptions& options,
                                                const StoreUse& use) {
  const Communicator* const communicator = options.ranks.communicator;
  const int32_t world_size = communicator == nullptr ? 1 : communicator->world_size();
  const int32_t rank = communicator == nullptr ? 0 : communicator->rank();
  const StorageFields storage = FieldsOf(options.store);
  std::vector<SnapshotSource> from = options.start.from;
  if (std::ssize(from) == world_size) {
    // Written by as many ranks: this rank's rows are those of one part, and no others.
    from = {from[rank]};
    const SnapshotSource& mine = from[0];
    if (mine.store.value_or(storage.kind) == storage.kind &&
        (!FactsOf(storage.kind).on_disk || mine.dir.empty() || SamePath(mine.dir, storage.dir) ||
         HasSnapshot(options, mine))) {
      return Open(options, use, &mine);
    }
  }
  // The sources first: what is wrong with them is said before a store is made.
  std::vector<std::unique_ptr<SnapshotReader>> readers;
  for (const SnapshotSource& source : from) {
    HOTROW_ASSIGN_OR_RETURN(
        std::unique_ptr<SnapshotReader> reader,
        OpenSnapshot(source.store.value_or(storage.kind), {.path = source.dir,
                                                           .snapshot = source.snapshot,
                                                           .identity = source.identity,
                                                           .env = options.env}));
    HOTROW_RETURN_IF_ERROR(CheckTables(source.dir, reader->tables(), use.tables));
    readers.push_back(std::move(reader));
  }
  HOTROW_ASSIGN_OR_RETURN(const bool empty_it, CheckNewPlace(options));
  HOTROW_ASSIGN_OR_RETURN(OpenedStore opened, Open(options, use, /*own=*/nullptr));
  if (empty_it) HOTROW_RETURN_IF_ERROR(Empty(*opened.store));
  for (const std::unique_ptr<SnapshotReader>& reader : readers) {
    HOTROW_RETURN_IF_ERROR(CopyRows(*reader, rank, world_size, *opened.store));
  }
  return opened;
}

}  // namespace hotrow::internal
