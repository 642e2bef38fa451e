#include "models/serving/export_onnx.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "models/onnx/onnx_graph.h"
#include "models/saving/store_paths_impl.h"
#include "models/serving/onnx_rows_impl.h"
#include "models/serving/scorer.h"
#include "models/serving/serving_model_impl.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {
namespace {

using internal::OnnxRows;
using internal::ServingFeature;
using internal::ServingModel;
using Json = nlohmann::ordered_json;

// What rows may take while they are read: more than those that a file can have.
constexpr int64_t kRowBytesMax = 2 * (kOnnxBytesMax + 1);

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The inputs of the graph, and the values that the dense part reads.
GraphModel::OnnxInputs AddInputs(const ServingModel& model, const std::optional<OnnxRows>& rows,
                                 OnnxGraph* graph) {
  GraphModel::OnnxInputs out;
  if (model.recipe.num_dense > 0) {
    out.dense =
        graph->Input("dense", OnnxType::kFloat, {kOnnxBatchDim, int64_t{model.recipe.num_dense}});
  }
  for (const ServingFeature& feature : model.features) {
    const bool is_sequence = feature.unpooled_index >= 0;
    const OnnxDim values = "L." + feature.name;
    std::string input;
    if (rows.has_value()) {
      input = graph->Input("ids." + feature.name, OnnxType::kInt64, {kOnnxBatchDim, values});
    } else if (is_sequence) {
      input = graph->Input("rows." + feature.name, OnnxType::kFloat,
                           {kOnnxBatchDim, values, int64_t{feature.dim}});
    } else {
      out.features.push_back(graph->Input("embedding." + feature.name, OnnxType::kFloat,
                                          {kOnnxBatchDim, int64_t{feature.dim}}));
      continue;
    }
    const std::string length =
        graph->Input("length." + feature.name, OnnxType::kInt64, {kOnnxBatchDim, int64_t{1}});
    const std::string mask = internal::AddOnnxMask(*graph, "mask." + feature.name, input, length);
    if (!is_sequence) {
      out.features.push_back(rows->Pool(feature, input, mask, length, graph));
      continue;
    }
    out.sequences.push_back(
        {.rows = rows.has_value() ? rows->Lookup(feature, input, mask, graph) : input,
         .mask = graph->Unsqueeze("rows_of." + feature.name, mask, 2)});
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> MetadataOf(const ServingModel& model,
                                                            const std::optional<OnnxRows>& rows) {
  Json features = Json::array();
  for (size_t f = 0; f < model.features.size(); ++f) {
    const ServingFeature& feature = model.features[f];
    features.push_back({{"name", feature.name},
                        {"table", model.saved.features[f].table},
                        {"columns", feature.dim},
                        {"pooling", std::string(WordOf(kPoolingWords, feature.pooling))}});
  }
  Json shape = Json::object();
  for (const auto& [flag, value] : model.saved.shape) shape[flag] = value;
  std::vector<std::pair<std::string, std::string>> out = {
      {"hotrow.form", rows.has_value() ? "rows" : "embeddings"},
      {"hotrow.model", model.saved.model},
      {"hotrow.shape", Dump(shape)},
      {"hotrow.step", absl::StrCat(model.saved.step)},
      {"hotrow.num_dense", absl::StrCat(model.recipe.num_dense)},
      {"hotrow.features", Dump(features)},
      {"hotrow.labels", Dump(model.labels)}};
  if (!rows.has_value()) return out;
  Json tables = Json::array();
  for (const OnnxRows::Table& table : rows->tables()) {
    tables.push_back(
        {{"name", table.name},
         {"rows", table.rows},
         {"index", table.is_indexed ? "key" : "encoder"},
         {"unseen_keys", std::string(WordOf(kOnnxUnseenKeysWords, table.unseen_keys))}});
  }
  out.emplace_back("hotrow.tables", Dump(tables));
  return out;
}

absl::StatusOr<std::unique_ptr<const ServingModel>> ReadModel(const ScorerOptions& options,
                                                              bool with_rows) {
  absl::StatusOr<std::unique_ptr<const ServingModel>> model =
      internal::ReadServingModel(options, with_rows);
  if (with_rows && absl::IsResourceExhausted(model.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.model, ": its rows are more than the ", kOnnxBytesMax,
                     " bytes of an ONNX file, or than memory (", model.status().message(),
                     "); leave out --with_rows"));
  }
  return model;
}

}  // namespace

absl::StatusOr<ExportOnnxSummary> ExportOnnx(const ExportOnnxOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  if (options.path.empty()) return absl::InvalidArgumentError("ExportOnnxOptions.path is empty");
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(options.path));
  if (exists) {
    return absl::FailedPreconditionError(absl::StrCat(
        options.path, ": is there already; give the name of a file that is not there yet"));
  }
  const ScorerOptions reading = {.model = WithoutEndingSlashes(options.model),
                                 .memory_bytes = kRowBytesMax,
                                 .store_bytes = options.store_bytes,
                                 .max_concurrency = 1,
                                 .max_batch_size = 1,
                                 .precision = DensePrecision::kFp32,
                                 .create_model = options.create_model,
                                 .env = &env};
  HOTROW_RETURN_IF_ERROR(reading.Validate());
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<const ServingModel> model,
                          ReadModel(reading, options.with_rows));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<CtrModel> dense,
                          internal::NewDensePart(reading, *model));
  const auto* const graph_model = dynamic_cast<const GraphModel*>(dense.get());
  if (graph_model == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(model->saved.dir, ": a ", model->saved.model,
                     " is not declared as a ModelGraph, which is what becomes ONNX"));
  }

  OnnxGraph graph;
  std::optional<OnnxRows> rows;
  if (options.with_rows) {
    HOTROW_ASSIGN_OR_RETURN(rows, OnnxRows::Add(*model, options.unseen_keys, &graph));
  }
  const GraphModel::OnnxInputs inputs = AddInputs(*model, rows, &graph);
  HOTROW_ASSIGN_OR_RETURN(const std::string scores, graph_model->ToOnnx(inputs, &graph));
  const std::vector<OnnxDim> dims = {kOnnxBatchDim, int64_t{dense->num_tasks()}};
  const std::string logits = graph.Add("Identity", "logits", {scores});
  graph.Output(logits, OnnxType::kFloat, dims);
  graph.Output(graph.Add("Sigmoid", "probabilities", {logits}), OnnxType::kFloat, dims);

  OnnxModel onnx = graph.Take();
  onnx.producer_name = "hotrow";
  onnx.producer_version = Version();
  onnx.graph_name = model->saved.model;
  onnx.metadata = MetadataOf(*model, rows);
  HOTROW_ASSIGN_OR_RETURN(const int64_t bytes, WriteOnnx(env, options.path, onnx));

  ExportOnnxSummary summary = {.from = model->saved.dir,
                               .to = options.path,
                               .model_name = model->saved.model,
                               .step = model->saved.step,
                               .with_rows = options.with_rows,
                               .parameters = std::ssize(model->parameters),
                               .bytes = bytes,
                               .notes = model->notes};
  for (const OnnxValueInfo& input : onnx.inputs) summary.inputs.push_back(input.name);
  for (const OnnxValueInfo& output : onnx.outputs) summary.outputs.push_back(output.name);
  if (rows.has_value()) {
    for (const OnnxRows::Table& table : rows->tables()) summary.rows += table.rows;
  }
  if (model->trained_precision != DensePrecision::kFp32) {
    summary.notes.push_back(absl::StrCat("evaluation in training makes products in ",
                                         std::string(DensePrecisionName(model->trained_precision)),
                                         ", the file in fp32: scores differ by that"));
  }
  return summary;
}

}  // namespace hotrow
