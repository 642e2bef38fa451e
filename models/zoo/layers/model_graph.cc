#include "models/zoo/layers/model_graph.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/zoo/layers/graph_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {
namespace {

using internal::GraphNode;
using Kind = GraphNode::Kind;

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

ModelGraphOptions GraphOptionsOf(std::string_view name, const ModelOptions& options,
                                 int32_t table_columns, int32_t num_tasks) {
  return {.name = std::string(name),
          .num_dense = options.num_dense,
          .num_sparse = options.num_sparse,
          .table_columns = table_columns,
          .num_tasks = num_tasks,
          .seed = options.seed,
          .max_batch_size = options.max_batch_size,
          .precision = options.precision};
}

ModelGraph::ModelGraph(const ModelGraphOptions& options, const ExecContext& ctx)
    : options_(options), ctx_(ctx) {}
ModelGraph::~ModelGraph() = default;

TensorShape ModelGraph::shape(GraphValue value) const {
  return value.node < 0 ? TensorShape() : nodes_[static_cast<size_t>(value.node)].shape;
}

GraphValue ModelGraph::Fail(absl::Status error) {
  error_.Update(std::move(error));
  return {};
}

bool ModelGraph::Declared(const std::vector<GraphValue>& values) const {
  for (const GraphValue value : values) {
    if (value.node < 0) return false;
  }
  return ok();
}

GraphValue ModelGraph::AddNode(GraphNode node) {
  if (!ok()) return {};
  nodes_.push_back(std::move(node));
  return {static_cast<int32_t>(nodes_.size()) - 1};
}

GraphValue ModelGraph::Dense() {
  if (options_.num_dense < 1) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(options_.name, " reads dense features, but the data have none")));
  }
  return AddNode({.kind = Kind::kDense, .name = "dense", .shape = {1, options_.num_dense}});
}

GraphValue ModelGraph::Embeddings(int32_t first_column, int32_t columns) {
  return EmbeddingsOf(0, options_.num_sparse, first_column, columns);
}

GraphValue ModelGraph::EmbeddingsOf(int32_t first_feature, int32_t num_features,
                                    int32_t first_column, int32_t columns) {
  if (columns == 0) columns = options_.table_columns - first_column;
  if (options_.num_sparse < 1 || first_column < 0 || columns < 1 ||
      int64_t{first_column} + columns > options_.table_columns) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        options_.name, " reads columns ", first_column, " to ", int64_t{first_column} + columns,
        " of ", options_.num_sparse, " features, whose tables have ", options_.table_columns)));
  }
  if (first_feature < 0 || num_features < 1 ||
      int64_t{first_feature} + num_features > options_.num_sparse) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(options_.name, " reads features ", first_feature, " to ",
                     int64_t{first_feature} + num_features, " of ", options_.num_sparse)));
  }
  const TensorShape shape = {num_features, columns};
  const int64_t all = int64_t{options_.num_sparse} * options_.table_columns;
  if (all > std::numeric_limits<int32_t>::max()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "--embedding_dim: ", options_.num_sparse, " features of ", options_.table_columns,
        " columns are ", all, " inputs a sample, which is more than 2^31 - 1; lower it")));
  }
  return AddNode({.kind = Kind::kEmbeddings,
                  .name = "embeddings",
                  .shape = shape,
                  .first_field = first_feature,
                  .first_column = first_column});
}

GraphValue ModelGraph::Packed(GraphValue value) {
  if (value.node < 0) return {};
  const GraphNode& node = nodes_[static_cast<size_t>(value.node)];
  const bool packed = node.kind != Kind::kEmbeddings || node.shape.fields == 1 ||
                      node.shape.dim == options_.table_columns;
  if (packed) return value;
  const TensorShape shape = node.shape;
  return AddNode({.kind = Kind::kConcat, .name = "packed", .inputs = {value.node}, .shape = shape});
}

