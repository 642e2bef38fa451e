#ifndef HOTROW_MODELS_DELTA_CHAIN_HEAD_IMPL_H_
#define HOTROW_MODELS_DELTA_CHAIN_HEAD_IMPL_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_merge_impl.h"
#include "models/saving/dense_file.h"
#include "models/saving/portable_manifest.h"
#include "ops/rows/row_layout.h"

namespace hotrow {

// What a chain leads to, without its rows: the portable form of it, but for the arrays.
struct ChainHead {
  PortableModel portable;
  std::vector<DeltaTable> tables;  // as deltas have them
  DenseVectors dense;
};

// The head of the chain's last link. Without state in the chain tables have the optimizer sgd; of a
// chain that is not lossless there is no `training`. What scoring needs is the base's where deltas
// do not say it. The vocabulary lies in the base. Errors: those of the dense file.
absl::StatusOr<ChainHead> ReadChainHead(Env& env, const DeltaChain& chain);

// The newest entry of each key of all deltas, or of one.
absl::StatusOr<DeltaMerge> MergeDeltas(Env& env, const DeltaChain& chain,
                                       std::span<const DeltaManifest> deltas,
                                       const std::vector<DeltaTable>& tables);

// The base's rows, as rows that deltas bring: without state, where the chain has none.
class BaseRows {
 public:
  BaseRows(const DeltaChain& chain, const std::vector<DeltaTable>& tables);
  // row: as the base's layout has it. Valid until the next call.
  std::span<const std::byte> Of(uint32_t table, const std::byte* row);

 private:
  struct Table {
    RowLayout from;
    RowLayout to;
    std::vector<std::byte> row;
  };
  const bool has_state_;
  std::vector<Table> tables_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_CHAIN_HEAD_IMPL_H_
