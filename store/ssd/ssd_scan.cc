#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "store/ssd/ssd_scan_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kScanBytes = int64_t{4} << 20;  // of footers read at once
constexpr int64_t kBlockBytesMax = 4096;
constexpr size_t kNewestMin = 4096;  // records of a slice, however little memory there is
// Keys whose hashes agree in so many bits are not told apart by more slices.
constexpr int kSliceBitsMax = 40;
// Records are distributed by so many bits of their hashes before they are sorted: pieces of some
// thousand records, which the second level cache holds.
constexpr int kSortBits = 11;
constexpr size_t kDistributeFrom = size_t{1} << 14;

// Records are collected with the hash of their key, a bijection for each table, in its place.
using Hashed = SsdNewest;

bool InHashOrder(const Hashed& a, const Hashed& b) {
  if (a.key != b.key) return a.key < b.key;
  const uint32_t ta = a.table_index();
  const uint32_t tb = b.table_index();
  return std::tie(ta, b.sequence) < std::tie(tb, a.sequence);
}

// Sorts records whose hashes agree in their top `known_bits`. American flag sort: after one count,
// each record is swapped to where its bits belong, so that no second array is needed.
void SortByHash(std::vector<Hashed>* records, int known_bits) {
  if (records->size() < kDistributeFrom) {
    std::sort(records->begin(), records->end(), InHashOrder);
    return;
  }
  constexpr size_t kPieces = size_t{1} << kSortBits;
  const auto piece_of = [known_bits](const Hashed& record) {
    return static_cast<size_t>(record.key << known_bits >> (64 - kSortBits));
  };
  std::vector<size_t> next(kPieces);  // of each piece: the first place that is not settled
  for (const Hashed& record : *records) ++next[piece_of(record)];
  std::vector<size_t> ends(kPieces);
  size_t sum = 0;
  for (size_t p = 0; p < kPieces; ++p) {
    const size_t count = next[p];
    next[p] = sum;
    sum += count;
    ends[p] = sum;
  }
  for (size_t p = 0; p < kPieces; ++p) {
    while (next[p] < ends[p]) {
      Hashed record = (*records)[next[p]];
      for (size_t q = piece_of(record); q != p; q = piece_of(record)) {
        std::swap(record, (*records)[next[q]++]);
      }
      (*records)[next[p]++] = record;
    }
  }
  size_t begin = 0;
  for (const size_t end : ends) {
    std::sort(records->begin() + static_cast<int64_t>(begin),
              records->begin() + static_cast<int64_t>(end), InHashOrder);
    begin = end;
  }
}

// Leaves the newest record of each key, in the order of hashes.
void KeepNewest(std::vector<Hashed>* records, int known_bits) {
  SortByHash(records, known_bits);
  const auto same_key = [](const Hashed& a, const Hashed& b) {
    return a.key == b.key && a.table_index() == b.table_index();
  };
  records->erase(std::unique(records->begin(), records->end(), same_key), records->end());
}

int64_t ChunkEnd(const SsdGeometry& geometry, const SsdSegmentRef& ref, int64_t chunk_offset) {
  return std::min(ref.end_offset, chunk_offset + geometry.chunk_bytes);
}

int64_t TailBytes(const SsdGeometry& geometry, int64_t entries) {
  return std::min(RoundUp(SsdFooterBytes(entries), kBlockBytesMax), geometry.chunk_bytes);
}

// Entries of a chunk that holds records of this size alone, each with its entry in the footer.
int64_t EntriesOf(const SsdGeometry& geometry, int64_t record_bytes) {
  return geometry.chunk_bytes / (record_bytes + int64_t{sizeof(SsdFooterEntry)});
}

int64_t ShortestRowRecord(const SsdGeometry& geometry) {
  int64_t shortest = geometry.chunk_bytes;
  for (const int64_t bytes : geometry.row_bytes) {
    shortest = std::min(shortest, SsdRowRecordBytes(bytes));
  }
  return shortest;
}

// Bytes of the end of a chunk that are sure to hold its footer. Pads take 8 bytes at least, but at
// most one lies in each unit of 512.
int64_t TailBytesMax(const SsdGeometry& geometry) {
  const int64_t smallest = std::min<int64_t>(kSsdTombstoneBytes, ShortestRowRecord(geometry));
  return TailBytes(geometry, EntriesOf(geometry, smallest) + geometry.chunk_bytes / kSsdUnitBytes);
}

