#include "models/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "embedding/storage_fields.h"
#include "models/data/time_parts.h"
#include "models/data/windowed_source.h"
#include "models/saving/rank_group_impl.h"
#include "models/saving/saved_model.h"
#include "models/saving/training_state.h"
#include "models/train/access_recorder.h"
#include "models/train/batch_pipeline_impl.h"
#include "models/train/evaluator_impl.h"
#include "models/train/mllog.h"
#include "models/train/progress.h"
#include "models/train/run_header_impl.h"
#include "models/train/run_parts_impl.h"
#include "models/train/run_settings.h"
#include "models/train/run_watch_impl.h"
#include "models/train/step_mailbox_impl.h"
#include "models/train/step_times.h"
#include "models/train/train_step_impl.h"
#include "models/train/trainer_settings.h"
#include "ops/products/unfused_products.h"

namespace hotrow {
namespace {

constexpr int64_t kTextEveryNanos = 100'000'000;
// Between two looks for more data: from so long on, twice as long each time, up to this.
constexpr int64_t kFollowMillis = 100;
constexpr int64_t kFollowMillisMax = 5000;
// Steps on a GPU whose loss is not read when the next step begins: the GPU has work while the host
// enqueues more.
constexpr int64_t kUnreadSteps = 1;
static_assert(kUnreadSteps < StepMailbox::kUnreadMax);

double Seconds(int64_t nanos) { return 1e-9 * static_cast<double>(nanos); }

// One run: loops over steps, validations and checkpoints.
class Trainer {
 public:
  // windows: `data` as windows of time; null: they are none.
  Trainer(const TrainerOptions& options, DataSource& data, WindowedSource* windows,
          const ExecContext& ctx)
      : options_(options),
        data_(data),
        windows_(windows),
        schema_(data.schema()),
        ctx_(ctx),
        run_(options, data, ctx, [this](std::string_view line) { PrintLine(line); }),
        watch_(options, ctx),
        policy_(options.schedule),
        mllog_([this](std::string_view line) { PrintLine(line); }) {}

  absl::Status Init(const ModelFactory& factory);
  // Trains, saves and tests as the options say.
  absl::Status Run();
  absl::StatusOr<TrainReport> Report();
  // Leaves the store in good order. Nothing may follow but EndWatch.
  absl::Status Close() {
    watch_.Publish(RunState::kFinished, Moment());
    return run_.tables().Close();
  }
  // ok: whether the run has come to its end.
  void EndWatch(bool ok);

 private:
  bool quiet() const { return options_.out == nullptr; }
  bool mllog() const { return options_.mllog && !quiet(); }
  bool stops_early() const { return options_.schedule.early_stop_patience > 0; }
  // Test metrics and the saved model are those of the best validation.
  bool keeps_best() const { return stops_early() || options_.keep_best; }
  int64_t TotalSamples() const;
  double EpochsSoFar() const;
  RunWatch::Moment Moment() const;
  absl::StatusOr<RunCheckpoints::Contents> CheckpointContents();

  void PrintLine(std::string_view line);

  absl::Status Train();
  absl::Status TrainOne();
  absl::Status Step(BatchInFlight* now);
  absl::StatusOr<Evaluation> Evaluate(Split split, int64_t epoch, Progress* progress);
  // The same between steps of training, for who watches.
  absl::StatusOr<Evaluation> EvaluateBetweenSteps(Split split, int64_t epoch);
  // Reads losses, the oldest first, until `keep` are left. Before anything is said, decided or
  // saved that depends on them: 0. OutOfRange when one is not finite.
  absl::Status ReadLosses(int64_t keep);
  void CountLoss(const UnreadStep& step, double loss);
  absl::Status Validate(int64_t epoch);
  // Whether the window that the next batch is of is there.
  bool HasWindow() const { return at_.epoch < num_windows_; }
  absl::Status AgreeOnWindows();
  absl::StatusOr<bool> WaitForWindow();
  void OpenPipeline();
  TrainedWindow& WindowAt(int64_t position);
  absl::Status CheckWindowsGoOn() const;
  absl::Status JudgeWindow();
  double DecidingAuc(const Evaluation& evaluation) const;
  absl::Status Test();
  absl::Status Save();
  void ShowProgress();

