#ifndef HOTROW_OPS_KEYS_OWNER_PARTS_IMPL_H_
#define HOTROW_OPS_KEYS_OWNER_PARTS_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "base/macros.h"
#include "ops/keys/owner_parts.h"

namespace hotrow::internal {

// RankOfShard of embedding/ranks/shard_map.h, for kernels; tests compare the two.
HOTROW_HOST_DEVICE constexpr int32_t OwnerOfKey(uint64_t value, uint32_t table,
                                                int32_t world_size) {
  return static_cast<int32_t>(uint64_t{HashRowKey(value, table).shard()} *
                              static_cast<uint32_t>(world_size) / RowHash::kNumShards);
}

absl::Status OwnerPartsCpu(const ExecContext& ctx, const OwnerPartsArgs& args);
absl::Status OwnerPartsCuda(const OwnerPartsArgs& args, CudaStream stream);
absl::Status PickWordsCpu(const ExecContext& ctx, const PickWordsArgs& args);
absl::Status PickWordsCuda(const PickWordsArgs& args, CudaStream stream);
absl::Status PutWordsCpu(const ExecContext& ctx, const PutWordsArgs& args);
absl::Status PutWordsCuda(const PutWordsArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_OWNER_PARTS_IMPL_H_
