#include "models/train/run_header_impl.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/train/report.h"
#include "models/train/run_deltas_impl.h"
#include "ops/rows/row_layout.h"
#include "ops/training/dense_optimizer.h"
#include "ops/update/sparse_optimizer.h"
#include "store/store_facts.h"

namespace hotrow {

std::string FormatRunHeader(const RunHeader& header) {
  const TrainerOptions& options = header.options;
  const DataSchema& schema = header.schema;
  const EmbeddingCollectionOptions& collection = header.collection;
  const bool many_ranks = header.world_size > 1;
  int64_t rows = 0;
  bool rows_known = true;
  for (const TableConfig& table : collection.tables) {
    rows += table.num_embeddings;
    rows_known = rows_known && table.num_embeddings > 0;
  }
  const int64_t row_bytes =
      RowLayout::For(options.embedding_dim, options.table_optimizer.kind, options.weights_precision)
          .row_bytes;
  const std::string precision =
      options.weights_precision == WeightsPrecision::kFp32
          ? std::string()
          : absl::StrCat(" in ", std::string(WeightsPrecisionName(options.weights_precision)));

  std::string text = absl::StrFormat("%s on %s\n", std::string(header.model), schema.name);
  absl::StrAppendFormat(
      &text, "  data     %s train, %s validation, %s test samples; %d features, %d dense\n",
      FormatCount(schema.train_samples), FormatCount(schema.valid_samples),
      FormatCount(schema.test_samples), schema.features.size(), schema.num_dense);
  absl::StrAppendFormat(
      &text, "  model    %s dense parameters, %s%s\n", FormatCount(header.num_parameters),
      std::string(DenseOptimizerName(options.dense_optimizer.kind)),
      options.precision == DensePrecision::kFp32
          ? std::string()
          : absl::StrCat(", products in ", std::string(DensePrecisionName(options.precision))));
  absl::StrAppendFormat(&text, "  tables   %d of %d columns%s, %s: %d bytes a row%s\n",
                        collection.tables.size(), options.embedding_dim, precision,
                        std::string(SparseOptimizerName(options.table_optimizer.kind)), row_bytes,
                        rows_known ? absl::StrFormat(", up to %s rows (%s)", FormatCount(rows),
                                                     FormatBytes(rows * row_bytes))
                                   : std::string());
  absl::StrAppend(&text, "  tiers    ");
  if (collection.cache.device_bytes > 0) {
    absl::StrAppendFormat(&text, "device cache of %s over ",
                          FormatBytes(collection.cache.device_bytes));
  }
  if (collection.cache.bytes > 0) {
    absl::StrAppendFormat(&text, "cache of %s over ", FormatBytes(collection.cache.bytes));
  }
  const StoreFacts& store = FactsOf(options.store);
  if (store.on_disk) {
    absl::StrAppendFormat(&text, "%s in %s of up to %s, with %s of memory\n",
                          std::string(store.word), options.store_path,
                          FormatBytes(options.disk_bytes), FormatBytes(options.store_bytes));
  } else {
    absl::StrAppendFormat(&text, "%s of up to %s\n", std::string(store.word),
                          FormatBytes(options.store_bytes));
  }
  if (!options.checkpoint_dir.empty()) {
    const char* const borders = options.window_seconds > 0 ? "behind each window, " : "";
    absl::StrAppendFormat(
        &text, "  saving   checkpoints in %s, %s%s%s, keeping %d\n", options.checkpoint_dir,
        borders,
        options.checkpoint_every > 0
            ? absl::StrCat("every ", FormatCount(options.checkpoint_every), " steps and ")
            : std::string(),
        "at the end", KeptCheckpoints(options));
    if (!options.delta_dir.empty()) {
      absl::StrAppendFormat(&text, "           deltas in %s, %severy %s steps and at the end\n",
                            options.delta_dir, borders, FormatCount(options.delta_every));
    }
    if (options.resume && !header.start.resumed) {
      absl::StrAppend(&text, "           none is there to go on from: from the beginning\n");
    }
  }
  if (header.start.saved.has_value()) {
    const SavedModel& start = *header.start.saved;
    int64_t saved_rows = 0;
    for (const SavedModel::Table& table : start.tables) saved_rows += table.rows;
    absl::StrAppendFormat(&text, "  from     %s: step %s",
                          header.start.resumed ? start.dir : options.init_from,
                          FormatCount(start.step));
    if (start.tables.empty() || start.tables[0].rows >= 0) {
      absl::StrAppendFormat(&text, ", %s rows", FormatCount(saved_rows));
    }
    absl::StrAppend(&text, "\n");
    const std::string kind(DenseOptimizerName(options.dense_optimizer.kind));
    if (start.dense_optimizer != kind) {
      absl::StrAppendFormat(
          &text,
          "           the state of %s starts from zero: the saved model has that of "
          "%s\n",
          kind, start.dense_optimizer);
    }
  }
  if (many_ranks) {
    absl::StrAppendFormat(&text,
                          "  ranks    %d share each batch and the tables; rows travel as %s, "
                          "gradients as %s\n",
                          header.world_size,
                          std::string(ExchangeTypeName(options.exchange_forward)),
                          std::string(ExchangeTypeName(options.exchange_backward)));
  }
  if (many_ranks && options.exchange_feedback_bytes > 0) {
    absl::StrAppendFormat(
        &text, "           what gradients lose is kept for the next, in %s%s\n",
        FormatBytes(options.exchange_feedback_bytes),
        header.residuals_anew.empty()
            ? std::string()
            : absl::StrCat(", from zero on: ", std::string(header.residuals_anew)));
  }
  absl::StrAppendFormat(&text, "  run      batch %s, prefetch %d, %d threads on the %s%s\n\n",
                        FormatCount(options.batch_size), options.prefetch_depth, header.threads,
                        std::string(DeviceName(header.device)), many_ranks ? " for each rank" : "");
  return text;
}

void LogSettings(const TrainerOptions& options, const DataSchema& schema, MlLogger* mllog) {
  mllog->Start("init_start");
  mllog->Point("seed", static_cast<int64_t>(options.seed));
  mllog->Point("global_batch_size", options.batch_size);
  mllog->Point("train_samples", schema.train_samples);
  mllog->Point("eval_samples", schema.valid_samples);
  mllog->Point("opt_name", std::string(DenseOptimizerName(options.dense_optimizer.kind)));
  mllog->Point("opt_base_learning_rate",
               static_cast<double>(options.dense_optimizer.learning_rate));
  mllog->Point("table_opt_name", std::string(SparseOptimizerName(options.table_optimizer.kind)));
  mllog->Point("table_opt_base_learning_rate",
               static_cast<double>(options.table_optimizer.learning_rate));
  mllog->Point("opt_learning_rate_warmup_steps", options.schedule.lr_warmup_steps);
  mllog->Point("lr_decay_start_steps", options.schedule.lr_decay_start);
  mllog->Point("opt_learning_rate_decay_steps", options.schedule.lr_decay_steps);
}

}  // namespace hotrow