  const TrainerOptions& options_;
  DataSource& data_;
  WindowedSource* const windows_;
  int64_t num_windows_ = 0;  // that all ranks have
  const DataSchema& schema_;
  const ExecContext ctx_;
  const int64_t begin_ns_ = NowNanos();
  RunParts run_;
  RunWatch watch_;
  std::optional<Evaluator> evaluator_;
  // Outlives a failed Train: cancelling its steps may have to wait for other ranks, which
  // RunTraining ends first.
  std::unique_ptr<BatchPipeline> pipeline_;

  TrainingState at_;  // without settings, processor and policy; losses: those that are read
  std::deque<UnreadStep> unread_;
  // While a validation runs: as before it, with the policy. What it decides counts once the model
  // that it calls the best is saved.
  std::optional<TrainingState> before_validation_;
  ValidationPolicy policy_;
  int64_t resumed_samples_ = 0;
  int64_t saved_step_ = -1;

  int64_t train_ns_ = 0;
  double learning_rate_factor_ = 0;  // of the last step
  int64_t next_text_ns_ = 0;
  StepTimes step_times_;
  Progress* progress_ = nullptr;  // the line that is being shown, if any
  MlLogger mllog_;
};

int64_t Trainer::TotalSamples() const {
  int64_t samples = schema_.train_samples;
  if (options_.limit_train_batches > 0) {
    const int64_t limit = options_.limit_train_batches * options_.batch_size;
    samples = samples == 0 ? limit : std::min(samples, limit);
  }
  return samples * options_.epochs;
}

// Passes over the training data so far, with the part of the present one where its length is known.
double Trainer::EpochsSoFar() const {
  const int64_t per_epoch = TotalSamples() / options_.epochs;
  return per_epoch > 0 ? static_cast<double>(at_.samples) / static_cast<double>(per_epoch)
                       : static_cast<double>(at_.epochs_done);
}

RunWatch::Moment Trainer::Moment() const {
  return {.at = at_,
          .train_ns = train_ns_,
          .epochs = EpochsSoFar(),
          .learning_rate_factor = learning_rate_factor_};
}

absl::StatusOr<RunCheckpoints::Contents> Trainer::CheckpointContents() {
  HOTROW_RETURN_IF_ERROR(ReadLosses(0));
  RunCheckpoints::Contents out = {.model = run_.Description()};
  out.model.step = run_.tables().steps();
  TrainingState state = before_validation_.value_or(at_);
  state.settings = BitSettings(options_);
  state.processor = run_.processor();
  if (!before_validation_.has_value()) state.policy = policy_.state();
  const std::span<const LearningRateRun> rates = run_.tables().learning_rates();
  state.learning_rates.assign(rates.begin(), rates.end());
  if (run_.loss_scaler() != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(state.loss_scale, run_.loss_scaler()->Save());
  }
  out.model.training = std::make_shared<const TrainingState>(std::move(state));
  HOTROW_ASSIGN_OR_RETURN(out.dense, run_.dense().OnHost());
  return out;
}

absl::Status Trainer::Init(const ModelFactory& factory) {
  HOTROW_RETURN_IF_ERROR(watch_.Start());
  if (windows_ != nullptr) HOTROW_RETURN_IF_ERROR(windows_->Read());
  if (mllog()) LogSettings(options_, schema_, &mllog_);
  HOTROW_RETURN_IF_ERROR(run_.Open(factory, [this] { return CheckpointContents(); }));
  watch_.Attach(&run_);
  if (windows_ != nullptr) HOTROW_RETURN_IF_ERROR(AgreeOnWindows());
  evaluator_.emplace(run_.step_parts(), &data_, &run_.checkpoints(), ctx_);
  const RunStart& start = run_.start();
  if (start.resumed) {
    at_ = *start.saved->training;
    policy_.set_state(at_.policy);
    resumed_samples_ = at_.samples;
    if (windows_ != nullptr) HOTROW_RETURN_IF_ERROR(CheckWindowsGoOn());
  } else if (start.saved.has_value()) {
    at_.first_step = start.saved->step;
    at_.validation_due = windows_ != nullptr;  // the first window, too
  }
  if (!quiet()) {
    std::fputs(run_.Header().c_str(), options_.out);
    if (windows_ != nullptr) {
      const std::span<const DataWindow> windows = windows_->windows();
      std::fprintf(options_.out, "  windows: %s of %s%s\n\n",
                   FormatCount(std::ssize(windows)).c_str(),
                   DurationText(options_.window_seconds).c_str(),
                   windows.empty() ? ""
                                   : absl::StrCat(", from ", windows_->NameOf(windows[0].number),
                                                  " to ", windows_->NameOf(windows.back().number))
                                         .c_str());
    }
    if (const std::string where = watch_.where(); !where.empty()) {
      std::fprintf(options_.out, "  metrics: %s\n\n", where.c_str());
    }
    std::fflush(options_.out);
  }
  if (mllog()) mllog_.End("init_stop");
  return absl::OkStatus();
}

// Above the progress line, so that the two do not mix.
void Trainer::PrintLine(std::string_view line) {
  if (progress_ != nullptr) {
    progress_->Print(line);
  } else if (!quiet()) {
    std::fprintf(options_.out, "%.*s\n", static_cast<int>(line.size()), line.data());
    std::fflush(options_.out);
  }
}

absl::Status Trainer::Step(BatchInFlight* now) {
  const int64_t batch_size = now->item->global_batch_size;
  if (now->item->epoch != at_.last_epoch) {
    HOTROW_RETURN_IF_ERROR(ReadLosses(0));
    at_.last_epoch = now->item->epoch;
    at_.steps_in_last_epoch = 0;
    at_.samples_in_last_epoch = 0;
    at_.loss_sum_in_last_epoch = 0;
    if (windows_ != nullptr) WindowAt(at_.last_epoch);
    if (mllog()) mllog_.Start("epoch_start", {{"epoch_num", at_.last_epoch + 1}});
  }
  const StepPlace place = {
      .run_step = at_.steps + 1,
      .number = static_cast<uint32_t>(at_.first_step + at_.steps + 1),
      .learning_rate_factor =
          static_cast<float>(ScheduleFactor(options_.schedule, at_.steps + 1) * policy_.factor())};
  const absl::StatusOr<std::optional<double>> made = RunStep(run_.step_parts(), ctx_, place, now);
  // Only here, in ReadLosses and in an evaluation does the code mean that: a reader of data has it,
  // too.
  if (absl::IsOutOfRange(made.status())) watch_.Diverged();
  HOTROW_ASSIGN_OR_RETURN(const std::optional<double> loss, made);
  learning_rate_factor_ = place.learning_rate_factor;
  if (AccessRecorder* const recorder = run_.recorder()) {
    const absl::Status recorded = recorder->EndStep(run_.tables().steps(), batch_size);
    if (!recorded.ok()) {
      PrintLine(
          absl::StrCat(std::string(recorded.message()), ": the trace ends here, training goes on"));
    }
  }
  ++at_.steps;
  ++at_.steps_in_last_epoch;
  at_.samples += batch_size;
  at_.samples_in_last_epoch += batch_size;
  const UnreadStep step = {
      .run_step = at_.steps, .batch_size = batch_size, .number = place.number, .item = now->item};
  if (loss.has_value()) {
    CountLoss(step, *loss);
    return absl::OkStatus();
  }
  unread_.push_back(step);
  return ReadLosses(kUnreadSteps);
}

absl::Status Trainer::ReadLosses(int64_t keep) {
  while (std::ssize(unread_) > keep) {
    const UnreadStep step = unread_.front();
    unread_.pop_front();
    const absl::StatusOr<double> loss = ReadLoss(run_.step_parts(), ctx_, step);
    if (absl::IsOutOfRange(loss.status())) watch_.Diverged();
    HOTROW_RETURN_IF_ERROR(loss.status());
    CountLoss(step, *loss);
  }
  return absl::OkStatus();
}

void Trainer::CountLoss(const UnreadStep& step, double loss) {
  at_.loss_sum_in_last_epoch += loss * static_cast<double>(step.batch_size);
  // Over the last hundred steps or so, the mean of all steps while there are fewer.
  at_.recent_loss +=
      (loss - at_.recent_loss) / static_cast<double>(std::min<int64_t>(step.run_step, 100));
}

absl::StatusOr<Evaluation> Trainer::Evaluate(Split split, int64_t epoch, Progress* progress) {
  HOTROW_RETURN_IF_ERROR(run_.dense().UseAverage(true));
  absl::StatusOr<Evaluation> evaluation =
      evaluator_->Evaluate(split, epoch, at_.steps + 1, progress);
  HOTROW_RETURN_IF_ERROR(run_.dense().UseAverage(false));
  if (absl::IsOutOfRange(evaluation.status())) watch_.Diverged();
  return evaluation;
}

absl::StatusOr<Evaluation> Trainer::EvaluateBetweenSteps(Split split, int64_t epoch) {
  watch_.Publish(RunState::kEvaluating, Moment());
  const MlLogger::Metadata epoch_num = {{"epoch_num", EpochsSoFar()}};
  if (mllog()) mllog_.Start("eval_start", epoch_num);
  HOTROW_ASSIGN_OR_RETURN(Evaluation evaluation, Evaluate(split, epoch, /*progress=*/nullptr));
  if (evaluation.metrics.samples > 0 && mllog()) {
    if (!std::isnan(evaluation.metrics.auc)) {
      mllog_.Point("eval_accuracy", evaluation.metrics.auc, epoch_num);
    }
    mllog_.End("eval_stop", epoch_num);
  }
  return evaluation;
}

// The fewest that any rank has: files may not come to all at once. Collective.
absl::Status Trainer::AgreeOnWindows() {
  constexpr int64_t kMany = int64_t{1} << 60;
  HOTROW_ASSIGN_OR_RETURN(const int64_t short_of_many,
                          run_.ranks().Largest(kMany - std::ssize(windows_->windows())));
  num_windows_ = kMany - short_of_many;
  return absl::OkStatus();
}

// Looks for the window of the next batch until it is there; false: it did not come, or the run is
// to stop. Collective.
absl::StatusOr<bool> Trainer::WaitForWindow() {
  PrintLine(absl::StrFormat("step %s: waiting for more than %s windows", FormatCount(at_.steps),
                            FormatCount(num_windows_)));
  const int64_t begin_ns = NowNanos();
  for (int64_t pause_ms = kFollowMillis;; pause_ms = std::min(2 * pause_ms, kFollowMillisMax)) {
    HOTROW_RETURN_IF_ERROR(run_.checkpoints().Poll());
    HOTROW_RETURN_IF_ERROR(run_.ranks().AgreeOnStop());
    if (run_.ranks().stopped()) return false;
    // A rank that finds more reads it, for longer than others wait for a call.
    HOTROW_RETURN_IF_ERROR(
        RankGroup(run_.ranks().channel()).Together([&] { return windows_->Grow().status(); }));
    HOTROW_RETURN_IF_ERROR(AgreeOnWindows());
    if (HasWindow()) return true;
    const bool mine =
        Seconds(NowNanos() - begin_ns) >= static_cast<double>(options_.follow_seconds);
    HOTROW_ASSIGN_OR_RETURN(const int64_t late, run_.ranks().Largest(mine ? 1 : 0));
    if (late != 0) return false;
    for (int64_t ms = 0; ms < pause_ms && run_.ranks().own_signal() == 0; ms += kFollowMillis) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kFollowMillis));
    }
  }
}

