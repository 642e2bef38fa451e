#include "store/ssd/ssd_cleaner_impl.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/own_status.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"

namespace hotrow::internal {
namespace {

// A round that gains less of a segment than this part of it is none.
constexpr int64_t kGainMin = 64;
// Before a snapshot so much of the disk budget is made free, if cleaning can.
constexpr int64_t kFreePartForSnapshot = 4;
// Tombstones below this part of the live bytes are not worth rewriting everything.
constexpr int64_t kTombstonesPerLive = 32;

}  // namespace

// What is needed of a chunk.
struct SsdCleaner::ChunkWork {
  std::vector<SsdScanned> records;  // all of them
  std::vector<RowKey> keys;         // theirs; then those of live rows alone
  std::vector<SsdLocation> locations;
  std::vector<SsdLocation> expected;  // of live rows
  std::vector<const std::byte*> rows;
  std::vector<RowKey> erased;
};

SsdCleaner::~SsdCleaner() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status SsdCleaner::Start() {
  HOTROW_ASSIGN_OR_RETURN(thread_, StartThread("the cleaner of an ssd store", [this] { Loop(); }));
  return absl::OkStatus();
}

// --- The thread ----------------------------------------------------------------------------------

void SsdCleaner::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || wanted_; });
    if (stop_) return;
    wanted_ = false;
    bool again = true;
    while (again && !stop_) {
      lock.unlock();
      Round round = RunPacedRound();
      const int64_t available = p_.log.Available();
      lock.lock();
      ++rounds_;
      again = round.gained && available < kSsdHighWater;
      last_round_ = std::move(round);
      if (!again) p_.pacer.Wake();
      changed_.notify_all();
    }
  }
}

SsdCleaner::Round SsdCleaner::RunPacedRound() {
  std::lock_guard turn(turn_);
  if (retired_) return {.status = absl::OkStatus(), .gained = false, .was_full = false};
  p_.pacer.BeginRound(/*short_of_room=*/p_.log.Available() <= kSsdLowWater);
  Round round = RunRound();
  p_.pacer.EndRound();
  return round;
}

SsdCleaner::Round SsdCleaner::RunRound() {
  const bool was_full = p_.room.LacksFreshSegments();
  const absl::StatusOr<bool> gained = Caught(
      "cleaning", [&] { return CleanRound(); },
      [this](const absl::Status& thrown) { p_.log.Break(thrown); });
  return {.status = gained.status(), .gained = gained.ok() && *gained, .was_full = was_full};
}

void SsdCleaner::WakeIfShort() {
  if (!thread_.joinable() || p_.log.Available() > kSsdLowWater) return;
  std::lock_guard lock(mutex_);
  wanted_ = true;
  changed_.notify_all();
}

absl::Status SsdCleaner::WaitForRoom(const absl::Status& why) {
  Round round;
  p_.pacer.CountStall();
  if (!thread_.joinable()) {
    std::lock_guard turn(turn_);
    round = RunRound();
  } else {
    std::unique_lock lock(mutex_);
    // The round that runs may have begun before there was anything to gain.
    const int64_t until = rounds_ + 2;
    do {
      const int64_t seen = rounds_;
      wanted_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return rounds_ != seen || stop_; });
    } while (rounds_ < until && !last_round_.gained && !stop_);
    round = last_round_;
    round.status = OwnStatus(last_round_.status);
  }
  HOTROW_RETURN_IF_ERROR(round.status);
  if (round.gained) return absl::OkStatus();
  if (!why.ok()) return why;
  // A round that gains nothing says that the store is full only if there was no room when it began,
  // nor any that finds still held: others may use that up, and leave garbage, before this line.
  if (!round.was_full) return absl::OkStatus();
  return p_.room.Full(segment_bytes());
}

// --- Snapshots -----------------------------------------------------------------------------------

