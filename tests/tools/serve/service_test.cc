#include "tools/serve/service.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/exposition.h"
#include "base/exposition_reader.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/serve/serve_model.h"

namespace hotrow {
namespace {

using Json = nlohmann::json;
using test::ExpectSameBits;
using test::ServedSamples;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kInfer[] = "/v2/models/dlrm/infer";

std::unique_ptr<ScoringService> Serve(
    ServiceOptions options = {},
    const std::shared_ptr<const Scorer>& scorer = test::OpenServedModel()) {
  if (options.timeout_ms == 1000) options.timeout_ms = 600'000;  // longer than any case takes
  auto service = ScoringService::Create(options, [scorer] { return scorer; });
  HOTROW_EXPECT_OK(service);
  return service.ok() ? *std::move(service) : nullptr;
}

HttpRequest Request(const std::string& method, const std::string& path, std::string body = "") {
  HttpRequest request = {
      .method = method, .path = path, .body = std::move(body), .client = "127.0.0.1:5"};
  request.begin_ns = request.read_ns = NowNanos();
  return request;
}

Json Get(ScoringService* service, const std::string& path, int status = 200) {
  const HttpReply reply = service->Handle(Request("GET", path));
  EXPECT_EQ(reply.status, status) << path << ": " << reply.body;
  EXPECT_EQ(reply.content_type, "application/json");
  const Json json = Json::parse(reply.body, nullptr, false);
  EXPECT_TRUE(json.is_object()) << reply.body;
  return json;
}

std::string ErrorOf(const HttpReply& reply, int status) {
  EXPECT_EQ(reply.status, status) << reply.body;
  const Json json = Json::parse(reply.body, nullptr, false);
  if (!json.is_object() || !json.contains("error")) return "no error: " + reply.body;
  return json["error"];
}

std::vector<float> Floats(const Json& json) {
  std::vector<float> out;
  for (const Json& value : json) out.push_back(static_cast<float>(value.get<double>()));
  return out;
}

TEST(ServiceTest, TellsWhatItServes) {
  const auto service = Serve();
  const Json server = Get(service.get(), "/v2");
  EXPECT_EQ(server["name"], "hotrow");
  EXPECT_EQ(server["extensions"],
            Json({"binary_tensor_data", "model_configuration", "model_repository", "statistics"}));
  const Json root = Get(service.get(), "/");
  EXPECT_EQ(root["name"], "hotrow");
  EXPECT_EQ(root["version"], server["version"]);
  EXPECT_EQ(root["model"], "dlrm");
  EXPECT_THAT(root["endpoints"].dump(), HasSubstr("\"POST /v2/models/dlrm/infer\""));
  EXPECT_EQ(Get(service.get(), "/v2/health/live"), Json({{"live", true}}));
  EXPECT_EQ(Get(service.get(), "/v2/health/ready"), Json({{"ready", true}}));
  EXPECT_EQ(Get(service.get(), "/v2/models/dlrm/ready")["ready"], true);
  const Json model = Get(service.get(), "/v2/models/dlrm/");
  EXPECT_EQ(model["name"], "dlrm");
  const std::string version = model["versions"][0];
  EXPECT_EQ(root["model_version"], version);
  EXPECT_EQ(Get(service.get(), "/v2/models/dlrm/versions/" + version), model);
  EXPECT_EQ(model["inputs"].dump(), R"([{"datatype":"INT64","name":"user","shape":[-1,-1]},)"
                                    R"({"datatype":"INT64","name":"item","shape":[-1,-1]},)"
                                    R"({"datatype":"INT64","name":"tags","shape":[-1,-1]},)"
                                    R"({"datatype":"FP32","name":"dense","shape":[-1,2]}])");
  EXPECT_EQ(model["outputs"][0]["name"], "scores");
  EXPECT_EQ(model["outputs"][1]["shape"], Json({-1, 1}));
  EXPECT_EQ(model["parameters"]["lines_input"], "lines");
  EXPECT_EQ(model["parameters"]["tasks"], Json({"click"}));
  EXPECT_EQ(Get(service.get(), "/v2/models/dlrm/config")["input"][3]["data_type"], "TYPE_FP32");

  const HttpReply index = service->Handle(Request("POST", "/v2/repository/index", "{}"));
  EXPECT_EQ(Json::parse(index.body),
            Json::array({{{"name", "dlrm"}, {"version", version}, {"state", "READY"}}}));
  for (const char* const path :
       {"/v2/repository/models/dlrm/load", "/v2/repository/models/other/unload"}) {
    EXPECT_THAT(ErrorOf(service->Handle(Request("POST", path)), 400),
                AllOf(HasSubstr("one, \"dlrm\""), HasSubstr("--follow_ms")));
    ErrorOf(service->Handle(Request("GET", path)), 405);
  }

  service->SetReady(false);
  EXPECT_EQ(Get(service.get(), "/v2/health/ready", 503), Json({{"ready", false}}));
  EXPECT_EQ(Get(service.get(), "/v2/models/dlrm/ready", 503)["ready"], false);
  EXPECT_EQ(Get(service.get(), "/v2/health/live"), Json({{"live", true}}));
}

TEST(ServiceTest, WhatIsNotThereIsNamed) {
  const auto service = Serve({.model_name = "shop"});
  const auto ask = [&](const char* method, const char* path, int status) {
    return ErrorOf(service->Handle(Request(method, path)), status);
  };
  for (const char* const path :
       {"", "*", "/v1", "/v2x", "/v2/health", "/v2/models", "/v2/models/", "/metrics/x",
        "/v2/health/live/x", "//", "/v2/repository", "/v2/repository/models/shop"}) {
    EXPECT_THAT(ask("GET", path, 404), HasSubstr("/v2/models/NAME/infer")) << path;
  }
  EXPECT_THAT(ask("GET", "/v2/models/dlrm", 404),
              HasSubstr("no model \"dlrm\"; there is \"shop\""));
  EXPECT_THAT(ask("GET", "/v2/models//ready", 404), HasSubstr("there is \"shop\""));
  EXPECT_THAT(ask("GET", "/v2/models/shop/versions", 404), HasSubstr("it is at "));
  EXPECT_THAT(ask("GET", "/v2/models/shop/versions/9999/ready", 404), HasSubstr("\"9999\""));
  EXPECT_THAT(ask("GET", "/v2/models/shop/generate", 404), HasSubstr("/infer"));
  EXPECT_THAT(ask("GET", "/v2/models/shop/infer", 405), HasSubstr("POST"));
  EXPECT_THAT(ask("GET", "/v2/models/dlrm/stats", 404), HasSubstr("there is \"shop\""));
  for (const char* const path : {"/", "/v2/models/shop", "/v2/models/stats"}) {
    EXPECT_THAT(ask("POST", path, 405), HasSubstr("GET, HEAD"));
  }
  EXPECT_THAT(ask("DELETE", "/metrics", 405), HasSubstr("GET"));
  EXPECT_THAT(ask("GET", "/\xff\x01\x1b[2J", 404), HasSubstr("\\x"));
}

TEST(ServiceTest, ScoresHaveTheBitsOfTheScorer) {
  const auto scorer = test::OpenServedModel();
  const auto service = Serve({}, scorer);
  const ServedSamples samples = ServedSamples::Draw(1, 40);
  const std::vector<float> expected = samples.Logits(*scorer);
  std::vector<float> probabilities;
  for (const float logit : expected) probabilities.push_back(ScoreProbability(logit));

  const HttpReply reply = service->Handle(Request("POST", kInfer, samples.Json()));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["model_name"], "dlrm");
  EXPECT_EQ(json["model_version"], absl::StrCat(scorer->step()));
  EXPECT_EQ(json["outputs"][0]["name"], "scores");
  EXPECT_EQ(json["outputs"][0]["shape"], Json({40, 1}));
  ExpectSameBits(Floats(json["outputs"][0]["data"]), probabilities);
  ExpectSameBits(Floats(json["outputs"][1]["data"]), expected);

