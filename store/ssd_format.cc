#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/ssd_format_impl.h"

namespace hotrow::internal {
namespace {

template <typename Struct>
Struct Load(const std::byte* bytes) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  Struct out;
  std::memcpy(&out, bytes, sizeof(Struct));
  return out;
}

template <typename Struct>
void Store(const Struct& value, std::byte* out) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  std::memcpy(out, &value, sizeof(Struct));
}

// CRC of a struct whose last member is the CRC.
template <typename Struct>
uint32_t StructCrc(const Struct& value) {
  return Crc32c(std::as_bytes(std::span<const Struct>(&value, 1)).first(offsetof(Struct, crc)));
}

uint32_t RecordCrc(const SsdPlace& place, std::span<const std::byte> after_crc) {
  const std::array<uint64_t, 2> where = {place.epoch, static_cast<uint64_t>(place.offset)};
  return Crc32c(after_crc, Crc32c(std::as_bytes(std::span<const uint64_t>(where))));
}

std::span<const std::byte> AfterCrc(const std::byte* record, int64_t bytes) {
  return {record + sizeof(uint32_t), static_cast<size_t>(bytes) - sizeof(uint32_t)};
}

}  // namespace

int64_t EncodeSsdRow(const SsdPlace& place, uint32_t table_index, uint64_t key, uint64_t sequence,
                     std::span<const std::byte> row, std::byte* out) {
  const auto row_bytes = static_cast<int64_t>(row.size());
  const int64_t bytes = SsdRowRecordBytes(row_bytes);
  SsdRecordHeader header = {.crc = 0,
                            .kind_table = SsdKindTable(SsdRecordKind::kRow, table_index),
                            .key = key,
                            .sequence = sequence};
  Store(header, out);
  std::memcpy(out + sizeof(header), row.data(), row.size());
  std::memset(out + sizeof(header) + row.size(), 0,
              static_cast<size_t>(bytes) - sizeof(header) - row.size());
  header.crc = RecordCrc(place, AfterCrc(out, bytes));
  std::memcpy(out, &header.crc, sizeof(header.crc));
  return bytes;
}

int64_t EncodeSsdTombstone(const SsdPlace& place, uint32_t table_index, uint64_t key,
                           uint64_t sequence, std::byte* out) {
  SsdRecordHeader header = {.crc = 0,
                            .kind_table = SsdKindTable(SsdRecordKind::kTombstone, table_index),
                            .key = key,
                            .sequence = sequence};
  Store(header, out);
  header.crc = RecordCrc(place, AfterCrc(out, kSsdTombstoneBytes));
  std::memcpy(out, &header.crc, sizeof(header.crc));
  return kSsdTombstoneBytes;
}

void EncodeSsdPad(const SsdPlace& place, int64_t bytes, std::byte* out) {
  HOTROW_CHECK(bytes >= kSsdPadHeaderBytes && bytes % kSsdRecordAlignment == 0);
  std::memset(out, 0, static_cast<size_t>(bytes));
  const uint32_t kind_table = SsdKindTable(SsdRecordKind::kPad, static_cast<uint32_t>(bytes / 8));
  std::memcpy(out + sizeof(uint32_t), &kind_table, sizeof(kind_table));
  // Of the whole pad, so that every byte of a segment is covered.
  const uint32_t crc = RecordCrc(place, AfterCrc(out, bytes));
  std::memcpy(out, &crc, sizeof(crc));
}

