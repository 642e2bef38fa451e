#include "models/zoo/dlrm_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

DlrmOptions SmallOptions() {
  DlrmOptions options = {{.num_dense = 4,
                          .num_sparse = 3,
                          .embedding_dim = 5,
                          .over_arch_layer_sizes = {7, 1},
                          .seed = 11,
                          .max_batch_size = 8}};
  options.dense_arch_layer_sizes = {6, 5};
  return options;
}

// The logit of one sample by the text of the paper, in double.
double ReferenceLogit(const GraphModel& model, const DlrmOptions& options, const double* parameters,
                      const float* dense, const double* embeddings) {
  const int32_t dim = options.embedding_dim;
  std::vector<std::vector<double>> vectors;
  if (options.num_dense > 0) {
    vectors.push_back(
        test::MlpReference(model, "bottom", options.dense_arch_layer_sizes, parameters,
                           std::vector<double>(dense, dense + options.num_dense), true));
  }
  for (int32_t s = 0; s < options.num_sparse; ++s) {
    vectors.emplace_back(embeddings + s * dim, embeddings + (s + 1) * dim);
  }
  std::vector<double> x = vectors[0];
  if (options.interaction == DlrmInteraction::kCat) {
    for (size_t i = 1; i < vectors.size(); ++i) {
      x.insert(x.end(), vectors[i].begin(), vectors[i].end());
    }
    return test::MlpReference(model, "top", options.over_arch_layer_sizes, parameters, x, false)[0];
  }
  for (size_t i = 1; i < vectors.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      double dot = 0;
      for (int32_t d = 0; d < dim; ++d) dot += vectors[i][d] * vectors[j][d];
      x.push_back(dot);
    }
  }
  return test::MlpReference(model, "top", options.over_arch_layer_sizes, parameters, x, false)[0];
}

test::Ranges Layers(const GraphModel& model) {
  test::RangesFromEnd layers(model);
  layers.AddMlp("top");
  layers.AddMlp("bottom");
  return layers.ranges();
}

DlrmOptions CatOptions() {
  DlrmOptions options = SmallOptions();
  options.interaction = DlrmInteraction::kCat;
  options.dense_arch_layer_sizes = {6, 3};
  return options;
}

test::CtrModelKind Kind(const DlrmOptions& base) {
  return test::KindOf<DlrmModel, DlrmOptions>(
      base.interaction == DlrmInteraction::kDot ? "Dlrm" : "DlrmCat",
      int64_t{base.num_sparse} * base.embedding_dim, base, ReferenceLogit, Layers);
}

// With batch norm, also below the embeddings.
test::CtrModelKind NormedKind() {
  DlrmOptions base = CatOptions();
  base.batch_norm = true;
  const auto reference = [](const GraphModel& model, const DlrmOptions& o, int64_t batch_size,
                            const double* parameters, const float* dense,
                            const double* embeddings) {
    std::vector<std::vector<double>> rows(static_cast<size_t>(batch_size));
    if (o.num_dense > 0) {
      for (size_t b = 0; b < rows.size(); ++b) {
        const float* const x = dense + static_cast<int64_t>(b) * o.num_dense;
        rows[b].assign(x, x + o.num_dense);
      }
      rows = test::NormedMlpReference(model, "bottom", o.dense_arch_layer_sizes, parameters, rows,
                                      true);
    }
    const int64_t width = int64_t{o.num_sparse} * o.embedding_dim;
    for (size_t b = 0; b < rows.size(); ++b) {
      const double* const v = embeddings + static_cast<int64_t>(b) * width;
      rows[b].insert(rows[b].end(), v, v + width);
    }
    std::vector<double> logits;
    for (const std::vector<double>& top :
         test::NormedMlpReference(model, "top", o.over_arch_layer_sizes, parameters, rows, false)) {
      logits.push_back(top[0]);
    }
    return logits;
  };
  const auto layers = [](const GraphModel& model) {
    test::RangesFromEnd layers(model);
    layers.AddNormedMlp("top");
    layers.AddNormedMlp("bottom");
    return layers.ranges();
  };
  return test::KindOfBatch<DlrmModel, DlrmOptions>(
      "DlrmBatchNorm", int64_t{base.num_sparse} * base.embedding_dim, base, reference, layers);
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(Dlrm, CtrModelContract,
                         testing::Values(Kind(SmallOptions()), Kind(CatOptions()), NormedKind()),
                         NameOfKind);
}  // namespace test

