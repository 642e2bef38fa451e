#ifndef HOTROW_TESTS_MODELS_MODEL_TEST_UTIL_H_
#define HOTROW_TESTS_MODELS_MODEL_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "models/ctr_model.h"
#include "ops/mlp.h"
#include "tests/support/test_util.h"

// What the tests of models share: random batches, an MLP in double, and the check of a whole model
// against a reference in double.
namespace hotrow::test {

// One batch with random contents.
struct ModelBatch {
  int64_t size = 0;
  int64_t num_dense = 0;
  int64_t width = 0;              // of the embeddings
  std::vector<float> dense;       // [size, num_dense]
  std::vector<float> embeddings;  // [size, width]
  std::vector<float> logit_gradient;

  CtrModel::Input Input(bool training, uint32_t step) const {
    return {.batch_size = size,
            .dense = dense.data(),
            .embeddings = embeddings.data(),
            .training = training,
            .step = step};
  }
};

inline ModelBatch RandomModelBatch(int64_t size, int64_t num_dense, int64_t width, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  ModelBatch batch = {.size = size, .num_dense = num_dense, .width = width};
  const auto fill = [&](std::vector<float>* v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) v->push_back(random.Normal());
  };
  fill(&batch.dense, size * num_dense);
  fill(&batch.embeddings, size * width);
  fill(&batch.logit_gradient, size);
  return batch;
}

// y = act(x W^T + b) through all layers in double; `sizes` are the output sizes, `parameters` is
// the MLP's part.
inline std::vector<double> MlpReference(const Mlp& mlp, const std::vector<int32_t>& sizes,
                                        const double* parameters, std::vector<double> x,
                                        bool relu_on_output) {
  for (int32_t l = 0; l < mlp.num_layers(); ++l) {
    const double* const w = parameters + mlp.weight_offset(l);
    const double* const b = parameters + mlp.bias_offset(l);
    std::vector<double> y(static_cast<size_t>(sizes[static_cast<size_t>(l)]));
    for (size_t o = 0; o < y.size(); ++o) {
      y[o] = b[o];
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
      if (l + 1 < mlp.num_layers() || relu_on_output) y[o] = std::max(y[o], 0.0);
    }
    x = std::move(y);
  }
  return x;
}

// The logit of one sample in double, by the text of the paper.
using LogitReference =
    std::function<double(const double* parameters, const float* dense, const double* embeddings)>;

// Forward against the reference, and each derivative against its central difference.
inline void CheckModel(CtrModel& model, const ModelBatch& batch, const LogitReference& reference) {
  std::vector<double> parameters(model.parameters().begin(), model.parameters().end());
  std::vector<double> embeddings(batch.embeddings.begin(), batch.embeddings.end());
  const auto logit = [&](int64_t b) {
    return reference(parameters.data(), batch.dense.data() + b * batch.num_dense,
                     embeddings.data() + b * batch.width);
  };
  std::vector<float> logits(static_cast<size_t>(batch.size));
  HOTROW_ASSERT_OK(model.Forward({}, batch.Input(/*training=*/true, 1), logits));
  for (int64_t b = 0; b < batch.size; ++b) {
    const double expected = logit(b);
    EXPECT_NEAR(logits[static_cast<size_t>(b)], expected, 1e-4 * (1 + std::abs(expected)))
        << "sample " << b;
  }

  std::vector<float> logit_gradient = batch.logit_gradient;
  std::vector<float> embedding_gradient(batch.embeddings.size(),
                                        std::numeric_limits<float>::quiet_NaN());
  HOTROW_ASSERT_OK(model.Backward({}, logit_gradient, embedding_gradient.data()));

  const auto objective = [&] {
    double sum = 0;
    for (int64_t b = 0; b < batch.size; ++b) {
      sum += batch.logit_gradient[static_cast<size_t>(b)] * logit(b);
    }
    return sum;
  };
  // A kink of ReLU within h of a sample's value would spoil a difference; with h this small none of
  // the seeds in use has one.
  constexpr double kH = 1e-6;
  const auto check = [&](std::vector<double>* at, std::span<const float> gradient,
                         const char* what) {
    double largest = 0;
    for (size_t i = 0; i < at->size(); ++i) {
      const double saved = (*at)[i];
      (*at)[i] = saved + kH;
      const double above = objective();
      (*at)[i] = saved - kH;
      const double below = objective();
      (*at)[i] = saved;
      const double expected = (above - below) / (2 * kH);
      EXPECT_NEAR(gradient[i], expected, 1e-4 * (1 + std::abs(expected))) << what << " " << i;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1e-2) << what << ": nothing was tested";
  };
  check(&parameters, model.gradients(), "parameter");
  check(&embeddings, embedding_gradient, "embedding");
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_MODEL_TEST_UTIL_H_