std::optional<SsdRecord> DecodeSsdRecord(std::span<const std::byte> bytes, const SsdPlace& place,
                                         std::span<const int64_t> row_bytes) {
  if (bytes.size() < kSsdPadHeaderBytes) return std::nullopt;
  const auto crc = Load<uint32_t>(bytes.data());
  const auto kind_table = Load<uint32_t>(bytes.data() + sizeof(uint32_t));
  const uint32_t table = SsdTableOf(kind_table);
  SsdRecord out;
  out.kind = static_cast<SsdRecordKind>(SsdKindOf(kind_table));
  switch (out.kind) {
    case SsdRecordKind::kPad:
      out.bytes = int64_t{table} * 8;
      if (out.bytes < kSsdPadHeaderBytes) return std::nullopt;
      break;
    case SsdRecordKind::kTombstone:
    case SsdRecordKind::kRow:
      if (table >= row_bytes.size()) return std::nullopt;
      out.table_index = table;
      out.bytes = out.kind == SsdRecordKind::kRow ? SsdRowRecordBytes(row_bytes[table])
                                                  : kSsdTombstoneBytes;
      break;
    default:
      return std::nullopt;
  }
  if (out.bytes > static_cast<int64_t>(bytes.size())) return std::nullopt;
  if (RecordCrc(place, AfterCrc(bytes.data(), out.bytes)) != crc) return std::nullopt;
  if (out.kind != SsdRecordKind::kPad) {
    const auto header = Load<SsdRecordHeader>(bytes.data());
    out.key = header.key;
    out.sequence = header.sequence;
  }
  if (out.kind == SsdRecordKind::kRow) {
    out.row = bytes.subspan(sizeof(SsdRecordHeader), static_cast<size_t>(row_bytes[table]));
  }
  return out;
}

std::optional<SsdRecord> FindSsdRowInUnit(std::span<const std::byte> bytes, const SsdPlace& place,
                                          uint32_t table_index, uint64_t key, int64_t row_bytes) {
  const uint32_t kind_table = SsdKindTable(SsdRecordKind::kRow, table_index);
  const int64_t record_bytes = SsdRowRecordBytes(row_bytes);
  const int64_t last = std::min<int64_t>(kSsdUnitBytes - kSsdRecordAlignment,
                                         static_cast<int64_t>(bytes.size()) - record_bytes);
  for (int64_t at = 0; at <= last; at += kSsdRecordAlignment) {
    const std::byte* const record = bytes.data() + at;
    if (Load<uint32_t>(record + offsetof(SsdRecordHeader, kind_table)) != kind_table) continue;
    const auto header = Load<SsdRecordHeader>(record);
    if (header.key != key) continue;
    // A row may look like a header by chance or on purpose; the CRC tells.
    const SsdPlace here = {place.epoch, place.offset + at};
    if (RecordCrc(here, AfterCrc(record, record_bytes)) != header.crc) continue;
    return SsdRecord{.kind = SsdRecordKind::kRow,
                     .table_index = table_index,
                     .key = key,
                     .sequence = header.sequence,
                     .bytes = record_bytes,
                     .row = bytes.subspan(at + sizeof(header), row_bytes)};
  }
  return std::nullopt;
}

void EncodeSsdSegmentHeader(uint64_t epoch, int64_t segment_bytes, int64_t chunk_bytes,
                            std::span<std::byte> out) {
  HOTROW_CHECK(static_cast<int64_t>(out.size()) == kSsdSegmentHeaderBytes);
  std::memset(out.data(), 0, out.size());
  SsdSegmentHeader header = {};
  std::memcpy(header.magic, kSsdSegmentMagic, sizeof(header.magic));
  header.version = kSsdFormatVersion;
  header.epoch = epoch;
  header.segment_bytes = static_cast<uint64_t>(segment_bytes);
  header.chunk_bytes = static_cast<uint64_t>(chunk_bytes);
  header.crc = StructCrc(header);
  Store(header, out.data());
}

absl::Status CheckSsdSegmentHeader(std::span<const std::byte> bytes, uint64_t epoch,
                                   int64_t segment_bytes, int64_t chunk_bytes) {
  HOTROW_CHECK(static_cast<int64_t>(bytes.size()) == kSsdSegmentHeaderBytes);
  const auto header = Load<SsdSegmentHeader>(bytes.data());
  if (std::memcmp(header.magic, kSsdSegmentMagic, sizeof(header.magic)) != 0) {
    return absl::DataLossError("offset 0: not the header of a segment");
  }
  if (header.crc != StructCrc(header)) {
    return absl::DataLossError("offset 0: the checksum of the header does not match");
  }
  if (header.version != kSsdFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "offset 8: version ", header.version, ", this build reads version ", kSsdFormatVersion));
  }
  if (header.epoch != epoch || header.segment_bytes != static_cast<uint64_t>(segment_bytes) ||
      header.chunk_bytes != static_cast<uint64_t>(chunk_bytes)) {
    return absl::DataLossError(
        absl::StrCat("offset 16: epoch ", header.epoch, ", ", header.segment_bytes,
                     " bytes, chunks of ", header.chunk_bytes, "; the manifest says epoch ", epoch,
                     ", ", segment_bytes, " bytes, chunks of ", chunk_bytes));
  }
  const auto rest = bytes.subspan(sizeof(header));
  if (!std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; })) {
    return absl::DataLossError(
        absl::StrCat("offset ", sizeof(header), ": the zeros behind the header are not all zero"));
  }
  return absl::OkStatus();
}

