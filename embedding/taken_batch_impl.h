#ifndef HOTROW_EMBEDDING_TAKEN_BATCH_IMPL_H_
#define HOTROW_EMBEDDING_TAKEN_BATCH_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
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
// order of the plan. Arrays of the caller that have this form may stay where they are; of others it
// has copies. Reused, so that the copies' memory is.
struct TakenBatch {
  TakenBatch() = default;
  // Which copies to that device read where it lies.
  explicit TakenBatch(Device device)
      : own_values(SharedAllocator<uint64_t>(device)),
        own_offsets(SharedAllocator<int64_t>(device)),
        own_weights(SharedAllocator<float>(device)) {}

  int64_t batch_size = 0;            // B
  std::span<const uint64_t> values;  // [N]
  std::span<const int64_t> offsets;  // [F*B + 1]
  std::span<const float> weights;    // [N] or empty
  // [N] or empty: no lookup has one. NaN: this one has none. Finite otherwise, and no -0.
  std::vector<float> scores;

  bool single_lookups = false;  // every bag has one

  // Where the above are that did not stay.
  SharedVector<uint64_t> own_values;
  SharedVector<int64_t> own_offsets;
  SharedVector<float> own_weights;
  // Keeps those that did.
  std::shared_ptr<const void> owner;

  Device device() const { return own_values.get_allocator().device(); }
  int64_t num_lookups() const { return std::ssize(values); }
  // [B + 1] of feature f, where its bags begin in the arrays.
  std::span<const int64_t> bags(size_t f) const {
    const auto size = static_cast<size_t>(batch_size);
    return offsets.subspan(f * size, size + 1);
  }
  // Whether some array of the caller has stayed.
  bool in_place() const {
    const auto stayed = [](const auto& array, const auto& own) {
      return !array.empty() && array.data() != own.data();
    };
    return stayed(values, own_values) || stayed(offsets, own_offsets) ||
           stayed(weights, own_weights);
  }
  // Reads its own arrays from now on.
  void ReadOwn() {
    values = own_values;
    offsets = own_offsets;
    weights = own_weights;
  }
  // Forgets the batch; lets go of the caller's arrays.
  void Clear() {
    values = {};
    offsets = {};
    weights = {};
    owner.reset();
  }
  // Memory taken.
  int64_t bytes() const {
    return static_cast<int64_t>(own_values.capacity() * sizeof(uint64_t) +
                                own_offsets.capacity() * sizeof(int64_t) +
                                (own_weights.capacity() + scores.capacity()) * sizeof(float));
  }
};

// Whether arrays of the caller may stay where they are.
enum class TakeArrays {
  kCopy,
  // Those that have the form of a TakenBatch; on a GPU page-locked ones alone. They stay, and stay
  // as they are, until the batch is cleared.
  kInPlace
};

// Checks a batch and takes it, over `pool` (or null). Errors: InvalidArgument, which names feature,
// sample and value, for one that is malformed or not of the plan's features; *taken is then of no
// use.
absl::Status TakeBatch(const Plan& plan, int64_t max_batch_size, ThreadPool* pool,
                       const JaggedBatch& batch, TakeArrays arrays, TakenBatch* taken);
// position_of: where in batch.features each feature of the plan is; empty: in its own place.
absl::Status TakeBatch(const Plan& plan, int64_t max_batch_size, ThreadPool* pool,
                       const FeatureBatch& batch, std::span<const int32_t> position_of,
                       TakeArrays arrays, TakenBatch* taken);

// InvalidArgument unless the view is [rows, cols]. One of no rows may be empty. name: for
// the error.
absl::Status CheckShape(MatrixView<const float> view, int64_t rows, int64_t cols,
                        absl::FunctionRef<std::string()> name);
// InvalidArgument unless the views have the shapes that the batch asks for.
absl::Status CheckShapes(const Plan& plan, const TakenBatch& batch, const EmbeddingOutput& output);
absl::Status CheckShapes(const Plan& plan, const TakenBatch& batch,
                         const EmbeddingGradient& gradient);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TAKEN_BATCH_IMPL_H_