  HttpRequest binary = Request("POST", kInfer);
  int64_t json_bytes = 0;
  binary.body = samples.Binary(&json_bytes);
  binary.inference_header_length = absl::StrCat(json_bytes);
  const HttpReply answer = service->Handle(binary);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.content_type, "application/octet-stream");
  ASSERT_EQ(answer.headers.size(), 1u);
  EXPECT_EQ(answer.headers[0].first, "Inference-Header-Content-Length");
  const size_t head = std::stoul(answer.headers[0].second);
  EXPECT_EQ(Json::parse(answer.body.substr(0, head))["id"], "b");
  ASSERT_EQ(answer.body.size(), head + 2 * 40 * sizeof(float));
  std::vector<float> found(80);
  std::memcpy(found.data(), answer.body.data() + head, 80 * sizeof(float));
  ExpectSameBits({found.begin(), found.begin() + 40}, probabilities);
  ExpectSameBits({found.begin() + 40, found.end()}, expected);

  const HttpReply lines = service->Handle(Request("POST", kInfer, samples.LinesJson()));
  ASSERT_EQ(lines.status, 200) << lines.body;
  ExpectSameBits(Floats(Json::parse(lines.body)["outputs"][1]["data"]),
                 samples.LineLogits(*scorer));
}

// The categorical columns of lines as texts, in JSON and behind it.
TEST(ServiceTest, TextsHaveTheBitsOfLines) {
  const auto scorer = test::OpenServedModel();
  const auto service = Serve({}, scorer);
  const ServedSamples samples = ServedSamples::Draw(3, 40);
  const std::vector<std::string> names = {"user", "item", "tags"};
  std::vector<std::vector<std::string>> texts(3);
  std::vector<float> dense;
  for (const std::string& line : samples.lines) {  // price,age,user,item,tags
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    dense.push_back(static_cast<float>(std::log(std::stod(fields[0]) + 1)));  // log1p
    dense.push_back(std::stof(fields[1]));
    for (size_t f = 0; f < 3; ++f) texts[f].push_back(fields[2 + f]);
  }
  const std::vector<float> expected = samples.LineLogits(*scorer);
  for (const bool binary : {false, true}) {
    std::string tail;
    Json inputs = Json::array({{{"name", "dense"},
                                {"datatype", "FP32"},
                                {"shape", {samples.batch_size, 2}},
                                {"data", dense}}});
    for (size_t f = 0; f < 3; ++f) {
      Json input = {{"name", names[f]}, {"datatype", "BYTES"}, {"shape", {samples.batch_size}}};
      const size_t before = tail.size();
      for (const std::string& text : texts[f]) {
        const auto length = static_cast<uint32_t>(text.size());
        tail.append(reinterpret_cast<const char*>(&length), sizeof(length));
        tail += text;
      }
      if (binary) {
        input["parameters"]["binary_data_size"] = tail.size() - before;
      } else {
        input["data"] = texts[f];
      }
      inputs.push_back(input);
    }
    HttpRequest request = Request("POST", kInfer, Json{{"inputs", inputs}}.dump());
    request.inference_header_length = absl::StrCat(request.body.size());
    if (binary) request.body += tail;
    const HttpReply reply = service->Handle(request);
    ASSERT_EQ(reply.status, 200) << reply.body;
    ExpectSameBits(Floats(Json::parse(reply.body)["outputs"][1]["data"]), expected);
  }
}

