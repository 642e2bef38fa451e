#include "models/zoo/layers/graph_model_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/non_finite.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/graph_plan_impl.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/model_parts.h"
#include "ops/layers/columns.h"
#include "ops/layers/inner_layer.h"

namespace hotrow {

std::vector<InnerLayer> Layer::inner_layers() const { return {}; }

namespace internal {
namespace {

MoveColumnsArgs::Kind KindOf(Move::Kind kind) {
  switch (kind) {
    case Move::Kind::kCopy:
      return MoveColumnsArgs::Kind::kCopy;
    case Move::Kind::kAdd:
      return MoveColumnsArgs::Kind::kAdd;
    case Move::Kind::kZero:
      break;
  }
  return MoveColumnsArgs::Kind::kZero;
}

class PlannedModel final : public GraphModel {
 public:
  PlannedModel(const ModelGraphOptions& options, std::vector<GraphNode> nodes, Device device)
      : name_(options.name),
        device_(device),
        num_tasks_(options.num_tasks),
        table_columns_(options.table_columns),
        unpooled_features_(options.unpooled_features),
        max_batch_size_(options.max_batch_size),
        nodes_(std::move(nodes)),
        plan_(std::make_unique<GraphPlan>(
            PlanGraph(nodes_, {.num_dense = options.num_dense,
                               .num_sparse = options.num_sparse,
                               .table_columns = options.table_columns,
                               .max_batch_size = options.max_batch_size}))) {}

  absl::Status Allocate(const ExecContext& ctx);
  absl::Status InitParameters(const ExecContext& ctx, uint64_t seed);

  std::string_view name() const override { return name_; }
  DenseLayers layers() const override;
  Device device() const override { return device_; }
  int32_t num_tasks() const override { return num_tasks_; }
  std::vector<int32_t> unpooled_features() const override { return unpooled_features_; }
  bool reads_rows() const override;
  bool reads_shared_rows() const override;
  absl::Status Forward(const ExecContext& ctx, const Input& input,
                       std::span<float> logits) override;
  absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                        float* embedding_gradient, const BackwardHooks& hooks) override;
  std::span<float> parameters() override { return parameters_.span(); }
  std::span<const float> gradients() const override { return gradients_.span(); }
  std::span<float> mutable_gradients() override { return gradients_.span(); }
  std::vector<ParameterRange> untrained_parameters() const override;
  absl::Status EndStep(const ExecContext& ctx, int64_t samples) override;
  std::string NonFiniteAt(const ExecContext& ctx, std::span<const float> in) override {
    return (in.empty() ? FirstOutput(ctx) : LastWith(ctx, in)).value_or("");
  }
  absl::StatusOr<std::string> ToOnnx(const OnnxInputs& inputs, OnnxGraph* graph) const override;
  Part FindPart(std::string_view name) const override;
  int64_t arena_bytes() const override { return arena_.bytes(); }

 private:
  // The arrays of the caller, those of a pass forward or back.
  struct Arrays {
    float* dense = nullptr;
    float* embeddings = nullptr;
    float* logits = nullptr;
    const float* const* rows = nullptr;  // of embeddings, in their place
  };

  // NonFiniteAt.
  absl::StatusOr<std::string> FirstOutput(const ExecContext& ctx);
  absl::StatusOr<std::string> LastWith(const ExecContext& ctx, std::span<const float> in) const;
  std::string EmbeddingsToOnnx(const GraphNode& node, const OnnxInputs& inputs,
                               OnnxGraph* graph) const;
  absl::Status CheckSequences(const Input& input) const;
  TensorView Resolve(const Location& location, const Arrays& arrays);
  absl::Status Run(const ExecContext& ctx, std::span<const Move> moves, const Arrays& arrays);
  absl::Status Run(const ExecContext& ctx, const ForwardStep& step, const Arrays& values);
  absl::Status Run(const ExecContext& ctx, const BackwardStep& step, const Arrays& values,
                   const Arrays& gradients, const BackwardHooks& hooks);

