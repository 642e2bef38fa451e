#include "models/serving/export_onnx.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/onnx/onnx_graph.h"
#include "models/saving/portable_model.h"
#include "models/serving/scorer.h"
#include "models/train/trainer.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/model_kinds.h"
#include "models/zoo/model_list.h"
#include "tests/models/onnx_reader.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;

using Shape = std::vector<std::pair<std::string, std::string>>;

std::vector<float> FloatsOf(const test::ReadOnnxTensor& tensor) {
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

// --- the dense part, of every model

struct Kind {
  std::string name;
  Shape shape;
  int32_t num_dense = 3;
};

// Each model of the zoo, in the forms that have their own layers.
std::vector<Kind> Kinds() {
  return {{"dlrm", {{"dense_arch_layer_sizes", "7-4"}}},
          {"dlrm", {{"dense_arch_layer_sizes", "7-4"}, {"batch_norm", "true"}}},
          {"dlrm", {}, 0},
          {"dlrm", {{"interaction", "cat"}, {"dense_arch_layer_sizes", "5"}}},
          {"deepfm", {}},
          {"deepfm", {}, 0},
          {"dcn", {{"dcn_version", "1"}}},
          {"dcn", {{"dcn_low_rank_dim", "3"}, {"dcn_structure", "parallel"}}},
          {"dcn", {{"dcn_low_rank_dim", "3"}, {"dcn_num_experts", "2"}}},
          {"dcn", {{"dcn_version", "2"}}},
          {"wide_deep", {}},
          {"xdeepfm", {{"cin_layer_sizes", "5-3"}}},
          {"pnn", {{"pnn_products", "both"}}},
          {"din", {{"history", "f0:f1"}, {"attention_layer_sizes", "6"}}},
          {"bst", {{"history", "f0:f1"}, {"num_heads", "2"}, {"num_blocks", "2"}}},
          {"hstu", {{"history", "f0:f1"}, {"num_heads", "2"}, {"num_blocks", "2"}}},
          {"mmoe", {{"num_experts", "2"}, {"expert_layer_sizes", "6"}}}};
}

ModelRecipe RecipeOf(const Kind& kind) {
  ModelRecipe recipe = {.model = kind.name,
                        .shape = kind.shape,
                        .num_dense = kind.num_dense,
                        .features = {{"f0", "t0", 5}, {"f1", "t0", 1}, {"f2", "t1", 1}},
                        .num_tasks = kind.name == "mmoe" ? 2 : 1,
                        .table_columns = 4,
                        .seed = 5,
                        .max_batch_size = 1};
  recipe.shape.emplace_back("over_arch_layer_sizes", "6-1");
  return recipe;
}

TEST(OnnxExportTest, EveryModelOfTheZooIsTested) {
  std::set<std::string> tested;
  for (const Kind& kind : Kinds()) tested.insert(kind.name);
#define HOTROW_IS_TESTED(name, Type, what) EXPECT_TRUE(tested.contains(#name));
  HOTROW_MODELS(HOTROW_IS_TESTED)
#undef HOTROW_IS_TESTED
}

// The graph is sound, its names repeat, and each parameter is one of its constants.
TEST(OnnxExportTest, EveryModelBecomesAGraph) {
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(testing::Message() << kind.name << " " << testing::PrintToString(kind.shape));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, CreateModelOfKind(RecipeOf(kind)));
    RandomStream random(3, RandomPurpose::kTest);
    for (float& x : model->parameters()) {
      if (x == 0) x = random.Normal();  // those that start at zero, and padding, which is not there
    }
    const auto encode = [&]() -> absl::StatusOr<std::string> {
      OnnxGraph graph;
      GraphModel::OnnxInputs inputs;
      if (kind.num_dense > 0) {
        inputs.dense = graph.Input("dense", OnnxType::kFloat, {"batch", int64_t{kind.num_dense}});
      }
      for (int32_t f = 0; f < 3; ++f) {
        const std::vector<int32_t> unpooled = model->unpooled_features();
        if (std::ranges::count(unpooled, f) == 0) {
          inputs.features.push_back(
              graph.Input(absl::StrCat("embedding.", f), OnnxType::kFloat, {"batch", int64_t{4}}));
        } else {
          inputs.sequences.push_back(
              {.rows = graph.Input(absl::StrCat("rows.", f), OnnxType::kFloat,
                                   {"batch", "L", int64_t{4}}),
               .mask = graph.Input(absl::StrCat("mask.", f), OnnxType::kBool,
                                   {"batch", "L", int64_t{1}})});
        }
      }
      HOTROW_ASSIGN_OR_RETURN(const std::string logits, model->ToOnnx(inputs, &graph));
      graph.Output(logits, OnnxType::kFloat, {"batch", int64_t{model->num_tasks()}});
      return EncodeOnnx(graph.Take());
    };
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, encode());
    EXPECT_EQ(*encode(), bytes);
    const test::ReadOnnxModel read = test::ReadOnnx(bytes);
    test::ExpectSoundOnnx(read);
    std::multiset<float> constants;
    for (const auto& [name, tensor] : read.initializers) {
      if (tensor.type != 1) continue;
      for (const float x : FloatsOf(tensor)) constants.insert(x);
    }
    std::multiset<float> parameters;
    int64_t missing = 0;
    for (const float x : model->parameters()) missing += constants.contains(x) ? 0 : 1;
    // Behind each block there is padding of less than 16 numbers, and running variances become
    // what one divides by.
    int64_t blocks = 0;
    for (const auto& [name, tensor] : read.initializers) blocks += tensor.type == 1 ? 1 : 0;
    EXPECT_LT(missing, 16 * blocks);
    EXPECT_GE(static_cast<int64_t>(constants.size()) + missing, std::ssize(model->parameters()));
  }
}

