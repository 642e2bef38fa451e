#ifndef HOTROW_EMBEDDING_RESIDUALS_H_
#define HOTROW_EMBEDDING_RESIDUALS_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"

namespace hotrow {

// EmbeddingResiduals is what gradients have lost on their way to other ranks and RankOptions::
// feedback_bytes keeps: EmbeddingCollection::residuals(). It is in no snapshot, since it belongs to
// this rank among so many. Calls are calls of the collection.
class EmbeddingResiduals {
 public:
  virtual ~EmbeddingResiduals() = default;

  // Whether there are any; the same on all ranks.
  virtual bool kept() const = 0;
  // A copy, after the last Update. No BeginUpdate may wait for its Update (FailedPrecondition).
  virtual absl::StatusOr<HostBuffer<std::byte>> Save() = 0;
  // Takes such a copy, of this rank among as many, before the first Prefetch; start.steps is that
  // of Save. False when it is of other tables or another budget: then none are kept yet. DataLoss
  // when the bytes are no such copy.
  virtual absl::StatusOr<bool> Load(std::span<const std::byte> bytes) = 0;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_RESIDUALS_H_
