#include "models/zoo/dcn_model.h"

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

DcnOptions SmallOptions() {
  return {.num_dense = 4,
          .num_sparse = 3,
          .embedding_dim = 2,
          .num_cross_layers = 2,
          .over_arch_layer_sizes = {7, 1},
          .seed = 11,
          .max_batch_size = 8};
}

// Every kind of model that the options can make.
std::vector<DcnOptions> AllKinds() {
  std::vector<DcnOptions> all;
  for (const DcnStructure structure : {DcnStructure::kStacked, DcnStructure::kParallel}) {
    for (const bool has_bottom : {false, true}) {
      DcnOptions options = SmallOptions();
      options.structure = structure;
      if (has_bottom) options.dense_arch_layer_sizes = {6, 5};
      options.version = 1;
      all.push_back(options);
      options.version = 2;
      all.push_back(options);
      options.low_rank_dim = 3;
      all.push_back(options);
    }
  }
  return all;
}

std::string Name(const DcnOptions& o) {
  return testing::PrintToString(o.dense_arch_layer_sizes) + " version " +
         std::to_string(o.version) + " rank " + std::to_string(o.low_rank_dim) +
         (o.structure == DcnStructure::kStacked ? " stacked" : " parallel");
}

test::ModelBatch RandomBatch(const DcnOptions& o, int64_t size, uint64_t seed) {
  return test::RandomModelBatch(size, o.num_dense, o.num_sparse * o.embedding_dim, seed);
}

std::unique_ptr<DcnModel> NewModel(const DcnOptions& options) {
  auto model = DcnModel::Create(options);
  HOTROW_EXPECT_OK(model);
  return *std::move(model);
}

// x_L of one sample by the formulas of the papers.
std::vector<double> Crossed(const CrossNetwork& cross, const DcnOptions& o,
                            const double* parameters, const std::vector<double>& x0) {
  const size_t width = x0.size();
  const auto rank = static_cast<size_t>(o.low_rank_dim);
  std::vector<double> x = x0;
  for (int32_t l = 0; l < o.num_cross_layers; ++l) {
    const double* const w = parameters + cross.weight_offset(l);
    const double* const b = parameters + cross.bias_offset(l);
    std::vector<double> next(width);
    for (size_t i = 0; i < width; ++i) {
      double sum = 0;
      if (o.version == 1) {
        for (size_t j = 0; j < width; ++j) sum += w[j] * x[j];
        next[i] = x0[i] * sum + b[i] + x[i];
        continue;
      }
      for (size_t j = 0; j < width; ++j) {
        double weight = rank == 0 ? w[i * width + j] : 0;
        for (size_t k = 0; k < rank; ++k) {
          weight +=
              parameters[cross.u_offset(l) + static_cast<int64_t>(i * rank + k)] * w[k * width + j];
        }
        sum += weight * x[j];
      }
      next[i] = x0[i] * (sum + b[i]) + x[i];
    }
    x = std::move(next);
  }
  return x;
}

double ReferenceLogit(const DcnModel& model, const DcnOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  std::vector<double> x0(dense, dense + o.num_dense);
  if (model.bottom() != nullptr) {
    x0 = test::MlpReference(*model.bottom(), o.dense_arch_layer_sizes, parameters, x0, true);
  }
  x0.insert(x0.end(), embeddings, embeddings + o.num_sparse * o.embedding_dim);
  const std::vector<double> crossed =
      Crossed(model.cross(), o, parameters + model.cross_parameters_offset(), x0);
  const auto over = [&](const std::vector<double>& x) {
    return test::MlpReference(model.over(), o.over_arch_layer_sizes,
                              parameters + model.over_parameters_offset(), x, false)[0];
  };
  if (o.structure == DcnStructure::kStacked) return over(crossed);
  double logit = over(x0);
  for (size_t i = 0; i < crossed.size(); ++i) {
    logit += parameters[model.cross_logit_offset() + static_cast<int64_t>(i)] * crossed[i];
  }
  return logit;
}

void CheckAgainstReference(const DcnOptions& options, int64_t batch_size, uint64_t seed) {
  SCOPED_TRACE(Name(options));
  const auto model = NewModel(options);
  // What starts as zeros, biases of cross layers and the weights of x_L, would hide its neighbours.
  RandomStream random(seed, RandomPurpose::kTest, 1);
  const int64_t width = options.InputWidth();
  const auto fill = [&](int64_t offset) {
    for (int64_t i = 0; i < width; ++i) {
      model->parameters()[static_cast<size_t>(offset + i)] = 0.3f * random.Normal();
    }
  };
  for (int32_t l = 0; l < options.num_cross_layers; ++l) {
    fill(model->cross_parameters_offset() + model->cross().bias_offset(l));
  }
  if (options.structure == DcnStructure::kParallel) fill(model->cross_logit_offset());
  test::CheckModel(*model, RandomBatch(options, batch_size, seed),
                   [&](const double* parameters, const float* dense, const double* embeddings) {
                     return ReferenceLogit(*model, options, parameters, dense, embeddings);
                   });
}