TEST(ServiceTest, OutputsAreThoseThatWereAskedFor) {
  const auto service = Serve();
  Json body = Json::parse(ServedSamples::Draw(1, 3).Json());
  body["outputs"] = Json::parse(R"([{"name":"logits"}])");
  HttpReply reply = service->Handle(Request("POST", kInfer, body.dump()));
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["outputs"].size(), 1u);
  EXPECT_EQ(Json::parse(reply.body)["outputs"][0]["name"], "logits");
  body["outputs"] = Json::parse(R"([{"name":"ctr"}])");
  reply = service->Handle(Request("POST", kInfer, body.dump()));
  EXPECT_THAT(ErrorOf(reply, 400), HasSubstr("output \"ctr\""));
}

TEST(ServiceTest, MalformedRequestsAreNamed) {
  const auto service = Serve({.samples_max = 8});
  const auto post = [&](const std::string& body) {
    return ErrorOf(service->Handle(Request("POST", kInfer, body)), 400);
  };
  EXPECT_THAT(post(""), HasSubstr("JSON"));
  EXPECT_THAT(post("{\"inputs\":[]}"), HasSubstr("tensor \"user\": it is missing"));
  EXPECT_THAT(post(ServedSamples::Draw(1, 9).Json()), HasSubstr("at most 8"));
  ServedSamples bad = ServedSamples::Draw(1, 3);
  bad.bags[0][2] = {1000};
  EXPECT_THAT(post(bad.Json()), HasSubstr("feature \"user\", sample 2: key 1000"));
  ServedSamples short_lines = ServedSamples::Draw(1, 3);
  short_lines.lines[1] = "1,2";
  EXPECT_THAT(post(short_lines.LinesJson()), HasSubstr("line 2"));
  HttpRequest request = Request("POST", kInfer, "{}");
  for (const char* const length : {"", "x", "-1", "3", "99999999999999999999"}) {
    request.inference_header_length = length;
    EXPECT_THAT(ErrorOf(service->Handle(request), 400),
                HasSubstr("Inference-Header-Content-Length"));
  }
}

