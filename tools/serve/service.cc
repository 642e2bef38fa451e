#include "tools/serve/service.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/exposition.h"
#include "base/machine_limits.h"
#include "base/own_status.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "models/json/quote.h"
#include "tools/serve/infer_reply.h"
#include "tools/serve/infer_request.h"
#include "tools/serve/score_request.h"

namespace hotrow {
namespace {

constexpr int64_t kNanosPerMicro = 1000;
constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr int64_t kSamplesMax = int64_t{1} << 24;
constexpr int64_t kMillisMax = int64_t{1} << 31;
// NAME: the model's.
constexpr const char* kEndpoints[] = {"GET /",
                                      "GET /v2",
                                      "GET /v2/health/live",
                                      "GET /v2/health/ready",
                                      "GET /v2/models/NAME",
                                      "GET /v2/models/NAME/ready",
                                      "GET /v2/models/NAME/config",
                                      "GET /v2/models/NAME/stats",
                                      "POST /v2/models/NAME/infer",
                                      "GET /v2/models/stats",
                                      "POST /v2/repository/index",
                                      "GET /metrics"};
constexpr char kRetrySeconds[] = "1";

HttpReply JsonReply(int status, std::string body) {
  return {.status = status, .body = std::move(body)};
}

HttpReply ErrorReply(int status, std::string_view message) {
  HttpReply reply = JsonReply(status, ErrorJson(message));
  reply.error = message;
  if (status == 429 || status == 503) reply.headers = {{"Retry-After", kRetrySeconds}};
  return reply;
}

// The status of an error that a request's content or its scoring ended with.
int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kResourceExhausted:  // the queue is full
      return 429;
    default:
      return 500;
  }
}

HttpReply ErrorReply(const absl::Status& status) {
  return ErrorReply(HttpStatusOf(status), std::string(status.message()));
}

HttpReply NoPathReply(std::string_view path) {
  return ErrorReply(404, absl::StrCat("no path ", QuoteForMessage(path), "; there are ",
                                      absl::StrJoin(kEndpoints, ", ")));
}

HttpReply MethodReply(const char* allowed) {
  HttpReply reply = ErrorReply(405, absl::StrCat("this path takes ", allowed));
  reply.headers.emplace_back("Allow", allowed);
  return reply;
}

bool Reads(const HttpRequest& request) {
  return request.method == "GET" || request.method == "HEAD";
}

// The place of one of those who parse at once.
class Turn {
 public:
  explicit Turn(std::counting_semaphore<>* places) : places_(*places) { places_.acquire(); }
  ~Turn() { places_.release(); }
  Turn(const Turn&) = delete;

 private:
  std::counting_semaphore<>& places_;
};

// Takes the first part of a path off its front: "models/x" of "models/x/ready" with 2 parts.
std::string_view TakePart(std::string_view* path) {
  const size_t end = std::min(path->find('/'), path->size());
  const std::string_view part = path->substr(0, end);
  path->remove_prefix(std::min(end + 1, path->size()));
  return part;
}

}  // namespace

absl::Status ServiceOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(batches.Validate());
  const auto check = [](const char* field, int64_t value, int64_t min,
                        int64_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("ServiceOptions.", field, " must lie in [", min, ", ", max, "], is ", value));
  };
  HOTROW_RETURN_IF_ERROR(check("samples_max", samples_max, 1, kSamplesMax));
  HOTROW_RETURN_IF_ERROR(check("timeout_ms", timeout_ms, 1, kMillisMax));
  HOTROW_RETURN_IF_ERROR(check("slow_ms", slow_ms, 0, kMillisMax));
  if (model_name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("ServiceOptions.model_name is ",
                                                   QuoteForMessage(model_name),
                                                   "; a name in a path has no /"));
  }
  return absl::OkStatus();
}

ScoringService::ScoringService(const ServiceOptions& options, ScorerSource source)
    : options_(options),
      source_(std::move(source)),
      parsers_(std::max<std::ptrdiff_t>(2, UsableProcessors())) {}

ScoringService::~ScoringService() { Stop(); }

