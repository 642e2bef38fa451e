#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/file_hold.h"
#include "base/io_queue.h"
#include "base/math.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_dirs_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "store/ssd/ssd_store.h"

// Reading a snapshot of an SsdStore: an index of its rows from the footers, as opening the store
// makes it, then the segments from end to end; what the index names is visited.
//
// The store may be open and written to meanwhile. As long as a manifest names the snapshot its
// segments are not written over, and only behind the ends that it names is anything appended. The
// last chunk of a segment may get more records, and its footer, at any time; both its footer and
// its records are read only up to that end. Once no manifest names the snapshot, its segments are
// written over when there is no other that nobody holds (base/file_hold.h). What cannot be read
// then is no damage if the manifest does not name the snapshot any more.
//
// What changed since an earlier snapshot is in the segments, and in the ends of segments, that this
// one has not: each record gets a new number, also one that the cleaner moves.
namespace hotrow {
namespace {

using internal::BudgetedBuffer;
using internal::MemoryBudget;
using internal::SsdGeometry;
using internal::SsdIndex;
using internal::SsdKindOf;
using internal::SsdLocation;
using internal::SsdManifest;
using internal::SsdNewest;
using internal::SsdRecord;
using internal::SsdRecordKind;
using internal::SsdScanned;
using internal::SsdSegmentRef;

constexpr int64_t kReadBytes = int64_t{8} << 20;     // chunks read at once
constexpr int64_t kNewestBytes = int64_t{64} << 20;  // of records, to tell the newest
constexpr int64_t kBlockBytesMax = 4096;             // alignment of direct transfers
constexpr const char* kOwner = "reading a snapshot of an SSD store";

bool IsTombstone(const SsdNewest& record) {
  return SsdKindOf(record.kind_table) == static_cast<uint32_t>(SsdRecordKind::kTombstone);
}

class SsdSnapshotReader final : public SnapshotReader {
 public:
  SsdSnapshotReader(Env& env, const SnapshotReaderOptions& options)
      : env_(env),
        options_(options),
        budget_(options.memory_budget_bytes == 0 ? std::numeric_limits<int64_t>::max()
                                                 : options.memory_budget_bytes,
                kOwner, options.memory_option) {}

  absl::Status Open();
  // For IterateChanges instead. False: what changed cannot be told, or not in this memory.
  absl::StatusOr<bool> OpenChanges(const ParentSnapshot& parent);
  absl::Status ReadManifest();  // alone, for who wants info() and tables() only

  std::span<const StoreTable> tables() const override { return manifest_.tables; }
  int64_t rows() const override { return index_->rows(); }
  const SnapshotInfo& info() const override { return info_; }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;
  absl::Status IterateChanges(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit,
      absl::FunctionRef<absl::Status(const RowKey&)> erased);
  int64_t bytes_read() const { return bytes_read_; }

 private:
  // A chunk of the log, with records that are asked for.
  struct Chunk {
    const SsdSegmentRef* ref;
    int64_t offset;
  };
  std::string PathOf(std::string_view name) const {
    return absl::StrCat(options_.path, "/", std::string(name));
  }
  SsdGeometry geometry() const {
    return {manifest_.segment_bytes, manifest_.chunk_bytes, row_bytes_};
  }
  SsdLocation LocationOf(uint32_t slot, int64_t offset) const {
    return slot * static_cast<uint64_t>(manifest_.segment_bytes / internal::kSsdUnitBytes) +
           static_cast<uint64_t>(offset / internal::kSsdUnitBytes);
  }
  absl::StatusOr<SsdManifest> Decode(const std::string& text) const;
  absl::Status Lock();
  absl::Status HoldSegments();
  absl::Status MakeIndex();
  absl::Status VisitChunk(
      const SsdSegmentRef& ref, int64_t offset, std::span<const std::byte> chunk,
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit);
  // Reads chunks, many at a time, and calls visit for each, in no particular order.
  absl::Status ReadChunks(
      const std::vector<Chunk>& chunks,
      absl::FunctionRef<absl::Status(const Chunk& chunk, std::span<const std::byte> bytes)> visit);
  absl::StatusOr<bool> FindNewest(const std::map<uint32_t, int64_t>& begins,
                                  uint64_t parent_sequence);
  absl::Status VisitRow(
      const SsdSegmentRef& ref, int64_t offset, const RowKey& index_key,
      std::span<const std::byte> record,
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit);
  absl::Status CheckUnchanged() const;
  // What reading came to. What looks like damage may be that of a snapshot that was dropped.
  absl::Status EndedWith(const absl::Status& read) const;

