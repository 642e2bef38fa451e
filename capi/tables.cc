#include "capi/tables_impl.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/options_impl.h"
#include "embedding/storage_fields.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model_fit.h"
#include "models/saving/saved_part.h"
#include "models/saving/store_paths.h"
#include "models/saving/training_state.h"
#include "store/store_facts.h"

namespace hotrow::capi {
namespace {

constexpr char kModel[] = "custom";
// A manifest names the optimizer of the dense parameters; what the caller has is in blobs.
constexpr char kDenseOptimizer[] = "sgd";

struct Start {
  std::optional<SavedModel> saved;
  bool resumed = false;
};

absl::StatusOr<Start> FindStart(const hotrow_collection_options& options, Env& env) {
  Start start;
  const std::string dir(TextOf(options.checkpoint_dir));
  if (options.resume != 0 && dir.empty()) {
    return absl::InvalidArgumentError("resume: needs a checkpoint_dir");
  }
  if (!dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListCheckpoints(env, dir));
    if (!names.empty() && options.resume == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint_dir: ", dir, " holds checkpoints, the newest is ", names.back(),
                       "; set resume to go on from it, or give another directory"));
    }
    if (!names.empty()) {
      HOTROW_ASSIGN_OR_RETURN(start.saved, ReadCheckpoint(env, dir));
      start.resumed = true;
    }
  }
  if (!start.resumed && options.init_from != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(start.saved, ReadCheckpoint(env, options.init_from));
  }
  return start;
}

// What a checkpoint of these tables says of them.
SavedModel Description(const hotrow_collection_options& in,
                       const EmbeddingCollectionOptions& options) {
  SavedModel out;
  out.model = in.checkpoint_model == nullptr ? kModel : in.checkpoint_model;
  out.dense_optimizer = kDenseOptimizer;
  out.seed = options.seed;
  for (const TableConfig& table : options.tables) {
    out.tables.push_back({.name = table.name,
                          .dim = table.embedding_dim,
                          .optimizer = std::string(SparseOptimizerName(table.optimizer.kind)),
                          .weights_precision = table.weights_precision,
                          .initializer = table.initializer,
                          .score = table.score});
  }
  const auto add = [&](const std::string& feature, const std::string& table) {
    out.features.push_back({feature, table});
  };
  if (options.feature_order.empty()) {
    for (const TableConfig& table : options.tables) {
      for (const std::string& feature : table.feature_names) add(feature, table.name);
    }
    return out;
  }
  for (const std::string& feature : options.feature_order) {
    for (const TableConfig& table : options.tables) {
      const std::vector<std::string>& names = table.feature_names;
      if (std::find(names.begin(), names.end(), feature) != names.end()) add(feature, table.name);
    }
  }
  return out;
}

// Whether rows of the saved model have yet to make up for steps that they missed.
bool Unsettled(const SavedModel& saved) {
  return saved.training != nullptr && saved.training->rows_missed_steps();
}

absl::Status CheckStart(const Start& start, const hotrow_collection_options& options,
                        const EmbeddingCollectionOptions& made, SavedModel wanted) {
  const SavedModel& saved = *start.saved;
  if (Unsettled(saved) && !(start.resumed && saved.training->settings == DecayOf(made))) {
    return absl::FailedPreconditionError(absl::StrCat(
        start.resumed ? absl::StrCat("resume from ", saved.dir)
                      : absl::StrCat("init_from ", options.init_from),
        ": it has tables of the weight_decay_mode \"table\", whose rows have yet to make up for "
        "steps that they missed; ",
        start.resumed ? "go on with the same tables in that mode and the same optimizers, or " : "",
        "settle the tables before the checkpoint (hotrow_settle)"));
  }
  if (start.resumed) {
    return CheckSavedModelFits(saved, wanted,
                               {.flag = absl::StrCat("resume from ", saved.dir),
                                .train_anew = "train anew with another checkpoint_dir"});
  }
  // The tables of another model are taken.
  wanted.model = saved.model;
  wanted.num_dense = saved.num_dense;
  wanted.num_parameters = saved.num_parameters;
  return CheckSavedModelFits(
      saved, wanted,
      {.flag = absl::StrCat("init_from ", options.init_from), .train_anew = "train anew"});
}

absl::Status OpenFrom(const Start& start, const EmbeddingCollectionOptions& made,
                      StartOptions* out) {
  const SavedModel& saved = *start.saved;
  // With settled tables, too: keys without a row have missed the steps.
  if (start.resumed && saved.training != nullptr && saved.training->settings == DecayOf(made)) {
    out->learning_rates = saved.training->learning_rates;
    out->settled_steps = saved.training->first_step;
  }
  for (const SavedModel::Part& part : saved.parts) {
    HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
    out->from.push_back({.snapshot = part.snapshot,
                         .identity = part.identity,
                         .store = kind,
                         .dir = part.tables_dir});
  }
  out->steps = saved.step;
  out->age_lines = AgeLinesOf(saved);
  return absl::OkStatus();
}

