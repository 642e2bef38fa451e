#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/env.h"
#include "base/file_hold.h"
#include "base/io_queue.h"
#include "base/math.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_dirs_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_image_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "store/ssd/ssd_store.h"
#include "store/ssd/ssd_verify_impl.h"

namespace hotrow {
namespace {

using internal::BudgetedBuffer;
using internal::MemoryBudget;
using internal::SsdDirs;
using internal::SsdFooter;
using internal::SsdFooterEntry;
using internal::SsdGeometry;
using internal::SsdManifest;
using internal::SsdNewest;
using internal::SsdRecord;
using internal::SsdRecordKind;
using internal::SsdSegmentRef;
using internal::SsdSnapshot;

constexpr int64_t kBudgetBytes = int64_t{256} << 20;  // of buffers
constexpr int64_t kNewestBytes = int64_t{64} << 20;   // of records, to tell the newest
constexpr int64_t kReadBytes = int64_t{8} << 20;      // chunks read at once
constexpr int64_t kBlockBytesMax = 4096;              // alignment of direct transfers
constexpr int64_t kAlignment = internal::kSsdRecordAlignment;

// --- What is wrong -------------------------------------------------------------------------------

void AddDamage(SsdStoreReport* report, std::string file, int64_t offset, std::string what) {
  if (static_cast<int64_t>(report->damage.size()) >= SsdStoreReport::kDamageMax) {
    ++report->damage_left_out;
    return;
  }
  report->damage.push_back({std::move(file), offset, std::move(what)});
}

// The readers' messages begin with "offset N: ".
void AddMessage(SsdStoreReport* report, const std::string& file, std::string_view message) {
  absl::string_view rest(message.data(), message.size());
  int64_t offset = 0;
  if (absl::ConsumePrefix(&rest, "offset ")) {
    const size_t colon = rest.find(": ");
    if (colon != absl::string_view::npos && absl::SimpleAtoi(rest.substr(0, colon), &offset)) {
      AddDamage(report, file, offset, std::string(rest.substr(colon + 2)));
      return;
    }
  }
  AddDamage(report, file, 0, std::string(message));
}

// --- The store as its manifest tells it ----------------------------------------------------------

struct ClosedStore {
  ClosedStore(Env& env, std::string path) : env(env), path(std::move(path)) {}

  // Manifest alone; Describe tells of it, and of the directory.
  absl::Status Read();
  // FailedPrecondition when the manifest is no longer the one that was read.
  absl::Status CheckUnchanged() const;
  absl::Status Describe();
  absl::Status CountRows(bool tell_damage);

  SsdGeometry geometry() const { return {manifest.segment_bytes, manifest.chunk_bytes, row_bytes}; }
  std::string FilePath(std::string_view name) const {
    return absl::StrCat(path, "/", std::string(name));
  }
  std::string SegmentPath(const SsdSegmentRef& ref) const {
    return dirs.SegmentPath(ref.directory, ref.slot);
  }
  std::string ManifestPath() const { return FilePath(internal::kSsdManifestName); }
  // "key 7 of table 3"
  std::string KeyText(uint64_t key, uint32_t table_index) const {
    return absl::StrCat("key ", key, " of table ", manifest.tables[table_index].table);
  }

  Env& env;
  const std::string path;
  std::string manifest_text;
  SsdManifest manifest;
  SsdDirs dirs{std::vector<std::string>()};
  std::vector<int64_t> row_bytes;  // by table index
  SsdStoreReport report;
};

absl::Status ClosedStore::Read() {
  HOTROW_RETURN_IF_ERROR(internal::CheckSsdHome(env, path));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(ManifestPath()));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(path, ": there is no SSD store, the file ",
                                            std::string(internal::kSsdManifestName),
                                            " is missing"));
  }
  HOTROW_ASSIGN_OR_RETURN(manifest_text,
                          ReadWholeFile(env, ManifestPath(), internal::kSsdManifestBytesMax));
  absl::StatusOr<internal::DecodedSsdManifest> decoded = internal::DecodeSsdManifest(manifest_text);
  if (!decoded.ok()) {
    return absl::Status(
        decoded.status().code(),
        absl::StrCat(ManifestPath(), ": ", std::string(decoded.status().message())));
  }
  manifest = std::move(decoded->manifest);
  report.format_version = decoded->version;
  if (!decoded->damage.empty()) AddMessage(&report, ManifestPath(), decoded->damage);
  HOTROW_ASSIGN_OR_RETURN(dirs, internal::FindSsdDirs(env, path, manifest));
  for (const StoreTable& t : manifest.tables) row_bytes.push_back(t.row_bytes);
  return absl::OkStatus();
}

