#ifndef HOTROW_STORE_SSD_SSD_SCAN_IMPL_H_
#define HOTROW_STORE_SSD_SSD_SCAN_IMPL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/io_queue.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_manifest_impl.h"

// Reading the log of an SsdStore from its beginning to its end: to open, clean, iterate, verify.
namespace hotrow::internal {

// A record as a footer or a walk tells of it.
struct SsdScanned {
  uint64_t key = 0;
  uint64_t sequence = 0;
  int64_t offset = 0;  // in the segment
  int64_t bytes = 0;   // on disk
  uint32_t kind_table = 0;

  SsdRecordKind kind() const { return static_cast<SsdRecordKind>(SsdKindOf(kind_table)); }
  uint32_t table_index() const { return SsdTableOf(kind_table); }
};

struct SsdGeometry {
  int64_t segment_bytes = 0;
  int64_t chunk_bytes = 0;
  std::span<const int64_t> row_bytes;  // by table index
};

// Lists the rows and tombstones in a chunk that begin below ref.end_offset, by its footer where it
// has a good one, otherwise record by record. `chunk` holds the bytes of the chunk at chunk_offset,
// at least up to ref.end_offset or its end. damage, if not null, is told what is wrong with a
// footer that should be there. Errors: DataLoss, naming the offset of the record that cannot be
// read.
absl::Status ListSsdChunk(const SsdGeometry& geometry, const SsdSegmentRef& ref,
                          int64_t chunk_offset, std::span<const std::byte> chunk,
                          std::vector<SsdScanned>* out, std::string* damage = nullptr);

// The same, never by the footer: every record is checked.
absl::Status WalkSsdChunk(const SsdGeometry& geometry, const SsdSegmentRef& ref,
                          int64_t chunk_offset, std::span<const std::byte> chunk,
                          std::vector<SsdScanned>* out);

// Told of a footer that should be there and is not, or is damaged; see status.
using SsdBadFooter = std::function<void(const SsdSegmentRef& ref, const absl::Status& status)>;

// Calls visit for every row and tombstone of the segments, reading footers, many at a time, and the
// chunks that have none. Errors: DataLoss (naming file and offset), those of the files.
absl::Status ScanSsdSegments(
    const SsdGeometry& geometry, std::span<const SsdSegmentRef> refs,
    absl::FunctionRef<File*(uint32_t slot)> file_of, IoQueue& queue, MemoryBudget& budget,
    absl::FunctionRef<void(const SsdSegmentRef& ref, const SsdScanned& record)> visit,
    const SsdBadFooter& bad_footer = nullptr);

// The newest record of a key.
struct SsdNewest {
  uint64_t key;
  uint64_t sequence;
  int64_t offset;  // in the segment
  uint32_t slot;
  uint32_t kind_table;

  uint32_t table_index() const { return SsdTableOf(kind_table); }
};
static_assert(sizeof(SsdNewest) == 32);

// The rows of a store: for each key its newest record, unless that is a tombstone. Keys are taken
// by slices of their hashes, as many as it takes to hold those of a slice in memory_bytes; each
// slice reads the footers again. visit is called once for each slice, with its rows. All rows come
// in the order of the hashes that an SsdIndex of this seed has, so that one fills up partition by
// partition (AddToSsdIndex). Returns how many records there are, with old versions and tombstones.
// Errors: those of ScanSsdSegments and visit.
absl::StatusOr<int64_t> ScanNewestSsdRows(
    const SsdGeometry& geometry, std::span<const SsdSegmentRef> refs,
    absl::FunctionRef<File*(uint32_t slot)> file_of, IoQueue& queue, MemoryBudget& budget,
    int64_t memory_bytes, uint64_t hash_seed,
    absl::FunctionRef<absl::Status(std::span<const SsdNewest> rows)> visit,
    const SsdBadFooter& bad_footer = nullptr);

// Adds rows in the order of ScanNewestSsdRows to an index that has none of them. Room for those of
// a partition is made at once instead of by growing. Errors: those of SsdIndex::Upsert.
absl::Status AddToSsdIndex(std::span<const SsdNewest> rows,
                           absl::FunctionRef<SsdLocation(const SsdNewest& row)> location_of,
                           SsdIndex* index);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_SCAN_IMPL_H_
