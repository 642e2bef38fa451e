#include "models/train/run_parts_impl.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "comm/compare_ranks.h"
#include "embedding/storage_fields.h"
#include "models/data/table_schema_text.h"
#include "models/data/vocabulary.h"
#include "models/saving/saved_model_fit.h"
#include "models/saving/saved_part.h"
#include "models/saving/store_paths.h"
#include "models/saving/training_state.h"
#include "models/train/pretrained_rows.h"
#include "models/train/run_header_impl.h"
#include "models/train/run_settings.h"
#include "models/train/spec_writer.h"
#include "models/zoo/model_parts.h"
#include "ops/training/dense_optimizer.h"
#include "store/store_facts.h"

namespace hotrow {

namespace {

// Whether model, labels and what the options say of tasks go together.
absl::Status CheckTasks(const TrainerOptions& options, const DataSchema& schema,
                        const CtrModel& model) {
  const auto labels = static_cast<int64_t>(schema.labels.size());
  const std::string names = absl::StrJoin(schema.labels, ", ");
  if (labels != model.num_tasks() && model.num_tasks() == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        schema.name, " has ", labels, " labels (", names,
        "), this model learns one; leave one column with \"role\": \"label\" in the schema, or "
        "use mmoe"));
  }
  if (labels != model.num_tasks()) {
    return absl::InvalidArgumentError(absl::StrCat(schema.name, " has ", labels, " labels (", names,
                                                   "), this model learns ", model.num_tasks()));
  }
  if (!options.task_weights.empty() && std::ssize(options.task_weights) != labels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--task_weights has ", options.task_weights.size(), " numbers, and ", schema.name, " ",
        labels, " labels (", names, "); give one for each, in this order"));
  }
  if (!options.validation_task.empty() &&
      std::ranges::find(schema.labels, options.validation_task) == schema.labels.end()) {
    return absl::InvalidArgumentError(absl::StrCat("--validation_task=", options.validation_task,
                                                   ": ", schema.name, " has no such label, only ",
                                                   names));
  }
  return absl::OkStatus();
}

ScoringData ScoringDataOf(const TrainerOptions& options, const DataSource& data) {
  ScoringData out = {.labels = data.schema().labels};
  for (const DataFeature& feature : data.schema().features) {
    out.features.push_back(
        {.num_embeddings = feature.num_embeddings, .max_hotness = feature.max_hotness});
  }
  if (const TableSchema* const schema = data.table_schema()) {
    out.table_schema = TableSchemaText(*schema);
  }
  out.settings = ScoringSettings(options);
  return out;
}

}  // namespace

RunParts::RunParts(const TrainerOptions& options, DataSource& data, const ExecContext& ctx,
                   std::function<void(std::string_view)> print)
    : options_(options),
      env_(options.env != nullptr ? *options.env : PosixEnv()),
      data_(data),
      schema_(data.schema()),
      ctx_(ctx),
      print_(std::move(print)),
      ranks_(options.communicator, options.stop_signal) {
  if (const Vocabulary* const vocabulary = data.vocabulary()) {
    vocabulary_bytes_ = std::make_shared<std::string>(vocabulary->Encode());
  }
}

SavedModel RunParts::Description() const {
  SavedModel out;
  out.model = std::string(model_->name());
  out.shape = options_.shape;
  out.num_dense = schema_.num_dense;
  for (const DataFeature& feature : schema_.features) {
    out.features.push_back({feature.name, feature.table});
  }
  for (const TableConfig& table : collection_options_.tables) {
    out.tables.push_back({.name = table.name,
                          .dim = table.embedding_dim,
                          .optimizer = std::string(SparseOptimizerName(table.optimizer.kind)),
                          .weights_precision = table.weights_precision,
                          .initializer = table.initializer,
                          .score = table.score});
  }
  out.vocabulary_bytes = vocabulary_bytes_;
  out.scoring = ScoringDataOf(options_, data_);
  out.seed = options_.seed;
  out.dense_optimizer = std::string(DenseOptimizerName(options_.dense_optimizer.kind));
  out.num_parameters = static_cast<int64_t>(model_->parameters().size());
  out.parts = {{.store = std::string(StoreKindName(options_.store)),
                .tables_dir = FieldsOf(collection_options_.store).dir}};
  return out;
}