absl::Status ClosedStore::CheckUnchanged() const {
  HOTROW_ASSIGN_OR_RETURN(const std::string now,
                          ReadWholeFile(env, ManifestPath(), internal::kSsdManifestBytesMax));
  if (now == manifest_text) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": the store was changed while it was read; close it first"));
}

bool IsOurs(std::string_view name) {
  return name == internal::kSsdManifestName || name == internal::kSsdLockName ||
         name == internal::kSsdDirName || name == internal::kSsdDirsName ||
         internal::ParseSsdSegmentName(name).has_value() ||
         internal::ParseSsdIndexName(name).has_value();
}

// What manifest and directory say.
absl::Status ClosedStore::Describe() {
  report.generation = manifest.generation;
  report.segment_bytes = manifest.segment_bytes;
  report.chunk_bytes = manifest.chunk_bytes;
  report.has_index_image = manifest.index_image != 0;
  report.payload_bytes_written = static_cast<int64_t>(manifest.payload_bytes_written);
  report.device_bytes_written = static_cast<int64_t>(manifest.device_bytes_written);
  for (const StoreTable& t : manifest.tables) report.tables.push_back({t.table, t.row_bytes, 0});
  std::set<uint32_t> present;
  for (const SsdSegmentRef& ref : manifest.segments) {
    present.insert(ref.slot);
    report.used_bytes += ref.end_offset;
  }
  report.segments = static_cast<int64_t>(manifest.segments.size());
  std::set<uint32_t> held;
  for (const SsdSnapshot& s : manifest.snapshots) {
    SsdStoreReport::Snapshot& out = report.snapshots.emplace_back();
    out.id = s.id;
    out.committed = s.committed;
    out.segments = static_cast<int64_t>(s.segments.size());
    out.identity = s.identity;
    out.table_rows = s.table_rows;
    for (const SsdSegmentRef& ref : s.segments) {
      out.bytes += ref.end_offset;
      if (!present.contains(ref.slot)) held.insert(ref.slot);
    }
  }
  std::sort(report.snapshots.begin(), report.snapshots.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  report.snapshot_bytes = static_cast<int64_t>(held.size()) * manifest.segment_bytes;

  for (uint32_t directory = 0; directory < dirs.count(); ++directory) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            env.ListDir(dirs.path(directory)));
    for (const std::string& name : names) {
      const std::string file_path = absl::StrCat(dirs.path(directory), "/", name);
      if (env.ListDir(file_path).ok()) {
        if (IsOurs(name)) AddDamage(&report, file_path, 0, "is a directory, must be a file");
        continue;
      }
      HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                              env.Open(file_path, OpenMode::kRead));
      HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
      report.disk_bytes += size;
      if (internal::ParseSsdSegmentName(name).has_value()) ++report.segment_files;
    }
    report.directories.push_back(dirs.path(directory));
  }
  return absl::OkStatus();
}

