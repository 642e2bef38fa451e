#include "tests/models/ctr_model_contract.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::HasSubstr;

std::string Trace(const CtrModelSettings& settings) {
  return testing::PrintToString(settings.num_dense) + " dense features, dropout " +
         testing::PrintToString(settings.dropout);
}

bool AllZero(std::span<const float> values) {
  return std::ranges::all_of(values, [](float v) { return v == 0; });
}

TEST_P(CtrModelContract, ForwardAndBackwardMatchTheReference) {
  for (const uint64_t seed : Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    CheckAgainstReference(GetParam(), {}, 6, seed);
  }
}

TEST_P(CtrModelContract, DenseFeaturesMayBeMissing) {
  CheckAgainstReference(GetParam(), {.num_dense = 0}, 5, 2);
}

TEST_P(CtrModelContract, ParametersAndGradientsHaveOneLayout) {
  const auto model = New({});
  EXPECT_FALSE(model->parameters().empty());
  EXPECT_EQ(model->gradients().size(), model->parameters().size());
}

TEST_P(CtrModelContract, SeedAloneDecidesTheFirstParameters) {
  const auto a = New({});
  EXPECT_TRUE(std::ranges::equal(a->parameters(), New({})->parameters()));
  EXPECT_FALSE(std::ranges::equal(a->parameters(), New({.seed = 12})->parameters()));
}

// What a saved model keeps of the dense half.
TEST_P(CtrModelContract, ParametersAreAllThatAModelIs) {
  const CtrModelSettings settings = {.dropout = 0.5f};
  const auto model = New(settings);
  const ModelBatch batch = GetParam().Batch(settings, 8, 1);
  const ModelPass pass = RunPass({}, *model, batch, batch.logit_gradient);
  CtrModelSettings other_seed = settings;
  other_seed.seed = 12;
  const auto logits = [&](CtrModel& of) {
    std::vector<float> out(static_cast<size_t>(8 * GetParam().num_tasks));
    HOTROW_EXPECT_OK(of.Forward({}, batch.Input(/*training=*/false, 1), out));
    return FloatBits(out);
  };
  const auto loaded = New(other_seed);
  EXPECT_NE(logits(*loaded), logits(*model));
  std::ranges::copy(model->parameters(), loaded->parameters().begin());
  EXPECT_EQ(logits(*loaded), logits(*model));

  const auto same_seed = New(settings);
  std::ranges::copy(model->parameters(), same_seed->parameters().begin());
  const ModelPass again = RunPass({}, *same_seed, batch, batch.logit_gradient);
  EXPECT_EQ(FloatBits(again.logits), FloatBits(pass.logits));
  EXPECT_EQ(FloatBits(again.gradients), FloatBits(pass.gradients));
}

TEST_P(CtrModelContract, EqualBitsOnAnyPool) {
  const CtrModelSettings settings = {.max_batch_size = 300};
  const ModelBatch batch = GetParam().Batch(settings, 300, 3);
  const auto run = [&](ThreadPool* pool) {
    return RunPass({.pool = pool}, *New(settings), batch, batch.logit_gradient);
  };
  const ModelPass alone = run(nullptr);
  for (const int threads : {2, 4}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    ThreadPool pool(threads);
    const ModelPass pass = run(&pool);
    EXPECT_EQ(FloatBits(pass.logits), FloatBits(alone.logits));
    EXPECT_EQ(FloatBits(pass.embedding_gradient), FloatBits(alone.embedding_gradient));
    EXPECT_EQ(FloatBits(pass.gradients), FloatBits(alone.gradients));
  }
}

TEST_P(CtrModelContract, DropoutActsInTrainingOnly) {
  const CtrModelSettings settings = {.dropout = 0.5f};
  const auto model = New(settings);
  const ModelBatch batch = GetParam().Batch(settings, 8, 1);
  const auto logits = [&](bool training, uint32_t step) {
    std::vector<float> out(static_cast<size_t>(8 * GetParam().num_tasks));
    HOTROW_EXPECT_OK(model->Forward({}, batch.Input(training, step), out));
    return out;
  };
  EXPECT_EQ(logits(true, 1), logits(true, 1));
  EXPECT_NE(logits(true, 1), logits(true, 2));
  EXPECT_EQ(logits(false, 1), logits(false, 2));
}