absl::StatusOr<std::unique_ptr<ScoringService>> ScoringService::Create(
    const ServiceOptions& options, ScorerSource source) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<ScoringService> out(new ScoringService(options, std::move(source)));
  HOTROW_ASSIGN_OR_RETURN(const Model model, out->CurrentModel());
  out->model_name_ = options.model_name.empty() ? model.scorer->model_name() : options.model_name;
  HOTROW_ASSIGN_OR_RETURN(
      out->batcher_, Batcher::Start(options.batches,
                                    [service = out.get()](auto jobs) { service->RunBatch(jobs); }));
  return out;
}

void ScoringService::Stop() {
  if (batcher_ != nullptr) batcher_->Stop();
}

absl::StatusOr<ScoringService::Model> ScoringService::CurrentModel() {
  Model out = {.scorer = source_()};
  const std::lock_guard<std::mutex> lock(signature_mutex_);
  // By owner: an address may be used again, what a weak pointer holds is not.
  const bool same = signature_ != nullptr && !signed_.owner_before(out.scorer) &&
                    !out.scorer.owner_before(signed_);
  if (!same) {
    HOTROW_ASSIGN_OR_RETURN(ModelSignature signature, ModelSignature::Of(*out.scorer));
    signed_ = out.scorer;
    if (signature_ == nullptr || *signature_ != signature) {
      signature_ = std::make_shared<const ModelSignature>(std::move(signature));
    }
  }
  out.signature = signature_;
  return out;
}

HttpReply ScoringService::Handle(const HttpRequest& request) {
  Account account;
  HttpReply reply = Route(request, &account);
  Count(request, reply.status, &account);
  return reply;
}

void ScoringService::Count(const HttpRequest& request, int status, Account* account) {
  account->times.begin_ns = request.begin_ns;
  account->times.read_ns = request.read_ns - request.begin_ns;
  account->times.total_ns = NowNanos() - request.begin_ns;
  metrics_.CountReply(status);
  if (account->infers && status == 200) {
    metrics_.CountScored(account->times, account->samples);
  } else if (account->infers) {
    metrics_.CountFailed(account->times);
  }
  LogIfSlow(request, status, *account);
}

HttpReply ScoringService::Route(const HttpRequest& request, Account* account) {
  std::string_view path = request.path;
  if (!path.starts_with('/')) return NoPathReply(path);
  path.remove_prefix(1);
  if (path.ends_with('/')) path.remove_suffix(1);
  if (path == "metrics") {
    if (!Reads(request)) return MethodReply("GET, HEAD");
    return {.content_type = kExpositionContentType, .body = MetricsText()};
  }
  if (request.path == "/") {
    if (!Reads(request)) return MethodReply("GET, HEAD");
    return JsonReply(200, ServerJson({.name = model_name_, .step = source_()->step()}, kEndpoints));
  }
  const bool is_v2 = TakePart(&path) == "v2";
  if (is_v2 && path.starts_with("models/")) {
    path.remove_prefix(std::string_view("models/").size());
    return RouteModel(request, path, account);
  }
  if (is_v2 && path == "repository/index") {
    if (request.method != "POST") return MethodReply("POST");
    const std::shared_ptr<const Scorer> scorer = source_();
    return JsonReply(200,
                     RepositoryIndexJson({.name = model_name_, .step = scorer->step()}, ready_));
  }
  if (is_v2 && path.starts_with("repository/models/") &&
      (path.ends_with("/load") || path.ends_with("/unload"))) {
    if (request.method != "POST") return MethodReply("POST");
    return ErrorReply(400, absl::StrCat("models are neither loaded nor unloaded by requests: this "
                                        "server has one, ",
                                        QuoteForMessage(model_name_),
                                        ", and with --follow_ms takes the newer one that is put in "
                                        "its place; run another hotrow serve for another model"));
  }
  const bool known = path.empty() || path == "health/live" || path == "health/ready";
  if (!is_v2 || !known) return NoPathReply(request.path);
  if (!Reads(request)) return MethodReply("GET, HEAD");
  if (path.empty()) return JsonReply(200, ServerMetadataJson());
  if (path == "health/live") return JsonReply(200, "{\"live\":true}");
  const bool ready = ready_;
  return JsonReply(ready ? 200 : 503, ready ? "{\"ready\":true}" : "{\"ready\":false}");
}

