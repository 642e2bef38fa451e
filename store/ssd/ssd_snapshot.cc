#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/io_queue.h"
#include "base/math.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "store/ssd/ssd_store.h"

// Reading a snapshot of an SsdStore that is not open: an index of its rows from the footers, as
// opening the store makes it, then the segments from end to end; what the index names is visited.
namespace hotrow {
namespace {

using internal::BudgetedBuffer;
using internal::MemoryBudget;
using internal::SsdGeometry;
using internal::SsdIndex;
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

class SsdSnapshotReader final : public SnapshotReader {
 public:
  SsdSnapshotReader(Env& env, const SnapshotReaderOptions& options)
      : env_(env),
        options_(options),
        budget_(options.memory_budget_bytes == 0 ? std::numeric_limits<int64_t>::max()
                                                 : options.memory_budget_bytes,
                kOwner) {}

  absl::Status Open();
  absl::Status ReadManifest(bool lock);  // alone, for who wants info() and tables() only

  std::span<const StoreTable> tables() const override { return manifest_.tables; }
  int64_t rows() const override { return index_->rows(); }
  const SnapshotInfo& info() const override { return info_; }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;

 private:
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
  absl::Status OpenSegments();
  absl::Status MakeIndex();
  absl::Status VisitChunk(
      const SsdSegmentRef& ref, int64_t offset, std::span<const std::byte> chunk,
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit);
  absl::Status CheckUnchanged() const;

  Env& env_;
  const SnapshotReaderOptions options_;
  MemoryBudget budget_;
  std::unique_ptr<FileLock> lock_;
  std::string manifest_text_;
  SsdManifest manifest_;
  SnapshotInfo info_;
  std::vector<SsdSegmentRef> segments_;  // of the snapshot
  std::vector<int64_t> row_bytes_;       // by table index
  std::map<uint32_t, std::unique_ptr<File>> files_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<SsdIndex> index_;
  // Of Iterate.
  std::vector<SsdScanned> records_;
  std::vector<RowKey> keys_;
  std::vector<SsdLocation> locations_;
  int64_t visited_ = 0;
};

absl::Status SsdSnapshotReader::Open() {
  HOTROW_RETURN_IF_ERROR(ReadManifest(/*lock=*/true));
  HOTROW_RETURN_IF_ERROR(OpenSegments());
  HOTROW_ASSIGN_OR_RETURN(queue_, env_.NewIoQueue({}));
  return MakeIndex();
}

absl::Status SsdSnapshotReader::ReadManifest(bool lock) {
  const std::string path = PathOf(internal::kSsdManifestName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(path));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(options_.path, ": there is no SSD store, the file ",
                                            std::string(internal::kSsdManifestName),
                                            " is missing"));
  }
  // A store that was copied without it is not open, and nothing is to be made here. Others may read
  // it, too: the ranks of a job that starts from a snapshot of another number of ranks.
  const std::string lock_path = PathOf(internal::kSsdLockName);
  HOTROW_ASSIGN_OR_RETURN(const bool has_lock, env_.Exists(lock_path));
  if (lock && has_lock) {
    absl::StatusOr<std::unique_ptr<FileLock>> taken = env_.LockFile(lock_path, LockMode::kShared);
    if (absl::IsFailedPrecondition(taken.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "SSD store ", options_.path, ": is open, here or in another process; close it first"));
    }
    HOTROW_RETURN_IF_ERROR(taken.status());
    lock_ = *std::move(taken);
  }
  HOTROW_ASSIGN_OR_RETURN(manifest_text_,
                          ReadWholeFile(env_, path, internal::kSsdManifestBytesMax));
  absl::StatusOr<internal::DecodedSsdManifest> decoded =
      internal::DecodeSsdManifest(manifest_text_);
  if (!decoded.ok()) {
    return absl::Status(decoded.status().code(),
                        absl::StrCat(path, ": ", std::string(decoded.status().message())));
  }
  manifest_ = std::move(decoded->manifest);
  for (const StoreTable& t : manifest_.tables) row_bytes_.push_back(t.row_bytes);
  if (options_.snapshot == 0) {
    segments_ = manifest_.segments;
    info_.table_rows = manifest_.table_rows;
    return absl::OkStatus();
  }
  for (const internal::SsdSnapshot& s : manifest_.snapshots) {
    if (s.id != options_.snapshot) continue;
    segments_ = s.segments;
    info_ = {
        .id = s.id, .committed = s.committed, .identity = s.identity, .table_rows = s.table_rows};
    return CheckSnapshotIdentity(absl::StrCat("SSD store ", options_.path), info_,
                                 options_.identity);
  }
  return absl::FailedPreconditionError(
      absl::StrCat(options_.path, ": there is no snapshot ", options_.snapshot));
}

