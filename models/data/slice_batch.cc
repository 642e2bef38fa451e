#include "models/data/slice_batch.h"

#include "base/check.h"

namespace hotrow {
namespace {

// Elements [begin, end) of `from`; none of an empty one.
template <typename Vector>
void AssignRange(const Vector& from, int64_t begin, int64_t end, Vector* to) {
  if (from.empty()) {
    to->clear();
  } else {
    to->assign(from.begin() + begin, from.begin() + end);
  }
}

template <typename Vector>
void AppendRange(const Vector& from, int64_t begin, int64_t end, Vector* to) {
  if (!from.empty()) to->insert(to->end(), from.begin() + begin, from.begin() + end);
}

}  // namespace

void SliceBatch(const CtrBatch& whole, int64_t num_features, int64_t begin, int64_t end,
                CtrBatch* out) {
  const int64_t batch_size = whole.batch_size;
  HOTROW_CHECK(0 <= begin && begin <= end && end <= batch_size && out != &whole);
  const int64_t size = end - begin;
  out->batch_size = size;
  const int64_t num_dense =
      batch_size == 0 ? 0 : static_cast<int64_t>(whole.dense.size()) / batch_size;
  AssignRange(whole.dense, begin * num_dense, end * num_dense, &out->dense);
  out->num_labels = whole.num_labels;
  AssignRange(whole.labels, begin * whole.num_labels, end * whole.num_labels, &out->labels);
  AssignRange(whole.true_probability, begin, end, &out->true_probability);
  AssignRange(whole.times, begin, end, &out->times);

  out->values.clear();
  out->weights.clear();
  out->offsets.resize(static_cast<size_t>(num_features * size + 1));
  out->offsets[0] = 0;
  for (int64_t f = 0; f < num_features; ++f) {
    // The slice's bags of a feature lie end to end, and so do their lookups.
    const int64_t* const from = whole.offsets.data() + f * batch_size + begin;
    const int64_t shift = from[0] - static_cast<int64_t>(out->values.size());
    int64_t* const to = out->offsets.data() + f * size;
    for (int64_t i = 1; i <= size; ++i) to[i] = from[i] - shift;
    AppendRange(whole.values, from[0], from[size], &out->values);
    AppendRange(whole.weights, from[0], from[size], &out->weights);
  }
}

}  // namespace hotrow
