#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/machine_limits.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "base/tcp_socket.h"
#include "base/thread.h"
#include "models/serving/live_scorer.h"
#include "models/serving/scorer.h"
#include "tools/command.h"
#include "tools/scorer_flags.h"
#include "tools/serve/grpc_server.h"
#include "tools/serve/http_server.h"
#include "tools/serve/service.h"

namespace hotrow {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr int64_t kMillisMax = int64_t{1} << 31;
constexpr int32_t kDefaultPort = 8000;
// How often the log hears of a model that is followed.
constexpr timespec kTellEvery = {.tv_sec = 1, .tv_nsec = 0};
// How often a server looks whether its model has been read.
constexpr timespec kLookWhileReading = {.tv_sec = 0, .tv_nsec = 10'000'000};
// How long what reads a model may take to its end, which comes at the next row.
constexpr std::chrono::milliseconds kStopWait(500);

struct ServeOptions {
  ScorerOptions scorer;
  ServiceOptions service;
  HttpServerOptions http = {.port = kDefaultPort};
  int32_t grpc_port = -1;  // -1: none
  int64_t drain_ms = 1000;
  int64_t follow_ms = 0;
};

void AddFlags(ServeOptions* options, FlagSet* flags) {
  flags->Group("The server");
  flags->Add("port", IntFlag(&options->http.port, 0, 65535), "where it listens; 0: any free port");
  flags->Add("grpc_port", IntFlag(&options->grpc_port, -1, 65535),
             "where it speaks the same protocol by gRPC; 0: any free port; -1: nowhere");
  flags->AddString("address", "ADDRESS", &options->http.address,
                   "where it listens, in numbers: 127.0.0.1 for this machine alone, 0.0.0.0 for "
                   "whoever reaches it; there is no password and no encryption");
  flags->AddString("model_name", "NAME", &options->service.model_name, "the model's name in paths");
  flags->DescribeDefault("the model's own, as dlrm");
  flags->Add("max_connections", IntFlag(&options->http.connections_max, 1, 1 << 20),
             "connections at once; one more takes the place of the one that is silent longest");
  flags->AddBytes("max_body_bytes", &options->http.body_bytes_max,
                  "the largest body of a request; one that is larger gets 413");
  flags->AddBytes("max_bodies_bytes", &options->http.bodies_bytes_max,
                  "memory for the bodies of all requests; one for which there is none gets 429");
  flags->AddInt("transfer_ms", 1, kMillisMax, &options->http.transfer_ms,
                "how long a client may take to send a request, and to take its reply");
  flags->AddInt("idle_ms", 1, kMillisMax, &options->http.idle_ms,
                "how long a connection may be silent between two requests");
  flags->AddInt("drain_ms", 0, kMillisMax, &options->drain_ms,
                "after SIGTERM: how long requests are still taken while /v2/health/ready says no");
  flags->AddInt("slow_ms", 0, kMillisMax, &options->service.slow_ms,
                "requests that take longer are told on stderr; 0: none");
  flags->Group("Batches");
  BatcherOptions* const batches = &options->service.batches;
  flags->Add("instances", IntFlag(&batches->instances, 0, 1024),
             "threads that score, each a batch at a time");
  flags->DescribeDefault("one for each thread of the machine");
  flags->AddInt("batch_window_us", 0, 1'000'000, &batches->window_us,
                "how long a request waits for others to be scored with; 0: each is scored alone, "
                "so that its bits depend on nobody else");
  flags->AddInt("max_batch_size", 1, 1 << 24, &options->scorer.max_batch_size,
                "samples that are scored together, and at which a batch waits no longer");
  flags->AddInt("max_queue", 1, 1 << 20, &batches->queue_max,
                "requests that may wait; one more gets 429");
  flags->AddInt("timeout_ms", 1, kMillisMax, &options->service.timeout_ms,
                "from a request's first byte to its scores; one that takes longer gets 504");
  flags->AddInt("max_samples", 1, 1 << 24, &options->service.samples_max,
                "samples or candidates of a request");
  flags->Group("The model");
  flags->AddInt("follow_ms", 0, kMillisMax, &options->follow_ms,
                "how often MODEL is looked at for deltas and newer models, which are then scored "
                "with; what is refused is told on stderr, and the model before it goes on. Both "
                "must find room in --memory_bytes while a whole model takes the place of another. "
                "0: never");
}

// What a server scores with: one model, or one that is followed.
struct Served {
  std::unique_ptr<LiveScorer> live;  // null: it is not followed
  ScorerSource source;
};

absl::StatusOr<Served> Open(const ServeOptions& options) {
  Served out;
  if (options.follow_ms == 0) {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Scorer> opened, Scorer::Open(options.scorer));
    out.source = [scorer = std::shared_ptr<const Scorer>(std::move(opened))] { return scorer; };
    return out;
  }
  HOTROW_ASSIGN_OR_RETURN(
      out.live, LiveScorer::Open({.scorer = options.scorer,
                                  .poll_interval = std::chrono::milliseconds(options.follow_ms)}));
  out.source = [live = out.live.get()] { return live->Current(); };
  return out;
}

