#ifndef HOTROW_EMBEDDING_ROWS_GRADIENT_CLIP_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_GRADIENT_CLIP_IMPL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"

namespace hotrow::internal {

// Scales the gradients of the rows of a step in place, as TableConfig::max_row_gradient_norm and
// EmbeddingCollectionOptions::max_gradient_norm say; without these it does nothing. Rows come
// first: the norm of all of them together is of what is left. Sums of squares are doubles, added in
// an order that depends on the keys alone, and of several ranks in the order of ranks.
//
// gradients[i]: of keys.keys[i], the distinct keys of the step that this rank keeps, in host
// memory. trained: empty, or which of them are applied; others do not count. shuffle: null with one
// rank; otherwise collective where max_gradient_norm is set. Errors: OutOfRange (a gradient that is
// not finite cannot be scaled; names table and key), those of the communicator.
absl::Status ClipGradients(const ExecContext& ctx, const EmbeddingCollectionOptions& options,
                           const Plan& plan, const TableKeys& keys,
                           std::span<const uint8_t> trained, float* const* gradients,
                           RowShuffle* shuffle);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_GRADIENT_CLIP_IMPL_H_
