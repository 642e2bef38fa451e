// Models whose dense part is ONNX: how they are written, what is refused, and, where
// HOTROW_ONNXRUNTIME names the library, what they score.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/onnx/onnx_graph.h"
#include "models/onnx/onnx_model.h"
#include "models/saving/tables_model.h"
#include "models/serving/scorer.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/model_kinds.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
constexpr int64_t kSamples = 3;
constexpr int64_t kDense = 2;

// A table whose rows are added up and one of which the mean is taken, with another precision.
absl::StatusOr<std::unique_ptr<EmbeddingCollection>> Tables() {
  EmbeddingCollectionOptions options;
  options.tables = {{.name = "items", .embedding_dim = 3, .feature_names = {"item"}},
                    {.name = "users",
                     .embedding_dim = 2,
                     .feature_names = {"user"},
                     .pooling = Pooling::kMean,
                     .weights_precision = WeightsPrecision::kFp16}};
  options.max_batch_size = 8;
  options.seed = 7;
  options.store = MemoryStorage{.memory_bytes = 1 << 20};
  HOTROW_ASSIGN_OR_RETURN(auto tables, EmbeddingCollection::Create(options, {}));
  const std::vector<uint64_t> keys = {1, 2, uint64_t{1} << 63};
  std::vector<float> items = {0.5f, -1, 2, 3, 0.25f, 1, -2, 4, 8};
  std::vector<float> users = {1, 0.5f, -0.25f, 2, 0.1f, 3};
  HOTROW_RETURN_IF_ERROR(tables->WriteRows("items", keys, {items.data(), 3, 3, 3}));
  HOTROW_RETURN_IF_ERROR(tables->WriteRows("users", keys, {users.data(), 3, 2, 2}));
  return tables;
}

// What is told of them. file: of ONNX; empty: there is none.
SavedModel ModelOf(const std::string& file) {
  SavedModel out;
  out.model = kOnnxModel;
  out.shape = {{std::string(kOnnxPooling) + "user", "mean"}};
  out.seed = 7;
  out.step = 5;
  out.num_dense = kDense;
  out.features = {{"item", "items"}, {"user", "users"}};
  const TableConfig config;  // for how rows begin
  for (const auto& [name, dim] : {std::pair("items", 3), std::pair("users", 2)}) {
    out.tables.push_back({.name = name, .dim = dim, .initializer = config.initializer});
  }
  out.tables[1].weights_precision = WeightsPrecision::kFp16;
  out.dense_optimizer = "sgd";
  out.scoring = ScoringData{.labels = {"click"}, .features = {{}, {}}};
  if (!file.empty()) {
    out.blob_bytes =
        std::make_shared<SavedModel::BlobBytes>(SavedModel::BlobBytes{{kOnnxBlob, file}});
  }
  return out;
}

// A file that adds all its inputs up.
std::string SumOnnx(const std::string& dir, int64_t embeddings, const std::string& output) {
  OnnxGraph graph;
  const std::string all =
      graph.Concat("all",
                   {graph.Input("embeddings", OnnxType::kFloat, {kOnnxBatchDim, embeddings}),
                    graph.Input("dense", OnnxType::kFloat, {kOnnxBatchDim, kDense})},
                   1);
  graph.Output(graph.ReduceSum(output, all, 1, /*keep_axis=*/true), OnnxType::kFloat,
               {kOnnxBatchDim, int64_t{1}});
  const std::string path = dir + "/dense.onnx";
  std::filesystem::remove(path);
  EXPECT_TRUE(WriteOnnx(PosixEnv(), path, graph.Take()).ok());
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The same as a model of C++.
class SumModel : public CtrModel {
 public:
  std::string_view name() const override { return "sum"; }
  DenseLayers layers() const override { return {}; }
  absl::Status Forward(const ExecContext&, const Input& input, std::span<float> logits) override {
    for (int64_t b = 0; b < input.batch_size; ++b) {
      float& sum = logits[static_cast<size_t>(b)] = 0;
      for (int64_t c = 0; c < 5; ++c) sum += input.embeddings[b * 5 + c];
      for (int64_t c = 0; c < kDense; ++c) sum += input.dense[b * kDense + c];
    }
    return absl::OkStatus();
  }
  using CtrModel::Backward;
  absl::Status Backward(const ExecContext&, std::span<float>, float*,
                        const BackwardHooks&) override {
    return absl::OkStatus();
  }
  std::span<float> parameters() override { return {}; }
  std::span<const float> gradients() const override { return {}; }
  std::span<float> mutable_gradients() override { return {}; }
};

absl::StatusOr<std::unique_ptr<CtrModel>> MakeSum(const ModelRecipe&) {
  return std::make_unique<SumModel>();
}

class OnnxDenseTest : public testing::Test {
 protected:
  void SetUp() override { HOTROW_ASSERT_OK_AND_ASSIGN(tables_, Tables()); }
  // Writes the model with this dense part.
  std::string Write(const std::string& file) {
    const std::string dir = absl::StrCat(dir_, "/model", models_++);
    HOTROW_EXPECT_OK(WriteTablesModel(*tables_, {.dir = dir, .model = ModelOf(file)}));
    return dir;
  }
  absl::Status Open(const std::string& model, const std::string& library) {
    return Scorer::Open({.model = model, .max_concurrency = 2, .onnxruntime = library}).status();
  }
  // The sums of what the tables give and of the dense numbers.
  void ExpectSums(const Scorer& scorer) {
    // Keys with rows, one without, and a bag of two.
    const std::vector<uint64_t> values = {1, 2, uint64_t{1} << 63, 77, 1, 2, 2};
    const std::vector<int64_t> offsets = {0, 1, 3, 4, 4, 6, 7};
    const std::vector<float> dense = {1, 2, 0.5f, -3, 0, 0.125f};
    const JaggedBatch batch = {.batch_size = kSamples, .values = values, .offsets = offsets};
    std::vector<float> pooled(kSamples * 5);
    HOTROW_ASSERT_OK(tables_->Evaluate(batch, {.pooled = {pooled.data(), kSamples, 5, 5}}));
    std::vector<float> sums;
    for (size_t b = 0; b < kSamples; ++b) {
      const float* const row = pooled.data() + b * 5;
      sums.push_back(row[0] + row[1] + row[2] + row[3] + row[4] + dense[2 * b] + dense[2 * b + 1]);
    }
    std::vector<float> logits(kSamples);
    int64_t step = 0;
    HOTROW_ASSERT_OK(scorer.Score({.sparse = batch, .dense = dense}, std::span(logits), &step));
    EXPECT_THAT(logits, Pointwise(FloatNear(1e-6f), sums));
    EXPECT_EQ(step, 5);
  }

  const std::string dir_ = test::TempDir();
  std::unique_ptr<EmbeddingCollection> tables_;
  int models_ = 0;
};

TEST_F(OnnxDenseTest, RowsAreThoseOfTheTables) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Scorer> scorer,
      Scorer::Open({.model = Write("any"), .max_batch_size = 2, .create_model = MakeSum}));
  EXPECT_EQ(scorer->rows(), 6);
  ExpectSums(*scorer);
}