// Counts records and live rows of the present state by the footers.
absl::Status ClosedStore::CountRows(bool tell_damage) {
  const auto unknown = [&] {
    report.records = -1;
    report.live_bytes = -1;
    for (SsdStoreReport::Table& t : report.tables) t.rows = -1;
    return absl::OkStatus();
  };
  std::map<uint32_t, std::unique_ptr<File>> files;
  bool missing = false;
  for (const SsdSegmentRef& ref : manifest.segments) {
    absl::StatusOr<std::unique_ptr<File>> file = env.OpenDirect(SegmentPath(ref), OpenMode::kRead);
    if (absl::IsNotFound(file.status())) {
      missing = true;
      if (tell_damage) AddDamage(&report, SegmentPath(ref), 0, "the file is missing");
      continue;
    }
    HOTROW_RETURN_IF_ERROR(file.status());
    files.insert_or_assign(ref.slot, *std::move(file));
  }
  if (missing) return unknown();
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, env.NewIoQueue({}));
  MemoryBudget budget(kBudgetBytes, "looking at an SSD store");
  internal::SsdBadFooter bad_footer;
  if (tell_damage) {
    bad_footer = [&](const SsdSegmentRef& ref, const absl::Status& status) {
      AddMessage(&report, SegmentPath(ref), std::string(status.message()));
    };
  }
  const absl::StatusOr<int64_t> records = internal::ScanNewestSsdRows(
      geometry(), manifest.segments, [&](uint32_t slot) { return files.at(slot).get(); }, *queue,
      budget, kNewestBytes, /*hash_seed=*/0,
      [&](std::span<const SsdNewest> rows) {
        for (const SsdNewest& row : rows) {
          SsdStoreReport::Table& table = report.tables[row.table_index()];
          ++table.rows;
          report.live_bytes += table.row_bytes;
        }
        return absl::OkStatus();
      },
      bad_footer);
  // Records that no footer lists and that cannot be read, or a file that ends early.
  if (absl::IsDataLoss(records.status()) || absl::IsOutOfRange(records.status())) {
    if (tell_damage) {
      const std::string message(records.status().message());
      const size_t colon = message.find(": offset ");
      if (colon != std::string::npos) {
        AddMessage(&report, message.substr(0, colon), std::string_view(message).substr(colon + 2));
      } else {
        AddDamage(&report, path, 0, message);
      }
    }
    return unknown();
  }
  HOTROW_RETURN_IF_ERROR(records.status());
  report.records = *records;
  for (size_t t = 0; tell_damage && t < manifest.table_rows.size(); ++t) {
    if (report.tables[t].rows == manifest.table_rows[t]) continue;
    AddDamage(&report, ManifestPath(), 0,
              absl::StrCat("table ", report.tables[t].table, " has ", manifest.table_rows[t],
                           " rows, its segments hold ", report.tables[t].rows));
  }
  return absl::OkStatus();
}

// --- Segments ------------------------------------------------------------------------------------

// One life of a segment, as far as any state holds records of it.
struct Life {
  SsdSegmentRef ref;       // with the furthest end
  std::set<int64_t> ends;  // of all states
};

class SegmentChecker {
 public:
  SegmentChecker(ClosedStore& store, const Life& life)
      : store_(store),
        life_(life),
        ref_(life.ref),
        chunk_bytes_(store.manifest.chunk_bytes),
        file_(store.SegmentPath(life.ref)) {}

  // `bytes` is what there is of the chunk at this offset.
  void Check(int64_t chunk_offset, std::span<const std::byte> bytes);
  void Unreadable(int64_t offset, std::string_view why) {
    Damaged(offset, absl::StrCat("cannot be read: ", std::string(why)));
  }

 private:
  void CheckByFooter(const SsdFooter& footer);
  void CheckByWalk();
  void CheckRecord(const SsdRecord& record, int64_t offset);
  void CheckEnds();
  std::optional<SsdRecord> Decode(int64_t offset, int64_t bytes_max) const;
  // A good record behind `offset`, or limit_.
  int64_t NextRecord(int64_t offset) const;
  std::string Guess(int64_t begin, int64_t end) const;
  void Damaged(int64_t offset, std::string what) {
    chunk_damaged_ = true;
    AddDamage(&store_.report, file_, offset, std::move(what));
  }

  ClosedStore& store_;
  const Life& life_;
  const SsdSegmentRef& ref_;
  const int64_t chunk_bytes_;
  const std::string file_;

  // The chunk at hand.
  std::span<const std::byte> bytes_;
  int64_t chunk_offset_ = 0;
  int64_t chunk_end_ = 0;
  int64_t limit_ = 0;    // records of a state begin below, as far as there are bytes
  bool closed_ = false;  // more of the segment follows, so it has a footer
  bool chunk_damaged_ = false;
  std::vector<int64_t> boundaries_;                       // where records begin or end
  std::vector<std::pair<uint32_t, uint64_t>> unit_rows_;  // that begin in unit_
  int64_t unit_ = -1;
};

std::optional<SsdRecord> SegmentChecker::Decode(int64_t offset, int64_t bytes_max) const {
  auto bytes = bytes_.subspan(static_cast<size_t>(offset - chunk_offset_));
  if (bytes_max < static_cast<int64_t>(bytes.size())) {
    bytes = bytes.first(static_cast<size_t>(bytes_max));
  }
  return internal::DecodeSsdRecord(bytes, {ref_.epoch, offset}, store_.row_bytes);
}

