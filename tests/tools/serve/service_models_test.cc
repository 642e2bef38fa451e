// Every model of the zoo by its requests: the bits of the Scorer, as keys and as lines.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/serve/service.h"

namespace hotrow {
namespace {

using Json = nlohmann::json;

Json Tensor(const std::string& name, const char* datatype, std::vector<int64_t> shape, Json data) {
  return {{"name", name},
          {"datatype", datatype},
          {"shape", std::move(shape)},
          {"data", std::move(data)}};
}

Json KeysRequest(const Scorer& scorer, const CtrBatch& batch) {
  Json inputs = Json::array();
  const int64_t samples = batch.batch_size;
  for (int64_t f = 0; f < std::ssize(scorer.feature_names()); ++f) {
    const int64_t* const offsets = batch.offsets.data() + f * samples;
    const std::vector<uint64_t> keys(batch.values.begin() + offsets[0],
                                     batch.values.begin() + offsets[samples]);
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < samples; ++b) lengths.push_back(offsets[b + 1] - offsets[b]);
    const std::string& name = scorer.feature_names()[static_cast<size_t>(f)];
    inputs.push_back(Tensor(name, "UINT64", {std::ssize(keys)}, keys));
    inputs.push_back(Tensor(name + ":lengths", "INT64", {samples}, lengths));
  }
  inputs.push_back(Tensor("dense", "FP32", {samples, scorer.num_dense()}, batch.dense));
  return {{"inputs", std::move(inputs)}, {"outputs", Json::array({{{"name", "logits"}}})}};
}

class ServiceModelsTest : public testing::TestWithParam<test::Kind> {};

TEST_P(ServiceModelsTest, ScoresHaveTheBitsOfTheScorer) {
  const test::Kind kind = GetParam();
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", test::WriteLog(dir, kind.two_labels()));
  TrainerOptions options = test::OptionsOf(kind);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 5;
  HOTROW_ASSERT_OK(test::Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      std::shared_ptr<const Scorer> scorer,
      Scorer::Open({.model = options.save_dir, .max_concurrency = 1, .max_batch_size = 200}));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto service,
      ScoringService::Create({.timeout_ms = 600'000}, [&scorer] { return scorer; }));
  const auto logits_of = [&](const Json& body) {
    HttpRequest request = {.method = "POST",
                           .path = absl::StrCat("/v2/models/", kind.name, "/infer"),
                           .body = body.dump()};
    request.begin_ns = request.read_ns = NowNanos();
    const HttpReply reply = service->Handle(request);
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<float> out;
    const Json json = Json::parse(reply.body, nullptr, false);
    if (reply.status != 200) return out;
    for (const Json& value : json["outputs"][0]["data"]) {
      out.push_back(static_cast<float>(value.get<double>()));
    }
    EXPECT_EQ(json["outputs"][0]["shape"][1], scorer->num_tasks());
    return out;
  };

  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, test::TestBatches(data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, test::ScoreAll(*scorer, batches));
  std::vector<float> found;
  for (const CtrBatch& batch : batches) {
    const std::vector<float> own = logits_of(KeysRequest(*scorer, batch));
    found.insert(found.end(), own.begin(), own.end());
  }
  test::ExpectSameBits(found, expected);

  const std::vector<std::string> lines = test::TheLog().TestLines(scorer->line_columns());
  std::vector<float> of_lines(expected.size());
  HOTROW_ASSERT_OK(scorer->ScoreLines(test::Views(lines), of_lines));
  test::ExpectSameBits(
      logits_of({{"inputs", Json::array({Tensor("lines", "BYTES", {std::ssize(lines)}, lines)})},
                 {"outputs", Json::array({{{"name", "logits"}}})}}),
      of_lines);
}

INSTANTIATE_TEST_SUITE_P(Models, ServiceModelsTest, testing::ValuesIn(test::Kinds()),
                         [](const testing::TestParamInfo<test::Kind>& info) {
                           return absl::StrCat(info.param.name, info.index);
                         });

}  // namespace
}  // namespace hotrow
