#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "store/ssd_scan_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kScanBytes = int64_t{4} << 20;  // of footers read at once
constexpr int64_t kBlockBytesMax = 4096;
constexpr size_t kNewestMin = 4096;        // records of a slice, however little memory there is
constexpr size_t kNewestVisited = 16'384;  // rows at a time
// Keys whose hashes agree in so many bits are not told apart by more slices.
constexpr int kSliceBitsMax = 40;

// Leaves the newest record of each key, in the order of tables and keys.
void KeepNewest(std::vector<SsdNewest>* records) {
  std::sort(records->begin(), records->end(), [](const SsdNewest& a, const SsdNewest& b) {
    const uint32_t ta = a.table_index();
    const uint32_t tb = b.table_index();
    return std::tie(ta, a.key, b.sequence) < std::tie(tb, b.key, a.sequence);
  });
  const auto same_key = [](const SsdNewest& a, const SsdNewest& b) {
    return a.key == b.key && a.table_index() == b.table_index();
  };
  records->erase(std::unique(records->begin(), records->end(), same_key), records->end());
}

int64_t ChunkEnd(const SsdGeometry& geometry, const SsdSegmentRef& ref, int64_t chunk_offset) {
  return std::min(ref.end_offset, chunk_offset + geometry.chunk_bytes);
}

// Bytes that the longest possible footer takes.
int64_t FooterBytesMax(const SsdGeometry& geometry) {
  int64_t smallest = kSsdTombstoneBytes;
  for (const int64_t bytes : geometry.row_bytes) {
    smallest = std::min(smallest, SsdRowRecordBytes(bytes));
  }
  // Pads take 8 bytes at least, but at most one lies in each unit of 512.
  const int64_t records = geometry.chunk_bytes / (smallest + int64_t{sizeof(SsdFooterEntry)});
  const int64_t pads = geometry.chunk_bytes / kSsdUnitBytes;
  return std::min(RoundUp(SsdFooterBytes(records + pads), kBlockBytesMax), geometry.chunk_bytes);
}

void TakeEntries(const SsdFooter& footer, const SsdGeometry& geometry, int64_t chunk_offset,
                 int64_t end, std::vector<SsdScanned>* out) {
  int64_t offset = SsdFirstRecord(chunk_offset);
  for (const SsdFooterEntry& entry : footer.entries) {
    if (offset >= end) break;
    const int64_t bytes = SsdEntryRecordBytes(entry, geometry.row_bytes);
    if (SsdKindOf(entry.kind_table) != static_cast<uint32_t>(SsdRecordKind::kPad)) {
      out->push_back({.key = entry.key,
                      .sequence = footer.trailer.base_sequence + entry.sequence_delta,
                      .offset = offset,
                      .bytes = bytes,
                      .kind_table = entry.kind_table});
    }
    offset += bytes;
  }
}

}  // namespace

absl::Status WalkSsdChunk(const SsdGeometry& geometry, const SsdSegmentRef& ref,
                          int64_t chunk_offset, std::span<const std::byte> chunk,
                          std::vector<SsdScanned>* out) {
  const int64_t end = ChunkEnd(geometry, ref, chunk_offset);
  int64_t offset = SsdFirstRecord(chunk_offset);
  for (int64_t entries = 0; offset < end; ++entries) {
    // The footer of a closed chunk begins where so many entries leave room for it, after a pad that
    // is not listed.
    const int64_t footer_at = chunk_offset + geometry.chunk_bytes - SsdFooterBytes(entries);
    if (offset == footer_at) break;
    const auto record = DecodeSsdRecord(chunk.subspan(static_cast<size_t>(offset - chunk_offset)),
                                        {ref.epoch, offset}, geometry.row_bytes);
    if (!record.has_value()) {
      return absl::DataLossError(absl::StrCat("offset ", offset, ": no valid record"));
    }
    if (record->kind == SsdRecordKind::kPad && offset + record->bytes == footer_at) break;
    if (record->kind != SsdRecordKind::kPad) {
      out->push_back({.key = record->key,
                      .sequence = record->sequence,
                      .offset = offset,
                      .bytes = record->bytes,
                      .kind_table = SsdKindTable(record->kind, record->table_index)});
    }
    offset += record->bytes;
  }
  return absl::OkStatus();
}