int64_t SegmentChecker::NextRecord(int64_t offset) const {
  for (offset += kAlignment; offset < limit_; offset += kAlignment) {
    if (Decode(offset, chunk_end_ - offset).has_value()) return offset;
  }
  return limit_;
}

// What a damaged record was, when its header looks right.
std::string SegmentChecker::Guess(int64_t begin, int64_t end) const {
  SsdFooterEntry entry = {};
  internal::SsdRecordHeader header;
  const auto at = static_cast<size_t>(begin - chunk_offset_);
  if (bytes_.size() - at < sizeof(header)) return "";
  std::memcpy(&header, bytes_.data() + at, sizeof(header));
  entry.kind_table = header.kind_table;
  if (internal::SsdEntryRecordBytes(entry, store_.row_bytes) != end - begin) return "";
  const char* what = "";
  switch (static_cast<SsdRecordKind>(internal::SsdKindOf(header.kind_table))) {
    case SsdRecordKind::kPad:
      return "; it looks like a pad";
    case SsdRecordKind::kRow:
      what = "; it looks like the row of ";
      break;
    case SsdRecordKind::kTombstone:
      what = "; it looks like the tombstone of ";
      break;
  }
  return absl::StrCat(what, store_.KeyText(header.key, internal::SsdTableOf(header.kind_table)));
}

void SegmentChecker::Check(int64_t chunk_offset, std::span<const std::byte> bytes) {
  bytes_ = bytes;
  chunk_offset_ = chunk_offset;
  chunk_end_ = chunk_offset + chunk_bytes_;
  closed_ = ref_.end_offset > chunk_end_;
  chunk_damaged_ = false;
  boundaries_.clear();
  unit_rows_.clear();
  const int64_t bytes_end = chunk_offset + static_cast<int64_t>(bytes.size());
  const int64_t end = std::min(ref_.end_offset, chunk_end_);
  limit_ = std::min(end, bytes_end);

  if (bytes_end < end) {
    Damaged(bytes_end,
            absl::StrCat("the file ends here, its records go on to offset ", ref_.end_offset));
  }
  const int64_t first = internal::SsdFirstRecord(chunk_offset);
  if (chunk_offset == 0 && bytes_end >= first) {
    const absl::Status header =
        internal::CheckSsdSegmentHeader(bytes.first(static_cast<size_t>(first)), ref_.epoch,
                                        store_.manifest.segment_bytes, chunk_bytes_);
    if (!header.ok()) {
      AddMessage(&store_.report, file_, std::string(header.message()));
    }
  }
  if (limit_ <= first) return;
  if (static_cast<int64_t>(bytes.size()) == chunk_bytes_) {
    const absl::StatusOr<SsdFooter> footer =
        internal::DecodeSsdFooter(bytes, ref_.epoch, chunk_offset, chunk_bytes_, store_.row_bytes);
    if (footer.ok()) {
      CheckByFooter(*footer);
      CheckEnds();
      return;
    }
    // The last chunk needs none: opening reads its records.
    if (closed_) {
      AddMessage(&store_.report, file_, std::string(footer.status().message()));
    }
  }
  CheckByWalk();
  CheckEnds();
}

// The footer says what must be where.
void SegmentChecker::CheckByFooter(const SsdFooter& footer) {
  int64_t offset = internal::SsdFirstRecord(chunk_offset_);
  boundaries_.push_back(offset);
  for (const SsdFooterEntry& entry : footer.entries) {
    if (offset >= limit_) break;
    const int64_t bytes = internal::SsdEntryRecordBytes(entry, store_.row_bytes);
    const auto kind = static_cast<SsdRecordKind>(internal::SsdKindOf(entry.kind_table));
    const uint32_t table = internal::SsdTableOf(entry.kind_table);
    const std::string what =
        kind == SsdRecordKind::kPad
            ? absl::StrCat("a pad of ", bytes, " bytes")
            : absl::StrCat(kind == SsdRecordKind::kRow ? "the row of " : "the tombstone of ",
                           store_.KeyText(entry.key, table));
    const std::optional<SsdRecord> record = Decode(offset, bytes);
    if (!record.has_value() || record->bytes != bytes) {
      Damaged(offset, absl::StrCat(what, " is damaged: its checksum does not match"));
    } else if (record->kind != kind ||
               record->table_index != (kind == SsdRecordKind::kPad ? 0 : table) ||
               record->key != entry.key ||
               (kind != SsdRecordKind::kPad &&
                record->sequence != footer.trailer.base_sequence + entry.sequence_delta)) {
      Damaged(offset, absl::StrCat("the footer lists ", what, " here, the record is another"));
    } else {
      CheckRecord(*record, offset);
    }
    offset += bytes;
    boundaries_.push_back(offset);
  }
  if (!closed_) return;
  const int64_t footer_at =
      chunk_end_ - internal::SsdFooterBytes(static_cast<int64_t>(footer.entries.size()));
  if (offset == footer_at) return;
  const std::optional<SsdRecord> pad = Decode(offset, footer_at - offset);
  if (!pad.has_value() || pad->kind != SsdRecordKind::kPad || pad->bytes != footer_at - offset) {
    Damaged(offset, "the pad before the footer is damaged: its checksum does not match");
  }
}

