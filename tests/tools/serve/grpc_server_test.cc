#include "tools/serve/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/tcp_socket.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"
#include "tests/tools/serve/serve_model.h"
#include "tools/serve/grpc_messages_impl.h"
#include "tools/serve/inference.grpc.pb.h"

namespace hotrow {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using test::ExpectSameBits;
using test::ServedSamples;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Stub = inference::GRPCInferenceService::Stub;

const char* const kFeatures[] = {"user", "item", "tags"};

std::shared_ptr<grpc::Channel> Connect(int32_t port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each channel has a connection
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

template <typename Request, typename Response>
grpc::Status Call(Stub* stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return (stub->*method)(&context, request, response);
}

void ExpectError(const grpc::Status& status, grpc::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(words));
}

struct Server {
  std::shared_ptr<const Scorer> scorer = test::OpenServedModel();
  std::unique_ptr<ScoringService> service;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<Stub> stub;

  explicit Server(ServiceOptions options = {}, HttpServerOptions bounds = {}) {
    if (options.timeout_ms == 1000) options.timeout_ms = 600'000;  // longer than any case takes
    auto made = ScoringService::Create(options, [this] { return scorer; });
    HOTROW_EXPECT_OK(made);
    service = *std::move(made);
    auto started = GrpcServer::Start(bounds, service.get());
    HOTROW_EXPECT_OK(started);
    server = *std::move(started);
    stub = inference::GRPCInferenceService::NewStub(Connect(server->port()));
  }

