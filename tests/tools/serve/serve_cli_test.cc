// `hotrow serve` and `hotrow bench-serve` as an operator runs them.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/exposition.h"
#include "base/exposition_reader.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"
#include "tests/tools/serve/serve_model.h"
#include "tools/serve/grpc_server.h"
#include "tools/serve/http_client.h"
#include "tools/serve/http_server.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60'000;

// A server that runs.
struct RunningServer {
  test::RunningProgram program;

  explicit RunningServer(const std::vector<std::string>& flags = {},
                         const std::string& model = test::ServedModelDir())
      : program({.arguments = [&] {
          std::vector<std::string> all = {HOTROW_BINARY, "serve", model, "--port=0"};
          all.insert(all.end(), flags.begin(), flags.end());
          return all;
        }()}) {
    EXPECT_TRUE(program.ReadUntil("/v2/models/dlrm\n"));
  }
};

// A port that is free now; another process might take it, which a test would see.
absl::StatusOr<int32_t> FreePort() {
  ConnectionCounts counts;
  HOTROW_ASSIGN_OR_RETURN(const auto server, HttpServer::Start({}, nullptr, &counts));
  return server->port();
}

TEST(ServeCliTest, ServesUntilItIsTold) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  HOTROW_ASSERT_OK_AND_ASSIGN(const int32_t port, FreePort());
  RunningServer server({absl::StrCat("--port=", port), "--drain_ms=1500"});
  HOTROW_ASSERT_OK_AND_ASSIGN(HttpClient client, HttpClient::Connect("127.0.0.1", port, kLongMs));
  const auto ready = [&]() -> int {
    auto reply = client.Call("GET", "/v2/health/ready", "");
    if (!reply.ok()) {  // the reply before was the last of its connection
      auto again = HttpClient::Connect("127.0.0.1", port, kLongMs);
      if (!again.ok()) return 0;
      client = *std::move(again);
      reply = client.Call("GET", "/v2/health/ready", "");
    }
    return reply.ok() ? reply->status : 0;
  };
  EXPECT_EQ(ready(), 200);
  const std::string body = test::ServedSamples::Draw(1, 20).Json();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto before,
                              client.Call("POST", "/v2/models/dlrm/infer", body));
  EXPECT_EQ(before.status, 200);

  const std::string page = test::TempDir() + "/page.html";
  const test::ProgramResult bench =
      RunHotrow({"bench-serve", absl::StrCat("127.0.0.1:", port), "--clients=1-2", "--seconds=0.05",
                 "--warm_up_seconds=0", "--keys=100", "--json", "--html=" + page});
  EXPECT_EQ(bench.exit_code, 0) << bench;
  const auto json = nlohmann::json::parse(bench.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << bench;
  EXPECT_EQ(json["model"], "dlrm");
  EXPECT_GT(json["levels"][1]["requests"], 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string html, ReadFileToString(PosixEnv(), page));
  EXPECT_THAT(html, HasSubstr("TP99.9"));
  // Keys that the model does not have.
  const test::ProgramResult refused =
      RunHotrow({"bench-serve", absl::StrCat("127.0.0.1:", port), "--clients=1", "--seconds=0.05",
                 "--keys=1000000", "--zipf=0", "--samples=50"});
  EXPECT_EQ(refused.exit_code, 2) << refused;
  EXPECT_THAT(refused.err, HasSubstr("feature \\\"user\\\""));

  server.program.Signal(SIGTERM);
  // It says so, in the last reply of a connection, and scores meanwhile.
  int status = 200;
  while ((status = ready()) == 200) std::this_thread::yield();
  EXPECT_EQ(status, 503);
  HOTROW_ASSERT_OK_AND_ASSIGN(client, HttpClient::Connect("127.0.0.1", port, kLongMs));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto after, client.Call("POST", "/v2/models/dlrm/infer", body));
  EXPECT_EQ(after.body, before.body);
  EXPECT_EQ(after.headers.at("connection"), "close");
  const test::ProgramResult result = server.program.Wait();
  EXPECT_EQ(result.exit_code, 0) << result;
}

// A closed terminal, a pipe that nobody reads any more, what a batch system warns with.
TEST(ServeCliTest, EverySignalEndsInOrder) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  for (const int signal : {SIGHUP, SIGPIPE, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU}) {
    RunningServer server({"--drain_ms=0", "--follow_ms=5"});
    server.program.Signal(signal);
    const test::ProgramResult result = server.program.Wait();
    EXPECT_EQ(result.exit_code, 0) << result;
    EXPECT_THAT(result.out, HasSubstr("Stopping"));
  }
}

// A closed terminal says it twice: by the kernel, and by the shell.
TEST(ServeCliTest, ASecondHangUpDoesNotCutRepliesOff) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  RunningServer server({"--drain_ms=300"});
  server.program.Signal(SIGHUP);
  ASSERT_TRUE(server.program.ReadUntil("Stopping\n"));
  server.program.Signal(SIGHUP);
  EXPECT_EQ(server.program.Wait().exit_code, 0);
}

