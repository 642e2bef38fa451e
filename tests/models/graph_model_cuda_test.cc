#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda_handles.h"
#include "models/zoo/dcn_model.h"
#include "models/zoo/deepfm_model.h"
#include "models/zoo/din_model.h"
#include "models/zoo/dlrm_model.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/mmoe_model.h"
#include "models/zoo/pnn_model.h"
#include "models/zoo/wide_deep_model.h"
#include "models/zoo/xdeepfm_model.h"
#include "ops/training/bce_loss.h"
#include "ops/training/dense_optimizer.h"
#include "tests/models/model_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_EMULATED_GPU
#include "tests/emulated_gpu/emulated_gpu.h"
#endif

// One step of small models on a GPU beside the same step on the CPU: forward, loss, backward and
// the update of the parameters.

namespace hotrow {
namespace {

using CreateModel =
    std::function<absl::StatusOr<std::unique_ptr<GraphModel>>(const ExecContext& ctx)>;

// A model of 6 features.
struct Kind {
  std::string name;
  int64_t table_columns;
  int64_t num_tasks;
  std::function<CreateModel(int32_t num_dense, float dropout)> with;
  bool sees_batch = false;  // samples depend on each other
};

ModelOptions SmallOptions(int32_t num_dense, float dropout) {
  return {.num_dense = num_dense,
          .num_sparse = 6,
          .embedding_dim = 8,
          .over_arch_layer_sizes = {40, 16, 1},
          .dropout = dropout,
          .seed = 11,
          .max_batch_size = 128};
}

Kind Dlrm(DlrmInteraction interaction) {
  return {.name = interaction == DlrmInteraction::kDot ? "dlrm" : "dlrm_cat",
          .table_columns = 8,
          .num_tasks = 1,
          .with = [=](int32_t num_dense, float dropout) -> CreateModel {
            const DlrmOptions options = {SmallOptions(num_dense, dropout), {24, 8}, interaction};
            return [=](const ExecContext& ctx) { return DlrmModel::Create(options, ctx); };
          }};
}
// A model with a column of first-order weights.
template <typename Model, typename Options>
Kind Wide(const std::string& name) {
  return {.name = name,
          .table_columns = Options::TableColumns(8),
          .num_tasks = 1,
          .with = [](int32_t num_dense, float dropout) -> CreateModel {
            const Options options = {SmallOptions(num_dense, dropout)};
            return [=](const ExecContext& ctx) { return Model::Create(options, ctx); };
          }};
}
// One expert is a shared bottom.
Kind Mmoe(int32_t num_experts) {
  return {.name = num_experts > 1 ? "mmoe" : "shared_bottom",
          .table_columns = 8,
          .num_tasks = 2,
          .with = [=](int32_t num_dense, float dropout) -> CreateModel {
            const MmoeOptions options = {SmallOptions(num_dense, dropout), 2, num_experts, {24}};
            return [=](const ExecContext& ctx) { return MmoeModel::Create(options, ctx); };
          }};
}
Kind Dcn(const std::string& name, int32_t version, int32_t rank, DcnStructure structure) {
  return {.name = name,
          .table_columns = 8,
          .num_tasks = 1,
          .with = [=](int32_t num_dense, float dropout) -> CreateModel {
            DcnOptions options = {SmallOptions(num_dense, dropout)};
            options.version = version;
            options.num_cross_layers = 2;
            options.low_rank_dim = rank;
            options.structure = structure;
            return [=](const ExecContext& ctx) { return DcnModel::Create(options, ctx); };
          }};
}
Kind Pnn(PnnProducts products) {
  return {.name = products == PnnProducts::kInner   ? "pnn_inner"
                  : products == PnnProducts::kOuter ? "pnn_outer"
                                                    : "pnn_both",
          .table_columns = 8,
          .num_tasks = 1,
          .with = [=](int32_t num_dense, float dropout) -> CreateModel {
            const PnnOptions options = {SmallOptions(num_dense, dropout), products};
            return [=](const ExecContext& ctx) { return PnnModel::Create(options, ctx); };
          }};
}
Kind XDeepFm() {
  return {.name = "xdeepfm",
          .table_columns = XDeepFmOptions::TableColumns(8),
          .num_tasks = 1,
          .with = [](int32_t num_dense, float dropout) -> CreateModel {
            const XDeepFmOptions options = {SmallOptions(num_dense, dropout), {5, 7, 3}};
            return [=](const ExecContext& ctx) { return XDeepFmModel::Create(options, ctx); };
          }};
}
Kind DcnOfExperts() {
  return {.name = "dcn_experts",
          .table_columns = 8,
          .num_tasks = 1,
          .with = [](int32_t num_dense, float dropout) -> CreateModel {
            DcnOptions options = {SmallOptions(num_dense, dropout)};
            options.num_cross_layers = 2;
            options.low_rank_dim = 5;
            options.num_experts = 3;
            return [=](const ExecContext& ctx) { return DcnModel::Create(options, ctx); };
          }};
}
Kind Normed() {
  return {.name = "deepfm_norm",
          .table_columns = 9,
          .num_tasks = 1,
          .with = [](int32_t num_dense, float dropout) -> CreateModel {
            DeepFmOptions options = {SmallOptions(num_dense, dropout)};
            options.batch_norm = true;
            return [=](const ExecContext& ctx) { return DeepFmModel::Create(options, ctx); };
          },
          .sees_batch = true};
}
std::vector<Kind> AllKinds() {
  return {Dlrm(DlrmInteraction::kDot),
          Dlrm(DlrmInteraction::kCat),
          Wide<DeepFmModel, DeepFmOptions>("deepfm"),
          Wide<WideDeepModel, WideDeepOptions>("wide_deep"),
          Dcn("dcn", 2, 0, DcnStructure::kStacked),
          Dcn("dcn_rank", 2, 5, DcnStructure::kParallel),
          Dcn("dcn_vector", 1, 0, DcnStructure::kParallel),
          Pnn(PnnProducts::kInner),
          Pnn(PnnProducts::kOuter),
          Pnn(PnnProducts::kBoth),
          XDeepFm(),
          Mmoe(1),
          Mmoe(3),
          DcnOfExperts(),
          Normed()};
}

// Draws the weights and the bias that begin as zeros, which would hide mistakes.
void RandomizeWidePart(const GraphModel& model, std::span<float> parameters) {
  RandomStream random(5, RandomPurpose::kTest);
  for (const char* const name : {"linear", "bias", "cin_logit"}) {
    const GraphModel::Part part = model.FindPart(name);
    if (part.layer == nullptr) continue;
    for (int64_t i = 0; i < part.layer->num_parameters(); ++i) {
      parameters[static_cast<size_t>(part.offset + i)] = random.Normal();
    }
  }
}

const DenseOptimizerConfig kAdam = {.kind = DenseOptimizerKind::kAdam, .learning_rate = 0.01f};

// What a step gives, on the host.
struct StepResult {
  std::vector<float> logits, embedding_gradient, gradients, parameters;
  double loss = 0;
};

std::vector<float> LabelsOf(const test::ModelBatch& batch) {
  std::vector<float> labels;
  for (int64_t i = 0; i < batch.size * batch.num_tasks; ++i) {
    labels.push_back(static_cast<float>((batch.first_sample * batch.num_tasks + i) % 2));
  }
  return labels;
}

// mean_over: logits of the batch of which this one is a part.
StepResult StepOnCpu(const CreateModel& create, const test::ModelBatch& batch, int64_t mean_over) {
  StepResult r;
  auto created = create({});
  HOTROW_EXPECT_OK(created);
  GraphModel& model = **created;
  RandomizeWidePart(model, model.parameters());
  const std::vector<float> labels = LabelsOf(batch);
  std::vector<float> logit_gradient(labels.size());
  r.logits.resize(labels.size());
  r.embedding_gradient.resize(batch.embeddings.size());
  HOTROW_EXPECT_OK(model.Forward({}, batch.Input(/*training=*/true, 1), r.logits));
  HOTROW_EXPECT_OK(BceWithLogits({}, {.logits = r.logits.data(),
                                      .labels = labels.data(),
                                      .batch_size = std::ssize(labels),
                                      .gradient = logit_gradient.data(),
                                      .mean_over = mean_over,
                                      .loss = &r.loss}));
  HOTROW_EXPECT_OK(model.Backward({}, logit_gradient, r.embedding_gradient.data(), {}));
  r.gradients.assign(model.gradients().begin(), model.gradients().end());
  std::vector<float> m1(r.gradients.size()), m2(r.gradients.size());
  const DenseTensor all = {model.parameters(), model.gradients(), m1, m2};
  HOTROW_EXPECT_OK(DenseUpdate({}, kAdam, {&all, 1}, 1.0f, 1));
  r.parameters.assign(model.parameters().begin(), model.parameters().end());
  return r;
}

std::vector<float> ToHost(std::span<const float> on_gpu) {
  std::vector<float> host(on_gpu.size());
  EXPECT_EQ(cudaMemcpy(host.data(), on_gpu.data(), on_gpu.size_bytes(), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return host;
}

// row_dim: of vectors that are read where they lie; 0: embeddings are.
StepResult StepOnGpu(const CreateModel& create, const test::ModelBatch& batch, size_t row_dim = 0) {
  StepResult r;
  auto stream = CreateStream();
  HOTROW_EXPECT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  {
    auto created = create(ctx);
    HOTROW_EXPECT_OK(created);
    GraphModel& model = **created;
    EXPECT_EQ(model.device(), Device::kCuda);
    std::vector<float> first = ToHost(model.parameters());
    RandomizeWidePart(model, first);
    EXPECT_EQ(cudaMemcpy(model.parameters().data(), first.data(), model.parameters().size_bytes(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    const auto b = static_cast<size_t>(batch.size * batch.num_tasks);
    test::DeviceArray<float> dense(batch.dense), embeddings(batch.embeddings),
        labels(LabelsOf(batch)), logits(b), logit_gradient(b),
        embedding_gradient(batch.embeddings.size()), m1(model.parameters().size()),
        m2(model.parameters().size());
    test::DeviceArray<double> loss(1);
    test::DeviceArray<std::byte> workspace(static_cast<size_t>(
        BceWithLogitsWorkspaceBytes(Device::kCuda, std::ssize(LabelsOf(batch)))));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the copies may be on their way
    CtrModel::Input input = batch.Input(/*training=*/true, 1);
    input.dense = dense.data();
    input.embeddings = embeddings.data();
    std::vector<const float*> places;
    for (size_t i = 0; i < batch.embeddings.size() && row_dim > 0; i += row_dim) {
      places.push_back(embeddings.data() + i);
    }
    test::DeviceArray<const float*> rows(places);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (row_dim > 0) {
      EXPECT_TRUE(model.reads_rows());
      input.embeddings = nullptr;
      input.embedding_rows = rows.data();
    }
    HOTROW_EXPECT_OK(model.Forward(ctx, input, {logits.data(), b}));
    HOTROW_EXPECT_OK(
        BceWithLogits(ctx, {.logits = logits.data(),
                            .labels = labels.data(),
                            .batch_size = batch.size * batch.num_tasks,
                            .gradient = logit_gradient.data(),
                            .loss = loss.data(),
                            .workspace = workspace.data(),
                            .workspace_bytes = static_cast<int64_t>(workspace.size())}));
    HOTROW_EXPECT_OK(
        model.Backward(ctx, {logit_gradient.data(), b}, embedding_gradient.data(), {}));
    const DenseTensor all = {
        model.parameters(), model.gradients(), {m1.data(), m1.size()}, {m2.data(), m2.size()}};
    HOTROW_EXPECT_OK(DenseUpdate(ctx, kAdam, {&all, 1}, 1.0f, 1));
    EXPECT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
    r = {.logits = logits.ToHost(),
         .embedding_gradient = embedding_gradient.ToHost(),
         .gradients = ToHost(model.gradients()),
         .parameters = ToHost(model.parameters()),
         .loss = loss.ToHost()[0]};
  }
  return r;
}

TEST(GraphModelCudaTest, FirstParametersAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  for (const Kind& kind : AllKinds()) {
    for (const int32_t num_dense : {5, 0}) {
      SCOPED_TRACE(kind.name);
      const CreateModel create = kind.with(num_dense, 0);
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> want, create({}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> got, create(ctx));
      EXPECT_EQ(test::FloatBits(ToHost(got->parameters())), test::FloatBits(want->parameters()));
    }
  }
}

void CheckStep(const Kind& kind, int32_t num_dense, float dropout, int64_t size) {
  SCOPED_TRACE(testing::Message() << kind.name << ", " << num_dense << " dense features, dropout "
                                  << dropout << ", " << size << " samples");
  const CreateModel create = kind.with(num_dense, dropout);
  const test::ModelBatch batch =
      test::RandomModelBatch(size, num_dense, 6 * kind.table_columns, 3, kind.num_tasks);
  const StepResult want = StepOnCpu(create, batch, 0);
  const StepResult got = StepOnGpu(create, batch);

  // How much the samples add to each sum over the batch, without regard to sign.
  std::vector<double> magnitude(want.gradients.size());
  for (int64_t b = 0; b < size && !kind.sees_batch; ++b) {
    const StepResult one = StepOnCpu(create, test::SliceOf(batch, b, b + 1), size * kind.num_tasks);
    for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += std::abs(one.gradients[i]);
  }
  if (kind.sees_batch) {  // samples alone would say nothing
    double largest = 0;
    for (const float g : want.gradients) largest = std::max(largest, std::abs(double{g}));
    std::fill(magnitude.begin(), magnitude.end(), largest);
  }
  // As in CheckSlices: sums over at most a few hundred terms err by less than 1000 roundings of
  // that, and numbers that come from larger ones by their share of the largest.
  const auto bound = [](double of, double largest) { return 1000 * 0x1p-24 * (of + largest / 16); };
  const auto expect_near = [&](const std::vector<float>& a, const std::vector<float>& b,
                               const char* what) {
    ASSERT_EQ(a.size(), b.size());
    double largest = 0;
    for (const float x : b) largest = std::max(largest, std::abs(static_cast<double>(x)));
    EXPECT_GT(largest, 0) << what << ": nothing was tested";
    for (size_t i = 0; i < b.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], bound(std::abs(b[i]), largest)) << what << " " << i;
    }
  };
  expect_near(got.logits, want.logits, "logit");
  expect_near(got.embedding_gradient, want.embedding_gradient, "embedding gradient");
  EXPECT_NEAR(got.loss, want.loss, bound(want.loss, want.loss));
  const double largest = *std::max_element(magnitude.begin(), magnitude.end());
  for (size_t i = 0; i < magnitude.size(); ++i) {
    ASSERT_NEAR(got.gradients[i], want.gradients[i], bound(magnitude[i], largest)) << i;
  }
  // Adam's first step is lr g / (|g| + eps'): it moves by the learning rate with any size of g,
  // so parameters are near where the gradient is not lost in its own error.
  for (size_t i = 0; i < magnitude.size(); ++i) {
    if (std::abs(want.gradients[i]) < 100 * bound(magnitude[i], largest)) continue;
    ASSERT_NEAR(got.parameters[i], want.parameters[i], 2e-4) << i;
  }

  const StepResult again = StepOnGpu(create, batch);
  EXPECT_EQ(test::FloatBits(again.logits), test::FloatBits(got.logits));
  EXPECT_EQ(test::FloatBits(again.gradients), test::FloatBits(got.gradients));
  EXPECT_EQ(test::FloatBits(again.embedding_gradient), test::FloatBits(got.embedding_gradient));
  EXPECT_EQ(test::FloatBits(again.parameters), test::FloatBits(got.parameters));
  EXPECT_EQ(again.loss, got.loss);
}

TEST(GraphModelCudaTest, AStepOfDlrmIsThatOfTheCpuWithinTheRoundingOfSumsAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t num_dense : {5, 0}) {
    for (const float dropout : {0.0f, 0.3f}) {
      for (const int64_t size : {1, 37, 128}) {
        if (test::kEmulatedGpu && (num_dense == 0) != (size == 1)) continue;
        ASSERT_NO_FATAL_FAILURE(CheckStep(Dlrm(DlrmInteraction::kDot), num_dense, dropout, size));
      }
    }
  }
}

// With vectors that tensor cores take, in the precisions that let them.
TEST(GraphModelCudaTest, DotProductsOnTensorCoresStayNearTheCpuAndRepeat) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const DensePrecision precision :
       {DensePrecision::kTf32, DensePrecision::kBf16, DensePrecision::kFp16}) {
    for (const int32_t num_dense : {5, 0}) {
      SCOPED_TRACE(testing::Message() << std::string(DensePrecisionName(precision)) << ", "
                                      << num_dense << " dense features");
      const auto create = [&](DensePrecision of, const ExecContext& ctx) {
        DlrmOptions options = {SmallOptions(num_dense, 0), {24, 16}};
        options.embedding_dim = 16;
        options.precision = of;
        return DlrmModel::Create(options, ctx);
      };
      const auto on_gpu = [&](const ExecContext& ctx) { return create(precision, ctx); };
      const test::ModelBatch batch = test::RandomModelBatch(37, num_dense, 6 * 16, 3, 1);
      const StepResult want = StepOnCpu(
          [&](const ExecContext& ctx) { return create(DensePrecision::kFp32, ctx); }, batch, 0);
      const StepResult got = StepOnGpu(on_gpu, batch);
      const auto error = [](const std::vector<float>& a, const std::vector<float>& b) {
        double difference = 0, length = 0;
        for (size_t i = 0; i < b.size(); ++i) {
          difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
          length += double{b[i]} * b[i];
        }
        return std::sqrt(difference / length);
      };
      const double bound = precision == DensePrecision::kBf16 ? 0.06 : 0.008;
      EXPECT_LT(error(got.logits, want.logits), bound);
      EXPECT_LT(error(got.embedding_gradient, want.embedding_gradient), bound);
      EXPECT_LT(error(got.gradients, want.gradients), bound);
      EXPECT_GT(error(got.logits, want.logits), 1e-6);
      const StepResult again = StepOnGpu(on_gpu, batch);
      EXPECT_EQ(test::FloatBits(again.logits), test::FloatBits(got.logits));
      EXPECT_EQ(test::FloatBits(again.embedding_gradient), test::FloatBits(got.embedding_gradient));
      if (num_dense == 0) continue;
      // Rows read where they lie are the same vectors.
      const StepResult by_rows = StepOnGpu(on_gpu, batch, /*row_dim=*/16);
      EXPECT_EQ(test::FloatBits(by_rows.logits), test::FloatBits(got.logits));
      EXPECT_EQ(test::FloatBits(by_rows.embedding_gradient),
                test::FloatBits(got.embedding_gradient));
      EXPECT_EQ(test::FloatBits(by_rows.parameters), test::FloatBits(got.parameters));
    }
  }
}

// By the parameter and by what the pass makes of it, of some parameters.
void CheckNames(const CreateModel& create, int64_t table_columns) {
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model, create(ctx));
  const test::ModelBatch batch = test::RandomModelBatch(5, 5, 6 * table_columns, 3);
  test::DeviceArray<float> dense(batch.dense), embeddings(batch.embeddings), logits(5);
  CtrModel::Input input = batch.Input(/*training=*/true, 1);
  input.dense = dense.data();
  input.embeddings = embeddings.data();
  const std::vector<float> parameters = ToHost(model->parameters());
  std::set<std::string> names;
  for (size_t p = 0; p < parameters.size(); p += parameters.size() / 5) {
    while (p < parameters.size() && parameters[p] == 0) ++p;  // it may lie between layers
    if (p >= parameters.size()) break;
    const auto set = [&](float number) {
      EXPECT_EQ(cudaMemcpy(model->parameters().data() + p, &number, sizeof(number),
                           cudaMemcpyHostToDevice),
                cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    };
    set(std::numeric_limits<float>::quiet_NaN());
    HOTROW_ASSERT_OK(model->Forward(ctx, input, {logits.data(), 5}));
    const std::string name = model->NonFiniteAt(ctx, model->parameters());
    EXPECT_NE(name, "") << p;
    EXPECT_EQ(model->NonFiniteAt(ctx, {}), name) << p;
    names.insert(name);
    set(parameters[p]);
  }
  EXPECT_GE(names.size(), 2u);
}

TEST(GraphModelCudaTest, ALayerWithANumberThatIsNotFiniteIsNamed) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Kind& kind :
       {Dlrm(DlrmInteraction::kDot), XDeepFm(), Dcn("dcn_vector", 1, 0, DcnStructure::kParallel)}) {
    SCOPED_TRACE(kind.name);
    ASSERT_NO_FATAL_FAILURE(CheckNames(kind.with(5, 0), kind.table_columns));
  }
  for (const DensePrecision precision :
       {DensePrecision::kFp32, DensePrecision::kBf16, DensePrecision::kFp16}) {
    SCOPED_TRACE(DensePrecisionName(precision));
    DcnOptions options = {SmallOptions(5, 0)};
    options.num_cross_layers = 3;
    options.precision = precision;
    ASSERT_NO_FATAL_FAILURE(
        CheckNames([=](const ExecContext& ctx) { return DcnModel::Create(options, ctx); }, 8));
  }
}

