#include "models/zoo/deepfm_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

DeepFmOptions SmallOptions() {
  return {.num_dense = 4,
          .num_sparse = 3,
          .embedding_dim = 5,
          .over_arch_layer_sizes = {7, 1},
          .seed = 11,
          .max_batch_size = 8};
}

test::ModelBatch RandomBatch(const DeepFmOptions& o, int64_t size, uint64_t seed) {
  return test::RandomModelBatch(size, o.num_dense, o.num_sparse * (o.embedding_dim + 1), seed);
}

std::unique_ptr<DeepFmModel> NewModel(const DeepFmOptions& options) {
  auto model = DeepFmModel::Create(options);
  HOTROW_EXPECT_OK(model);
  return *std::move(model);
}

// The logit of one sample, pair by pair.
double ReferenceLogit(const DeepFmModel& model, const DeepFmOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  const int32_t dim = o.embedding_dim;
  const auto vector = [&](int32_t s) { return embeddings + s * (dim + 1); };
  double logit = parameters[model.bias_offset()];
  for (int32_t i = 0; i < o.num_dense; ++i) logit += parameters[i] * dense[i];
  std::vector<double> deep;
  for (int32_t s = 0; s < o.num_sparse; ++s) {
    logit += vector(s)[dim];
    for (int32_t t = 0; t < s; ++t) {
      for (int32_t d = 0; d < dim; ++d) logit += vector(s)[d] * vector(t)[d];
    }
    deep.insert(deep.end(), vector(s), vector(s) + dim);
  }
  deep.insert(deep.end(), dense, dense + o.num_dense);
  return logit + test::MlpReference(model.mlp(), o.over_arch_layer_sizes,
                                    parameters + model.mlp_parameters_offset(), deep, false)[0];
}

void CheckAgainstReference(const DeepFmOptions& options, int64_t batch_size, uint64_t seed) {
  const auto model = NewModel(options);
  RandomStream random(seed, RandomPurpose::kTest, 1);
  for (int32_t i = 0; i <= options.num_dense; ++i) {  // they start as zeros
    model->parameters()[static_cast<size_t>(i)] = random.Normal();
  }
  test::CheckModel(*model, RandomBatch(options, batch_size, seed),
                   [&](const double* parameters, const float* dense, const double* embeddings) {
                     return ReferenceLogit(*model, options, parameters, dense, embeddings);
                   });
}

TEST(DeepFmModelTest, ForwardAndBackwardMatchTheReference) {
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    CheckAgainstReference(SmallOptions(), 6, seed);
  }
}

TEST(DeepFmModelTest, OddSizesMatchTheReference) {
  DeepFmOptions options = SmallOptions();
  options.num_dense = 1;
  options.num_sparse = 1;
  options.embedding_dim = 1;
  options.over_arch_layer_sizes = {1};
  CheckAgainstReference(options, 8, 4);
  options = SmallOptions();
  options.num_dense = 17;  // dense weights and bias fill more than one line
  options.embedding_dim = 16;
  options.over_arch_layer_sizes = {5, 3, 1};
  CheckAgainstReference(options, 1, 5);
}

TEST(DeepFmModelTest, DenseFeaturesMayBeMissing) {
  DeepFmOptions options = SmallOptions();
  options.num_dense = 0;
  CheckAgainstReference(options, 5, 2);
}

TEST(DeepFmModelTest, AtFirstTheLinearPartIsZero) {
  const auto model = NewModel(SmallOptions());
  EXPECT_EQ(model->bias_offset(), 4);
  EXPECT_EQ(model->mlp_parameters_offset(), 16);
  const std::span<float> parameters = model->parameters();
  EXPECT_TRUE(std::ranges::all_of(parameters.first(16), [](float p) { return p == 0; }));
  EXPECT_EQ(static_cast<int64_t>(parameters.size()), 16 + model->mlp().num_parameters());
  EXPECT_EQ(model->gradients().size(), parameters.size());
  EXPECT_EQ(model->mlp().input_size(), 3 * 5 + 4);
  EXPECT_EQ(model->name(), "deepfm");
  EXPECT_EQ(DeepFmOptions::TableColumns(5), 6);
}

TEST(DeepFmModelTest, SeedAloneDecidesTheFirstParameters) {
  DeepFmOptions options = SmallOptions();
  const auto a = NewModel(options);
  EXPECT_TRUE(std::ranges::equal(a->parameters(), NewModel(options)->parameters()));
  options.seed = 12;
  EXPECT_FALSE(std::ranges::equal(a->parameters(), NewModel(options)->parameters()));
}

TEST(DeepFmModelTest, EqualBitsOnAnyPool) {
  DeepFmOptions options = SmallOptions();
  options.max_batch_size = 300;
  const test::ModelBatch batch = RandomBatch(options, 300, 3);
  const auto run = [&](ThreadPool* pool) {
    const auto model = NewModel(options);
    std::vector<float> all(300);
    std::vector<float> logit_gradient = batch.logit_gradient;
    std::vector<float> embedding_gradient(batch.embeddings.size());
    HOTROW_EXPECT_OK(model->Forward({.pool = pool}, batch.Input(true, 1), all));
    HOTROW_EXPECT_OK(model->Backward({.pool = pool}, logit_gradient, embedding_gradient.data()));
    all.insert(all.end(), embedding_gradient.begin(), embedding_gradient.end());
    all.insert(all.end(), model->gradients().begin(), model->gradients().end());
    return all;
  };
  const std::vector<float> alone = run(nullptr);
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(run(&pool), alone) << threads << " threads";
  }
}

