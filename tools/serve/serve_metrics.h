#ifndef HOTROW_TOOLS_SERVE_SERVE_METRICS_H_
#define HOTROW_TOOLS_SERVE_SERVE_METRICS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "embedding/serving/serving_tables.h"
#include "models/serving/live_scorer.h"
#include "models/train/run_metrics.h"
#include "tools/serve/http_message.h"

namespace hotrow {

// The times of one infer request, from its first byte to its answer.
struct RequestTimes {
  int64_t begin_ns = 0;  // of the clock of NowNanos; the others are durations
  int64_t read_ns = 0;
  int64_t parse_ns = 0;
  int64_t queue_ns = 0;
  int64_t score_ns = 0;
  int64_t reply_ns = 0;
  int64_t total_ns = 0;
};

// What has become of infer requests, as the statistics extension of Triton has it.
struct InferStatistics {
  struct Duration {
    int64_t count = 0;
    int64_t ns = 0;
  };
  int64_t last_inference = 0;   // the last request, in ms since 1970; 0: none yet
  int64_t inference_count = 0;  // samples that were scored
  int64_t execution_count = 0;  // batches
  Duration success, fail, queue, compute_input, compute_infer, compute_output;
};

// What a server shows besides what it has counted.
struct ServeState {
  std::string model_name;
  int64_t step = 0;
  int64_t rows = 0;
  int64_t table_bytes = 0;
  ServingReadStats reads;  // of rows on a disk
  bool ready = false;
  int64_t queue_requests = 0;
  int64_t queue_requests_max = 0;
  std::optional<LiveScorerStatus> follow;  // none: the model is never looked at again
};

// The numbers of a server, for /metrics and statistics. Counting takes a lock for some additions.
// Any thread.
class ServeMetrics {
 public:
  void CountReply(int status);
  // An infer request that was scored.
  void CountScored(const RequestTimes& times, int64_t samples);
  // Another one.
  void CountFailed(const RequestTimes& times);
  void CountBatch(int64_t requests, int64_t samples);
  void CountSlow();
  ConnectionCounts& connections() { return connections_; }

  // docs/serving_http.md says what each number means.
  std::string Text(const ServeState& state) const;
  InferStatistics Statistics() const;

 private:
  mutable std::mutex mutex_;
  std::map<int, int64_t> replies_;  // by HTTP status
  TimeBuckets total_, queue_, score_;
  int64_t parse_ns_ = 0;
  int64_t reply_ns_ = 0;
  int64_t scored_requests_ = 0;
  int64_t scored_samples_ = 0;
  InferStatistics::Duration failed_;
  int64_t last_begin_ns_ = 0;  // of the newest infer request; 0: there was none
  int64_t batches_ = 0;
  int64_t batch_requests_ = 0;
  int64_t batch_samples_ = 0;
  int64_t slow_ = 0;
  ConnectionCounts connections_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_SERVE_METRICS_H_