// The k-th window in the state, which is there from now on.
TrainedWindow& Trainer::WindowAt(int64_t position) {
  while (std::ssize(at_.windows) <= position) {
    const DataWindow& window = windows_->windows()[at_.windows.size()];
    at_.windows.push_back({.number = window.number, .samples = window.samples});
  }
  return at_.windows[static_cast<size_t>(position)];
}

// Whether the windows that were begun are still there. Others may have come behind them.
absl::Status Trainer::CheckWindowsGoOn() const {
  const std::span<const DataWindow> windows = windows_->windows();
  for (size_t k = 0; k < at_.windows.size(); ++k) {
    const TrainedWindow& was = at_.windows[k];
    const bool is_there = k < windows.size();
    if (is_there && windows[k].number == was.number && windows[k].samples == was.samples) continue;
    std::string now =
        options_.follow_seconds > 0 ? "not there, or not whole for --follow" : "not there";
    if (is_there) {
      now = absl::StrCat("that of ", windows_->NameOf(windows[k].number), " with ",
                         FormatCount(windows[k].samples));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "--resume from ", run_.start().saved->dir, ": window ", k + 1, " was that of ",
        windows_->NameOf(was.number), " with ", FormatCount(was.samples), " samples, and is ", now,
        "; give the data of then, behind which whole windows may be added, or begin again with "
        "another --checkpoint_dir"));
  }
  return absl::OkStatus();
}

