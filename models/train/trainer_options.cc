#include "models/train/trainer_options.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/math.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "embedding/storage_fields.h"
#include "models/data/time_parts.h"
#include "models/train/pretrained_rows.h"
#include "models/train/report.h"
#include "models/train/trainer_settings.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

// Buffers of some MiB for each of reading, sorting and writing.
constexpr int64_t kDeltaBytesMin = int64_t{64} << 20;
// A table of bags of any size with more rows is not what the smallest cache is to hold.
constexpr int64_t kBagRowsMax = int64_t{1} << 20;

// Checks the options of the chain of deltas.
absl::Status CheckDeltas(const TrainerOptions& o) {
  if (o.delta_dir.empty()) {
    if (o.delta_every == 0 && o.keep_deltas == 0 && !o.delta_weights_only &&
        o.delta_rows == ExchangeType::kFp32 && o.delta_bytes == kDeltaBytes) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--delta_every, --delta_rows, --delta_weights_only, --keep_deltas and --delta_bytes need "
        "--delta_dir=DIR, where the deltas are to go");
  }
  if (o.checkpoint_dir.empty() || o.checkpoint_every < 1) {
    return absl::InvalidArgumentError(
        "--delta_dir needs --checkpoint_dir=DIR and --checkpoint_every=STEPS: deltas are made of "
        "checkpoints");
  }
  if (o.delta_every < 1 || o.delta_every % o.checkpoint_every != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--delta_every must be a multiple of --checkpoint_every=", o.checkpoint_every,
                     ", is ", o.delta_every));
  }
  if (o.delta_bytes < kDeltaBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("--delta_bytes must be at least ", kDeltaBytesMin, ", is ", o.delta_bytes));
  }
  if (o.delta_dir == o.checkpoint_dir || o.delta_dir == o.save_dir) {
    return absl::InvalidArgumentError(
        absl::StrCat("--delta_dir=", o.delta_dir,
                     " is --checkpoint_dir or --save_dir, too; give each a directory of its own"));
  }
  if (o.table_optimizer.weight_decay_mode == WeightDecayMode::kTable) {
    return absl::UnimplementedError(
        "--delta_dir: with --table_weight_decay_mode=table every row changes with every step; "
        "export whole models");
  }
  return absl::OkStatus();
}

// Checks what does not go with windows of time.
absl::Status CheckWindow(const TrainerOptions& o) {
  for (const auto& [flag, seconds] : {std::pair<const char*, int64_t>{"window", o.window_seconds},
                                      {"follow", o.follow_seconds}}) {
    if (seconds >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " must be at least 1 s, is ", seconds));
  }
  if (o.window_seconds == 0) {
    if (o.follow_seconds == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--follow needs --window=TIME: what comes is trained window by window");
  }
  const std::pair<const char*, bool> others[] = {
      {"epochs", o.epochs != 1},
      {"limit_train_batches", o.limit_train_batches != 0},
      {"validation_freq_within_epoch", o.validation_freq_within_epoch != 0},
      {"lr_plateau_patience", o.schedule.lr_plateau_patience != 0},
      {"early_stop_patience", o.schedule.early_stop_patience != 0},
      {"keep_best", o.keep_best}};
  for (const auto& [flag, given] : others) {
    if (!given) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " does not go with --window=", DurationText(o.window_seconds),
                     ": each window is judged once and then trained once, and no two are judged on "
                     "the same data; leave one of them out"));
  }
  return absl::OkStatus();
}

std::set<std::string> NamesOf(const std::string& text) {
  return absl::StrSplit(text, ',', absl::SkipEmpty());
}

// What the engine says of the tables, before there are data: all of them have the same options.
absl::Status CheckTables(const TrainerOptions& o) {
  DataSchema schema;
  schema.features = {{.name = "each", .table = "each"}};
  EmbeddingCollectionOptions tables = CollectionOptions(o, schema);
  // Those that are not known yet.
  TableConfig& table = tables.tables[0];
  table.embedding_dim = std::max(table.embedding_dim, 1);
  if (o.device_cache_bytes == kSmallestCache) tables.cache.device_bytes = 1;
  if (o.device_cache_bytes == 0 && o.cache_bytes == kSmallestCache) tables.cache.bytes = 1;
  const absl::Status status = tables.Validate();
  constexpr std::string_view kName = "table \"each\": ";
  const std::string text(status.message());
  if (status.ok() || !text.starts_with(kName)) return status;
  return WithText(status, absl::StrCat("each table: ", text.substr(kName.size())));
}

}  // namespace