  // Of /v2/models/dlrm/stats.
  int64_t Count(const char* name) const {
    HttpRequest request = {.method = "GET", .path = "/v2/models/dlrm/stats"};
    request.begin_ns = request.read_ns = NowNanos();
    const auto json = nlohmann::json::parse(service->Handle(request).body);
    const auto& stats = json["model_stats"][0];
    return stats.contains(name) ? stats[name].get<int64_t>()
                                : stats["inference_stats"][name]["count"].get<int64_t>();
  }
};

ModelInferRequest::InferInputTensor* AddInput(ModelInferRequest* request, const std::string& name,
                                              const char* datatype,
                                              const std::vector<int64_t>& shape) {
  auto* const input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  for (const int64_t size : shape) input->add_shape(size);
  return input;
}

template <typename Number>
void AddRaw(const std::vector<Number>& numbers, ModelInferRequest* request) {
  request->add_raw_input_contents(reinterpret_cast<const char*>(numbers.data()),
                                  numbers.size() * sizeof(Number));
}

// All features of samples, as raw bytes or as numbers.
ModelInferRequest RequestOf(const ServedSamples& samples, bool raw) {
  ModelInferRequest request;
  request.set_model_name("dlrm");
  request.set_id("7");
  for (size_t f = 0; f < samples.bags.size(); ++f) {
    std::vector<uint64_t> keys;
    std::vector<int32_t> lengths;
    for (const auto& bag : samples.bags[f]) {
      keys.insert(keys.end(), bag.begin(), bag.end());
      lengths.push_back(static_cast<int32_t>(bag.size()));
    }
    auto* const values = AddInput(&request, kFeatures[f], "UINT64", {std::ssize(keys)});
    if (raw) {
      AddRaw(keys, &request);
    } else {
      values->mutable_contents()->mutable_uint64_contents()->Add(keys.begin(), keys.end());
    }
    auto* const input =
        AddInput(&request, absl::StrCat(kFeatures[f], ":lengths"), "INT32", {samples.batch_size});
    if (raw) {
      AddRaw(lengths, &request);
    } else {
      input->mutable_contents()->mutable_int_contents()->Add(lengths.begin(), lengths.end());
    }
  }
  auto* const dense = AddInput(&request, "dense", "FP32", {samples.batch_size, 2});
  if (raw) {
    AddRaw(samples.dense, &request);
  } else {
    dense->mutable_contents()->mutable_fp32_contents()->Add(samples.dense.begin(),
                                                            samples.dense.end());
  }
  return request;
}

// Of the output at a position, in whichever form.
std::vector<float> FloatsOf(const ModelInferResponse& response, int output) {
  if (response.raw_output_contents_size() == 0) {
    const auto& floats = response.outputs(output).contents().fp32_contents();
    return {floats.begin(), floats.end()};
  }
  const std::string& bytes = response.raw_output_contents(output);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(GrpcServerTest, TellsWhatHttpTells) {
  Server server;
  Stub* const stub = server.stub.get();
  const std::string version = absl::StrCat(server.scorer->step());
  inference::ServerLiveResponse live;
  ASSERT_TRUE(Call(stub, &Stub::ServerLive, {}, &live).ok());
  EXPECT_TRUE(live.live());
  inference::ServerMetadataResponse about;
  ASSERT_TRUE(Call(stub, &Stub::ServerMetadata, {}, &about).ok());
  EXPECT_EQ(about.name(), "hotrow");
  EXPECT_EQ(about.extensions(3), "statistics");

  inference::ModelMetadataRequest which;
  which.set_name("dlrm");
  which.set_version(version);
  inference::ModelMetadataResponse model;
  ASSERT_TRUE(Call(stub, &Stub::ModelMetadata, which, &model).ok());
  EXPECT_EQ(model.versions(0), version);
  ASSERT_EQ(model.inputs_size(), 4);
  EXPECT_EQ(model.inputs(3).name(), "dense");
  EXPECT_EQ(model.inputs(3).datatype(), "FP32");
  EXPECT_THAT(model.inputs(3).shape(), ElementsAre(-1, 2));
  EXPECT_EQ(model.outputs(1).name(), "logits");
  inference::ModelConfigRequest config_of;
  config_of.set_name("dlrm");
  inference::ModelConfigResponse config;
  ASSERT_TRUE(Call(stub, &Stub::ModelConfig, config_of, &config).ok());
  EXPECT_EQ(config.config().backend(), "hotrow");
  EXPECT_EQ(config.config().input(0).data_type(), inference::TYPE_INT64);
  inference::RepositoryIndexResponse index;
  ASSERT_TRUE(Call(stub, &Stub::RepositoryIndex, {}, &index).ok());
  ASSERT_EQ(index.models_size(), 1);
  EXPECT_EQ(index.models(0).name(), "dlrm");
  EXPECT_EQ(index.models(0).state(), "READY");
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("dlrm");
  inference::RepositoryModelLoadResponse loaded;
  ExpectError(Call(stub, &Stub::RepositoryModelLoad, load, &loaded),
              grpc::StatusCode::INVALID_ARGUMENT, "--follow_ms");
  inference::RepositoryModelUnloadResponse unloaded;
  ExpectError(Call(stub, &Stub::RepositoryModelUnload, {}, &unloaded),
              grpc::StatusCode::INVALID_ARGUMENT, "--follow_ms");

  // Names that are parts of paths.
  for (const char* const name : {"", "other", "stats", "dlrm/ready", "dlrm/versions/1", "."}) {
    which.set_name(name);
    which.set_version("");
    ExpectError(Call(stub, &Stub::ModelMetadata, which, &model), grpc::StatusCode::NOT_FOUND,
                "there is \"dlrm\"");
  }
  which.set_name("dlrm");
  for (const std::string& wrong : {std::string("x"), version + "/ready"}) {
    which.set_version(wrong);
    ExpectError(Call(stub, &Stub::ModelMetadata, which, &model), grpc::StatusCode::NOT_FOUND,
                "it is at " + version);
  }
  which.set_name(std::string(100'000, 'x'));
  ExpectError(Call(stub, &Stub::ModelMetadata, which, &model), grpc::StatusCode::INVALID_ARGUMENT,
              "a message of 100");

  inference::ServerReadyResponse ready;
  inference::ModelReadyRequest ready_of;
  ready_of.set_name("dlrm");
  inference::ModelReadyResponse model_ready;
  for (const bool is : {true, false}) {
    server.service->SetReady(is);
    ASSERT_TRUE(Call(stub, &Stub::ServerReady, {}, &ready).ok());
    EXPECT_EQ(ready.ready(), is);
    ASSERT_TRUE(Call(stub, &Stub::ModelReady, ready_of, &model_ready).ok());
    EXPECT_EQ(model_ready.ready(), is);
  }
}

TEST(GrpcServerTest, ScoresHaveTheBitsOfTheScorer) {
  Server server;
  const ServedSamples samples = ServedSamples::Draw(1, 40);
  const std::vector<float> expected = samples.Logits(*server.scorer);
  for (const bool raw : {true, false}) {
    ModelInferResponse response;
    const grpc::Status status =
        Call(server.stub.get(), &Stub::ModelInfer, RequestOf(samples, raw), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.model_name(), "dlrm");
    EXPECT_EQ(response.model_version(), absl::StrCat(server.scorer->step()));
    EXPECT_EQ(response.id(), "7");
    EXPECT_EQ(response.raw_output_contents_size(), raw ? 2 : 0);
    ASSERT_EQ(response.outputs_size(), 2);
    EXPECT_EQ(response.outputs(0).name(), "scores");
    EXPECT_EQ(response.outputs(0).datatype(), "FP32");
    EXPECT_THAT(response.outputs(0).shape(), ElementsAre(40, 1));
    ExpectSameBits(FloatsOf(response, 1), expected);
  }

  // Lines, as texts of both forms, and one output of the two.
  for (const bool raw : {true, false}) {
    ModelInferRequest request;
    request.set_model_name("dlrm");
    request.set_model_version(absl::StrCat(server.scorer->step()));
    request.add_outputs()->set_name("logits");
    auto* const input = AddInput(&request, "lines", "BYTES", {40});
    std::string bytes;
    for (const std::string& line : samples.lines) {
      const auto length = static_cast<uint32_t>(line.size());
      bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
      bytes += line;
      if (!raw) input->mutable_contents()->add_bytes_contents(line);
    }
    if (raw) request.add_raw_input_contents(bytes);
    ModelInferResponse response;
    const grpc::Status status = Call(server.stub.get(), &Stub::ModelInfer, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.outputs_size(), 1);
    ExpectSameBits(FloatsOf(response, 0), samples.LineLogits(*server.scorer));
  }
  inference::ModelStatisticsResponse statistics;
  ASSERT_TRUE(Call(server.stub.get(), &Stub::ModelStatistics, {}, &statistics).ok());
  EXPECT_EQ(statistics.model_stats(0).inference_count(), 160u);
  EXPECT_EQ(statistics.model_stats(0).inference_stats().success().count(), 4u);
  EXPECT_GT(statistics.model_stats(0).inference_stats().compute_output().ns(), 0u);
}

TEST(GrpcServerTest, WhatIsWrongIsNamed) {
  Server server;
  const ServedSamples samples = ServedSamples::Draw(1, 3);
  const ModelInferRequest raw = RequestOf(samples, true);
  const ModelInferRequest typed = RequestOf(samples, false);
  const auto refused = [&](const ModelInferRequest& good, const std::string& words,
                           const std::function<void(ModelInferRequest*)>& change,
                           grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    ModelInferRequest request = good;
    change(&request);
    ModelInferResponse response;
    ExpectError(Call(server.stub.get(), &Stub::ModelInfer, request, &response), code, words);
  };
  using R = ModelInferRequest*;
  refused(
      raw, "no model \"x\"; there is \"dlrm\"", [](R r) { r->set_model_name("x"); },
      grpc::StatusCode::NOT_FOUND);
  refused(
      raw, "no version \"x\"", [](R r) { r->set_model_version("x"); }, grpc::StatusCode::NOT_FOUND);
  refused(raw, "6 raw_input_contents, but 7 inputs",
          [](R r) { r->mutable_raw_input_contents()->RemoveLast(); });
  refused(raw, "tensor \"user\": it has contents beside raw_input_contents",
          [](R r) { r->mutable_inputs(0)->mutable_contents()->add_uint64_contents(1); });
  refused(raw, "tensor \"user\": 23 binary bytes, expected 3 elements of 8 bytes",
          [](R r) { r->mutable_raw_input_contents(0)->pop_back(); });
  refused(typed, "tensor \"user\": 4 elements in uint64_contents, expected 3 by the shape [3]",
          [](R r) { r->mutable_inputs(0)->mutable_contents()->add_uint64_contents(1); });
  refused(typed, "tensor \"user\": it has uint64_contents, but INT64 comes in int64_contents",
          [](R r) { r->mutable_inputs(0)->set_datatype("INT64"); });
  refused(typed, "tensor \"user\": it has bool_contents, but UINT64 comes in uint64_contents",
          [](R r) { r->mutable_inputs(0)->mutable_contents()->add_bool_contents(true); });
  refused(typed, "but FP16 comes in raw_input_contents",
          [](R r) { r->mutable_inputs(6)->set_datatype("FP16"); });
  refused(typed, "tensor \"user\": 0 elements in uint64_contents, expected 3",
          [](R r) { r->mutable_inputs(0)->clear_contents(); });
  refused(typed, "datatype \"FP64\"", [](R r) { r->mutable_inputs(0)->set_datatype("FP64"); });
  for (const auto& good : {raw, typed}) {
    refused(good, "tensor \"user\": its shape has 0 sizes, expected 1 to 8",
            [](R r) { r->mutable_inputs(0)->clear_shape(); });
    refused(good, "tensor \"user\": shape[0] is -3",
            [](R r) { r->mutable_inputs(0)->set_shape(0, -3); });
    refused(good, "more than 2^63 - 1 elements", [](R r) {
      r->mutable_inputs(0)->set_shape(0, int64_t{1} << 62);
      r->mutable_inputs(0)->add_shape(4);
    });
    refused(good, "4611686018427387904",
            [](R r) { r->mutable_inputs(0)->set_shape(0, int64_t{1} << 62); });
    refused(good, "tensor \"user\": it is there twice",
            [](R r) { r->mutable_inputs(2)->set_name("user"); });
    refused(good, "tensor \"size\": the model has no such input",
            [](R r) { r->mutable_inputs(1)->set_name("size"); });
    refused(good, "\"x\": the model has none", [](R r) { r->add_outputs()->set_name("x"); });
    refused(good, "\"id\" has 1025 bytes", [](R r) { r->set_id(std::string(1025, 'i')); });
    refused(good, "\"shared_memory_region\" is not supported", [](R r) {
      (*r->mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("s");
    });
    refused(good, "\"timeout\"",
            [](R r) { (*r->mutable_parameters())["timeout"].set_int64_param(-1); });
    refused(
        good, "time was over",
        [](R r) { (*r->mutable_parameters())["timeout"].set_uint64_param(1); },
        grpc::StatusCode::DEADLINE_EXCEEDED);
    refused(good, "expected at most 4096", [](R r) {
      for (int i = 0; i < 5000; ++i) r->add_outputs();
    });
  }
  EXPECT_EQ(server.Count("success"), 0);

  grpc::ClientContext context;
  const grpc::Slice garbage("\xff\xff\xff\xff");
  ModelInferResponse response;
  const auto channel = Connect(server.server->port());
  ExpectError(grpc::internal::BlockingUnaryCall(
                  channel.get(),
                  grpc::internal::RpcMethod("/inference.GRPCInferenceService/ModelInfer",
                                            grpc::internal::RpcMethod::NORMAL_RPC, channel),
                  &context, grpc::ByteBuffer(&garbage, 1), &response),
              grpc::StatusCode::INVALID_ARGUMENT, "no inference.ModelInferRequest");
}

// Messages with damaged bytes are refused, or what they say fits the model.
TEST(GrpcServerTest, AnyBytesAreReadOrRefused) {
  const auto signature = ModelSignature::Of({"user", "item", "tags"}, 2, 1, nullptr);
  HOTROW_ASSERT_OK(signature);
  RandomStream random(5, RandomPurpose::kTest);
  int read = 0;
  for (int i = 0; i < 600; ++i) {
    std::string bytes = RequestOf(ServedSamples::Draw(1, 2), i % 2 == 0).SerializeAsString();
    for (uint64_t n = random.Below(4); n > 0; --n) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    if (random.Below(4) == 0) bytes.resize(random.Below(bytes.size() + 1));
    ModelInferRequest message;
    if (!message.ParseFromString(bytes)) continue;
    absl::StatusOr<InferRequest> request = internal::ReadInferMessage(message);
    absl::Status status = request.status();
    if (status.ok()) status = MakeScoreRequest(&*request, *signature, 64).status();
    if (status.ok()) {
      ++read;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_LT(status.message().size(), 2000u);
  }
  EXPECT_GT(read, 50);
}

TEST(GrpcServerTest, WhatIsTooMuchIsRefused) {
  Server server({}, {.connections_max = 2, .body_bytes_max = 4000});
  Stub* const stub = server.stub.get();
  ModelInferResponse response;
  ASSERT_TRUE(
      Call(stub, &Stub::ModelInfer, RequestOf(ServedSamples::Draw(1, 5), true), &response).ok());
  ExpectError(
      Call(stub, &Stub::ModelInfer, RequestOf(ServedSamples::Draw(1, 500), true), &response),
      grpc::StatusCode::RESOURCE_EXHAUSTED, "4000");
  {
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    ModelInferRequest zeros;
    zeros.set_model_name(std::string(2000, 'x'));
    EXPECT_EQ(stub->ModelInfer(&context, zeros, &response).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }

  // Connections: one more than there are places for, and again when one is gone.
  const auto lives = [&](const std::shared_ptr<grpc::Channel>& channel) {
    inference::ServerLiveResponse live;
    const auto other = inference::GRPCInferenceService::NewStub(channel);
    return Call(other.get(), &Stub::ServerLive, {}, &live).ok();
  };
  auto second = Connect(server.server->port());
  EXPECT_TRUE(lives(second));
  EXPECT_FALSE(lives(Connect(server.server->port())));
  EXPECT_GE(server.service->connections().refused.value(), 1);
  second.reset();
  while (!lives(Connect(server.server->port()))) std::this_thread::yield();
}

TEST(GrpcServerTest, ADeadlineIsTheRequestsTime) {
  Server server({.batches = {.window_us = 1'000'000}});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  ModelInferResponse response;
  EXPECT_EQ(server.stub->ModelInfer(&context, RequestOf(ServedSamples::Draw(1, 3), true), &response)
                .error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  while (server.Count("fail") == 0) std::this_thread::yield();
  server.server->Stop(0);
  server.service->Stop();
  EXPECT_EQ(server.Count("execution_count"), 0);  // nobody would have had its scores
}

// A call that waits for its batch has the only place, and is answered though the server ends.
TEST(GrpcServerTest, ProbesAreAnsweredWhileCallsHaveAllPlaces) {
  Server server({.batches = {.window_us = 1'000'000}}, {.connections_max = 1});
  Stub* const stub = server.stub.get();
  const ModelInferRequest request = RequestOf(ServedSamples::Draw(1, 3), true);
  grpc::Status first;
  std::thread caller([&] {
    ModelInferResponse response;
    do {
      first = Call(stub, &Stub::ModelInfer, request, &response);
    } while (first.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  });
  ModelInferRequest brief = request;
  (*brief.mutable_parameters())["timeout"].set_int64_param(1);
  ModelInferResponse response;
  grpc::Status status;
  do {
    status = Call(stub, &Stub::ModelInfer, brief, &response);
  } while (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectError(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "--max_connections");
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(Call(stub, &Stub::ServerReady, {}, &ready).ok());
  server.server->Stop(60'000);
  caller.join();
  EXPECT_TRUE(first.ok()) << first.error_message();
  EXPECT_EQ(Call(stub, &Stub::ServerReady, {}, &ready).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(GrpcServerTest, ServesBesideHttpUntilItIsTold) {
  if (!HttpServer::IsThere()) GTEST_SKIP() << "this build has no HTTP server";
  HOTROW_ASSERT_OK_AND_ASSIGN(TcpListener listener, ListenTcp("127.0.0.1", 0, 1));
  const int32_t port = listener.port;
  listener.socket = Descriptor();
  test::RunningProgram program(
      {.arguments = {HOTROW_BINARY, "serve", test::ServedModelDir(), "--port=0",
                     absl::StrCat("--grpc_port=", port), "--drain_ms=1500"}});
  ASSERT_TRUE(program.ReadUntil(absl::StrCat("Serving gRPC at 127.0.0.1:", port, "\n")));
  const auto stub = inference::GRPCInferenceService::NewStub(Connect(port));
  inference::ServerReadyResponse ready;
  ASSERT_TRUE(Call(stub.get(), &Stub::ServerReady, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());
  ASSERT_TRUE(program.ReadUntil("/v2/models/dlrm\n"));
  program.Signal(SIGTERM);
  while (ready.ready()) ASSERT_TRUE(Call(stub.get(), &Stub::ServerReady, {}, &ready).ok());
  ModelInferResponse response;
  EXPECT_TRUE(
      Call(stub.get(), &Stub::ModelInfer, RequestOf(ServedSamples::Draw(1, 5), true), &response)
          .ok());
  // The end does not wait for this client, which keeps its connection.
  const int64_t begin_ns = NowNanos();
  const test::ProgramResult result = program.Wait();
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_LT(NowNanos() - begin_ns, 8'000'000'000);
}

}  // namespace
}  // namespace hotrow
