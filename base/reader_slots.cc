#include "base/reader_slots.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"

namespace hotrow {
namespace {

// A reader works for micro- to milliseconds. Looking costs a cache line that it will write.
constexpr std::chrono::microseconds kLookFirst{20};
constexpr std::chrono::microseconds kLookLast{2000};

}  // namespace

ReaderSlots::ReaderSlots(int32_t slots)
    : num_slots_(slots),
      free_(slots),
      slots_(std::make_unique<Slot[]>(static_cast<size_t>(slots))) {
  HOTROW_CHECK(slots >= 1 && slots <= kSlotsMax);
}

int32_t ReaderSlots::Take() {
  free_.acquire();
  // One is free now, though others may look for it, too. A thread begins where it ended last, so
  // what belongs to the slot is likely in its core's caches.
  thread_local int32_t last = 0;
  for (int32_t at = last % num_slots_;; at = at + 1 == num_slots_ ? 0 : at + 1) {
    std::atomic<uint64_t>& uses = slots_[static_cast<size_t>(at)].uses;
    uint64_t found = uses.load(std::memory_order_relaxed);
    if (found % 2 != 0 || !uses.compare_exchange_strong(found, found + 1)) continue;
    last = at;
    return at;
  }
}

void ReaderSlots::GiveBack(int32_t slot) {
  slots_[static_cast<size_t>(slot)].uses.fetch_add(1, std::memory_order_release);
  free_.release();
}

void ReaderSlots::AwaitReaders() const {
  for (int32_t slot = 0; slot < num_slots_; ++slot) {
    const std::atomic<uint64_t>& uses = slots_[static_cast<size_t>(slot)].uses;
    const uint64_t found = uses.load();
    if (found % 2 == 0) continue;
    // Any other number says that this use has ended: the next one loads the new pointer.
    for (auto wait = kLookFirst; uses.load(std::memory_order_acquire) == found;
         wait = std::min(2 * wait, kLookLast)) {
      std::this_thread::sleep_for(wait);
    }
  }
}

}  // namespace hotrow