  const std::string name_;
  const Device device_;
  const int32_t num_tasks_;
  const int32_t table_columns_;
  const std::vector<int32_t> unpooled_features_;
  const int64_t max_batch_size_;
  const std::vector<GraphNode> nodes_;
  const std::unique_ptr<const GraphPlan> plan_;
  DeviceMemory<float> parameters_;
  DeviceMemory<float> gradients_;
  DeviceMemory<float> arena_;
  Input input_;                         // of the last Forward
  float* logits_ = nullptr;             // the same
  std::vector<TensorView> inputs_;      // of the layer at work
  std::vector<TensorView> outputs_;     // gradients of its inputs
  std::vector<MoveColumnsArgs> moves_;  // of the step at work
};

absl::Status PlannedModel::Allocate(const ExecContext& ctx) {
  const auto allocate = [&](int64_t floats, DeviceMemory<float>* memory) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(
        *memory, DeviceMemory<float>::Create(floats, {ctx.device, ctx.stream, HugePages::kTry}));
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(allocate(plan_->num_parameters, &parameters_));
  HOTROW_RETURN_IF_ERROR(allocate(plan_->num_parameters, &gradients_));
  return allocate(plan_->arena_floats, &arena_);
}

absl::Status PlannedModel::InitParameters(const ExecContext& ctx, uint64_t seed) {
  HostBuffer<float> drawn;  // on another device: where they are drawn
  std::span<float> host = parameters();
  if (ctx.device != Device::kCpu) {
    HOTROW_ASSIGN_OR_RETURN(drawn, HostBuffer<float>::Create(parameters_.size()));
    host = drawn.span();
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].num_parameters() == 0) continue;
    nodes_[n].layer->InitParameters(seed,
                                    host.subspan(static_cast<size_t>(plan_->parameter_offsets[n]),
                                                 static_cast<size_t>(nodes_[n].num_parameters())));
  }
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  // No layer writes the gradients between the blocks of parameters, which the optimizer reads.
  constexpr int32_t kColumns = kBufferAlignment / static_cast<int32_t>(sizeof(float));
  HOTROW_RETURN_IF_ERROR(MoveColumns(ctx, {.kind = MoveColumnsArgs::Kind::kZero,
                                           .batch_size = plan_->num_parameters / kColumns,
                                           .width = kColumns,
                                           .to = {gradients_.data(), kColumns, kColumns}}));
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(ctx.device));
  HOTROW_RETURN_IF_ERROR(stream.RunAfter(ctx.stream));  // which the memory comes from
  HOTROW_RETURN_IF_ERROR(stream.Copy(parameters_.data(), host.data(), drawn.bytes()));
  return stream.Wait();
}

DenseLayers PlannedModel::layers() const { return plan_->layers; }

// What reads embeddings is layers that take rows, and they take all fields.
bool PlannedModel::reads_rows() const {
  bool any = false;
  const auto takes = [&](const ForwardStep& step) {
    const auto is_embeddings = [](const Location& location) {
      return location.place == Location::Place::kEmbeddings;
    };
    for (const Move& move : step.moves) {
      if (is_embeddings(move.from)) return false;
    }
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Location& from = step.inputs[i];
      if (!is_embeddings(from)) continue;
      const bool whole = from.offset == 0 && from.row_stride == from.shape.width();
      const Layer& layer = *nodes_[static_cast<size_t>(step.node)].layer;
      if (!whole || i + 1 != step.inputs.size() || !layer.traits().reads_rows) return false;
      any = true;
    }
    return true;
  };
  return std::all_of(plan_->before_embeddings.begin(), plan_->before_embeddings.end(), takes) &&
         std::all_of(plan_->with_embeddings.begin(), plan_->with_embeddings.end(), takes) && any;
}

bool PlannedModel::reads_shared_rows() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const GraphNode& node) {
    return node.layer == nullptr || !node.layer->traits().sequences ||
           node.layer->traits().shared_rows;
  });
}

absl::StatusOr<std::string> PlannedModel::ToOnnx(const OnnxInputs& inputs, OnnxGraph* graph) const {
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, Device::kCpu));
  std::vector<std::string> values;  // of each node
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const GraphNode& node = nodes_[n];
    std::vector<LayerOnnx::Value> read;
    OnnxGraph::Inputs names;
    for (const int32_t input : node.inputs) {
      names.push_back(values[static_cast<size_t>(input)]);
      read.push_back({names.back(), nodes_[static_cast<size_t>(input)].shape});
    }
    switch (node.kind) {
      case GraphNode::Kind::kDense:
        values.push_back(inputs.dense);
        break;
      case GraphNode::Kind::kEmbeddings:
        values.push_back(EmbeddingsToOnnx(node, inputs, graph));
        break;
      case GraphNode::Kind::kConcat:
        values.push_back(graph->Concat(node.name, names, 1));
        break;
      case GraphNode::Kind::kSum:
        values.push_back(names.size() == 1 ? names[0] : graph->Add("Sum", node.name, names));
        break;
      case GraphNode::Kind::kLayer: {
        absl::StatusOr<std::string> value =
            node.layer->ToOnnx({.graph = graph,
                                .name = node.name,
                                .parameters = parameters_.data() + plan_->parameter_offsets[n],
                                .inputs = read,
                                .sequences = inputs.sequences});
        if (!value.ok()) {
          return absl::Status(value.status().code(),
                              absl::StrCat(name_, ", ", node.name, ": ", value.status().message()));
        }
        values.push_back(*std::move(value));
        break;
      }
    }
  }
  return values.back();
}