TEST(OnnxExportTest, NamesOfADlrmAreThoseOfItsParts) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, CreateModelOfKind(RecipeOf(Kinds()[0])));
  OnnxGraph graph;
  GraphModel::OnnxInputs inputs = {
      .dense = graph.Input("dense", OnnxType::kFloat, {"batch", int64_t{3}})};
  for (const char* const name : {"a", "b", "c"}) {
    inputs.features.push_back(graph.Input(name, OnnxType::kFloat, {"batch", int64_t{4}}));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string logits, model->ToOnnx(inputs, &graph));
  EXPECT_EQ(logits, "top/1/gemm");
  graph.Output(logits, OnnxType::kFloat, {"batch", int64_t{1}});
  const test::ReadOnnxModel read = test::ReadOnnx(EncodeOnnx(graph.Take()));
  EXPECT_THAT(read.initializers.at("bottom/0/weight").dims, ElementsAre(7, 3));
  EXPECT_THAT(read.initializers.at("bottom/1/bias").dims, ElementsAre(4));
  EXPECT_THAT(read.initializers.at("top/0/weight").dims, ElementsAre(6, 4 + 6));
  const GraphModel::Part top = model->FindPart("top");
  const std::vector<float> weight = FloatsOf(read.initializers.at("top/0/weight"));
  EXPECT_EQ(weight, std::vector<float>(model->parameters().data() + top.offset,
                                       model->parameters().data() + top.offset + 60));
  // The pairs (1, 0), (2, 0), (2, 1), ... of 4 vectors.
  const test::ReadOnnxTensor& pairs = read.initializers.at("interaction/triangle/columns");
  std::vector<int64_t> columns(pairs.data.size() / 8);
  std::memcpy(columns.data(), pairs.data.data(), pairs.data.size());
  EXPECT_THAT(columns, ElementsAre(4, 8, 9, 12, 13, 14));
}