void SsdCleaner::TidyForSnapshot() {
  for (int64_t i = 0; i < segments_max() && p_.log.Available() > kSsdHighWater; ++i) {
    std::lock_guard turn(turn_);
    const std::vector<SsdLog::SegmentView> pinned = ChooseVictims(SsdCleanOrder::kPinned);
    if (pinned.empty() || !CleanSome(pinned).ok()) break;
  }
  const auto wanted = [&] {
    return std::min(CeilDiv(p_.live.log_bytes(), p_.log.SegmentCapacity()) + kSsdHighWater,
                    segments_max() / kFreePartForSnapshot);
  };
  for (int64_t i = 0; i < segments_max() && p_.log.Available() < wanted(); ++i) {
    std::lock_guard turn(turn_);
    const absl::StatusOr<bool> gained = CleanRound();
    if (!gained.ok() || !*gained) return;  // the snapshot itself may be possible all the same
  }
}

void SsdCleaner::ShrinkForSnapshot() {
  const auto named = [&] {
    int64_t count = 0;
    for (const SsdLog::SegmentView& s : p_.log.Segments()) {
      count += s.state == SsdSegment::State::kSealed || s.state == SsdSegment::State::kOpen;
    }
    return count;
  };
  for (int64_t i = 0; i < segments_max() && named() > p_.room.BoundSnapshot().wanted; ++i) {
    // Segments are chosen when they are written.
    if (!p_.log.WaitWritten().ok()) return;
    std::lock_guard turn(turn_);
    // Rows that leave what snapshots name give nothing back; those that leave the rest do.
    bool gained = false;
    if (p_.log.Available() <= kSsdHighWater) {
      const absl::StatusOr<bool> cleaned = CleanRound();
      if (!cleaned.ok()) return;
      gained = *cleaned;
    }
    const int64_t available = p_.log.Available();
    if (available <= SsdLog::kReservedSegments && gained) continue;
    // Half of the reserve, too: the snapshot that takes the place of others gives it back.
    const int64_t room = std::max<int64_t>(available - SsdLog::kReservedSegments,
                                           std::min<int64_t>(available - 1, 1));
    if (room <= 0) return;
    const std::vector<SsdLog::SegmentView> victims =
        ChooseVictims(SsdCleanOrder::kAny, static_cast<double>(room));
    const int64_t capacity = p_.log.SegmentCapacity();
    int64_t moved = 0;
    for (const SsdLog::SegmentView& s : victims) moved += s.live_bytes + s.tombstone_bytes;
    if (moved > room * capacity || std::ssize(victims) * capacity - moved < capacity ||
        !CleanSome(victims).ok()) {
      return;
    }
  }
}

absl::Status SsdCleaner::CleanAll() {
  for (;;) {
    std::lock_guard turn(turn_);
    HOTROW_ASSIGN_OR_RETURN(const bool gained, CleanRound());
    if (!gained) return absl::OkStatus();
  }
}

// --- Rows that have expired ----------------------------------------------------------------------

std::optional<SsdLog::SegmentView> SsdCleaner::NextToLookAt() const {
  std::optional<SsdLog::SegmentView> next;
  for (const SsdLog::SegmentView& s : p_.log.Segments()) {
    if (s.state != SsdSegment::State::kSealed || !s.written || s.damaged) continue;
    if (s.base_sequence < drop_sequence_) continue;
    if (!next.has_value() || s.base_sequence < next->base_sequence) next = s;
  }
  return next;
}

absl::StatusOr<int64_t> SsdCleaner::DropExpired(int64_t rows) {
  HOTROW_RETURN_IF_ERROR(p_.log.broken());
  // A round drops what it meets, and nobody waits for it here.
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn.owns_lock() || retired_ || !p_.appender.may_expire()) return 0;
  HOTROW_RETURN_IF_ERROR(p_.commits.DropImage());
  bool wrapped = false;
  for (int64_t seen = 0; seen < rows;) {
    const std::optional<SsdLog::SegmentView> segment = NextToLookAt();
    if (!segment.has_value()) {
      if (std::exchange(wrapped, true)) break;
      drop_sequence_ = 0;
      drop_offset_ = 0;
      continue;
    }
    if (segment->base_sequence != drop_sequence_) drop_offset_ = 0;
    drop_sequence_ = segment->base_sequence;
    HOTROW_ASSIGN_OR_RETURN(const int64_t looked_at, DropSome(*segment));
    seen += looked_at;
    if (drop_offset_ < segment->end_offset) continue;
    ++drop_sequence_;
    drop_offset_ = 0;
  }
  const int64_t expired = p_.appender.counts().rows_expired.value();
  return expired - std::exchange(told_expired_, expired);
}