HttpReply ScoringService::RouteModel(const HttpRequest& request, std::string_view rest,
                                     Account* account) {
  const bool of_all = rest == "stats";  // which is this one
  const std::string_view name = of_all ? std::string_view(model_name_) : TakePart(&rest);
  const absl::StatusOr<Model> model = CurrentModel();
  if (!model.ok()) return ErrorReply(500, std::string(model.status().message()));
  const ModelVersion version = {.name = model_name_, .step = model->scorer->step()};
  std::optional<std::string_view> asked;
  if (rest == "versions" || rest.starts_with("versions/")) {
    TakePart(&rest);
    asked = TakePart(&rest);
  }
  if (const absl::Status status = CheckModel(version, name, asked); !status.ok()) {
    return ErrorReply(status);
  }
  if (rest == "infer") {
    if (request.method != "POST") return MethodReply("POST");
    return InferByHttp(request, *model, account);
  }
  if (!rest.empty() && rest != "ready" && rest != "config" && rest != "stats") {
    return NoPathReply(request.path);
  }
  if (!Reads(request)) return MethodReply("GET, HEAD");
  if (rest == "ready") {
    const bool ready = ready_;
    return JsonReply(ready ? 200 : 503, ModelReadyJson(version, ready));
  }
  if (rest == "stats") return JsonReply(200, StatisticsJson(version, metrics_.Statistics()));
  if (rest == "config") return JsonReply(200, ModelConfigJson(version, *model->signature));
  return JsonReply(200, ModelMetadataJson(version, *model->signature, model->scorer->labels(),
                                          model->scorer->line_columns()));
}

HttpReply ScoringService::InferByHttp(const HttpRequest& request, const Model& model,
                                      Account* account) {
  HttpReply out;
  InferCall call = {.timeout_ns = std::numeric_limits<int64_t>::max()};
  call.parse = [&](const ModelVersion&) -> absl::StatusOr<InferRequest> {
    std::optional<int64_t> json_bytes;
    if (request.inference_header_length.has_value()) {
      int64_t bytes = 0;
      if (!absl::SimpleAtoi(*request.inference_header_length, &bytes)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Inference-Header-Content-Length is ",
            QuoteForMessage(*request.inference_header_length), ", expected a number of bytes"));
      }
      json_bytes = bytes;
    }
    return ParseInferRequest(request.body, json_bytes);
  };
  call.reply = [&](const InferRequest& infer, const ModelVersion& version, int32_t num_tasks,
                   std::span<const float> logits) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(InferReply reply, MakeInferReply(infer, version, num_tasks, logits));
    out = JsonReply(200, std::move(reply.body));
    if (reply.json_bytes.has_value()) {
      out.content_type = "application/octet-stream";
      out.headers.emplace_back("Inference-Header-Content-Length", absl::StrCat(*reply.json_bytes));
    }
    return absl::OkStatus();
  };
  const absl::Status status = Score(request, call, model, account);
  return status.ok() ? std::move(out) : ErrorReply(status);
}

absl::Status ScoringService::Infer(const HttpRequest& request, const InferCall& call) {
  Account account;
  const absl::StatusOr<Model> model = CurrentModel();
  const absl::Status status = model.ok() ? Score(request, call, *model, &account)
                                         : absl::InternalError(model.status().message());
  Count(request, status.ok() ? 200 : HttpStatusOf(status), &account);
  return status;
}

