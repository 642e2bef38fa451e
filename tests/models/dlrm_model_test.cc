#include "models/zoo/dlrm_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/models/model_test_util.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

DlrmOptions SmallOptions() {
  return {.num_dense = 4,
          .num_sparse = 3,
          .embedding_dim = 5,
          .dense_arch_layer_sizes = {6, 5},
          .over_arch_layer_sizes = {7, 1},
          .seed = 11,
          .max_batch_size = 8};
}

// One batch with random contents.
struct Batch {
  int64_t size = 0;
  std::vector<float> dense;
  std::vector<float> embeddings;
  std::vector<float> logit_gradient;
};

Batch RandomBatch(const DlrmOptions& options, int64_t size, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  Batch batch;
  batch.size = size;
  const auto fill = [&](std::vector<float>* v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) v->push_back(random.Normal());
  };
  fill(&batch.dense, size * options.num_dense);
  fill(&batch.embeddings, size * options.num_sparse * options.embedding_dim);
  fill(&batch.logit_gradient, size);
  return batch;
}

// y = act(x W^T + b) through all layers in double; `parameters` is the MLP's part.
std::vector<double> MlpReference(const Mlp& mlp, const std::vector<int32_t>& sizes,
                                 const double* parameters, std::vector<double> x,
                                 bool relu_on_output) {
  for (int32_t l = 0; l < mlp.num_layers(); ++l) {
    const double* const w = parameters + mlp.weight_offset(l);
    const double* const b = parameters + mlp.bias_offset(l);
    std::vector<double> y(sizes[l + 1]);
    for (int32_t o = 0; o < sizes[l + 1]; ++o) {
      y[o] = b[o];
      for (int32_t i = 0; i < sizes[l]; ++i) y[o] += w[o * sizes[l] + i] * x[i];
      if (l + 1 < mlp.num_layers() || relu_on_output) y[o] = std::max(y[o], 0.0);
    }
    x = std::move(y);
  }
  return x;
}

// The logit of one sample by the text of the paper, in double.
double ReferenceLogit(const DlrmModel& model, const DlrmOptions& options, const double* parameters,
                      const float* dense, const double* embeddings) {
  const int32_t dim = options.embedding_dim;
  std::vector<std::vector<double>> vectors;
  if (options.num_dense > 0) {
    std::vector<int32_t> sizes = options.dense_arch_layer_sizes;
    sizes.insert(sizes.begin(), options.num_dense);
    vectors.push_back(MlpReference(*model.bottom(), sizes, parameters,
                                   std::vector<double>(dense, dense + options.num_dense), true));
  }
  for (int32_t s = 0; s < options.num_sparse; ++s) {
    vectors.emplace_back(embeddings + s * dim, embeddings + (s + 1) * dim);
  }
  std::vector<double> x = vectors[0];
  for (size_t i = 1; i < vectors.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      double dot = 0;
      for (int32_t d = 0; d < dim; ++d) dot += vectors[i][d] * vectors[j][d];
      x.push_back(dot);
    }
  }
  std::vector<int32_t> sizes = options.over_arch_layer_sizes;
  sizes.insert(sizes.begin(), static_cast<int32_t>(x.size()));
  return MlpReference(model.top(), sizes, parameters + model.top_parameters_offset(), x, false)[0];
}

// sum over samples of logit_gradient * logit: its derivatives are what Backward has to return.
double ReferenceObjective(const DlrmModel& model, const DlrmOptions& options, const Batch& batch,
                          const std::vector<double>& parameters,
                          const std::vector<double>& embeddings) {
  double sum = 0;
  const int64_t width = int64_t{options.num_sparse} * options.embedding_dim;
  for (int64_t b = 0; b < batch.size; ++b) {
    sum += batch.logit_gradient[b] * ReferenceLogit(model, options, parameters.data(),
                                                    batch.dense.data() + b * options.num_dense,
                                                    embeddings.data() + b * width);
  }
  return sum;
}