absl::StatusOr<int64_t> SsdCleaner::DropSome(const SsdLog::SegmentView& segment) {
  const SsdSegmentRef ref = {.slot = segment.slot,
                             .epoch = segment.epoch,
                             .base_sequence = segment.base_sequence,
                             .end_offset = segment.end_offset,
                             .live_bytes = 0};
  const int64_t begin = drop_offset_;
  const int64_t end = std::min(begin + p_.chunks.bytes_at_once(), segment.end_offset);
  // A segment with nothing in it is passed over, and one that cannot be read; whoever needs its
  // rows says what is wrong.
  drop_offset_ = segment.live_bytes == 0 ? segment.end_offset : end;
  if (segment.live_bytes == 0) return 0;
  constexpr uint64_t kNoTombstones = std::numeric_limits<uint64_t>::max();
  int64_t rows = 0;
  ChunkWork work;
  HOTROW_RETURN_IF_ERROR(p_.chunks.Read(
      ref.slot, begin, end,
      [&](int64_t at, std::span<const std::byte> chunk, const absl::Status& read) -> absl::Status {
        absl::Status damage;
        if (absl::IsDataLoss(read)) return absl::OkStatus();
        HOTROW_RETURN_IF_ERROR(read);
        if (!ListNeeded(ref, kNoTombstones, at, chunk, &work, &damage)) return absl::OkStatus();
        rows += std::ssize(work.keys);
        // Those that have expired alone: where there are none, no chunk need be opened.
        size_t n = 0;
        for (size_t i = 0; i < work.keys.size(); ++i) {
          if (!p_.appender.HasExpired(work.keys[i], work.rows[i])) continue;
          work.keys[n] = work.keys[i];
          work.expected[n] = work.expected[i];
          work.rows[n++] = work.rows[i];
        }
        const auto keys = std::span<const RowKey>(work.keys).first(n);
        const auto from = std::span<const SsdLocation>(work.expected).first(n);
        const auto bytes = std::span<const std::byte* const>(work.rows).first(n);
        return AppendAll(keys.size(), [&](size_t done) {
          return p_.appender.DropExpired(keys.subspan(done), from.subspan(done),
                                         bytes.subspan(done));
        });
      }));
  return rows;
}

// --- A round -------------------------------------------------------------------------------------

std::vector<SsdLog::SegmentView> SsdCleaner::ChooseVictims(SsdCleanOrder order, double room) const {
  return ChooseSsdVictims(p_.log.Segments(), {.order = order,
                                              .room = room,
                                              .next_sequence = p_.appender.next_sequence(),
                                              .segment_capacity = p_.log.SegmentCapacity(),
                                              .cycle_until = cycle_until_});
}

// Frees some segments. False: nothing can be gained.
//
// When nothing but tombstones is left to gain, a cycle begins: rounds that take the oldest segment,
// however full, until all are younger than the beginning. By then every tombstone has met the
// moment when nothing older was left. It is worth it when many have come since the last cycle.
absl::StatusOr<bool> SsdCleaner::CleanRound() {
  HOTROW_RETURN_IF_ERROR(p_.log.broken());
  for (;;) {
    if (cycle_until_ == 0 || p_.log.Available() < SsdLog::kReservedSegments) {
      for (const SsdCleanOrder order : {SsdCleanOrder::kCostBenefit, SsdCleanOrder::kEmptiest}) {
        HOTROW_ASSIGN_OR_RETURN(const bool gained, CleanSome(ChooseVictims(order)));
        if (gained) return true;
      }
      const int64_t many = std::max(segment_bytes(), p_.live.log_bytes() / kTombstonesPerLive);
      const int64_t tombstones = p_.room.TombstoneBytes();
      tombstones_after_cycle_ = std::min(tombstones_after_cycle_, tombstones);
      if (cycle_until_ != 0 || tombstones < tombstones_after_cycle_ + many) break;
      cycle_until_ = p_.appender.next_sequence();
    }
    const std::vector<SsdLog::SegmentView> oldest = ChooseVictims(SsdCleanOrder::kOldest);
    if (!oldest.empty()) {
      HOTROW_RETURN_IF_ERROR(CleanSome(oldest).status());
      return true;
    }
    cycle_until_ = 0;
    tombstones_after_cycle_ = p_.room.TombstoneBytes();
  }
  // Finds hold on to what was freed before, but not for long.
  return p_.log.WaitForReaders();
}

