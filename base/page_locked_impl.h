#ifndef HOTROW_BASE_PAGE_LOCKED_IMPL_H_
#define HOTROW_BASE_PAGE_LOCKED_IMPL_H_

#include <cstdint>
#include <map>
#include <mutex>

#include "absl/status/statusor.h"

namespace hotrow::internal {

// The page-locked memory of SharedMemory. What is given back is kept for who asks for as much, and
// goes back to the driver when nobody has any left. Giving it back waits for all work of the device
// (cudaFreeHost), and that work may wait for another rank, which may be waiting for this one in the
// same way: buffers that grow in the middle of steps would end in a circle.
//
// Memory:  at most an eighth more than is asked for; and what buffers had before they grew.
// Threads: any.
// Errors:  ResourceExhausted (names the bytes), FailedPrecondition (no usable GPU).
class PageLockedMemory {
 public:
  // The one of the process, to which the driver's page-locked memory belongs, too.
  static PageLockedMemory& OfProcess();

  // Zeroed; all devices reach it. bytes > 0.
  absl::StatusOr<void*> Take(int64_t bytes);
  void GiveBack(void* data, int64_t bytes);

  int64_t spare_bytes() const;  // kept, in nobody's use

 private:
  mutable std::mutex mutex_;              // guards what follows
  std::multimap<int64_t, void*> spares_;  // by size
  int64_t in_use_ = 0;                    // pieces
};

}  // namespace hotrow::internal

#endif  // HOTROW_BASE_PAGE_LOCKED_IMPL_H_