SsdFooterTrailer MakeSsdFooterTrailer(uint64_t epoch, int64_t chunk_offset, uint64_t base_sequence,
                                      int64_t end_offset, std::span<const SsdFooterEntry> entries) {
  SsdFooterTrailer trailer = {};
  std::memcpy(trailer.magic, kSsdFooterMagic, sizeof(trailer.magic));
  trailer.version = kSsdFormatVersion;
  trailer.entries_crc = Crc32c(std::as_bytes(entries));
  trailer.epoch = epoch;
  trailer.chunk_offset = static_cast<uint64_t>(chunk_offset);
  trailer.base_sequence = base_sequence;
  trailer.num_entries = entries.size();
  trailer.end_offset = static_cast<uint64_t>(end_offset);
  trailer.crc = StructCrc(trailer);
  return trailer;
}

absl::StatusOr<SsdFooter> DecodeSsdFooter(std::span<const std::byte> tail, uint64_t epoch,
                                          int64_t chunk_offset, int64_t chunk_bytes,
                                          std::span<const int64_t> row_bytes) {
  HOTROW_CHECK(tail.size() >= sizeof(SsdFooterTrailer));
  SsdFooter out;
  SsdFooterTrailer& trailer = out.trailer;
  trailer = Load<SsdFooterTrailer>(tail.data() + tail.size() - sizeof(trailer));
  const std::string where = absl::StrCat(
      "offset ", chunk_offset + chunk_bytes - static_cast<int64_t>(sizeof(trailer)), ": ");
  if (std::memcmp(trailer.magic, kSsdFooterMagic, sizeof(trailer.magic)) != 0) {
    return absl::DataLossError(absl::StrCat(where, "no footer"));
  }
  if (trailer.crc != StructCrc(trailer)) {
    return absl::DataLossError(absl::StrCat(where, "the checksum of the footer does not match"));
  }
  if (trailer.version != kSsdFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        where, "version ", trailer.version, ", this build reads version ", kSsdFormatVersion));
  }
  if (trailer.epoch != epoch || trailer.chunk_offset != static_cast<uint64_t>(chunk_offset)) {
    return absl::DataLossError(absl::StrCat(where, "the footer is of epoch ", trailer.epoch,
                                            " and offset ", trailer.chunk_offset));
  }
  const auto room = (tail.size() - sizeof(trailer)) / sizeof(SsdFooterEntry);
  if (trailer.num_entries > room) {
    return absl::DataLossError(absl::StrCat(where, "the footer has ", trailer.num_entries,
                                            " entries, more than records fit"));
  }
  out.entries.resize(trailer.num_entries);
  const size_t bytes = trailer.num_entries * sizeof(SsdFooterEntry);
  if (bytes > 0) {
    std::memcpy(out.entries.data(), tail.data() + tail.size() - sizeof(trailer) - bytes, bytes);
  }
  if (Crc32c(std::as_bytes(std::span<const SsdFooterEntry>(out.entries))) != trailer.entries_crc) {
    return absl::DataLossError(
        absl::StrCat(where, "the checksum of the footer's entries does not match"));
  }
  auto offset = static_cast<uint64_t>(SsdFirstRecord(chunk_offset));
  for (const SsdFooterEntry& entry : out.entries) {
    const int64_t record_bytes = SsdEntryRecordBytes(entry, row_bytes);
    if (record_bytes == 0) {
      return absl::DataLossError(absl::StrCat(where, "an entry of kind ",
                                              SsdKindOf(entry.kind_table), ", table number ",
                                              SsdTableOf(entry.kind_table)));
    }
    offset += static_cast<uint64_t>(record_bytes);
  }
  if (offset != trailer.end_offset || offset > static_cast<uint64_t>(chunk_offset + chunk_bytes)) {
    return absl::DataLossError(absl::StrCat(where, "the footer's records end at offset ", offset,
                                            ", it says ", trailer.end_offset));
  }
  return out;
}