TEST(DeepFmModelTest, DropoutActsInTrainingOnly) {
  DeepFmOptions options = SmallOptions();
  options.dropout = 0.5;
  const auto model = NewModel(options);
  const test::ModelBatch batch = RandomBatch(options, 8, 1);
  const auto logits = [&](bool training, uint32_t step) {
    std::vector<float> out(8);
    HOTROW_EXPECT_OK(model->Forward({}, batch.Input(training, step), out));
    return out;
  };
  EXPECT_EQ(logits(true, 1), logits(true, 1));
  EXPECT_NE(logits(true, 1), logits(true, 2));
  EXPECT_EQ(logits(false, 1), logits(false, 2));
}

TEST(DeepFmModelTest, AnEmptyBatchHasZeroGradients) {
  const auto model = NewModel(SmallOptions());
  const test::ModelBatch batch = RandomBatch(SmallOptions(), 8, 1);
  std::vector<float> logits(8);
  std::vector<float> logit_gradient = batch.logit_gradient;
  std::vector<float> embedding_gradient(batch.embeddings.size());
  HOTROW_ASSERT_OK(model->Forward({}, batch.Input(true, 1), logits));
  HOTROW_ASSERT_OK(model->Backward({}, logit_gradient, embedding_gradient.data()));
  HOTROW_ASSERT_OK(model->Forward({}, {.batch_size = 0, .training = true, .step = 1}, {}));
  HOTROW_ASSERT_OK(model->Backward({}, {}, nullptr));
  EXPECT_TRUE(std::ranges::all_of(model->gradients(), [](float g) { return g == 0; }));
}

TEST(DeepFmModelTest, TellsWhenEmbeddingsAreNeededAndWhichGradientsAreFinal) {
  for (const int32_t num_dense : {4, 0}) {
    DeepFmOptions options = SmallOptions();
    options.num_dense = num_dense;
    options.over_arch_layer_sizes = {70, 9, 1};
    options.dropout = 0.3f;
    options.max_batch_size = 200;
    const auto model = NewModel(options);
    ThreadPool pool(3);
    const Mlp& mlp = model->mlp();
    const int64_t offset = model->mlp_parameters_offset();
    const test::Ranges layers = {{offset + mlp.weight_offset(2), offset + mlp.num_parameters()},
                                 {offset + mlp.weight_offset(1), offset + mlp.weight_offset(2)},
                                 {offset, offset + mlp.weight_offset(1)},
                                 {0, offset}};
    for (const int64_t size : {0, 1, 200}) {
      SCOPED_TRACE(testing::Message() << num_dense << " dense features, batch of " << size);
      const test::ModelBatch batch = RandomBatch(options, size, 3);
      EXPECT_EQ(test::CheckHooks({}, *model, batch), layers);
      EXPECT_EQ(test::CheckHooks({.pool = &pool}, *model, batch), layers);
      test::CheckHookErrors(*model, batch);
    }
  }
}

TEST(DeepFmModelTest, SlicesAddUpToTheWholeBatch) {
  for (const float dropout : {0.0f, 0.4f}) {
    DeepFmOptions options = SmallOptions();
    options.over_arch_layer_sizes = {30, 9, 1};
    options.dropout = dropout;
    options.max_batch_size = 40;
    const auto model = NewModel(options);
    for (const int64_t size : {2, 7, 40}) {
      test::CheckSlices(*model, RandomBatch(options, size, 5));
    }
    if (dropout > 0) test::CheckFirstSampleMatters(*model, RandomBatch(options, 40, 5));
  }
}

TEST(DeepFmModelTest, RefusesBatchesItHasNoRoomFor) {
  const auto model = NewModel(SmallOptions());
  std::vector<float> logits(9);
  EXPECT_THAT(model->Forward({}, {.batch_size = 9}, logits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size is 8")));
  EXPECT_THAT(model->Forward({}, {.batch_size = 8}, std::span(logits).first(7)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("room for 7 logits")));
  EXPECT_THAT(model->Backward({}, logits, nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Forward")));
}

TEST(DeepFmModelTest, KnowsTheCpuOnly) {
  const auto model = NewModel(SmallOptions());
  EXPECT_EQ(model->device(), Device::kCpu);
  EXPECT_THAT(
      model->Forward({.device = Device::kCuda}, {.batch_size = 0}, {}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--device=cuda: this deepfm works on the cpu only; use --device=cpu")));
}

TEST(DeepFmModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  const auto error = [](auto change) {
    DeepFmOptions options = SmallOptions();
    change(&options);
    const absl::Status status = DeepFmModel::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(error([](DeepFmOptions* o) {
                o->over_arch_layer_sizes = {7, 2};
              }),
              HasSubstr("--over_arch_layer_sizes=7-2-1"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->over_arch_layer_sizes = {}; }),
              HasSubstr("--over_arch_layer_sizes is empty"));
  EXPECT_THAT(error([](DeepFmOptions* o) {
                o->over_arch_layer_sizes = {0, 1};
              }),
              HasSubstr("--over_arch_layer_sizes=0-1"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->dropout = 1; }), HasSubstr("--dropout"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->embedding_dim = 0; }), HasSubstr("--embedding_dim"));
  EXPECT_THAT(error([](DeepFmOptions* o) {
                o->num_sparse = 1 << 16;
                o->embedding_dim = 1 << 16;
              }),
              HasSubstr("--embedding_dim=65536"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->num_dense = -1; }), HasSubstr("num_dense"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->num_sparse = 0; }), HasSubstr("num_sparse"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->max_batch_size = 0; }), HasSubstr("max_batch_size"));
}

}  // namespace
}  // namespace hotrow