TEST(ServiceTest, DeadlinesAreKept) {
  const auto service = Serve({.timeout_ms = 10});
  HttpRequest late = Request("POST", kInfer, ServedSamples::Draw(1, 3).Json());
  late.begin_ns -= int64_t{11} * 1'000'000;  // as long did its bytes take
  EXPECT_THAT(ErrorOf(service->Handle(late), 504), HasSubstr("time was over"));
  // A request may ask for less, not for more.
  const auto patient = Serve();
  Json body = Json::parse(ServedSamples::Draw(1, 3).Json());
  body["parameters"] = {{"timeout", 10}};
  HttpRequest own = Request("POST", kInfer, body.dump());
  own.begin_ns -= 11'000;
  EXPECT_THAT(ErrorOf(patient->Handle(own), 504), HasSubstr("time was over"));
  body["parameters"] = {{"timeout", int64_t{1} << 62}};
  late.body = body.dump();
  EXPECT_THAT(ErrorOf(service->Handle(late), 504), HasSubstr("time was over"));
}

// Many clients at once: each gets the scores of its own samples, in any batch.
TEST(ServiceTest, RequestsThatAreJoinedGetTheirOwnScores) {
  const auto scorer = test::OpenServedModel();
  const auto service = Serve({.batches = {.instances = 2, .window_us = 500}}, scorer);
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (uint64_t i = 0; i < 20; ++i) {
        const ServedSamples samples = ServedSamples::Draw(100 * c + i, 1 + (c + i) % 5);
        const bool lines = i % 4 == 3;
        const HttpReply reply =
            service->Handle(Request("POST", kInfer, lines ? samples.LinesJson() : samples.Json()));
        ASSERT_EQ(reply.status, 200) << reply.body;
        const std::vector<float> expected =
            lines ? samples.LineLogits(*scorer) : samples.Logits(*scorer);
        const std::vector<float> found = Floats(Json::parse(reply.body)["outputs"][1]["data"]);
        ASSERT_EQ(found.size(), expected.size());
        // Batches of other sizes may differ in the last bits.
        for (size_t s = 0; s < found.size(); ++s) ASSERT_NEAR(found[s], expected[s], 1e-4);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(ServiceTest, AStoppedServiceSaysSo) {
  const auto service = Serve();
  service->Stop();
  const HttpReply reply =
      service->Handle(Request("POST", kInfer, ServedSamples::Draw(1, 3).Json()));
  EXPECT_THAT(ErrorOf(reply, 503), HasSubstr("stopping"));
  EXPECT_THAT(reply.headers, ElementsAre(std::pair<std::string, std::string>("Retry-After", "1")));
  EXPECT_EQ(Get(service.get(), "/v2/health/live"), Json({{"live", true}}));
}

// The next batch is scored by what the source gives then.
TEST(ServiceTest, TheScorerMayBeReplaced) {
  std::shared_ptr<const Scorer> scorer = test::OpenServedModel();
  std::mutex mutex;
  auto service = ScoringService::Create({}, [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return scorer;
  });
  HOTROW_ASSERT_OK(service);
  const std::string body = ServedSamples::Draw(1, 3).Json();
  const HttpReply before = (*service)->Handle(Request("POST", kInfer, body));
  const std::weak_ptr<const Scorer> old = scorer;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    scorer = test::OpenServedModel();
  }
  EXPECT_TRUE(old.expired());
  const HttpReply after = (*service)->Handle(Request("POST", kInfer, body));
  EXPECT_EQ(after.status, 200);
  EXPECT_EQ(after.body, before.body);
}

TEST(ServiceTest, SlowRequestsAreLogged) {
  std::vector<std::string> lines;
  ServiceOptions options = {.slow_ms = 50};
  options.log = [&](std::string_view line) { lines.emplace_back(line); };
  const auto service = Serve(options);
  HttpRequest request = Request("POST", kInfer, ServedSamples::Draw(1, 3).Json());
  EXPECT_EQ(service->Handle(request).status, 200);
  const size_t fast = lines.size();
  request.begin_ns -= int64_t{60} * 1'000'000;
  request.path = "/v2/models/dlrm/infer";
  EXPECT_EQ(service->Handle(request).status, 200);
  ASSERT_EQ(lines.size(), fast + 1);
  EXPECT_THAT(lines.back(), AllOf(StartsWith("slow: POST \"/v2/models/dlrm/infer\" 200, "),
                                  HasSubstr("3 samples in a batch of 3, from 127.0.0.1:5")));
}

TEST(ServiceTest, MetricsAreAnExposition) {
  const auto service = Serve();
  for (int i = 0; i < 3; ++i) {
    service->Handle(Request("POST", kInfer, ServedSamples::Draw(1, 5).Json()));
  }
  service->Handle(Request("POST", kInfer, "{"));
  const HttpReply reply = service->Handle(Request("GET", "/metrics"));
  EXPECT_EQ(reply.content_type, kExpositionContentType);
  HOTROW_ASSERT_OK_AND_ASSIGN(const MetricFamilies all, ParseExposition(reply.body));
  EXPECT_EQ(all.at("hotrow_serve_samples_total").samples[0].value, 15);
  EXPECT_EQ(all.at("hotrow_serve_batches_total").samples[0].value, 3);
  for (const MetricSample& sample : all.at("hotrow_serve_replies_total").samples) {
    EXPECT_EQ(sample.value, sample.labels.at("code") == "200" ? 3 : 1);
  }
}

TEST(ServiceTest, StatisticsAreThoseOfTriton) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const auto service = Serve();
  Json none = Get(service.get(), "/v2/models/stats")["model_stats"];
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0]["last_inference"], 0);
  EXPECT_EQ(none[0]["inference_stats"]["success"], Json({{"count", 0}, {"ns", 0}}));
  const int64_t before = now();
  for (int i = 0; i < 3; ++i) {
    service->Handle(Request("POST", kInfer, ServedSamples::Draw(1, 5).Json()));
  }
  service->Handle(Request("POST", kInfer, "{"));
  ServedSamples bad = ServedSamples::Draw(1, 3);
  bad.bags[0][2] = {1000};
  service->Handle(Request("POST", kInfer, bad.Json()));

  const std::string version = Get(service.get(), "/v2/models/dlrm")["versions"][0];
  const Json all = Get(service.get(), "/v2/models/dlrm/versions/" + version + "/stats");
  EXPECT_EQ(all, Get(service.get(), "/v2/models/dlrm/stats"));
  ASSERT_EQ(all["model_stats"].size(), 1u);
  const Json& model = all["model_stats"][0];
  EXPECT_EQ(model["name"], "dlrm");
  EXPECT_EQ(model["version"], version);
  EXPECT_EQ(model["inference_count"], 15);
  EXPECT_EQ(model["execution_count"], 3);
  EXPECT_EQ(model["batch_stats"], Json::array());
  // A second, since the clock may be set meanwhile.
  EXPECT_GE(model["last_inference"], before - 1000);
  EXPECT_LE(model["last_inference"], now() + 1000);
  const Json& stats = model["inference_stats"];
  EXPECT_EQ(stats.size(), 8u);
  int64_t parts_ns = 0;
  for (const char* const part : {"queue", "compute_input", "compute_infer", "compute_output"}) {
    EXPECT_EQ(stats[part]["count"], 3) << part;
    EXPECT_GT(stats[part]["ns"], 0) << part;
    parts_ns += stats[part]["ns"].get<int64_t>();
  }
  EXPECT_EQ(stats["success"]["count"], 3);
  EXPECT_GE(stats["success"]["ns"], parts_ns);
  EXPECT_EQ(stats["fail"]["count"], 2);
  EXPECT_GT(stats["fail"]["ns"], 0);
  for (const char* const cache : {"cache_hit", "cache_miss"}) {
    EXPECT_EQ(stats[cache], Json({{"count", 0}, {"ns", 0}}));
  }
}