class SilentLayer : public Layer {
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

TEST(OnnxExportTest, APartWithoutAFormIsNamed) {
  ModelGraph g({.name = "mine", .num_dense = 2, .max_batch_size = 1});
  g.AddLogit(g.AddLayer("silent", std::make_unique<SilentLayer>(), {g.Dense()}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, g.Build());
  OnnxGraph graph;
  const GraphModel::OnnxInputs inputs = {
      .dense = graph.Input("dense", OnnxType::kFloat, {"batch", int64_t{2}})};
  EXPECT_THAT(model->ToOnnx(inputs, &graph).status(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("mine, silent"), HasSubstr("ONNX"))));
}

// --- whole models

constexpr char kData[] =
    "synthetic:tables=3,rows=300,dense=2,shared=2,hotness=0-3,samples=480,valid=90,test=90";

ModelRecipe DlrmOf(const TrainerOptions& options, const DataSchema& schema) {
  ModelRecipe recipe = {.model = "dlrm",
                        .shape = options.shape,
                        .num_dense = schema.num_dense,
                        .table_columns = options.embedding_dim,
                        .seed = options.seed,
                        .max_batch_size = options.batch_size};
  for (const DataFeature& feature : schema.features) {
    recipe.features.push_back({feature.name, feature.table, feature.max_hotness});
  }
  return recipe;
}

struct Run {
  Initializer initializer = {InitializerKind::kUniform, 0.1f};
  Pooling pooling = Pooling::kSum;
  std::string data = kData;
  int32_t columns = 8;
};

// Trains a DLRM; returns the directory of the model.
std::string Train(const std::string& dir, const Run& run = {}) {
  TrainerOptions options;
  options.batch_size = 48;
  options.embedding_dim = run.columns;
  options.pooling = run.pooling;
  options.seed = 3;
  options.store_bytes = int64_t{16} << 20;
  options.initializer = run.initializer;
  options.shape = {{"dense_arch_layer_sizes", absl::StrCat("2-", run.columns)},
                   {"over_arch_layer_sizes", "5-1"},
                   {"pooling", run.pooling == Pooling::kMean ? "mean" : "sum"}};
  options.save_dir = dir + "/model";
  const auto train = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> data, OpenDataSource(run.data, 5));
    return RunTraining(options, *data,
                       [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
                         return CreateModelOfKind(DlrmOf(options, schema));
                       },
                       {})
        .status();
  };
  HOTROW_EXPECT_OK(train());
  return options.save_dir;
}

absl::StatusOr<test::ReadOnnxModel> ExportAndRead(ExportOnnxOptions options) {
  HOTROW_ASSIGN_OR_RETURN(const ExportOnnxSummary summary, ExportOnnx(options));
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(PosixEnv(), options.path));
  EXPECT_EQ(summary.bytes, static_cast<int64_t>(bytes.size()));
  test::ReadOnnxModel out = test::ReadOnnx(bytes);
  test::ExpectSoundOnnx(out);
  EXPECT_EQ(out.inputs.size(), summary.inputs.size());
  return out;
}

TEST(OnnxExportTest, EmbeddingsAreTheInputs) {
  const std::string dir = test::TempDir();
  const std::string model = Train(dir);
  HOTROW_ASSERT_OK_AND_ASSIGN(const test::ReadOnnxModel read,
                              ExportAndRead({.model = model, .path = dir + "/a.onnx"}));
  EXPECT_EQ(read.producer, "hotrow");
  EXPECT_EQ(read.graph_name, "dlrm");
  EXPECT_EQ(read.ir_version, 8);
  EXPECT_THAT(read.opsets, ElementsAre(Pair("", 17)));
  ASSERT_GE(read.inputs.size(), 2u);
  EXPECT_THAT(read.inputs[0], Pair("dense", "FLOAT [batch, 2]"));
  for (size_t i = 1; i < read.inputs.size(); ++i) {
    EXPECT_TRUE(absl::StartsWith(read.inputs[i].first, "embedding.")) << read.inputs[i].first;
    EXPECT_EQ(read.inputs[i].second, "FLOAT [batch, 8]");
  }
  EXPECT_THAT(read.outputs, ElementsAre(Pair("logits", "FLOAT [batch, 1]"),
                                        Pair("probabilities", "FLOAT [batch, 1]")));
  EXPECT_THAT(read.metadata,
              IsSupersetOf({Pair("hotrow.form", "embeddings"), Pair("hotrow.model", "dlrm"),
                            Pair("hotrow.step", "10"), Pair("hotrow.num_dense", "2")}));
  EXPECT_THAT(read.metadata.at("hotrow.features"), HasSubstr(R"("pooling":"sum")"));
  EXPECT_THAT(read.metadata.at("hotrow.shape"), HasSubstr(R"("over_arch_layer_sizes":"5-1")"));
  // Again, and of its arrays: the same bytes.
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = model, .dir = dir + "/arrays"}));
  HOTROW_ASSERT_OK(ExportOnnx({.model = dir + "/arrays", .path = dir + "/b.onnx"}));
  EXPECT_EQ(*ReadFileToString(PosixEnv(), dir + "/b.onnx"),
            *ReadFileToString(PosixEnv(), dir + "/a.onnx"));
}