// Forward against the double reference, and each derivative against its central difference.
void CheckAgainstReference(const DlrmOptions& options, int64_t batch_size, uint64_t seed) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model, DlrmModel::Create(options));
  const Batch batch = RandomBatch(options, batch_size, seed);
  std::vector<double> parameters(model->parameters().begin(), model->parameters().end());
  std::vector<double> embeddings(batch.embeddings.begin(), batch.embeddings.end());

  std::vector<float> logits(batch_size);
  HOTROW_ASSERT_OK(model->Forward({},
                                  {.batch_size = batch_size,
                                   .dense = batch.dense.data(),
                                   .embeddings = batch.embeddings.data(),
                                   .training = true,
                                   .step = 1},
                                  logits));
  const int64_t width = int64_t{options.num_sparse} * options.embedding_dim;
  for (int64_t b = 0; b < batch_size; ++b) {
    const double expected =
        ReferenceLogit(*model, options, parameters.data(),
                       batch.dense.data() + b * options.num_dense, embeddings.data() + b * width);
    EXPECT_NEAR(logits[b], expected, 1e-4 * (1 + std::abs(expected))) << "sample " << b;
  }

  std::vector<float> logit_gradient = batch.logit_gradient;
  std::vector<float> embedding_gradient(batch.embeddings.size(), NAN);
  HOTROW_ASSERT_OK(model->Backward({}, logit_gradient, embedding_gradient.data()));

  // A kink of ReLU within h of a sample's value would spoil a difference; with h this small none of
  // these seeds has one.
  constexpr double kH = 1e-6;
  const auto check = [&](std::vector<double>* at, std::span<const float> gradient,
                         const char* what) {
    double largest = 0;
    for (size_t i = 0; i < at->size(); ++i) {
      const double saved = (*at)[i];
      (*at)[i] = saved + kH;
      const double above = ReferenceObjective(*model, options, batch, parameters, embeddings);
      (*at)[i] = saved - kH;
      const double below = ReferenceObjective(*model, options, batch, parameters, embeddings);
      (*at)[i] = saved;
      const double expected = (above - below) / (2 * kH);
      EXPECT_NEAR(gradient[i], expected, 1e-4 * (1 + std::abs(expected))) << what << " " << i;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1e-2) << what << ": nothing was tested";
  };
  check(&parameters, model->gradients(), "parameter");
  check(&embeddings, embedding_gradient, "embedding");
}

TEST(DlrmModelTest, ForwardAndBackwardMatchTheReference) {
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    CheckAgainstReference(SmallOptions(), 6, seed);
  }
}

TEST(DlrmModelTest, OddSizesMatchTheReference) {
  DlrmOptions options = SmallOptions();
  options.embedding_dim = 1;
  options.num_sparse = 1;
  options.num_dense = 1;
  options.dense_arch_layer_sizes = {1};
  options.over_arch_layer_sizes = {1};
  options.seed = 12;  // of the one dense unit: its ReLU is open for some of the samples
  CheckAgainstReference(options, 8, 4);
  options = SmallOptions();
  options.embedding_dim = 17;
  options.dense_arch_layer_sizes = {3, 17};
  options.over_arch_layer_sizes = {5, 3, 1};
  CheckAgainstReference(options, 1, 5);
}

TEST(DlrmModelTest, WithoutDenseFeaturesTheFirstEmbeddingTakesTheirPlace) {
  DlrmOptions options = SmallOptions();
  options.num_dense = 0;
  options.dense_arch_layer_sizes = {};
  CheckAgainstReference(options, 5, 2);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model, DlrmModel::Create(options));
  EXPECT_EQ(model->bottom(), nullptr);
  EXPECT_EQ(model->top().input_size(), 5 + 3);  // a vector and 3 pairs of 3 vectors
  options.num_sparse = 1;
  CheckAgainstReference(options, 5, 2);
}

TEST(DlrmModelTest, ParametersAreTheBottomThenTheTopMlp) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                              DlrmModel::Create(SmallOptions()));
  EXPECT_EQ(model->top_parameters_offset() % 16, 0);
  EXPECT_GE(model->top_parameters_offset(), model->bottom()->num_parameters());
  EXPECT_EQ(static_cast<int64_t>(model->parameters().size()),
            model->top_parameters_offset() + model->top().num_parameters());
  EXPECT_EQ(model->gradients().size(), model->parameters().size());
  EXPECT_EQ(model->top().input_size(), 5 + 6);  // the dense vector and 6 pairs of 4 vectors
  EXPECT_EQ(model->name(), "dlrm");
}

TEST(DlrmModelTest, SeedAloneDecidesTheFirstParameters) {
  DlrmOptions options = SmallOptions();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> a, DlrmModel::Create(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> b, DlrmModel::Create(options));
  EXPECT_TRUE(std::ranges::equal(a->parameters(), b->parameters()));
  options.seed = 12;
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> c, DlrmModel::Create(options));
  EXPECT_FALSE(std::ranges::equal(a->parameters(), c->parameters()));
}