absl::Status TrainerOptions::Validate() const {
  if (pooling == Pooling::kNone) {
    return absl::InvalidArgumentError("--pooling must be sum or mean: models take pooled features");
  }
  if (precision == DensePrecision::kInt8) {
    return absl::InvalidArgumentError(
        "--precision=int8 is for scoring, as of hotrow serve; train with fp32 or bf16");
  }
  if (!IsLossScale(loss_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--loss_scale must be a power of two from 1 to 2^40, is ", loss_scale));
  }
  if (!(max_gradient_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_gradient_norm must be at least 0, is ", max_gradient_norm));
  }
  HOTROW_RETURN_IF_ERROR(schedule.Validate());
  if (!record_trace.empty() && !(sample_rate > 0 && sample_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sample_rate must lie in (0, 1], is ", sample_rate));
  }
  if (resume && checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--resume needs --checkpoint_dir=DIR, where the checkpoints are to go on from");
  }
  HOTROW_RETURN_IF_ERROR(CheckWindow(*this));
  HOTROW_RETURN_IF_ERROR(CheckDeltas(*this));
  if (!save_dir.empty() && save_dir == checkpoint_dir) {
    return absl::InvalidArgumentError(absl::StrCat("--save_dir and --checkpoint_dir are both ",
                                                   save_dir, "; give each a directory of its own"));
  }
  if (const StoreFacts& facts = FactsOf(store); !facts.on_disk) {
    if (!store_path.empty() || disk_bytes != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--store_path and --disk_bytes are for --store=", StoreWords(&StoreFacts::on_disk, "and"),
          "; the ", std::string(facts.word), " store has no files but its snapshots"));
    }
  } else if (store_path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--store=", std::string(facts.word), " needs --store_path=DIR, the directory of the rows"));
  }
  StorageFields storage = {.kind = store};
  if (const absl::Status set = SetDirs(store_path, &storage); !set.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store_path=", store_path, ": ", std::string(set.message())));
  }
  if (metrics_port + (communicator == nullptr ? 0 : communicator->world_size() - 1) > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_port=", metrics_port,
                                                   " + the number of the last rank is above "
                                                   "65535; give a smaller one"));
  }
  if (!(metrics_every > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics_every must be above 0, is ", metrics_every));
  }
  HOTROW_RETURN_IF_ERROR(CheckTables(*this));
  return dense_optimizer.Validate();
}

EmbeddingCollectionOptions CollectionOptions(const TrainerOptions& options,
                                             const DataSchema& schema,
                                             std::span<const int32_t> unpooled_features) {
  EmbeddingCollectionOptions out;
  const std::set<std::string> frozen_tables = NamesOf(options.frozen_tables);
  const std::set<std::string> read_only_features = NamesOf(options.read_only_features);
  std::map<std::string, size_t> position_of;
  for (const DataFeature& feature : schema.features) {
    const auto [at, is_new] = position_of.try_emplace(feature.table, out.tables.size());
    if (is_new) {
      TableConfig table;
      table.name = feature.table;
      table.embedding_dim = options.embedding_dim;
      table.weights_precision = options.weights_precision;
      table.pooling = options.pooling;
      table.optimizer = options.table_optimizer;
      table.max_row_gradient_norm = options.max_row_gradient_norm;
      table.serve_rows = options.serve_rows;
      table.num_embeddings = feature.num_embeddings;
      table.max_hotness = feature.max_hotness;
      out.tables.push_back(std::move(table));
    }
    // Features that share a table may have their own bounds: the table takes the widest, and
    // none where one feature has none.
    const auto widest = [](int64_t a, int64_t b) { return a == 0 || b == 0 ? 0 : std::max(a, b); };
    TableConfig& table = out.tables[at->second];
    table.num_embeddings = widest(table.num_embeddings, feature.num_embeddings);
    table.max_hotness = widest(table.max_hotness, feature.max_hotness);
    table.feature_names.push_back(feature.name);
    if (frozen_tables.contains(feature.table) || read_only_features.contains(feature.name)) {
      table.read_only_features.push_back(feature.name);
    }
    out.feature_order.push_back(feature.name);
  }
  for (const int32_t feature : unpooled_features) {
    const std::string& table = schema.features[static_cast<size_t>(feature)].table;
    out.tables[position_of[table]].pooling = Pooling::kNone;
  }
  for (TableConfig& table : out.tables) {
    if (table.read_only_features.size() < table.feature_names.size()) {
      table.admission = options.admission;
      table.ttl_steps = options.ttl_steps;
      table.min_rows = options.min_rows;
      table.max_rows = options.max_rows;
    }
    // A table without bound has no number of rows to go by; 0.01 is what 10,000 rows would give.
    table.initializer = options.initializer.value_or(
        table.num_embeddings > 0 ? Initializer::UniformOfRows(table.num_embeddings)
                                 : Initializer{InitializerKind::kUniform, 0.01f});
  }
  out.name_option = FlagOfOption;
  out.seed = options.seed;
  out.max_batch_size = options.batch_size;
  out.max_gradient_norm = options.max_table_gradient_norm;
  StorageFields storage = {
      .kind = options.store, .memory_bytes = options.store_bytes, .disk_bytes = options.disk_bytes};
  // What is wrong with it, Validate() has said.
  if (FactsOf(options.store).on_disk) SetDirs(options.store_path, &storage).IgnoreError();
  out.store = MakeStorage(storage);
  out.cache = {.bytes = std::max<int64_t>(options.cache_bytes, 0),
               .device_bytes = std::max<int64_t>(options.device_cache_bytes, 0),
               .device_index_bytes = options.device_index_bytes,
               .policy = options.cache_policy};
  out.admission_bytes = options.admission_bytes;
  out.row_limit_steps = options.row_limit_steps;
  out.prefetch_depth = options.prefetch_depth;
  out.ranks.forward = options.exchange_forward;
  out.ranks.backward = options.exchange_backward;
  out.ranks.rounding = options.exchange_rounding;
  out.ranks.feedback_bytes = options.exchange_feedback_bytes;
  return out;
}

