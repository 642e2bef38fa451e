#include "tools/serve/grpc_server.h"

#include <google/protobuf/util/json_util.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/machine_limits.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "tools/serve/acceptor.h"
#include "tools/serve/grpc_messages_impl.h"
#include "tools/serve/inference.pb.h"

namespace hotrow {
namespace {

constexpr std::string_view kServicePath = "/inference.GRPCInferenceService/";
// A message that asks for something else than scores.
constexpr int64_t kSmallMessageBytesMax = 64 << 10;
// Calls beside those that score: a probe finds a thread.
constexpr int kProbeCalls = 16;
constexpr int kStreamsMax = 128;  // calls of a connection at once; more wait at the client
// What a connection takes beside its messages.
constexpr int64_t kConnectionBytes = 64 << 10;
// A connection is then told to end, so that clients spread over servers, and what does not come to
// an end has one.
constexpr int kConnectionAgeMillis = 300'000;
// At the end connections are closed when no call was there at so many looks.
constexpr int kQuietLooks = 20;
constexpr std::chrono::milliseconds kLook(10);

grpc::Status GrpcStatus(const absl::Status& status) {
  // Both number errors alike.
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 400:
      return absl::StatusCode::kInvalidArgument;
    case 404:
      return absl::StatusCode::kNotFound;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

int Bounded(int64_t number) {
  return static_cast<int>(std::min<int64_t>(number, std::numeric_limits<int>::max()));
}

grpc::ByteBuffer BytesOf(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

// The calls, as bytes: gRPC's generated code would make a message of any bytes that come, on any
// number of threads.
class Calls : public grpc::Service {
 public:
  Calls(ScoringService* service, int64_t infer_calls_max)
      : service_(*service), infer_calls_max_(infer_calls_max) {
    using namespace inference;  // NOLINT
    Add("ModelInfer", [this](grpc::ServerContext* context, const grpc::ByteBuffer& bytes,
                             grpc::ByteBuffer* out) { return Infer(context, bytes, out); });
    AddQuestion<ServerLiveRequest, ServerLiveResponse>(
        "ServerLive", [](const auto&) { return Get("/v2/health/live"); });
    AddQuestion<ServerReadyRequest, ServerReadyResponse>(
        "ServerReady", [](const auto&) { return Get("/v2/health/ready"); });
    AddQuestion<ModelReadyRequest, ModelReadyResponse>(
        "ModelReady", [this](const auto& r) { return Get(ModelPath(r, "/ready")); });
    AddQuestion<ServerMetadataRequest, ServerMetadataResponse>(
        "ServerMetadata", [](const auto&) { return Get("/v2"); });
    AddQuestion<ModelMetadataRequest, ModelMetadataResponse>(
        "ModelMetadata", [this](const auto& r) { return Get(ModelPath(r, "")); });
    AddQuestion<ModelConfigRequest, ModelConfigResponse>(
        "ModelConfig", [this](const auto& r) { return Get(ModelPath(r, "/config"), "config"); });
    AddQuestion<ModelStatisticsRequest, ModelStatisticsResponse>(
        "ModelStatistics", [this](const auto& r) {
          return Get(r.name().empty() ? "/v2/models/stats" : ModelPath(r, "/stats"));
        });
    AddQuestion<RepositoryIndexRequest, RepositoryIndexResponse>(
        "RepositoryIndex", [](const auto&) {
          return Question{"POST", "/v2/repository/index", "models"};
        });
    AddQuestion<RepositoryModelLoadRequest, RepositoryModelLoadResponse>(
        "RepositoryModelLoad", [](const auto&) {
          return Question{"POST", "/v2/repository/models/NAME/load", ""};
        });
    AddQuestion<RepositoryModelUnloadRequest, RepositoryModelUnloadResponse>(
        "RepositoryModelUnload", [](const auto&) {
          return Question{"POST", "/v2/repository/models/NAME/unload", ""};
        });
  }

  int64_t answering() const { return answering_; }

 private:
  using Handler = std::function<absl::Status(grpc::ServerContext* context,
                                             const grpc::ByteBuffer& bytes, grpc::ByteBuffer* out)>;
  // What a call asks, as HTTP does, and the member of its answer that the JSON is; empty: all of
  // it.
  struct Question {
    const char* method;
    std::string path;
    const char* member;
  };

  struct Place {
    std::atomic<int64_t>& taken;
    const int64_t before = taken.fetch_add(1);
    ~Place() { taken.fetch_sub(1); }
  };

  static Question Get(std::string path, const char* member = "") {
    return {"GET", std::move(path), member};
  }

  // rest: "/ready".
  template <typename Request>
  std::string ModelPath(const Request& request, const char* rest) const {
    const auto part = [](const std::string& text) {
      return absl::StrReplaceAll(text, {{"/", "%2F"}});
    };
    std::string path = absl::StrCat("/v2/models/", part(request.name()));
    if (!request.version().empty()) absl::StrAppend(&path, "/versions/", part(request.version()));
    // With another name any path is refused, but for /v2/models/stats.
    return path + (request.name() == service_.model_name() ? rest : "/ready");
  }

  void Add(const char* name, Handler handler) {
    const auto call = [this, handler = std::move(handler)](Calls*, grpc::ServerContext* context,
                                                           const grpc::ByteBuffer* bytes,
                                                           grpc::ByteBuffer* out) {
      // Its client has gone before the message was there.
      if (!bytes->Valid()) return grpc::Status::CANCELLED;
      const Place place = {answering_};
      return GrpcStatus(Caught("answering a call", [&] { return handler(context, *bytes, out); }));
    };
    paths_.push_back(absl::StrCat(std::string(kServicePath), name));
    AddMethod(new grpc::internal::RpcServiceMethod(
        paths_.back().c_str(), grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<Calls, grpc::ByteBuffer, grpc::ByteBuffer>(call,
                                                                                        this)));
  }

  template <typename Request, typename Response>
  void AddQuestion(const char* name, std::function<Question(const Request&)> question) {
    Add(name,
        [this, question = std::move(question)](grpc::ServerContext* context,
                                               const grpc::ByteBuffer& bytes,
                                               grpc::ByteBuffer* out) -> absl::Status {
          Request request;
          HOTROW_RETURN_IF_ERROR(Read(bytes, kSmallMessageBytesMax, &request));
          Response response;
          HOTROW_RETURN_IF_ERROR(Ask(question(request), context->peer(), &response));
          *out = BytesOf(response);
          return absl::OkStatus();
        });
  }

  static absl::Status Read(const grpc::ByteBuffer& bytes, int64_t bytes_max,
                           google::protobuf::Message* message) {
    const auto size = static_cast<int64_t>(bytes.Length());
    if (size > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message of ", size, " bytes; this call takes at most ", bytes_max));
    }
    grpc::ByteBuffer copy(bytes);  // shares them
    grpc::ProtoBufferReader reader(&copy);
    if (message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the bytes are no ", message->GetTypeName(), " as protobuf writes it"));
  }

  absl::Status Ask(const Question& question, std::string client,
                   google::protobuf::Message* response) {
    HttpRequest request = {
        .method = question.method, .path = question.path, .client = std::move(client)};
    request.begin_ns = request.read_ns = NowNanos();
    const HttpReply reply = service_.Handle(request);
    if (!reply.error.empty()) return absl::Status(CodeOf(reply.status), reply.error);
    std::string json = reply.body;
    if (*question.member != 0) json = absl::StrCat("{\"", question.member, "\":", json, "}");
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;  // what the protocol has by HTTP alone
    if (google::protobuf::util::JsonStringToMessage(json, response, options).ok()) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("no ", response->GetTypeName(), " in ", json));
  }

  absl::Status Infer(grpc::ServerContext* context, const grpc::ByteBuffer& bytes,
                     grpc::ByteBuffer* out) {
    HttpRequest request = {.method = "gRPC",
                           .path = "ModelInfer",
                           .bytes_elsewhere = static_cast<int64_t>(bytes.Length()),
                           .client = context->peer()};
    request.begin_ns = request.read_ns = NowNanos();
    const Place place = {infer_calls_};
    if (place.before >= infer_calls_max_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(place.before,
                       " calls are being answered, as many as --max_connections "
                       "allows; try again later"));
    }
    ScoringService::InferCall call;
    // A deadline that is too far away for gRPC comes as any time, before 1970, too.
    const auto left = std::max(context->deadline(), std::chrono::system_clock::time_point()) -
                      std::chrono::system_clock::now();
    call.timeout_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    call.parse = [&](const ModelVersion& model) -> absl::StatusOr<InferRequest> {
      inference::ModelInferRequest message;
      HOTROW_RETURN_IF_ERROR(Read(bytes, std::numeric_limits<int64_t>::max(), &message));
      const std::string& version = message.model_version();
      HOTROW_RETURN_IF_ERROR(
          CheckModel(model, message.model_name(),
                     version.empty() ? std::nullopt : std::optional<std::string_view>(version)));
      return internal::ReadInferMessage(message);
    };
    call.reply = [&](const InferRequest& infer, const ModelVersion& model, int32_t num_tasks,
                     std::span<const float> logits) -> absl::Status {
      *out = BytesOf(internal::MakeInferMessage(infer, model, num_tasks, logits));
      return absl::OkStatus();
    };
    return service_.Infer(request, call);
  }

  ScoringService& service_;
  const int64_t infer_calls_max_;
  std::atomic<int64_t> infer_calls_{0};
  std::atomic<int64_t> answering_{0};
  std::list<std::string> paths_;  // which gRPC points to
};

// The sockets that gRPC has. It does not tell when it closes one, but then its number is that of
// no socket or of another one. Of one thread.
class Sockets {
 public:
  Sockets(int64_t places, ConnectionCounts* counts) : places_(places), counts_(*counts) {}
  ~Sockets() { counts_.open.fetch_sub(std::ssize(inodes_), std::memory_order_relaxed); }

  // False: there is no place for it.
  bool Add(int fd) {
    if (std::ssize(inodes_) >= places_) Look();
    if (std::ssize(inodes_) >= places_) {
      counts_.refused.Add(1);
      return false;
    }
    const bool is_new = inodes_.insert_or_assign(fd, InodeOf(fd)).second;
    counts_.open.fetch_add(is_new ? 1 : 0, std::memory_order_relaxed);
    counts_.accepted.Add(1);
    return true;
  }
  void Look() {
    const size_t gone =
        std::erase_if(inodes_, [](const auto& at) { return InodeOf(at.first) != at.second; });
    counts_.open.fetch_sub(static_cast<int64_t>(gone), std::memory_order_relaxed);
  }

 private:
  // 0: none is open.
  static ino_t InodeOf(int fd) {
    struct stat status = {};
    return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
  }

  const int64_t places_;
  ConnectionCounts& counts_;
  std::map<int, ino_t> inodes_;
};

class AcceptingGrpcServer : public GrpcServer {
 public:
  AcceptingGrpcServer(const HttpServerOptions& options, ScoringService* service)
      : calls_(service, options.connections_max),
        sockets_(DescriptorPlaces(options.connections_max, 0, options.servers),
                 &service->connections()) {}
  ~AcceptingGrpcServer() override { Stop(0); }

  absl::Status Begin(const HttpServerOptions& options, int64_t timeout_ms) {
    grpc::ResourceQuota quota("hotrow serve");
    quota.Resize(
        static_cast<size_t>(options.bodies_bytes_max + options.connections_max * kConnectionBytes));
    const int pollers = std::max(2, UsableProcessors());
    quota.SetMaxThreads(options.connections_max + kProbeCalls + pollers);
    grpc::ServerBuilder builder;
    builder.SetResourceQuota(quota);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, pollers);
    builder.SetMaxReceiveMessageSize(Bounded(options.body_bytes_max));
    // What a compressed message becomes has no limit.
    for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
      builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
    }
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Bounded(options.transfer_ms));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Bounded(options.idle_ms));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionAgeMillis);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               Bounded(timeout_ms + options.transfer_ms));
    builder.RegisterService(&calls_);
    // gRPC's own accepting ends for good where descriptors are short (CVE-2023-4785), and has no
    // bound.
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    connections_ = builder.experimental().AddExternalConnectionAcceptor(
        Type::FROM_FD, grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC starts no server; see its log");
    HOTROW_ASSIGN_OR_RETURN(acceptor_, Acceptor::Start(options.address, options.port,
                                                       {.serve = [this](int fd) { Serve(fd); },
                                                        .starved = [] {},
                                                        .look = [this] { sockets_.Look(); }}));
    return absl::OkStatus();
  }

  int32_t port() const override { return acceptor_->port(); }

  void Stop(int64_t grace_ms) override {
    if (acceptor_ != nullptr) acceptor_->Stop();
    if (server_ == nullptr || std::exchange(stopped_, true)) return;
    // gRPC also waits for clients that are silent, which nobody else does once no call is there.
    std::atomic<bool> has_ended = false;
    absl::StatusOr<std::thread> ending = StartThread("the end of a gRPC server", [&] {
      for (int quiet = 0; quiet < kQuietLooks;) {
        std::this_thread::sleep_for(kLook);
        if (has_ended) return;
        quiet = calls_.answering() == 0 ? quiet + 1 : 0;
      }
      grpc_server_cancel_all_calls(server_->c_server());
    });
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
    has_ended = true;
    if (ending.ok()) ending->join();
    server_->Wait();
  }

 private:
  void Serve(int fd) {
    if (!sockets_.Add(fd)) {
      ::close(fd);
      return;
    }
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    connections_->HandleNewConnection(&connection);
  }

  Calls calls_;
  Sockets sockets_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  bool stopped_ = false;
};

}  // namespace

bool GrpcServer::IsThere() { return true; }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const HttpServerOptions& options,
                                                              ScoringService* service) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto out = std::make_unique<AcceptingGrpcServer>(options, service);
  HOTROW_RETURN_IF_ERROR(out->Begin(options, service->timeout_ms()));
  return out;
}

}  // namespace hotrow
