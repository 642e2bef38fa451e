#include "store/ssd/ssd_manifest_impl.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_struct_impl.h"

namespace hotrow::internal {
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
  uint64_t payload_bytes_written;
  uint64_t device_bytes_written;
  uint32_t num_tables;
  uint32_t num_segments;
  uint32_t num_snapshots;
  uint32_t num_directories;  // version 4, at least 2; before it 0
  uint64_t body_bytes;       // after this header
  uint32_t body_crc;
  uint32_t crc;  // of the 92 bytes before
};
static_assert(sizeof(ManifestHeader) == 96 &&
              offsetof(ManifestHeader, payload_bytes_written) == 48 &&
              offsetof(ManifestHeader, body_bytes) == 80 && offsetof(ManifestHeader, crc) == 92);

struct ManifestTable {
  uint32_t table;
  uint32_t reserved;  // 0
  uint64_t row_bytes;
};
static_assert(sizeof(ManifestTable) == 16);

struct ManifestSegment {
  uint32_t slot;
  uint32_t directory;  // version 4; before it 0
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

// Behind the snapshots, from version 3 on: of the index image and the present state, then of each
// snapshot. The rows of each table follow each, as a number of 64 bits. Behind those, in version 4,
// of each directory.
struct ManifestIdentity {
  uint64_t high;
  uint64_t low;
};
static_assert(sizeof(ManifestIdentity) == 16);
constexpr uint64_t kRowsUnknown = ~uint64_t{0};

template <typename Struct>
void AppendStruct(const Struct& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(Struct));
}

void AppendSegments(std::span<const SsdSegmentRef> segments, std::string* out) {
  for (const SsdSegmentRef& s : segments) {
    AppendStruct(ManifestSegment{.slot = s.slot,
                                 .directory = s.directory,
                                 .epoch = s.epoch,
                                 .base_sequence = s.base_sequence,
                                 .end_offset = static_cast<uint64_t>(s.end_offset),
                                 .live_bytes = static_cast<uint64_t>(s.live_bytes)},
                 out);
  }
}

void AppendIdentity(const UniqueId& id, std::span<const int64_t> table_rows, size_t num_tables,
                    std::string* out) {
  AppendStruct(ManifestIdentity{.high = id.high, .low = id.low}, out);
  for (size_t t = 0; t < num_tables; ++t) {
    AppendStruct(table_rows.empty() ? kRowsUnknown : static_cast<uint64_t>(table_rows[t]), out);
  }
}

// Takes structs from the front of a text; remembers when it ran out.
class Cursor {
 public:
  // `at` is where the text lies in the file.
  Cursor(std::string_view rest, int64_t at) : rest_(rest), at_(at) {}
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
    at_ += static_cast<int64_t>(sizeof(Struct));
    return out;
  }
  bool ran_out() const { return ran_out_; }
  bool empty() const { return rest_.empty(); }
  int64_t at() const { return at_; }

 private:
  std::string_view rest_;
  int64_t at_;
  bool ran_out_ = false;
};

template <typename... Parts>
absl::Status Damaged(int64_t offset, const Parts&... what) {
  return absl::DataLossError(absl::StrCat("offset ", offset, ": ", what...));
}