absl::Status ListSsdChunk(const SsdGeometry& geometry, const SsdSegmentRef& ref,
                          int64_t chunk_offset, std::span<const std::byte> chunk,
                          std::vector<SsdScanned>* out, std::string* damage) {
  const int64_t end = ChunkEnd(geometry, ref, chunk_offset);
  if (static_cast<int64_t>(chunk.size()) == geometry.chunk_bytes) {
    const absl::StatusOr<SsdFooter> footer =
        DecodeSsdFooter(chunk, ref.epoch, chunk_offset, geometry.chunk_bytes, geometry.row_bytes);
    // A footer of this life lists what was appended after `end` too.
    if (footer.ok()) {
      TakeEntries(*footer, geometry, chunk_offset, end, out);
      return absl::OkStatus();
    }
    // Only the last chunk may have been left open.
    if (damage != nullptr && ref.end_offset > chunk_offset + geometry.chunk_bytes) {
      *damage = std::string(footer.status().message());
    }
  }
  return WalkSsdChunk(geometry, ref, chunk_offset, chunk, out);
}

absl::Status ScanSsdSegments(
    const SsdGeometry& geometry, std::span<const SsdSegmentRef> refs,
    absl::FunctionRef<File*(uint32_t slot)> file_of, IoQueue& queue, MemoryBudget& budget,
    absl::FunctionRef<void(const SsdSegmentRef& ref, const SsdScanned& record)> visit,
    const SsdBadFooter& bad_footer) {
  struct Chunk {
    const SsdSegmentRef* ref;
    int64_t offset;
  };
  std::vector<Chunk> chunks;
  for (const SsdSegmentRef& ref : refs) {
    for (int64_t at = 0; at < ref.end_offset; at += geometry.chunk_bytes) {
      if (SsdFirstRecord(at) < ref.end_offset) chunks.push_back({&ref, at});
    }
  }
  const int64_t tail_bytes = FooterBytesMax(geometry);
  const int64_t at_once =
      std::clamp<int64_t>(std::min(kScanBytes, budget.budget() / 16) / tail_bytes, 1,
                          std::max<int64_t>(static_cast<int64_t>(chunks.size()), 1));
  HOTROW_ASSIGN_OR_RETURN(
      BudgetedBuffer<std::byte> memory,
      BudgetedBuffer<std::byte>::Create(
          budget, std::max(at_once * tail_bytes, geometry.chunk_bytes) + kBlockBytesMax));
  auto* const buffer = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(memory.data()), kBlockBytesMax));

  std::vector<SsdScanned> records;
  const auto visit_all = [&](const Chunk& chunk) {
    for (const SsdScanned& record : records) visit(*chunk.ref, record);
    records.clear();
  };
  const auto in_file = [&](const Chunk& chunk, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(file_of(chunk.ref->slot)->path(), ": ",
                                                    std::string(status.message())));
  };
  for (size_t first = 0; first < chunks.size(); first += static_cast<size_t>(at_once)) {
    const size_t count = std::min(static_cast<size_t>(at_once), chunks.size() - first);
    std::vector<IoRequest> requests(count);
    for (size_t i = 0; i < count; ++i) {
      const Chunk& chunk = chunks[first + i];
      requests[i].file = file_of(chunk.ref->slot);
      requests[i].offset = chunk.offset + geometry.chunk_bytes - tail_bytes;
      requests[i].data = buffer + static_cast<int64_t>(i) * tail_bytes;
      requests[i].bytes = tail_bytes;
      requests[i].user_data = i;
    }
    // Chunks without a good footer, to be read wholly once the buffer is free.
    std::vector<Chunk> open;
    absl::Status failed;
    queue.Run(requests, [&](IoRequest& request) {
      if (!request.status.ok()) {
        if (failed.ok()) failed = request.status;
        return;
      }
      const Chunk& chunk = chunks[first + request.user_data];
      const absl::StatusOr<SsdFooter> footer =
          DecodeSsdFooter({request.data, static_cast<size_t>(tail_bytes)}, chunk.ref->epoch,
                          chunk.offset, geometry.chunk_bytes, geometry.row_bytes);
      if (!footer.ok()) {
        if (bad_footer && chunk.ref->end_offset > chunk.offset + geometry.chunk_bytes) {
          bad_footer(*chunk.ref, footer.status());
        }
        open.push_back(chunk);
        return;
      }
      TakeEntries(*footer, geometry, chunk.offset, ChunkEnd(geometry, *chunk.ref, chunk.offset),
                  &records);
      visit_all(chunk);
    });
    HOTROW_RETURN_IF_ERROR(failed);
    for (const Chunk& chunk : open) {
      const std::span<std::byte> whole(buffer, static_cast<size_t>(geometry.chunk_bytes));
      HOTROW_RETURN_IF_ERROR(ReadFull(*file_of(chunk.ref->slot), chunk.offset, whole));
      const absl::Status walked = WalkSsdChunk(geometry, *chunk.ref, chunk.offset, whole, &records);
      if (!walked.ok()) return in_file(chunk, walked);
      visit_all(chunk);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ScanNewestSsdRows(
    const SsdGeometry& geometry, std::span<const SsdSegmentRef> refs,
    absl::FunctionRef<File*(uint32_t slot)> file_of, IoQueue& queue, MemoryBudget& budget,
    int64_t memory_bytes, absl::FunctionRef<absl::Status(std::span<const SsdNewest> rows)> visit,
    const SsdBadFooter& bad_footer) {
  const size_t capacity = std::max(
      static_cast<size_t>(std::max<int64_t>(memory_bytes, 0)) / sizeof(SsdNewest), kNewestMin);
  // A guess: tombstones are shorter than rows, but few. Slices are halved where it was too low.
  int64_t shortest = 1024;
  for (const int64_t bytes : geometry.row_bytes) shortest = std::min(shortest, bytes);
  int64_t log_bytes = 0;
  for (const SsdSegmentRef& ref : refs) log_bytes += ref.end_offset;
  const auto records_guess = static_cast<size_t>(
      log_bytes / (SsdRowRecordBytes(shortest) + static_cast<int64_t>(sizeof(SsdFooterEntry))));
  int slice_bits = std::bit_width(records_guess / capacity);

  int64_t records = -1;  // not counted yet
  std::vector<SsdNewest> newest;
  newest.reserve(std::min(capacity, records_guess + 1));
  for (uint64_t slice = 0; slice >> slice_bits == 0;) {
    newest.clear();
    size_t limit = capacity;
    bool too_many = false;
    int64_t seen = 0;
    HOTROW_RETURN_IF_ERROR(ScanSsdSegments(
        geometry, refs, file_of, queue, budget,
        [&](const SsdSegmentRef& ref, const SsdScanned& record) {
          ++seen;
          if (too_many) return;
          if (slice_bits > 0) {
            const uint64_t hash = Mix64(record.key ^ Mix64(record.table_index()));
            if (hash >> (64 - slice_bits) != slice) return;
          }
          if (newest.size() >= limit) {
            KeepNewest(&newest);
            too_many = newest.size() > capacity / 2 && slice_bits < kSliceBitsMax;
            if (too_many) return;
            limit = std::max(capacity, 2 * newest.size());
          }
          newest.push_back(
              {record.key, record.sequence, record.offset, ref.slot, record.kind_table});
        },
        records < 0 ? bad_footer : nullptr));
    records = seen;
    if (too_many) {
      slice *= 2;
      ++slice_bits;
      continue;
    }
    KeepNewest(&newest);
    std::erase_if(newest, [](const SsdNewest& record) {
      return SsdKindOf(record.kind_table) != static_cast<uint32_t>(SsdRecordKind::kRow);
    });
    for (size_t at = 0; at < newest.size(); at += kNewestVisited) {
      const size_t n = std::min(kNewestVisited, newest.size() - at);
      HOTROW_RETURN_IF_ERROR(visit(std::span(newest).subspan(at, n)));
    }
    ++slice;
  }
  return records;
}

}  // namespace hotrow::internal
