#include "store/ssd/ssd_format_impl.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/ssd/ssd_struct_impl.h"

namespace hotrow::internal {
namespace {

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
  StoreStruct(header, out);
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
  StoreStruct(header, out);
  header.crc = RecordCrc(place, AfterCrc(out, kSsdTombstoneBytes));
  std::memcpy(out, &header.crc, sizeof(header.crc));
  return kSsdTombstoneBytes;
}

void EncodeSsdPad(const SsdPlace& place, int64_t bytes, std::byte* out) {
  HOTROW_CHECK(bytes >= kSsdPadHeaderBytes && bytes % kSsdRecordAlignment == 0);
  std::memset(out, 0, static_cast<size_t>(bytes));
  const uint32_t kind_table = SsdKindTable(SsdRecordKind::kPad, static_cast<uint32_t>(bytes / 8));
  std::memcpy(out + sizeof(uint32_t), &kind_table, sizeof(kind_table));
  // The checksum of the whole pad, so that every byte of a segment is covered.
  const uint32_t crc = RecordCrc(place, AfterCrc(out, bytes));
  std::memcpy(out, &crc, sizeof(crc));
}

std::optional<SsdRecord> DecodeSsdRecord(std::span<const std::byte> bytes, const SsdPlace& place,
                                         std::span<const int64_t> row_bytes) {
  if (bytes.size() < kSsdPadHeaderBytes) return std::nullopt;
  const auto crc = LoadStruct<uint32_t>(bytes.data());
  const auto kind_table = LoadStruct<uint32_t>(bytes.data() + sizeof(uint32_t));
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
    const auto header = LoadStruct<SsdRecordHeader>(bytes.data());
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
    if (LoadStruct<uint32_t>(record + offsetof(SsdRecordHeader, kind_table)) != kind_table)
      continue;
    const auto header = LoadStruct<SsdRecordHeader>(record);
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
  header.version = kSsdSegmentVersions.last;
  header.epoch = epoch;
  header.segment_bytes = static_cast<uint64_t>(segment_bytes);
  header.chunk_bytes = static_cast<uint64_t>(chunk_bytes);
  header.crc = StructCrc(header);
  StoreStruct(header, out.data());
}

absl::Status CheckSsdSegmentHeader(std::span<const std::byte> bytes, uint64_t epoch,
                                   int64_t segment_bytes, int64_t chunk_bytes) {
  HOTROW_CHECK(static_cast<int64_t>(bytes.size()) == kSsdSegmentHeaderBytes);
  const auto header = LoadStruct<SsdSegmentHeader>(bytes.data());
  if (std::memcmp(header.magic, kSsdSegmentMagic, sizeof(header.magic)) != 0) {
    return absl::DataLossError("offset 0: not the header of a segment");
  }
  if (header.crc != StructCrc(header)) {
    return absl::DataLossError("offset 0: the checksum of the header does not match");
  }
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion("offset 8", "segment of version", header.version, kSsdSegmentVersions));
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
  trailer.version = kSsdSegmentVersions.last;
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
  trailer = LoadStruct<SsdFooterTrailer>(tail.data() + tail.size() - sizeof(trailer));
  const std::string place =
      absl::StrCat("offset ", chunk_offset + chunk_bytes - static_cast<int64_t>(sizeof(trailer)));
  const std::string where = absl::StrCat(place, ": ");
  if (std::memcmp(trailer.magic, kSsdFooterMagic, sizeof(trailer.magic)) != 0) {
    return absl::DataLossError(absl::StrCat(where, "no footer"));
  }
  if (trailer.crc != StructCrc(trailer)) {
    return absl::DataLossError(absl::StrCat(where, "the checksum of the footer does not match"));
  }
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion(place, "footer of version", trailer.version, kSsdSegmentVersions));
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

}  // namespace hotrow::internal
