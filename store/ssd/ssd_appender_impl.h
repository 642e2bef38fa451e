#ifndef HOTROW_STORE_SSD_SSD_APPENDER_IMPL_H_
#define HOTROW_STORE_SSD_SSD_APPENDER_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "base/row_key.h"
#include "store/ssd/ssd_expiry_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_live_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_tables_impl.h"

namespace hotrow::internal {

// What a call of SsdAppender did.
struct SsdAppended {
  absl::Status status;
  // So many keys from the front of the batch are done. 0 with an OK status: no segment is free.
  size_t keys = 0;
  int64_t log_bytes = 0;     // that fresh rows and tombstones took
  bool first_chunk = false;  // fresh rows are in the first chunk of a segment, opened not long ago
  // Why the file system makes no further file, where no key of fresh records is done; OK where that
  // is not the reason.
  absl::Status no_room;
};

// Appends records to the log and makes the index name them. Gives out the sequence numbers.
//
// Data:    keys are index keys. Each call takes from the front of a batch, which is not empty, what
//          fits into the present chunk of its stream; the caller comes again for the rest.
// Threads: all methods may run concurrently. Those of one stream take turns.
// Locks:   has none. Takes the stream's, then the chunk's, then that of each key's partition
//          in the index. Numbers are given out under the last, so that of two records of a key the
//          one that the index names has the higher number.
// Errors:  those of SsdLog::MakeRoom, and ResourceExhausted where the index gets no memory; the
//          keys before are done then.
class SsdAppender {
 public:
  // All outlive it. Numbers are given out from next_sequence on.
  SsdAppender(const SsdTables& tables, SsdLog& log, SsdIndex& index, SsdLive& live,
              const SsdExpiry& expired, uint64_t next_sequence)
      : tables_(tables),
        log_(log),
        index_(index),
        live_(live),
        expired_(expired),
        next_sequence_(next_sequence) {}

  // --- Fresh records -----------------------------------------------------------------------------

  SsdAppended AppendRows(std::span<const RowKey> index_keys,
                         std::span<const std::byte* const> rows);
  // Appends tombstones of the keys that have rows.
  SsdAppended AppendErasures(std::span<const RowKey> index_keys);

  // --- Survivors ---------------------------------------------------------------------------------

  // Appends again the rows that are still at `from`, or tombstones of those that have expired.
  SsdAppended MoveRows(std::span<const RowKey> index_keys, std::span<const SsdLocation> from,
                       std::span<const std::byte* const> rows);
  // Appends tombstones of those rows still at `from` that have expired.
  SsdAppended DropExpired(std::span<const RowKey> index_keys, std::span<const SsdLocation> from,
                          std::span<const std::byte* const> rows);
  // Appends again the tombstones of keys that still have no row.
  SsdAppended MoveTombstones(std::span<const RowKey> index_keys);

  // Whether some row may have expired; whether this one has.
  bool may_expire() const { return expired_.any(); }
  bool HasExpired(const RowKey& index_key, const std::byte* row) const {
    return expired_(index_key, row);
  }

  // Every number given out so far is lower.
  uint64_t next_sequence() const { return next_sequence_.load(); }

  // Since opening.
  struct Counts {
    Counter rows_written, rows_erased, payload_bytes, tombstones, rows_moved, rows_expired;
  };
  const Counts& counts() const { return counts_; }

 private:
  // The chunk at the end of a stream, while that stream and the chunk are locked.
  struct Tail {
    SsdChunk& chunk;
    SsdSegment& segment;
  };

  bool MakeRoom(SsdStream stream, int64_t log_bytes, SsdAppended* out);
  size_t CountRowsThatFit(SsdStream stream, std::span<const RowKey> index_keys,
                          int64_t reserved) const;
  void EraseExpired(Tail tail, std::span<const RowKey> index_keys,
                    std::span<const SsdLocation> from, std::span<const std::byte* const> rows);
  SsdLocation AppendRecord(Tail tail, SsdRecordKind kind, const RowKey& index_key,
                           const std::byte* row);

  const SsdTables& tables_;
  SsdLog& log_;
  SsdIndex& index_;
  SsdLive& live_;
  const SsdExpiry& expired_;
  std::atomic<uint64_t> next_sequence_;
  Counts counts_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_APPENDER_IMPL_H_
