#ifndef HOTROW_STORE_SSD_SSD_READER_IMPL_H_
#define HOTROW_STORE_SSD_SSD_READER_IMPL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/io_queue.h"
#include "base/metrics.h"
#include "base/row_key.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_tables_impl.h"

namespace hotrow::internal {

// What one Find needs for its reads: of each directory a lane, with a queue and a buffer; where
// there are several, threads, too.
struct SsdFindContext;
struct SsdFindLane;

// The contexts of finds, as many as may read at once.
//
// Threads: all methods may run concurrently. Take waits until a context is free.
// Locks:   one mutex, under which no other is taken.
class SsdFindContexts {
 public:
  // Their buffers take a part of the budget. Without threads a Find reads one directory after the
  // other. Errors: ResourceExhausted, Unavailable (no thread), those of Env::NewIoQueue.
  static absl::StatusOr<std::unique_ptr<SsdFindContexts>> Create(Env& env, const IoQueueOptions& io,
                                                                 uint32_t directories, bool threads,
                                                                 const SsdTables& tables,
                                                                 MemoryBudget& budget);
  ~SsdFindContexts();

  std::unique_ptr<SsdFindContext> Take();
  void Return(std::unique_ptr<SsdFindContext> context);
  // "io_uring"; "busy" while all are taken.
  std::string queue_name() const;

 private:
  SsdFindContexts();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<SsdFindContext>> free_;
};

// Finds rows: asks the index where they are, and copies them from chunks that are not written yet
// or reads them from the segments, neighbours at once.
//
// Threads: all methods may run concurrently; more finds than there are contexts wait.
// Locks:   has none. A find enters the log's reader gate, so that no segment that the index names
//          is written over before it ends, then takes those of the index, of the log and of chunks,
//          one after the other.
// Errors:  InvalidArgument (a table that the store does not have), DataLoss (naming file, offset,
//          key and table), those of the files.
class SsdReader {
 public:
  // All outlive it but the contexts.
  SsdReader(const SsdTables& tables, SsdLog& log, const SsdIndex& index,
            std::unique_ptr<SsdFindContexts> contexts);

  // RowStore::Find. Sizes are equal.
  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found);

  // Since opening.
  struct Counts {
    Counter finds, hits, reads, bytes_read, merged_reads;
  };
  const Counts& counts() const { return counts_; }
  std::string queue_name() const { return contexts_->queue_name(); }

 private:
  absl::Status FindSome(SsdFindContext& context, std::span<const RowKey> keys,
                        std::span<std::byte* const> rows, std::span<uint8_t> found);
  absl::Status TakePending(SsdFindContext& context,
                           std::span<const std::shared_ptr<SsdChunk>> pending,
                           std::span<std::byte* const> rows);
  absl::Status ReadWanted(SsdFindContext& context, std::span<std::byte* const> rows);
  // What is wanted of one directory. Lanes of one context may run at the same time.
  absl::Status ReadLane(std::span<const RowKey> keys, SsdFindLane& lane,
                        std::span<std::byte* const> rows);
  size_t RangeOfOneRead(std::span<const RowKey> keys, const SsdFindLane& lane, size_t first,
                        int64_t* begin, int64_t* end);
  void PlanReads(std::span<const RowKey> keys, SsdFindLane& lane, size_t* next);
  absl::Status TakeRead(std::span<const RowKey> keys, const SsdFindLane& lane,
                        const IoRequest& request, std::span<std::byte* const> rows);

  const SsdTables& tables_;
  SsdLog& log_;
  const SsdIndex& index_;
  const std::unique_ptr<SsdFindContexts> contexts_;
  Counts counts_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_READER_IMPL_H_
