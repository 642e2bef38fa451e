#ifndef HOTROW_STORE_SSD_SSD_FORMAT_IMPL_H_
#define HOTROW_STORE_SSD_SSD_FORMAT_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/format_version.h"
#include "base/math.h"

// The bytes of an SsdStore's segments and of the records in them, docs/formats/ssd_store.md. All
// numbers are little-endian. ssd_manifest_impl.h says which files a store has.
namespace hotrow::internal {

// The versions of segment headers and chunk footers.
inline constexpr FormatVersions kSsdSegmentVersions = {.first = 2, .last = 2};

// A location in the index names a unit; the record starts somewhere in it. At most one record of a
// key starts in any unit.
inline constexpr int64_t kSsdUnitBytes = 512;
// Records start at multiples of this.
inline constexpr int64_t kSsdRecordAlignment = 8;
inline constexpr int64_t kSsdSegmentHeaderBytes = 4096;
inline constexpr uint32_t kSsdTablesMax = uint32_t{1} << 29;

// Limits of a store. A manifest that passes one is damaged, or from elsewhere.
inline constexpr int64_t kSsdStoreTablesMax = 65'535;
inline constexpr int64_t kSsdRowBytesMax = int64_t{4} << 20;
inline constexpr int64_t kSsdChunkBytesMin = int64_t{16} << 10;  // a power of two in between
inline constexpr int64_t kSsdChunkBytesMax = int64_t{64} << 20;
inline constexpr int64_t kSsdLogBytesMax = int64_t{1} << 56;  // of all segments
// The limit of epochs, sequence numbers and counters: what is reserved ahead of them never wraps.
inline constexpr uint64_t kSsdNumberMax = uint64_t{1} << 63;

// --- Records -------------------------------------------------------------------------------------

enum class SsdRecordKind : uint32_t {
  kRow = 1,        // header, then the row
  kTombstone = 2,  // header alone: the key is erased
  kPad = 3,        // the first 8 bytes of a header alone; the number in it is the pad's length
};

// What lies before each row. The CRC-32C covers {epoch of the segment, offset in the segment} as
// two uint64 and then the record from byte 4 on: a record that lies where it does not belong, or is
// left over from an earlier life of the segment, is no record.
struct SsdRecordHeader {
  uint32_t crc;
  uint32_t
      kind_table;  // kind << 29 | index of the table in the manifest; pads: kind << 29 | bytes/8
  uint64_t key;
  uint64_t sequence;  // grows with every write to the store
};
static_assert(sizeof(SsdRecordHeader) == 24 && offsetof(SsdRecordHeader, key) == 8 &&
              offsetof(SsdRecordHeader, sequence) == 16);
inline constexpr int64_t kSsdPadHeaderBytes = 8;

constexpr uint32_t SsdKindTable(SsdRecordKind kind, uint32_t table_index) {
  return static_cast<uint32_t>(kind) << 29 | table_index;
}
constexpr uint32_t SsdKindOf(uint32_t kind_table) { return kind_table >> 29; }
constexpr uint32_t SsdTableOf(uint32_t kind_table) { return kind_table & (kSsdTablesMax - 1); }

// Bytes of a record on disk, alignment included.
constexpr int64_t SsdRowRecordBytes(int64_t row_bytes) {
  return RoundUp(static_cast<int64_t>(sizeof(SsdRecordHeader)) + row_bytes, kSsdRecordAlignment);
}
inline constexpr int64_t kSsdTombstoneBytes = sizeof(SsdRecordHeader);

// The place that a record's CRC speaks of.
struct SsdPlace {
  uint64_t epoch = 0;
  int64_t offset = 0;  // in the segment
};

// Write a record at `out`; return its bytes. Alignment bytes behind the row are zeroed.
int64_t EncodeSsdRow(const SsdPlace& place, uint32_t table_index, uint64_t key, uint64_t sequence,
                     std::span<const std::byte> row, std::byte* out);
int64_t EncodeSsdTombstone(const SsdPlace& place, uint32_t table_index, uint64_t key,
                           uint64_t sequence, std::byte* out);
// bytes >= 8, a multiple of 8. All of it is zeroed but the header.
void EncodeSsdPad(const SsdPlace& place, int64_t bytes, std::byte* out);

struct SsdRecord {
  SsdRecordKind kind = SsdRecordKind::kPad;
  uint32_t table_index = 0;
  uint64_t key = 0;
  uint64_t sequence = 0;
  int64_t bytes = 0;  // on disk
  std::span<const std::byte> row;
};
// The record that starts at bytes[0]; nothing where there is no valid one. row_bytes is indexed by
// table index.
std::optional<SsdRecord> DecodeSsdRecord(std::span<const std::byte> bytes, const SsdPlace& place,
                                         std::span<const int64_t> row_bytes);

// Finds the row of a key among the records that start in the unit at bytes[0]; bytes hold the unit
// and, where the segment does not end first, the longest row record behind it. Nothing when it is
// not there or its CRC does not match.
std::optional<SsdRecord> FindSsdRowInUnit(std::span<const std::byte> bytes, const SsdPlace& place,
                                          uint32_t table_index, uint64_t key, int64_t row_bytes);

// --- Segments and chunks -------------------------------------------------------------------------

// A segment is a file of segment_bytes, cut into chunks of chunk_bytes. The first chunk starts with
// the segment's header. A chunk holds records from its start and, once it is closed, a footer at
// its end that lists them: entries, then the trailer. A pad fills what lies between.
inline constexpr char kSsdSegmentMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'S', 'G'};
inline constexpr char kSsdFooterMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'S', 'F'};