// Tells the log when another step is served, and when something is refused, once each.
class FollowLog {
 public:
  FollowLog(const LiveScorer* live, const std::function<void(std::string_view)>& log)
      : live_(live), log_(log) {
    if (live_ != nullptr) step_ = live_->status().step;
  }
  void Look() {
    if (live_ == nullptr) return;
    const LiveScorerStatus status = live_->status();
    if (status.step != step_) log_(absl::StrCat("the model is at step ", status.step));
    step_ = status.step;
    const std::string refused(status.last.message());
    if (refused != refused_ && !refused.empty()) log_(absl::StrCat("refused: ", refused));
    refused_ = refused;
  }

 private:
  const LiveScorer* const live_;
  const std::function<void(std::string_view)>& log_;
  int64_t step_ = 0;
  std::string refused_;
};

std::string UtcTime() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc = {};
  ::gmtime_r(&now.tv_sec, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                         now.tv_nsec / kNanosPerMilli);
}

void SayStopping() {
  std::printf("Stopping\n");
  std::fflush(stdout);
}

// What a model is read for has gone, so that nothing of the reading is of use to anyone.
[[noreturn]] void ExitAtOnce() { ::_exit(kExitGood); }

// Opens the model on another thread, which ends where this one gets a signal. Null: it got one.
absl::StatusOr<std::unique_ptr<Served>> OpenUnlessStopped(const ServeOptions& options,
                                                          const sigset_t& signals) {
  std::promise<absl::StatusOr<Served>> promise;
  std::future<absl::StatusOr<Served>> opened = promise.get_future();
  const auto open = [&options] { return Open(options); };
  HOTROW_ASSIGN_OR_RETURN(std::thread thread, StartThread("reading a model", [&] {
                            promise.set_value(Caught("reading a model", open));
                          }));
  bool stopped = false;
  while (!stopped && opened.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    stopped = sigtimedwait(&signals, nullptr, &kLookWhileReading) > 0;
  }
  if (stopped) {
    SayStopping();
    *options.scorer.stop = true;
    if (opened.wait_for(kStopWait) != std::future_status::ready) ExitAtOnce();
  }
  thread.join();
  if (stopped) return nullptr;
  HOTROW_ASSIGN_OR_RETURN(Served served, opened.get());
  return std::make_unique<Served>(std::move(served));
}

// Ends the follower. Where it reads something that does not end soon, the process ends.
void StopFollowing(std::unique_ptr<LiveScorer> live) {
  if (live == nullptr) return;
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  absl::StatusOr<std::thread> watch = StartThread("the end of a server", [ended] {
    std::this_thread::sleep_for(kStopWait);
    if (!*ended) ExitAtOnce();
  });
  if (watch.ok()) watch->detach();
  live.reset();
  *ended = true;
}

