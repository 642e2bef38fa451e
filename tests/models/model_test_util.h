#ifndef HOTROW_TESTS_MODELS_MODEL_TEST_UTIL_H_
#define HOTROW_TESTS_MODELS_MODEL_TEST_UTIL_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "models/data/slice_batch.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/layers/batch_norm_layer.h"
#include "models/zoo/layers/mlp_layer_impl.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/layers/mlp.h"
#include "ops/training/bce_loss.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// What the tests of models share: random batches, an MLP in double, and the checks of a whole
// model: against a reference in double, of what it calls back, and of slices against the whole
// batch.
namespace hotrow::test {

// One batch with random contents.
struct ModelBatch {
  int64_t size = 0;
  int64_t num_dense = 0;
  int64_t width = 0;              // of the embeddings
  std::vector<float> dense;       // [size, num_dense]
  std::vector<float> embeddings;  // [size, width]
  int64_t num_tasks = 1;
  std::vector<float> logit_gradient;  // [size, num_tasks]
  int64_t first_sample = 0;

  CtrModel::Input Input(bool training, uint32_t step) const {
    return {.batch_size = size,
            .dense = dense.data(),
            .embeddings = embeddings.data(),
            .training = training,
            .step = step,
            .first_sample = first_sample};
  }
};

inline ModelBatch RandomModelBatch(int64_t size, int64_t num_dense, int64_t width, uint64_t seed,
                                   int64_t num_tasks = 1) {
  RandomStream random(seed, RandomPurpose::kTest);
  ModelBatch batch = {.size = size, .num_dense = num_dense, .width = width, .num_tasks = num_tasks};
  const auto fill = [&](std::vector<float>* v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) v->push_back(random.Normal());
  };
  fill(&batch.dense, size * num_dense);
  fill(&batch.embeddings, size * width);
  fill(&batch.logit_gradient, size * num_tasks);
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

// The MLP that is the part `name` of a model; null if there is none.
inline const Mlp* FindMlp(const GraphModel& model, std::string_view name) {
  const auto* const layer = dynamic_cast<const MlpLayer*>(model.FindPart(name).layer);
  return layer == nullptr ? nullptr : &layer->network();
}
// The same MLP over x in double; `parameters` are those of the model.
inline std::vector<double> MlpReference(const GraphModel& model, std::string_view name,
                                        const std::vector<int32_t>& sizes, const double* parameters,
                                        const std::vector<double>& x, bool relu_on_output) {
  return MlpReference(*FindMlp(model, name), sizes, parameters + model.FindPart(name).offset, x,
                      relu_on_output);
}

// Where the parts of an MLP with batch norm lie: name.0, name.norm0, name.1 ....
inline const Mlp* FindLinear(const GraphModel& model, const std::string& name, size_t layer) {
  return FindMlp(model, name + "." + std::to_string(layer));
}
// An MLP with batch norm, in training, over the rows of a batch in double.
inline std::vector<std::vector<double>> NormedMlpReference(
    const GraphModel& model, const std::string& name, const std::vector<int32_t>& sizes,
    const double* parameters, std::vector<std::vector<double>> rows, bool relu_on_output) {
  for (size_t l = 0; l < sizes.size(); ++l) {
    const std::string part = name + "." + std::to_string(l);
    for (std::vector<double>& x : rows) {
      x = MlpReference(model, part, {sizes[l]}, parameters, x, false);
    }
    if (l + 1 == sizes.size() && !relu_on_output) break;
    const GraphModel::Part norm = model.FindPart(name + ".norm" + std::to_string(l));
    const auto& layer = dynamic_cast<const BatchNormLayer&>(*norm.layer);
    const double* const gamma = parameters + norm.offset + layer.gamma_offset();
    const double* const beta = parameters + norm.offset + layer.beta_offset();
    const auto n = static_cast<double>(rows.size());
    for (size_t i = 0; i < static_cast<size_t>(sizes[l]); ++i) {
      double mean = 0;
      for (const std::vector<double>& x : rows) mean += x[i] / n;
      double variance = 0;
      for (const std::vector<double>& x : rows) variance += (x[i] - mean) * (x[i] - mean) / n;
      const double deviation = std::sqrt(variance + BatchNormLayer::kEpsilon);
      for (std::vector<double>& x : rows) {
        x[i] = std::max(gamma[i] * (x[i] - mean) / deviation + beta[i], 0.0);
      }
    }
  }
  return rows;
}

// What an MLP over all features reads: the first `dim` columns of each of the tables, which have
// `columns`, then the dense features.
inline std::vector<double> DeepInput(int32_t num_dense, int32_t num_sparse, int32_t dim,
                                     int32_t columns, const float* dense,
                                     const double* embeddings) {
  std::vector<double> x;
  for (int32_t s = 0; s < num_sparse; ++s) {
    x.insert(x.end(), embeddings + s * columns, embeddings + s * columns + dim);
  }
  x.insert(x.end(), dense, dense + num_dense);
  return x;
}

// The terms of AddWideLogit, whose first-order weights are column `column`, the last one.
inline double WideReference(const GraphModel& model, int32_t num_dense, int32_t num_sparse,
                            int32_t column, const double* parameters, const float* dense,
                            const double* embeddings) {
  double logit = parameters[model.FindPart("bias").offset];
  for (int32_t i = 0; i < num_dense; ++i) {
    logit += parameters[model.FindPart("linear").offset + i] * dense[i];
  }
  for (int32_t s = 0; s < num_sparse; ++s) logit += embeddings[s * (column + 1) + column];
  return logit;
}
// Its parameters, which start as zeros and come first.
inline void RandomizeWidePart(GraphModel& model, RandomStream& random) {
  for (int64_t i = 0; i <= model.FindPart("bias").offset; ++i) {
    model.parameters()[static_cast<size_t>(i)] = random.Normal();
  }
}

// The logit of one sample in double, by the text of the paper.
using LogitReference =
    std::function<double(const double* parameters, const float* dense, const double* embeddings)>;

// The logits [B, T] of a batch in double, for models that look at the whole batch or have tasks.
using BatchReference = std::function<std::vector<double>(
    int64_t batch_size, const double* parameters, const float* dense, const double* embeddings)>;

// The same of one sample after the other.
inline BatchReference EachSample(const LogitReference& logit, int64_t num_dense, int64_t width) {
  return [=](int64_t batch_size, const double* parameters, const float* dense,
             const double* embeddings) {
    std::vector<double> logits;
    for (int64_t b = 0; b < batch_size; ++b) {
      logits.push_back(logit(parameters, dense + b * num_dense, embeddings + b * width));
    }
    return logits;
  };
}

// Forward against the reference, and each derivative against its central difference.
inline void CheckModel(CtrModel& model, const ModelBatch& batch, const BatchReference& reference) {
  std::vector<double> parameters(model.parameters().begin(), model.parameters().end());
  std::vector<double> embeddings(batch.embeddings.begin(), batch.embeddings.end());
  const auto expected_logits = [&] {
    return reference(batch.size, parameters.data(), batch.dense.data(), embeddings.data());
  };
  std::vector<float> logits(batch.logit_gradient.size());
  HOTROW_ASSERT_OK(model.Forward({}, batch.Input(/*training=*/true, 1), logits));
  const std::vector<double> expected = expected_logits();
  ASSERT_EQ(expected.size(), logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(logits[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << "logit " << i;
  }

  std::vector<float> logit_gradient = batch.logit_gradient;
  std::vector<float> embedding_gradient(batch.embeddings.size(),
                                        std::numeric_limits<float>::quiet_NaN());
  HOTROW_ASSERT_OK(model.Backward({}, logit_gradient, embedding_gradient.data(), {}));

  const auto objective = [&] {
    const std::vector<double> at = expected_logits();
    double sum = 0;
    for (size_t i = 0; i < at.size(); ++i) sum += batch.logit_gradient[i] * at[i];
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

inline void CheckModel(CtrModel& model, const ModelBatch& batch, const LogitReference& reference) {
  CheckModel(model, batch, EachSample(reference, batch.num_dense, batch.width));
}

// --- slices and hooks ---

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// The ranges of the gradients of a model, as Backward shall tell them: from the end of gradients()
// on.
class RangesFromEnd {
 public:
  explicit RangesFromEnd(const GraphModel& model)
      : model_(model), end_(std::ssize(model.gradients())) {}

  void Add(int64_t begin) {
    ranges_.emplace_back(begin, end_);
    end_ = begin;
  }
  // Each layer of a part, the last one first: an MLP, or what else has num_layers and
  // weight_offset. No part of that name: nothing.
  void AddMlp(std::string_view name) {
    if (const Mlp* const mlp = FindMlp(model_, name)) AddLayers(name, *mlp, mlp->num_layers());
  }
  // The same with batch norm.
  void AddNormedMlp(const std::string& name) {
    size_t layers = 0;
    while (FindLinear(model_, name, layers) != nullptr) ++layers;
    for (size_t l = layers; l-- > 0;) {
      const GraphModel::Part norm = model_.FindPart(name + ".norm" + std::to_string(l));
      if (norm.layer != nullptr) Add(norm.offset);
      Add(model_.FindPart(name + "." + std::to_string(l)).offset);
    }
  }
  template <typename Net>
  void AddLayers(std::string_view name, const Net& net, int32_t num_layers) {
    for (int32_t l = num_layers; l-- > 0;) {
      Add(model_.FindPart(name).offset + net.weight_offset(l));
    }
  }
  const Ranges& ranges() const { return ranges_; }

 private:
  const GraphModel& model_;
  int64_t end_;
  Ranges ranges_;
};

// NaNs, whose bits a GPU chooses, are equal.
inline std::vector<uint32_t> FloatBits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  bits.reserve(values.size());
  for (const float value : values) {
    bits.push_back(std::isnan(value) ? 0x7fc00000 : std::bit_cast<uint32_t>(value));
  }
  return bits;
}

// What a forward and a backward pass of a model give.
struct ModelPass {
  std::vector<float> logits, embedding_gradient, gradients;
};

inline ModelPass RunPass(const ExecContext& ctx, CtrModel& model, const ModelBatch& batch,
                         std::vector<float> logit_gradient) {
  ModelPass pass;
  pass.logits.resize(batch.logit_gradient.size());
  pass.embedding_gradient.resize(batch.embeddings.size());
  HOTROW_EXPECT_OK(model.Forward(ctx, batch.Input(/*training=*/true, 1), pass.logits));
  HOTROW_EXPECT_OK(model.Backward(ctx, logit_gradient, pass.embedding_gradient.data(), {}));
  pass.gradients.assign(model.gradients().begin(), model.gradients().end());
  return pass;
}

// Every promise of CtrModel::Input::await_embeddings and CtrModel::BackwardHooks for this batch.
// Returns the ranges of gradients in the order in which they were reported.
inline Ranges CheckHooks(const ExecContext& ctx, CtrModel& model, const ModelBatch& batch) {
  const ModelPass want = RunPass(ctx, model, batch, batch.logit_gradient);
  // Other gradients than those, so that none looks final because it was so before.
  std::vector<float> other_gradient(batch.logit_gradient.size(), 5.0f);
  const ModelBatch other =
      RandomModelBatch(batch.size, batch.num_dense, batch.width, 99, batch.num_tasks);
  RunPass(ctx, model, other, other_gradient);

  const std::thread::id caller = std::this_thread::get_id();
  // The embeddings are not there before they are awaited.
  std::vector<float> embeddings(batch.embeddings.size(), std::numeric_limits<float>::quiet_NaN());
  int awaited = 0;
  CtrModel::Input input = batch.Input(/*training=*/true, 1);
  input.embeddings = embeddings.data();
  input.await_embeddings = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++awaited;
    embeddings = batch.embeddings;
    return absl::OkStatus();
  };
  std::vector<float> logits(batch.logit_gradient.size());
  HOTROW_EXPECT_OK(model.Forward(ctx, input, logits));
  EXPECT_EQ(awaited, 1);
  EXPECT_EQ(FloatBits(logits), FloatBits(want.logits));

  const auto num_gradients = static_cast<int64_t>(model.gradients().size());
  std::vector<float> logit_gradient = batch.logit_gradient;
  std::vector<float> embedding_gradient(batch.embeddings.size());
  std::vector<float> early_embedding_gradient;
  std::vector<float> early_gradients(static_cast<size_t>(num_gradients));
  int embeddings_ready = 0;
  Ranges ranges;
  int64_t left = num_gradients;
  const CtrModel::BackwardHooks hooks = {
      .embedding_gradient_ready =
          [&] {
            EXPECT_EQ(std::this_thread::get_id(), caller);
            EXPECT_TRUE(ranges.empty()) << "gradients of parameters came before";
            ++embeddings_ready;
            early_embedding_gradient = embedding_gradient;
            return absl::OkStatus();
          },
      .gradients_ready =
          [&](int64_t begin, int64_t end) {
            EXPECT_EQ(std::this_thread::get_id(), caller);
            EXPECT_EQ(end, left);
            EXPECT_LT(begin, end);
            EXPECT_GE(begin, 0);
            left = begin;
            ranges.emplace_back(begin, end);
            std::copy(model.gradients().begin() + begin, model.gradients().begin() + end,
                      early_gradients.begin() + begin);
            return absl::OkStatus();
          }};
  HOTROW_EXPECT_OK(model.Backward(ctx, logit_gradient, embedding_gradient.data(), hooks));
  EXPECT_EQ(embeddings_ready, 1);
  EXPECT_EQ(left, 0) << "not all gradients were reported";
  EXPECT_EQ(FloatBits(early_embedding_gradient), FloatBits(embedding_gradient));
  EXPECT_EQ(FloatBits(early_gradients), FloatBits(model.gradients()));
  EXPECT_EQ(FloatBits(embedding_gradient), FloatBits(want.embedding_gradient));
  EXPECT_EQ(FloatBits(model.gradients()), FloatBits(want.gradients));
  if (batch.size == 0) {
    EXPECT_TRUE(std::ranges::all_of(early_gradients, [](float g) { return g == 0; }));
  }
  return ranges;
}

// Each call of a hook may fail: its error is that of the pass, and no other call follows.
inline void CheckHookErrors(CtrModel& model, const ModelBatch& batch) {
  const absl::Status error = absl::UnavailableError("rank 3 is gone");
  std::vector<float> logits(batch.logit_gradient.size());
  std::vector<float> embedding_gradient(batch.embeddings.size());
  RunPass({}, model, batch, batch.logit_gradient);
  CtrModel::Input input = batch.Input(/*training=*/true, 1);
  input.await_embeddings = [&] { return error; };
  EXPECT_EQ(model.Forward({}, input, logits), error);
  std::vector<float> logit_gradient = batch.logit_gradient;
  EXPECT_THAT(model.Backward({}, logit_gradient, embedding_gradient.data(), {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr("Forward")));

  for (int fail_at = 0;; ++fail_at) {
    int calls = 0;
    const auto call = [&] { return calls++ == fail_at ? error : absl::OkStatus(); };
    const CtrModel::BackwardHooks hooks = {
        .embedding_gradient_ready = call,
        .gradients_ready = [&](int64_t begin, int64_t end) { return call(); }};
    input = batch.Input(/*training=*/true, 1);
    input.sum_over_slices = [&](std::span<double> sums) { return call(); };
    logit_gradient = batch.logit_gradient;
    absl::Status status = model.Forward({}, input, logits);
    if (status.ok()) {
      status = model.Backward({}, logit_gradient, embedding_gradient.data(), hooks);
    }
    if (calls <= fail_at) {  // all calls of a pass have failed once
      HOTROW_EXPECT_OK(status);
      EXPECT_GE(fail_at, 3);  // the embeddings and at least two layers
      return;
    }
    EXPECT_EQ(status, error);
    EXPECT_EQ(calls, fail_at + 1);
  }
}

inline ModelBatch SliceOf(const ModelBatch& batch, int64_t begin, int64_t end) {
  const auto rows = [&](const std::vector<float>& from, int64_t columns) {
    return std::vector<float>(from.begin() + begin * columns, from.begin() + end * columns);
  };
  return {.size = end - begin,
          .num_dense = batch.num_dense,
          .width = batch.width,
          .dense = rows(batch.dense, batch.num_dense),
          .embeddings = rows(batch.embeddings, batch.width),
          .num_tasks = batch.num_tasks,
          .logit_gradient = rows(batch.logit_gradient, batch.num_tasks),
          .first_sample = batch.first_sample + begin};
}

// Forward, loss over `mean_over` samples, backward.
inline ModelPass RunLossPass(CtrModel& model, const ModelBatch& batch,
                             const std::vector<float>& labels, int64_t mean_over,
                             const SliceSums& sum_over_slices = nullptr) {
  ModelPass pass;
  std::vector<float> logits(batch.logit_gradient.size());
  CtrModel::Input input = batch.Input(/*training=*/true, 1);
  input.sum_over_slices = sum_over_slices;
  HOTROW_EXPECT_OK(model.Forward({}, input, logits));
  std::vector<float> logit_gradient(logits.size());
  double loss = 0;
  for (int64_t task = 0; task < batch.num_tasks; ++task) {
    HOTROW_EXPECT_OK(
        BceWithLogits({}, {.logits = logits.data() + task,
                           .labels = labels.data() + batch.first_sample * batch.num_tasks + task,
                           .batch_size = batch.size,
                           .gradient = logit_gradient.data() + task,
                           .mean_over = mean_over,
                           .stride = batch.num_tasks,
                           .loss = &loss}));
  }
  pass.logits = std::move(logits);
  pass.embedding_gradient.resize(batch.embeddings.size());
  HOTROW_EXPECT_OK(model.Backward({}, logit_gradient, pass.embedding_gradient.data(), {}));
  pass.gradients.assign(model.gradients().begin(), model.gradients().end());
  return pass;
}

// The same for the slices of a batch, as on ranks, but one after the other: what a model sums over
// the slices is recorded call by call, and the passes are made again with the sums known so far.
inline std::vector<ModelPass> RunSlices(CtrModel& model, const std::vector<ModelBatch>& slices,
                                        const std::vector<float>& labels, int64_t mean_over) {
  std::vector<std::vector<double>> known;
  while (true) {
    std::vector<ModelPass> passes;
    std::vector<double> next;
    for (const ModelBatch& slice : slices) {
      size_t call = 0;
      passes.push_back(RunLossPass(model, slice, labels, mean_over, [&](std::span<double> sums) {
        if (call < known.size()) {
          EXPECT_EQ(sums.size(), known[call].size());
          std::ranges::copy(known[call], sums.begin());
        } else if (call == known.size()) {
          next.resize(sums.size());
          for (size_t i = 0; i < sums.size(); ++i) next[i] += sums[i];
        }
        ++call;
        return absl::OkStatus();
      }));
    }
    if (next.empty()) return passes;
    known.push_back(std::move(next));
  }
}

// The logits and the embedding gradients of the slices of a batch are those of the whole, and the
// gradients of the parameters add up to those of the whole, all within rounding.
inline void CheckSlices(CtrModel& model, const ModelBatch& batch) {
  std::vector<float> labels;
  for (int64_t i = 0; i < batch.size * batch.num_tasks; ++i) {
    labels.push_back(static_cast<float>(i % 3) / 2);
  }
  const ModelPass whole = RunLossPass(model, batch, labels, /*mean_over=*/0);
  // How much the samples add to each sum, without regard to sign. Each of the sums over at most a
  // few hundred terms behind a number errs by less than 1000 roundings of 2^-24 of that; numbers
  // that a model makes from larger ones err by their share of the largest.
  std::vector<double> magnitude(whole.gradients.size());
  std::vector<ModelBatch> samples;
  for (int64_t b = 0; b < batch.size; ++b) samples.push_back(SliceOf(batch, b, b + 1));
  for (const ModelPass& one : RunSlices(model, samples, labels, batch.size)) {
    for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += std::abs(one.gradients[i]);
  }
  const double largest = *std::max_element(magnitude.begin(), magnitude.end());
  ASSERT_GT(largest, 1e-3);
  constexpr double kRounding = 1000 * 0x1p-24;
  const auto bound = [&](double of, double of_largest) {
    return kRounding * (of + of_largest / 16);
  };

  for (const int64_t world_size : {1, 2, 3, 4, 9}) {
    SCOPED_TRACE(testing::Message() << batch.size << " samples on " << world_size << " ranks");
    std::vector<double> sum(whole.gradients.size());
    ModelPass all;
    std::vector<ModelBatch> slices;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      slices.push_back(SliceOf(batch, SliceBegin(batch.size, rank, world_size),
                               SliceBegin(batch.size, rank + 1, world_size)));
    }
    for (const ModelPass& pass : RunSlices(model, slices, labels, batch.size)) {
      all.logits.insert(all.logits.end(), pass.logits.begin(), pass.logits.end());
      all.embedding_gradient.insert(all.embedding_gradient.end(), pass.embedding_gradient.begin(),
                                    pass.embedding_gradient.end());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += pass.gradients[i];
    }
    const auto expect_near = [&](const std::vector<float>& got, const std::vector<float>& want,
                                 const char* what) {
      ASSERT_EQ(got.size(), want.size());
      double most = 0;
      for (const float x : want) most = std::max(most, static_cast<double>(std::abs(x)));
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], bound(std::abs(want[i]), most)) << what << " " << i;
      }
    };
    expect_near(all.logits, whole.logits, "logit");
    expect_near(all.embedding_gradient, whole.embedding_gradient, "embedding gradient");
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(sum[i], whole.gradients[i], bound(magnitude[i], largest)) << "gradient " << i;
    }
  }
}

// A model with dropout: a slice that counts its samples from 0 drops others than the whole batch.
inline void CheckFirstSampleMatters(CtrModel& model, const ModelBatch& batch) {
  ModelBatch slice = SliceOf(batch, batch.size / 2, batch.size);
  std::vector<float> logits(slice.logit_gradient.size());
  HOTROW_ASSERT_OK(model.Forward({}, slice.Input(/*training=*/true, 1), logits));
  std::vector<float> from_zero(logits.size());
  slice.first_sample = 0;
  HOTROW_ASSERT_OK(model.Forward({}, slice.Input(/*training=*/true, 1), from_zero));
  EXPECT_NE(logits, from_zero);
  slice.first_sample = -1;
  EXPECT_THAT(model.Forward({}, slice.Input(/*training=*/true, 1), logits),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("first_sample")));
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_MODEL_TEST_UTIL_H_