// Record by record; behind a damaged one, from the next that is good.
void SegmentChecker::CheckByWalk() {
  int64_t offset = internal::SsdFirstRecord(chunk_offset_);
  boundaries_.push_back(offset);
  int64_t entries = 0;
  bool counted = true;     // entries is right
  bool after_pad = false;  // so the footer may begin here
  while (offset < limit_) {
    const int64_t footer_at = chunk_end_ - internal::SsdFooterBytes(entries);
    if (closed_ && counted && offset == footer_at) return;
    const std::optional<SsdRecord> record = Decode(offset, chunk_end_ - offset);
    if (!record.has_value()) {
      const int64_t next = NextRecord(offset);
      // The footer, of which it was told already.
      if (next == limit_ && closed_ && !counted && after_pad) return;
      Damaged(offset,
              absl::StrCat("no valid record from here to offset ", next, Guess(offset, next)));
      offset = next;
      counted = false;
      after_pad = false;
      continue;
    }
    if (closed_ && counted && record->kind == SsdRecordKind::kPad &&
        offset + record->bytes == footer_at) {
      return;
    }
    ++entries;
    after_pad = record->kind == SsdRecordKind::kPad;
    CheckRecord(*record, offset);
    offset += record->bytes;
    boundaries_.push_back(offset);
  }
}

// What a record says that has its checksum and its place.
void SegmentChecker::CheckRecord(const SsdRecord& record, int64_t offset) {
  if (record.kind == SsdRecordKind::kPad) return;
  const auto named = [&] { return store_.KeyText(record.key, record.table_index); };
  if (record.sequence < ref_.base_sequence || record.sequence >= store_.manifest.sequence_limit) {
    Damaged(offset, absl::StrCat("the record of ", named(), " has the number ", record.sequence,
                                 ", those of this segment lie in [", ref_.base_sequence, ", ",
                                 store_.manifest.sequence_limit, ")"));
  }
  if (record.kind != SsdRecordKind::kRow) return;
  // The index names a unit, so a key has at most one row in it.
  const int64_t unit = offset / internal::kSsdUnitBytes;
  if (unit != unit_) unit_rows_.clear();
  unit_ = unit;
  const std::pair<uint32_t, uint64_t> row = {record.table_index, record.key};
  if (std::find(unit_rows_.begin(), unit_rows_.end(), row) != unit_rows_.end()) {
    Damaged(offset, absl::StrCat("a second row of ", named(), " begins within the same ",
                                 internal::kSsdUnitBytes, " bytes"));
  }
  unit_rows_.push_back(row);
}

// Where a state ends, a record ends.
void SegmentChecker::CheckEnds() {
  if (chunk_damaged_) return;
  const int64_t first = internal::SsdFirstRecord(chunk_offset_);
  for (auto end = life_.ends.upper_bound(first); end != life_.ends.end() && *end <= chunk_end_;
       ++end) {
    if (!std::binary_search(boundaries_.begin(), boundaries_.end(), *end)) {
      Damaged(*end, "the manifest says that records end here, none does");
    }
  }
}