int64_t SsdEntryRecordBytes(const SsdFooterEntry& entry, std::span<const int64_t> row_bytes) {
  const uint32_t table = SsdTableOf(entry.kind_table);
  switch (static_cast<SsdRecordKind>(SsdKindOf(entry.kind_table))) {
    case SsdRecordKind::kPad:
      return int64_t{table} * 8;
    case SsdRecordKind::kTombstone:
      return table < row_bytes.size() ? kSsdTombstoneBytes : 0;
    case SsdRecordKind::kRow:
      return table < row_bytes.size() ? SsdRowRecordBytes(row_bytes[table]) : 0;
  }
  return 0;
}

// --- Manifest ------------------------------------------------------------------------------------

namespace {

constexpr char kManifestMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'S', 'M'};

// At the start of each of the two copies. The same in all versions up to `crc`.
struct ManifestPrefix {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // of the 12 bytes before
};
static_assert(sizeof(ManifestPrefix) == 16 && offsetof(ManifestPrefix, crc) == 12);

struct ManifestHeader {
  uint64_t generation;
  uint64_t segment_bytes;
  uint64_t chunk_bytes;
  uint64_t next_epoch;
  uint64_t sequence_limit;
  uint64_t index_image;
  uint32_t num_tables;
  uint32_t num_segments;
  uint32_t num_snapshots;
  uint32_t reserved;    // 0
  uint64_t body_bytes;  // after this header
  uint32_t body_crc;
  uint32_t crc;  // of the 76 bytes before
};
static_assert(sizeof(ManifestHeader) == 80 && offsetof(ManifestHeader, crc) == 76);

struct ManifestTable {
  uint32_t table;
  uint32_t reserved;  // 0
  uint64_t row_bytes;
};
static_assert(sizeof(ManifestTable) == 16);

struct ManifestSegment {
  uint32_t slot;
  uint32_t reserved;  // 0
  uint64_t epoch;
  uint64_t base_sequence;
  uint64_t end_offset;
  uint64_t live_bytes;
};
static_assert(sizeof(ManifestSegment) == 40);

struct ManifestSnapshot {
  uint64_t id;
  uint64_t sequence;
  uint32_t committed;  // 0 or 1
  uint32_t num_segments;
};
static_assert(sizeof(ManifestSnapshot) == 24);

template <typename Struct>
void AppendStruct(const Struct& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(Struct));
}

void AppendSegments(std::span<const SsdSegmentRef> segments, std::string* out) {
  for (const SsdSegmentRef& s : segments) {
    AppendStruct(ManifestSegment{.slot = s.slot,
                                 .reserved = 0,
                                 .epoch = s.epoch,
                                 .base_sequence = s.base_sequence,
                                 .end_offset = static_cast<uint64_t>(s.end_offset),
                                 .live_bytes = static_cast<uint64_t>(s.live_bytes)},
                 out);
  }
}

// Takes structs from the front of a text; remembers when it ran out.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : rest_(rest) {}
  template <typename Struct>
  Struct Take() {
    Struct out = {};
    if (rest_.size() < sizeof(Struct)) {
      ran_out_ = true;
      rest_ = {};
      return out;
    }
    std::memcpy(&out, rest_.data(), sizeof(Struct));
    rest_.remove_prefix(sizeof(Struct));
    return out;
  }
  bool ran_out() const { return ran_out_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool ran_out_ = false;
};

absl::Status Damaged(int64_t offset, std::string_view what) {
  return absl::DataLossError(absl::StrCat("offset ", offset, ": ", std::string(what)));
}

absl::Status TakeSegments(uint32_t count, int64_t segment_bytes, Cursor* body,
                          std::vector<SsdSegmentRef>* out) {
  for (uint32_t i = 0; i < count && !body->ran_out(); ++i) {
    const auto s = body->Take<ManifestSegment>();
    if (s.end_offset > static_cast<uint64_t>(segment_bytes) ||
        (!body->ran_out() && s.end_offset < kSsdSegmentHeaderBytes)) {
      return absl::DataLossError(absl::StrCat("segment ", s.slot, ": records end at ", s.end_offset,
                                              " of ", segment_bytes, " bytes"));
    }
    out->push_back({.slot = s.slot,
                    .epoch = s.epoch,
                    .base_sequence = s.base_sequence,
                    .end_offset = static_cast<int64_t>(s.end_offset),
                    .live_bytes = static_cast<int64_t>(s.live_bytes)});
  }
  return absl::OkStatus();
}