absl::Status CheckHeader(const ManifestHeader& h, int64_t at) {
  const auto chunk_bytes = static_cast<int64_t>(h.chunk_bytes);
  if (!std::has_single_bit(h.chunk_bytes) || chunk_bytes < kSsdChunkBytesMin ||
      chunk_bytes > kSsdChunkBytesMax) {
    return Damaged(at, "chunk_bytes is ", h.chunk_bytes, ", must be a power of two in [",
                   kSsdChunkBytesMin, ", ", kSsdChunkBytesMax, "]");
  }
  if (h.segment_bytes < h.chunk_bytes || h.segment_bytes % h.chunk_bytes != 0 ||
      h.segment_bytes > static_cast<uint64_t>(kSsdLogBytesMax)) {
    return Damaged(at, "segment_bytes is ", h.segment_bytes,
                   ", must be a multiple of chunk_bytes (", h.chunk_bytes, ") and at most ",
                   kSsdLogBytesMax);
  }
  const auto in_range = [&](const char* name, uint64_t value, uint64_t least) -> absl::Status {
    if (value >= least && value < kSsdNumberMax) return absl::OkStatus();
    return Damaged(at, name, " is ", value, ", must lie in [", least, ", 2^63)");
  };
  HOTROW_RETURN_IF_ERROR(in_range("generation", h.generation, 0));
  HOTROW_RETURN_IF_ERROR(in_range("next_epoch", h.next_epoch, 1));
  HOTROW_RETURN_IF_ERROR(in_range("sequence_limit", h.sequence_limit, 1));
  HOTROW_RETURN_IF_ERROR(in_range("payload_bytes_written", h.payload_bytes_written, 0));
  HOTROW_RETURN_IF_ERROR(in_range("device_bytes_written", h.device_bytes_written, 0));
  if (h.index_image > h.generation) {
    return Damaged(at, "index_image is ", h.index_image, ", past generation ", h.generation);
  }
  if (h.num_tables == 0 || h.num_tables > kSsdStoreTablesMax) {
    return Damaged(at, "num_tables is ", h.num_tables, ", must lie in [1, ", kSsdStoreTablesMax,
                   "]");
  }
  return absl::OkStatus();
}

absl::Status TakeTables(uint32_t count, int64_t chunk_bytes, Cursor* body,
                        std::vector<StoreTable>* out) {
  std::set<uint32_t> seen;
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t at = body->at();
    const auto t = body->Take<ManifestTable>();
    if (body->ran_out()) return absl::OkStatus();
    const auto row_bytes = static_cast<int64_t>(t.row_bytes);
    if (row_bytes < 1 || row_bytes > kSsdRowBytesMax) {
      return Damaged(at, "table ", t.table, ": row_bytes is ", t.row_bytes, ", must lie in [1, ",
                     kSsdRowBytesMax, "]");
    }
    if (SsdChunkBytesNeeded(row_bytes) > chunk_bytes) {
      return Damaged(at, "table ", t.table, ": row_bytes is ", t.row_bytes,
                     ", too much for chunks of ", chunk_bytes);
    }
    if (t.reserved != 0) return Damaged(at, "table ", t.table, ": a reserved field is not 0");
    if (!seen.insert(t.table).second) return Damaged(at, "table ", t.table, " is there twice");
    out->push_back({t.table, row_bytes});
  }
  return absl::OkStatus();
}

// What the states of a manifest say of a slot: a file has one life, whoever names it.
struct SlotLife {
  uint64_t epoch;
  uint64_t base_sequence;
  uint32_t directory;
};

// num_directories: at least 1.
absl::Status TakeSegments(uint32_t count, const SsdManifest& manifest, uint32_t num_directories,
                          Cursor* body, std::map<uint32_t, SlotLife>* lives,
                          std::vector<SsdSegmentRef>* out) {
  std::set<uint32_t> seen;
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t at = body->at();
    const auto s = body->Take<ManifestSegment>();
    if (body->ran_out()) return absl::OkStatus();
    const auto bad = [&](const auto&... what) {
      return Damaged(at, "segment ", s.slot, ": ", what...);
    };
    if (s.slot >= kSsdLogBytesMax / manifest.segment_bytes) {
      return bad("slot: with segments of ", manifest.segment_bytes, " bytes it lies beyond ",
                 kSsdLogBytesMax);
    }
    if (s.directory >= num_directories) {
      return bad("directory is ", s.directory, " of ", num_directories);
    }
    if (s.epoch == 0 || s.epoch >= manifest.next_epoch) {
      return bad("epoch is ", s.epoch, ", must lie in [1, ", manifest.next_epoch, ")");
    }
    // A segment may have been opened when all numbers below were given out.
    if (s.base_sequence > manifest.sequence_limit) {
      return bad("base_sequence is ", s.base_sequence, ", past the limit ",
                 manifest.sequence_limit);
    }
    if (s.end_offset < static_cast<uint64_t>(kSsdSegmentHeaderBytes) ||
        s.end_offset > static_cast<uint64_t>(manifest.segment_bytes) ||
        s.end_offset % kSsdRecordAlignment != 0) {
      return bad("end_offset is ", s.end_offset, ", must be a multiple of ", kSsdRecordAlignment,
                 " in [", kSsdSegmentHeaderBytes, ", ", manifest.segment_bytes, "]");
    }
    if (s.live_bytes > static_cast<uint64_t>(manifest.segment_bytes)) {
      return bad("live_bytes is ", s.live_bytes, " of ", manifest.segment_bytes);
    }
    if (!seen.insert(s.slot).second) return bad("is there twice in one state");
    const auto [life, is_new] = lives->insert({s.slot, {s.epoch, s.base_sequence, s.directory}});
    if (life->second.epoch != s.epoch || life->second.base_sequence != s.base_sequence) {
      return bad("epoch is ", s.epoch, " and base_sequence ", s.base_sequence,
                 ", in another state ", life->second.epoch, " and ", life->second.base_sequence);
    }
    if (life->second.directory != s.directory) {
      return bad("directory is ", s.directory, ", in another state ", life->second.directory);
    }
    out->push_back({.slot = s.slot,
                    .epoch = s.epoch,
                    .base_sequence = s.base_sequence,
                    .end_offset = static_cast<int64_t>(s.end_offset),
                    .live_bytes = static_cast<int64_t>(s.live_bytes),
                    .directory = s.directory});
  }
  return absl::OkStatus();
}

