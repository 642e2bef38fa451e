#ifndef HOTROW_STORE_SSD_SSD_READER_GATE_IMPL_H_
#define HOTROW_STORE_SSD_SSD_READER_GATE_IMPL_H_

#include <cstdint>
#include <map>
#include <mutex>

namespace hotrow::internal {

// Finds that run, so that what they may read is not written over.
//
// Threads: all methods may run concurrently.
class SsdReaderGate {
 public:
  uint64_t Enter();
  void Exit(uint64_t ticket);
  // What was unlinked before this call is out of reach once OldestActive() > the tag.
  uint64_t Tag();
  uint64_t OldestActive() const;

 private:
  mutable std::mutex mutex_;
  uint64_t now_ = 1;
  std::map<uint64_t, int> active_;
};

// Holds the gate open for one reader as long as it lives.
class SsdReaderTicket {
 public:
  explicit SsdReaderTicket(SsdReaderGate& gate) : gate_(gate), ticket_(gate.Enter()) {}
  ~SsdReaderTicket() { gate_.Exit(ticket_); }
  SsdReaderTicket(const SsdReaderTicket&) = delete;
  SsdReaderTicket& operator=(const SsdReaderTicket&) = delete;

 private:
  SsdReaderGate& gate_;
  const uint64_t ticket_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_READER_GATE_IMPL_H_