std::string PlannedModel::EmbeddingsToOnnx(const GraphNode& node, const OnnxInputs& inputs,
                                           OnnxGraph* graph) const {
  const auto first = inputs.features.begin() + node.first_field;
  const int64_t fields = node.shape.fields;
  const std::string& name = node.name;
  const std::string all = graph->Concat(name, {first, first + fields}, 1);
  if (node.shape.dim == table_columns_) return all;
  const std::string rows = graph->Reshape(name + "/fields", all, {0, fields, table_columns_});
  const std::string columns = graph->Slice(name + "/columns", rows, 2, node.first_column,
                                           node.first_column + node.shape.dim);
  return graph->Reshape(name + "/output", columns, {0, node.shape.width()});
}

GraphModel::Part PlannedModel::FindPart(std::string_view name) const {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].layer == nullptr || nodes_[n].name != name) continue;
    return {.layer = nodes_[n].layer.get(), .offset = plan_->parameter_offsets[n]};
  }
  return {};
}

TensorView PlannedModel::Resolve(const Location& location, const Arrays& arrays) {
  TensorView view = {.row_stride = location.row_stride,
                     .shape = location.shape,
                     .field_stride = location.field_stride,
                     .room = location.room};
  switch (location.place) {
    case Location::Place::kNowhere:
      break;
    case Location::Place::kArena:
      view.data = arena_.data() + plan_->buffer_offsets[static_cast<size_t>(location.buffer)];
      break;
    case Location::Place::kDense:
      view.data = arrays.dense;
      break;
    case Location::Place::kEmbeddings:
      view.data = arrays.embeddings;
      view.rows = arrays.rows;
      break;
    case Location::Place::kLogits:
      view.data = arrays.logits;
      break;
  }
  if (view.data != nullptr) view.data += location.offset;
  return view;
}

absl::Status PlannedModel::Run(const ExecContext& ctx, std::span<const Move> moves,
                               const Arrays& arrays) {
  moves_.clear();
  for (const Move& move : moves) {
    const TensorView to = Resolve(move.to, arrays);
    moves_.push_back({.kind = KindOf(move.kind),
                      .batch_size = input_.batch_size,
                      .width = static_cast<int32_t>(to.shape.width()),
                      .from = ColumnsOf<const float>(Resolve(move.from, arrays)),
                      .to = ColumnsOf<float>(to)});
  }
  return MoveColumns(ctx, moves_);
}

absl::Status PlannedModel::Run(const ExecContext& ctx, const ForwardStep& step,
                               const Arrays& values) {
  HOTROW_RETURN_IF_ERROR(Run(ctx, step.moves, values));
  const auto n = static_cast<size_t>(step.node);
  if (nodes_[n].layer == nullptr) return absl::OkStatus();
  inputs_.clear();
  for (const Location& location : step.inputs) inputs_.push_back(Resolve(location, values));
  return nodes_[n].layer->Forward(ctx,
                                  {.batch_size = input_.batch_size,
                                   .training = input_.training,
                                   .step = input_.step,
                                   .device_step = input_.device_step,
                                   .first_sample = input_.first_sample,
                                   .parameters = parameters_.data() + plan_->parameter_offsets[n],
                                   .parameters_number = input_.parameters_number,
                                   .inputs = inputs_,
                                   .sequences = input_.sequences,
                                   .output = Resolve(step.output, values),
                                   .sum_over_slices = input_.sum_over_slices});
}

