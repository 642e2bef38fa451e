#ifndef HOTROW_MODELS_TRAIN_NON_FINITE_IMPL_H_
#define HOTROW_MODELS_TRAIN_NON_FINITE_IMPL_H_

#include <cstdint>
#include <span>
#include <string>

#include "base/matrix_view.h"
#include "models/data/ctr_batch.h"
#include "models/train/train_step_impl.h"

namespace hotrow {

// Says where a loss that is not finite comes from, after Lookup and Forward of the step and before
// its Update: labels or dense features of the data, a dense parameter (by its layer), a row (by
// feature, table and id), or none of them: then the first layer whose output is not finite. A
// clause that ends in what to do. It costs a pass over the batch and the parameters, and a second
// Forward, so it is asked only once a loss has gone wrong.
//
// With several ranks each looks at its own slice and at none of the others' rows.
std::string FindNonFinite(const StepParts& parts, const ExecContext& ctx, const CtrBatch& batch);

// The same of a gradient, after Backward: the first layer on the way back that has one. A GPU has
// made another step since; but then the layer's parameters are not finite, and `gradients`, of
// parameters(), matter only where updates were left out. Empty: nothing is known.
std::string FindGradient(const ExecContext& ctx, CtrModel* model, std::span<const float> gradients);

// The part of FindNonFinite that looks at the data; empty: all are good.
std::string FindNonFiniteData(int64_t num_dense, int64_t num_labels, std::span<const float> dense,
                              std::span<const float> labels);

// Whether no number is infinite or NaN, at the speed of memory: for the thread that trains.
bool AllFinite(std::span<const float> numbers);
bool AllFinite(const MatrixView<const float>& view);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_NON_FINITE_IMPL_H_
