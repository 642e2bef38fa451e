#include "tools/serve/serve_metrics.h"

#include <algorithm>
#include <chrono>

#include "base/exposition.h"
#include "base/trace.h"
#include "models/train/report.h"

namespace hotrow {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

void Put(ExpositionWriter* out, const char* name, MetricKind kind, const char* help,
         int64_t value) {
  out->Family(name, kind, help);
  out->Sample(value);
}

void PutTimes(ExpositionWriter* out, const char* name, const char* help, const TimeBuckets& times) {
  out->Family(name, MetricKind::kHistogram, help);
  out->Buckets({}, TimeBuckets::kBoundSeconds, times.counts(), times.sum_seconds());
}

}  // namespace

void ServeMetrics::CountReply(int status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++replies_[status];
}

void ServeMetrics::CountScored(const RequestTimes& times, int64_t samples) {
  const std::lock_guard<std::mutex> lock(mutex_);
  total_.Add(times.total_ns);
  queue_.Add(times.queue_ns);
  score_.Add(times.score_ns);
  parse_ns_ += times.parse_ns;
  reply_ns_ += times.reply_ns;
  ++scored_requests_;
  scored_samples_ += samples;
  last_begin_ns_ = std::max(last_begin_ns_, times.begin_ns);
}

void ServeMetrics::CountFailed(const RequestTimes& times) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++failed_.count;
  failed_.ns += times.total_ns;
  last_begin_ns_ = std::max(last_begin_ns_, times.begin_ns);
}

void ServeMetrics::CountBatch(int64_t requests, int64_t samples) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++batches_;
  batch_requests_ += requests;
  batch_samples_ += samples;
}

void ServeMetrics::CountSlow() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++slow_;
}

InferStatistics ServeMetrics::Statistics() const {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ns = NowNanos();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto scored = [&](int64_t ns) { return InferStatistics::Duration{scored_requests_, ns}; };
  InferStatistics out = {.inference_count = scored_samples_,
                         .execution_count = batches_,
                         .success = scored(total_.sum_ns()),
                         .fail = failed_,
                         .queue = scored(queue_.sum_ns()),
                         .compute_input = scored(parse_ns_),
                         .compute_infer = scored(score_.sum_ns()),
                         .compute_output = scored(reply_ns_)};
  if (last_begin_ns_ > 0) {
    const std::chrono::nanoseconds ago(now_ns - last_begin_ns_);
    out.last_inference = duration_cast<milliseconds>(since_1970 - ago).count();
  }
  return out;
}