// Judges the window of the next batch.
absl::Status Trainer::JudgeWindow() {
  HOTROW_ASSIGN_OR_RETURN(const Evaluation evaluation,
                          EvaluateBetweenSteps(Split::kTrain, at_.epoch));
  if (!evaluation.complete) return absl::OkStatus();
  at_.validation_due = false;
  at_.validated_step = at_.steps;
  at_.valid = evaluation.metrics;
  at_.valid_tasks = evaluation.tasks;
  TrainedWindow& window = WindowAt(at_.epoch);
  window.valid = evaluation.metrics;
  window.valid_tasks = evaluation.tasks;
  window.best_auc = evaluation.best_auc;
  std::string text = absl::StrFormat(
      "window %s, step %s: AUC %s, logloss %.4f before training on its %s samples",
      windows_->NameOf(window.number), FormatCount(at_.steps), FormatMetric(window.valid.auc),
      window.valid.logloss, FormatCount(window.samples));
  if (const int64_t empty = EmptyBefore(at_.windows, static_cast<size_t>(at_.epoch)); empty > 0) {
    absl::StrAppendFormat(&text, "; %s before it without samples", FormatCount(empty));
  }
  PrintLine(text);
  return absl::OkStatus();
}

absl::Status Trainer::Validate(int64_t epoch) {
  HOTROW_ASSIGN_OR_RETURN(const Evaluation evaluation,
                          EvaluateBetweenSteps(Split::kValid, /*epoch=*/0));
  if (!evaluation.complete) return absl::OkStatus();
  const int64_t validated_before = at_.validated_step;
  at_.validation_due = false;
  at_.validated_step = at_.steps;
  if (evaluation.metrics.samples == 0) {
    const char* const flag = stops_early()                               ? "early_stop_patience"
                             : options_.schedule.lr_plateau_patience > 0 ? "lr_plateau_patience"
                             : options_.keep_best                        ? "keep_best"
                                                                         : nullptr;
    if (flag == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " needs validation data, and ", schema_.name, " has none"));
  }
  const ValidationState policy_before = policy_.state();
  const double deciding_auc = DecidingAuc(evaluation);
  // Nothing goes by an AUC that does not exist.
  const ValidationPolicy::Verdict verdict =
      std::isnan(deciding_auc) ? ValidationPolicy::Verdict() : policy_.Observe(deciding_auc);
  if (!keeps_best() || (at_.best_epoch == 0 && std::isnan(deciding_auc))) {
    at_.valid = evaluation.metrics;
    at_.valid_tasks = evaluation.tasks;
  } else if (verdict.better) {
    HOTROW_ASSIGN_OR_RETURN(const Evaluation test,
                            Evaluate(Split::kTest, /*epoch=*/0, /*progress=*/nullptr));
    if (!test.complete) {
      // A signal. As if this validation had not been.
      policy_.set_state(policy_before);
      at_.validation_due = true;
      at_.validated_step = validated_before;
      return absl::OkStatus();
    }
    at_.valid = evaluation.metrics;
    at_.valid_tasks = evaluation.tasks;
    at_.test = test.metrics;
    at_.test_tasks = test.tasks;
    at_.best_auc = test.best_auc;
    at_.best_epoch = epoch + 1;
    at_.best_step = at_.steps;
    HOTROW_RETURN_IF_ERROR(Save());
  }
  at_.stopped_early = verdict.stop;

  std::string text = absl::StrFormat(
      "epoch %d, step %s: validation AUC %s, logloss %.4f", epoch + 1, FormatCount(at_.steps),
      FormatMetric(evaluation.metrics.auc), evaluation.metrics.logloss);
  for (size_t task = 0; task < evaluation.tasks.size(); ++task) {
    absl::StrAppendFormat(&text, "%s%s %s", task == 0 ? "; AUC of " : ", ", schema_.labels[task],
                          FormatMetric(evaluation.tasks[task].auc));
  }
  if (keeps_best() && verdict.better) absl::StrAppend(&text, ", the best so far");
  if (verdict.lowered) absl::StrAppendFormat(&text, ", learning rate x %g", policy_.factor());
  PrintLine(text);
  return absl::OkStatus();
}