TEST(DlrmModelTest, DropoutActsInTrainingOnly) {
  DlrmOptions options = SmallOptions();
  options.dropout = 0.5;
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model, DlrmModel::Create(options));
  const Batch batch = RandomBatch(options, 8, 1);
  const auto logits = [&](bool training, uint32_t step) {
    std::vector<float> out(batch.size);
    HOTROW_EXPECT_OK(model->Forward({},
                                    {.batch_size = batch.size,
                                     .dense = batch.dense.data(),
                                     .embeddings = batch.embeddings.data(),
                                     .training = training,
                                     .step = step},
                                    out));
    return out;
  };
  EXPECT_EQ(logits(true, 1), logits(true, 1));
  EXPECT_NE(logits(true, 1), logits(true, 2));
  EXPECT_EQ(logits(false, 1), logits(false, 2));
}

TEST(DlrmModelTest, AnEmptyBatchHasZeroGradients) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                              DlrmModel::Create(SmallOptions()));
  HOTROW_ASSERT_OK(model->Forward({}, {.batch_size = 0, .training = true, .step = 1}, {}));
  HOTROW_ASSERT_OK(model->Backward({}, {}, nullptr));
  EXPECT_TRUE(std::ranges::all_of(model->gradients(), [](float g) { return g == 0; }));
}

test::ModelBatch RandomModelBatch(const DlrmOptions& o, int64_t size, uint64_t seed) {
  return test::RandomModelBatch(size, o.num_dense, o.num_sparse * o.embedding_dim, seed);
}

TEST(DlrmModelTest, TellsWhenEmbeddingsAreNeededAndWhichGradientsAreFinal) {
  ThreadPool pool(3);
  for (const int32_t num_dense : {4, 0}) {
    DlrmOptions options = SmallOptions();
    options.num_dense = num_dense;
    options.over_arch_layer_sizes = {70, 9, 1};
    options.dropout = 0.3f;
    options.max_batch_size = 200;
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model, DlrmModel::Create(options));
    test::Ranges layers;
    int64_t end = static_cast<int64_t>(model->parameters().size());
    const auto add = [&](int64_t begin) {
      layers.emplace_back(begin, end);
      end = begin;
    };
    for (int32_t l = 3; l-- > 0;) {
      add(model->top_parameters_offset() + model->top().weight_offset(l));
    }
    for (int32_t l = 2; l-- > 0 && num_dense > 0;) add(model->bottom()->weight_offset(l));
    EXPECT_EQ(end, 0);
    for (const int64_t size : {0, 1, 200}) {
      SCOPED_TRACE(testing::Message() << num_dense << " dense features, batch of " << size);
      const test::ModelBatch batch = RandomModelBatch(options, size, 3);
      EXPECT_EQ(test::CheckHooks({}, *model, batch), layers);
      EXPECT_EQ(test::CheckHooks({.pool = &pool}, *model, batch), layers);
      test::CheckHookErrors(*model, batch);
    }
  }
}

// What the bottom MLP reads may vanish while the embeddings are awaited: it is done by then.
TEST(DlrmModelTest, RunsTheBottomMlpBeforeItAwaitsTheEmbeddings) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                              DlrmModel::Create(SmallOptions()));
  const test::ModelBatch batch = RandomModelBatch(SmallOptions(), 8, 1);
  std::vector<float> want(8);
  HOTROW_ASSERT_OK(model->Forward({}, batch.Input(false, 0), want));
  std::vector<float> dense = batch.dense;
  CtrModel::Input input = batch.Input(false, 0);
  input.dense = dense.data();
  input.await_embeddings = [&] {
    std::fill(dense.begin(), dense.end(), NAN);
    return absl::OkStatus();
  };
  std::vector<float> logits(8);
  HOTROW_ASSERT_OK(model->Forward({}, input, logits));
  EXPECT_EQ(logits, want);
}

