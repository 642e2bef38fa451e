#include "models/delta/export_delta.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_row_sorter_impl.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/saved_part.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/training_state.h"
#include "store/open.h"
#include "store/snapshot_changes.h"

namespace hotrow {
namespace {

// A row of the parent.
struct OldRow {
  RowKey key;
  bool seen = false;  // the child has it
  Hash128 hash;       // of all its bytes but padding
};
static_assert(sizeof(OldRow) == 40);

Hash128 HashOfRow(const RowKey& key, const RowLayout& layout, std::span<const std::byte> row) {
  return HashBytes(key.key, key.table,
                   row.first(static_cast<size_t>(
                       layout.scored() ? layout.score_offset + int64_t{sizeof(float)}
                                       : layout.step_offset + int64_t{sizeof(uint32_t)})));
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenPart(Env& env, const SavedModel& saved,
                                                         int32_t rank,
                                                         const ExportDeltaOptions& options) {
  return OpenSavedPart(env, saved, rank, options.store_bytes, options.store_option);
}

// Calls visit for each row in the parts of these ranks, but for those that have aged.
absl::Status VisitRows(
    Env& env, const SavedModel& saved, std::span<const int32_t> ranks,
    const ExportDeltaOptions& options,
    absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit) {
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(saved));
  for (const int32_t rank : ranks) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                            OpenPart(env, saved, rank, options));
    HOTROW_RETURN_IF_ERROR(
        reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(CheckRankOfRow(saved, rank, key));
          return aged.Has(key, row) ? absl::OkStatus() : visit(key, row);
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CountRows(Env& env, const SavedModel& saved, std::span<const int32_t> ranks,
                                  const ExportDeltaOptions& options) {
  int64_t out = 0;
  for (const int32_t rank : ranks) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                            OpenPart(env, saved, rank, options));
    if (reader->rows() >= 0) {
      out += reader->rows();
      continue;
    }
    HOTROW_RETURN_IF_ERROR(reader->Iterate([&](const RowKey&, std::span<const std::byte>) {
      ++out;
      return absl::OkStatus();
    }));
  }
  return out;
}

// What has been found of the child's tables.
struct FoundTables {
  std::vector<PortableDigest> digests;
  bool has_rows = true;
  bool has_hashes = true;
};

// Gives the sorter what differs between parts of the two checkpoints, and counts and hashes the
// child's rows in them. No other part has keys of these.
absl::Status CompareParts(Env& env, const SavedModel& parent, std::span<const int32_t> parent_ranks,
                          const SavedModel& child, std::span<const int32_t> child_ranks,
                          const ExportDeltaOptions& options, const std::vector<RowLayout>& layouts,
                          DeltaRowSorter& sorter, FoundTables* found) {
  HOTROW_ASSIGN_OR_RETURN(const int64_t old_rows, CountRows(env, parent, parent_ranks, options));
  const int64_t old_bytes = old_rows * static_cast<int64_t>(sizeof(OldRow));
  const int64_t budget = std::max<int64_t>(options.memory_bytes / 2, 1);
  // Slices are not quite equal.
  const int64_t slices =
      old_bytes <= budget ? 1
                          : std::min<int64_t>(old_bytes / budget * 5 / 4 + 2, RowHash::kNumShards);
  const auto slice_of = [&](const RowKey& key) -> int64_t {
    return slices == 1 ? 0 : HashRowKey(key).shard() % slices;
  };
  std::vector<OldRow> old;
  for (int64_t slice = 0; slice < slices; ++slice) {
    old.clear();
    old.reserve(static_cast<size_t>(slices == 1 ? old_rows : old_rows / slices * 5 / 4));
    HOTROW_RETURN_IF_ERROR(VisitRows(
        env, parent, parent_ranks, options, [&](const RowKey& key, std::span<const std::byte> row) {
          if (slice_of(key) == slice) {
            old.push_back({.key = key, .hash = HashOfRow(key, layouts[key.table], row)});
          }
          return absl::OkStatus();
        }));
    std::sort(old.begin(), old.end(),
              [](const OldRow& a, const OldRow& b) { return ComesBefore(a.key, b.key); });
    HOTROW_RETURN_IF_ERROR(VisitRows(
        env, child, child_ranks, options,
        [&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          if (slice_of(key) != slice) return absl::OkStatus();
          const RowLayout& layout = layouts[key.table];
          PortableDigest& digest = found->digests[key.table];
          digest.rows += 1;
          digest.hash +=
              HashBytes(key.key, key.table, row.first(static_cast<size_t>(layout.payload_bytes)));
          const auto at = std::lower_bound(
              old.begin(), old.end(), key,
              [](const OldRow& a, const RowKey& b) { return ComesBefore(a.key, b); });
          if (at != old.end() && at->key == key) {
            at->seen = true;
            if (at->hash == HashOfRow(key, layout, row)) return absl::OkStatus();
          }
          return sorter.Add(key, row);
        }));
    for (const OldRow& row : old) {
      if (!row.seen) HOTROW_RETURN_IF_ERROR(sorter.AddErased(row.key));
    }
  }
  return absl::OkStatus();
}

// Gives the sorter what a rank's store has written since the parent. False: the store cannot tell.
absl::StatusOr<bool> TakeWrites(Env& env, const SavedModel& parent, const SavedModel& child,
                                int32_t rank, const ExportDeltaOptions& options,
                                DeltaRowSorter& sorter, FoundTables* found) {
  const SavedModel::Part& before = parent.parts[static_cast<size_t>(rank)];
  const SavedModel::Part& now = child.parts[static_cast<size_t>(rank)];
  if (before.store != now.store ||
      AbsolutePath(before.tables_dir) != AbsolutePath(now.tables_dir) || before == now ||
      !before.identity.known() || !now.identity.known()) {
    return false;
  }
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(now.store));
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<SnapshotChanges> changes,
      OpenSnapshotChanges(kind,
                          {.path = now.tables_dir,
                           .snapshot = now.snapshot,
                           .identity = now.identity,
                           .memory_budget_bytes = options.store_bytes,
                           .env = &env},
                          {.snapshot = before.snapshot, .identity = before.identity}));
  if (changes == nullptr) return false;
  const std::span<const StoreTable> tables = changes->tables();
  const std::vector<int64_t>& rows = changes->info().table_rows;
  found->has_hashes = false;
  // A store counts rows that have aged, too, until it drops them.
  const bool ages = std::any_of(child.tables.begin(), child.tables.end(),
                                [](const SavedModel::Table& table) { return !table.lines.none(); });
  found->has_rows = found->has_rows && rows.size() == tables.size() && !ages;
  for (size_t i = 0; i < tables.size() && found->has_rows; ++i) {
    if (tables[i].table >= found->digests.size()) {
      return absl::DataLossError(absl::StrCat(now.tables_dir, ": it has a table ", tables[i].table,
                                              ", ", child.dir, " has ", found->digests.size()));
    }
    found->digests[tables[i].table].rows += rows[i];
  }
  // Rows that have aged since need no tombstones: the delta's lines say which they are. Those that
  // were written and aged by their score may still have an older record that lives.
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(child));
  HOTROW_RETURN_IF_ERROR(changes->Iterate(
      [&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(CheckRankOfRow(child, rank, key));
        if (!aged.Has(key, row)) return sorter.Add(key, row);
        return child.tables[key.table].lines.scores.empty() ? absl::OkStatus()
                                                            : sorter.AddErased(key);
      },
      [&](const RowKey& key) { return sorter.AddErased(key); }));
  return true;
}

