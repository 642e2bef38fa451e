#include "models/onnx/onnx_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/onnx/onnx_graph.h"
#include "tests/models/onnx_reader.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr float kWeights[] = {1, -2};

OnnxModel SmallModel() {
  return {
      .ir_version = 8,
      .opsets = {{"", 17}, {"ai.onnx.ml", 2}},
      .producer_name = "hotrow",
      .producer_version = "1.2",
      .metadata = {{"k", "v"}},
      .graph_name = "g",
      .nodes = {{.op = "Gemm",
                 .name = "y",
                 .inputs = {"x", "w"},
                 .attributes = {{"alpha", 0.5f}, {"transB", int64_t{1}}}},
                {.op = "LabelEncoder",
                 .domain = "ai.onnx.ml",
                 .name = "z",
                 .inputs = {"i"},
                 .attributes = {{"keys_int64s", std::vector<int64_t>{-1, 300}}}}},
      .initializers = {{.name = "w", .dims = {1, 2}, .data = std::as_bytes(std::span(kWeights))}},
      .inputs = {{.name = "x", .dims = {"batch", int64_t{2}}},
                 {.name = "i", .type = OnnxType::kInt64, .dims = {"batch"}}},
      .outputs = {{.name = "y", .dims = {"batch", int64_t{1}}}}};
}

// What SerializeToString of the Python package onnx 1.23 gives for the same model.
constexpr char kSmallModelBytes[] =
    "08081206686f74726f771a03312e323adb01"
    "0a320a01780a01771201791a0179220447656d6d2a0f0a05616c706861150000003fa001012a0d0a067472616e7342"
    "1801a00102"
    "0a430a016912017a1a017a220c4c6162656c456e636f6465722a1e0a0b6b6579735f696e7436347340ffffffffffff"
    "ffffff0140ac02a001073a0a61692e6f6e6e782e6d6c"
    "120167"
    "2a130801080210014201774a080000803f000000c0"
    "5a180a017812130a110801120d0a07120562617463680a020802"
    "5a140a0169120f0a0d080712090a0712056261746368"
    "62180a017912130a110801120d0a07120562617463680a020801"
    "42040a001011420e0a0a61692e6f6e6e782e6d6c100272060a016b120176";

TEST(OnnxModelTest, BytesAreThoseOfProtobuf) {
  EXPECT_EQ(absl::BytesToHexString(EncodeOnnx(SmallModel())), kSmallModelBytes);
}

TEST(OnnxModelTest, AReaderFindsWhatWasWritten) {
  const test::ReadOnnxModel read = test::ReadOnnx(EncodeOnnx(SmallModel()));
  EXPECT_EQ(read.ir_version, 8);
  EXPECT_EQ(read.producer, "hotrow");
  EXPECT_EQ(read.graph_name, "g");
  EXPECT_THAT(read.opsets, ElementsAre(Pair("", 17), Pair("ai.onnx.ml", 2)));
  EXPECT_THAT(read.metadata, ElementsAre(Pair("k", "v")));
  ASSERT_EQ(read.nodes.size(), 2u);
  EXPECT_THAT(read.nodes[0].inputs, ElementsAre("x", "w"));
  EXPECT_THAT(read.nodes[1].ints.at("keys_int64s"), ElementsAre(-1, 300));
  EXPECT_THAT(read.initializers.at("w").dims, ElementsAre(1, 2));
  EXPECT_THAT(read.inputs, ElementsAre(Pair("x", "FLOAT [batch, 2]"), Pair("i", "INT64 [batch]")));
  EXPECT_THAT(read.outputs, ElementsAre(Pair("y", "FLOAT [batch, 1]")));
}