absl::Status RunParts::CreateTables(
    std::function<absl::StatusOr<RunCheckpoints::Contents>()> contents) {
  EmbeddingCollectionOptions& options = collection_options_;
  options.env = &env_;
  options.ranks.communicator = ranks_.channel();
  StorageFields storage = FieldsOf(options.store);
  if (FactsOf(storage.kind).on_disk) {
    storage.dir = RankDir(storage.dir, ranks_.rank(), ranks_.world_size());
    for (std::string& dir : storage.more_dirs) {
      dir = RankDir(dir, ranks_.rank(), ranks_.world_size());
    }
  } else if (checkpoints_->enabled()) {
    storage.dir = checkpoints_->tables_dir();
  } else if (writer_ != nullptr) {
    storage.dir = writer_->tables_dir();
  }
  options.store = MakeStorage(storage);
  HOTROW_RETURN_IF_ERROR(OpenTablesFrom(start_, &options));
  // What a run leaves in its store that was killed before its first checkpoint.
  options.start.start_over = options_.resume;
  HOTROW_RETURN_IF_ERROR(ResolveBudgets(options_, ctx_.device, &options));
  // With the budgets as they are used, and before anything is made on a disk.
  if (!options_.save_spec.empty() && ranks_.rank() == 0) {
    HOTROW_RETURN_IF_ERROR(
        SaveSpec(SpecSourceOf(options_, options, schema_, model_->layers(), ranks_.world_size()),
                 env_, options_.save_spec));
  }
  if (!options_.record_trace.empty() || options_.mrc) {
    options.on_update = [this](uint32_t table, std::span<const RowKey> keys,
                               std::span<const int32_t> lookups) {
      recorder_->Add(table, keys, lookups);
    };
  }
  HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(options, ctx_));
  HOTROW_RETURN_IF_ERROR(
      checkpoints_->Attach(tables_.get(), Description().parts[0].tables_dir, std::move(contents)));
  if (!start_.saved.has_value()) return absl::OkStatus();
  const bool counted = std::any_of(start_.saved->tables.begin(), start_.saved->tables.end(),
                                   [](const SavedModel::Table& table) { return table.rows >= 0; });
  if (!counted) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables_->Digest());
  return CheckSavedTables(*start_.saved, digest);
}

absl::Status RunParts::OpenRecorder() {
  if (collection_options_.on_update == nullptr) return absl::OkStatus();
  AccessRecorderOptions recorder = {.trace_sample_rate = options_.sample_rate,
                                    .curves = options_.mrc,
                                    .seed = options_.seed,
                                    .env = &env_};
  for (const TableConfig& table : collection_options_.tables) {
    recorder.tables.push_back(table.name);
  }
  if (!options_.record_trace.empty()) {
    recorder.trace_path = access_trace_ = AccessTracePath(
        options_.record_trace, ranks_.rank(), ranks_.world_size(), start_.resumed_step());
  }
  HOTROW_ASSIGN_OR_RETURN(recorder_, AccessRecorder::Open(recorder));
  return absl::OkStatus();
}

absl::Status RunParts::WriteInitRows() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PretrainedRows> pretrained,
                          ParsePretrainedRows(options_.init_rows));
  for (const PretrainedRows& rows : pretrained) {
    const absl::StatusOr<int64_t> written = WritePretrainedRows(
        env_, rows, options_.embedding_dim, ranks_.rank(), ranks_.world_size(), tables_.get());
    if (written.ok()) continue;
    return {written.status().code(),
            absl::StrCat("--init_rows: ", std::string(written.status().message()))};
  }
  return absl::OkStatus();
}

absl::Status RunParts::LoadStart() {
  if (!start_.resumed) HOTROW_RETURN_IF_ERROR(WriteInitRows());
  if (!start_.saved.has_value()) return checkpoints_->StartAt(0, /*resumed_steps=*/0);
  const SavedModel& saved = *start_.saved;
  HOTROW_RETURN_IF_ERROR(dense_->Load(env_, saved));
  HOTROW_ASSIGN_OR_RETURN(residuals_anew_, LoadResiduals(start_, ranks_, env_, tables_.get()));
  if (start_.resumed) HOTROW_RETURN_IF_ERROR(LoadSavedCounters(env_, saved, tables_.get()));
  if (start_.resumed && loss_scaler_ != nullptr && saved.training->loss_scale.has_value()) {
    HOTROW_RETURN_IF_ERROR(loss_scaler_->Load(*saved.training->loss_scale));
  }
  if (start_.resumed) {
    return checkpoints_->StartAt(saved.training->first_step, saved.training->steps);
  }
  return checkpoints_->StartAt(saved.step, /*resumed_steps=*/0);
}