// What the schedule goes by.
double Trainer::DecidingAuc(const Evaluation& evaluation) const {
  for (size_t task = 0; task < evaluation.tasks.size(); ++task) {
    if (schema_.labels[task] == options_.validation_task) return evaluation.tasks[task].auc;
  }
  return evaluation.metrics.auc;
}

absl::Status Trainer::Save() {
  if (run_.writer() == nullptr) return absl::OkStatus();
  watch_.Publish(RunState::kSaving, Moment());
  // One snapshot at a time.
  HOTROW_RETURN_IF_ERROR(run_.checkpoints().Wait());
  TraceSpan span(ctx_.trace, "save");
  // Who reads the model knows nothing of the steps that rows have missed. That may write each row
  // again beside the one that a checkpoint holds.
  for (;;) {
    const absl::Status settled = run_.tables().Settle();
    if (settled.ok()) break;
    if (!IsOutOfRoom(settled)) return settled;
    HOTROW_RETURN_IF_ERROR(run_.checkpoints().MakeRoom(settled));
  }
  HOTROW_ASSIGN_OR_RETURN(const DenseArrays<const float> dense, run_.dense().OnHost());
  SavedModel model = run_.Description();
  const std::span<const LearningRateRun> rates = run_.tables().learning_rates();
  model.scoring->first_step = at_.first_step;
  model.scoring->learning_rates.assign(rates.begin(), rates.end());
  HOTROW_RETURN_IF_ERROR(run_.writer()->Save(std::move(model), run_.tables(), dense));
  saved_step_ = run_.tables().steps();
  return absl::OkStatus();
}