  Env& env_;
  const SnapshotReaderOptions options_;
  MemoryBudget budget_;
  std::unique_ptr<FileLock> lock_;
  std::string manifest_text_;
  SsdManifest manifest_;
  SnapshotInfo info_;
  // The snapshot, of changes also the parent: they must stay. Empty: the latest state is read.
  std::vector<internal::SsdSnapshot> kept_;
  std::vector<SsdSegmentRef> segments_;  // of the snapshot
  std::vector<int64_t> row_bytes_;       // by table index
  std::map<uint32_t, std::unique_ptr<File>> files_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<SsdIndex> index_;
  // What Iterate uses.
  std::vector<SsdScanned> records_;
  std::vector<RowKey> keys_;
  std::vector<SsdLocation> locations_;
  int64_t visited_ = 0;
  int64_t bytes_read_ = 0;
  // What IterateChanges uses: the newest record of each key that was written since the parent: rows
  // by their places, then tombstones.
  std::vector<SsdNewest> newest_;
};

absl::Status SsdSnapshotReader::Open() {
  HOTROW_RETURN_IF_ERROR(Lock());
  HOTROW_RETURN_IF_ERROR(ReadManifest());
  HOTROW_RETURN_IF_ERROR(EndedWith(HoldSegments()));
  HOTROW_ASSIGN_OR_RETURN(queue_, env_.NewIoQueue({}));
  return EndedWith(MakeIndex());
}

absl::StatusOr<SsdManifest> SsdSnapshotReader::Decode(const std::string& text) const {
  absl::StatusOr<internal::DecodedSsdManifest> decoded = internal::DecodeSsdManifest(text);
  if (decoded.ok()) return std::move(decoded->manifest);
  return absl::Status(decoded.status().code(),
                      absl::StrCat(PathOf(internal::kSsdManifestName), ": ",
                                   std::string(decoded.status().message())));
}

// The latest state changes while the store is open.
absl::Status SsdSnapshotReader::Lock() {
  if (options_.snapshot != 0) return absl::OkStatus();
  // A store that was copied without it is not open, and nothing is to be made here. Others may read
  // it, too.
  const std::string path = PathOf(internal::kSsdLockName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(path));
  if (!exists) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<FileLock>> taken = env_.LockFile(path, LockMode::kShared);
  if (absl::IsFailedPrecondition(taken.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "SSD store ", options_.path, ": is open, here or in another process; close it first"));
  }
  HOTROW_RETURN_IF_ERROR(taken.status());
  lock_ = *std::move(taken);
  return absl::OkStatus();
}

absl::Status SsdSnapshotReader::ReadManifest() {
  const std::string path = PathOf(internal::kSsdManifestName);
  HOTROW_RETURN_IF_ERROR(internal::CheckSsdHome(env_, options_.path));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(path));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(options_.path, ": there is no SSD store, the file ",
                                            std::string(internal::kSsdManifestName),
                                            " is missing"));
  }
  HOTROW_ASSIGN_OR_RETURN(manifest_text_,
                          ReadWholeFile(env_, path, internal::kSsdManifestBytesMax));
  HOTROW_ASSIGN_OR_RETURN(manifest_, Decode(manifest_text_));
  for (const StoreTable& t : manifest_.tables) row_bytes_.push_back(t.row_bytes);
  if (options_.snapshot == 0) {
    segments_ = manifest_.segments;
    info_.table_rows = manifest_.table_rows;
    return absl::OkStatus();
  }
  for (const internal::SsdSnapshot& s : manifest_.snapshots) {
    if (s.id != options_.snapshot) continue;
    kept_ = {s};
    segments_ = s.segments;
    info_ = {
        .id = s.id, .committed = s.committed, .identity = s.identity, .table_rows = s.table_rows};
    return CheckSnapshotIdentity(absl::StrCat("SSD store ", options_.path), info_,
                                 options_.identity);
  }
  return absl::FailedPreconditionError(
      absl::StrCat(options_.path, ": there is no snapshot ", options_.snapshot));
}

