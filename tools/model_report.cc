#include "tools/model_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_rows.h"
#include "models/saving/tables_model.h"
#include "models/saving/training_state.h"
#include "models/train/report.h"
#include "ops/rows/row_layout.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

void AppendLine(std::string* out, std::string_view key, const std::string& value) {
  absl::StrAppendFormat(out, "  %-14s %s\n", std::string(key), value);
}

std::string CountText(int64_t n) { return n < 0 ? "unknown" : FormatCount(n); }
Json Known(int64_t n) { return n < 0 ? Json(nullptr) : Json(n); }
Json Known(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// Bytes of a row of a table of whole rows, or of codes.
int64_t RowBytesOf(const SavedModel::Table& table, std::optional<ServingRows> codes) {
  const auto kind = ParseSparseOptimizer(table.optimizer);
  if (!kind.ok() || table.dim <= 0) return -1;
  const RowLayout layout =
      RowLayout::For(table.dim, *kind, table.weights_precision, table.score != ScoreRule::kNone);
  return codes.has_value() ? ServingRowBytes(*codes, layout) : layout.row_bytes;
}

int64_t BytesOf(const SavedModel::Table& table, std::optional<ServingRows> codes) {
  const int64_t row_bytes = RowBytesOf(table, codes);
  return table.rows < 0 || row_bytes < 0 ? -1 : table.rows * row_bytes;
}

// Model, shape, features, tables: what a checkpoint and the portable form have in common.
std::string ModelText(const SavedModel& model) {
  std::string out;
  AppendLine(&out, "model", model.model);
  std::string shape;
  for (const auto& [flag, value] : model.shape) {
    absl::StrAppend(&shape, shape.empty() ? "" : " ", "--", flag, "=", value);
  }
  if (!shape.empty()) AppendLine(&out, "flags", shape);
  if (model.seed.has_value()) AppendLine(&out, "seed", absl::StrCat(*model.seed));
  AppendLine(&out, "step", FormatCount(model.step));
  const bool is_onnx = model.model == kOnnxModel;
  std::string blobs;
  for (const SavedModel::Blob& blob : model.blobs) {
    absl::StrAppend(&blobs, blobs.empty() ? "" : ", ", blob.name, " (", FormatBytes(blob.bytes),
                    ")");
  }
  if (model.training != nullptr) {
    const TrainingState& training = *model.training;
    AppendLine(
        &out, "position",
        absl::StrCat("epoch ", training.epoch + 1, ", ", FormatCount(training.samples_in_epoch),
                     " samples of it trained on; ", FormatCount(training.samples), " in all"));
    if (training.valid.samples > 0) {
      AppendLine(
          &out, "validation",
          absl::StrFormat("AUC %s, logloss %.6f after step %d", FormatMetric(training.valid.auc, 6),
                          training.valid.logloss, training.validated_step));
    }
  } else if (is_onnx) {
    AppendLine(&out, "position", "none: to score with");
  } else if (!blobs.empty()) {
    AppendLine(&out, "position", "in the state that its program saved");
  } else {
    AppendLine(&out, "position", "none: to start from (--init_from), not to resume");
  }
  AppendLine(&out, "features",
             absl::StrCat(model.features.size(), " sparse, ", model.num_dense, " dense"));
  if (!blobs.empty()) AppendLine(&out, is_onnx ? "dense" : "state", blobs);
  if (model.num_parameters > 0 || blobs.empty()) {
    AppendLine(
        &out, "dense",
        absl::StrCat(FormatCount(model.num_parameters), " parameters, ", model.dense_optimizer));
  }
  return out;
}

// By table; empty: none has any.
using Codes = std::vector<std::optional<ServingRows>>;

std::optional<ServingRows> CodesAt(const Codes& codes, size_t table) {
  return codes.empty() ? std::nullopt : codes[table];
}

// "int8", or the precision of weights.
std::string_view WeightsWord(const SavedModel::Table& table, std::optional<ServingRows> codes) {
  if (codes.has_value() && *codes != ServingRows::kAsTrained) {
    return WordOf(kServingRowsWords, *codes);
  }
  return WeightsPrecisionName(table.weights_precision);
}

std::string TablesText(const SavedModel& model, const Codes& codes = {}) {
  size_t width = 5;
  for (const SavedModel::Table& table : model.tables) width = std::max(width, table.name.size());
  std::string out = absl::StrFormat("\n  %-*s %6s %8s %20s %16s %12s\n", static_cast<int>(width),
                                    "table", "dim", "weights", "optimizer", "rows", "bytes");
  for (size_t t = 0; t < model.tables.size(); ++t) {
    const SavedModel::Table& table = model.tables[t];
    const int64_t bytes = BytesOf(table, CodesAt(codes, t));
    absl::StrAppendFormat(&out, "  %-*s %6d %8s %20s %16s %12s\n", static_cast<int>(width),
                          table.name, table.dim, WeightsWord(table, CodesAt(codes, t)),
                          CodesAt(codes, t).has_value() ? "none" : table.optimizer,
                          CountText(table.rows), bytes < 0 ? "unknown" : FormatBytes(bytes));
  }
  return out;
}

Json ModelJson(const SavedModel& model, const Codes& codes = {}) {
  Json json;
  json["model"] = model.model;
  json["shape"] = Json::object();
  for (const auto& [flag, value] : model.shape) json["shape"][flag] = value;
  json["seed"] = model.seed.has_value() ? Json(*model.seed) : Json(nullptr);
  json["step"] = model.step;
  json["position"] = nullptr;
  if (model.training != nullptr) {
    json["position"] = {{"epoch", model.training->epoch},
                        {"sample", model.training->samples_in_epoch},
                        {"samples", model.training->samples}};
  }
  json["num_dense"] = model.num_dense;
  json["features"] = model.features.size();
  json["parameters"] = model.num_parameters;
  json["dense_optimizer"] = model.dense_optimizer;
  json["tables"] = Json::array();
  for (size_t t = 0; t < model.tables.size(); ++t) {
    const SavedModel::Table& table = model.tables[t];
    const std::optional<ServingRows> kept = CodesAt(codes, t);
    json["tables"].push_back({{"name", table.name},
                              {"dim", table.dim},
                              {"weights_precision", WeightsPrecisionName(table.weights_precision)},
                              {"optimizer", table.optimizer},
                              {"score", ScoreRuleName(table.score)},
                              {"row_bytes", Known(RowBytesOf(table, kept))},
                              {"rows", Known(table.rows)},
                              {"bytes", Known(BytesOf(table, kept))},
                              {"hash", Known(table.hash)}});
    if (kept.has_value()) json["tables"].back()["codes"] = WordOf(kServingRowsWords, *kept);
  }
  return json;
}

// File names may be any bytes; JSON may not.
std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// With what verifying has counted, or what the snapshots say of themselves.
SavedModel Counted(const CheckpointReport& report) {
  SavedModel model = report.model;
  for (size_t i = 0; i < report.table_rows.size(); ++i) {
    model.tables[i].rows = report.table_rows[i];
  }
  for (size_t i = 0; i < report.tables.size(); ++i) {
    model.tables[i].rows = report.tables[i].rows;
    model.tables[i].hash = report.tables[i].hash.ToHex();
  }
  return model;
}

SavedModel Counted(const PortableModel& portable, const std::vector<int64_t>& rows) {
  SavedModel model = portable.model;
  for (size_t i = 0; i < rows.size(); ++i) {
    model.tables[i].rows = rows[i];
    if (portable.tables[i].hash.has_value()) {
      model.tables[i].hash = portable.tables[i].hash->ToHex();
    }
  }
  return model;
}

Codes CodesOf(const PortableModel& portable) {
  Codes out;
  for (const PortableTable& table : portable.tables) out.push_back(table.codes);
  return out;
}

}  // namespace