void Trainer::ShowProgress() {
  if (progress_ == nullptr) return;
  const int64_t now = NowNanos();
  if (now < next_text_ns_) return;
  next_text_ns_ = now + kTextEveryNanos;
  std::string text = absl::StrFormat("loss %.4f", at_.recent_loss);
  if (run_.collection_options().cache.bytes > 0 ||
      run_.collection_options().cache.device_bytes > 0) {
    const EmbeddingStats stats = run_.tables().Stats();
    const TierStats& cache = stats.tiers.front();
    if (cache.lookups > 0) {
      absl::StrAppendFormat(
          &text, ", hits %.1f %%",
          100.0 * static_cast<double>(cache.lookup_hits) / static_cast<double>(cache.lookups));
    }
  }
  progress_->Update(at_.samples, text);
}

// One batch, or the end of an epoch. Nothing has changed when it fails for want of room, but the
// pipeline.
absl::Status Trainer::TrainOne() {
  const int64_t begin = NowNanos();
  HOTROW_RETURN_IF_ERROR(pipeline_->Fill());
  if (pipeline_->empty()) return absl::OkStatus();
  BatchInFlight& now = pipeline_->front();
  if (now.item->ends_epoch()) {
    HOTROW_RETURN_IF_ERROR(ReadLosses(0));
    if (windows_ != nullptr) {
      WindowAt(now.item->epoch).train_logloss =
          at_.loss_sum_in_last_epoch / static_cast<double>(at_.samples_in_last_epoch);
    }
    ++at_.epochs_done;
    at_.validation_due = at_.validated_step != at_.steps;
    at_.epoch = now.item->epoch + 1;
    at_.samples_in_epoch = at_.batches_in_epoch = 0;
    train_ns_ += NowNanos() - begin;
    if (mllog()) mllog_.End("epoch_stop", {{"epoch_num", at_.epoch}});
  } else {
    HOTROW_RETURN_IF_ERROR(Step(&now));
    at_.epoch = now.item->epoch;
    at_.samples_in_epoch += now.item->global_batch_size;
    ++at_.batches_in_epoch;
    const int64_t nanos = NowNanos() - begin;
    train_ns_ += nanos;
    step_times_.Add(nanos);
    watch_.StepMade(nanos, Moment());
    const int64_t every = options_.validation_freq_within_epoch;
    at_.validation_due = every > 0 && at_.steps_in_last_epoch % every == 0;
    ShowProgress();
  }
  pipeline_->Pop();
  return absl::OkStatus();
}

// Of the batches from here on.
void Trainer::OpenPipeline() {
  BatchReaderOptions reader = ReaderOptions(Split::kTrain, options_.batch_size, run_.ranks().rank(),
                                            run_.ranks().world_size(), ctx_);
  reader.epochs = windows_ != nullptr ? num_windows_ : options_.epochs;
  reader.limit_batches = options_.limit_train_batches;
  reader.first_epoch = at_.epoch;
  reader.first_sample = at_.samples_in_epoch;
  reader.first_batch = at_.batches_in_epoch;
  reader.trace = ctx_.trace;
  pipeline_ = std::make_unique<BatchPipeline>(&data_, reader, &run_.tables(),
                                              options_.prefetch_depth, ctx_.trace);
}

