#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/matrix_view.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "embedding/embedding_step.h"
#include "models/train/non_finite_impl.h"
#include "models/train/report.h"
#include "models/train/run_watch_impl.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunWatch::RunWatch(const TrainerOptions& options, const ExecContext& ctx)
    : options_(options), ctx_(ctx) {
  if (options.communicator != nullptr) {
    numbers_.rank = options.communicator->rank();
    numbers_.world_size = options.communicator->world_size();
  }
  numbers_.device = std::string(DeviceName(ctx.device));
  const StoreFacts& store = FactsOf(options.store);
  numbers_.store = std::string(store.word);
  numbers_.disk_endurance_bytes = store.on_disk ? options.disk_endurance_bytes : 0;
}

absl::Status RunWatch::Start() {
  if (options_.metrics_file.empty() && options_.metrics_port < 0) return absl::OkStatus();
  file_ = MetricsFilePath(options_.metrics_file, numbers_.rank, numbers_.world_size);
  // Ranks of one machine cannot share a port.
  const int32_t port =
      options_.metrics_port <= 0 ? options_.metrics_port : options_.metrics_port + numbers_.rank;
  HOTROW_ASSIGN_OR_RETURN(export_, MetricsExport::Start({.file = file_,
                                                         .port = port,
                                                         .address = options_.metrics_address,
                                                         .every_seconds = options_.metrics_every,
                                                         .env = options_.env}));
  numbers_.start_unix_seconds = UnixSeconds();
  return absl::OkStatus();
}

void RunWatch::Attach(RunParts* parts) {
  parts_ = parts;
  numbers_.model = std::string(parts->model().name());
  numbers_.has_checkpoints = parts->checkpoints().enabled();
  if (!on()) return;
  numbers_.unix_seconds = UnixSeconds();
  numbers_.tables = parts->tables().Stats();
  export_->Publish(numbers_);
}

// Checks one step a second or so. A number that is not finite stays in its row or parameter, and
// ends the run when it is next used.
void RunWatch::CheckGradients() {
  if (ctx_.device != Device::kCpu) return;
  const EmbeddingGradient of_rows = parts_->step_parts().buffers.gradient();
  const bool finite =
      AllFinite(of_rows.pooled) &&
      std::all_of(of_rows.unpooled.begin(), of_rows.unpooled.end(),
                  [](const MatrixView<const float>& view) { return AllFinite(view); }) &&
      AllFinite(parts_->model().gradients());
  ++numbers_.gradient_checks;
  if (!finite) ++numbers_.non_finite_gradients;
}

void RunWatch::StepMade(int64_t nanos, const Moment& moment) {
  if (!on()) return;
  numbers_.step_times.Add(nanos);
  if (!export_->due() && numbers_.state == RunState::kTraining) return;
  numbers_.last_step_unix_seconds = UnixSeconds();
  CheckGradients();
  Publish(RunState::kTraining, moment);
}

void RunWatch::Publish(RunState state, const Moment& moment) {
  if (!on()) return;
  numbers_.state = state;
  numbers_.unix_seconds = UnixSeconds();
  numbers_.steps = moment.at.steps;
  numbers_.samples = moment.at.samples;
  numbers_.epochs = moment.epochs;
  numbers_.train_ns = moment.train_ns;
  numbers_.loss = moment.at.recent_loss;
  numbers_.learning_rate_factor = moment.learning_rate_factor;
  numbers_.valid = moment.at.valid;
  if (parts_ != nullptr) {
    numbers_.tables = parts_->tables().Stats();
    numbers_.checkpoints = parts_->checkpoints().stats();
  }
  if (ctx_.trace != nullptr) numbers_.stages = ctx_.trace->StageTotals();
  numbers_.peak_rss_bytes = PeakResidentBytes();
  numbers_.cpu_seconds = ProcessCpuSeconds();
  export_->Publish(numbers_);
}

void RunWatch::Failed() {
  if (!on()) return;
  numbers_.state = RunState::kFailed;
  numbers_.unix_seconds = UnixSeconds();
  export_->Publish(numbers_);
}

absl::Status RunWatch::Close() { return on() ? export_->Close() : absl::OkStatus(); }

std::string RunWatch::where() const {
  if (!on()) return std::string();
  const std::string url = export_->url();
  return absl::StrCat(url, url.empty() || file_.empty() ? "" : ", ", file_);
}

}  // namespace hotrow