// What gradients had lost on their way, of as many ranks with the same budget.
absl::Status LoadResiduals(const SavedModel& saved, Tables* tables) {
  EmbeddingResiduals& residuals = tables->collection->residuals();
  const Communicator* const ranks = tables->communicator.get();
  if (ranks == nullptr || !residuals.kept() || std::ssize(saved.residuals) != ranks->world_size()) {
    return absl::OkStatus();
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadSavedResiduals(PosixEnv(), saved, ranks->rank()));
  return residuals.Load(std::as_bytes(std::span(bytes))).status();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DecayOf(
    const EmbeddingCollectionOptions& options) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const TableConfig& table : options.tables) {
    const SparseOptimizerConfig& o = table.optimizer;
    const std::vector<std::string>& read_only = table.read_only_features;
    const bool frozen = std::all_of(
        table.feature_names.begin(), table.feature_names.end(), [&](const std::string& name) {
          return std::find(read_only.begin(), read_only.end(), name) != read_only.end();
        });
    if (o.weight_decay_mode != WeightDecayMode::kTable || frozen) continue;
    const float numbers[] = {o.learning_rate,       o.eps,      o.beta1, o.beta2, o.weight_decay,
                             o.initial_accumulator, o.lr_power, o.l1,    o.l2,    o.ftrl_beta};
    out.emplace_back(table.name, absl::StrJoin(numbers, " ", [](std::string* text, float number) {
                       absl::StrAppendFormat(text, "%.9g", number);
                     }));
  }
  return out;
}

absl::StatusOr<std::shared_ptr<Tables>> MakeTables(const hotrow_context* context,
                                                   const hotrow_collection_options& options) {
  auto tables = std::make_shared<Tables>();
  Env& env = PosixEnv();
  EmbeddingCollectionOptions& made = tables->options;
  HOTROW_ASSIGN_OR_RETURN(tables->context, StateOf(context));
  HOTROW_ASSIGN_OR_RETURN(const DeviceScope device, DeviceScope::Enter(tables->context->exec));
  HOTROW_ASSIGN_OR_RETURN(made, TakeOptions(options));
  if (options.communicator != nullptr) {
    HOTROW_RETURN_IF_ERROR(Usable(options.communicator, "communicator"));
    tables->communicator = options.communicator->channel;
  }
  Communicator* const channel = tables->communicator.get();
  made.ranks.communicator = channel;
  tables->description = Description(options, made);

  StorageFields storage = FieldsOf(made.store);
  if (const std::string dir(TextOf(options.checkpoint_dir)); !dir.empty()) {
    if (options.checkpoint_keep < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint_keep: is ", options.checkpoint_keep, ", must be at least 1"));
    }
    if (!FactsOf(storage.kind).on_disk && !storage.dir.empty()) {
      return absl::InvalidArgumentError(
          "store_path: a store in memory keeps its snapshots in checkpoint_dir; leave out one of "
          "them");
    }
    // First of all, since it takes the directory's lock.
    HOTROW_ASSIGN_OR_RETURN(
        tables->writer,
        CheckpointWriter::Open(
            {.dir = dir, .keep = options.checkpoint_keep, .env = &env, .communicator = channel}));
  }
  HOTROW_ASSIGN_OR_RETURN(const Start start, FindStart(options, env));
  if (start.saved.has_value()) {
    HOTROW_RETURN_IF_ERROR(CheckStart(start, options, made, tables->description));
    HOTROW_RETURN_IF_ERROR(OpenFrom(start, made, &made.start));
    tables->start_dir = start.saved->dir;
  }
  made.start.start_over = options.resume != 0;
  if (!FactsOf(storage.kind).on_disk) {
    if (tables->writer != nullptr) storage.dir = tables->writer->tables_dir();
  } else if (channel != nullptr && !storage.dir.empty()) {
    storage.dir = RankDir(storage.dir, channel->rank(), channel->world_size());
    for (std::string& dir : storage.more_dirs) {
      dir = RankDir(dir, channel->rank(), channel->world_size());
    }
  }
  made.store = MakeStorage(storage);

  HOTROW_ASSIGN_OR_RETURN(tables->collection,
                          EmbeddingCollection::Create(made, tables->context->exec));
  if (tables->writer != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        tables->writer->Attach(tables->collection.get(), storage.kind, storage.dir));
  }
  if (!start.saved.has_value()) return tables;
  if (start.resumed) {
    HOTROW_RETURN_IF_ERROR(LoadResiduals(*start.saved, tables.get()));
    HOTROW_RETURN_IF_ERROR(LoadSavedCounters(PosixEnv(), *start.saved, tables->collection.get()));
  }
  const std::vector<SavedModel::Table>& saved = start.saved->tables;
  if (std::any_of(saved.begin(), saved.end(), [](const auto& table) { return table.rows >= 0; })) {
    HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables->collection->Digest());
    HOTROW_RETURN_IF_ERROR(CheckSavedTables(*start.saved, digest));
  }
  return tables;
}

}  // namespace hotrow::capi
