#ifndef HOTROW_EMBEDDING_EMBEDDING_STEP_H_
#define HOTROW_EMBEDDING_EMBEDDING_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/matrix_view.h"

namespace hotrow {

// Where Lookup and Evaluate write. Calls refuse other shapes (InvalidArgument).
struct EmbeddingOutput {
  MatrixView<float> pooled;  // [B, pooled_dim()]: the pooled features side by side, in their order
  std::vector<MatrixView<float>> unpooled;  // of each kNone feature, in their order: [lookups, D]
};

// The gradient of EmbeddingOutput, in the same shapes.
struct EmbeddingGradient {
  MatrixView<const float> pooled;
  std::vector<MatrixView<const float>> unpooled;
  // On a GPU: null, or one number in memory of the device, the same on all ranks. Where it is not 0
  // when Update runs, rows and their optimizer state stay as they are (ops/training/loss_scale.h);
  // all else goes on as after an update. Unimplemented elsewhere.
  const uint32_t* skip = nullptr;
};

// EmbeddingStep is one batch on its way through the tables: EmbeddingCollection::Prefetch makes it,
// Update consumes it. Destroying it, or assigning another to it, cancels it: its rows are unpinned
// and nothing is updated. It must not outlive its collection, whose threads and errors are those of
// a step. One that was moved from, or made by no Prefetch, refuses all calls (FailedPrecondition).
class EmbeddingStep {
 public:
  EmbeddingStep();
  EmbeddingStep(EmbeddingStep&& other) noexcept;
  EmbeddingStep& operator=(EmbeddingStep&& other) noexcept;
  ~EmbeddingStep();

  // Forward. Gathers values after the update of the step before.
  absl::Status Lookup(const EmbeddingOutput& output);
  // Forward for those who read rows where they lie, in the place of Lookup: rows[b, f] is the row
  // that sample b looks up of feature f, [B, F] pointers in memory of the device. They and what
  // they point to are good until Update, BeginUpdate or the end of the step. FailedPrecondition
  // where has_single_lookups() is not true.
  absl::Status LookupRows(const float** rows);
  // Whether that is all that Lookup would do: with one rank, each bag has one lookup, and none a
  // weight; all features are pooled; rows are of fp32.
  bool has_single_lookups() const;
  // Backward. learning_rate_factor multiplies every table's learning rate: the schedule. The step
  // has ended when this returns, also with an error.
  absl::Status Update(const EmbeddingGradient& gradient, float learning_rate_factor = 1) &&;

  // The first half of Lookup: rows set out between ranks, so that they travel while the caller
  // computes what needs none. May be left out.
  absl::Status BeginLookup();
  // The first half of Update: reads the whole gradient, but not what `skip` points to, and sends it
  // off. May be left out; after it Update does not look at its `gradient`.
  absl::Status BeginUpdate(const EmbeddingGradient& gradient);

  // 0 of a step that was moved from.
  int64_t batch_size() const;
  int64_t num_lookups() const;
  int64_t num_unique_keys() const;  // from Lookup on; with prefetch_depth = 0 from Prefetch on

 private:
  friend class EmbeddingCollection;
  struct Impl;
  explicit EmbeddingStep(std::unique_ptr<Impl> impl);
  void Cancel();
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_EMBEDDING_STEP_H_
