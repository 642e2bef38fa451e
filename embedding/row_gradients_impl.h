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
#include "embedding/ranks/device_row_shuffle_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/step_impl.h"
#include "embedding/taken_batch_impl.h"
#include "ops/jagged.h"
#include "ops/keys/key_rows.h"
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
  // Not owned: all outlive this. shuffle: null with one rank; device_shuffle, too, and where the
  // caches are not staged.
  RowGradients(const Plan& plan, const ExecContext& ctx, RowShuffle* shuffle,
               DeviceRowShuffle* device_shuffle)
      : plan_(plan), ctx_(ctx), shuffle_(shuffle), device_shuffle_(device_shuffle) {}

  // Sums by wanted key, at batch->at.gradients; those that other ranks keep set out. step: of the
  // update.
  absl::Status Begin(const EmbeddingGradient& gradient, uint32_t step, StepBatch* batch);
  // Where loops or kernels find the gradient of each served key. Good until the next Begin.
  absl::StatusOr<float* const*> Finish(const StepBatch& batch);

  // Whether Update() is there: on a GPU, with one rank.
  bool fuses_update() const { return ctx_.device == Device::kCuda && shuffle_ == nullptr; }
  // How tables move, and where the rows of their wanted keys lie: what FusedSparseUpdateArgs has of
  // these. The batch's part of `update` is set here.
  absl::Status Update(const EmbeddingGradient& gradient, FusedSparseUpdateArgs update,
                      const StepBatch& batch);

  int64_t device_bytes() const {
    return wanted_.bytes() + device_wanted_rows_.bytes() + workspace_.bytes() + served_.bytes() +
           device_served_rows_.bytes();
  }

 private:
  std::vector<JaggedFeature> FeaturesOf(const EmbeddingGradient& gradient, const TakenBatch& input);
  // Puts zeros in the place of the gradients of features that are read only.
  void TakeReadOnly(const TakenBatch& input, std::span<JaggedFeature> features);
  // Room for one gradient of each key's dim after another, and where those of each table lie.
  // offsets: of the tables among the keys.
  absl::StatusOr<std::vector<FloatRows>> PlaceTables(std::span<const int64_t> offsets,
                                                     DeviceMemory<float>* floats) const;
  // The same; `rows` are the places of all, on the device or on the host.
  absl::Status PlaceRowsOnDevice(std::span<const int64_t> offsets, DeviceMemory<float>* floats,
                                 DeviceMemory<float*>* rows) const;
  absl::Status PlaceRows(std::span<const int64_t> offsets, DeviceMemory<float>* floats,
                         std::vector<float*>* rows) const;

  const Plan& plan_;
  const ExecContext ctx_;
  RowShuffle* const shuffle_;
  DeviceRowShuffle* const device_shuffle_;
  DeviceMemory<float> wanted_;
  std::vector<float*> wanted_rows_;          // [U], not staged
  DeviceMemory<float*> device_wanted_rows_;  // [U], staged
  DeviceMemory<std::byte> workspace_;
  std::vector<float> zeros_;  // the gradient of features that are read only
  // Several ranks.
  DeviceMemory<float> served_;
  std::vector<float*> served_rows_;          // [served keys], not staged
  DeviceMemory<float*> device_served_rows_;  // [served keys], staged
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROW_GRADIENTS_IMPL_H_
