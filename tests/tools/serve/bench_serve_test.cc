// What `hotrow bench-serve` sends, measures and shows.

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/serve/bench_bodies.h"
#include "tools/serve/bench_load.h"
#include "tools/serve/bench_report.h"
#include "tools/serve/http_server.h"
#include "tools/serve/infer_reply.h"
#include "tools/serve/score_request.h"

namespace hotrow {
namespace {

using Json = nlohmann::json;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ModelSignature Signature() {
  const TableSchema of_lines;  // which nobody parses here
  return *ModelSignature::Of({"a", "b", "c"}, 2, 1, &of_lines);
}
std::string Metadata() { return ModelMetadataJson({.name = "m"}, Signature(), {}, {}); }

absl::StatusOr<ScoreRequest> Read(const BenchBody& body) {
  auto request = ParseInferRequest(body.bytes, body.json_bytes);
  if (!request.ok()) return request.status();
  return MakeScoreRequest(&*request, Signature(), 1000);
}

TEST(BenchBodiesTest, RequestsFitTheModel) {
  for (const bool json : {false, true}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::vector<BenchBody> bodies,
        DrawBenchBodies(Metadata(), {.samples = 5, .hotness = 3, .keys = 40, .json = json}, 10));
    ASSERT_EQ(bodies.size(), 10u);
    EXPECT_NE(bodies[0].bytes, bodies[1].bytes);
    HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request, Read(bodies[3]));
    EXPECT_EQ(request.kind, ScoreKind::kSamples);
    EXPECT_EQ(request.num_samples, 5);
    EXPECT_EQ(request.bags.keys.size(), 3u * 5 * 3);
    for (const uint64_t key : request.bags.keys) EXPECT_LT(key, 40u);
    // The same bytes again.
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::vector<BenchBody> again,
        DrawBenchBodies(Metadata(), {.samples = 5, .hotness = 3, .keys = 40, .json = json}, 10));
    EXPECT_EQ(bodies[9].bytes, again[9].bytes);
  }
}

TEST(BenchBodiesTest, AUserHasCandidates) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<BenchBody> bodies,
                              DrawBenchBodies(Metadata(), {.samples = 9, .user_features = 2}, 1));
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request, Read(bodies[0]));
  EXPECT_EQ(request.kind, ScoreKind::kCandidates);
  EXPECT_EQ(request.num_samples, 9);
  EXPECT_THAT(request.user_features, ElementsAre(0, 1));
  EXPECT_THAT(request.user_dense_columns, ElementsAre(0, 1));
  EXPECT_THAT(DrawBenchBodies(Metadata(), {.user_features = 4}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 features")));
}

TEST(BenchBodiesTest, LinesAreTakenInTurn) {
  const std::vector<BenchBody> bodies = LineBenchBodies({"x", "y", "z"}, 2, 3);
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request, Read(bodies[1]));
  EXPECT_THAT(request.lines, ElementsAre("z", "x"));
}

TEST(BenchBodiesTest, WhatIsNoMetadataIsNamed) {
  for (const char* const text :
       {"", "[]", "{}", R"({"inputs":[1]})", R"({"inputs":[{"name":"a"}]})",
        R"({"inputs":[{"name":"a","datatype":"FP32","shape":[-1]}]})"}) {
    EXPECT_FALSE(DrawBenchBodies(text, {}, 1).ok()) << text;
  }
}

BenchReport Report() {
  BenchReport report = {.server = "127.0.0.1:8000", .model = "dl<rm", .samples = 10};
  report.facts = {{"bodies", "JSON"}};
  report.levels.push_back({.clients = 1,
                           .seconds = 2,
                           .requests = 500,
                           .tp50_ms = 0.5,
                           .tp90_ms = 1,
                           .tp99_ms = 20,
                           .tp999_ms = 30,
                           .max_ms = 31});
  report.levels.push_back({.clients = 8, .seconds = 2, .requests = 0, .refusals = {{429, 7}}});
  return report;
}

TEST(BenchReportTest, TextHasALineForEachLevel) {
  EXPECT_THAT(BenchText(Report()),
              AllOf(HasSubstr("10 samples a request, bodies JSON\n"),
                    HasSubstr("       1      250.0         2500     0.500     1.000     20.00     "
                              "30.00     31.00  none\n"),
                    HasSubstr("       8        0.0"), HasSubstr("7 x 429\n")));
}

TEST(BenchReportTest, JsonHasAllNumbers) {
  const Json json = Json::parse(BenchJson(Report()));
  EXPECT_EQ(json["levels"][0]["qps"], 250);
  EXPECT_EQ(json["levels"][0]["tp99.9_ms"], 30);
  EXPECT_EQ(json["levels"][1]["refusals"]["429"], 7);
}

TEST(BenchReportTest, ThePageIsFilled) {
  const std::string page = BenchHtml(Report());
  EXPECT_THAT(page, AllOf(HasSubstr("dl&lt;rm"), HasSubstr("TP99.9"), HasSubstr("7 x 429"),
                          Not(HasSubstr("{{")), Not(HasSubstr("nan")), Not(HasSubstr("<script"))));
  BenchReport nothing;
  EXPECT_THAT(BenchHtml(nothing), Not(HasSubstr("nan")));
}

// Over sockets, against a server of ours that refuses every third request.
TEST(BenchLoadTest, CountsAnswersAndRefusals) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  std::atomic<int64_t> calls{0};
  ConnectionCounts counts;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto server, HttpServer::Start(
                                                     {},
                                                     [&](const HttpRequest&) {
                                                       return HttpReply{
                                                           .status = ++calls % 3 == 0 ? 429 : 200,
                                                           .body = "{\"error\":\"full\"}"};
                                                     },
                                                     &counts));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<BenchLevel> levels,
                              RunBenchLoad({.port = server->port(),
                                            .path = "/x",
                                            .clients = {1, 3},
                                            .seconds_ms = 60,
                                            .warm_up_ms = 0},
                                           {{.bytes = "{}", .json_bytes = 2}}));
  ASSERT_EQ(levels.size(), 2u);
  int64_t all = 0;
  for (const BenchLevel& level : levels) {
    EXPECT_GT(level.requests, 0);
    EXPECT_EQ(level.first_refusal, "{\"error\":\"full\"}");
    EXPECT_GT(level.tp50_ms, 0);
    EXPECT_LE(level.tp50_ms, level.tp90_ms);
    EXPECT_LE(level.tp90_ms, level.tp99_ms);
    EXPECT_LE(level.tp99_ms, level.tp999_ms);
    EXPECT_LE(level.tp999_ms, level.max_ms);
    all += level.requests + level.refusals.at(429);
  }
  EXPECT_EQ(all, calls);
  EXPECT_EQ(counts.accepted.value(), 4);
  const int32_t port = server->port();
  server->Stop(0);
  EXPECT_THAT(RunBenchLoad({.port = port, .path = "/x"}, {{.bytes = "{}"}}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connect")));
}

}  // namespace
}  // namespace hotrow