std::string ServeMetrics::Text(const ServeState& state) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ExpositionWriter out;
  out.Family("hotrow_serve_info", kGauge, "What is served: always 1.");
  out.Sample({{{"model", state.model_name}}}, int64_t{1});
  Put(&out, "hotrow_serve_ready", kGauge, "1 while the server takes requests.", state.ready);
  Put(&out, "hotrow_serve_model_step", kGauge, "Updates that the model has seen.", state.step);
  Put(&out, "hotrow_serve_model_rows", kGauge, "Rows of all tables.", state.rows);
  Put(&out, "hotrow_serve_model_table_bytes", kGauge, "Memory of rows and index.",
      state.table_bytes);
  Put(&out, "hotrow_serve_row_cache_rows", kGauge,
      "Rows that the cache before rows on a disk has room for; 0: memory has all rows.",
      state.reads.cache_rows);
  Put(&out, "hotrow_serve_row_cache_hits_total", kCounter,
      "Keys that this cache had; a key counts once for each pass of a batch.", state.reads.hits);
  Put(&out, "hotrow_serve_row_cache_misses_total", kCounter,
      "Keys that the disk was asked for, a warm start included.", state.reads.misses);
  Put(&out, "hotrow_serve_row_absent_total", kCounter,
      "Keys that were known to have no row on the disk, without a read.", state.reads.absent);
  Put(&out, "hotrow_serve_row_reads_total", kCounter, "Blocks that were read.", state.reads.reads);
  Put(&out, "hotrow_serve_row_read_bytes_total", kCounter, "Bytes of these blocks.",
      state.reads.read_bytes);
  Put(&out, "hotrow_serve_row_levels", kGauge,
      "Files of changed rows before those of all rows on the disk, of the table that has most.",
      state.reads.levels);
  Put(&out, "hotrow_serve_row_written_bytes_total", kCounter,
      "Bytes that deltas and merges have written to the disk.", state.reads.written_bytes);
  Put(&out, "hotrow_serve_row_merges_failed_total", kCounter,
      "Merges of such files that have failed; the next delta tries again.",
      state.reads.merges_failed);
  const LiveScorerStatus follow = state.follow.value_or(LiveScorerStatus{});
  Put(&out, "hotrow_serve_newest_step", kGauge,
      "Updates that the newest model found has seen; above hotrow_serve_model_step where it was "
      "refused.",
      state.follow.has_value() ? follow.newest_step : state.step);
  Put(&out, "hotrow_serve_looks_total", kCounter, "Looks for what is new of the model.",
      follow.polls);
  Put(&out, "hotrow_serve_looks_failed_total", kCounter, "Looks that refused what they found.",
      follow.polls_failed);
  Put(&out, "hotrow_serve_deltas_total", kCounter, "Deltas that came into the model.",
      follow.deltas_applied);
  Put(&out, "hotrow_serve_delta_rows_total", kCounter, "Rows of these deltas.",
      follow.rows_applied);
  Put(&out, "hotrow_serve_delta_erased_rows_total", kCounter,
      "Keys that lost their row by these deltas.", follow.rows_erased);
  Put(&out, "hotrow_serve_models_total", kCounter,
      "Whole models that took the place of the one before.", follow.models_opened);
  out.Family("hotrow_serve_replies_total", kCounter, "Replies by their HTTP status.");
  for (const auto& [status, count] : replies_) {
    out.Sample({{{"code", std::to_string(status)}}}, count);
  }
  PutTimes(&out, "hotrow_serve_request_seconds",
           "Time of a scored request, from its first byte to its reply.", total_);
  PutTimes(&out, "hotrow_serve_queue_seconds",
           "Time that a scored request waited for its batch and an instance.", queue_);
  PutTimes(&out, "hotrow_serve_score_seconds", "Time that its batch was scored.", score_);
  Put(&out, "hotrow_serve_samples_total", kCounter, "Samples of scored requests.", scored_samples_);
  Put(&out, "hotrow_serve_batches_total", kCounter, "Batches that were scored.", batches_);
  Put(&out, "hotrow_serve_batch_requests_total", kCounter, "Requests in these batches.",
      batch_requests_);
  Put(&out, "hotrow_serve_batch_samples_total", kCounter, "Samples in these batches.",
      batch_samples_);
  Put(&out, "hotrow_serve_queue_requests", kGauge, "Requests that wait.", state.queue_requests);
  Put(&out, "hotrow_serve_queue_requests_max", kGauge, "The most that may wait.",
      state.queue_requests_max);
  Put(&out, "hotrow_serve_slow_requests_total", kCounter,
      "Requests that took longer than --slow_ms.", slow_);
  Put(&out, "hotrow_serve_connections", kGauge, "Connections that are open.",
      connections_.open.load(std::memory_order_relaxed));
  Put(&out, "hotrow_serve_connections_total", kCounter, "Connections so far.",
      connections_.accepted.value());
  Put(&out, "hotrow_serve_connections_evicted_total", kCounter,
      "Connections closed to make room, the longest silent first.", connections_.evicted.value());
  Put(&out, "hotrow_serve_connections_refused_total", kCounter,
      "Connections closed at once, since all places had requests.", connections_.refused.value());
  Put(&out, "hotrow_serve_unparsed_requests_total", kCounter,
      "Requests that were no HTTP, too large or too slow.", connections_.unparsed.value());
  out.Family("hotrow_serve_process_cpu_seconds_total", kCounter,
             "Processor time of all threads of the process.");
  out.Sample({}, ProcessCpuSeconds());
  Put(&out, "hotrow_serve_process_peak_resident_bytes", kGauge,
      "The most memory that the process had.", PeakResidentBytes());
  return out.Take();
}

}  // namespace hotrow
