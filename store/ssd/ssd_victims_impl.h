#ifndef HOTROW_STORE_SSD_SSD_VICTIMS_IMPL_H_
#define HOTROW_STORE_SSD_SSD_VICTIMS_IMPL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "store/ssd/ssd_log_impl.h"

// Which segments of an SsdStore a round of cleaning takes.
namespace hotrow::internal {

enum class SsdCleanOrder {
  kCostBenefit,  // where it pays most in the long run
  kEmptiest,     // those that cost least now
  kOldest,       // the oldest one, so that tombstones can go
  kPinned,       // those that snapshots name and that are mostly garbage, the emptiest first
  kAny,          // those whose rows fit into fewer segments, snapshots or not, the emptiest first
};

struct SsdVictimOptions {
  SsdCleanOrder order = SsdCleanOrder::kCostBenefit;
  // Segments that the rows and tombstones of the victims may fill: one of those that are reserved,
  // beside the one that is open.
  double room = 1.0;
  uint64_t next_sequence = 0;
  int64_t segment_capacity = 0;  // SsdLog::SegmentCapacity
  uint64_t cycle_until = 0;      // of kOldest: only a segment that begins below
};

// Chooses up to eight of `segments` that are sealed, written and undamaged, as many as `room`
// allows and one at least where there is one that gains enough. The older come first, so that their
// rows no longer hold back the tombstones of the younger. A function of its arguments alone.
std::vector<SsdLog::SegmentView> ChooseSsdVictims(std::span<const SsdLog::SegmentView> segments,
                                                  const SsdVictimOptions& options);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_VICTIMS_IMPL_H_