// Gives the sorter what changed from one checkpoint to the other. Ranks whose stores can tell are
// not compared.
absl::StatusOr<FoundTables> FindChanges(Env& env, const SavedModel& parent, const SavedModel& child,
                                        const ExportDeltaOptions& options,
                                        const std::vector<DeltaTable>& tables,
                                        DeltaRowSorter& sorter) {
  std::vector<RowLayout> layouts;
  for (const DeltaTable& table : tables) layouts.push_back(table.layout());
  FoundTables found;
  found.digests.resize(tables.size());
  const auto ranks_of = [](const SavedModel& saved) {
    std::vector<int32_t> out;
    for (size_t r = 0; r < saved.parts.size(); ++r) out.push_back(static_cast<int32_t>(r));
    return out;
  };
  const std::vector<int32_t> parent_ranks = ranks_of(parent);
  const std::vector<int32_t> child_ranks = ranks_of(child);
  if (parent_ranks != child_ranks) {
    HOTROW_RETURN_IF_ERROR(CompareParts(env, parent, parent_ranks, child, child_ranks, options,
                                        layouts, sorter, &found));
    return found;
  }
  for (const int32_t rank : child_ranks) {
    HOTROW_ASSIGN_OR_RETURN(const bool taken,
                            TakeWrites(env, parent, child, rank, options, sorter, &found));
    if (taken) continue;
    HOTROW_RETURN_IF_ERROR(
        CompareParts(env, parent, {&rank, 1}, child, {&rank, 1}, options, layouts, sorter, &found));
  }
  return found;
}

