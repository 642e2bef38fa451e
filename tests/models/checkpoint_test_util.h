#ifndef HOTROW_TESTS_MODELS_CHECKPOINT_TEST_UTIL_H_
#define HOTROW_TESTS_MODELS_CHECKPOINT_TEST_UTIL_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/data/data_source.h"
#include "models/data/open_data_source.h"
#include "models/train/trainer.h"
#include "models/zoo/dlrm_model.h"

// What the tests of checkpoints share: a small run in which everything is used that a checkpoint
// must keep, and what it ends with.
namespace hotrow::test {

// Calls back before each batch of each split; an error of the callback is one of the data.
class WatchedData : public DataSource {
 public:
  using Watch = std::function<absl::Status(Split split, int64_t epoch, int64_t sample)>;
  WatchedData(std::unique_ptr<DataSource> base, Watch watch)
      : base_(std::move(base)), watch_(std::move(watch)) {}
  const DataSchema& schema() const override { return base_->schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataReader> reader,
                            base_->OpenSplit(split, epoch, first_sample));
    return std::make_unique<Reader>(this, split, epoch, std::move(reader));
  }

 private:
  class Reader : public DataReader {
   public:
    Reader(WatchedData* source, Split split, int64_t epoch, std::unique_ptr<DataReader> base)
        : source_(source), split_(split), epoch_(epoch), base_(std::move(base)) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      HOTROW_RETURN_IF_ERROR(source_->watch_(split_, epoch_, base_->position()));
      return base_->Next(max_batch_size, batch);
    }
    int64_t position() const override { return base_->position(); }

   private:
    WatchedData* source_;
    Split split_;
    int64_t epoch_;
    std::unique_ptr<DataReader> base_;
  };

  std::unique_ptr<DataSource> base_;
  Watch watch_;
};

inline constexpr char kSmallData[] =
    "synthetic:tables=3,rows=300,dense=2,shared=2,hotness=0-3,samples=480,valid=90,test=90";
inline constexpr int64_t kSmallSteps = 30;  // 3 epochs of 10 batches

// Adam for tables and dense parameters, a schedule, a plateau, validation within epochs.
inline TrainerOptions SmallRun() {
  TrainerOptions options;
  options.batch_size = 48;
  options.epochs = 3;
  options.validation_freq_within_epoch = 4;
  options.embedding_dim = 8;
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.table_optimizer.learning_rate = 0.01f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdam;
  options.dense_optimizer.learning_rate = 0.01f;
  options.schedule = {.lr_warmup_steps = 5,
                      .lr_decay_start = 20,
                      .lr_decay_steps = 20,
                      .lr_plateau_factor = 0.5,
                      .lr_plateau_patience = 1};
  options.seed = 3;
  options.store_bytes = int64_t{16} << 20;
  options.settings = {{"data", kSmallData}};
  return options;
}

// A DLRM with dropout, whose draws depend on the step, and batch norm, which keeps statistics.
inline ModelFactory SmallModel(const TrainerOptions& options) {
  return [options](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    const DlrmOptions network = {{.num_dense = schema.num_dense,
                                  .num_sparse = static_cast<int32_t>(schema.features.size()),
                                  .embedding_dim = options.embedding_dim,
                                  .over_arch_layer_sizes = {8, 1},
                                  .dropout = 0.25f,
                                  .batch_norm = true,
                                  .seed = options.seed,
                                  .max_batch_size = options.batch_size},
                                 {8, options.embedding_dim}};
    return DlrmModel::Create(network);
  };
}

inline absl::StatusOr<TrainReport> RunSmall(const TrainerOptions& options,
                                            const WatchedData::Watch& watch,
                                            const ExecContext& ctx = {},
                                            const std::string& data = kSmallData) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> source,
                          OpenDataSource(data, 5, {.shuffle_bytes = options.shuffle_bytes}));
  WatchedData watched(std::move(source), watch);
  return RunTraining(options, watched, SmallModel(options), ctx);
}
inline absl::StatusOr<TrainReport> RunSmall(const TrainerOptions& options,
                                            const ExecContext& ctx = {}) {
  return RunSmall(
      options, [](Split, int64_t, int64_t) { return absl::OkStatus(); }, ctx);
}

// Everything in which a run that was interrupted must end like one that was not.
inline std::string EndOf(const TrainReport& report) {
  const auto metrics = [](const CtrMetrics& m) {
    return absl::StrFormat("%d %.17g %.17g %.17g %.17g", m.samples, m.auc, m.logloss, m.ne,
                           m.calibration);
  };
  return absl::StrFormat(
      "tables %s dense %s; %d steps %d samples %d epochs; loss %.17g; best %d %d %d; valid %s; "
      "test %s",
      report.digest.hash.ToHex(), report.dense_hash, report.steps, report.samples, report.epochs,
      report.train_logloss, report.best_epoch, report.best_step, report.stopped_early,
      metrics(report.valid), metrics(report.test));
}

// What a run prints.
class Output {
 public:
  Output() : file_(std::tmpfile()) {}
  ~Output() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string Text() {
    std::fflush(file_);
    std::string text(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }

 private:
  std::FILE* file_;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_CHECKPOINT_TEST_UTIL_H_
