#include "models/train/metrics_export.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/exposition.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"

namespace hotrow {

MetricsExport::MetricsExport(const MetricsExportOptions& options)
    : options_(options),
      env_(options.env != nullptr ? *options.env : PosixEnv()),
      every_ns_(static_cast<int64_t>(1e9 * options.every_seconds)) {}

absl::StatusOr<std::unique_ptr<MetricsExport>> MetricsExport::Start(
    const MetricsExportOptions& options) {
  std::unique_ptr<MetricsExport> exported(new MetricsExport(options));
  if (!options.file.empty()) {
    const absl::Status written =
        ReplaceFile(exported->env_, options.file, "# The run has not begun.\n");
    if (!written.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("--metrics_file=", options.file, ": ", std::string(written.message()),
                       "; give a file in a directory that exists and that you may write to"));
    }
  }
  if (options.port >= 0) {
    absl::StatusOr<std::unique_ptr<TextServer>> server = TextServer::Start(
        {.address = options.address, .port = options.port, .content_type = kExpositionContentType},
        [raw = exported.get()] { return raw->text(); });
    if (!server.ok()) {
      return absl::Status(
          server.status().code(),
          absl::StrCat("--metrics_port=", options.port, ", --metrics_address=", options.address,
                       ": ", std::string(server.status().message())));
    }
    exported->server_ = *std::move(server);
  }
  HOTROW_ASSIGN_OR_RETURN(exported->thread_, StartThread("the metrics of a run",
                                                         [raw = exported.get()] { raw->Run(); }));
  return exported;
}

std::shared_ptr<const std::string> MetricsExport::text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return text_;
}

void MetricsExport::Publish(RunMetrics metrics) {
  next_ns_ = NowNanos() + every_ns_;
  std::optional<RunMetrics> older(std::move(metrics));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(pending_, older);
  }
  changed_.notify_one();
  // What was not taken yet is freed here, without the lock.
}

void MetricsExport::Run() {
  for (;;) {
    std::optional<RunMetrics> metrics;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || pending_.has_value(); });
      if (!pending_.has_value()) return;
      std::swap(metrics, pending_);
    }
    first_error_.Update(Caught("the metrics of a run", [&]() -> absl::Status {
      std::shared_ptr<const std::string> text =
          std::make_shared<const std::string>(MetricsText(*metrics));
      const std::shared_ptr<const std::string> kept = text;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::swap(text_, text);
      }
      return options_.file.empty() ? absl::OkStatus() : ReplaceFile(env_, options_.file, *kept);
    }));
  }
}

absl::Status MetricsExport::Close() {
  if (thread_.joinable()) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  // It calls text(), and may still be at it.
  if (server_ != nullptr) server_->Stop();
  return first_error_;
}

std::string MetricsFilePath(const std::string& file, int32_t rank, int32_t world_size) {
  if (file.empty() || world_size <= 1) return file;
  const size_t name = file.find_last_of('/') + 1;  // npos + 1 is 0
  size_t dot = file.find_last_of('.');
  if (dot == std::string::npos || dot <= name) dot = file.size();
  return absl::StrCat(file.substr(0, dot), ".rank", rank, file.substr(dot));
}

}  // namespace hotrow