absl::Status TakeSnapshots(uint32_t count, uint32_t num_directories, Cursor* body,
                           std::map<uint32_t, SlotLife>* lives, SsdManifest* out) {
  std::set<SnapshotId> seen;
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t at = body->at();
    const auto s = body->Take<ManifestSnapshot>();
    if (body->ran_out()) return absl::OkStatus();
    const auto bad = [&](const auto&... what) {
      return Damaged(at, "snapshot ", s.id, ": ", what...);
    };
    if (s.id == 0) return bad("id: must not be 0");
    if (!seen.insert(s.id).second) return bad("is there twice");
    if (s.committed > 1) return bad("committed is ", s.committed, ", must be 0 or 1");
    if (s.sequence > out->sequence_limit) {
      return bad("sequence is ", s.sequence, ", past the limit ", out->sequence_limit);
    }
    SsdSnapshot& snapshot = out->snapshots.emplace_back();
    snapshot.id = s.id;
    snapshot.committed = s.committed != 0;
    snapshot.sequence = s.sequence;
    HOTROW_RETURN_IF_ERROR(
        TakeSegments(s.num_segments, *out, num_directories, body, lives, &snapshot.segments));
  }
  return absl::OkStatus();
}

// `what` names the state whose rows these are.
absl::Status TakeIdentity(std::string_view what, const SsdManifest& manifest, Cursor* body,
                          UniqueId* id, std::vector<int64_t>* table_rows) {
  const auto identity = body->Take<ManifestIdentity>();
  *id = {.high = identity.high, .low = identity.low};
  uint64_t total = 0;
  for (size_t t = 0; t < manifest.tables.size(); ++t) {
    const int64_t at = body->at();
    const auto rows = body->Take<uint64_t>();
    if (body->ran_out()) return absl::OkStatus();
    const bool known = rows != kRowsUnknown;
    // A row takes more than a byte of the log, so this bounds their sum as well.
    const uint64_t most = static_cast<uint64_t>(kSsdLogBytesMax) - total;
    if ((known && rows > most) || (t > 0 && known == table_rows->empty())) {
      return Damaged(at, std::string(what), ": table ", manifest.tables[t].table, " has ", rows,
                     " rows");
    }
    if (!known) continue;
    table_rows->push_back(static_cast<int64_t>(rows));
    total += rows;
  }
  return absl::OkStatus();
}

absl::Status TakeIdentities(Cursor* body, SsdManifest* out) {
  HOTROW_RETURN_IF_ERROR(
      TakeIdentity("the present state", *out, body, &out->index_image_id, &out->table_rows));
  for (SsdSnapshot& s : out->snapshots) {
    HOTROW_RETURN_IF_ERROR(
        TakeIdentity(absl::StrCat("snapshot ", s.id), *out, body, &s.identity, &s.table_rows));
  }
  return absl::OkStatus();
}