// Whether more room was freed than used up: full chunks may hold less than the threshold of a
// victim, and each round pads the last of what it wrote.
absl::StatusOr<bool> SsdCleaner::CleanSome(std::span<const SsdLog::SegmentView> victims) {
  SsdLog& log = p_.log;
  HOTROW_RETURN_IF_ERROR(p_.commits.DropImage());
  // What rounds before this one freed may still be held by finds, all but what survivors need.
  while (log.Available() < SsdLog::kReservedSegments && log.WaitForReaders()) continue;
  int64_t used = 0;
  {
    std::lock_guard lock(log.stream_mutex(SsdStream::kSurvivors));
    // Keys that a round before this one moved, and failed, must not get a second record in a unit.
    log.Submit(SsdStream::kSurvivors, /*close=*/false);
    used = -log.StreamBytes(SsdStream::kSurvivors);
  }
  std::vector<uint32_t> cleaned;
  for (const SsdLog::SegmentView& victim : victims) {
    // Tombstones of an earlier run are not known before they are read.
    if (!cleaned.empty() && log.Available() == 0) break;
    absl::Status damage;
    HOTROW_RETURN_IF_ERROR(CleanSegment(victim, cleaned, &damage));
    if (damage.ok()) {
      cleaned.push_back(victim.slot);
    } else {
      log.MarkDamaged(victim.slot);  // finds and `hotrow verify` say what is wrong
    }
  }
  // Also segments of an earlier round whose manifest could not be written.
  const int64_t freed = std::ssize(log.CleanedSegments()) + std::ssize(cleaned);
  log.MarkCleaned(cleaned);
  if (freed == 0) return false;
  HOTROW_RETURN_IF_ERROR(p_.commits.Commit(SsdCommits::Cleaning::kPaused).status());
  segments_cleaned_.Add(std::ssize(cleaned));
  std::lock_guard lock(log.stream_mutex(SsdStream::kSurvivors));
  used += log.StreamBytes(SsdStream::kSurvivors);
  return freed * segment_bytes() - used >= segment_bytes() / kGainMin;
}

// Moves what is needed out of the segment. *damage says what could not be read; the segment must
// then stay, and so must tombstones that speak of its rows: those of segments cleaned before do,
// since only they, and not the ones still to come, count as gone.
absl::Status SsdCleaner::CleanSegment(const SsdLog::SegmentView& victim,
                                      std::span<const uint32_t> cleaned, absl::Status* damage) {
  // A tombstone is needed while a segment that stays may hold an older row of its key.
  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  for (const SsdLog::SegmentView& s : p_.log.Segments()) {
    if (s.state != SsdSegment::State::kSealed && s.state != SsdSegment::State::kOpen) continue;
    if (s.slot == victim.slot) continue;
    if (std::find(cleaned.begin(), cleaned.end(), s.slot) != cleaned.end()) continue;
    oldest = std::min(oldest, s.base_sequence);
  }
  const SsdSegmentRef ref = {.slot = victim.slot,
                             .epoch = victim.epoch,
                             .base_sequence = victim.base_sequence,
                             .end_offset = victim.end_offset,
                             .live_bytes = 0};
  ChunkWork work;
  return p_.chunks.Read(
      ref.slot, ref.end_offset,
      [&](int64_t at, std::span<const std::byte> chunk, const absl::Status& read) -> absl::Status {
        if (absl::IsDataLoss(read)) {
          damage->Update(read);
          return absl::OkStatus();
        }
        HOTROW_RETURN_IF_ERROR(read);
        if (!ListNeeded(ref, oldest, at, chunk, &work, damage)) return absl::OkStatus();
        HOTROW_RETURN_IF_ERROR(MoveNeeded(work));
        int64_t gained = std::min<int64_t>(std::ssize(chunk), ref.end_offset - at);
        for (const RowKey& key : work.keys) gained -= p_.tables.log_bytes(key.table);
        gained -= std::ssize(work.erased) * kSsdTombstoneLogBytes;
        p_.pacer.Grant(std::max<int64_t>(gained, 0), p_.log.Available());
        return absl::OkStatus();
      });
}