// Decodes the copy at the front; `at` is where it lies in the file. *copy_bytes is how long it is.
absl::StatusOr<SsdManifest> DecodeCopy(std::string_view bytes, int64_t at, int64_t* copy_bytes) {
  if (bytes.size() < sizeof(ManifestPrefix) + sizeof(ManifestHeader)) {
    return Damaged(at, "the manifest ends in its header");
  }
  const auto* const data = reinterpret_cast<const std::byte*>(bytes.data());
  const auto prefix = Load<ManifestPrefix>(data);
  if (std::memcmp(prefix.magic, kManifestMagic, sizeof(prefix.magic)) != 0) {
    return Damaged(at, "not the manifest of an SSD store");
  }
  if (prefix.crc != StructCrc(prefix)) return Damaged(at, "the checksum of the prefix is wrong");
  if (prefix.version != kSsdFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "offset ", at + 8, ": format version ", prefix.version, ", this build reads version ",
        kSsdFormatVersion, "; open the store with the hotrow that wrote it, or a newer one"));
  }
  const int64_t header_at = at + static_cast<int64_t>(sizeof(prefix));
  const auto header = Load<ManifestHeader>(data + sizeof(prefix));
  if (header.crc != StructCrc(header)) {
    return Damaged(header_at, "the checksum of the header is wrong");
  }
  const int64_t body_at = header_at + static_cast<int64_t>(sizeof(header));
  std::string_view text = bytes.substr(sizeof(prefix) + sizeof(header));
  if (header.body_bytes > text.size()) return Damaged(body_at, "the manifest ends early");
  text = text.substr(0, header.body_bytes);
  if (header.body_crc != Crc32c(std::as_bytes(std::span<const char>(text.data(), text.size())))) {
    return Damaged(body_at, "the checksum of the body is wrong");
  }
  *copy_bytes = static_cast<int64_t>(sizeof(prefix) + sizeof(header) + text.size());

  SsdManifest out;
  out.generation = header.generation;
  out.segment_bytes = static_cast<int64_t>(header.segment_bytes);
  out.chunk_bytes = static_cast<int64_t>(header.chunk_bytes);
  out.next_epoch = header.next_epoch;
  out.sequence_limit = header.sequence_limit;
  out.index_image = header.index_image;
  if (out.chunk_bytes < 2 * kSsdSegmentHeaderBytes || out.segment_bytes < out.chunk_bytes ||
      out.segment_bytes % out.chunk_bytes != 0) {
    return Damaged(header_at, absl::StrCat("segments of ", out.segment_bytes,
                                           " bytes in chunks of ", out.chunk_bytes));
  }
  Cursor body(text);
  for (uint32_t i = 0; i < header.num_tables && !body.ran_out(); ++i) {
    const auto t = body.Take<ManifestTable>();
    out.tables.push_back({t.table, static_cast<int64_t>(t.row_bytes)});
    if (!body.ran_out() && out.tables.back().row_bytes <= 0) {
      return Damaged(body_at,
                     absl::StrCat("table ", t.table, " has rows of ", t.row_bytes, " bytes"));
    }
  }
  HOTROW_RETURN_IF_ERROR(
      TakeSegments(header.num_segments, out.segment_bytes, &body, &out.segments));
  for (uint32_t i = 0; i < header.num_snapshots && !body.ran_out(); ++i) {
    const auto s = body.Take<ManifestSnapshot>();
    SsdSnapshot& snapshot = out.snapshots.emplace_back();
    snapshot = {.id = s.id, .committed = s.committed != 0, .sequence = s.sequence};
    HOTROW_RETURN_IF_ERROR(
        TakeSegments(s.num_segments, out.segment_bytes, &body, &snapshot.segments));
  }
  if (body.ran_out() || !body.empty()) {
    return Damaged(body_at, "the body does not hold what the header says");
  }
  return out;
}

template <typename Number>
std::optional<Number> ParseNumberedName(std::string_view name, std::string_view prefix) {
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  name.remove_prefix(prefix.size());
  Number number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

}  // namespace

