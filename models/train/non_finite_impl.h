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
// its Update: labels or dense features of the data, a row (by feature, table and id), a dense
// parameter, or none of them: then a layer overflowed. A clause that ends in what to do. It costs a
// pass over the batch and the parameters, so it is asked only once a loss has gone wrong.
//
// With several ranks each looks at its own slice and at none of the others' rows.
std::string FindNonFinite(const StepParts& parts, const CtrBatch& batch);

// The part of it that looks at the data; empty: all are finite. It is all that can be said of a
// step on a GPU, whose memory the host does not read, and which later steps have changed by then.
std::string FindNonFiniteData(int64_t num_dense, int64_t num_labels, std::span<const float> dense,
                              std::span<const float> labels);

// Whether no number is infinite or NaN, at the speed of memory: for the thread that trains.
bool AllFinite(std::span<const float> numbers);
bool AllFinite(const MatrixView<const float>& view);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_NON_FINITE_IMPL_H_