// The gradient of the embeddings is told before the bottom MLP's backward pass writes a number.
TEST(DlrmModelTest, TellsTheEmbeddingGradientBeforeTheBottomMlpGoesBack) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                              DlrmModel::Create(SmallOptions()));
  const test::ModelBatch batch = RandomModelBatch(SmallOptions(), 8, 1);
  std::vector<float> logits(8);
  std::vector<float> logit_gradient = batch.logit_gradient;
  std::vector<float> embedding_gradient(batch.embeddings.size());
  HOTROW_ASSERT_OK(model->Forward({}, batch.Input(true, 1), logits));
  bool told = false;
  HOTROW_ASSERT_OK(model->Backward({}, logit_gradient, embedding_gradient.data(),
                                   {.embedding_gradient_ready = [&] {
                                     told = true;
                                     const auto is_zero = [](float g) { return g == 0; };
                                     EXPECT_TRUE(std::ranges::all_of(model->gradients(), is_zero));
                                     return absl::OkStatus();
                                   }}));
  EXPECT_TRUE(told);
  EXPECT_FALSE(std::ranges::all_of(model->gradients(), [](float g) { return g == 0; }));
}

TEST(DlrmModelTest, SlicesAddUpToTheWholeBatch) {
  for (const int32_t num_dense : {4, 0}) {
    for (const float dropout : {0.0f, 0.4f}) {
      SCOPED_TRACE(testing::Message() << num_dense << " dense features, dropout " << dropout);
      DlrmOptions options = SmallOptions();
      options.num_dense = num_dense;
      options.over_arch_layer_sizes = {30, 9, 1};
      options.dropout = dropout;
      options.max_batch_size = 40;
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                                  DlrmModel::Create(options));
      for (const int64_t size : {2, 7, 40}) {
        test::CheckSlices(*model, RandomModelBatch(options, size, 5));
      }
      if (dropout > 0) test::CheckFirstSampleMatters(*model, RandomModelBatch(options, 40, 5));
    }
  }
}

TEST(DlrmModelTest, RefusesBatchesItHasNoRoomFor) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                              DlrmModel::Create(SmallOptions()));
  std::vector<float> logits(9);
  EXPECT_THAT(model->Forward({}, {.batch_size = 9}, logits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size is 8")));
  EXPECT_THAT(model->Forward({}, {.batch_size = 8}, std::span(logits).first(7)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("room for 7 logits")));
  EXPECT_THAT(model->Backward({}, logits, nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Forward")));
}

TEST(DlrmModelTest, NamesTheFlagWhenSizesDoNotFit) {
  const auto error = [](auto change) {
    DlrmOptions options = SmallOptions();
    change(&options);
    const absl::Status status = DlrmModel::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(
      error([](DlrmOptions* o) {
        o->dense_arch_layer_sizes = {6, 64};
      }),
      ::testing::AllOf(HasSubstr("--dense_arch_layer_sizes ends in 64 but --embedding_dim is 5"),
                       HasSubstr("--dense_arch_layer_sizes=6-5")));
  EXPECT_THAT(error([](DlrmOptions* o) {
                o->over_arch_layer_sizes = {7, 2};
              }),
              HasSubstr("--over_arch_layer_sizes=7-2-1"));
  EXPECT_THAT(error([](DlrmOptions* o) { o->over_arch_layer_sizes = {}; }),
              HasSubstr("--over_arch_layer_sizes is empty"));
  EXPECT_THAT(error([](DlrmOptions* o) {
                o->dense_arch_layer_sizes = {0, 5};
              }),
              HasSubstr("--dense_arch_layer_sizes=0-5"));
  EXPECT_THAT(error([](DlrmOptions* o) { o->dropout = 1; }), HasSubstr("--dropout"));
  EXPECT_THAT(error([](DlrmOptions* o) { o->num_sparse = 0; }), HasSubstr("num_sparse"));
  EXPECT_THAT(error([](DlrmOptions* o) { o->max_batch_size = 0; }), HasSubstr("max_batch_size"));
}

TEST(DlrmModelTest, WorksOnTheDeviceOfItsContextAlone) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DlrmModel> model,
                              DlrmModel::Create(SmallOptions()));
  EXPECT_EQ(model->device(), Device::kCpu);
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--device=cuda: this dlrm"));
  EXPECT_THAT(model->Forward({.device = Device::kCuda}, {.batch_size = 0, .training = true}, {}),
              refused);
  HOTROW_ASSERT_OK(model->Forward({}, {.batch_size = 0, .training = true, .step = 1}, {}));
  EXPECT_THAT(model->Backward({.device = Device::kCuda}, {}, nullptr), refused);
}

TEST(DlrmModelTest, AGpuThatIsNotThereIsNamed) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(DlrmModel::Create(SmallOptions(), {.device = Device::kCuda}).status().message(),
              ::testing::AnyOf(HasSubstr("no CUDA"), HasSubstr("no usable GPU")));
}

}  // namespace
}  // namespace hotrow
