#include "store/ssd/ssd_pacer_impl.h"

#include <algorithm>
#include <chrono>

#include "store/ssd/ssd_room_impl.h"

namespace hotrow::internal {

void SsdPacer::Wait() {
  // Nobody tells writers that a round has ended when the next one does not follow at once.
  constexpr auto kPoll = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex_);
  const auto must_wait = [&] { return holds_ > 0 || (pacing_ && credit_ <= 0); };
  if (!must_wait()) return;
  CountStall();
  while (must_wait()) changed_.wait_for(lock, kPoll);
}

void SsdPacer::Charge(int64_t log_bytes) {
  std::lock_guard lock(mutex_);
  if (pacing_) credit_ -= log_bytes;
}

void SsdPacer::BeginRound(bool short_of_room) {
  std::lock_guard lock(mutex_);
  if (!short_of_room) credit_ = 0;
  pacing_ = short_of_room;
}

void SsdPacer::EndRound() {
  std::lock_guard lock(mutex_);
  pacing_ = false;
}

void SsdPacer::Wake() { changed_.notify_all(); }

void SsdPacer::Grant(int64_t log_bytes, int64_t segments_available) {
  const int64_t parts = std::clamp<int64_t>(segments_available, 1, kSsdLowWater);
  {
    std::lock_guard lock(mutex_);
    if (!pacing_) return;
    credit_ = std::min(credit_ + log_bytes * parts / kSsdLowWater, segment_bytes_);
  }
  changed_.notify_all();
}

void SsdPacer::ChangeHolds(int change) {
  {
    std::lock_guard lock(mutex_);
    holds_ += change;
  }
  changed_.notify_all();
}

}  // namespace hotrow::internal