absl::Status PlannedModel::Run(const ExecContext& ctx, const BackwardStep& step,
                               const Arrays& values, const Arrays& gradients,
                               const BackwardHooks& hooks) {
  HOTROW_RETURN_IF_ERROR(Run(ctx, step.before, gradients));
  if (step.inputs || step.parameters) {
    const auto n = static_cast<size_t>(step.node);
    const int64_t offset = plan_->parameter_offsets[n];
    Layer& layer = *nodes_[n].layer;
    inputs_.clear();
    outputs_.clear();
    for (const Location& location : step.values) inputs_.push_back(Resolve(location, values));
    for (const Location& location : step.input_gradients) {
      outputs_.push_back(Resolve(location, gradients));
    }
    const LayerBackward pass = {.batch_size = input_.batch_size,
                                .parameters = parameters_.data() + offset,
                                .gradients = gradients_.data() + offset,
                                .inputs = inputs_,
                                .sequences = input_.sequences,
                                .output_gradient = Resolve(step.output_gradient, gradients),
                                .input_gradients = outputs_,
                                .gradients_ready = PartGradientsReady(hooks, offset),
                                .sum_over_slices = input_.sum_over_slices};
    if (step.inputs) HOTROW_RETURN_IF_ERROR(layer.BackwardInputs(ctx, pass));
    if (step.parameters) HOTROW_RETURN_IF_ERROR(layer.BackwardParameters(ctx, pass));
  }
  HOTROW_RETURN_IF_ERROR(Run(ctx, step.after, gradients));
  if (step.ready_begin == step.ready_end) return absl::OkStatus();
  return GradientsReady(hooks, step.ready_begin, step.ready_end);
}

absl::Status PlannedModel::Forward(const ExecContext& ctx, const Input& input,
                                   std::span<float> logits) {
  input_ = {};
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckForward(*this, input, max_batch_size_, logits));
  HOTROW_RETURN_IF_ERROR(CheckSequences(input));
  if (input.embedding_rows != nullptr && !reads_rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": embedding_rows, which the model does not read; give embeddings"));
  }
  input_ = input;
  input_.await_embeddings = nullptr;
  logits_ = logits.data();
  // Inputs are only read.
  const Arrays values = {.dense = const_cast<float*>(input.dense),
                         .embeddings = const_cast<float*>(input.embeddings),
                         .logits = logits.data(),
                         .rows = input.embedding_rows};
  const auto run = [&]() -> absl::Status {
    for (const ForwardStep& step : plan_->before_embeddings) {
      HOTROW_RETURN_IF_ERROR(Run(ctx, step, values));
    }
    HOTROW_RETURN_IF_ERROR(AwaitEmbeddings(input));
    for (const ForwardStep& step : plan_->with_embeddings) {
      HOTROW_RETURN_IF_ERROR(Run(ctx, step, values));
    }
    return absl::OkStatus();
  };
  absl::Status status = run();
  if (!status.ok()) input_.training = false;  // Backward refuses to follow
  return status;
}

absl::Status PlannedModel::CheckSequences(const Input& input) const {
  if (input.sequences.size() != unpooled_features_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, ": ", input.sequences.size(), " sequences, expected ", unpooled_features_.size()));
  }
  for (const Sequence& sequence : input.sequences) {
    if (sequence.offsets != nullptr && sequence.OffsetsOn(device_) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": a sequence without offsets for the ",
                                                     std::string(DeviceName(device_)),
                                                     " (device_offsets)"));
    }
    if (sequence.offsets != nullptr && (sequence.gradient != nullptr || !input.training)) continue;
    // With no rows nothing need be there but the offsets.
    if (sequence.offsets != nullptr && sequence.offsets[input.batch_size] == sequence.offsets[0]) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": a sequence without ",
                     sequence.offsets == nullptr ? "offsets" : "room for its gradient"));
  }
  return absl::OkStatus();
}

absl::Status PlannedModel::Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                                    float* embedding_gradient, const BackwardHooks& hooks) {
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckBackward(*this, input_, logit_gradient));
  const Arrays values = {.dense = const_cast<float*>(input_.dense),
                         .embeddings = const_cast<float*>(input_.embeddings),
                         .rows = input_.embedding_rows};
  const Arrays gradients = {.embeddings = embedding_gradient, .logits = logit_gradient.data()};
  for (const Sequence& sequence : input_.sequences) {  // to which layers add
    const int64_t rows = sequence.offsets[input_.batch_size] - sequence.offsets[0];
    if (rows == 0) continue;
    HOTROW_RETURN_IF_ERROR(
        MoveColumns(ctx, {.kind = MoveColumnsArgs::Kind::kZero,
                          .batch_size = rows,
                          .width = table_columns_,
                          .to = {sequence.gradient, table_columns_, table_columns_}}));
  }
  for (const BackwardStep& step : plan_->to_embeddings) {
    HOTROW_RETURN_IF_ERROR(Run(ctx, step, values, gradients, hooks));
  }
  HOTROW_RETURN_IF_ERROR(EmbeddingGradientReady(hooks));
  for (const BackwardStep& step : plan_->to_parameters) {
    HOTROW_RETURN_IF_ERROR(Run(ctx, step, values, gradients, hooks));
  }
  return absl::OkStatus();
}

