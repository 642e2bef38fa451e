#include "models/zoo/layers/model_graph.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/zoo/layers/cross_layer.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/interaction_layers.h"
#include "tests/models/model_test_util.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kDense = 3;
constexpr int32_t kFields = 2;
constexpr int32_t kColumns = 4;

ModelGraphOptions SmallOptions() {
  return {.name = "small",
          .num_dense = kDense,
          .num_sparse = kFields,
          .table_columns = kColumns,
          .seed = 5,
          .max_batch_size = 8};
}

std::string ErrorOf(void (*declare)(ModelGraph& g)) {
  ModelGraph g(SmallOptions());
  declare(g);
  const absl::Status status = g.Build().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
  return std::string(status.message());
}

// Declares a model, draws its parameters and compares it with `logit` and its differences.
void Check(void (*declare)(ModelGraph& g),
           double (*logit)(const GraphModel& model, const double* parameters, const float* dense,
                           const double* embeddings)) {
  ModelGraph g(SmallOptions());
  declare(g);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model, g.Build());
  RandomStream random(3, RandomPurpose::kTest, 1);
  for (float& p : model->parameters()) p = random.Normal();
  test::CheckModel(*model, test::RandomModelBatch(6, kDense, kFields * kColumns, 3),
                   [&](const double* parameters, const float* dense, const double* embeddings) {
                     return logit(*model, parameters, dense, embeddings);
                   });
  test::CheckHooks({}, *model, test::RandomModelBatch(8, kDense, kFields * kColumns, 4));
}

const double* At(const GraphModel& model, const char* part, const double* parameters) {
  return parameters + model.FindPart(part).offset;
}

double Dot(const double* w, const std::vector<double>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
  return sum;
}

// A value that is read by three parts, one of them a concatenation that another part writes into.
TEST(ModelGraphTest, GradientsOfAllReadersAddUp) {
  Check(
      [](ModelGraph& g) {
        const GraphValue h =
            AddMlp(g, "mlp", g.Concat({g.Dense(), g.Embeddings()}), {.sizes = {5, 4}});
        g.AddLogit(AddLinear(g, "a", h));
        const GraphValue both = g.Concat({h, g.Embeddings(1, 2)});
        g.AddLogit(AddLinear(g, "b", both));
        g.AddLogit(AddLinear(g, "c", g.Sum({h, h})));
      },
      [](const GraphModel& model, const double* parameters, const float* dense,
         const double* embeddings) {
        std::vector<double> x(dense, dense + kDense);
        x.insert(x.end(), embeddings, embeddings + kFields * kColumns);
        std::vector<double> h = test::MlpReference(model, "mlp", {5, 4}, parameters, x, false);
        double logit = Dot(At(model, "a", parameters), h) + 2 * Dot(At(model, "c", parameters), h);
        for (int32_t f = 0; f < kFields; ++f) {
          h.insert(h.end(), embeddings + f * kColumns + 1, embeddings + f * kColumns + 3);
        }
        return logit + Dot(At(model, "b", parameters), h);
      });
}

// x + f(x), twice; the second one is the input of the logit.
TEST(ModelGraphTest, ResidualsAreSums) {
  Check(
      [](ModelGraph& g) {
        GraphValue x = AddMlp(g, "in", g.Concat({g.Dense(), g.Embeddings()}), {.sizes = {4}});
        x = g.Sum({x, AddMlp(g, "r1", x, {.sizes = {6, 4}})});
        x = g.Sum({AddMlp(g, "r2", x, {.sizes = {3, 4}}), x});
        g.AddLogit(AddLinear(g, "out", x));
      },
      [](const GraphModel& model, const double* parameters, const float* dense,
         const double* embeddings) {
        std::vector<double> x(dense, dense + kDense);
        x.insert(x.end(), embeddings, embeddings + kFields * kColumns);
        x = test::MlpReference(model, "in", {4}, parameters, x, false);
        for (const auto& [name, size] : {std::pair("r1", 6), std::pair("r2", 3)}) {
          const std::vector<double> y =
              test::MlpReference(model, name, {size, 4}, parameters, x, false);
          for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
        }
        return Dot(At(model, "out", parameters), x);
      });
}

