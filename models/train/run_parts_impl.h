#ifndef HOTROW_MODELS_TRAIN_RUN_PARTS_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_PARTS_IMPL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_model_writer.h"
#include "models/saving/training_state.h"
#include "models/train/access_recorder.h"
#include "models/train/dense_state_impl.h"
#include "models/train/loss_scaler_impl.h"
#include "models/train/run_checkpoints_impl.h"
#include "models/train/run_ranks_impl.h"
#include "models/train/run_start_impl.h"
#include "models/train/step_buffers_impl.h"
#include "models/train/step_graph_impl.h"
#include "models/train/train_step_impl.h"
#include "models/train/trainer.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

// The parts of one run. Makes them in an order that refuses what does not fit before it costs
// anything, loads what the run starts from, and owns them.
//
// Threads: one call at a time, on the thread that trains.
class RunParts {
 public:
  // What it is given outlives it. print: takes lines for people.
  RunParts(const TrainerOptions& options, DataSource& data, const ExecContext& ctx,
           std::function<void(std::string_view)> print);

  // All else needs it. Collective. contents: of a checkpoint of the moment when it is called.
  // Errors: those of RunTraining. After one the parts stay until this is destroyed, as other ranks
  // may still wait for them.
  absl::Status Open(const ModelFactory& factory,
                    std::function<absl::StatusOr<RunCheckpoints::Contents>()> contents);

  RunRanks& ranks() { return ranks_; }
  const RunStart& start() const { return start_; }
  const std::string& processor() const { return processor_; }  // TrainingState::processor
  CtrModel& model() { return *model_; }
  const EmbeddingCollectionOptions& collection_options() const { return collection_options_; }
  EmbeddingCollection& tables() { return *tables_; }
  DenseState& dense() { return *dense_; }
  int64_t graph_launches() const { return graph_.has_value() ? graph_->launches() : 0; }
  int64_t fused_lookups() const { return fused_lookups_; }
  LossScaler* loss_scaler() { return loss_scaler_.get(); }  // null: the loss is not scaled
  RunCheckpoints& checkpoints() { return *checkpoints_; }
  SavedModelWriter* writer() { return writer_.get(); }    // null: no --save_dir
  AccessRecorder* recorder() { return recorder_.get(); }  // null: neither --record_trace nor --mrc
  const std::string& access_trace() const { return access_trace_; }  // empty: none
  const StepParts& step_parts() const { return *step_parts_; }
  int32_t threads() const { return ctx_.pool == nullptr ? 1 : ctx_.pool->num_threads(); }

  // The model as it is here, without rows and parts.
  SavedModel Description() const;
  // FormatRunHeader of them.
  std::string Header() const;

 private:
  absl::Status CreateTables(std::function<absl::StatusOr<RunCheckpoints::Contents>()> contents);
  absl::Status OpenRecorder();
  absl::Status WriteInitRows();
  absl::Status LoadStart();

  const TrainerOptions& options_;
  Env& env_;
  DataSource& data_;
  const DataSchema& schema_;
  const ExecContext ctx_;
  const std::function<void(std::string_view)> print_;
  RunRanks ranks_;
  RunStart start_;
  std::string processor_;
  std::shared_ptr<const std::string> vocabulary_bytes_;  // of the data; null: they have none
  std::string residuals_anew_;  // why residuals of gradients begin at zero; empty: they do not
  std::unique_ptr<CtrModel> model_;
  EmbeddingCollectionOptions collection_options_;
  std::unique_ptr<AccessRecorder> recorder_;  // the tables call it
  std::string access_trace_;
  std::unique_ptr<EmbeddingCollection> tables_;
  // What follows uses the tables.
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<DenseState> dense_;
  std::unique_ptr<LossScaler> loss_scaler_;
  std::optional<StepGraph> graph_;
  int64_t fused_lookups_ = 0;
  std::unique_ptr<SavedModelWriter> writer_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::optional<StepParts> step_parts_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_PARTS_IMPL_H_
