#ifndef HOTROW_EMBEDDING_ROW_GRADIENTS_IMPL_H_
#define HOTROW_EMBEDDING_ROW_GRADIENTS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/step_impl.h"
#include "embedding/taken_batch_impl.h"
#include "ops/jagged.h"
#include "ops/update/fused_sparse_update.h"

namespace hotrow::internal {

// RowGradients makes one gradient for each row out of that of a batch: the sum over the row's
// lookups, and with several ranks the sum of those over the ranks, in their order. On a GPU it can
// update the rows in the same pass.
//
// Memory:  of the device, grown to the largest batch seen.
// Threads: the caller's. One step at a time: Begin, then Finish; or Update.
// Errors:  ResourceExhausted, and those of the communicator.
class RowGradients {
 public:
  RowGradients(const StepParts& parts, const ExecContext& ctx)
      : plan_(parts.plan), ctx_(ctx), alone_(parts.shuffle == nullptr) {}

  // Sums by wanted key, at batch->at.gradients; those that other ranks keep set out. step: of the
  // update.
  absl::Status Begin(const EmbeddingGradient& gradient, uint32_t step, StepBatch* batch);
  // Where loops or kernels find the gradient of each served key. Good until the next Begin.
  absl::StatusOr<float* const*> Finish(StepBatch* batch);

  // Whether Update() is there: on a GPU, with one rank.
  bool fuses_update() const { return ctx_.device == Device::kCuda && alone_; }
  // How tables move, and where the rows of their wanted keys lie: what FusedSparseUpdateArgs has of
  // these. The batch's part of `update` is set here.
  absl::Status Update(const EmbeddingGradient& gradient, FusedSparseUpdateArgs update,
                      const StepBatch& batch);

  int64_t device_bytes() const {
    return wanted_.bytes() + wanted_rows_.bytes() + workspace_.bytes() + served_.bytes() +
           served_rows_.bytes();
  }

 private:
  std::vector<JaggedFeature> FeaturesOf(const EmbeddingGradient& gradient, const TakenBatch& input);
  // Puts zeros in the place of the gradients of features that are read only.
  void TakeReadOnly(const TakenBatch& input, std::span<JaggedFeature> features);
  // Room for one gradient of each key's dim after another, and the places of all. offsets: of the
  // tables among the keys.
  absl::Status PlaceRows(std::span<const int64_t> offsets, DeviceMemory<float>* floats,
                         DeviceMemory<float*>* rows) const;

  const Plan& plan_;
  const ExecContext ctx_;
  const bool alone_;  // one rank
  DeviceMemory<float> wanted_;
  DeviceMemory<float*> wanted_rows_;  // [U]
  DeviceMemory<std::byte> workspace_;
  std::vector<float> zeros_;  // the gradient of features that are read only
  // Several ranks.
  DeviceMemory<float> served_;
  DeviceMemory<float*> served_rows_;  // [served keys]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROW_GRADIENTS_IMPL_H_