// Offset 0 of a segment, zeros up to kSsdSegmentHeaderBytes. For people and tools: the manifest
// says the same, and is what counts.
struct SsdSegmentHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;  // 0
  uint64_t epoch;     // of this life of the segment; never used twice in a store
  uint64_t segment_bytes;
  uint64_t chunk_bytes;
  uint32_t reserved2;  // 0
  uint32_t crc;        // of the 44 bytes before
};
static_assert(sizeof(SsdSegmentHeader) == 48 && offsetof(SsdSegmentHeader, crc) == 44);

// One for each record of a chunk, in order. The offset is the sum of the lengths before it, which
// follow from table and kind.
struct SsdFooterEntry {
  uint64_t key;             // pads: 0
  uint32_t sequence_delta;  // less the chunk's base_sequence; pads: 0
  uint32_t kind_table;      // as in the record
};
static_assert(sizeof(SsdFooterEntry) == 16);

// The last bytes of a closed chunk; the entries stand right before it.
struct SsdFooterTrailer {
  char magic[8];
  uint32_t version;
  uint32_t entries_crc;
  uint64_t epoch;
  uint64_t chunk_offset;  // in the segment
  uint64_t base_sequence;
  uint64_t num_entries;
  uint64_t end_offset;  // of the last record, in the segment
  uint32_t reserved;    // 0
  uint32_t crc;         // of the 60 bytes before
};
static_assert(sizeof(SsdFooterTrailer) == 64 && offsetof(SsdFooterTrailer, crc) == 60);

constexpr int64_t SsdFooterBytes(int64_t num_entries) {
  return num_entries * static_cast<int64_t>(sizeof(SsdFooterEntry)) +
         static_cast<int64_t>(sizeof(SsdFooterTrailer));
}
// What a row takes in a chunk: record and footer entry.
constexpr int64_t SsdLogBytes(int64_t row_bytes) {
  return SsdRowRecordBytes(row_bytes) + static_cast<int64_t>(sizeof(SsdFooterEntry));
}
inline constexpr int64_t kSsdTombstoneLogBytes =
    kSsdTombstoneBytes + static_cast<int64_t>(sizeof(SsdFooterEntry));
// The least chunk for such rows: four of them, so that little of it stays empty.
constexpr int64_t SsdChunkBytesNeeded(int64_t row_bytes) { return 4 * SsdLogBytes(row_bytes); }
// Where the records of the chunk at chunk_offset begin.
constexpr int64_t SsdFirstRecord(int64_t chunk_offset) {
  return chunk_offset == 0 ? kSsdSegmentHeaderBytes : chunk_offset;
}

void EncodeSsdSegmentHeader(uint64_t epoch, int64_t segment_bytes, int64_t chunk_bytes,
                            std::span<std::byte> out);  // kSsdSegmentHeaderBytes
// Errors: DataLoss, FailedPrecondition (another version), saying what and at which offset.
absl::Status CheckSsdSegmentHeader(std::span<const std::byte> bytes, uint64_t epoch,
                                   int64_t segment_bytes, int64_t chunk_bytes);

// Makes the trailer for entries that stand before it; all fields are filled in.
SsdFooterTrailer MakeSsdFooterTrailer(uint64_t epoch, int64_t chunk_offset, uint64_t base_sequence,
                                      int64_t end_offset, std::span<const SsdFooterEntry> entries);
// Reads the footer at the end of `tail`, the last bytes of the chunk, and gives out its entries,
// which lie in tail. Checks everything, also that the records end at end_offset. Errors: DataLoss
// saying why; an open chunk has no footer and gives this too.
struct SsdFooter {
  SsdFooterTrailer trailer;
  std::vector<SsdFooterEntry> entries;
};
absl::StatusOr<SsdFooter> DecodeSsdFooter(std::span<const std::byte> tail, uint64_t epoch,
                                          int64_t chunk_offset, int64_t chunk_bytes,
                                          std::span<const int64_t> row_bytes);
// Bytes on disk of the record that the entry speaks of; 0 when it cannot be one.
int64_t SsdEntryRecordBytes(const SsdFooterEntry& entry, std::span<const int64_t> row_bytes);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_FORMAT_IMPL_H_