TEST(GraphModelCudaTest, RowsAreRefusedByModelsThatReadEmbeddings) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  for (const Kind& kind : AllKinds()) {
    SCOPED_TRACE(kind.name);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model, kind.with(5, 0)(ctx));
    EXPECT_FALSE(model->reads_rows());
    const float* row = nullptr;
    EXPECT_THAT(
        model->Forward(ctx, {.embedding_rows = &row}, {}),
        test::StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("give embeddings")));
  }
}

TEST(GraphModelCudaTest, AStepOfOtherModelsIsThatOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Kind& kind : AllKinds()) {
    if (kind.name == "dlrm") continue;
    for (const int32_t num_dense : {5, 0}) {
      for (const int64_t size : {1, 37}) {
        if (test::kEmulatedGpu && (num_dense == 0) != (size == 1)) continue;
        // A sample alone is its own mean: what is left of it are roundings.
        if (kind.sees_batch && size == 1) continue;
        ASSERT_NO_FATAL_FAILURE(CheckStep(kind, num_dense, 0.3f, size));
      }
    }
  }
}

#if HOTROW_EMULATED_GPU
// A GPU loads lines that are not aligned two bytes at a time: a gradient of weights of 0.06 ms took
// 14 ms so.
TEST(GraphModelCudaTest, ProductsOfAllModelsHaveLinesOfWhole16Bytes) {
  const auto unaligned_of = [](const CreateModel& create, int64_t columns, int64_t tasks) {
    const test::ModelBatch batch = test::RandomModelBatch(37, 5, 6 * columns, 3, tasks);
    emulated::TakeUnalignedProducts();
    StepOnGpu(create, batch);
    return emulated::TakeUnalignedProducts();
  };
  for (const Kind& kind : AllKinds()) {
    SCOPED_TRACE(kind.name);
    EXPECT_THAT(unaligned_of(kind.with(5, 0), kind.table_columns, kind.num_tasks),
                testing::IsEmpty());
  }
  for (const DensePrecision precision :
       {DensePrecision::kTf32, DensePrecision::kBf16, DensePrecision::kFp16}) {
    SCOPED_TRACE(DensePrecisionName(precision));
    DlrmOptions dlrm = {SmallOptions(5, 0), {21, 8}};
    dlrm.over_arch_layer_sizes = {43, 17, 1};
    dlrm.precision = precision;
    const auto of_dlrm = [&](const ExecContext& ctx) { return DlrmModel::Create(dlrm, ctx); };
    EXPECT_THAT(unaligned_of(of_dlrm, 8, 1), testing::IsEmpty());
    for (const int32_t rank : {0, 5}) {
      DcnOptions dcn = {SmallOptions(5, 0)};
      dcn.low_rank_dim = rank;
      dcn.precision = precision;
      const auto of_dcn = [&](const ExecContext& ctx) { return DcnModel::Create(dcn, ctx); };
      EXPECT_THAT(unaligned_of(of_dcn, 8, 1), testing::IsEmpty()) << rank;
    }
  }
}
#endif