absl::Status SsdSnapshotReader::HoldSegments() {
  HOTROW_ASSIGN_OR_RETURN(const internal::SsdDirs dirs,
                          internal::FindSsdDirs(env_, options_.path, manifest_));
  for (const SsdSegmentRef& ref : segments_) {
    const std::string path = dirs.SegmentPath(ref.directory, ref.slot);
    absl::StatusOr<std::unique_ptr<File>> file = env_.OpenDirect(path, OpenMode::kRead);
    if (absl::IsNotFound(file.status())) {
      return absl::DataLossError(absl::StrCat(path, ": the file is missing"));
    }
    HOTROW_RETURN_IF_ERROR(file.status());
    HoldFile(**file);
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
    // Its chunks are read whole.
    const int64_t end = RoundUp(ref.end_offset, manifest_.chunk_bytes);
    if (size < end) {
      return absl::DataLossError(
          absl::StrCat(path, ": ends at offset ", size, ", its chunks at ", end));
    }
    files_.insert_or_assign(ref.slot, *std::move(file));
  }
  return absl::OkStatus();
}

absl::Status SsdSnapshotReader::MakeIndex() {
  uint32_t slot_max = 0;
  int64_t log_bytes = 0;
  for (const SsdSegmentRef& ref : segments_) {
    slot_max = std::max(slot_max, ref.slot);
    log_bytes += ref.end_offset;
  }
  const int64_t shortest = *std::min_element(row_bytes_.begin(), row_bytes_.end());
  HOTROW_ASSIGN_OR_RETURN(
      index_,
      SsdIndex::Create(
          {.num_tables = static_cast<int64_t>(row_bytes_.size()),
           .location_bits = static_cast<int32_t>(std::bit_width(LocationOf(slot_max + 1, 0))),
           .max_rows_hint = log_bytes / internal::SsdLogBytes(shortest) + 1},
          budget_));
  // The rest is for the index.
  const int64_t newest_bytes = std::min(kNewestBytes, (budget_.budget() - budget_.used()) / 2);
  std::vector<int64_t> counts(row_bytes_.size());
  const auto location_of = [&](const SsdNewest& row) {
    ++counts[row.table_index()];
    return LocationOf(row.slot, row.offset);
  };
  HOTROW_RETURN_IF_ERROR(internal::ScanNewestSsdRows(
                             geometry(), segments_,
                             [&](uint32_t slot) { return files_.at(slot).get(); }, *queue_, budget_,
                             newest_bytes, index_->options().seed,
                             [&](std::span<const SsdNewest> rows) {
                               return internal::AddToSsdIndex(rows, location_of, index_.get());
                             })
                             .status());
  for (size_t t = 0; t < info_.table_rows.size(); ++t) {
    if (counts[t] == info_.table_rows[t]) continue;
    return absl::DataLossError(absl::StrCat(
        PathOf(internal::kSsdManifestName), ": table ", manifest_.tables[t].table, " of snapshot ",
        options_.snapshot, " has ", info_.table_rows[t], " rows, its segments hold ", counts[t]));
  }
  return absl::OkStatus();
}

absl::Status SsdSnapshotReader::CheckUnchanged() const {
  HOTROW_ASSIGN_OR_RETURN(
      const std::string now,
      ReadWholeFile(env_, PathOf(internal::kSsdManifestName), internal::kSsdManifestBytesMax));
  if (now == manifest_text_) return absl::OkStatus();
  if (kept_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.path, ": the store was changed while it was read; close it first"));
  }
  HOTROW_ASSIGN_OR_RETURN(const SsdManifest manifest, Decode(now));
  for (const internal::SsdSnapshot& kept : kept_) {
    const auto& all = manifest.snapshots;
    const bool stays = std::any_of(all.begin(), all.end(), [&](const internal::SsdSnapshot& s) {
      return s.id == kept.id && s.identity == kept.identity;
    });
    if (stays) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        options_.path, ": snapshot ", kept.id, " was dropped while it was read; read a newer one"));
  }
  return absl::OkStatus();
}

absl::Status SsdSnapshotReader::EndedWith(const absl::Status& read) const {
  // Checksums cover the life of a segment, so rows of a snapshot are right or not at all. Changes
  // are of two that somebody keeps.
  if (read.ok() && kept_.size() == 1) return read;
  const absl::Status unchanged = CheckUnchanged();
  return unchanged.ok() ? read : unchanged;
}