// Tables of the data have a bound, so a key is the number of its row, and keys that training has
// not seen have their first values.
TEST(OnnxExportTest, RowsOfBoundedTablesAreWhatEvaluationReads) {
  const std::string dir = test::TempDir();
  const std::string model = Train(dir, {.pooling = Pooling::kMean});
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const test::ReadOnnxModel read,
      ExportAndRead({.model = model, .path = dir + "/a.onnx", .with_rows = true}));
  EXPECT_THAT(read.opsets, ElementsAre(Pair("", 17)));
  EXPECT_EQ(read.metadata.at("hotrow.form"), "rows");
  EXPECT_THAT(read.metadata.at("hotrow.tables"), HasSubstr(R"("rows":300,"index":"key")"));
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = model, .dir = dir + "/arrays"}));
  int tables = 0;
  for (const auto& [name, tensor] : read.initializers) {
    if (!absl::StartsWith(name, "table.")) continue;
    ++tables;
    EXPECT_THAT(tensor.dims, ElementsAre(301, 8)) << name;
    const std::vector<float> rows = FloatsOf(tensor);
    EXPECT_THAT(std::vector<float>(rows.begin(), rows.begin() + 8), Each(0.0f));
    // No row is zeros: all have been drawn.
    for (size_t r = 1; r < 301; ++r) EXPECT_NE(rows[8 * r], 0) << name << " row " << r;
  }
  EXPECT_EQ(tables, 3);
  EXPECT_THAT(read.nodes, Contains(testing::Field(&test::ReadOnnxNode::op, "Div")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const test::ReadOnnxModel zeros,
                              ExportAndRead({.model = model,
                                             .path = dir + "/zeros.onnx",
                                             .with_rows = true,
                                             .unseen_keys = OnnxUnseenKeys::kZeros}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open({.model = model}));
  int64_t with_rows = 0;
  for (const auto& [name, tensor] : zeros.initializers) {
    if (!absl::StartsWith(name, "table.")) continue;
    const std::vector<float> rows = FloatsOf(tensor);
    const std::vector<float> all = FloatsOf(read.initializers.at(name));
    for (size_t r = 1; r < 301; ++r) {
      if (rows[8 * r] == 0) continue;
      ++with_rows;
      EXPECT_EQ(std::memcmp(&rows[8 * r], &all[8 * r], 8 * sizeof(float)), 0);
    }
  }
  EXPECT_EQ(with_rows, scorer->rows());
}

// Writes samples of one feature, whose keys lie below a bound; 0: there is none.
std::string WriteUsers(const std::string& dir, const std::vector<uint64_t>& keys,
                       int64_t bound = 0) {
  std::ofstream samples(dir + "/log.csv");
  samples << "click,price,user\n";
  for (size_t i = 0; i < keys.size(); ++i) samples << i % 2 << "," << i << "," << keys[i] << "\n";
  std::ofstream(dir + "/schema.json")
      << R"({"name": "log", "files": {"train": ["log.csv"]},
    "columns": [{"name": "click", "role": "label"}, {"name": "price", "role": "dense"},
                {"name": "user", "role": "categorical", "key": "integer", "table": "people")"
      << (bound > 0 ? absl::StrCat(R"(, "num_embeddings": )", bound) : "") << "}]}";
  return "table:" + dir + "/schema.json";
}

TEST(OnnxExportTest, KeysWithoutABoundAreEncoded) {
  const std::string dir = test::TempDir();
  const std::string data = WriteUsers(dir, {7, UINT64_MAX, 0, 7, uint64_t{1} << 63});
  const std::string model =
      Train(dir, {.initializer = {InitializerKind::kConstant, 0.25f}, .data = data});
  for (const OnnxUnseenKeys unseen : {OnnxUnseenKeys::kExact, OnnxUnseenKeys::kZeros}) {
    const bool zeros = unseen == OnnxUnseenKeys::kZeros;
    HOTROW_ASSERT_OK_AND_ASSIGN(const test::ReadOnnxModel read,
                                ExportAndRead({.model = model,
                                               .path = absl::StrCat(dir, "/", zeros, ".onnx"),
                                               .with_rows = true,
                                               .unseen_keys = unseen}));
    EXPECT_THAT(read.opsets, ElementsAre(Pair("", 17), Pair("ai.onnx.ml", 2)));
    EXPECT_THAT(read.inputs, ElementsAre(Pair("dense", "FLOAT [batch, 1]"),
                                         Pair("ids.user", "INT64 [batch, L.user]"),
                                         Pair("length.user", "INT64 [batch, 1]")));
    EXPECT_EQ(read.metadata.at("hotrow.tables"),
              absl::StrCat(R"([{"name":"people","rows":4,"index":"encoder","unseen_keys":")",
                           zeros ? "zeros" : "exact", R"("}])"));
    const test::ReadOnnxNode* const encoder = read.Find("lookup.user/index");
    ASSERT_NE(encoder, nullptr);
    EXPECT_EQ(encoder->op, "LabelEncoder");
    EXPECT_THAT(encoder->ints.at("keys_int64s"), ElementsAre(0, 7, INT64_MIN, -1));
    EXPECT_THAT(encoder->ints.at("values_int64s"), ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(encoder->ints.at("default_int64"), ElementsAre(1));
    const test::ReadOnnxTensor& table = read.initializers.at("table.people/rows");
    EXPECT_THAT(table.dims, ElementsAre(6, 8));
    const std::vector<float> rows = FloatsOf(table);
    EXPECT_THAT(std::vector<float>(rows.begin(), rows.begin() + 8), Each(0.0f));
    EXPECT_THAT(std::vector<float>(rows.begin() + 8, rows.begin() + 16), Each(zeros ? 0 : 0.25f));
    EXPECT_THAT(std::vector<float>(rows.begin() + 16, rows.end()), Not(Contains(0.0f)));
  }
}

TEST(OnnxExportTest, RandomFirstValuesAreRefusedWithTheRemedy) {
  const std::string dir = test::TempDir();
  const std::string model = Train(dir, {.data = WriteUsers(dir, {1, 2, 3})});
  EXPECT_THAT(
      ExportOnnx({.model = model, .path = dir + "/a.onnx", .with_rows = true}).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr(model), HasSubstr("\"people\""), HasSubstr("--unseen_keys=zeros"))));
  EXPECT_FALSE(std::filesystem::exists(dir + "/a.onnx"));
}

