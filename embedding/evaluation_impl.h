#ifndef HOTROW_EMBEDDING_EVALUATION_IMPL_H_
#define HOTROW_EMBEDDING_EVALUATION_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/jagged_batch.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/stats.h"
#include "embedding/step_impl.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

// Evaluation looks batches up without a trace: rows that are not resident pass through a staging
// area, and a batch whose rows do not fit there goes in slices of its samples.
//
// Threads: the caller's, while the pipeline is paused: rows that are not pinned must stay where
//          they are until they have been read. With several ranks all call Run together, each with
//          a batch of its own, and no exchange of rows or gradients is under way.
// Errors:  ResourceExhausted when one sample alone does not fit; those of the tiers and the
//          communicator.
class Evaluation {
 public:
  // Not owned: all outlive this. shuffle: null with one rank.
  Evaluation(const EmbeddingCollectionOptions& options, const Plan& plan, const ExecContext& ctx,
             Tiers* tiers, RowShuffle* shuffle);

  // step: of the update that is next.
  absl::Status Run(const JaggedBatch& batch, const EmbeddingOutput& output, uint32_t step);

  void AddTo(EmbeddingStats* stats) const;

 private:
  // Runs of samples whose rows fit into the staging area: where each begins, and the end of the
  // last.
  absl::StatusOr<std::vector<int64_t>> CutForStaging(const JaggedBatch& batch) const;
  absl::Status RunSlice(const JaggedBatch& batch, const EmbeddingOutput& output, uint32_t step);

  const Plan& plan_;
  const ExecContext ctx_;
  const int64_t staging_bytes_;
  Tiers* const tiers_;
  RowShuffle* const shuffle_;

  // Taken by the first Run, and grown to the largest batch seen.
  DeviceMemory<std::byte> staging_;
  StepBatch batch_;
  UniqueScratch unique_;
  RowShuffle::Scratch ids_;
  int64_t lookups_ = 0;
  int64_t unique_keys_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_EVALUATION_IMPL_H_