absl::Status Trainer::Train() {
  OpenPipeline();
  while (!run_.ranks().stopped()) {
    // Behind the last window it stays due, for a run that goes on with more of them.
    if (at_.validation_due && (windows_ == nullptr || HasWindow())) {
      HOTROW_RETURN_IF_ERROR(ReadLosses(0));
      before_validation_ = at_;
      before_validation_->policy = policy_.state();
      // At the end of an epoch its successor is the one to come.
      HOTROW_RETURN_IF_ERROR(windows_ != nullptr
                                 ? JudgeWindow()
                                 : Validate(at_.batches_in_epoch == 0 ? at_.epoch - 1 : at_.epoch));
      before_validation_.reset();
    }
    const bool at_border = windows_ != nullptr && at_.batches_in_epoch == 0 && at_.steps > 0;
    HOTROW_RETURN_IF_ERROR(run_.checkpoints().Carry(at_border));
    if (run_.ranks().stopped() || at_.stopped_early) break;
    if (pipeline_->ended()) {
      if (options_.follow_seconds == 0) break;
      pipeline_.reset();
      HOTROW_ASSIGN_OR_RETURN(const bool more, WaitForWindow());
      if (!more) break;
      OpenPipeline();
      continue;
    }
    const absl::Status status = TrainOne();
    if (status.ok()) {
      run_.checkpoints().StepMade();
      continue;
    }
    if (!IsOutOfRoom(status)) return status;
    HOTROW_RETURN_IF_ERROR(run_.checkpoints().MakeRoom(status));
    HOTROW_RETURN_IF_ERROR(pipeline_->PrefetchAgain());
  }
  HOTROW_RETURN_IF_ERROR(ReadLosses(0));
  pipeline_.reset();
  return run_.checkpoints().End();
}

absl::Status Trainer::Test() {
  // With keeps_best() the test metrics are those of the best validation, if there was one.
  if (run_.ranks().stopped() || at_.best_epoch > 0) return absl::OkStatus();
  watch_.Publish(RunState::kEvaluating, Moment());
  std::optional<Progress> progress;
  if (!quiet()) progress.emplace(options_.out, "test", "samples", schema_.test_samples);
  HOTROW_ASSIGN_OR_RETURN(const Evaluation test,
                          Evaluate(Split::kTest, /*epoch=*/0, progress ? &*progress : nullptr));
  at_.test = test.metrics;
  at_.test_tasks = test.tasks;
  at_.best_auc = test.best_auc;
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  if (mllog()) mllog_.Start("run_start");
  absl::Status status;
  {
    std::optional<Progress> line;
    if (!quiet()) line.emplace(options_.out, "train", "samples", TotalSamples());
    if (line.has_value()) line->StartAt(resumed_samples_);
    if (line.has_value() && stops_early()) line->MayEndEarly();
    progress_ = line.has_value() ? &*line : nullptr;
    status = Train();
    // Without a best validation there is nothing better to save than what is here.
    if (status.ok() && at_.best_epoch == 0) status = Save();
    if (progress_ != nullptr) {
      progress_->Update(at_.samples, absl::StrFormat("loss %.4f", at_.recent_loss));
    }
    progress_ = nullptr;
  }
  if (status.ok()) status = Test();
  if (mllog()) {
    const bool whole = status.ok() && !run_.ranks().stopped();
    mllog_.End("run_stop", {{"status", std::string(whole ? "success" : "aborted")}});
  }
  return status;
}