// All keys of a bound are rows of the file, so it would have 2 GiB, of three rows that there are.
TEST(OnnxExportTest, AModelThatIsTooLargeIsRefused) {
  const std::string dir = test::TempDir();
  const std::string model =
      Train(dir, {.data = WriteUsers(dir, {1, 2, 3}, 65'536), .columns = 8192});
  EXPECT_THAT(ExportOnnx({.model = model, .path = dir + "/a.onnx", .with_rows = true}).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(model), HasSubstr("2147483647"), HasSubstr("--with_rows"))));
  EXPECT_FALSE(std::filesystem::exists(dir + "/a.onnx"));
  HOTROW_EXPECT_OK(ExportOnnx({.model = model, .path = dir + "/a.onnx"}));
}

TEST(OnnxExportTest, WhatIsInTheWayIsNamed) {
  const std::string dir = test::TempDir();
  const std::string model = Train(dir);
  EXPECT_THAT(ExportOnnx({.model = model, .path = dir + "/model"}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is there already")));
  EXPECT_THAT(ExportOnnx({.model = model}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("path")));
  EXPECT_THAT(ExportOnnx({.model = dir + "/none", .path = dir + "/a.onnx"}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(dir + "/none")));
  EXPECT_FALSE(std::filesystem::exists(dir + "/a.onnx"));
}

// A model of other makers.
class ForeignModel : public CtrModel {
 public:
  explicit ForeignModel(size_t parameters) : parameters_(parameters) {}
  std::string_view name() const override { return "foreign"; }
  DenseLayers layers() const override { return {}; }
  absl::Status Forward(const ExecContext&, const Input&, std::span<float>) override {
    return absl::OkStatus();
  }
  absl::Status Backward(const ExecContext&, std::span<float>, float*,
                        const BackwardHooks&) override {
    return absl::OkStatus();
  }
  std::span<float> parameters() override { return parameters_; }
  std::span<const float> gradients() const override { return parameters_; }
  std::span<float> mutable_gradients() override { return parameters_; }

 private:
  std::vector<float> parameters_;
};

TEST(OnnxExportTest, AModelThatIsNotDeclaredIsRefused) {
  const std::string dir = test::TempDir();
  const std::string model = Train(dir);
  const auto foreign = [](const ModelRecipe& recipe) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    HOTROW_ASSIGN_OR_RETURN(const auto own, CreateModelOfKind(recipe));
    return std::make_unique<ForeignModel>(own->parameters().size());
  };
  EXPECT_THAT(
      ExportOnnx({.model = model, .path = dir + "/a.onnx", .create_model = foreign}).status(),
      StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr(model), HasSubstr("ModelGraph"))));
}

}  // namespace
}  // namespace hotrow
