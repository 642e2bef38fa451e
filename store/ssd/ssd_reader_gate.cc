#include "store/ssd/ssd_reader_gate_impl.h"

#include "base/check.h"

namespace hotrow::internal {

uint64_t SsdReaderGate::Enter() {
  std::lock_guard lock(mutex_);
  ++active_[now_];
  return now_;
}

void SsdReaderGate::Exit(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  const auto at = active_.find(ticket);
  HOTROW_CHECK(at != active_.end());
  if (--at->second == 0) active_.erase(at);
}

uint64_t SsdReaderGate::Tag() {
  std::lock_guard lock(mutex_);
  return now_++;
}

uint64_t SsdReaderGate::OldestActive() const {
  std::lock_guard lock(mutex_);
  return active_.empty() ? now_ : active_.begin()->first;
}

}  // namespace hotrow::internal