// Every call fails once: the file is there whole or not at all, and nothing is left beside it.
TEST(OnnxModelTest, AFileIsWholeOrAbsent) {
  int64_t k = 0;
  for (;; ++k) {
    SCOPED_TRACE(k);
    test::FaultyEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs("/d"));
    HOTROW_ASSERT_OK(env.SyncDir("/"));
    env.FailCall(env.calls() + k, absl::DataLossError("injected"));
    const absl::StatusOr<int64_t> bytes = WriteOnnx(env, "/d/a", SmallModel());
    if (env.faults() == 0) {
      HOTROW_ASSERT_OK(bytes);
      EXPECT_EQ(*bytes, static_cast<int64_t>(EncodeOnnx(SmallModel()).size()));
      break;
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir("/d"));
    if (!names.empty()) {
      EXPECT_THAT(names, ElementsAre("a"));
      EXPECT_EQ(*ReadFileToString(env, "/d/a"), EncodeOnnx(SmallModel()));
    }
    EXPECT_THAT(bytes.status(), test::StatusIs(absl::StatusCode::kDataLoss, "injected"));
  }
  EXPECT_EQ(k, 8);  // open, three writes, sync, close, rename, sync of the directory
}

TEST(OnnxModelTest, MoreThanAMessageHoldsIsRefused) {
  OnnxModel model = SmallModel();
  // It is not looked at.
  model.initializers[0].data = {reinterpret_cast<const std::byte*>(kWeights), size_t{1} << 31};
  test::FaultyEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs("/d"));
  EXPECT_THAT(WriteOnnx(env, "/d/a", model).status(),
              test::StatusIs(absl::StatusCode::kResourceExhausted,
                             AllOf(HasSubstr("/d/a"), HasSubstr("2147483647"))));
  EXPECT_THAT(*env.ListDir("/d"), IsEmpty());
}

TEST(OnnxGraphTest, NamesAreTakenOnce) {
  OnnxGraph graph;
  EXPECT_EQ(graph.Input("x", OnnxType::kFloat, {"batch", int64_t{3}}), "x");
  EXPECT_EQ(graph.Float("x", 1), "x.1");
  EXPECT_EQ(graph.Add("Mul", "x", {"x", "x.1"}), "x.2");
  EXPECT_EQ(graph.Concat("unused", {"x.2"}, 1), "x.2");
  EXPECT_EQ(graph.Concat("both", {"x", "x.2"}, 1), "both");
  EXPECT_EQ(graph.BatchSize(), graph.BatchSize());
  graph.Output("both", OnnxType::kFloat, {"batch", int64_t{6}});
  const OnnxModel model = graph.Take();
  EXPECT_EQ(model.nodes.size(), 3u);
  EXPECT_THAT(model.opsets, ElementsAre(Pair("", kOnnxOpset)));
}

TEST(OnnxGraphTest, ConstantsOutliveWhatTheyWereMadeOf) {
  OnnxGraph graph;
  {
    std::vector<float> numbers = {1, 2, 3};
    graph.Floats("numbers", {3}, numbers);
    std::ranges::fill(numbers, 0.0f);
    HOTROW_ASSERT_OK_AND_ASSIGN(HostBuffer<float> rows, HostBuffer<float>::Create(2));
    rows[1] = 5;
    graph.Floats("rows", {2, 1}, std::move(rows));
  }
  const test::ReadOnnxModel read = test::ReadOnnx(EncodeOnnx(graph.Take()));
  const float numbers[] = {1, 2, 3};
  const float rows[] = {0, 5};
  const auto bytes = [](std::span<const float> floats) {
    return std::string(reinterpret_cast<const char*>(floats.data()), floats.size_bytes());
  };
  EXPECT_EQ(read.initializers.at("numbers").data, bytes(numbers));
  EXPECT_EQ(read.initializers.at("rows").data, bytes(rows));
}

TEST(OnnxGraphTest, KeysNeedTheOperatorsOfMl) {
  OnnxGraph graph;
  graph.Input("ids", OnnxType::kInt64, {"batch"});
  graph.Add("LabelEncoder", "rows", {"ids"}, {}, kOnnxMlDomain);
  EXPECT_THAT(graph.Take().opsets,
              ElementsAre(Pair("", kOnnxOpset), Pair("ai.onnx.ml", kOnnxMlOpset)));
}

}  // namespace
}  // namespace hotrow
