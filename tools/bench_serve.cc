#include <cstdint>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/json/json_text.h"
#include "tools/calibration/calibration.h"
#include "tools/command.h"
#include "tools/serve/bench_bodies.h"
#include "tools/serve/bench_load.h"
#include "tools/serve/bench_report.h"
#include "tools/serve/http_client.h"

namespace hotrow {
namespace {

// Different requests that are sent in turn.
constexpr int64_t kBodies = 256;
constexpr int64_t kLinesBytesMax = int64_t{1} << 30;
constexpr size_t kShownBytes = 300;  // of what a server said, in an error

// "2026-11-23 22:47 UTC".
std::string UtcNow() {
  const time_t now = ::time(nullptr);
  tm parts = {};
  ::gmtime_r(&now, &parts);
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d UTC", parts.tm_year + 1900, parts.tm_mon + 1,
                         parts.tm_mday, parts.tm_hour, parts.tm_min);
}

struct BenchServeOptions {
  BenchLoadOptions load;
  BenchBodiesOptions bodies;
  std::string model;
  std::string lines_file, html_file;
  bool json = false;
  double seconds = 3, warm_up_seconds = 0.5;
};

void AddFlags(BenchServeOptions* options, FlagSet* flags) {
  flags->AddSizes("clients", &options->load.clients,
                  "clients at once, a level after another: each sends its next request when it has "
                  "the reply to its last");
  flags->AddReal("seconds", 0.001, 86'400, &options->seconds, "of each level");
  flags->AddReal("warm_up_seconds", 0, 86'400, &options->warm_up_seconds,
                 "before each level, not counted");
  flags->AddString("model_name", "NAME", &options->model, "the model's name in paths");
  flags->DescribeDefault("the server's only one");
  flags->AddInt("samples", 1, 1 << 20, &options->bodies.samples,
                "samples of a request; candidates with --user_features");
  flags->AddInt("user_features", 0, 1 << 20, &options->bodies.user_features,
                "so many of the model's features, and the dense ones, are given once, as one "
                "user's; 0: all are the samples'");
  flags->AddInt("hotness", 0, 1 << 16, &options->bodies.hotness, "keys of a feature of a sample");
  flags->AddInt("keys", 1, int64_t{1} << 48, &options->bodies.keys, "keys are drawn below this");
  flags->AddReal("zipf", 0, 32, &options->bodies.zipf,
                 "how popular few keys are: exponent of their law; 0: all alike");
  flags->AddSwitch("json_bodies", &options->bodies.json, "JSON instead of binary tensors");
  flags->AddString("lines", "FILE", &options->lines_file,
                   "lines of text, without header and labels, instead of drawn keys");
  flags->AddSwitch("json", &options->json, "prints JSON instead of a table");
  flags->AddString("html", "FILE", &options->html_file, "writes a page with plots, too");
}

// The server's only model.
absl::StatusOr<std::string> OnlyModel(HttpClient* client) {
  HOTROW_ASSIGN_OR_RETURN(const HttpClient::Reply reply,
                          client->Call("POST", "/v2/repository/index", "{}"));
  const auto json = ParseJson<nlohmann::json>(reply.body);
  if (reply.status == 200 && json.ok() && json->is_array() && json->size() == 1 &&
      (*json)[0].is_object() && (*json)[0].value("name", nlohmann::json()).is_string()) {
    return (*json)[0]["name"].get<std::string>();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the server does not say that it has one model: ", reply.body.substr(0, kShownBytes),
      "; name it by --model_name"));
}

absl::StatusOr<std::string> Metadata(const std::string& model, HttpClient* client) {
  HOTROW_ASSIGN_OR_RETURN(const HttpClient::Reply reply,
                          client->Call("GET", absl::StrCat("/v2/models/", model), ""));
  if (reply.status == 200) return reply.body;
  return absl::NotFoundError(
      absl::StrCat("metadata of the model: ", reply.body.substr(0, kShownBytes)));
}

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(PosixEnv(), path, kLinesBytesMax));
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  if (lines.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": it has no lines"));
  return lines;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  BenchServeOptions options;
  options.load.clients = {1, 2, 4, 8, 16, 32};
  FlagSet flags("hotrow bench-serve");
  AddFlags(&options, &flags);
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  const size_t colon = operands[0].rfind(':');
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(operands[0].substr(colon + 1), &options.load.port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", operands[0], "\": expected an address and a port, as 127.0.0.1:8000"));
  }
  options.load.address = operands[0].substr(0, colon);
  if (options.load.address.starts_with('[') && options.load.address.ends_with(']')) {
    options.load.address = options.load.address.substr(1, options.load.address.size() - 2);
  }
  options.load.seconds_ms = static_cast<int64_t>(options.seconds * 1000);
  options.load.warm_up_ms = static_cast<int64_t>(options.warm_up_seconds * 1000);

  HOTROW_ASSIGN_OR_RETURN(
      HttpClient client,
      HttpClient::Connect(options.load.address, options.load.port, options.load.timeout_ms));
  if (options.model.empty()) {
    HOTROW_ASSIGN_OR_RETURN(options.model, OnlyModel(&client));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string metadata, Metadata(options.model, &client));
  options.load.path = absl::StrCat("/v2/models/", options.model, "/infer");
  BenchReport report = {
      .server = operands[0], .model = options.model, .samples = options.bodies.samples};
  std::vector<BenchBody> bodies;
  if (options.lines_file.empty()) {
    HOTROW_ASSIGN_OR_RETURN(bodies, DrawBenchBodies(metadata, options.bodies, kBodies));
    report.facts = {{"bodies", options.bodies.json ? "JSON" : "binary"},
                    {"hotness", absl::StrCat(options.bodies.hotness)},
                    {"keys", absl::StrCat(options.bodies.keys)},
                    {"zipf", absl::StrCat(options.bodies.zipf)}};
    if (options.bodies.user_features > 0) {
      report.facts.emplace_back("user features", absl::StrCat(options.bodies.user_features));
    }
  } else {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(options.lines_file));
    bodies = LineBenchBodies(lines, options.bodies.samples, kBodies);
    report.facts = {{"bodies", "lines"}};
  }
  report.facts.emplace_back("bytes of a request", absl::StrCat(bodies[0].bytes.size()));
  report.facts.emplace_back("clients on", MachineName());
  report.facts.emplace_back("hotrow", VersionText());
  report.facts.emplace_back("at", UtcNow());
  HOTROW_ASSIGN_OR_RETURN(report.levels, RunBenchLoad(options.load, bodies));
  const std::string text = options.json ? BenchJson(report) : BenchText(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!options.html_file.empty()) {
    HOTROW_RETURN_IF_ERROR(WriteFileAtomically(PosixEnv(), options.html_file, BenchHtml(report)));
  }
  for (const BenchLevel& level : report.levels) {
    if (level.requests > 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "no request of ", level.clients,
        " clients was answered with scores: ", level.first_refusal.substr(0, kShownBytes)));
  }
  return kExitGood;
}

}  // namespace

const Command kBenchServeCommand = {
    .name = "bench-serve",
    .operands = "SERVER",
    .summary = "measures a server: requests a second and their times",
    .details =
        "SERVER is the address and port of a running hotrow serve, as 127.0.0.1:8000. Prints a\n"
        "line for each number of clients: requests a second, the times that 50, 90, 99 and 99.9 %\n"
        "of the requests did not exceed, and refusals by their HTTP status.\n",
    .run = Run};

}  // namespace hotrow