// Training, the end of the step and an evaluation; half of the batch, of which the other half has
// the same sums.
TEST(GraphModelCudaTest, RunningStatisticsFollowTheBatchOfAllSlices) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Kind kind = Normed();
  const test::ModelBatch batch = test::RandomModelBatch(37, 5, 6 * kind.table_columns, 3);
  struct Result {
    std::vector<float> logits, statistics;
    int calls = 0;
  };
  const auto run = [&](const ExecContext& ctx) {
    Result result;
    auto created = kind.with(5, 0)(ctx);
    HOTROW_EXPECT_OK(created);
    CtrModel& model = **created;
    const bool on_gpu = ctx.device == Device::kCuda;
    std::vector<float> logits(37), gradient = batch.logit_gradient;
    test::DeviceArray<float> dense(batch.dense), embeddings(batch.embeddings), gpu_logits(37),
        gpu_gradient(gradient), embedding_gradient(batch.embeddings.size());
    std::vector<float> host_embedding_gradient(batch.embeddings.size());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const bool training : {true, false}) {
      CtrModel::Input input = batch.Input(training, 1);
      if (on_gpu) {
        input.dense = dense.data();
        input.embeddings = embeddings.data();
      }
      input.sum_over_slices = [&](std::span<double> sums) {
        ++result.calls;
        for (double& sum : sums) sum *= 2;
        return absl::OkStatus();
      };
      const std::span<float> to =
          on_gpu ? std::span<float>(gpu_logits.data(), 37) : std::span<float>(logits);
      HOTROW_EXPECT_OK(model.Forward(ctx, input, to));
      if (!training) break;
      HOTROW_EXPECT_OK(model.Backward(
          ctx, on_gpu ? std::span<float>(gpu_gradient.data(), 37) : std::span<float>(gradient),
          on_gpu ? embedding_gradient.data() : host_embedding_gradient.data(), {}));
      HOTROW_EXPECT_OK(model.EndStep(ctx, 74));
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    result.logits = on_gpu ? gpu_logits.ToHost() : logits;
    for (const ParameterRange& range : model.untrained_parameters()) {
      const auto part = model.parameters().subspan(static_cast<size_t>(range.begin),
                                                   static_cast<size_t>(range.end - range.begin));
      const std::vector<float> copy =
          on_gpu ? ToHost(part) : std::vector<float>(part.begin(), part.end());
      result.statistics.insert(result.statistics.end(), copy.begin(), copy.end());
    }
    return result;
  };
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const Result cpu = run({});
  const Result gpu = run({.device = Device::kCuda, .stream = stream->get()});
  EXPECT_EQ(gpu.calls, 4);  // of two layers, forward and back
  EXPECT_EQ(gpu.calls, cpu.calls);
  ASSERT_EQ(gpu.statistics.size(), cpu.statistics.size());
  for (size_t i = 0; i < cpu.statistics.size(); ++i) {
    EXPECT_NEAR(gpu.statistics[i], cpu.statistics[i], 1e-5) << i;
  }
  for (size_t i = 0; i < 37; ++i) EXPECT_NEAR(gpu.logits[i], cpu.logits[i], 1e-4) << i;
}

