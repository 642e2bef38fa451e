#ifndef HOTROW_MODELS_TRAIN_METRICS_EXPORT_H_
#define HOTROW_MODELS_TRAIN_METRICS_EXPORT_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/text_server.h"
#include "base/trace.h"
#include "models/train/run_metrics.h"

namespace hotrow {

struct MetricsExportOptions {
  std::string file;                   // empty: none
  int32_t port = -1;                  // -1: none; 0: any free one
  std::string address = "127.0.0.1";  // to listen at
  double every_seconds = 1;           // between publications
  Env* env = nullptr;  // of the file; not owned, outlives the export; null: the real one
};

// MetricsExport takes the numbers of a run to a file and a port, beside the run.
//
// Use:     between two steps `if (due()) Publish(numbers)`; at the end Close.
// File:    is replaced whole by a rename, so that a reader sees the text before or the text after;
//          not synced, since numbers of a moment are worth nothing after a power loss. FILE.tmp
//          beside it is ours.
// Threads: due, Publish and Close are the run's. Rendering, writing and serving are two threads'
//          own. Publish waits for none of them: it holds a lock that they hold only to move a
//          pointer, and numbers that are not written yet when newer ones come are dropped. A disk
//          that hangs holds up Close, a client nothing.
// Memory:  three sets of numbers and their texts, and what TextServer says.
// Errors:  of Start: InvalidArgument and FailedPrecondition (the port cannot be had, the file not
//          written; names it and the remedy). Later the first error of the file is kept for Close,
//          and each publication tries again: a run does not end for want of numbers.
class MetricsExport {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsExport>> Start(const MetricsExportOptions& options);
  ~MetricsExport() { Close().IgnoreError(); }
  MetricsExport(const MetricsExport&) = delete;
  MetricsExport& operator=(const MetricsExport&) = delete;

  // Whether every_seconds have passed since the last publication. Reads a clock.
  bool due() const { return NowNanos() >= next_ns_; }
  void Publish(RunMetrics metrics);
  // Writes what was published last, and stops. Once or more.
  absl::Status Close();

  // Where the text is served; empty: nowhere.
  std::string url() const { return server_ == nullptr ? std::string() : server_->url(); }

 private:
  explicit MetricsExport(const MetricsExportOptions& options);
  void Run();
  std::shared_ptr<const std::string> text() const;

  const MetricsExportOptions options_;
  Env& env_;
  const int64_t every_ns_;
  int64_t next_ns_ = 0;  // of the run's thread

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<RunMetrics> pending_;        // published, not rendered yet
  std::shared_ptr<const std::string> text_;  // of the publication before; null: none
  bool stop_ = false;

  absl::Status first_error_;  // of the writing thread; read once it has ended
  std::unique_ptr<TextServer> server_;
  std::thread thread_;
};

// The file of a rank: FILE, and with several ranks FILE.rank<n>, before the last dot of the name:
// metrics.prom becomes metrics.rank0.prom. A collector that reads *.prom then finds all of them.
std::string MetricsFilePath(const std::string& file, int32_t rank, int32_t world_size);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_METRICS_EXPORT_H_