std::vector<ParameterRange> PlannedModel::untrained_parameters() const {
  std::vector<ParameterRange> ranges;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].layer == nullptr || nodes_[n].layer->num_untrained() == 0) continue;
    const int64_t end = plan_->parameter_offsets[n] + nodes_[n].num_parameters();
    ranges.push_back({end - nodes_[n].layer->num_untrained(), end});
  }
  return ranges;
}

// Layers count as in an ONNX graph.
std::string NameOf(const GraphNode& node, size_t layer, size_t num_layers) {
  return num_layers > 1 ? absl::StrCat(node.name, "/", layer) : node.name;
}

absl::StatusOr<std::string> PlannedModel::FirstOutput(const ExecContext& ctx) {
  input_.sum_over_slices = nullptr;  // the others do not come to it
  const Arrays values = {.dense = const_cast<float*>(input_.dense),
                         .embeddings = const_cast<float*>(input_.embeddings),
                         .logits = logits_,
                         .rows = input_.embedding_rows};
  for (const auto* const steps : {&plan_->before_embeddings, &plan_->with_embeddings}) {
    for (const ForwardStep& step : *steps) {
      HOTROW_RETURN_IF_ERROR(Run(ctx, step, values));
      const TensorView y = Resolve(step.output, values);
      HOTROW_ASSIGN_OR_RETURN(int64_t at, FirstNonFinite(ctx, {y.data, input_.batch_size,
                                                               y.shape.width(), y.row_stride}));
      if (at < 0) continue;
      const GraphNode& node = nodes_[static_cast<size_t>(step.node)];
      const std::vector<InnerLayer> layers =
          node.layer == nullptr ? std::vector<InnerLayer>() : node.layer->inner_layers();
      size_t l = 0;
      for (; l + 1 < layers.size(); ++l) {
        HOTROW_ASSIGN_OR_RETURN(at, FirstNonFinite(ctx, layers[l].output));
        if (at >= 0) break;
      }
      return NameOf(node, l, layers.size());
    }
  }
  return std::string();
}

absl::StatusOr<std::string> PlannedModel::LastWith(const ExecContext& ctx,
                                                   std::span<const float> in) const {
  for (size_t n = nodes_.size(); n-- > 0;) {
    if (nodes_[n].num_parameters() == 0) continue;
    std::vector<InnerLayer> layers = nodes_[n].layer->inner_layers();
    if (layers.empty()) layers.push_back({.parameters_end = nodes_[n].num_parameters()});
    for (size_t l = layers.size(); l-- > 0;) {
      const int64_t begin = l == 0 ? 0 : layers[l - 1].parameters_end;
      const int64_t size = layers[l].parameters_end - begin;
      const float* const numbers = in.data() + plan_->parameter_offsets[n] + begin;
      HOTROW_ASSIGN_OR_RETURN(const int64_t at, FirstNonFinite(ctx, {numbers, 1, size, size}));
      if (at >= 0) return NameOf(nodes_[n], l, layers.size());
    }
  }
  return std::string();
}

absl::Status PlannedModel::EndStep(const ExecContext& ctx, int64_t samples) {
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].layer == nullptr || nodes_[n].layer->num_untrained() == 0) continue;
    HOTROW_RETURN_IF_ERROR(
        nodes_[n].layer->EndStep(ctx, samples, parameters_.data() + plan_->parameter_offsets[n]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GraphModel>> MakeGraphModel(const ModelGraphOptions& options,
                                                           std::vector<GraphNode> nodes,
                                                           const ExecContext& ctx) {
  auto model = std::make_unique<PlannedModel>(options, std::move(nodes), ctx.device);
  HOTROW_RETURN_IF_ERROR(model->Allocate(ctx));
  HOTROW_RETURN_IF_ERROR(model->InitParameters(ctx, options.seed));
  return model;
}

}  // namespace internal
}  // namespace hotrow
