#ifndef HOTROW_OPS_KEYS_UNIQUE_IMPL_H_
#define HOTROW_OPS_KEYS_UNIQUE_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "base/math.h"
#include "ops/keys/scan_impl.h"
#include "ops/keys/unique.h"
#include "ops/launch_impl.h"

namespace hotrow::internal {

absl::Status UniqueCpu(const ExecContext& ctx, const UniqueArgs& args);
absl::Status UniqueCuda(const UniqueArgs& args, CudaStream stream);

int64_t UniqueCpuWorkspaceBytes(int64_t num_values);

// Values [begin, end) of a table, and where they lie among all values when these are sorted by
// (table, position): from `place` on, those of their table in table_places from table_begin on.
struct PlacedSegment {
  int64_t begin;
  int64_t end;
  int64_t place;
  int64_t table_begin;
  int64_t table_places;
};
// As many as a kernel takes as a parameter, and as many places at which tables begin.
using SegmentChunk = ParameterChunk<PlacedSegment>;
using TableBeginChunk = ParameterChunk<int32_t, 512>;

// Where the CUDA kernels' arrays of N values lie in the workspace, in bytes from its start.
struct UniqueCudaLayout {
  static constexpr int64_t kSlotsPerValue = 2;

  int64_t slots = 0;  // int32 [2 N]: the hash tables; table t's has two slots per value of t
  int64_t words = 0;  // uint64 [ScanWords(N)]
  int64_t order = 0;  // int32 [N]: the value at each place when sorted by (table, position)
  int64_t ranks = 0;  // int32 [N + 1]: how many first appearances lie before each place
  int64_t bytes = 0;

  static constexpr UniqueCudaLayout For(int64_t num_values) {
    if (num_values <= 0) return {};
    UniqueCudaLayout layout;
    const auto take = [&layout](int64_t ints) {
      const int64_t begin = layout.bytes;
      layout.bytes += RoundUp(ints * static_cast<int64_t>(sizeof(int32_t)), kBufferAlignment);
      return begin;
    };
    layout.slots = take(kSlotsPerValue * num_values);
    layout.words = take(2 * ScanWords(num_values));
    layout.order = take(num_values);
    layout.ranks = take(num_values + 1);
    return layout;
  }
};

// Where a key's search starts in a hash table of that many slots (at most 2^32). salt: nobody who
// does not know it can choose keys that start in one place.
HOTROW_HOST_DEVICE constexpr uint32_t FirstSlot(uint64_t key, uint64_t salt, int64_t num_slots) {
  const uint64_t hash = Mix64(Mix64(key ^ salt) ^ salt);
  return FastRange32(static_cast<uint32_t>(hash >> 32), static_cast<uint64_t>(num_slots));
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_UNIQUE_IMPL_H_