// Bytes that hold the footer of a chunk of rows. Tombstones make it longer, but a log of tombstones
// is seldom, and reading room for them everywhere would be reading half the log.
int64_t TailBytesOfRows(const SsdGeometry& geometry) {
  const int64_t rows = EntriesOf(geometry, ShortestRowRecord(geometry));
  return std::min(TailBytes(geometry, rows + rows / 2), TailBytesMax(geometry));
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
  const int64_t tail_bytes = TailBytesOfRows(geometry);
  const int64_t tail_bytes_max = TailBytesMax(geometry);
  const int64_t at_once =
      std::clamp<int64_t>(std::min(kScanBytes, budget.budget() / 16) / tail_bytes, 1,
                          std::max<int64_t>(static_cast<int64_t>(chunks.size()), 1));
  HOTROW_ASSIGN_OR_RETURN(
      BudgetedBuffer<std::byte> memory,
      BudgetedBuffer<std::byte>::Create(
          std::max(at_once * tail_bytes, geometry.chunk_bytes) + kBlockBytesMax, budget));
  auto* const buffer = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(memory.data()), kBlockBytesMax));

  std::vector<SsdScanned> records;
  const auto visit_all = [&](const Chunk& chunk) {
    for (const SsdScanned& record : records) visit(*chunk.ref, record);
    records.clear();
  };
  const auto take = [&](const Chunk& chunk, const SsdFooter& footer) {
    TakeEntries(footer, geometry, chunk.offset, ChunkEnd(geometry, *chunk.ref, chunk.offset),
                &records);
    visit_all(chunk);
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
    // Chunks with a longer footer or without a good one, to be read wholly once the buffer is free.
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
        open.push_back(chunk);
        return;
      }
      take(chunk, *footer);
    });
    HOTROW_RETURN_IF_ERROR(failed);
    for (const Chunk& chunk : open) {
      const std::span<std::byte> whole(buffer, static_cast<size_t>(geometry.chunk_bytes));
      HOTROW_RETURN_IF_ERROR(ReadFull(*file_of(chunk.ref->slot), chunk.offset, whole));
      const absl::StatusOr<SsdFooter> footer =
          DecodeSsdFooter(whole.last(static_cast<size_t>(tail_bytes_max)), chunk.ref->epoch,
                          chunk.offset, geometry.chunk_bytes, geometry.row_bytes);
      if (footer.ok()) {
        take(chunk, *footer);
        continue;
      }
      if (bad_footer && chunk.ref->end_offset > chunk.offset + geometry.chunk_bytes) {
        bad_footer(*chunk.ref, footer.status());
      }
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
    int64_t memory_bytes, uint64_t hash_seed,
    absl::FunctionRef<absl::Status(std::span<const SsdNewest> rows)> visit,
    const SsdBadFooter& bad_footer) {
  std::vector<uint64_t> table_seeds;
  for (uint32_t table = 0; table < geometry.row_bytes.size(); ++table) {
    table_seeds.push_back(SsdIndexTableSeed(hash_seed, table));
  }
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
          const uint64_t hash = Mix64(record.key ^ table_seeds[record.table_index()]);
          if (slice_bits > 0 && hash >> (64 - slice_bits) != slice) return;
          if (newest.size() >= limit) {
            KeepNewest(&newest, slice_bits);
            too_many = newest.size() > capacity / 2 && slice_bits < kSliceBitsMax;
            if (too_many) return;
            limit = std::max(capacity, 2 * newest.size());
          }
          newest.push_back({hash, record.sequence, record.offset, ref.slot, record.kind_table});
        },
        records < 0 ? bad_footer : nullptr));
    records = seen;
    if (too_many) {
      slice *= 2;
      ++slice_bits;
      continue;
    }
    KeepNewest(&newest, slice_bits);
    std::erase_if(newest, [](const Hashed& record) {
      return SsdKindOf(record.kind_table) != static_cast<uint32_t>(SsdRecordKind::kRow);
    });
    for (Hashed& record : newest) {
      record.key = Unmix64(record.key) ^ table_seeds[record.table_index()];
    }
    HOTROW_RETURN_IF_ERROR(visit(newest));
    ++slice;
  }
  return records;
}

absl::Status AddToSsdIndex(std::span<const SsdNewest> rows,
                           absl::FunctionRef<SsdLocation(const SsdNewest& row)> location_of,
                           SsdIndex* index) {
  constexpr size_t kAtOnce = 4096;
  std::vector<RowKey> keys;
  for (size_t begin = 0; begin < rows.size();) {
    const auto key_of = [&](size_t i) { return RowKey{rows[i].key, rows[i].table_index()}; };
    const int64_t partition = index->partition_of(key_of(begin));
    // The rows are in the order of partitions.
    const auto past = std::partition_point(
        rows.begin() + static_cast<int64_t>(begin), rows.end(), [&](const SsdNewest& row) {
          return index->partition_of({row.key, row.table_index()}) == partition;
        });
    const auto end = static_cast<size_t>(past - rows.begin());
    HOTROW_RETURN_IF_ERROR(index->Reserve(partition, static_cast<int64_t>(end - begin)));
    for (; begin < end; begin += keys.size()) {
      keys.clear();
      for (size_t i = begin; i < std::min(end, begin + kAtOnce); ++i) keys.push_back(key_of(i));
      HOTROW_RETURN_IF_ERROR(
          index->Upsert(keys, [&](size_t i, SsdLocation) { return location_of(rows[begin + i]); })
              .status);
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