absl::Status RunParts::Open(const ModelFactory& factory,
                            std::function<absl::StatusOr<RunCheckpoints::Contents>()> contents) {
  HOTROW_RETURN_IF_ERROR(ranks_.Connect());
  // Before anything is read or made that depends on them: ranks that differ would train another
  // model than anybody asked for, or wait for each other in different calls.
  if (ranks_.many()) {
    HOTROW_ASSIGN_OR_RETURN(const NamedValues mine, RankSettings(options_, data_));
    HOTROW_RETURN_IF_ERROR(CompareRanks(*ranks_.channel(), mine));
  }
  // Before anything is read there: it takes the directory's lock.
  HOTROW_ASSIGN_OR_RETURN(checkpoints_,
                          RunCheckpoints::Open(options_, env_, ctx_.trace, ranks_, print_));
  HOTROW_ASSIGN_OR_RETURN(start_, FindStart(options_, env_));
  HOTROW_ASSIGN_OR_RETURN(model_, factory(schema_));
  HOTROW_RETURN_IF_ERROR(CheckTasks(options_, schema_, *model_));
  HOTROW_RETURN_IF_ERROR(CheckDevice(*model_, ctx_.device));
  HOTROW_RETURN_IF_ERROR(CheckReadOnly(options_, schema_));
  collection_options_ = CollectionOptions(options_, schema_, model_->unpooled_features());
  HOTROW_RETURN_IF_ERROR(CheckStart(start_, options_, Description()));
  HOTROW_RETURN_IF_ERROR(CheckVocabulary(start_, options_, data_.vocabulary(), env_));
  HOTROW_RETURN_IF_ERROR(CompareStarts(start_, *model_, ranks_, ctx_));
  HOTROW_ASSIGN_OR_RETURN(processor_, FindProcessor(start_, ctx_.device, ranks_, options_.notices));
  if (!options_.save_dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(writer_,
                            SavedModelWriter::Open(&env_, options_.save_dir, ranks_.channel()));
  }
  HOTROW_RETURN_IF_ERROR(CreateTables(std::move(contents)));
  // The size of this rank's slice.
  const int64_t batch_size = CeilDiv(options_.batch_size, int64_t{ranks_.world_size()});
  std::vector<int64_t> max_lengths;
  for (const int32_t feature : model_->unpooled_features()) {
    max_lengths.push_back(schema_.features[static_cast<size_t>(feature)].max_hotness);
  }
  // Where the model takes them, on one rank of a GPU, rows are read where they lie.
  const bool fuses_lookup =
      options_.fuse_lookup && ctx_.device != Device::kCpu && !ranks_.many() && model_->reads_rows();
  HOTROW_ASSIGN_OR_RETURN(
      buffers_,
      StepBuffers::Create(
          ctx_, {.batch_size = batch_size,
                 .pooled_dim = tables_->pooled_dim(),
                 .num_tasks = model_->num_tasks(),
                 .unpooled_features = model_->unpooled_features(),
                 .columns = options_.embedding_dim,
                 .max_lengths = std::move(max_lengths),
                 .num_dense = schema_.num_dense,
                 .num_rows = fuses_lookup ? tables_->pooled_dim() / options_.embedding_dim : 0}));
  HOTROW_ASSIGN_OR_RETURN(
      dense_, DenseState::Create(options_, model_.get(), ranks_.TakeSumChannel(), ctx_));
  if (options_.precision == DensePrecision::kFp16) {
    HOTROW_ASSIGN_OR_RETURN(loss_scaler_, LossScaler::Create(ctx_, options_.loss_scale));
  }
  if (options_.cuda_graph && !ranks_.many() && StepGraph::Serves(*model_)) {
    graph_.emplace(batch_size);
  }
  step_parts_.emplace(StepParts{.options = options_,
                                .model = *model_,
                                .tables = *tables_,
                                .buffers = *buffers_,
                                .dense = *dense_,
                                .loss_scaler = loss_scaler_.get(),
                                .graph = graph_.has_value() ? &*graph_ : nullptr,
                                .fused_lookups = fuses_lookup ? &fused_lookups_ : nullptr,
                                .ranks = ranks_,
                                .schema = schema_});
  HOTROW_RETURN_IF_ERROR(LoadStart());
  // Last: a run that is refused leaves an older trace as it is.
  return OpenRecorder();
}

std::string RunParts::Header() const {
  return FormatRunHeader({.options = options_,
                          .schema = schema_,
                          .collection = collection_options_,
                          .start = start_,
                          .model = model_->name(),
                          .num_parameters = static_cast<int64_t>(model_->parameters().size()),
                          .residuals_anew = residuals_anew_,
                          .world_size = ranks_.world_size(),
                          .threads = threads(),
                          .device = ctx_.device});
}

}  // namespace hotrow
