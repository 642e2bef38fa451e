#ifndef HOTROW_BASE_READER_SLOTS_H_
#define HOTROW_BASE_READER_SLOTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <semaphore>

namespace hotrow {

// Slots that readers take for as long as they read, so that a writer knows when nobody sees any
// more what it has replaced. A reader takes a slot, then loads the pointer to what it reads, and
// gives the slot back behind its last access. A writer stores the pointer to the new version and
// waits:
//
//   reader: slot = Take(); p = current.load(); ... ; GiveBack(slot);
//   writer: old = current.exchange(next); AwaitReaders(); delete old;
//
// Load and store of the pointer must be std::memory_order_seq_cst: then a reader that the writer
// did not find in a slot loads the new pointer.
//
// Threads: Take and GiveBack any number; Take waits only where all slots are taken. AwaitReaders
//          waits for those who had a slot when it was called, and for no one who comes later.
class ReaderSlots {
 public:
  static constexpr int32_t kSlotsMax = 4096;

  explicit ReaderSlots(int32_t slots);  // in [1, kSlotsMax]
  ReaderSlots(const ReaderSlots&) = delete;
  ReaderSlots& operator=(const ReaderSlots&) = delete;

  int32_t Take();
  void GiveBack(int32_t slot);
  void AwaitReaders() const;

  int32_t slots() const { return num_slots_; }

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> uses = 0;  // odd: taken
  };

  const int32_t num_slots_;
  std::counting_semaphore<kSlotsMax> free_;
  const std::unique_ptr<Slot[]> slots_;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_READER_SLOTS_H_