// The chain that the delta goes to. Its head is of the parent.
absl::StatusOr<DeltaChain> FindChain(Env& env, const SavedModel& parent,
                                     const ExportDeltaOptions& options, bool* made) {
  const std::string dir = WithoutEndingSlashes(options.chain);
  const absl::StatusOr<bool> begins = MayBeginChain(env, dir);
  *made = begins.ok() && *begins;
  if (*made) {
    return CreateChain({.checkpoint = options.since,
                        .dir = dir,
                        .form = options.form.value_or(DeltaForm()),
                        .shard_bytes = options.shard_bytes,
                        .memory_bytes = options.memory_bytes,
                        .store_bytes = options.store_bytes,
                        .store_option = options.store_option,
                        .env = &env});
  }
  HOTROW_ASSIGN_OR_RETURN(DeltaChain chain, ReadChain(env, dir));
  if (options.form.has_value() && !(*options.form == chain.manifest.form)) {
    return absl::FailedPreconditionError(absl::StrCat(
        dir, ": its deltas are of ", std::string(ExchangeTypeName(chain.manifest.form.precision)),
        chain.manifest.form.state ? " with state" : " without state",
        ", asked for is another form; leave it out, or begin a new chain"));
  }
  const ChainLink head = chain.head();
  const std::vector<UniqueId> source = SourceOf(parent);
  const bool known = !source.empty() && !head.source.empty();
  if (head.step != parent.step || (known && source != head.source)) {
    return absl::FailedPreconditionError(absl::StrCat(
        dir, ": its newest link is of step ", head.step, ", ", parent.dir, " of step ", parent.step,
        head.step == parent.step ? " and of another run" : "",
        "; give the checkpoint that the newest link was made of, or begin a new chain"));
  }
  return chain;
}

}  // namespace

absl::StatusOr<DeltaSummary> ExportDelta(const ExportDeltaOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  HOTROW_ASSIGN_OR_RETURN(const SavedModel parent, ReadCheckpoint(env, options.since));
  HOTROW_ASSIGN_OR_RETURN(SavedModel child, ReadCheckpoint(env, options.checkpoint));
  for (const SavedModel* const saved : std::array<const SavedModel*, 2>{&parent, &child}) {
    if (saved->training != nullptr && saved->training->rows_missed_steps()) {
      return absl::FailedPreconditionError(absl::StrCat(
          saved->dir,
          ": its tables decay as a whole (--table_weight_decay_mode=table), so every row changes "
          "with every step; export whole models"));
    }
  }
  if (child.step < parent.step) {
    return absl::FailedPreconditionError(
        absl::StrCat(child.dir, ": is of step ", child.step, ", before ", parent.dir, " of step ",
                     parent.step, "; --since takes the older of the two"));
  }
  DeltaSummary summary;
  HOTROW_ASSIGN_OR_RETURN(const DeltaChain chain,
                          FindChain(env, parent, options, &summary.made_chain));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadSavedDense(env, child));
  HOTROW_ASSIGN_OR_RETURN(child.blob_bytes, ReadSavedBlobs(env, child));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaWriter> writer,
                          DeltaWriter::Create(env, chain, child));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<DeltaTable> parent_tables, DeltaTablesOf(parent));
  if (parent_tables != writer->tables()) {
    return absl::FailedPreconditionError(absl::StrCat(parent.dir, ": its tables are not those of ",
                                                      child.dir, "; begin a new chain"));
  }
  std::vector<DeltaPart> parts;
  {
    DeltaRowSorter sorter(env, writer->path(), writer->tables(), options.memory_bytes / 2);
    HOTROW_ASSIGN_OR_RETURN(const FoundTables found,
                            FindChanges(env, parent, child, options, writer->tables(), sorter));
    for (size_t t = 0; t < found.digests.size(); ++t) {
      const PortableDigest& digest = found.digests[t];
      child.tables[t].rows = found.has_rows ? digest.rows : -1;
      child.tables[t].hash = found.has_hashes ? digest.hash.ToHex() : "";
    }
    HOTROW_ASSIGN_OR_RETURN(
        const std::unique_ptr<DeltaRowsWriter> rows,
        DeltaRowsWriter::Create(env, writer->path(), DeltaPartName(0, 1), writer->file_id(0, 1),
                                writer->form(), writer->tables()));
    HOTROW_RETURN_IF_ERROR(sorter.WriteTo(*rows));
    HOTROW_ASSIGN_OR_RETURN(DeltaPart part, rows->Finish());
    parts.push_back(std::move(part));
  }
  summary.from = child.dir;
  for (const int64_t n : parts[0].rows) summary.rows += n;
  for (const int64_t n : parts[0].erased) summary.erased += n;
  summary.bytes = parts[0].bytes;
  summary.to = chain.delta_dir(writer->sequence());
  HOTROW_ASSIGN_OR_RETURN(summary.delta, writer->Commit(child, std::move(parts), dense.arrays()));
  return summary;
}

}  // namespace hotrow
