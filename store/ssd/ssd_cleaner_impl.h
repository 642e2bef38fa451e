#ifndef HOTROW_STORE_SSD_SSD_CLEANER_IMPL_H_
#define HOTROW_STORE_SSD_SSD_CLEANER_IMPL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metrics.h"
#include "base/row_key.h"
#include "store/ssd/ssd_appender_impl.h"
#include "store/ssd/ssd_chunk_reader_impl.h"
#include "store/ssd/ssd_commits_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_live_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_pacer_impl.h"
#include "store/ssd/ssd_room_impl.h"
#include "store/ssd/ssd_tables_impl.h"
#include "store/ssd/ssd_victims_impl.h"

namespace hotrow::internal {

// Frees segments: moves what is needed out of those where that gains most, and commits a state
// without them. Also moves rows together for snapshots.
//
// Threads: all methods may run concurrently. Start makes a thread that runs rounds while segments
//          are few; without it rounds run in WaitForRoom, inside the call that needs one.
// Locks:   the turn is held during a round; Pause takes it, so whoever holds a pause may call
//          nothing here but Retire. Under it come the locks of commits, appender and log. Another
//          lock guards requests and results of the thread; no other is taken under it.
// Errors:  those of SsdAppender, SsdChunkReader and SsdCommits; ResourceExhausted where survivors
//          find no room. A round that fails loses nothing. A segment with records that cannot be
//          read is marked damaged and left alone.
class SsdCleaner {
 public:
  // All outlive it.
  struct Parts {
    const SsdTables& tables;
    SsdLog& log;
    const SsdIndex& index;
    const SsdLive& live;
    SsdAppender& appender;
    const SsdRoom& room;
    SsdCommits& commits;
    SsdPacer& pacer;
    SsdChunkReader& chunks;
  };
  explicit SsdCleaner(const Parts& parts) : p_(parts) {}
  // Ends the thread after the round that runs.
  ~SsdCleaner();

  // Errors: Unavailable (no thread).
  absl::Status Start();

  // --- Writers, without locks --------------------------------------------------------------------

  // After a segment was opened: has the thread work if few are left.
  void WakeIfShort();
  // Called when no segment is free. OK: it is worth trying again. why: what the file system says
  // about making one more, OK if nothing; returned when cleaning gains nothing.
  absl::Status WaitForRoom(const absl::Status& why);

  // --- Snapshots ---------------------------------------------------------------------------------

  // RowStore::TidyForSnapshot.
  //
  // What a snapshot names stays as it is, garbage included, and cleaning is lazy: without this a
  // store in use would have hardly a segment to write to until the snapshot is dropped. Segments
  // that a snapshot pins already give nothing back before it is dropped. But where snapshots follow
  // each other, each would hand its garbage on to the next, for ever; so rows leave those that are
  // mostly garbage as long as there is room to move them to.
  void TidyForSnapshot();
  // Moves rows together until a snapshot of the present state names no more segments than it
  // should, if that can be. Costs nothing where the disk is not short.
  void ShrinkForSnapshot();

  // --- Others ------------------------------------------------------------------------------------

  // Waits for the round that runs; none begins as long as the lock is held.
  [[nodiscard]] std::unique_lock<std::mutex> Pause() { return std::unique_lock(turn_); }
  // The thread runs no further round. The caller holds a Pause.
  void Retire() { retired_ = true; }
  // Cleans until no segment would gain by it.
  absl::Status CleanAll();
  // RowStore::DropAged. Reads sealed segments, on from where the last call ended, and takes the
  // rows that have expired out of the index; the segments stay, with more garbage. Does nothing
  // while a round runs. Counts what rounds have dropped, too.
  absl::StatusOr<int64_t> DropExpired(int64_t rows);

  int64_t segments_cleaned() const { return segments_cleaned_.value(); }

 private:
  struct ChunkWork;
  struct Round {
    absl::Status status;
    bool gained = true;
    bool was_full = false;  // when it began
  };

  void Loop();
  Round RunPacedRound();

  // The turn is held in all that follows.
  Round RunRound();
  absl::StatusOr<bool> CleanRound();
  std::vector<SsdLog::SegmentView> ChooseVictims(SsdCleanOrder order, double room = 1.0) const;
  absl::StatusOr<bool> CleanSome(std::span<const SsdLog::SegmentView> victims);
  absl::Status CleanSegment(const SsdLog::SegmentView& victim, std::span<const uint32_t> cleaned,
                            absl::Status* damage);
  bool ListNeeded(const SsdSegmentRef& ref, uint64_t oldest, int64_t at,
                  std::span<const std::byte> chunk, ChunkWork* work, absl::Status* damage) const;
  absl::Status MoveNeeded(const ChunkWork& work);
  absl::Status AppendAll(size_t count, absl::FunctionRef<SsdAppended(size_t done)> append);

  int64_t segment_bytes() const { return p_.log.options().segment_bytes; }
  int64_t segments_max() const { return p_.log.options().segments_max; }

  // The segment that DropExpired looks at next; null: there is none on this pass.
  std::optional<SsdLog::SegmentView> NextToLookAt() const;
  // Some chunks of a segment, from drop_offset_ on. Returns how many rows they have.
  absl::StatusOr<int64_t> DropSome(const SsdLog::SegmentView& segment);

  const Parts p_;
  Counter segments_cleaned_;

  std::mutex turn_;  // guards what follows
  bool retired_ = false;
  uint64_t cycle_until_ = 0;  // see CleanRound; 0: no cycle
  int64_t tombstones_after_cycle_ = 0;
  // Where DropExpired goes on: in the oldest segment that begins at this number or later, at this
  // offset if it begins at this very number.
  uint64_t drop_sequence_ = 0;
  int64_t drop_offset_ = 0;
  int64_t told_expired_ = 0;  // SsdAppender::Counts::rows_expired when it returned last

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool wanted_ = false;
  bool stop_ = false;
  int64_t rounds_ = 0;  // that ended
  Round last_round_;
  std::thread thread_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_CLEANER_IMPL_H_