absl::Status ScoringService::Score(const HttpRequest& request, const InferCall& call,
                                   const Model& model, Account* account) {
  const int64_t begin_ns = NowNanos();
  account->infers = true;
  const auto job = std::make_shared<ScoreJob>();
  job->signature = model.signature;
  InferRequest infer;
  const absl::Status parsed = [&]() -> absl::Status {
    const Turn turn(&parsers_);
    HOTROW_ASSIGN_OR_RETURN(infer, call.parse({.name = model_name_, .step = model.scorer->step()}));
    HOTROW_RETURN_IF_ERROR(CheckOutputs(infer));
    HOTROW_ASSIGN_OR_RETURN(job->request,
                            MakeScoreRequest(&infer, *model.signature, options_.samples_max));
    return absl::OkStatus();
  }();
  account->times.parse_ns = NowNanos() - begin_ns;
  HOTROW_RETURN_IF_ERROR(parsed);
  infer.inputs.clear();
  account->samples = job->request.num_samples;

  const int64_t own_us = infer.timeout_us;
  int64_t timeout_ns = std::min(call.timeout_ns, options_.timeout_ms * kNanosPerMilli);
  if (own_us > 0 && own_us < timeout_ns / kNanosPerMicro) timeout_ns = own_us * kNanosPerMicro;
  // A batch may go on for the time of another request in it, but not for one that nobody awaits.
  job->deadline = std::chrono::steady_clock::now() +
                  std::chrono::nanoseconds(request.begin_ns + timeout_ns - NowNanos());
  Batcher::Times times;
  const absl::Status status = batcher_->Score(job, request.begin_ns + timeout_ns, &times);
  account->times.queue_ns = times.queue_ns;
  account->times.score_ns = times.score_ns;
  HOTROW_RETURN_IF_ERROR(status);
  account->batch_samples = job->batch_samples;
  if (absl::IsResourceExhausted(job->status)) {  // memory of the machine, which is no full queue
    return absl::UnavailableError(job->status.message());
  }
  if (!job->status.ok()) return OwnStatus(job->status);
  const int64_t scored_ns = NowNanos();
  const absl::Status replied = call.reply(infer, {.name = model_name_, .step = job->step},
                                          model.signature->num_tasks, job->logits);
  account->times.reply_ns = NowNanos() - scored_ns;
  return replied;
}

void ScoringService::RunBatch(std::span<ScoreJob* const> jobs) {
  int64_t samples = 0;
  for (ScoreJob* const job : jobs) samples += job->request.num_samples;
  const absl::StatusOr<Model> model = CurrentModel();
  if (model.ok()) ScoreJobs(*model->scorer, *model->signature, jobs);
  for (ScoreJob* const job : jobs) {
    if (!model.ok()) job->status = OwnStatus(model.status());
  }
  const auto scored = [](const ScoreJob* job) { return job->status.ok(); };
  if (std::ranges::any_of(jobs, scored)) metrics_.CountBatch(std::ssize(jobs), samples);
}

void ScoringService::LogIfSlow(const HttpRequest& request, int status, const Account& account) {
  if (options_.slow_ms == 0 || account.times.total_ns < options_.slow_ms * kNanosPerMilli) return;
  metrics_.CountSlow();
  if (!options_.log) return;
  const auto ms = [](int64_t nanos) { return static_cast<double>(nanos) / kNanosPerMilli; };
  std::string line = absl::StrFormat(
      "slow: %s %s %d, %.1f ms: read %.1f, parse %.1f, queue %.1f, score %.1f; %d bytes",
      request.method, QuoteForMessage(request.path), status, ms(account.times.total_ns),
      ms(account.times.read_ns), ms(account.times.parse_ns), ms(account.times.queue_ns),
      ms(account.times.score_ns), std::ssize(request.body) + request.bytes_elsewhere);
  if (account.samples >= 0) {
    absl::StrAppend(&line, ", ", account.samples, " samples in a batch of ", account.batch_samples);
  }
  absl::StrAppend(&line, ", from ", request.client);
  options_.log(line);
}

std::string ScoringService::MetricsText() {
  const std::shared_ptr<const Scorer> scorer = source_();
  ServeState state = {.model_name = model_name_,
                      .step = scorer->step(),
                      .rows = scorer->rows(),
                      .table_bytes = scorer->table_bytes(),
                      .reads = scorer->read_stats(),
                      .ready = ready_,
                      .queue_requests = batcher_->waiting(),
                      .queue_requests_max = options_.batches.queue_max};
  if (options_.follow != nullptr) state.follow = options_.follow();
  return metrics_.Text(state);
}

}  // namespace hotrow