// Such as `nohup`: who ignores a signal goes on ignoring it.
TEST(ServeCliTest, AHangUpThatIsIgnoredDoesNotStopTheServer) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  HOTROW_ASSERT_OK_AND_ASSIGN(const int32_t port, FreePort());
  test::RunningProgram program(
      {.arguments = {"bash", "-c", "trap '' HUP; exec \"$@\"", "x", HOTROW_BINARY, "serve",
                     test::ServedModelDir(), absl::StrCat("--port=", port), "--drain_ms=0"}});
  ASSERT_TRUE(program.ReadUntil("/v2/models/dlrm\n"));
  program.Signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  HOTROW_ASSERT_OK_AND_ASSIGN(HttpClient client, HttpClient::Connect("127.0.0.1", port, kLongMs));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, client.Call("GET", "/v2/health/ready", ""));
  EXPECT_EQ(reply.status, 200);
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait().exit_code, 0);
}

// Silent connections beyond what the process has descriptors for.
TEST(ServeCliTest, PlacesAreBoundedByDescriptors) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  HOTROW_ASSERT_OK_AND_ASSIGN(const int32_t port, FreePort());
  test::RunningProgram program(
      {.arguments = {"bash", "-c", "ulimit -n 256; exec \"$@\"", "x", HOTROW_BINARY, "serve",
                     test::ServedModelDir(), absl::StrCat("--port=", port), "--drain_ms=0"}});
  ASSERT_TRUE(program.ReadUntil("/v2/models/dlrm\n"));
  std::vector<HttpClient> silent;
  for (int i = 0; i < 260; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(HttpClient client, HttpClient::Connect("127.0.0.1", port, kLongMs));
    silent.push_back(std::move(client));
  }
  const auto begin = std::chrono::steady_clock::now();
  HOTROW_ASSERT_OK_AND_ASSIGN(HttpClient client, HttpClient::Connect("127.0.0.1", port, kLongMs));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, client.Call("GET", "/v2/health/ready", ""));
  EXPECT_EQ(reply.status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  program.Signal(SIGTERM);
  const test::ProgramResult result = program.Wait();
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_THAT(result.err, HasSubstr("connections instead of 1024"));
}

// What takes the place of a model is looked at, and where it is damaged the old one goes on.
TEST(ServeCliTest, AModelThatIsFollowedIsLookedAtAgain) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  const std::string model = test::TempDir() + "/model";
  std::filesystem::copy(test::ServedModelDir(), model, std::filesystem::copy_options::recursive);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int32_t port, FreePort());
  RunningServer server({absl::StrCat("--port=", port), "--drain_ms=0", "--follow_ms=5"}, model);
  HOTROW_ASSERT_OK_AND_ASSIGN(HttpClient client, HttpClient::Connect("127.0.0.1", port, kLongMs));
  const auto metric = [&](const std::string& name) -> double {
    const auto reply = client.Call("GET", "/metrics", "");
    if (!reply.ok()) return -1;
    const auto families = ParseExposition(reply->body);
    if (!families.ok() || !families->contains(name)) return -1;
    return families->at(name).samples.at(0).value;
  };
  while (metric("hotrow_serve_looks_total") == 0) std::this_thread::yield();
  EXPECT_EQ(metric("hotrow_serve_looks_failed_total"), 0);
  const std::string body = test::ServedSamples::Draw(1, 20).Json();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto before,
                              client.Call("POST", "/v2/models/dlrm/infer", body));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), model + "/manifest.json", "no manifest"));
  while (metric("hotrow_serve_looks_failed_total") == 0) std::this_thread::yield();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto after, client.Call("POST", "/v2/models/dlrm/infer", body));
  EXPECT_EQ(after.status, 200);
  EXPECT_EQ(after.body, before.body);
  server.program.Signal(SIGTERM);
  const test::ProgramResult result = server.program.Wait();
  EXPECT_EQ(result.exit_code, 0) << result;
}

TEST(ServeCliTest, WhatIsWrongIsSaid) {
  ExpectRefused({"bench-serve", "here"}, HasSubstr("127.0.0.1:8000"));
  ExpectRefused({"bench-serve", "127.0.0.1:1", "--seconds=1"}, HasSubstr("127.0.0.1:1"));
  if (!HttpServer::IsThere()) {
    ExpectRefused({"serve", test::ServedModelDir()}, HasSubstr("libcpp-httplib-dev"));
    return;
  }
  if (!GrpcServer::IsThere()) {
    ExpectRefused({"serve", "/nowhere", "--grpc_port=0"}, HasSubstr("libgrpc++-dev"));
  }
  ExpectRefused({"serve", "/nowhere"}, HasSubstr("/nowhere"));
  ExpectRefused({"serve", test::ServedModelDir(), "--address=here"}, HasSubstr("127.0.0.1"));
  ExpectRefused({"serve", test::ServedModelDir(), "--rows_dir=/rows"},
                HasSubstr("--rows_dir needs --memory_bytes=BYTES"));
  ExpectRefused({"serve", test::ServedModelDir(), "--batch_window_us=-1"},
                HasSubstr("batch_window_us"));
}

}  // namespace
}  // namespace hotrow