absl::Status CheckReadOnly(const TrainerOptions& options, const DataSchema& schema) {
  std::set<std::string> tables;
  std::set<std::string> features;
  for (const DataFeature& feature : schema.features) {
    tables.insert(feature.table);
    features.insert(feature.name);
  }
  const auto check = [](const char* flag, const std::string& text,
                        const std::set<std::string>& known) -> absl::Status {
    for (const std::string& name : NamesOf(text)) {
      if (known.contains(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": the data have no \"", name,
                                                     "\"; they have ", absl::StrJoin(known, ", ")));
    }
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(check("frozen_tables", options.frozen_tables, tables));
  const absl::StatusOr<std::vector<PretrainedRows>> pretrained =
      ParsePretrainedRows(options.init_rows);
  if (!pretrained.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--init_rows: ", pretrained.status().message()));
  }
  for (const PretrainedRows& rows : *pretrained) {
    HOTROW_RETURN_IF_ERROR(check("init_rows", rows.table, tables));
  }
  return check("read_only_features", options.read_only_features, features);
}

absl::Status ResolveBudgets(const TrainerOptions& options, Device device,
                            EmbeddingCollectionOptions* tables) {
  // The cache that rows are trained in.
  const bool on_device = options.device_cache_bytes != 0;
  const char* const flag = on_device ? "device_cache_bytes" : "cache_bytes";
  int64_t& cache_bytes = on_device ? tables->cache.device_bytes : tables->cache.bytes;
  const int64_t wanted = on_device ? options.device_cache_bytes : options.cache_bytes;
  EmbeddingCollectionOptions smallest = *tables;
  (on_device ? smallest.cache.device_bytes : smallest.cache.bytes) =
      std::max<int64_t>(cache_bytes, 1);
  for (TableConfig& table : smallest.tables) {
    // Bags of any size look up no more rows than a table has, where that is a number to go by.
    const bool bounded = table.num_embeddings > 0 && table.num_embeddings <= kBagRowsMax;
    if (wanted != kSmallestCache || table.max_hotness > 0 || !bounded) continue;
    table.max_hotness = CeilDiv(table.num_embeddings, smallest.max_batch_size);
  }
  HOTROW_ASSIGN_OR_RETURN(const int64_t min_cache_bytes,
                          EmbeddingCollection::MinCacheBytes(smallest, device));
  if (wanted == kSmallestCache) cache_bytes = min_cache_bytes;
  if (cache_bytes > 0 && cache_bytes < min_cache_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--", flag, "=", cache_bytes, " is too small: the rows of one step of ", options.batch_size,
        " samples need ", min_cache_bytes, " (", FormatBytes(min_cache_bytes),
        "); raise it, use --", flag, "=min, or lower --batch_size"));
  }
  return absl::OkStatus();
}

absl::Status DivergedError(const TrainerOptions& options, int64_t run_step, const char* what,
                           std::string_view cause) {
  return absl::OutOfRangeError(absl::StrFormat(
      "step %d: the %s is not a finite number, training has diverged; lower --learning_rate (%g "
      "for tables, %g for dense parameters)%s%s",
      run_step, what, options.table_optimizer.learning_rate, options.dense_optimizer.learning_rate,
      cause.empty() ? "" : ". ", cause));
}

}  // namespace hotrow
