#ifndef HOTROW_EMBEDDING_BATCH_COPY_IMPL_H_
#define HOTROW_EMBEDDING_BATCH_COPY_IMPL_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/device.h"
#include "base/matrix_view.h"
#include "base/shared_allocator.h"
#include "base/thread_pool.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_step.h"
#include "embedding/jagged_batch.h"

namespace hotrow::internal {

// A batch in the one form that the engine reads: ids as keys, bags as offsets, features in the
// order of the plan. Reused, so that its memory is.
struct BatchCopy {
  BatchCopy() = default;
  // Which copies to that device read where it lies.
  explicit BatchCopy(Device device)
      : values(SharedAllocator<uint64_t>(device)),
        offsets(SharedAllocator<int64_t>(device)),
        weights(SharedAllocator<float>(device)) {}

  int64_t batch_size = 0;         // B
  SharedVector<uint64_t> values;  // [N]
  SharedVector<int64_t> offsets;  // [F*B + 1]
  SharedVector<float> weights;    // [N] or empty
  // [N] or empty: no lookup has one. NaN: this one has none. Finite otherwise, and no -0.
  std::vector<float> scores;

  bool single_lookups = false;  // every bag has one

  int64_t num_lookups() const { return static_cast<int64_t>(values.size()); }
  // Memory taken.
  int64_t bytes() const {
    return static_cast<int64_t>(values.capacity() * sizeof(uint64_t) +
                                offsets.capacity() * sizeof(int64_t) +
                                (weights.capacity() + scores.capacity()) * sizeof(float));
  }
};

// Checks a batch and copies it, over `pool` (or null). Errors: InvalidArgument, which names
// feature, sample and value, for one that is malformed or not of the plan's features; the copy is
// then of no use.
absl::Status CopyBatch(const Plan& plan, int64_t max_batch_size, ThreadPool* pool,
                       const JaggedBatch& batch, BatchCopy* copy);
// position_of: where in batch.features each feature of the plan is; empty: in its own place.
absl::Status CopyBatch(const Plan& plan, int64_t max_batch_size, ThreadPool* pool,
                       const FeatureBatch& batch, std::span<const int32_t> position_of,
                       BatchCopy* copy);

// InvalidArgument unless the view is [rows, cols]. One of no rows may be empty. name: for
// the error.
absl::Status CheckShape(MatrixView<const float> view, int64_t rows, int64_t cols,
                        absl::FunctionRef<std::string()> name);
// InvalidArgument unless the views have the shapes that the batch asks for.
absl::Status CheckShapes(const Plan& plan, const BatchCopy& batch, const EmbeddingOutput& output);
absl::Status CheckShapes(const Plan& plan, const BatchCopy& batch,
                         const EmbeddingGradient& gradient);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_BATCH_COPY_IMPL_H_
