#ifndef HOTROW_STORE_SSD_SSD_MANIFEST_IMPL_H_
#define HOTROW_STORE_SSD_SSD_MANIFEST_IMPL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/format_version.h"
#include "base/unique_id.h"
#include "store/row_store.h"

// The manifest of an SsdStore and the names of its files, docs/formats/ssd_store.md. All numbers
// are little-endian.
//
// A store is a directory: one MANIFEST that says what the store consists of, segments of equal size
// that hold records (ssd_format_impl.h), and an index image that only makes opening faster
// (ssd_image_impl.h). Segments may lie in further directories, too (ssd_dirs_impl.h).
namespace hotrow::internal {

// Version 2 has no identities and no counts of rows; it is still read, and the next manifest that
// is written takes its place. Version 4 is that of a store in several directories, and is written
// of no other.
inline constexpr FormatVersions kSsdManifestVersions = {.first = 2, .last = 4};
inline constexpr uint32_t kSsdManifestOfOneDirectory = 3;
inline constexpr uint32_t kSsdDirectoriesMax = 256;

// A part of a segment that holds records.
struct SsdSegmentRef {
  uint32_t slot = 0;  // number in the file name
  uint64_t epoch = 0;
  uint64_t base_sequence = 0;  // no record of the segment has a lower one
  // Records lie below and are durable. Bytes behind it belong to no state.
  int64_t end_offset = 0;
  int64_t live_bytes = 0;  // of records that the index names; exact only beside an index image
  uint32_t directory = 0;  // in SsdManifest::directories

  friend bool operator==(const SsdSegmentRef&, const SsdSegmentRef&) = default;
};

struct SsdSnapshot {
  SnapshotId id = 0;
  bool committed = false;
  uint64_t sequence = 0;  // of its last record
  std::vector<SsdSegmentRef> segments;
  UniqueId identity;                // see SnapshotInfo
  std::vector<int64_t> table_rows;  // as in SsdManifest

  friend bool operator==(const SsdSnapshot&, const SsdSnapshot&) = default;
};

// All that a store consists of. Replaced as a whole, by rename.
struct SsdManifest {
  uint64_t generation = 0;  // grows with every replacement
  int64_t segment_bytes = 0;
  int64_t chunk_bytes = 0;
  uint64_t next_epoch = 1;
  uint64_t sequence_limit = 1;  // every sequence number in use is below it
  uint64_t index_image = 0;     // number of the index image that fits this state; 0: none
  UniqueId index_image_id;      // that this image must have; unknown without one
  // Rows that were written times their widths, over the store's life up to this replacement, and
  // what went to the device for them, cleaning and manifests included.
  uint64_t payload_bytes_written = 0;
  uint64_t device_bytes_written = 0;
  std::vector<StoreTable> tables;
  std::vector<SsdSegmentRef> segments;  // the present state
  std::vector<int64_t> table_rows;      // of it, by table; empty: not known (version 2)
  std::vector<SsdSnapshot> snapshots;
  // Of a store in several directories: its identity, then that of each further directory.
  std::vector<UniqueId> directories;

  friend bool operator==(const SsdManifest& a, const SsdManifest& b);
};

inline constexpr std::string_view kSsdManifestName = "MANIFEST";
// Far above what stores have: a million segments, each in ten snapshots, take 0.8 GB.
inline constexpr int64_t kSsdManifestBytesMax = int64_t{1} << 30;
// An empty file; whoever has the store open locks it.
inline constexpr std::string_view kSsdLockName = "LOCK";
std::string SsdSegmentName(uint32_t slot);  // "segment-000012"
std::optional<uint32_t> ParseSsdSegmentName(std::string_view name);
std::string SsdIndexName(uint64_t number);  // "index-000003"
std::optional<uint64_t> ParseSsdIndexName(std::string_view name);

// The file holds the text twice, so that no one flipped bit makes the store unreadable.
std::string EncodeSsdManifest(const SsdManifest& manifest);
// How long the file is, at most kSsdManifestBytesMax.
int64_t SsdManifestBytes(int64_t num_tables, int64_t num_snapshots, int64_t num_segment_refs,
                         int64_t num_directories = 0);
struct DecodedSsdManifest {
  SsdManifest manifest;
  uint32_t version = 0;  // of the text
  std::string damage;    // what is wrong with one of the copies, with its offset; empty: nothing
};
// Errors: DataLoss (no copy is whole and makes sense: a copy whose checksums fit but that no store
// writes is damaged like any other, and its field is named), FailedPrecondition (a version that
// this build cannot read). The messages do not name the file.
absl::StatusOr<DecodedSsdManifest> DecodeSsdManifest(std::string_view bytes);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_MANIFEST_IMPL_H_