absl::Status SsdSnapshotReader::OpenSegments() {
  for (const SsdSegmentRef& ref : segments_) {
    const std::string path = PathOf(internal::SsdSegmentName(ref.slot));
    absl::StatusOr<std::unique_ptr<File>> file = env_.OpenDirect(path, OpenMode::kRead);
    if (absl::IsNotFound(file.status())) {
      return absl::DataLossError(absl::StrCat(path, ": the file is missing"));
    }
    HOTROW_RETURN_IF_ERROR(file.status());
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
  return absl::FailedPreconditionError(
      absl::StrCat(options_.path, ": the store was changed while it was read; close it first"));
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
    const RowKey key = {record.key, manifest_.tables[record.table_index()].table};
    const std::optional<SsdRecord> row =
        internal::DecodeSsdRecord(chunk.subspan(static_cast<size_t>(record.offset - offset)),
                                  {ref.epoch, record.offset}, row_bytes_);
    if (!row.has_value() || row->kind != SsdRecordKind::kRow || row->key != record.key ||
        row->table_index != record.table_index()) {
      return absl::DataLossError(absl::StrCat(
          path, ": offset ", record.offset, ": the row of key ", key.key, " of table ", key.table,
          " is damaged, its checksum does not match; `hotrow verify` lists all damage"));
    }
    ++visited_;
    HOTROW_RETURN_IF_ERROR(visit(key, row->row));
  }
  return absl::OkStatus();
}

absl::Status SsdSnapshotReader::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  const int64_t chunk_bytes = manifest_.chunk_bytes;
  struct Chunk {
    const SsdSegmentRef* ref;
    int64_t offset;
  };
  std::vector<Chunk> chunks;
  for (const SsdSegmentRef& ref : segments_) {
    for (int64_t at = 0; at < ref.end_offset; at += chunk_bytes) {
      if (internal::SsdFirstRecord(at) < ref.end_offset) chunks.push_back({&ref, at});
    }
  }
  const int64_t free_bytes = budget_.budget() - budget_.used();
  const int64_t at_once =
      std::clamp<int64_t>(std::min(kReadBytes, free_bytes / 2) / chunk_bytes, 1,
                          std::max<int64_t>(static_cast<int64_t>(chunks.size()), 1));
  HOTROW_ASSIGN_OR_RETURN(
      BudgetedBuffer<std::byte> memory,
      BudgetedBuffer<std::byte>::Create(at_once * chunk_bytes + kBlockBytesMax, budget_));
  auto* const buffer = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(memory.data()), kBlockBytesMax));
  visited_ = 0;
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
    }
    queue_->Run(requests, [&](IoRequest& request) {
      if (!status.ok()) return;
      if (!request.status.ok()) {
        status = request.status;
        return;
      }
      const Chunk& chunk = chunks[request.user_data];
      status = VisitChunk(*chunk.ref, chunk.offset,
                          {request.data, static_cast<size_t>(chunk_bytes)}, visit);
    });
  }
  HOTROW_RETURN_IF_ERROR(status);
  HOTROW_RETURN_IF_ERROR(CheckUnchanged());
  if (visited_ == rows()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(options_.path, ": the footers tell of ", rows(),
                                          " rows, the segments hold ", visited_,
                                          "; `hotrow verify` lists all damage"));
}

}  // namespace

absl::StatusOr<SnapshotInfo> DescribeSsdSnapshot(const SnapshotReaderOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  SsdSnapshotReader reader(options.env == nullptr ? PosixEnv() : *options.env, options);
  HOTROW_RETURN_IF_ERROR(reader.ReadManifest(/*lock=*/false));
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

}  // namespace hotrow