absl::Status TakeDirectories(uint32_t count, Cursor* body, SsdManifest* out) {
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t at = body->at();
    const auto taken = body->Take<ManifestIdentity>();
    if (body->ran_out()) return absl::OkStatus();
    const UniqueId id = {.high = taken.high, .low = taken.low};
    const auto& before = out->directories;
    if (!id.known() || std::find(before.begin(), before.end(), id) != before.end()) {
      return Damaged(at, "directory ", i, ": its identity is 0 or that of another");
    }
    out->directories.push_back(id);
  }
  return absl::OkStatus();
}

// Decodes the copy at the front; `at` is where it lies in the file. *copy_bytes is how long it is.
absl::StatusOr<SsdManifest> DecodeCopy(std::string_view bytes, int64_t at, int64_t* copy_bytes,
                                       uint32_t* version) {
  if (bytes.size() < sizeof(ManifestPrefix) + sizeof(ManifestHeader)) {
    return Damaged(at, "the manifest ends in its header");
  }
  const auto* const data = reinterpret_cast<const std::byte*>(bytes.data());
  const auto prefix = LoadStruct<ManifestPrefix>(data);
  if (std::memcmp(prefix.magic, kManifestMagic, sizeof(prefix.magic)) != 0) {
    return Damaged(at, "not the manifest of an SSD store");
  }
  if (prefix.crc != StructCrc(prefix)) return Damaged(at, "the checksum of the prefix is wrong");
  *version = prefix.version;
  HOTROW_RETURN_IF_ERROR(CheckFormatVersion(absl::StrCat("offset ", at + 8), "format version",
                                            prefix.version, kSsdManifestVersions));
  const int64_t header_at = at + static_cast<int64_t>(sizeof(prefix));
  const auto header = LoadStruct<ManifestHeader>(data + sizeof(prefix));
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
  out.payload_bytes_written = header.payload_bytes_written;
  out.device_bytes_written = header.device_bytes_written;
  HOTROW_RETURN_IF_ERROR(CheckHeader(header, header_at));
  const bool striped = prefix.version > kSsdManifestOfOneDirectory;
  if (striped ? header.num_directories < 2 || header.num_directories > kSsdDirectoriesMax
              : header.num_directories != 0) {
    return Damaged(header_at, "num_directories is ", header.num_directories, " in version ",
                   prefix.version);
  }
  const uint32_t num_directories = std::max(header.num_directories, 1u);
  Cursor body(text, body_at);
  HOTROW_RETURN_IF_ERROR(TakeTables(header.num_tables, out.chunk_bytes, &body, &out.tables));
  std::map<uint32_t, SlotLife> lives;
  HOTROW_RETURN_IF_ERROR(
      TakeSegments(header.num_segments, out, num_directories, &body, &lives, &out.segments));
  HOTROW_RETURN_IF_ERROR(TakeSnapshots(header.num_snapshots, num_directories, &body, &lives, &out));
  if (prefix.version >= 3) HOTROW_RETURN_IF_ERROR(TakeIdentities(&body, &out));
  HOTROW_RETURN_IF_ERROR(TakeDirectories(header.num_directories, &body, &out));
  if (body.ran_out() || !body.empty()) {
    return Damaged(body_at, "the body contradicts the header");
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
         a.index_image_id == b.index_image_id && a.table_rows == b.table_rows &&
         a.payload_bytes_written == b.payload_bytes_written &&
         a.device_bytes_written == b.device_bytes_written && a.segments == b.segments &&
         a.snapshots == b.snapshots && a.directories == b.directories &&
         std::equal(a.tables.begin(), a.tables.end(), b.tables.begin(), b.tables.end(), same_table);
}

std::string SsdSegmentName(uint32_t slot) { return absl::StrFormat("segment-%06d", slot); }
std::optional<uint32_t> ParseSsdSegmentName(std::string_view name) {
  const auto slot = ParseNumberedName<uint32_t>(name, "segment-");
  // One name a slot: "segment-0000011" is a file of somebody else's.
  return slot.has_value() && SsdSegmentName(*slot) == name ? slot : std::nullopt;
}
std::string SsdIndexName(uint64_t number) { return absl::StrFormat("index-%06d", number); }
std::optional<uint64_t> ParseSsdIndexName(std::string_view name) {
  const auto number = ParseNumberedName<uint64_t>(name, "index-");
  return number.has_value() && SsdIndexName(*number) == name ? number : std::nullopt;
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
  const size_t num_tables = manifest.tables.size();
  AppendIdentity(manifest.index_image_id, manifest.table_rows, num_tables, &body);
  for (const SsdSnapshot& s : manifest.snapshots) {
    AppendIdentity(s.identity, s.table_rows, num_tables, &body);
  }
  for (const UniqueId& id : manifest.directories) {
    AppendStruct(ManifestIdentity{.high = id.high, .low = id.low}, &body);
  }
  ManifestPrefix prefix = {};
  std::memcpy(prefix.magic, kManifestMagic, sizeof(prefix.magic));
  prefix.version =
      manifest.directories.empty() ? kSsdManifestOfOneDirectory : kSsdManifestVersions.last;
  prefix.crc = StructCrc(prefix);
  ManifestHeader header = {};
  header.generation = manifest.generation;
  header.segment_bytes = static_cast<uint64_t>(manifest.segment_bytes);
  header.chunk_bytes = static_cast<uint64_t>(manifest.chunk_bytes);
  header.next_epoch = manifest.next_epoch;
  header.sequence_limit = manifest.sequence_limit;
  header.index_image = manifest.index_image;
  header.payload_bytes_written = manifest.payload_bytes_written;
  header.device_bytes_written = manifest.device_bytes_written;
  header.num_tables = static_cast<uint32_t>(manifest.tables.size());
  header.num_segments = static_cast<uint32_t>(manifest.segments.size());
  header.num_snapshots = static_cast<uint32_t>(manifest.snapshots.size());
  header.num_directories = static_cast<uint32_t>(manifest.directories.size());
  header.body_bytes = body.size();
  header.body_crc = Crc32c(std::as_bytes(std::span<const char>(body.data(), body.size())));
  header.crc = StructCrc(header);
  std::string copy;
  AppendStruct(prefix, &copy);
  AppendStruct(header, &copy);
  copy += body;
  return absl::StrCat(copy, copy);
}

int64_t SsdManifestBytes(int64_t num_tables, int64_t num_snapshots, int64_t num_segment_refs,
                         int64_t num_directories) {
  const size_t copy = sizeof(ManifestPrefix) + sizeof(ManifestHeader) +
                      static_cast<size_t>(num_tables) * sizeof(ManifestTable) +
                      static_cast<size_t>(num_snapshots) * sizeof(ManifestSnapshot) +
                      static_cast<size_t>(num_segment_refs) * sizeof(ManifestSegment) +
                      static_cast<size_t>(1 + num_snapshots) *
                          (sizeof(ManifestIdentity) + static_cast<size_t>(num_tables) * 8) +
                      static_cast<size_t>(num_directories) * sizeof(ManifestIdentity);
  return 2 * static_cast<int64_t>(copy);
}

absl::StatusOr<DecodedSsdManifest> DecodeSsdManifest(std::string_view bytes) {
  // Copies are equally long, so the second one can be found when the first is damaged.
  DecodedSsdManifest out;
  const auto half = static_cast<int64_t>(bytes.size() / 2);
  int64_t first_bytes = 0;
  int64_t second_bytes = 0;
  uint32_t second_version = 0;
  absl::StatusOr<SsdManifest> first =
      DecodeCopy(bytes.substr(0, static_cast<size_t>(half)), 0, &first_bytes, &out.version);
  if (absl::IsFailedPrecondition(first.status())) return first.status();
  absl::StatusOr<SsdManifest> second =
      DecodeCopy(bytes.substr(static_cast<size_t>(half)), half, &second_bytes, &second_version);
  if (!first.ok() && !second.ok()) return first.status();
  if (!first.ok()) {
    out.damage = std::string(first.status().message());
  } else if (!second.ok()) {
    out.damage = std::string(second.status().message());
  } else if (first_bytes != half || second_bytes != static_cast<int64_t>(bytes.size()) - half) {
    out.damage = absl::StrCat("offset ", first_bytes, ": bytes that belong to no copy");
  }
  if (!first.ok()) out.version = second_version;
  out.manifest = *std::move(first.ok() ? first : second);
  return out;
}

}  // namespace hotrow::internal