// Lists the rows of the chunk that the index names, and the tombstones that are still needed.
// False: the chunk cannot be listed. *damage says what cannot be read.
bool SsdCleaner::ListNeeded(const SsdSegmentRef& ref, uint64_t oldest, int64_t at,
                            std::span<const std::byte> chunk, ChunkWork* work,
                            absl::Status* damage) const {
  const SsdGeometry geometry = {segment_bytes(), p_.log.options().chunk_bytes,
                                p_.tables.row_bytes()};
  work->records.clear();
  const absl::Status listed = ListSsdChunk(geometry, ref, at, chunk, &work->records);
  if (!listed.ok()) {
    damage->Update(absl::Status(listed.code(), absl::StrCat(p_.log.SegmentPath(ref.slot), ": ",
                                                            std::string(listed.message()))));
    return false;
  }
  auto& keys = work->keys;
  keys.clear();
  for (const SsdScanned& record : work->records) keys.push_back({record.key, record.table_index()});
  work->locations.resize(keys.size());
  p_.index.Find(keys, work->locations);
  size_t live = 0;
  work->expected.clear();
  work->rows.clear();
  work->erased.clear();
  for (size_t i = 0; i < work->records.size(); ++i) {
    const SsdScanned& record = work->records[i];
    const SsdLocation location = work->locations[i];
    if (record.kind() == SsdRecordKind::kTombstone) {
      if (location == kNoLocation && oldest < record.sequence) work->erased.push_back(keys[i]);
      continue;
    }
    if (location != p_.log.Location(ref.slot, record.offset)) continue;
    const std::optional<SsdRecord> row =
        DecodeSsdRecord(chunk.subspan(static_cast<size_t>(record.offset - at)),
                        {ref.epoch, record.offset}, p_.tables.row_bytes());
    if (!row.has_value() || row->key != record.key) {
      damage->Update(p_.tables.Unreadable(p_.log.SegmentPath(ref.slot), record.offset, keys[i]));
      continue;
    }
    keys[live++] = keys[i];
    work->expected.push_back(location);
    work->rows.push_back(row->row.data());
  }
  keys.resize(live);
  return true;
}

absl::Status SsdCleaner::MoveNeeded(const ChunkWork& work) {
  const std::span<const RowKey> keys = work.keys;
  const std::span<const SsdLocation> from = work.expected;
  const std::span<const std::byte* const> rows = work.rows;
  HOTROW_RETURN_IF_ERROR(AppendAll(keys.size(), [&](size_t done) {
    return p_.appender.MoveRows(keys.subspan(done), from.subspan(done), rows.subspan(done));
  }));
  const std::span<const RowKey> erased = work.erased;
  return AppendAll(erased.size(),
                   [&](size_t done) { return p_.appender.MoveTombstones(erased.subspan(done)); });
}

absl::Status SsdCleaner::AppendAll(size_t count,
                                   absl::FunctionRef<SsdAppended(size_t done)> append) {
  size_t done = 0;
  while (done < count) {
    const SsdAppended piece = append(done);
    HOTROW_RETURN_IF_ERROR(piece.status);
    if (piece.keys == 0) return p_.room.Full(segment_bytes());
    done += piece.keys;
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