TEST(DcnModelTest, ForwardAndBackwardOfEveryKindMatchTheReference) {
  for (const uint64_t seed : test::Seeds(2)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    for (const DcnOptions& options : AllKinds()) CheckAgainstReference(options, 6, seed);
  }
}

TEST(DcnModelTest, OddSizesMatchTheReference) {
  for (const DcnStructure structure : {DcnStructure::kStacked, DcnStructure::kParallel}) {
    DcnOptions options = SmallOptions();
    options.structure = structure;
    options.num_dense = 0;
    options.num_sparse = 1;
    options.embedding_dim = 1;
    options.num_cross_layers = 1;
    options.over_arch_layer_sizes = {1};
    CheckAgainstReference(options, 8, 4);
    options = SmallOptions();
    options.structure = structure;
    options.num_dense = 1;
    options.embedding_dim = 7;
    options.num_cross_layers = 3;
    options.low_rank_dim = 1;
    options.over_arch_layer_sizes = {5, 3, 1};
    CheckAgainstReference(options, 1, 5);
  }
}

TEST(DcnModelTest, DenseFeaturesMayBeMissing) {
  for (DcnOptions options : AllKinds()) {
    options.num_dense = 0;  // sizes of a bottom MLP are not read
    CheckAgainstReference(options, 5, 2);
    EXPECT_EQ(NewModel(options)->bottom(), nullptr);
  }
}

TEST(DcnModelTest, PartsLieOneAfterTheOther) {
  for (const DcnOptions& options : AllKinds()) {
    SCOPED_TRACE(Name(options));
    const auto model = NewModel(options);
    const bool has_bottom = !options.dense_arch_layer_sizes.empty();
    EXPECT_EQ(options.InputWidth(), (has_bottom ? 5 : 4) + 6);
    EXPECT_EQ(model->cross().width(), options.InputWidth());
    EXPECT_EQ(model->over().input_size(), options.InputWidth());
    EXPECT_EQ(model->cross_parameters_offset() % 16, 0);
    EXPECT_GE(model->cross_parameters_offset(), has_bottom ? model->bottom()->num_parameters() : 0);
    const int64_t cross_end = model->cross_parameters_offset() + model->cross().num_parameters();
    EXPECT_EQ(model->over_parameters_offset(),
              cross_end + (options.structure == DcnStructure::kParallel ? 16 : 0));
    EXPECT_EQ(static_cast<int64_t>(model->parameters().size()),
              model->over_parameters_offset() + model->over().num_parameters());
    EXPECT_EQ(model->gradients().size(), model->parameters().size());
    EXPECT_EQ(model->name(), "dcn");
  }
}

TEST(DcnModelTest, SeedAloneDecidesTheFirstParameters) {
  DcnOptions options = SmallOptions();
  const auto a = NewModel(options);
  EXPECT_TRUE(std::ranges::equal(a->parameters(), NewModel(options)->parameters()));
  options.seed = 12;
  EXPECT_FALSE(std::ranges::equal(a->parameters(), NewModel(options)->parameters()));
}

TEST(DcnModelTest, EqualBitsOnAnyPool) {
  for (DcnOptions options : AllKinds()) {
    SCOPED_TRACE(Name(options));
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
    ThreadPool pool(4);
    EXPECT_EQ(run(&pool), alone);
  }
}

