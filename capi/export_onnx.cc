#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/enum_words.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/handles_impl.h"
#include "capi/tables_impl.h"
#include "capi/views_impl.h"
#include "embedding/serving/serving_rows.h"
#include "models/data/table_schema.h"
#include "models/data/table_schema_text.h"
#include "models/saving/saved_model.h"
#include "models/saving/tables_model.h"

namespace hotrow::capi {
namespace {

hotrow_onnx_options DefaultOnnx() {
  const TablesModelOptions options;
  hotrow_onnx_options out = {};
  out.struct_size = sizeof(out);
  out.shard_bytes = options.shard_bytes;
  out.memory_bytes = options.memory_bytes;
  return out;
}

// What a schema says of lines, if it is of these features.
absl::Status TakeSchema(const char* text, SavedModel* model) {
  ScoringData& scoring = *model->scoring;
  HOTROW_ASSIGN_OR_RETURN(const TableSchema schema, ParseTableSchemaText(text, "options.schema"));
  std::vector<std::string> names;
  for (const CategoricalColumn& column : schema.categorical) {
    names.push_back(column.name);
    if (column.min_count == 0) continue;
    return absl::UnimplementedError(
        absl::StrCat("options.schema: column \"", column.name, "\" has a min_count; leave it out"));
  }
  const auto same = [](const std::string& name, const SavedModel::Feature& feature) {
    return name == feature.name;
  };
  if (!std::ranges::equal(names, model->features, same) ||
      std::ssize(schema.dense) != model->num_dense) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.schema: has ", names.size(), " features and ", schema.dense.size(),
                     " dense ones, must have those of the tables, in their order (",
                     model->features.size(), "), and ", model->num_dense, " dense ones"));
  }
  scoring.table_schema = TableSchemaText(schema);
  if (!scoring.labels.empty()) return absl::OkStatus();
  for (const LabelColumn& label : schema.labels) scoring.labels.push_back(label.name);
  return absl::OkStatus();
}

absl::StatusOr<SavedModel> ModelOf(const Tables& tables, const hotrow_onnx_options& in) {
  SavedModel model = tables.description;
  model.model = kOnnxModel;
  model.step = tables.collection->steps();
  model.num_dense = static_cast<int32_t>(in.num_dense);
  ScoringData& scoring = model.scoring.emplace();
  const std::vector<TableConfig>& configs = tables.options.tables;
  for (const SavedModel::Feature& feature : model.features) {
    const TableConfig& table =
        *std::ranges::find(configs, feature.table, &TableConfig::name);  // made of these
    if (table.pooling == Pooling::kNone) {
      return absl::UnimplementedError(
          absl::StrCat("feature \"", feature.name, "\": its table has pooling \"none\", which a ",
                       "dense part in ONNX does not take yet; pool it"));
    }
    if (table.pooling == Pooling::kMean) {
      model.shape.emplace_back(kOnnxPooling + feature.name, "mean");
    }
    scoring.features.push_back(
        {.num_embeddings = table.num_embeddings, .max_hotness = table.max_hotness});
    if (table.serve_rows == configs[0].serve_rows) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("table \"", table.name, "\": its serve_rows are not those of table \"",
                     configs[0].name, "\"; give all tables the same"));
  }
  scoring.settings.emplace_back("serve_rows",
                                std::string(WordOf(kServingRowsWords, configs[0].serve_rows)));
  if (in.labels != nullptr) {
    HOTROW_RETURN_IF_ERROR(TakeTexts(in.labels, in.num_labels, "labels", &scoring.labels));
  }
  if (in.schema != nullptr) HOTROW_RETURN_IF_ERROR(TakeSchema(in.schema, &model));
  model.blob_bytes = std::make_shared<const SavedModel::BlobBytes>(SavedModel::BlobBytes{
      {kOnnxBlob, std::string(static_cast<const char*>(in.dense), in.dense_size)}});
  return model;
}

absl::Status Export(const Tables& tables, const hotrow_onnx_options& in) {
  HOTROW_RETURN_IF_ERROR(NotNull(in.to, "options.to"));
  HOTROW_RETURN_IF_ERROR(NotNull(in.dense, "options.dense"));
  HOTROW_RETURN_IF_ERROR(
      CheckArray(in.dense, static_cast<int64_t>(std::min<uint64_t>(in.dense_size, INT64_MAX)), 1, 1,
                 "options.dense"));
  HOTROW_RETURN_IF_ERROR(CheckCount(in.num_dense, "options.num_dense", kListMax));
  for (const auto& [bytes, name] :
       {std::pair(in.shard_bytes, "shard_bytes"), std::pair(in.memory_bytes, "memory_bytes")}) {
    if (bytes >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("options.", name, ": is ", bytes, ", must be at least 1"));
  }
  if (tables.communicator != nullptr && tables.communicator->world_size() > 1) {
    return absl::FailedPreconditionError(
        "the tables are spread over several ranks; open their checkpoint in one process "
        "(init_from), and export there");
  }
  if (!DecayOf(tables.options).empty()) {
    return absl::FailedPreconditionError(
        "a table has the weight_decay_mode \"table\", of which keys without a row go by the steps "
        "that were made; export a model of tables in another mode");
  }
  HOTROW_ASSIGN_OR_RETURN(SavedModel model, ModelOf(tables, in));
  return WriteTablesModel(*tables.collection, {.dir = in.to,
                                               .model = std::move(model),
                                               .shard_bytes = in.shard_bytes,
                                               .memory_bytes = in.memory_bytes});
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow;        // NOLINT: what follows is the C interface
using namespace hotrow::capi;  // NOLINT

extern "C" {

void hotrow_onnx_options_default(hotrow_onnx_options* options, uint64_t struct_size) {
  WriteDefault(DefaultOnnx(), options, struct_size);
}

hotrow_status hotrow_export_onnx(hotrow_collection* collection,
                                 const hotrow_onnx_options* options) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(collection, "collection"));
    HOTROW_ASSIGN_OR_RETURN(const hotrow_onnx_options taken,
                            TakeStruct(options, DefaultOnnx(), "options"));
    const Turn turn(collection->tables);
    HOTROW_RETURN_IF_ERROR(turn.status());
    return Export(*turn.operator->(), taken);
  });
}

}  // extern "C"
