#include "store/ssd/ssd_appender_impl.h"

#include <algorithm>
#include <mutex>

#include "base/status_macros.h"
#include "store/ssd/ssd_format_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kEntryBytes = sizeof(SsdFooterEntry);
// What a pad to the next unit takes at most.
constexpr int64_t kPadBytes = kSsdUnitBytes + kEntryBytes;

}  // namespace

// Like SsdLog::MakeRoom. False: nothing can be appended now. Where cleaning may help, the status of
// *out stays OK.
bool SsdAppender::MakeRoom(SsdStream stream, int64_t log_bytes, SsdAppended* out) {
  const absl::StatusOr<bool> has_room = log_.MakeRoom(stream, log_bytes, next_sequence_);
  if (has_room.ok()) return *has_room;
  const bool cleaning_helps = stream == SsdStream::kFresh &&
                              absl::IsResourceExhausted(has_room.status()) && log_.broken().ok();
  (cleaning_helps ? out->no_room : out->status) = has_room.status();
  return false;
}

// Pads are rare and not counted: a row that finds no room because of one is left to the next call.
size_t SsdAppender::CountRowsThatFit(SsdStream stream, std::span<const RowKey> index_keys,
                                     int64_t reserved) const {
  const int64_t room = log_.Room(stream);
  int64_t bytes = reserved;
  size_t count = 0;
  while (count < index_keys.size()) {
    bytes += tables_.log_bytes(index_keys[count].table);
    if (bytes > room) break;
    ++count;
  }
  return count;
}

// The one place that appends records of keys. The lock of the key's partition is held; the record
// fits. Returns where it is.
inline SsdLocation SsdAppender::AppendRecord(Tail tail, SsdRecordKind kind, const RowKey& index_key,
                                             const std::byte* row) {
  SsdChunk& chunk = tail.chunk;
  const uint32_t table = index_key.table;
  const SsdLocation location = log_.NextLocation(chunk);
  const uint64_t sequence = next_sequence_.fetch_add(1, std::memory_order_relaxed);
  std::byte* const out = chunk.data + chunk.fill;
  const int64_t bytes =
      kind == SsdRecordKind::kRow
          ? EncodeSsdRow(log_.NextPlace(chunk), table, index_key.key, sequence,
                         {row, static_cast<size_t>(tables_.row_bytes(table))}, out)
          : EncodeSsdTombstone(log_.NextPlace(chunk), table, index_key.key, sequence, out);
  log_.Appended(chunk, bytes, index_key.key, sequence, SsdKindTable(kind, table));
  tail.segment.newest_sequence.store(sequence, std::memory_order_relaxed);
  if (kind == SsdRecordKind::kRow) {
    live_.Add(location, table, 1);
  } else {
    tail.segment.tombstone_bytes.fetch_add(bytes + kEntryBytes, std::memory_order_relaxed);
    counts_.tombstones.Add(1);
  }
  return location;
}

SsdAppended SsdAppender::AppendRows(std::span<const RowKey> index_keys,
                                    std::span<const std::byte* const> rows) {
  constexpr SsdStream kStream = SsdStream::kFresh;
  SsdAppended out;
  std::lock_guard stream_lock(log_.stream_mutex(kStream));
  if (!MakeRoom(kStream, tables_.log_bytes(index_keys[0].table) + kPadBytes, &out)) return out;
  SsdChunk& chunk = *log_.chunk(kStream);
  const size_t count = CountRowsThatFit(kStream, index_keys, kPadBytes);
  bool full = false;
  int64_t payload_bytes = 0;
  std::lock_guard chunk_lock(chunk.mutex);
  const Tail tail = {chunk, log_.segment(chunk.slot)};
  const SsdIndex::UpsertResult result =
      index_.Upsert(index_keys.first(count), [&](size_t i, SsdLocation old) -> SsdLocation {
        const uint32_t table = index_keys[i].table;
        const int64_t log_bytes = tables_.log_bytes(table);
        // A unit names a key's row, so it must hold only one.
        const bool pad = old == log_.NextLocation(chunk);
        if (full || log_.Room(kStream) < log_bytes + (pad ? kPadBytes : 0)) {
          full = true;
          return kNoLocation;
        }
        if (pad) log_.PadToNextUnit(chunk);
        const SsdLocation location =
            AppendRecord(tail, SsdRecordKind::kRow, index_keys[i], rows[i]);
        if (old != kNoLocation) live_.Add(old, table, -1);
        payload_bytes += tables_.row_bytes(table);
        out.log_bytes += log_bytes;
        ++out.keys;
        return location;
      });
  out.status = result.status;
  out.first_chunk = chunk.offset == 0;
  counts_.rows_written.Add(static_cast<int64_t>(out.keys));
  counts_.payload_bytes.Add(payload_bytes);
  return out;
}