bool operator==(const SsdManifest& a, const SsdManifest& b) {
  const auto same_table = [](const StoreTable& x, const StoreTable& y) {
    return x.table == y.table && x.row_bytes == y.row_bytes;
  };
  return a.generation == b.generation && a.segment_bytes == b.segment_bytes &&
         a.chunk_bytes == b.chunk_bytes && a.next_epoch == b.next_epoch &&
         a.sequence_limit == b.sequence_limit && a.index_image == b.index_image &&
         a.segments == b.segments && a.snapshots == b.snapshots &&
         std::equal(a.tables.begin(), a.tables.end(), b.tables.begin(), b.tables.end(), same_table);
}

std::string SsdSegmentName(uint32_t slot) { return absl::StrFormat("segment-%06d", slot); }
std::optional<uint32_t> ParseSsdSegmentName(std::string_view name) {
  return ParseNumberedName<uint32_t>(name, "segment-");
}
std::string SsdIndexName(uint64_t number) { return absl::StrFormat("index-%06d", number); }
std::optional<uint64_t> ParseSsdIndexName(std::string_view name) {
  return ParseNumberedName<uint64_t>(name, "index-");
}

std::string EncodeSsdManifest(const SsdManifest& manifest) {
  std::string body;
  for (const StoreTable& t : manifest.tables) {
    AppendStruct(
        ManifestTable{
            .table = t.table, .reserved = 0, .row_bytes = static_cast<uint64_t>(t.row_bytes)},
        &body);
  }
  AppendSegments(manifest.segments, &body);
  for (const SsdSnapshot& s : manifest.snapshots) {
    AppendStruct(ManifestSnapshot{.id = s.id,
                                  .sequence = s.sequence,
                                  .committed = s.committed ? 1u : 0u,
                                  .num_segments = static_cast<uint32_t>(s.segments.size())},
                 &body);
    AppendSegments(s.segments, &body);
  }
  ManifestPrefix prefix = {};
  std::memcpy(prefix.magic, kManifestMagic, sizeof(prefix.magic));
  prefix.version = kSsdFormatVersion;
  prefix.crc = StructCrc(prefix);
  ManifestHeader header = {};
  header.generation = manifest.generation;
  header.segment_bytes = static_cast<uint64_t>(manifest.segment_bytes);
  header.chunk_bytes = static_cast<uint64_t>(manifest.chunk_bytes);
  header.next_epoch = manifest.next_epoch;
  header.sequence_limit = manifest.sequence_limit;
  header.index_image = manifest.index_image;
  header.num_tables = static_cast<uint32_t>(manifest.tables.size());
  header.num_segments = static_cast<uint32_t>(manifest.segments.size());
  header.num_snapshots = static_cast<uint32_t>(manifest.snapshots.size());
  header.body_bytes = body.size();
  header.body_crc = Crc32c(std::as_bytes(std::span<const char>(body.data(), body.size())));
  header.crc = StructCrc(header);
  std::string copy;
  AppendStruct(prefix, &copy);
  AppendStruct(header, &copy);
  copy += body;
  return absl::StrCat(copy, copy);
}

absl::StatusOr<DecodedSsdManifest> DecodeSsdManifest(std::string_view bytes) {
  // Copies are equally long, so the second one can be found when the first is damaged.
  DecodedSsdManifest out;
  const auto half = static_cast<int64_t>(bytes.size() / 2);
  int64_t first_bytes = 0;
  int64_t second_bytes = 0;
  absl::StatusOr<SsdManifest> first =
      DecodeCopy(bytes.substr(0, static_cast<size_t>(half)), 0, &first_bytes);
  if (absl::IsFailedPrecondition(first.status())) return first.status();
  absl::StatusOr<SsdManifest> second =
      DecodeCopy(bytes.substr(static_cast<size_t>(half)), half, &second_bytes);
  if (!first.ok() && !second.ok()) return first.status();
  if (!first.ok()) {
    out.damage = std::string(first.status().message());
  } else if (!second.ok()) {
    out.damage = std::string(second.status().message());
  } else if (first_bytes != half || second_bytes != static_cast<int64_t>(bytes.size()) - half) {
    out.damage = absl::StrCat("offset ", first_bytes, ": bytes that belong to no copy");
  }
  out.manifest = *std::move(first.ok() ? first : second);
  return out;
}

}  // namespace hotrow::internal