// A history with a pooled target, and a feature that shares its table, whose rows are summed.
CreateModel Din(float dropout) {
  DinOptions options = {SmallOptions(3, dropout)};
  options.num_sparse = 4;
  options.features = {
      {"watched", "items", 5}, {"item", "targets", 1}, {"last", "items", 2}, {"user", "users", 1}};
  options.history = "watched:item";
  options.attention_layer_sizes = {12};
  return [=](const ExecContext& ctx) { return DinModel::Create(options, ctx); };
}

// The rows of one feature that is not pooled.
struct Rows {
  std::vector<int64_t> offsets;
  std::vector<float> values;
};
Rows RandomRows(int64_t batch_size, int64_t length_max, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  Rows rows;
  rows.offsets = {11};  // wherever the batch has them
  for (int64_t b = 0; b < batch_size; ++b) {
    rows.offsets.push_back(rows.offsets.back() + (b * 3 + 1) % (length_max + 1));
  }
  for (int64_t i = 0; i < (rows.offsets.back() - 11) * 8; ++i)
    rows.values.push_back(random.Normal());
  return rows;
}

struct DinResult {
  std::vector<float> logits, embedding_gradient, gradients;
  std::vector<std::vector<float>> row_gradients;
};

DinResult DinOnCpu(const test::ModelBatch& batch, const std::vector<Rows>& rows) {
  DinResult r;
  auto created = Din(0.3f)({});
  HOTROW_EXPECT_OK(created);
  GraphModel& model = **created;
  std::vector<CtrModel::Sequence> sequences;
  for (const Rows& of : rows) r.row_gradients.emplace_back(of.values.size(), 9.0f);
  for (size_t s = 0; s < rows.size(); ++s) {
    sequences.push_back({.rows = rows[s].values.data(),
                         .offsets = rows[s].offsets.data(),
                         .gradient = r.row_gradients[s].data()});
  }
  CtrModel::Input input = batch.Input(/*training=*/true, 1);
  input.sequences = sequences;
  r.logits.resize(batch.logit_gradient.size());
  r.embedding_gradient.resize(batch.embeddings.size());
  std::vector<float> logit_gradient = batch.logit_gradient;
  HOTROW_EXPECT_OK(model.Forward({}, input, r.logits));
  HOTROW_EXPECT_OK(model.Backward({}, logit_gradient, r.embedding_gradient.data(), {}));
  r.gradients.assign(model.gradients().begin(), model.gradients().end());
  return r;
}

