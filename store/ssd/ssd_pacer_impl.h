#ifndef HOTROW_STORE_SSD_SSD_PACER_IMPL_H_
#define HOTROW_STORE_SSD_SSD_PACER_IMPL_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/metrics.h"

namespace hotrow::internal {

// Slows writers down to what the cleaner frees, while the last free segments are in use.
//
// A round of cleaning grants what it gains chunk by chunk, as it moves rows, and a piece of a batch
// waits until the pieces before it are paid for. Many short waits thus take the place of a long one
// at whose end a round gives back whole segments. It is about time alone: a writer that may go on
// can still find no room, which the log then tells it.
//
// Writers also wait here for a snapshot that they are too fast for (Hold).
//
// Threads: all methods may run concurrently, but rounds do not overlap.
// Locks:   one mutex, under which no other is taken.
// Errors:  none.
class SsdPacer {
 public:
  explicit SsdPacer(int64_t segment_bytes) : segment_bytes_(segment_bytes) {}

  // --- Writers -----------------------------------------------------------------------------------

  // Waits until the writer may append a piece of a batch. Called without locks.
  void Wait();
  // What the piece has taken of the log.
  void Charge(int64_t log_bytes);

  // --- The cleaner -------------------------------------------------------------------------------

  // Writers are paced during a round that begins short of room, and not between rounds: whoever
  // holds the cleaner off then must not hold writers up.
  void BeginRound(bool short_of_room);
  // Does not wake writers, since the next round most likely follows at once.
  void EndRound();
  // Tells writers that no round follows.
  void Wake();
  // Log bytes that the round has gained. The fewer segments can be opened, the less is granted:
  // gains become usable with the next manifest, and the cost of pads and footers is not in them.
  void Grant(int64_t log_bytes, int64_t segments_available);

  // --- Snapshots ---------------------------------------------------------------------------------

  // No writer passes Wait as long as one of these lives.
  class Hold {
   public:
    explicit Hold(SsdPacer& pacer) : pacer_(pacer) { pacer_.ChangeHolds(1); }
    ~Hold() { pacer_.ChangeHolds(-1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    SsdPacer& pacer_;
  };

  // --- Readings ----------------------------------------------------------------------------------

  // A writer waits.
  void CountStall() { stalls_.Add(1); }
  int64_t stalls() const { return stalls_.value(); }

 private:
  void ChangeHolds(int change);

  const int64_t segment_bytes_;
  Counter stalls_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool pacing_ = false;
  int holds_ = 0;
  int64_t credit_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_PACER_IMPL_H_
