#include "store/ssd/ssd_victims_impl.h"

#include <algorithm>
#include <limits>

namespace hotrow::internal {
namespace {

constexpr int kVictimsMax = 8;
// A segment so full gains too little.
constexpr double kCleanUtilisationMax = 0.97;
// A segment that a snapshot names and that is less full is left by its rows before the next
// snapshot, which so holds at most twice what it needs.
constexpr double kPinnedUtilisationMax = 0.5;

struct Candidate {
  const SsdLog::SegmentView* segment;
  double utilisation;
  double score;
};

bool IsPresent(const SsdLog::SegmentView& s) {
  return s.state == SsdSegment::State::kSealed || s.state == SsdSegment::State::kOpen;
}

bool IsEligible(const SsdLog::SegmentView& s, SsdCleanOrder order) {
  if (s.state != SsdSegment::State::kSealed || !s.written || s.damaged) return false;
  return order == SsdCleanOrder::kAny || (s.snapshots > 0) == (order == SsdCleanOrder::kPinned);
}

bool GainsTooLittle(const SsdLog::SegmentView& s, double utilisation,
                    const SsdVictimOptions& options) {
  switch (options.order) {
    case SsdCleanOrder::kOldest:
      return s.base_sequence >= options.cycle_until;
    case SsdCleanOrder::kPinned:
      return utilisation > kPinnedUtilisationMax;
    default:
      return utilisation > kCleanUtilisationMax;
  }
}

// The higher the sooner.
double Score(const SsdLog::SegmentView& s, double utilisation, const SsdVictimOptions& options) {
  switch (options.order) {
    case SsdCleanOrder::kCostBenefit: {
      // Rosenblum & Ousterhout 1992: what is gained, (1 - u) of a segment, for as long as it may
      // last (the age of its youngest row), over what it costs, 1 to read and u to write.
      const double age =
          static_cast<double>(options.next_sequence) - static_cast<double>(s.newest_sequence) + 1;
      return (1 - utilisation) * age / (1 + utilisation);
    }
    case SsdCleanOrder::kOldest:
      return -static_cast<double>(s.base_sequence);
    default:
      return -utilisation;
  }
}

}  // namespace

std::vector<SsdLog::SegmentView> ChooseSsdVictims(std::span<const SsdLog::SegmentView> segments,
                                                  const SsdVictimOptions& options) {
  // The lowest number in the present state, and the lowest one in another segment than that.
  const SsdLog::SegmentView* oldest = nullptr;
  uint64_t next_oldest = std::numeric_limits<uint64_t>::max();
  for (const SsdLog::SegmentView& s : segments) {
    if (!IsPresent(s)) continue;
    if (oldest == nullptr || s.base_sequence < oldest->base_sequence) {
      if (oldest != nullptr) next_oldest = oldest->base_sequence;
      oldest = &s;
    } else {
      next_oldest = std::min(next_oldest, s.base_sequence);
    }
  }
  std::vector<Candidate> candidates;
  for (const SsdLog::SegmentView& s : segments) {
    if (!IsEligible(s, options.order)) continue;
    // Tombstones move too, unless all that stays is younger.
    const bool last = (&s == oldest ? next_oldest : oldest->base_sequence) >= s.newest_sequence;
    const double u = static_cast<double>(s.live_bytes + (last ? 0 : s.tombstone_bytes)) /
                     static_cast<double>(options.segment_capacity);
    if (!GainsTooLittle(s, u, options)) candidates.push_back({&s, u, Score(s, u, options)});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  const size_t count_max = options.order == SsdCleanOrder::kOldest ? 1 : kVictimsMax;
  std::vector<SsdLog::SegmentView> victims;
  double moved = 0;
  for (const Candidate& c : candidates) {
    if (victims.size() >= count_max) break;
    if (!victims.empty() && moved + c.utilisation > options.room) break;
    moved += c.utilisation;
    victims.push_back(*c.segment);
  }
  std::sort(victims.begin(), victims.end(),
            [](const auto& a, const auto& b) { return a.base_sequence < b.base_sequence; });
  return victims;
}

}  // namespace hotrow::internal