absl::Status VerifySegment(ClosedStore& store, const Life& life, IoQueue& queue,
                           std::span<std::byte> buffer) {
  const SsdSegmentRef& ref = life.ref;
  // Opened and not written to yet; even its header may be missing.
  if (ref.end_offset <= internal::kSsdSegmentHeaderBytes) return absl::OkStatus();
  SegmentChecker checker(store, life);
  absl::StatusOr<std::unique_ptr<File>> file =
      store.env.OpenDirect(store.SegmentPath(ref), OpenMode::kRead);
  if (absl::IsNotFound(file.status())) {
    AddDamage(&store.report, store.SegmentPath(ref), 0, "the file is missing");
    return absl::OkStatus();
  }
  HOTROW_RETURN_IF_ERROR(file.status());
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  const int64_t chunk_bytes = store.manifest.chunk_bytes;
  const int64_t at_once = static_cast<int64_t>(buffer.size()) / chunk_bytes;
  std::vector<IoRequest> requests;
  for (int64_t begin = 0; begin < ref.end_offset; begin += at_once * chunk_bytes) {
    requests.clear();
    for (int64_t i = 0; i < at_once; ++i) {
      IoRequest request;
      request.file = file->get();
      request.offset = begin + i * chunk_bytes;
      request.data = buffer.data() + i * chunk_bytes;
      request.bytes = chunk_bytes;
      // The chunk in which the file ends, or that begins there, tells of it.
      if (request.offset < ref.end_offset && request.offset <= size) {
        requests.push_back(std::move(request));
      }
    }
    queue.Run(requests, [&](IoRequest& request) {
      if (!request.status.ok() && !absl::IsOutOfRange(request.status)) {
        checker.Unreadable(request.offset, std::string(request.status.message()));
        return;
      }
      checker.Check(request.offset, {request.data, static_cast<size_t>(request.done)});
    });
  }
  return absl::OkStatus();
}

absl::Status VerifySegments(ClosedStore& store) {
  // A slot may appear with two epochs in a manifest that is wrong; both are looked at.
  std::map<std::pair<uint32_t, uint64_t>, Life> lives;
  const auto add = [&](const SsdSegmentRef& ref) {
    Life& life = lives[{ref.slot, ref.epoch}];
    if (ref.end_offset >= life.ref.end_offset) life.ref = ref;
    life.ends.insert(ref.end_offset);
  };
  for (const SsdSegmentRef& ref : store.manifest.segments) add(ref);
  for (const SsdSnapshot& snapshot : store.manifest.snapshots) {
    for (const SsdSegmentRef& ref : snapshot.segments) add(ref);
  }
  const int64_t chunk_bytes = store.manifest.chunk_bytes;
  const int64_t at_once = std::max<int64_t>(kReadBytes / chunk_bytes, 1);
  MemoryBudget budget(kBudgetBytes, "verifying an SSD store");
  HOTROW_ASSIGN_OR_RETURN(
      BudgetedBuffer<std::byte> memory,
      BudgetedBuffer<std::byte>::Create(at_once * chunk_bytes + kBlockBytesMax, budget));
  auto* const data = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(memory.data()), kBlockBytesMax));
  const std::span<std::byte> buffer(data, static_cast<size_t>(at_once * chunk_bytes));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, store.env.NewIoQueue({}));
  for (const auto& [slot_epoch, life] : lives) {
    HOTROW_RETURN_IF_ERROR(VerifySegment(store, life, *queue, buffer));
  }
  return absl::OkStatus();
}

absl::Status VerifyImage(ClosedStore& store) {
  if (store.manifest.index_image == 0) return absl::OkStatus();
  const std::string file = store.FilePath(internal::SsdIndexName(store.manifest.index_image));
  const absl::StatusOr<int64_t> rows =
      internal::CheckSsdIndexImage(store.env, file, store.manifest.index_image_id);
  if (absl::IsNotFound(rows.status())) {
    AddDamage(&store.report, file, 0, "the file is missing");
  } else if (absl::IsDataLoss(rows.status()) || absl::IsFailedPrecondition(rows.status())) {
    AddMessage(&store.report, file, std::string(rows.status().message()));
  } else {
    HOTROW_RETURN_IF_ERROR(rows.status());
    if (*rows == internal::kSsdImageOld) return absl::OkStatus();  // no open looks at it
    int64_t counted = 0;
    for (const SsdStoreReport::Table& t : store.report.tables) counted += t.rows;
    if (store.report.records >= 0 && counted != *rows) {
      AddDamage(&store.report, file, 0,
                absl::StrCat("the image holds ", *rows, " rows, the segments ", counted));
    }
  }
  return absl::OkStatus();
}

void SortDamage(SsdStoreReport* report) {
  std::sort(report->damage.begin(), report->damage.end(),
            [](const SsdDamage& a, const SsdDamage& b) {
              return std::tie(a.file, a.offset, a.what) < std::tie(b.file, b.offset, b.what);
            });
}

}  // namespace