GraphValue ModelGraph::Concat(const std::vector<GraphValue>& values) {
  if (!Declared(values) || values.empty()) return {};
  if (values.size() == 1) return Packed(values.front());
  GraphNode node = {.kind = Kind::kConcat, .name = "concat"};
  int64_t width = 0;
  for (const GraphValue value : values) {
    node.inputs.push_back(value.node);
    width += shape(value).width();
  }
  if (width > std::numeric_limits<int32_t>::max()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(options_.name, " puts ", width,
                     " columns side by side, which is more than 2^31 - 1; lower --embedding_dim")));
  }
  node.shape = {1, static_cast<int32_t>(width)};
  return AddNode(std::move(node));
}

GraphValue ModelGraph::Sum(const std::vector<GraphValue>& values) {
  if (!Declared(values) || values.empty()) return {};
  GraphNode node = {.kind = Kind::kSum, .name = "sum", .shape = shape(values.front())};
  for (const GraphValue value : values) {
    node.inputs.push_back(value.node);
    if (shape(value).width() == node.shape.width()) continue;
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        options_.name, " adds ", nodes_[static_cast<size_t>(value.node)].name, " of ",
        shape(value).width(), " columns to ", nodes_[static_cast<size_t>(values.front().node)].name,
        " of ", node.shape.width())));
  }
  return AddNode(std::move(node));
}

void ModelGraph::AddLogit(GraphValue term, int32_t task) {
  if (term.node < 0) return;
  HOTROW_CHECK(0 <= task && task < options_.num_tasks);
  if (shape(term).width() != 1) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(nodes_[static_cast<size_t>(term.node)].name, " is a term of the logit of ",
                     options_.name, " and must have one column, has ", shape(term).width())));
  }
  logit_terms_.resize(static_cast<size_t>(options_.num_tasks));
  logit_terms_[static_cast<size_t>(task)].push_back(term);
}

GraphValue ModelGraph::AddLayer(std::string_view name, absl::StatusOr<std::unique_ptr<Layer>> layer,
                                const std::vector<GraphValue>& inputs, bool joins_previous) {
  if (!layer.ok()) {
    return Fail(absl::Status(layer.status().code(),
                             absl::StrCat(Absl(name), ": ", layer.status().message())));
  }
  if (!Declared(inputs)) return {};
  if (ctx_.device != Device::kCpu && !(*layer)->traits().on_gpu) {
    return Fail(WorksOnlyOn(options_.name, Device::kCpu, ctx_.device, name));
  }
  GraphNode node = {.kind = Kind::kLayer,
                    .name = std::string(name),
                    .shape = (*layer)->output(),
                    .joins_previous = joins_previous};
  const bool strided = (*layer)->traits().strided_fields;
  for (const GraphValue input : inputs) {
    node.inputs.push_back(strided ? input.node : Packed(input).node);
  }
  node.layer = *std::move(layer);
  return AddNode(std::move(node));
}

absl::Status ModelGraph::CheckUsed() const {
  std::vector<bool> used(nodes_.size());
  for (const GraphNode& node : nodes_) {
    for (const int32_t input : node.inputs) used[static_cast<size_t>(input)] = true;
  }
  used.back() = true;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const bool is_input = nodes_[n].kind == Kind::kDense || nodes_[n].kind == Kind::kEmbeddings;
    if (used[n] || is_input) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(options_.name, ": nothing reads ", nodes_[n].name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GraphModel>> ModelGraph::Build() {
  HOTROW_RETURN_IF_ERROR(error_);
  if (options_.max_batch_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name, ": max_batch_size must be at least 1, is ", options_.max_batch_size));
  }
  std::vector<GraphValue> logits;
  for (const std::vector<GraphValue>& terms : logit_terms_) {
    if (terms.empty()) break;
    logits.push_back(Sum(terms));
  }
  if (std::ssize(logits) < std::max(options_.num_tasks, 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name, " has no logit",
        options_.num_tasks > 1 ? absl::StrCat(" of task ", logits.size()) : std::string()));
  }
  if (logits.size() > 1) Concat(logits);
  HOTROW_RETURN_IF_ERROR(CheckUsed());
  return internal::MakeGraphModel(options_, std::move(nodes_), ctx_);
}

}  // namespace hotrow