TEST_P(CtrModelContract, AnEmptyBatchHasZeroGradients) {
  const auto model = New({});
  const ModelBatch batch = GetParam().Batch({}, 8, 1);
  EXPECT_FALSE(AllZero(RunPass({}, *model, batch, batch.logit_gradient).gradients));
  HOTROW_ASSERT_OK(model->Forward({}, {.batch_size = 0, .training = true, .step = 1}, {}));
  HOTROW_ASSERT_OK(model->Backward({}, {}, nullptr, {}));
  EXPECT_TRUE(AllZero(model->gradients()));
}

TEST_P(CtrModelContract, TellsWhenEmbeddingsAreNeededAndWhichGradientsAreFinal) {
  ThreadPool pool(3);
  for (const int32_t num_dense : {4, 0}) {
    const CtrModelSettings settings = {.num_dense = num_dense,
                                       .over_arch_layer_sizes = {70, 9, 1},
                                       .dropout = 0.3f,
                                       .max_batch_size = 200};
    const auto model = New(settings);
    const Ranges layers = GetParam().layers(*model);
    for (const int64_t size : {0, 1, 200}) {
      SCOPED_TRACE(testing::Message() << Trace(settings) << ", batch of " << size);
      const ModelBatch batch = GetParam().Batch(settings, size, 3);
      EXPECT_EQ(CheckHooks({}, *model, batch), layers);
      EXPECT_EQ(CheckHooks({.pool = &pool}, *model, batch), layers);
    }
    for (const int64_t size : {0, 3}) CheckHookErrors(*model, GetParam().Batch(settings, size, 3));
  }
}

TEST_P(CtrModelContract, SlicesAddUpToTheWholeBatch) {
  for (const int32_t num_dense : {4, 0}) {
    for (const float dropout : {0.0f, 0.4f}) {
      const CtrModelSettings settings = {.num_dense = num_dense,
                                         .over_arch_layer_sizes = {30, 9, 1},
                                         .dropout = dropout,
                                         .max_batch_size = 40};
      SCOPED_TRACE(Trace(settings));
      const auto model = New(settings);
      // Batch norm makes +-1 of any two samples, so what its gradients are made of cancels.
      const int64_t smallest = model->untrained_parameters().empty() ? 2 : 4;
      for (const int64_t size : {smallest, int64_t{7}, int64_t{40}}) {
        CheckSlices(*model, GetParam().Batch(settings, size, 5));
      }
      if (dropout > 0) CheckFirstSampleMatters(*model, GetParam().Batch(settings, 40, 5));
    }
  }
}

// By the parameter and by what the pass makes of it.
TEST_P(CtrModelContract, ALayerWithANumberThatIsNotFiniteIsNamed) {
  const CtrModelSettings settings = {.over_arch_layer_sizes = {7, 5, 1}};
  const auto model = New(settings);
  RandomStream random(1, RandomPurpose::kTest, 1);
  if (GetParam().randomize) GetParam().randomize(*model, random);
  const ModelBatch batch = GetParam().Batch(settings, 6, 1);
  std::vector<float> logits(batch.logit_gradient.size());
  const auto forward = [&] {
    HOTROW_EXPECT_OK(model->Forward({}, batch.Input(/*training=*/true, 1), logits));
  };
  forward();
  EXPECT_EQ(model->NonFiniteAt({}, {}), "");
  EXPECT_EQ(model->NonFiniteAt({}, model->parameters()), "");
  const std::span<float> parameters = model->parameters();
  const std::vector<ParameterRange> untrained = model->untrained_parameters();
  std::set<std::string> names;
  for (size_t p = 0; p < parameters.size(); p += 1 + parameters.size() / 100) {
    // No pass for training reads what lies between layers, or is of evaluations.
    const bool is_read =
        parameters[p] != 0 && std::ranges::none_of(untrained, [&](const ParameterRange& range) {
          return static_cast<int64_t>(p) >= range.begin && static_cast<int64_t>(p) < range.end;
        });
    if (!is_read) continue;
    const float before = std::exchange(parameters[p], std::numeric_limits<float>::quiet_NaN());
    forward();
    const std::string name = model->NonFiniteAt({}, parameters);
    EXPECT_NE(name, "") << p;
    EXPECT_EQ(model->NonFiniteAt({}, {}), name) << p;
    names.insert(name);
    parameters[p] = before;
  }
  EXPECT_GE(names.size(), 2u);
}