absl::StatusOr<int> Serve(ServeOptions options) {
  // Before the model is read, which may take minutes.
  if (!HttpServer::IsThere()) return HttpServer::Start({}, nullptr, nullptr).status();
  const bool by_grpc = options.grpc_port >= 0;
  if (by_grpc && !GrpcServer::IsThere()) return GrpcServer::Start({}, nullptr).status();
  // Before any thread, which inherits it: the main thread waits for them.
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  BatcherOptions& batches = options.service.batches;
  if (batches.instances == 0) {
    batches.instances = std::min(UsableProcessors(), 1024);
  }
  batches.batch_samples_max = options.scorer.max_batch_size;
  options.scorer.max_concurrency = batches.instances;
  options.service.log = [](std::string_view line) {
    const std::string text = absl::StrCat(UtcTime(), " ", std::string(line), "\n");
    const bool put = std::fwrite(text.data(), 1, text.size(), stderr) == text.size();
    // Nobody reads the log: told to the main thread, as a signal of this one is not.
    if (!put && errno == EPIPE) ::kill(::getpid(), SIGPIPE);
  };
  options.http.log = options.service.log;
  options.http.servers = by_grpc ? 2 : 1;
  options.scorer.stop = std::make_shared<std::atomic<bool>>(false);
  HOTROW_RETURN_IF_ERROR(options.http.Validate());
  HOTROW_RETURN_IF_ERROR(options.service.Validate());

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<Served> opened,
                          OpenUnlessStopped(options, signals));
  if (opened == nullptr) return kExitGood;
  Served& served = *opened;
  if (served.live != nullptr) {
    options.service.follow = [live = served.live.get()] { return live->status(); };
  }
  std::shared_ptr<const Scorer> scorer = served.source();
  for (const std::string& note : scorer->notes()) {
    std::fprintf(stderr, "hotrow serve: %s: %s\n", options.scorer.model.c_str(), note.c_str());
  }
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<ScoringService> service,
                          ScoringService::Create(options.service, served.source));
  options.http.probe_paths = {"/v2/health/live", "/v2/health/ready",
                              absl::StrCat("/v2/models/", service->model_name(), "/ready")};
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<HttpServer> server,
      HttpServer::Start(
          options.http, [&service](const HttpRequest& request) { return service->Handle(request); },
          &service->connections()));
  std::unique_ptr<GrpcServer> grpc_server;
  if (by_grpc) {
    HttpServerOptions grpc = options.http;
    grpc.port = options.grpc_port;
    HOTROW_ASSIGN_OR_RETURN(grpc_server, GrpcServer::Start(grpc, service.get()));
    std::printf("Serving gRPC at %s\n",
                HostAndPort(options.http.address, grpc_server->port()).c_str());
  }
  std::printf("Serving %s, step %lld, at http://%s/v2/models/%s\n", scorer->model_name().c_str(),
              static_cast<long long>(scorer->step()),
              HostAndPort(options.http.address, server->port()).c_str(),
              service->model_name().c_str());
  std::fflush(stdout);
  scorer.reset();  // a model that is replaced gives its memory back

  FollowLog follow_log(served.live.get(), options.service.log);
  while (sigtimedwait(&signals, nullptr, &kTellEvery) < 0) follow_log.Look();
  service->SetReady(false);
  server->Drain();
  *options.scorer.stop = true;
  // A second of these two ends the process. SIGHUP comes from the kernel and from the shell, and
  // SIGPIPE again with what follows.
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t seconds;
  sigemptyset(&seconds);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&seconds, signal);
  pthread_sigmask(SIG_UNBLOCK, &seconds, nullptr);
  SayStopping();
  std::this_thread::sleep_for(std::chrono::milliseconds(options.drain_ms));
  const int64_t grace_ms = options.service.timeout_ms + options.http.transfer_ms;
  if (grpc_server != nullptr) grpc_server->Stop(grace_ms);
  server->Stop(grace_ms);
  service->Stop();
  scorer = served.source();  // lives on, to save its hot keys when it goes
  StopFollowing(std::move(served.live));
  return kExitGood;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ServeOptions options;
  options.service.batches.instances = 0;
  FlagSet flags("hotrow serve");
  AddFlags(&options, &flags);
  ScorerFlags scorer_flags(&options.scorer, &flags);
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  HOTROW_RETURN_IF_ERROR(scorer_flags.Finish());
  options.scorer.model = operands[0];
  return Serve(std::move(options));
}

}  // namespace

const Command kServeCommand = {
    .name = "serve",
    .operands = "MODEL",
    .summary = "answers requests for scores by HTTP and gRPC",
    .details =
        "MODEL is a model of --save_dir, a checkpoint, a directory of checkpoints (the newest\n"
        "counts), a directory that hotrow export wrote, or a chain of deltas. Speaks the Open "
        "Inference Protocol v2\n"
        "with JSON and binary tensors, with --grpc_port by gRPC, too; docs/serving_http.md has "
        "paths,\n"
        "tensors and statuses.\n"
        "SIGTERM, SIGINT, SIGHUP and what batch systems warn with end it once the requests that\n"
        "are there have their replies; while the model is read, at once.\n",
    .run = Run};

}  // namespace hotrow