// The row of a record that begins `record`, after a check of its checksum.
absl::Status SsdSnapshotReader::VisitRow(
    const SsdSegmentRef& ref, int64_t offset, const RowKey& index_key,
    std::span<const std::byte> record,
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  const RowKey key = {index_key.key, manifest_.tables[index_key.table].table};
  const std::optional<SsdRecord> row =
      internal::DecodeSsdRecord(record, {ref.epoch, offset}, row_bytes_);
  if (!row.has_value() || row->kind != SsdRecordKind::kRow || row->key != index_key.key ||
      row->table_index != index_key.table) {
    return absl::DataLossError(
        absl::StrCat(files_.at(ref.slot)->path(), ": offset ", offset, ": the row of key ", key.key,
                     " of table ", key.table,
                     " is damaged, its checksum does not match; `hotrow verify` lists all damage"));
  }
  return visit(key, row->row);
}

absl::Status SsdSnapshotReader::VisitChunk(
    const SsdSegmentRef& ref, int64_t offset, std::span<const std::byte> chunk,
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  const std::string& path = files_.at(ref.slot)->path();
  records_.clear();
  const absl::Status listed = internal::ListSsdChunk(geometry(), ref, offset, chunk, &records_);
  if (!listed.ok()) {
    return absl::Status(listed.code(), absl::StrCat(path, ": ", std::string(listed.message())));
  }
  keys_.clear();
  for (const SsdScanned& record : records_) keys_.push_back({record.key, record.table_index()});
  locations_.resize(keys_.size());
  index_->Find(keys_, locations_);
  for (size_t i = 0; i < records_.size(); ++i) {
    const SsdScanned& record = records_[i];
    if (record.kind() != SsdRecordKind::kRow ||
        locations_[i] != LocationOf(ref.slot, record.offset)) {
      continue;
    }
    ++visited_;
    HOTROW_RETURN_IF_ERROR(VisitRow(ref, record.offset, keys_[i],
                                    chunk.subspan(static_cast<size_t>(record.offset - offset)),
                                    visit));
  }
  return absl::OkStatus();
}

absl::Status SsdSnapshotReader::ReadChunks(
    const std::vector<Chunk>& chunks,
    absl::FunctionRef<absl::Status(const Chunk& chunk, std::span<const std::byte> bytes)> visit) {
  const int64_t chunk_bytes = manifest_.chunk_bytes;
  const int64_t free_bytes = budget_.budget() - budget_.used();
  const int64_t at_once =
      std::clamp<int64_t>(std::min(kReadBytes, free_bytes / 2) / chunk_bytes, 1,
                          std::max<int64_t>(static_cast<int64_t>(chunks.size()), 1));
  HOTROW_ASSIGN_OR_RETURN(
      BudgetedBuffer<std::byte> memory,
      BudgetedBuffer<std::byte>::Create(at_once * chunk_bytes + kBlockBytesMax, budget_));
  auto* const buffer = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(memory.data()), kBlockBytesMax));
  absl::Status status;
  std::vector<IoRequest> requests;
  for (size_t first = 0; first < chunks.size() && status.ok();
       first += static_cast<size_t>(at_once)) {
    requests.clear();
    for (size_t i = first; i < chunks.size() && i < first + static_cast<size_t>(at_once); ++i) {
      IoRequest request;
      request.file = files_.at(chunks[i].ref->slot).get();
      request.offset = chunks[i].offset;
      request.data = buffer + static_cast<int64_t>(i - first) * chunk_bytes;
      request.bytes = chunk_bytes;
      request.user_data = i;
      requests.push_back(std::move(request));
      bytes_read_ += chunk_bytes;
    }
    queue_->Run(requests, [&](IoRequest& request) {
      if (!status.ok()) return;
      if (!request.status.ok()) {
        status = request.status;
        return;
      }
      status = visit(chunks[request.user_data], {request.data, static_cast<size_t>(chunk_bytes)});
    });
  }
  return status;
}

absl::Status SsdSnapshotReader::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  std::vector<Chunk> chunks;
  for (const SsdSegmentRef& ref : segments_) {
    for (int64_t at = 0; at < ref.end_offset; at += manifest_.chunk_bytes) {
      if (internal::SsdFirstRecord(at) < ref.end_offset) chunks.push_back({&ref, at});
    }
  }
  visited_ = 0;
  HOTROW_RETURN_IF_ERROR(
      EndedWith(ReadChunks(chunks, [&](const Chunk& chunk, std::span<const std::byte> bytes) {
        return VisitChunk(*chunk.ref, chunk.offset, bytes, visit);
      })));
  if (visited_ == rows()) return absl::OkStatus();
  return EndedWith(absl::DataLossError(absl::StrCat(options_.path, ": the footers tell of ", rows(),
                                                    " rows, the segments hold ", visited_,
                                                    "; `hotrow verify` lists all damage")));
}