// The sum is not made where the concatenation lies: another part reads a slice of it.
TEST(ModelGraphTest, ASumLeavesThePartsOfAConcatenationAsTheyAre) {
  Check(
      [](ModelGraph& g) {
        const GraphValue x = g.Concat({g.Dense(), g.Embeddings()});
        const GraphValue h = AddMlp(g, "h", x, {.sizes = {3}});
        const GraphValue both = g.Concat({h, AddMlp(g, "k", x, {.sizes = {2}})});
        const GraphValue sum = g.Sum({both, AddMlp(g, "r", x, {.sizes = {5}})});
        g.AddLogit(AddLinear(g, "a", sum));
        g.AddLogit(AddLinear(g, "b", h));
      },
      [](const GraphModel& model, const double* parameters, const float* dense,
         const double* embeddings) {
        std::vector<double> x(dense, dense + kDense);
        x.insert(x.end(), embeddings, embeddings + kFields * kColumns);
        const auto mlp = [&](const char* name, int32_t size) {
          return test::MlpReference(model, name, {size}, parameters, x, false);
        };
        const std::vector<double> h = mlp("h", 3);
        std::vector<double> sum = h;
        for (const double k : mlp("k", 2)) sum.push_back(k);
        const std::vector<double> r = mlp("r", 5);
        for (size_t i = 0; i < r.size(); ++i) sum[i] += r[i];
        return Dot(At(model, "a", parameters), sum) + Dot(At(model, "b", parameters), h);
      });
}

// Parts below the embeddings, and above them, that have no parameters.
TEST(ModelGraphTest, DensePartsThatMeetLateGetTheirGradient) {
  Check(
      [](ModelGraph& g) {
        const GraphValue a = AddMlp(g, "a", g.Dense(), {.sizes = {2}, .relu_on_output = true});
        const GraphValue b = AddMlp(g, "b", g.Dense(), {.sizes = {2}});
        const GraphValue bottom = AddMlp(g, "bottom", g.Concat({a, b}), {.sizes = {4}});
        g.AddLogit(AddLinear(g, "top", AddDotInteraction(g, "dot", {bottom, g.Embeddings()})));
        g.AddLogit(AddLinear(g, "beside", g.Sum({a, b})));
      },
      [](const GraphModel& model, const double* parameters, const float* dense,
         const double* embeddings) {
        const std::vector<double> x(dense, dense + kDense);
        std::vector<double> a = test::MlpReference(model, "a", {2}, parameters, x, true);
        const std::vector<double> b = test::MlpReference(model, "b", {2}, parameters, x, false);
        const std::vector<double> sum = {a[0] + b[0], a[1] + b[1]};
        a.insert(a.end(), b.begin(), b.end());
        std::vector<double> z = test::MlpReference(model, "bottom", {4}, parameters, a, false);
        const std::vector<double> v = z;
        const std::vector<double> e0(embeddings, embeddings + kColumns);
        const std::vector<double> e1(embeddings + kColumns, embeddings + 2 * kColumns);
        z.push_back(Dot(v.data(), e0));
        z.push_back(Dot(v.data(), e1));
        z.push_back(Dot(e0.data(), e1));
        return Dot(At(model, "top", parameters), z) + Dot(At(model, "beside", parameters), sum);
      });
}

// A column that lies among others, though its part makes it as a separate column.
TEST(ModelGraphTest, FmMayBeOneColumnOfAConcatenation) {
  Check(
      [](ModelGraph& g) {
        g.AddLogit(AddLinear(g, "out", g.Concat({g.Dense(), AddFm(g, "fm", g.Embeddings())})));
      },
      [](const GraphModel& model, const double* parameters, const float* dense,
         const double* embeddings) {
        std::vector<double> x(dense, dense + kDense);
        x.push_back(0);
        for (int32_t i = 0; i < kColumns; ++i)
          x[kDense] += embeddings[i] * embeddings[kColumns + i];
        return Dot(At(model, "out", parameters), x);
      });
}

// Features that go different ways and meet again.
TEST(ModelGraphTest, PartsMayReadSomeOfTheFeatures) {
  Check(
      [](ModelGraph& g) {
        const GraphValue second = g.EmbeddingsOf(1, 1);
        const GraphValue h = AddMlp(g, "mlp", g.Concat({second, g.Dense()}), {.sizes = {4}});
        g.AddLogit(AddLinear(g, "a", AddDotInteraction(g, "dot", {h, g.EmbeddingsOf(0, 1)})));
        g.AddLogit(AddLinear(g, "b", second));
        g.AddLogit(AddColumnSum(g, "sum", g.Embeddings(2, 1)));
      },
      [](const GraphModel& model, const double* parameters, const float* dense,
         const double* embeddings) {
        const std::vector<double> first(embeddings, embeddings + kColumns);
        const std::vector<double> second(embeddings + kColumns, embeddings + 2 * kColumns);
        std::vector<double> x = second;
        x.insert(x.end(), dense, dense + kDense);
        std::vector<double> z = test::MlpReference(model, "mlp", {4}, parameters, x, false);
        z.push_back(Dot(z.data(), first));
        return Dot(At(model, "a", parameters), z) + Dot(At(model, "b", parameters), second) +
               first[2] + second[2];
      });
}

