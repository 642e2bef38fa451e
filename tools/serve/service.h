#ifndef HOTROW_TOOLS_SERVE_SERVICE_H_
#define HOTROW_TOOLS_SERVE_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/serving/live_scorer.h"
#include "models/serving/scorer_source.h"
#include "tools/serve/batcher.h"
#include "tools/serve/http_message.h"
#include "tools/serve/infer_reply.h"
#include "tools/serve/infer_request.h"
#include "tools/serve/serve_metrics.h"

namespace hotrow {

struct ServiceOptions {
  std::string model_name;  // in paths; empty: the model's own
  BatcherOptions batches;
  int64_t samples_max = 16384;  // of a request
  // The time from a request's first byte to its scores, at least 1. A request may ask for less.
  int64_t timeout_ms = 1000;
  int64_t slow_ms = 0;  // requests that take longer are logged; 0: none
  // What following the model has come to, for /metrics, of any thread; null: it is not followed.
  std::function<LiveScorerStatus()> follow;
  // Takes lines of the log, of any thread; null: there is none.
  std::function<void(std::string_view line)> log;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// The Open Inference Protocol v2 over a Scorer: a request in, a reply out. docs/serving_http.md has
// its paths, tensors and statuses. It knows no sockets.
//
// Threads: any number call Handle and Infer; a call lasts until the reply is there, timeout_ms at
//          most beside the time to parse and to format. As many threads parse at once as the
//          machine has, which bounds the memory for it.
// Errors:  Create: InvalidArgument (an option), FailedPrecondition (names of features), those of
//          threads. Handle has none: any request gets a reply.
class ScoringService {
 public:
  static absl::StatusOr<std::unique_ptr<ScoringService>> Create(const ServiceOptions& options,
                                                                ScorerSource source);
  ~ScoringService();  // stops
  ScoringService(const ScoringService&) = delete;
  ScoringService& operator=(const ScoringService&) = delete;

  HttpReply Handle(const HttpRequest& request);

  // What becomes of an infer request that is no HTTP/1.1.
  struct InferCall {
    int64_t timeout_ns = 0;  // that its client waits, from its first byte; less than 1: it has gone
    // Reads it, and checks that it is for the model.
    std::function<absl::StatusOr<InferRequest>(const ModelVersion& model)> parse;
    // Takes its answer: logits are [samples, tasks].
    std::function<absl::Status(const InferRequest& request, const ModelVersion& model,
                               int32_t num_tasks, std::span<const float> logits)>
        reply;
  };
  // request: its times, its size and, for the log, what it is called. Errors: those of parse and
  // reply, InvalidArgument, DeadlineExceeded, ResourceExhausted (the queue is full), Unavailable
  // (the server stops, or has no memory for it), Aborted (the model was replaced), Internal.
  absl::Status Infer(const HttpRequest& request, const InferCall& call);

  // What /v2/health/ready answers; at first yes. Requests are answered all the same.
  void SetReady(bool ready) { ready_ = ready; }
  // Requests that wait are refused with 503, as are those that come. Once or more.
  void Stop();

  ConnectionCounts& connections() { return metrics_.connections(); }
  const std::string& model_name() const { return model_name_; }
  int64_t timeout_ms() const { return options_.timeout_ms; }

 private:
  // A scorer and what requests must fit.
  struct Model {
    std::shared_ptr<const Scorer> scorer;
    std::shared_ptr<const ModelSignature> signature;
  };
  // What the log tells of a request.
  struct Account {
    RequestTimes times;
    bool infers = false;   // it was one to be scored
    int64_t samples = -1;  // -1: not known
    int64_t batch_samples = 0;
  };

  ScoringService(const ServiceOptions& options, ScorerSource source);
  absl::StatusOr<Model> CurrentModel();
  HttpReply Route(const HttpRequest& request, Account* account);
  HttpReply RouteModel(const HttpRequest& request, std::string_view rest, Account* account);
  HttpReply InferByHttp(const HttpRequest& request, const Model& model, Account* account);
  absl::Status Score(const HttpRequest& request, const InferCall& call, const Model& model,
                     Account* account);
  // Counts a request that is answered, and tells the log where it took long.
  void Count(const HttpRequest& request, int status, Account* account);
  void RunBatch(std::span<ScoreJob* const> jobs);
  void LogIfSlow(const HttpRequest& request, int status, const Account& account);
  std::string MetricsText();

  const ServiceOptions options_;
  const ScorerSource source_;
  std::string model_name_;
  std::counting_semaphore<> parsers_;
  ServeMetrics metrics_;
  std::atomic<bool> ready_{true};
  std::mutex signature_mutex_;
  std::weak_ptr<const Scorer> signed_;  // whose signature_ is
  std::shared_ptr<const ModelSignature> signature_;
  std::unique_ptr<Batcher> batcher_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_SERVICE_H_