// What a model keeps of batches changes at the end of a step, and nothing else does.
TEST_P(CtrModelContract, UntrainedParametersChangeInEndStepAlone) {
  const auto model = New({});
  const std::vector<ParameterRange> untrained = model->untrained_parameters();
  const std::vector<float> before(model->parameters().begin(), model->parameters().end());
  const ModelBatch batch = GetParam().Batch({}, 8, 1);
  const ModelPass pass = RunPass({}, *model, batch, batch.logit_gradient);
  EXPECT_EQ(FloatBits(model->parameters()), FloatBits(before));
  HOTROW_ASSERT_OK(model->EndStep({}, 8));
  int64_t end = 0;
  const auto same = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) ASSERT_EQ(model->parameters()[i], before[i]) << i;
  };
  for (const ParameterRange& range : untrained) {
    ASSERT_LE(end, range.begin);
    ASSERT_LT(range.begin, range.end);
    same(end, range.begin);
    EXPECT_FALSE(
        std::ranges::equal(model->parameters().subspan(range.begin, range.end - range.begin),
                           std::span(before).subspan(range.begin, range.end - range.begin)));
    for (int64_t i = range.begin; i < range.end; ++i) ASSERT_EQ(pass.gradients[i], 0);
    end = range.end;
  }
  same(end, std::ssize(before));
}

TEST_P(CtrModelContract, RefusesBatchesItHasNoRoomFor) {
  const auto model = New({});
  const auto tasks = static_cast<size_t>(GetParam().num_tasks);
  ASSERT_EQ(model->num_tasks(), GetParam().num_tasks);
  std::vector<float> logits(9 * tasks);
  EXPECT_THAT(model->Forward({}, {.batch_size = 9}, logits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size is 8")));
  EXPECT_THAT(model->Forward({}, {.batch_size = 8}, std::span(logits).first(8 * tasks - 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("room for " + std::to_string(8 * tasks - 1) + " logits")));
  EXPECT_THAT(model->Backward({}, logits, nullptr, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Forward")));
}

TEST_P(CtrModelContract, WorksOnTheDeviceOfItsContextAlone) {
  const auto model = New({});
  EXPECT_EQ(model->device(), Device::kCpu);
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("--device=cuda: this " + std::string(model->name()) +
                                          " works on the cpu only; use --device=cpu"));
  EXPECT_THAT(model->Forward({.device = Device::kCuda}, {.batch_size = 0, .training = true}, {}),
              refused);
  HOTROW_ASSERT_OK(model->Forward({}, {.batch_size = 0, .training = true, .step = 1}, {}));
  EXPECT_THAT(model->Backward({.device = Device::kCuda}, {}, nullptr, {}), refused);
}

TEST_P(CtrModelContract, NamesTheFlagWhenSettingsDoNotFit) {
  const auto error = [](const CtrModelSettings& settings) {
    const absl::Status status = GetParam().create(settings).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(error({.over_arch_layer_sizes = {7, 2}}), HasSubstr("--over_arch_layer_sizes=7-2-1"));
  EXPECT_THAT(error({.over_arch_layer_sizes = {0, 1}}), HasSubstr("--over_arch_layer_sizes=0-1"));
  EXPECT_THAT(error({.over_arch_layer_sizes = {}}), HasSubstr("--over_arch_layer_sizes is empty"));
  EXPECT_THAT(error({.dropout = 1}), HasSubstr("--dropout"));
  EXPECT_THAT(error({.num_dense = -1}), HasSubstr("num_dense"));
  EXPECT_THAT(error({.max_batch_size = 0}), HasSubstr("max_batch_size"));
}

}  // namespace
}  // namespace hotrow::test