absl::StatusOr<bool> SsdSnapshotReader::OpenChanges(const ParentSnapshot& parent) {
  HOTROW_RETURN_IF_ERROR(Lock());
  HOTROW_RETURN_IF_ERROR(ReadManifest());
  const auto found =
      std::find_if(manifest_.snapshots.begin(), manifest_.snapshots.end(),
                   [&](const internal::SsdSnapshot& s) { return s.id == parent.snapshot; });
  if (found == manifest_.snapshots.end()) return false;
  HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(absl::StrCat("SSD store ", options_.path),
                                               {.id = found->id,
                                                .committed = found->committed,
                                                .identity = found->identity,
                                                .table_rows = {}},
                                               parent.identity));
  kept_.push_back(*found);
  std::map<uint32_t, const SsdSegmentRef*> old;
  std::vector<uint64_t> tails;  // base sequences, the highest first
  for (const SsdSegmentRef& ref : found->segments) {
    old[ref.slot] = &ref;
    tails.push_back(ref.base_sequence);
  }
  std::sort(tails.begin(), tails.end(), std::greater<>());
  // Records go to two segments at a time.
  const uint64_t tail = tails.empty() ? 0 : tails[std::min<size_t>(1, tails.size() - 1)];
  std::vector<SsdSegmentRef> changed;
  std::map<uint32_t, int64_t> begins;  // of what is new, by slot
  for (const SsdSegmentRef& ref : segments_) {
    const auto before = old.find(ref.slot);
    const bool same = before != old.end() && before->second->epoch == ref.epoch;
    const int64_t begin = same ? before->second->end_offset : 0;
    if (begin >= ref.end_offset && ref.base_sequence < tail) continue;
    begins[ref.slot] = begin;
    changed.push_back(ref);
  }
  segments_ = std::move(changed);
  HOTROW_RETURN_IF_ERROR(EndedWith(HoldSegments()));
  HOTROW_ASSIGN_OR_RETURN(queue_, env_.NewIoQueue({}));
  // A snapshot keeps the number that the record behind its last one was to get.
  const absl::StatusOr<bool> knows = FindNewest(begins, found->sequence - 1);
  HOTROW_RETURN_IF_ERROR(EndedWith(knows.status()));
  return knows;
}

absl::StatusOr<bool> SsdSnapshotReader::FindNewest(const std::map<uint32_t, int64_t>& begins,
                                                   uint64_t parent_sequence) {
  // A vector that grows takes three times its contents, and sorting needs none.
  const auto most =
      static_cast<size_t>(std::max<int64_t>((budget_.budget() - budget_.used()) / 4, 0) /
                          static_cast<int64_t>(sizeof(SsdNewest)));
  bool fits = true;
  // The parent's last record must be here. Then this state has come out of the parent's: a store
  // that was opened at an older snapshot meanwhile has lost that record. And a tombstone goes only
  // when no segment that stays is older than it, so all that were written since are here, too.
  bool follows = false;
  HOTROW_RETURN_IF_ERROR(internal::ScanSsdSegments(
      geometry(), segments_, [&](uint32_t slot) { return files_.at(slot).get(); }, *queue_, budget_,
      [&](const SsdSegmentRef& ref, const SsdScanned& record) {
        if (record.offset < begins.at(ref.slot)) {
          follows = follows || record.sequence == parent_sequence;
          return;
        }
        if (!fits) return;
        fits = newest_.size() < most;
        newest_.push_back({.key = record.key,
                           .sequence = record.sequence,
                           .offset = record.offset,
                           .slot = ref.slot,
                           .kind_table = record.kind_table});
      }));
  if (!fits || !follows) return false;
  const auto same_key = [](const SsdNewest& a, const SsdNewest& b) {
    return a.key == b.key && a.table_index() == b.table_index();
  };
  std::sort(newest_.begin(), newest_.end(), [](const SsdNewest& a, const SsdNewest& b) {
    return std::tuple(a.table_index(), a.key, b.sequence) <
           std::tuple(b.table_index(), b.key, a.sequence);
  });
  newest_.erase(std::unique(newest_.begin(), newest_.end(), same_key), newest_.end());
  newest_.shrink_to_fit();
  std::sort(newest_.begin(), newest_.end(), [](const SsdNewest& a, const SsdNewest& b) {
    return std::tuple(IsTombstone(a), a.slot, a.offset) <
           std::tuple(IsTombstone(b), b.slot, b.offset);
  });
  return true;
}