SsdAppended SsdAppender::AppendErasures(std::span<const RowKey> index_keys) {
  constexpr SsdStream kStream = SsdStream::kFresh;
  SsdAppended out;
  std::lock_guard stream_lock(log_.stream_mutex(kStream));
  if (!MakeRoom(kStream, kSsdTombstoneLogBytes + kPadBytes, &out)) return out;
  SsdChunk& chunk = *log_.chunk(kStream);
  const int64_t fit = (log_.Room(kStream) - kPadBytes) / kSsdTombstoneLogBytes;
  out.keys = std::min(index_keys.size(), static_cast<size_t>(fit));
  std::lock_guard chunk_lock(chunk.mutex);
  const Tail tail = {chunk, log_.segment(chunk.slot)};
  const SsdLocation begin = log_.Location(chunk.slot, chunk.offset);
  const SsdLocation end = log_.Location(chunk.slot, chunk.offset + log_.options().chunk_bytes);
  SsdLocation last_erased = begin;  // the row in this chunk that was last written
  const int64_t erased = index_.Erase(index_keys.first(out.keys), [&](size_t i, SsdLocation old) {
    AppendRecord(tail, SsdRecordKind::kTombstone, index_keys[i], nullptr);
    live_.Add(old, index_keys[i].table, -1);
    if (old > last_erased && old < end) last_erased = old;
  });
  counts_.rows_erased.Add(erased);
  out.log_bytes = erased * kSsdTombstoneLogBytes;
  // If the key comes back now, its row must not start in the unit where the erased one does.
  if (last_erased == log_.NextLocation(chunk)) log_.PadToNextUnit(chunk);
  return out;
}

SsdAppended SsdAppender::MoveRows(std::span<const RowKey> index_keys,
                                  std::span<const SsdLocation> from,
                                  std::span<const std::byte* const> rows) {
  constexpr SsdStream kStream = SsdStream::kSurvivors;
  SsdAppended out;
  std::lock_guard stream_lock(log_.stream_mutex(kStream));
  if (!MakeRoom(kStream, tables_.log_bytes(index_keys[0].table), &out)) return out;
  SsdChunk& chunk = *log_.chunk(kStream);
  out.keys = CountRowsThatFit(kStream, index_keys, 0);
  const std::span<const RowKey> keys = index_keys.first(out.keys);
  const std::span<const SsdLocation> expected = from.first(out.keys);
  std::lock_guard chunk_lock(chunk.mutex);
  const Tail tail = {chunk, log_.segment(chunk.slot)};
  if (expired_.any()) EraseExpired(tail, keys, expected, rows);
  const int64_t moved = index_.CompareAndSet(keys, expected, [&](size_t i) -> SsdLocation {
    const SsdLocation location = AppendRecord(tail, SsdRecordKind::kRow, keys[i], rows[i]);
    live_.Add(expected[i], keys[i].table, -1);
    return location;
  });
  counts_.rows_moved.Add(moved);
  return out;
}

SsdAppended SsdAppender::DropExpired(std::span<const RowKey> index_keys,
                                     std::span<const SsdLocation> from,
                                     std::span<const std::byte* const> rows) {
  constexpr SsdStream kStream = SsdStream::kSurvivors;
  SsdAppended out;
  std::lock_guard stream_lock(log_.stream_mutex(kStream));
  if (!MakeRoom(kStream, kSsdTombstoneLogBytes, &out)) return out;
  SsdChunk& chunk = *log_.chunk(kStream);
  out.keys =
      std::min(index_keys.size(), static_cast<size_t>(log_.Room(kStream) / kSsdTombstoneLogBytes));
  std::lock_guard chunk_lock(chunk.mutex);
  EraseExpired({chunk, log_.segment(chunk.slot)}, index_keys.first(out.keys), from, rows);
  return out;
}

// A tombstone is shorter than any row, so there is room.
void SsdAppender::EraseExpired(Tail tail, std::span<const RowKey> index_keys,
                               std::span<const SsdLocation> from,
                               std::span<const std::byte* const> rows) {
  const int64_t expired = index_.EraseAt(
      index_keys, from.first(index_keys.size()),
      [&](size_t i) { return expired_(index_keys[i], rows[i]); },
      [&](size_t i) {
        AppendRecord(tail, SsdRecordKind::kTombstone, index_keys[i], nullptr);
        live_.Add(from[i], index_keys[i].table, -1);
      });
  counts_.rows_expired.Add(expired);
}

SsdAppended SsdAppender::MoveTombstones(std::span<const RowKey> index_keys) {
  constexpr SsdStream kStream = SsdStream::kSurvivors;
  SsdAppended out;
  std::lock_guard stream_lock(log_.stream_mutex(kStream));
  if (!MakeRoom(kStream, kSsdTombstoneLogBytes, &out)) return out;
  SsdChunk& chunk = *log_.chunk(kStream);
  out.keys =
      std::min(index_keys.size(), static_cast<size_t>(log_.Room(kStream) / kSsdTombstoneLogBytes));
  std::lock_guard chunk_lock(chunk.mutex);
  const Tail tail = {chunk, log_.segment(chunk.slot)};
  // A key that is there again needs none. Otherwise the tombstone gets its own number: one
  // that stays below that of any row to come.
  out.status =
      index_
          .Upsert(index_keys.first(out.keys),
                  [&](size_t i, SsdLocation old) -> SsdLocation {
                    if (old == kNoLocation) {
                      AppendRecord(tail, SsdRecordKind::kTombstone, index_keys[i], nullptr);
                    }
                    return kNoLocation;
                  })
          .status;
  return out;
}

}  // namespace hotrow::internal