DinResult DinOnGpu(const test::ModelBatch& batch, const std::vector<Rows>& rows) {
  DinResult r;
  auto stream = CreateStream();
  HOTROW_EXPECT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  auto created = Din(0.3f)(ctx);
  HOTROW_EXPECT_OK(created);
  GraphModel& model = **created;
  const size_t b = batch.logit_gradient.size();
  test::DeviceArray<float> dense(batch.dense), embeddings(batch.embeddings), logits(b),
      logit_gradient(batch.logit_gradient), embedding_gradient(batch.embeddings.size());
  struct OnGpu {
    explicit OnGpu(const Rows& rows)
        : offsets(rows.offsets),
          values(rows.values),
          gradient(std::vector<float>(rows.values.size(), -5.0f)) {}
    test::DeviceArray<int64_t> offsets;
    test::DeviceArray<float> values, gradient;
  };
  std::vector<std::unique_ptr<OnGpu>> there;
  std::vector<CtrModel::Sequence> sequences;
  for (const Rows& of : rows) {
    there.push_back(std::make_unique<OnGpu>(of));
    sequences.push_back({.rows = there.back()->values.data(),
                         .offsets = of.offsets.data(),
                         .gradient = there.back()->gradient.data()});
  }
  CtrModel::Input input = batch.Input(/*training=*/true, 1);
  input.dense = dense.data();
  input.embeddings = embeddings.data();
  input.sequences = sequences;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(model.Forward(ctx, input, {logits.data(), b}),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             ::testing::HasSubstr("without offsets for the cuda")));
  for (size_t s = 0; s < rows.size(); ++s) sequences[s].device_offsets = there[s]->offsets.data();
  HOTROW_EXPECT_OK(model.Forward(ctx, input, {logits.data(), b}));
  HOTROW_EXPECT_OK(model.Backward(ctx, {logit_gradient.data(), b}, embedding_gradient.data(), {}));
  EXPECT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
  r.logits = logits.ToHost();
  r.embedding_gradient = embedding_gradient.ToHost();
  r.gradients = ToHost(model.gradients());
  for (const auto& of : there) r.row_gradients.push_back(of->gradient.ToHost());
  return r;
}