TEST(DcnModelTest, DropoutActsInTrainingOnly) {
  DcnOptions options = SmallOptions();
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

TEST(DcnModelTest, AnEmptyBatchHasZeroGradients) {
  for (const DcnOptions& options : AllKinds()) {
    const auto model = NewModel(options);
    const test::ModelBatch batch = RandomBatch(options, 8, 1);
    std::vector<float> logits(8);
    std::vector<float> logit_gradient = batch.logit_gradient;
    std::vector<float> embedding_gradient(batch.embeddings.size());
    HOTROW_ASSERT_OK(model->Forward({}, batch.Input(true, 1), logits));
    HOTROW_ASSERT_OK(model->Backward({}, logit_gradient, embedding_gradient.data()));
    HOTROW_ASSERT_OK(model->Forward({}, {.batch_size = 0, .training = true, .step = 1}, {}));
    HOTROW_ASSERT_OK(model->Backward({}, {}, nullptr));
    EXPECT_TRUE(std::ranges::all_of(model->gradients(), [](float g) { return g == 0; }));
  }
}

TEST(DcnModelTest, TellsWhenEmbeddingsAreNeededAndWhichGradientsAreFinal) {
  ThreadPool pool(3);
  for (DcnOptions options : AllKinds()) {
    options.over_arch_layer_sizes = {70, 9, 1};
    options.dropout = 0.3f;
    options.max_batch_size = 200;
    const auto model = NewModel(options);
    test::Ranges layers;
    int64_t end = static_cast<int64_t>(model->parameters().size());
    const auto add = [&](int64_t begin) {
      layers.emplace_back(begin, end);
      end = begin;
    };
    for (int32_t l = 3; l-- > 0;) {
      add(model->over_parameters_offset() + model->over().weight_offset(l));
    }
    const int64_t cross_offset = model->cross_parameters_offset();
    if (options.structure == DcnStructure::kParallel) {
      add(cross_offset + model->cross().num_parameters());
    }
    for (int32_t l = 2; l-- > 0;) add(cross_offset + model->cross().weight_offset(l));
    for (int32_t l = 2; l-- > 0 && model->bottom() != nullptr;) {
      add(model->bottom()->weight_offset(l));
    }
    EXPECT_EQ(end, 0);
    for (const int64_t size : {0, 1, 200}) {
      SCOPED_TRACE(testing::Message() << Name(options) << ", batch of " << size);
      const test::ModelBatch batch = RandomBatch(options, size, 3);
      EXPECT_EQ(test::CheckHooks({}, *model, batch), layers);
      EXPECT_EQ(test::CheckHooks({.pool = &pool}, *model, batch), layers);
    }
    for (const int64_t size : {0, 3}) {
      test::CheckHookErrors(*model, RandomBatch(options, size, 3));
    }
  }
}

TEST(DcnModelTest, SlicesAddUpToTheWholeBatch) {
  for (DcnOptions options : AllKinds()) {
    for (const float dropout : {0.0f, 0.4f}) {
      SCOPED_TRACE(testing::Message() << Name(options) << ", dropout " << dropout);
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
}

TEST(DcnModelTest, RefusesBatchesItHasNoRoomFor) {
  const auto model = NewModel(SmallOptions());
  std::vector<float> logits(9);
  EXPECT_THAT(model->Forward({}, {.batch_size = 9}, logits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size is 8")));
  EXPECT_THAT(model->Forward({}, {.batch_size = 8}, std::span(logits).first(7)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("room for 7 logits")));
  EXPECT_THAT(model->Backward({}, logits, nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Forward")));
}

TEST(DcnModelTest, KnowsTheCpuOnly) {
  const auto model = NewModel(SmallOptions());
  EXPECT_EQ(model->device(), Device::kCpu);
  EXPECT_THAT(
      model->Forward({.device = Device::kCuda}, {.batch_size = 0}, {}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--device=cuda: this dcn works on the cpu only; use --device=cpu")));
}

TEST(DcnModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  const auto error = [](auto change) {
    DcnOptions options = SmallOptions();
    change(&options);
    const absl::Status status = DcnModel::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(error([](DcnOptions* o) { o->version = 3; }), HasSubstr("--dcn_version"));
  EXPECT_THAT(error([](DcnOptions* o) { o->num_cross_layers = 0; }), HasSubstr("--dcn_num_layers"));
  EXPECT_THAT(error([](DcnOptions* o) { o->low_rank_dim = 11; }),
              ::testing::AllOf(HasSubstr("--dcn_low_rank_dim=11"), HasSubstr("at most 10")));
  EXPECT_THAT(error([](DcnOptions* o) {
                o->version = 1;
                o->low_rank_dim = 2;
              }),
              ::testing::AllOf(HasSubstr("--dcn_low_rank_dim=2"), HasSubstr("--dcn_version=2")));
  EXPECT_THAT(error([](DcnOptions* o) { o->dense_arch_layer_sizes = {0}; }),
              HasSubstr("--dense_arch_layer_sizes=0"));
  EXPECT_THAT(error([](DcnOptions* o) {
                o->over_arch_layer_sizes = {7, 2};
              }),
              HasSubstr("--over_arch_layer_sizes=7-2-1"));
  EXPECT_THAT(error([](DcnOptions* o) { o->over_arch_layer_sizes = {}; }),
              HasSubstr("--over_arch_layer_sizes is empty"));
  EXPECT_THAT(error([](DcnOptions* o) { o->dropout = 1; }), HasSubstr("--dropout"));
  EXPECT_THAT(error([](DcnOptions* o) {
                o->num_sparse = 1 << 16;
                o->embedding_dim = 1 << 16;
              }),
              HasSubstr("--embedding_dim=65536"));
  EXPECT_THAT(error([](DcnOptions* o) { o->num_sparse = 0; }), HasSubstr("num_sparse"));
  EXPECT_THAT(error([](DcnOptions* o) { o->max_batch_size = 0; }), HasSubstr("max_batch_size"));
}

}  // namespace
}  // namespace hotrow