absl::StatusOr<SsdStoreReport> InspectSsdStore(Env& env, const std::string& path) {
  ClosedStore store(env, path);
  HOTROW_RETURN_IF_ERROR(store.Read());
  HOTROW_RETURN_IF_ERROR(store.Describe());
  HOTROW_RETURN_IF_ERROR(store.CountRows(/*tell_damage=*/true));
  HOTROW_RETURN_IF_ERROR(store.CheckUnchanged());
  SortDamage(&store.report);
  return std::move(store.report);
}

absl::StatusOr<std::optional<SsdStoreReport>> internal::InspectLockedSsdStore(
    Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists,
                          env.Exists(absl::StrCat(path, "/", std::string(kSsdManifestName))));
  if (!exists) return std::nullopt;
  const absl::StatusOr<std::unique_ptr<FileLock>> lock =
      env.LockFile(absl::StrCat(path, "/", std::string(kSsdLockName)), LockMode::kShared);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "SSD store ", path, ": is open already, here or in another process; close that one first"));
  }
  HOTROW_RETURN_IF_ERROR(lock.status());
  return InspectSsdStore(env, path);
}

absl::StatusOr<bool> internal::IsSsdStoreOpen(Env& env, const std::string& path) {
  const std::string lock = absl::StrCat(path, "/", std::string(kSsdLockName));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(lock));
  if (!exists) return false;
  const absl::Status taken = env.LockFile(lock, LockMode::kShared).status();
  if (absl::IsFailedPrecondition(taken)) return true;
  HOTROW_RETURN_IF_ERROR(taken);
  return false;
}

absl::StatusOr<SsdStoreReport> internal::VerifySsdSnapshot(Env& env, const std::string& path,
                                                           SnapshotId snapshot,
                                                           const UniqueId& identity) {
  const auto describe = [&] {
    return DescribeSsdSnapshot(
               {.path = path, .snapshot = snapshot, .identity = identity, .env = &env})
        .status();
  };
  HOTROW_RETURN_IF_ERROR(describe());
  ClosedStore store(env, path);
  HOTROW_RETURN_IF_ERROR(store.Read());
  store.manifest.segments.clear();
  std::erase_if(store.manifest.snapshots, [&](const SsdSnapshot& s) { return s.id != snapshot; });
  std::vector<std::unique_ptr<File>> held;
  for (const SsdSnapshot& s : store.manifest.snapshots) {
    for (const SsdSegmentRef& ref : s.segments) {
      absl::StatusOr<std::unique_ptr<File>> file =
          env.Open(store.SegmentPath(ref), OpenMode::kRead);
      if (absl::IsNotFound(file.status())) continue;  // VerifySegments says so
      HOTROW_RETURN_IF_ERROR(file.status());
      HoldFile(**file);
      held.push_back(*std::move(file));
    }
  }
  const absl::Status verified = VerifySegments(store);
  // What is wrong may be of a segment's next life.
  if (!verified.ok() || !store.report.damage.empty()) HOTROW_RETURN_IF_ERROR(describe());
  HOTROW_RETURN_IF_ERROR(verified);
  SortDamage(&store.report);
  return std::move(store.report);
}

absl::StatusOr<SsdStoreReport> VerifySsdStore(Env& env, const std::string& path) {
  ClosedStore store(env, path);
  HOTROW_RETURN_IF_ERROR(store.Read());
  HOTROW_RETURN_IF_ERROR(store.Describe());
  const size_t half = store.manifest_text.size() / 2;
  if (store.report.damage.empty() &&
      store.manifest_text.compare(0, half, store.manifest_text, half, std::string::npos) != 0) {
    AddDamage(&store.report, store.ManifestPath(), static_cast<int64_t>(half),
              "the two copies differ");
  }
  HOTROW_RETURN_IF_ERROR(VerifySegments(store));
  // What keeps rows from being counted was told already, if it was there a moment ago.
  HOTROW_RETURN_IF_ERROR(store.CountRows(/*tell_damage=*/store.report.damage.empty()));
  HOTROW_RETURN_IF_ERROR(VerifyImage(store));
  HOTROW_RETURN_IF_ERROR(store.CheckUnchanged());
  SortDamage(&store.report);
  return std::move(store.report);
}

}  // namespace hotrow