std::string CheckpointReportText(const std::string& path, const CheckpointReport& report) {
  const SavedModel model = Counted(report);
  std::string out = absl::StrCat(path, ": ", model.is_checkpoint ? "a checkpoint" : "a saved model",
                                 model.dir == path ? "" : absl::StrCat(", ", model.dir), "\n\n",
                                 ModelText(model));
  AppendLine(&out, "rows",
             report.rows >= 0 ? FormatCount(report.rows)
                              : absl::StrCat("unknown (", report.rows_unknown, ")"));
  for (size_t r = 0; r < model.parts.size(); ++r) {
    const SavedModel::Part& part = model.parts[r];
    const std::string store =
        absl::StrCat(part.store, ", snapshot ", part.snapshot, " in ", part.tables_dir);
    if (model.parts.size() == 1) {
      AppendLine(&out, "store", store);
    } else {
      AppendLine(&out, absl::StrCat("rank ", r),
                 absl::StrCat(CountText(report.part_rows[r]), " rows, ", store));
    }
  }
  for (const CheckpointReport::File& file : report.files) {
    AppendLine(&out, "file",
               absl::StrCat(file.path, ", ", file.bytes < 0 ? "missing" : FormatBytes(file.bytes)));
  }
  if (!report.checkpoints.empty()) {
    std::string names;
    for (const std::string& name : report.checkpoints) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    }
    AppendLine(&out, "checkpoints", names);
  }
  absl::StrAppend(&out, TablesText(model));
  if (!report.damage.empty()) {
    absl::StrAppend(&out, "\nDamage\n");
    for (const std::string& line : report.damage) absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string CheckpointReportJson(const std::string& path, const CheckpointReport& report) {
  const SavedModel model = Counted(report);
  Json json = {{"kind", model.is_checkpoint ? "checkpoint" : "saved_model"},
               {"path", path},
               {"dir", model.dir}};
  json.update(ModelJson(model));
  json["rows"] = Known(report.rows);
  json["stores"] = Json::array();
  for (size_t r = 0; r < model.parts.size(); ++r) {
    const SavedModel::Part& part = model.parts[r];
    json["stores"].push_back(
        {{"rank", r},
         {"kind", part.store},
         {"dir", part.tables_dir},
         {"snapshot", part.snapshot},
         {"identity", Known(part.identity.known() ? part.identity.ToHex() : std::string())},
         {"rows", Known(report.part_rows[r])}});
  }
  json["files"] = Json::array();
  for (const CheckpointReport::File& file : report.files) {
    json["files"].push_back({{"file", file.path}, {"bytes", Known(file.bytes)}});
  }
  json["checkpoints"] = report.checkpoints;
  json["damaged_checkpoints"] = report.damaged_checkpoints;
  json["damage_count"] = report.damage.size();
  json["damage"] = report.damage;
  return Dump(json);
}

std::string PortableModelText(const std::string& path, const PortableModel& portable,
                              const std::vector<int64_t>& rows) {
  const SavedModel model = Counted(portable, rows);
  return absl::StrCat(path, ": a model in the portable form\n\n", ModelText(model),
                      TablesText(model, CodesOf(portable)));
}

std::string PortableModelJson(const std::string& path, const PortableModel& portable,
                              const std::vector<int64_t>& rows) {
  Json json = {{"kind", "portable_model"}, {"path", path}};
  json.update(ModelJson(Counted(portable, rows), CodesOf(portable)));
  return Dump(json);
}

std::string PortableSummaryText(const PortableSummary& summary) {
  int64_t rows = 0;
  for (const PortableDigest& table : summary.tables) rows += table.rows;
  return absl::StrCat(summary.from, summary.to.empty() ? "" : absl::StrCat(" -> ", summary.to),
                      ": ", FormatCount(static_cast<int64_t>(summary.tables.size())), " tables, ",
                      FormatCount(rows), " rows, ", FormatBytes(summary.bytes), " in ",
                      FormatCount(summary.files), " files, step ", FormatCount(summary.model.step),
                      "\n");
}

std::string PortableSummaryJson(const PortableSummary& summary) {
  Json json = {{"from", summary.from}, {"to", Known(summary.to)}};
  json.update(ModelJson(summary.model, summary.codes));
  json["files"] = summary.files;
  json["bytes"] = summary.bytes;
  return Dump(json);
}

std::string DeltaSummaryText(const DeltaSummary& summary) {
  return absl::StrCat(summary.from, " -> ", summary.to, ": ", FormatCount(summary.rows), " rows, ",
                      FormatCount(summary.erased), " tombstones, ", FormatBytes(summary.bytes),
                      ", steps ", FormatCount(summary.delta.parent_step), " to ",
                      FormatCount(summary.delta.model.step),
                      summary.made_chain ? ", behind a new base" : "", "\n");
}

std::string DeltaSummaryJson(const DeltaSummary& summary) {
  const DeltaForm& form = summary.delta.form;
  return Dump({{"from", summary.from},
               {"to", summary.to},
               {"base_id", summary.delta.base_id.ToHex()},
               {"sequence", summary.delta.sequence},
               {"made_chain", summary.made_chain},
               {"parent_step", summary.delta.parent_step},
               {"step", summary.delta.model.step},
               {"precision", std::string(ExchangeTypeName(form.precision))},
               {"state", form.state},
               {"rows", summary.rows},
               {"erased", summary.erased},
               {"bytes", summary.bytes}});
}

std::string TableSummaryText(const ExportTableSummary& summary) {
  return absl::StrCat(summary.from, " -> ", summary.to, ": ", FormatCount(summary.rows), " of ",
                      FormatCount(summary.rows_found), " rows, ", FormatBytes(summary.bytes), "\n");
}

std::string TableSummaryJson(const ExportTableSummary& summary) {
  return Dump({{"from", summary.from},
               {"to", summary.to},
               {"rows", summary.rows},
               {"rows_found", summary.rows_found},
               {"bytes", summary.bytes}});
}

std::string OnnxSummaryText(const ExportOnnxSummary& summary) {
  std::string out = absl::StrCat(
      summary.from, " -> ", summary.to, ": ", summary.model_name, ", step ",
      FormatCount(summary.step), ", ", FormatCount(summary.parameters), " dense parameters, ",
      summary.with_rows ? absl::StrCat(FormatCount(summary.rows), " rows, ")
                        : std::string("rows are inputs, "),
      FormatBytes(summary.bytes), "\n  inputs:  ", absl::StrJoin(summary.inputs, ", "),
      "\n  outputs: ", absl::StrJoin(summary.outputs, ", "), "\n");
  for (const std::string& note : summary.notes) absl::StrAppend(&out, "  note: ", note, "\n");
  return out;
}

std::string OnnxSummaryJson(const ExportOnnxSummary& summary) {
  return Dump({{"from", summary.from},
               {"to", summary.to},
               {"model", summary.model_name},
               {"step", summary.step},
               {"with_rows", summary.with_rows},
               {"inputs", summary.inputs},
               {"outputs", summary.outputs},
               {"parameters", summary.parameters},
               {"rows", summary.rows},
               {"bytes", summary.bytes},
               {"notes", summary.notes}});
}

std::string PackedDataText(const std::string& path, const PackedManifest& pack) {
  const int64_t samples =
      pack.schema.train_samples + pack.schema.valid_samples + pack.schema.test_samples;
  std::string out =
      absl::StrCat(path, ": packed data: ", FormatCount(pack.schema.train_samples), " train, ",
                   FormatCount(pack.schema.valid_samples), " validation, ",
                   FormatCount(pack.schema.test_samples), " test samples, ",
                   FormatCount(static_cast<int64_t>(pack.schema.features.size())), " features, ",
                   FormatCount(pack.schema.num_dense), " dense",
                   pack.dense_precision == PackedPrecision::kFp32 ? "" : " (fp16)", ", in ",
                   FormatBytes(pack.SplitBytes()));
  if (samples > 0) {
    absl::StrAppendFormat(&out, ", %.1f bytes a sample",
                          static_cast<double>(pack.SplitBytes()) / static_cast<double>(samples));
  }
  return out + "\n";
}

std::string PackedColumnsText(const PackedManifest& pack) {
  std::string out = absl::StrCat("  labels: ", absl::StrJoin(pack.schema.labels, ", "), "\n");
  if (!pack.schema.dense.empty()) {
    absl::StrAppend(&out, "  dense: ", absl::StrJoin(pack.schema.dense, ", "), "\n");
  }
  if (pack.has_time) absl::StrAppend(&out, "  samples have times\n");
  for (const DataFeature& feature : pack.schema.features) {
    absl::StrAppend(&out, "  feature ", feature.name, ": table ", feature.table);
    if (feature.num_embeddings > 0) {
      absl::StrAppend(&out, ", keys below ", FormatCount(feature.num_embeddings));
    }
    if (feature.max_hotness > 0) {
      absl::StrAppend(&out, ", at most ", FormatCount(feature.max_hotness), " a sample");
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::string PackedDataJson(const std::string& path, const PackedManifest& pack,
                           const std::vector<std::string>* damage) {
  using Json = nlohmann::ordered_json;
  Json source = Json::object();
  for (const auto& [name, value] : pack.source) source[name] = value;
  Json features = Json::array();
  for (const DataFeature& feature : pack.schema.features) {
    features.push_back({{"name", feature.name},
                        {"table", feature.table},
                        {"num_embeddings", feature.num_embeddings},
                        {"max_hotness", feature.max_hotness}});
  }
  Json out = {{"kind", "packed_data"},
              {"path", path},
              {"name", pack.schema.name},
              {"train_samples", pack.schema.train_samples},
              {"valid_samples", pack.schema.valid_samples},
              {"test_samples", pack.schema.test_samples},
              {"labels", pack.schema.labels},
              {"features", pack.schema.features.size()},
              {"feature_list", features},
              {"num_dense", pack.schema.num_dense},
              {"dense", pack.schema.dense},
              {"dense_precision", WordOf(kPackedPrecisionWords, pack.dense_precision)},
              {"block_samples", pack.block_samples},
              {"bytes", pack.SplitBytes()},
              {"source", source}};
  if (pack.has_time) out["time"] = true;
  if (damage != nullptr) {
    out["damage_count"] = damage->size();
    out["damage"] = *damage;
  }
  return Dump(out);
}

std::string ChainSummaryText(const ChainSummary& summary) {
  return absl::StrCat(summary.chain, ": a chain of deltas in ",
                      std::string(ExchangeTypeName(summary.form.precision)),
                      summary.form.state ? " with state" : " without state", ", base of step ",
                      FormatCount(summary.base_step),
                      summary.sequence == summary.base_sequence
                          ? ", no deltas"
                          : absl::StrCat(", deltas ", FormatCount(summary.base_sequence + 1),
                                         " to ", FormatCount(summary.sequence)),
                      ", step ", FormatCount(summary.step), ", ", FormatCount(summary.rows),
                      " rows, ", FormatCount(summary.erased), " tombstones, ",
                      FormatBytes(summary.bytes), "\n");
}

std::string ChainSummaryJson(const ChainSummary& summary) {
  return Dump({{"kind", "delta_chain"},
               {"path", summary.chain},
               {"base_id", summary.base_id.ToHex()},
               {"precision", std::string(ExchangeTypeName(summary.form.precision))},
               {"state", summary.form.state},
               {"base_sequence", summary.base_sequence},
               {"base_step", summary.base_step},
               {"sequence", summary.sequence},
               {"step", summary.step},
               {"rows", summary.rows},
               {"erased", summary.erased},
               {"bytes", summary.bytes}});
}

std::string CompactSummaryText(const CompactSummary& summary) {
  return absl::StrCat(summary.chain, ": ",
                      summary.made_base ? "a new base" : "no delta behind the base", ", delta ",
                      FormatCount(summary.sequence), ", step ", FormatCount(summary.step), "; ",
                      FormatCount(summary.deltas_removed), " deltas and ",
                      FormatCount(summary.bases_removed), " bases removed\n");
}

std::string CompactSummaryJson(const CompactSummary& summary) {
  return Dump({{"chain", summary.chain},
               {"made_base", summary.made_base},
               {"sequence", summary.sequence},
               {"step", summary.step},
               {"deltas_removed", summary.deltas_removed},
               {"bases_removed", summary.bases_removed}});
}

}  // namespace hotrow