TEST(GraphModelCudaTest, AStepOfDinIsThatOfTheCpuAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int64_t size : {0, 1, 37, 128}) {
    SCOPED_TRACE(size);
    const test::ModelBatch batch = test::RandomModelBatch(size, 3, 2 * 8, 3);
    const std::vector<Rows> rows = {RandomRows(size, 5, 7), RandomRows(size, 2, 8)};
    const DinResult want = DinOnCpu(batch, rows);
    const DinResult got = DinOnGpu(batch, rows);
    const auto expect_near = [&](const std::vector<float>& a, const std::vector<float>& b,
                                 const char* what) {
      ASSERT_EQ(a.size(), b.size());
      double largest = 0;
      for (const float x : b) largest = std::max(largest, std::abs(double{x}));
      for (size_t i = 0; i < b.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], 1000 * 0x1p-24 * largest) << what << " " << i;
      }
      if (size > 1) {
        EXPECT_GT(largest, 1e-3) << what << ": nothing was tested";
      }
    };
    expect_near(got.logits, want.logits, "logit");
    expect_near(got.embedding_gradient, want.embedding_gradient, "embedding gradient");
    expect_near(got.gradients, want.gradients, "gradient");
    ASSERT_EQ(got.row_gradients.size(), 2u);
    expect_near(got.row_gradients[0], want.row_gradients[0], "history");
    expect_near(got.row_gradients[1], want.row_gradients[1], "summed rows");
    const DinResult again = DinOnGpu(batch, rows);
    EXPECT_EQ(test::FloatBits(again.logits), test::FloatBits(got.logits));
    EXPECT_EQ(test::FloatBits(again.gradients), test::FloatBits(got.gradients));
    EXPECT_EQ(test::FloatBits(again.row_gradients[0]), test::FloatBits(got.row_gradients[0]));
  }
}