TEST_F(OnnxDenseTest, ADirectoryThatIsThereIsLeftAlone) {
  const std::string dir = Write("any");
  EXPECT_THAT(WriteTablesModel(*tables_, {.dir = dir, .model = ModelOf("other")}),
              StatusIs(kRefused, HasSubstr(dir)));
}

TEST_F(OnnxDenseTest, ARuntimeThatIsMissingIsNamedWithTheRemedy) {
  const std::string model = Write("any");
  EXPECT_THAT(Open(model, "/nowhere/libonnxruntime.so"),
              StatusIs(kRefused, AllOf(HasSubstr(model), HasSubstr("/nowhere/libonnxruntime.so"),
                                       HasSubstr("pip install onnxruntime"),
                                       HasSubstr("ScorerOptions.onnxruntime"))));
  EXPECT_THAT(Open(model, "libm.so.6"),
              StatusIs(kRefused, AllOf(HasSubstr("libm.so.6"), HasSubstr("OrtGetApiBase"))));
}

TEST_F(OnnxDenseTest, ADensePartThatIsMissingOrDamagedIsNamed) {
  EXPECT_THAT(Open(Write(""), ""), StatusIs(kRefused, HasSubstr("hotrow.torch.export")));
  const std::string model = Write("any");
  std::fstream(model + "/blob-00000", std::ios::in | std::ios::out) << 'b';
  EXPECT_THAT(Open(model, ""),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(model + "/blob-00000")));
  std::filesystem::remove(model + "/blob-00000");
  EXPECT_THAT(Open(model, ""), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no such file")));
}

// With onnxruntime itself, which no build has.
class OnnxRuntimeTest : public OnnxDenseTest {
 protected:
  void SetUp() override {
    const char* const library = std::getenv("HOTROW_ONNXRUNTIME");
    if (library == nullptr) GTEST_SKIP() << "HOTROW_ONNXRUNTIME names no library";
    library_ = library;
    OnnxDenseTest::SetUp();
  }
  std::string library_;
};

TEST_F(OnnxRuntimeTest, ScoresAreThoseOfTheFile) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Scorer> scorer,
                              Scorer::Open({.model = Write(SumOnnx(dir_, 5, "logits")),
                                            .max_batch_size = 2,
                                            .onnxruntime = library_}));
  EXPECT_EQ(scorer->num_tasks(), 1);
  EXPECT_EQ(scorer->model_name(), "onnx");
  ExpectSums(*scorer);
}

TEST_F(OnnxRuntimeTest, AFileThatDoesNotFitIsNamed) {
  const std::string whole = SumOnnx(dir_, 5, "logits");
  EXPECT_THAT(Open(Write(SumOnnx(dir_, 4, "logits")), library_),
              StatusIs(kRefused, AllOf(HasSubstr("blob-00000 (dense.onnx)"),
                                       HasSubstr("\"embeddings\" of float [-1, 4]"),
                                       HasSubstr("\"embeddings\" of float [-1, 5]"))));
  EXPECT_THAT(Open(Write(SumOnnx(dir_, 5, "scores")), library_),
              StatusIs(kRefused, HasSubstr("\"logits\"")));
  EXPECT_THAT(Open(Write(whole.substr(0, whole.size() / 2)), library_),
              StatusIs(kRefused, AllOf(HasSubstr("dense.onnx"), HasSubstr("onnxruntime 1."))));
}

}  // namespace
}  // namespace hotrow
