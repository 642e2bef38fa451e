#ifndef HOTROW_STORE_SSD_SSD_IMAGE_IMPL_H_
#define HOTROW_STORE_SSD_SSD_IMAGE_IMPL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/format_version.h"
#include "base/unique_id.h"
#include "store/ssd/ssd_index_impl.h"

// The file that holds the index of a closed SsdStore, docs/formats/ssd_store.md. If anything is
// wrong with it, the index can be rebuilt from the segments.
namespace hotrow::internal {

inline constexpr char kSsdImageMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'S', 'I'};
// Versions of the image alone: one of an older version (2, with no id, whose seed was always 0) is
// passed over, and the index is rebuilt with a seed that was drawn.
inline constexpr FormatVersions kSsdImageVersions = {.first = 3, .last = 3};

// Offset 0; the partitions follow, each as SsdIndex::Save writes it with a SsdImageCrc behind it.
struct SsdImageHeader {
  char magic[8];
  uint32_t version;
  uint32_t num_partitions;
  uint64_t rows;
  uint64_t id_high;  // SsdManifest::index_image_id
  uint64_t id_low;
  uint32_t reserved;  // 0
  uint32_t crc;       // of the 44 bytes before
};
static_assert(sizeof(SsdImageHeader) == 48 && offsetof(SsdImageHeader, crc) == 44);

struct SsdImageCrc {
  uint32_t partition;
  uint32_t crc;  // of the partition's bytes
};
static_assert(sizeof(SsdImageCrc) == 8);

// About how long the file gets; never shorter.
int64_t SsdIndexImageBytes(const SsdIndex& index);
// Writes and syncs the file; not its directory. Nothing may change the index meanwhile.
absl::Status WriteSsdIndexImage(Env& env, const std::string& path, const UniqueId& id,
                                const SsdIndex& index);
// Fills an index that was made with the same options, but for the seed, and is empty. Errors:
// FailedPrecondition (another version), DataLoss (damaged, or of another store or state, which has
// another id; both name the file), ResourceExhausted; the index is then good for nothing.
absl::Status ReadSsdIndexImage(Env& env, const std::string& path, const UniqueId& id,
                               SsdIndex& index);
// Checks every byte of the file, without an index to fill; returns how many rows it holds, or
// kSsdImageOld where it is of an older version, of which only the header is checked. Errors:
// DataLoss and FailedPrecondition (a newer version), saying at which offset, without the file's
// name; those of the file.
inline constexpr int64_t kSsdImageOld = -1;
absl::StatusOr<int64_t> CheckSsdIndexImage(Env& env, const std::string& path, const UniqueId& id);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_IMAGE_IMPL_H_
