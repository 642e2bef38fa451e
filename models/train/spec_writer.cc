#include "models/train/spec_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/storage_fields.h"
#include "ops/training/dense_optimizer.h"
#include "store/store_facts.h"

namespace hotrow {

absl::StatusOr<std::string> SpecOf(const SpecSource& source) {
  using Json = nlohmann::ordered_json;
  const EmbeddingCollectionOptions& options = source.collection;
  const auto bad = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  if (source.batch_size < 1) {
    return bad(absl::StrCat("batch_size must be above 0, is ", source.batch_size));
  }
  if (options.tables.empty()) return bad("tables: there are none");
  const StorageFields storage = FieldsOf(options.store);
  const StoreFacts& store = FactsOf(storage.kind);
  if (!store.planned) {
    return bad(absl::StrCat("store: ", std::string(store.word), " is not planned, only ",
                            StoreWords(&StoreFacts::planned, "and"), " are"));
  }
  if (options.cache.device_bytes > 0) {
    return bad("device_cache_bytes: a cache on a device is not described by --save_spec yet");
  }
  for (const auto& [name, size] : {std::pair<const char*, size_t>{"rows", source.rows.size()},
                                   {"hotness", source.hotness.size()},
                                   {"zipf", source.zipf.size()}}) {
    if (size != 0 && size != options.tables.size()) {
      return bad(
          absl::StrCat(name, ": has ", size, " values for ", options.tables.size(), " tables"));
    }
  }
  Json json;
  json["batch_size"] = source.batch_size;
  json["ranks"] = source.ranks;
  if (!source.hardware.empty()) json["hardware"] = source.hardware;
  json["prefetch_depth"] = options.prefetch_depth;
  json["store"] = std::string(store.word);
  json["cache_bytes"] = options.cache.bytes;
  const bool counts =
      std::any_of(options.tables.begin(), options.tables.end(),
                  [](const TableConfig& table) { return table.admission.counts(); });
  if (counts) json["admission_bytes"] = options.admission_bytes;
  if (storage.disk_bytes > 0) json["max_ssd"] = storage.disk_bytes;
  if (source.checkpoint_interval_steps > 0) {
    json["checkpoint_interval_steps"] = source.checkpoint_interval_steps;
  }
  if (source.data_bytes_per_sample > 0) {
    json["data_bytes_per_sample"] = source.data_bytes_per_sample;
  }
  Json model = {{"dense_features", source.dense_features}};
  if (!source.bottom.empty()) model["bottom"] = source.bottom;
  if (!source.top.empty()) model["top"] = source.top;
  if (source.top_inputs > 0) model["top_inputs"] = source.top_inputs;
  model["interaction"] = source.interaction;
  if (source.cross_layers > 0) model["cross_layers"] = source.cross_layers;
  if (source.cross_rank > 0) model["cross_rank"] = source.cross_rank;
  for (const DenseLayers::Part& part : source.parts) {
    Json out = {{"name", part.name}};
    if (part.count > 1) out["count"] = part.count;
    if (part.outputs > 0) {
      if (part.rows > 1) out["rows"] = part.rows;
      out["inputs"] = part.inputs;
      out["outputs"] = part.outputs;
    }
    if (part.parameters > 0) out["parameters"] = part.parameters;
    if (part.macs > 0) out["macs"] = part.macs;
    if (part.activations > 0) out["activations"] = part.activations;
    model["parts"].push_back(std::move(out));
  }
  if (source.precision != DensePrecision::kFp32) {
    model["precision"] = std::string(DensePrecisionName(source.precision));
  }
  if (!source.dense_optimizer.empty()) model["dense_optimizer"] = source.dense_optimizer;
  if (source.dense_average) model["dense_average"] = true;
  json["model"] = std::move(model);
  json["tables"] = Json::array();
  for (size_t t = 0; t < options.tables.size(); ++t) {
    const TableConfig& table = options.tables[t];
    int64_t rows = source.rows.empty() ? table.num_embeddings : source.rows[t];
    if (table.max_rows > 0) rows = rows < 1 ? table.max_rows : std::min(rows, table.max_rows);
    if (rows < 1) {
      return bad(absl::StrCat("table ", table.name,
                              ": any key is legal, so nothing says how many rows it may have; "
                              "give rows"));
    }
    const double hotness = !source.hotness.empty() ? source.hotness[t]
                           : table.max_hotness > 0 ? static_cast<double>(table.max_hotness)
                                                   : 1;
    Json out = {{"name", table.name},
                {"rows", rows},
                {"dim", table.embedding_dim},
                {"optimizer", std::string(SparseOptimizerName(table.optimizer.kind))},
                {"features", table.feature_names.size()},
                {"hotness", hotness}};
    if (table.weights_precision != WeightsPrecision::kFp32) {
      out["weights_precision"] = std::string(WeightsPrecisionName(table.weights_precision));
    }
    if (table.pooling == Pooling::kNone) out["pooling"] = "none";
    if (!source.zipf.empty()) out["zipf"] = source.zipf[t];
    json["tables"].push_back(std::move(out));
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

SpecSource SpecSourceOf(const TrainerOptions& options, const EmbeddingCollectionOptions& tables,
                        const DataSchema& schema, const DenseLayers& layers, int32_t ranks) {
  SpecSource source;
  source.collection = tables;
  source.batch_size = options.batch_size;
  source.ranks = ranks;
  for (const TableConfig& table : tables.tables) {
    // Features that share a table may look up more or less of it.
    double lookups = 0;
    for (const DataFeature& feature : schema.features) {
      if (feature.table != table.name) continue;
      lookups += static_cast<double>(std::max<int64_t>(feature.max_hotness, 1));
    }
    source.hotness.push_back(lookups / static_cast<double>(table.feature_names.size()));
  }
  source.dense_features = schema.num_dense;
  source.data_bytes_per_sample = schema.sample_bytes;
  source.bottom = layers.bottom;
  source.top = layers.top;
  source.top_inputs = layers.top_inputs;
  source.interaction = layers.interaction;
  source.cross_layers = layers.cross_layers;
  source.cross_rank = layers.cross_rank;
  source.parts = layers.parts;
  source.dense_optimizer = DenseOptimizerName(options.dense_optimizer.kind);
  source.dense_average = options.dense_optimizer.average_decay > 0;
  source.precision = options.precision;
  if (!options.checkpoint_dir.empty()) source.checkpoint_interval_steps = options.checkpoint_every;
  return source;
}

absl::Status SaveSpec(const SpecSource& source, Env& env, const std::string& path) {
  const absl::Status saved = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::string spec, SpecOf(source));
    return WriteFileAtomically(env, path, spec);
  }();
  if (saved.ok()) return saved;
  return absl::Status(saved.code(), absl::StrCat("--save_spec=", path, ": ", saved.message()));
}

}  // namespace hotrow
