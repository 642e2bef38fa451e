#ifndef HOTROW_STORE_SSD_SSD_CHUNK_READER_IMPL_H_
#define HOTROW_STORE_SSD_SSD_CHUNK_READER_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/io_queue.h"
#include "base/metrics.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_log_impl.h"

namespace hotrow::internal {

// Reads segments of an open store from end to end, some chunks at once: to clean and to iterate.
//
// Threads: one at a time calls Read; whoever holds the cleaner's turn (SsdCleaner::Pause). The
//          counts may be read meanwhile.
// Errors:  of Create: ResourceExhausted, those of Env::NewIoQueue.
class SsdChunkReader {
 public:
  // The log outlives it.
  static absl::StatusOr<std::unique_ptr<SsdChunkReader>> Create(Env& env, IoQueueOptions io,
                                                                SsdLog& log, MemoryBudget& budget);

  // Told of the chunk at this offset of the segment, or of why it could not be read: DataLoss where
  // that will not change.
  using Visit = absl::FunctionRef<absl::Status(int64_t at, std::span<const std::byte> chunk,
                                               const absl::Status& read)>;
  // Visits the chunks that begin below `end`, in any order. Ends with the first error of `visit`.
  absl::Status Read(uint32_t slot, int64_t end, Visit visit) { return Read(slot, 0, end, visit); }
  // The same from the chunk at `begin` on.
  absl::Status Read(uint32_t slot, int64_t begin, int64_t end, Visit visit);
  // Bytes of chunks that are read at once.
  int64_t bytes_at_once() const;

  int64_t reads() const { return reads_.value(); }
  int64_t bytes_read() const { return bytes_read_.value(); }

 private:
  explicit SsdChunkReader(SsdLog& log) : log_(log) {}

  SsdLog& log_;
  BudgetedBuffer<std::byte> memory_;
  std::byte* buffer_ = nullptr;  // as many chunks as are read at once
  std::unique_ptr<IoQueue> queue_;
  Counter reads_, bytes_read_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_CHUNK_READER_IMPL_H_