namespace {

TEST(DlrmModelTest, OddSizesMatchTheReference) {
  DlrmOptions options = SmallOptions();
  options.embedding_dim = 1;
  options.num_sparse = 1;
  options.dense_arch_layer_sizes = {1};
  // seed: of the one dense unit, its ReLU is open for some of the samples
  test::CheckAgainstReference(Kind(options),
                              {.num_dense = 1, .over_arch_layer_sizes = {1}, .seed = 12}, 8, 4);
  options = SmallOptions();
  options.embedding_dim = 17;
  options.dense_arch_layer_sizes = {3, 17};
  test::CheckAgainstReference(Kind(options), {.over_arch_layer_sizes = {5, 3, 1}}, 1, 5);
}

TEST(DlrmModelTest, WithoutDenseFeaturesTheFirstEmbeddingTakesTheirPlace) {
  DlrmOptions options = SmallOptions();
  options.num_dense = 0;
  options.dense_arch_layer_sizes = {};
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model, DlrmModel::Create(options));
  EXPECT_EQ(test::FindMlp(*model, "bottom"), nullptr);
  EXPECT_EQ(test::FindMlp(*model, "top")->input_size(),
            5 + 3);  // a vector and 3 pairs of 3 vectors
  options.num_sparse = 1;
  test::CheckAgainstReference(Kind(options), {.num_dense = 0}, 5, 2);
}

TEST(DlrmModelTest, ParametersAreTheBottomThenTheTopMlp) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model,
                              DlrmModel::Create(SmallOptions()));
  const int64_t top_offset = model->FindPart("top").offset;
  EXPECT_EQ(model->FindPart("bottom").offset, 0);
  EXPECT_EQ(top_offset, test::FindMlp(*model, "bottom")->num_parameters());
  EXPECT_EQ(static_cast<int64_t>(model->parameters().size()),
            top_offset + test::FindMlp(*model, "top")->num_parameters());
  EXPECT_EQ(model->gradients().size(), model->parameters().size());
  EXPECT_EQ(test::FindMlp(*model, "top")->input_size(),
            5 + 6);  // the dense vector and 6 pairs of 4 vectors
  EXPECT_EQ(model->name(), "dlrm");
}

// What the bottom MLP reads may vanish while the embeddings are awaited: it is done by then.
TEST(DlrmModelTest, RunsTheBottomMlpBeforeItAwaitsTheEmbeddings) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model,
                              DlrmModel::Create(SmallOptions()));
  const test::ModelBatch batch = Kind(SmallOptions()).Batch({}, 8, 1);
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
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model,
                              DlrmModel::Create(SmallOptions()));
  const test::ModelBatch batch = Kind(SmallOptions()).Batch({}, 8, 1);
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
                o->dense_arch_layer_sizes = {0, 5};
              }),
              HasSubstr("--dense_arch_layer_sizes=0-5"));
  EXPECT_THAT(error([](DlrmOptions* o) { o->num_sparse = 0; }), HasSubstr("num_sparse"));
}

TEST(DlrmModelTest, AGpuThatIsNotThereIsNamed) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(DlrmModel::Create(SmallOptions(), {.device = Device::kCuda}).status().message(),
              ::testing::AnyOf(HasSubstr("no CUDA"), HasSubstr("no usable GPU")));
}

}  // namespace
}  // namespace hotrow