absl::StatusOr<TrainReport> Trainer::Report() {
  TrainReport report;
  // Before the digest, whose flush would add write-backs.
  HOTROW_ASSIGN_OR_RETURN(report.tables, run_.tables().GlobalStats());
  if (options_.digest) {
    TraceSpan span(ctx_.trace, "digest");
    HOTROW_ASSIGN_OR_RETURN(report.digest, run_.tables().Digest());
    HOTROW_ASSIGN_OR_RETURN(const Hash128 dense_hash, run_.dense().Hash());
    report.dense_hash = dense_hash.ToHex();
  }
  if (run_.loss_scaler() != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(report.loss_scale, run_.loss_scaler()->Save());
  }
  report.graph_steps = run_.graph_launches();
  report.fused_lookup_steps = run_.fused_lookups();
  report.unfused_products = UnfusedProducts();
  report.model = run_.model().name();
  report.weights_precision = options_.weights_precision;
  report.samples = at_.samples;
  report.steps = at_.steps;
  report.epochs = at_.epochs_done;
  report.threads = run_.threads();
  report.device = DeviceName(ctx_.device);
  report.train_seconds = Seconds(train_ns_);
  report.step_ms_p50 = 1e-6 * static_cast<double>(step_times_.Quantile(0.5));
  report.step_ms_p99 = 1e-6 * static_cast<double>(step_times_.Quantile(0.99));
  report.step_ms_max = 1e-6 * static_cast<double>(step_times_.max());
  if (at_.samples_in_last_epoch > 0) {
    report.train_logloss =
        at_.loss_sum_in_last_epoch / static_cast<double>(at_.samples_in_last_epoch);
  }
  report.resumed_from_step = at_.first_step;
  report.checkpoints = run_.checkpoints().stats();
  report.checkpoint = run_.checkpoints().newest_dir();
  report.resumed_step = run_.start().resumed_step();
  report.resumed_samples = resumed_samples_;
  report.valid = at_.valid;
  report.test = at_.test;
  for (size_t task = 0; task < schema_.labels.size() && schema_.labels.size() > 1; ++task) {
    report.tasks.push_back({.label = schema_.labels[task]});
    if (task < at_.valid_tasks.size()) report.tasks.back().valid = at_.valid_tasks[task];
    if (task < at_.test_tasks.size()) report.tasks.back().test = at_.test_tasks[task];
  }
  report.best_epoch = at_.best_epoch;
  report.best_step = at_.best_step;
  report.stopped_early = at_.stopped_early;
  report.saved_step = saved_step_;
  report.best_auc = at_.best_auc;
  report.window_seconds = options_.window_seconds;
  report.windows = at_.windows;
  if (AccessRecorder* const recorder = run_.recorder()) {
    report.access_trace = run_.access_trace();
    report.access_status = recorder->Close();
    AccessRecorder::SumOverRanks sum;
    if (run_.ranks().many()) {
      sum = [this](std::span<double> numbers) {
        return run_.ranks().channel()->AllReduceSum(numbers);
      };
    }
    HOTROW_ASSIGN_OR_RETURN(report.mrc, recorder->Curves(sum));
  }
  report.num_parameters = static_cast<int64_t>(run_.model().parameters().size());
  report.cache_bytes = run_.collection_options().cache.bytes;
  report.device_cache_bytes = run_.collection_options().cache.device_bytes;
  report.store_bytes = FieldsOf(run_.collection_options().store).memory_bytes;
  report.world_size = run_.ranks().world_size();
  HOTROW_ASSIGN_OR_RETURN(report.exchange_dense_bytes, run_.ranks().Sum(run_.dense().bytes_sent()));
  report.stopped_by_signal = run_.ranks().signal();
  if (ctx_.trace != nullptr) report.stages = ctx_.trace->StageTotals();
  HOTROW_ASSIGN_OR_RETURN(report.peak_rss_bytes, run_.ranks().Largest(PeakResidentBytes()));
  HOTROW_ASSIGN_OR_RETURN(const int64_t cpu_us,
                          run_.ranks().Sum(static_cast<int64_t>(1e6 * ProcessCpuSeconds())));
  report.cpu_seconds = 1e-6 * static_cast<double>(cpu_us);
  report.seconds = Seconds(NowNanos() - begin_ns_);
  return report;
}

void Trainer::EndWatch(bool ok) {
  if (!ok) watch_.Failed();
  const absl::Status closed = watch_.Close();
  // A run is worth more than the numbers of it.
  if (closed.ok() || options_.notices == nullptr) return;
  std::fprintf(options_.notices, "--metrics_file=%s: %s: numbers of a while are missing there\n",
               options_.metrics_file.c_str(), std::string(closed.message()).c_str());
}

}  // namespace

absl::StatusOr<TrainReport> RunTraining(const TrainerOptions& options, DataSource& data,
                                        const ModelFactory& factory, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(CheckLowerBounds(options));
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::optional<WindowedSource> windows;
  if (options.window_seconds > 0) {
    windows.emplace(&data, options.window_seconds, /*grows=*/options.follow_seconds > 0);
  }
  Trainer trainer(options, windows.has_value() ? *windows : data,
                  windows.has_value() ? &*windows : nullptr, ctx);
  const auto run = [&]() -> absl::StatusOr<TrainReport> {
    HOTROW_RETURN_IF_ERROR(trainer.Init(factory));
    HOTROW_RETURN_IF_ERROR(trainer.Run());
    HOTROW_ASSIGN_OR_RETURN(TrainReport report, trainer.Report());
    HOTROW_RETURN_IF_ERROR(trainer.Close());
    return report;
  };
  absl::StatusOr<TrainReport> report = run();
  // The others wait for this rank and should know why they do so in vain, before it leaves.
  if (!report.ok() && options.communicator != nullptr) {
    options.communicator->Abort(std::string(report.status().message()));
  }
  // Behind that: a disk that hangs may hold this up.
  trainer.EndWatch(report.ok());
  return report;
}

}  // namespace hotrow
