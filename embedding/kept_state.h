#ifndef HOTROW_EMBEDDING_KEPT_STATE_H_
#define HOTROW_EMBEDDING_KEPT_STATE_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"

// What a collection keeps beside its rows and has in no snapshot: its facets that copy it.

namespace hotrow {

// EmbeddingCounters is how often keys without a row were looked up, where tables admit keys by that
// (Admission::Rule::kLookups): EmbeddingCollection::counters(). It is in no snapshot. Calls are
// calls of the collection.
class EmbeddingCounters {
 public:
  virtual ~EmbeddingCounters() = default;

  // Whether there are any; the same on all ranks.
  virtual bool kept() const = 0;
  // A copy, after the last Update: what belongs to a snapshot that is begun now.
  virtual absl::StatusOr<HostBuffer<std::byte>> Save() = 0;
  // Adds the counters of such a copy that this rank keeps, before the first Prefetch; start.steps
  // is that of Save. With a checkpoint of several ranks call it with the copy of each, on every
  // rank, with any number of ranks now. Those of tables that do not count any more are left out.
  // Errors: DataLoss (the bytes are no such copy), ResourceExhausted (admission_bytes is too small;
  // names the need), FailedPrecondition (none are kept, or a step was made).
  virtual absl::Status Load(std::span<const std::byte> bytes) = 0;
};

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

#endif  // HOTROW_EMBEDDING_KEPT_STATE_H_