TEST(GraphModelCudaTest, ANanOfASampleStaysInIt) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Kind& kind : AllKinds()) {
    if (kind.sees_batch) continue;
    SCOPED_TRACE(kind.name);
    const int64_t width = 6 * kind.table_columns;
    test::ModelBatch batch = test::RandomModelBatch(37, 5, width, 3, kind.num_tasks);
    batch.embeddings[static_cast<size_t>(17 * width + 10)] =
        std::numeric_limits<float>::quiet_NaN();
    const StepResult got = StepOnGpu(kind.with(5, 0), batch);
    const auto logits = static_cast<size_t>(kind.num_tasks);
    for (size_t i = 0; i < got.logits.size(); ++i) {
      ASSERT_EQ(std::isnan(got.logits[i]), i / logits == 17) << i;
    }
    const auto columns = static_cast<size_t>(width);
    for (size_t i = 0; i < got.embedding_gradient.size(); ++i) {
      if (i / columns == 17) continue;
      ASSERT_FALSE(std::isnan(got.embedding_gradient[i])) << i;
    }
    EXPECT_TRUE(std::isnan(got.loss));
  }
}

TEST(GraphModelCudaTest, HooksAreCalledInTheirOrderAndAnEmptyBatchHasZeroGradients) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  for (const Kind& kind : AllKinds()) {
    SCOPED_TRACE(kind.name);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model, kind.with(5, 0)(ctx));
    bool awaited = false;
    HOTROW_ASSERT_OK(model->Forward(ctx,
                                    {.batch_size = 0,
                                     .training = true,
                                     .step = 1,
                                     .await_embeddings =
                                         [&] {
                                           awaited = true;
                                           return absl::OkStatus();
                                         }},
                                    {}));
    EXPECT_TRUE(awaited);
    int told = 0;
    auto left = static_cast<int64_t>(model->gradients().size());
    HOTROW_ASSERT_OK(model->Backward(ctx, {}, nullptr,
                                     {.embedding_gradient_ready =
                                          [&] {
                                            ++told;
                                            return absl::OkStatus();
                                          },
                                      .gradients_ready =
                                          [&](int64_t begin, int64_t end) {
                                            EXPECT_EQ(told, 1);
                                            EXPECT_EQ(end, left);
                                            left = begin;
                                            return absl::OkStatus();
                                          }}));
    EXPECT_EQ(left, 0);
    EXPECT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
    const std::vector<float> gradients = ToHost(model->gradients());
    EXPECT_TRUE(std::all_of(gradients.begin(), gradients.end(), [](float g) { return g == 0; }));
  }
}

}  // namespace
}  // namespace hotrow