absl::Status SsdSnapshotReader::IterateChanges(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit,
    absl::FunctionRef<absl::Status(const RowKey&)> erased) {
  std::map<uint32_t, const SsdSegmentRef*> refs;
  for (const SsdSegmentRef& ref : segments_) refs[ref.slot] = &ref;
  // Chunks with rows, and where theirs begin in newest_.
  std::vector<Chunk> chunks;
  std::vector<size_t> firsts;
  size_t rows = 0;
  for (; rows < newest_.size() && !IsTombstone(newest_[rows]); ++rows) {
    const int64_t at = newest_[rows].offset / manifest_.chunk_bytes * manifest_.chunk_bytes;
    const SsdSegmentRef* const ref = refs.at(newest_[rows].slot);
    if (chunks.empty() || chunks.back().ref != ref || chunks.back().offset != at) {
      chunks.push_back({ref, at});
      firsts.push_back(rows);
    }
  }
  firsts.push_back(rows);
  for (size_t i = rows; i < newest_.size(); ++i) {
    const SsdNewest& gone = newest_[i];
    HOTROW_RETURN_IF_ERROR(erased({gone.key, manifest_.tables[gone.table_index()].table}));
  }
  return EndedWith(
      ReadChunks(chunks, [&](const Chunk& chunk, std::span<const std::byte> bytes) -> absl::Status {
        const auto index = static_cast<size_t>(&chunk - chunks.data());
        for (size_t i = firsts[index]; i < firsts[index + 1]; ++i) {
          HOTROW_RETURN_IF_ERROR(VisitRow(
              *chunk.ref, newest_[i].offset, {newest_[i].key, newest_[i].table_index()},
              bytes.subspan(static_cast<size_t>(newest_[i].offset - chunk.offset)), visit));
        }
        return absl::OkStatus();
      }));
}

// The part of a reader that is about changes.
class SsdSnapshotChanges final : public SnapshotChanges {
 public:
  explicit SsdSnapshotChanges(std::unique_ptr<SsdSnapshotReader> reader)
      : reader_(std::move(reader)) {}

  std::span<const StoreTable> tables() const override { return reader_->tables(); }
  const SnapshotInfo& info() const override { return reader_->info(); }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit,
      absl::FunctionRef<absl::Status(const RowKey&)> erased) override {
    return reader_->IterateChanges(visit, erased);
  }
  int64_t bytes_read() const override { return reader_->bytes_read(); }

 private:
  const std::unique_ptr<SsdSnapshotReader> reader_;
};

}  // namespace

absl::StatusOr<SnapshotInfo> DescribeSsdSnapshot(const SnapshotReaderOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  SsdSnapshotReader reader(options.env == nullptr ? PosixEnv() : *options.env, options);
  HOTROW_RETURN_IF_ERROR(reader.ReadManifest());
  return reader.info();
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSsdSnapshot(
    const SnapshotReaderOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Env& env = options.env == nullptr ? PosixEnv() : *options.env;
  auto reader = std::make_unique<SsdSnapshotReader>(env, options);
  HOTROW_RETURN_IF_ERROR(reader->Open());
  return std::unique_ptr<SnapshotReader>(std::move(reader));
}

absl::StatusOr<std::unique_ptr<SnapshotChanges>> OpenSsdChanges(
    const SnapshotReaderOptions& options, const ParentSnapshot& parent) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Env& env = options.env == nullptr ? PosixEnv() : *options.env;
  auto reader = std::make_unique<SsdSnapshotReader>(env, options);
  HOTROW_ASSIGN_OR_RETURN(const bool knows, reader->OpenChanges(parent));
  if (!knows) return std::unique_ptr<SnapshotChanges>();
  return std::unique_ptr<SnapshotChanges>(std::make_unique<SsdSnapshotChanges>(std::move(reader)));
}

}  // namespace hotrow