// Every path stands in the page; so does every metric with its type and its help, and no other
// does.
TEST(ServiceTest, ThePageHasEachPathAndMetric) {
  const auto text =
      ReadFileToString(PosixEnv(), std::string(HOTROW_SOURCE_DIR) + "/docs/serving_http.md");
  HOTROW_ASSERT_OK(text);
  const auto service = Serve({.model_name = "NAME"});
  const Json root = Get(service.get(), "/");
  for (const Json& endpoint : root["endpoints"]) {
    EXPECT_THAT(*text, HasSubstr(absl::StrCat("\n| `", endpoint.get<std::string>(), "` |")));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const MetricFamilies all,
                              ParseExposition(service->Handle(Request("GET", "/metrics")).body));
  std::set<std::string> names;
  for (const auto& [name, family] : all) {
    names.insert(name);
    EXPECT_THAT(*text, HasSubstr(absl::StrCat("\n| `", name, "` | ", family.kind, " | ",
                                              family.help, " |\n")));
  }
  constexpr char kParts[] = "abcdefghijklmnopqrstuvwxyz_";
  for (size_t at = text->find("`hotrow_serve_"); at != std::string::npos;
       at = text->find("`hotrow_serve_", at + 1)) {
    const std::string name = text->substr(at + 1, text->find_first_not_of(kParts, at + 1) - at - 1);
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(ServiceTest, BadOptionsAreNamed) {
  const auto scorer = test::OpenServedModel();
  const auto create = [&](const ServiceOptions& options) {
    return ScoringService::Create(options, [&] { return scorer; }).status();
  };
  EXPECT_THAT(create({.model_name = "a/b"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model_name")));
  EXPECT_THAT(create({.samples_max = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("samples_max")));
  EXPECT_THAT(create({.timeout_ms = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout_ms")));
  EXPECT_THAT(create({.batches = {.instances = 0}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("instances")));
}

}  // namespace
}  // namespace hotrow