TEST(ModelGraphTest, ColumnsThatNothingReadsHaveNoGradient) {
  ModelGraph g(SmallOptions());
  g.AddLogit(AddLinear(g, "out", g.Embeddings(1, 2)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model, g.Build());
  for (float& p : model->parameters()) p = 2;
  const test::ModelBatch batch = test::RandomModelBatch(1, kDense, kFields * kColumns, 3);
  std::vector<float> logits(1), logit_gradient = {1};
  std::vector<float> gradient(batch.embeddings.size(), std::numeric_limits<float>::quiet_NaN());
  HOTROW_ASSERT_OK(model->Forward({}, batch.Input(true, 1), logits));
  HOTROW_ASSERT_OK(model->Backward({}, logit_gradient, gradient.data(), {}));
  EXPECT_EQ(gradient, (std::vector<float>{0, 2, 2, 0, 0, 2, 2, 0}));
}

// A tower of equal layers needs memory for two gradients on its way back, however high it is.
TEST(ModelGraphTest, BuffersThatAreNotInUseTogetherShareMemory) {
  const auto arena_bytes = [](int layers) {
    ModelGraphOptions options = SmallOptions();
    options.max_batch_size = 1024;
    ModelGraph g(options);
    GraphValue x = g.Embeddings();
    for (int i = 0; i < layers; ++i) {
      x = AddCross(g, "cross" + std::to_string(i), x, {.num_layers = 1});
    }
    g.AddLogit(AddLinear(g, "out", x));
    return (*g.Build())->arena_bytes();
  };
  const int64_t buffer = 1024 * 16 * static_cast<int64_t>(sizeof(float));
  EXPECT_LE(arena_bytes(20) - arena_bytes(10), 10 * buffer);  // activations alone
}

TEST(ModelGraphTest, NamesWhatDoesNotFit) {
  EXPECT_THAT(ErrorOf([](ModelGraph& g) {
                g.AddLogit(AddBias(g, "bias"));
                AddBias(g, "more");
              }),
              HasSubstr("small: nothing reads more"));
  EXPECT_THAT(ErrorOf([](ModelGraph&) {}), HasSubstr("small has no logit"));
  EXPECT_THAT(ErrorOf([](ModelGraph& g) {
                g.AddLogit(AddMlp(g, "top", g.Dense(), {.flag = "--sizes", .sizes = {4, 2}}));
              }),
              AllOf(HasSubstr("top is a term of the logit"), HasSubstr("has 2")));
  EXPECT_THAT(ErrorOf([](ModelGraph& g) {
                g.AddLogit(AddMlp(g, "top", g.Dense(), {.flag = "--sizes", .sizes = {0, 1}}));
              }),
              HasSubstr("--sizes=0-1"));
  EXPECT_THAT(ErrorOf([](ModelGraph& g) {
                g.AddLogit(AddLinear(g, "out", g.Sum({g.Dense(), g.Embeddings()})));
              }),
              HasSubstr("adds embeddings of 8 columns to dense of 3"));
  EXPECT_THAT(ErrorOf([](ModelGraph& g) { g.AddLogit(AddLinear(g, "out", g.Embeddings(3, 2))); }),
              HasSubstr("whose tables have 4"));
  EXPECT_THAT(ErrorOf([](ModelGraph& g) { g.AddLogit(AddLinear(g, "out", g.EmbeddingsOf(1, 2))); }),
              HasSubstr("reads features 1 to 3 of 2"));
  EXPECT_THAT(
      ErrorOf([](ModelGraph& g) {
        g.AddLogit(AddLinear(g, "out", AddDotInteraction(g, "dot", {g.Dense(), g.Embeddings()})));
      }),
      AllOf(HasSubstr("small, dot"), HasSubstr("vector of 3 columns")));
}

// Its traits do not say that it works on a GPU.
class HostLayer : public Layer {
 public:
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override { return {}; }
  absl::Status Forward(const ExecContext&, const LayerForward&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardInputs(const ExecContext&, const LayerBackward&) override {
    return absl::OkStatus();
  }
};

TEST(ModelGraphTest, APartThatKnowsNoGpuIsRefusedThere) {
  ModelGraph g(SmallOptions(), {.device = Device::kCuda});
  g.AddLogit(g.AddLayer("host", std::make_unique<HostLayer>(), {g.Embeddings()}));
  EXPECT_THAT(g.Build().status().message(),
              HasSubstr("--device=cuda: this small works on the cpu only; use --device=cpu (its "
                        "part \"host\" knows no other)"));
}

// Nothing of it needs a loop over host memory, so what is missing here is the GPU.
TEST(ModelGraphTest, ADotInteractionAndATermAloneNeedNoHost) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  ModelGraphOptions options = SmallOptions();
  options.num_sparse = 1;
  options.table_columns = 1;
  ModelGraph g(options, {.device = Device::kCuda});
  g.AddLogit(AddDotInteraction(g, "dot", {g.Embeddings()}));
  EXPECT_THAT(g.Build().status().message(),
              ::testing::AnyOf(HasSubstr("no CUDA"), HasSubstr("no usable GPU")));
}

}  // namespace
}  // namespace hotrow
