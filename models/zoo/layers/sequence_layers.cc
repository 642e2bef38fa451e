#include "models/zoo/layers/sequence_layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/mlp_layer_impl.h"
#include "ops/layers/target_attention.h"

namespace hotrow {
namespace {

using Sequence = CtrModel::Sequence;

// Where ops find them.
JaggedRows RowsOn(const ExecContext& ctx, const Sequence& sequence, int64_t batch_size,
                  int32_t dim) {
  return {.batch_size = batch_size,
          .dim = dim,
          .rows = sequence.rows,
          .offsets = sequence.OffsetsOn(ctx.device),
          .shared = sequence.shared};
}

// The sum of vectors [B, L, D] over the rows that there are: [B, D]. What lies behind them may be
// anything, a NaN as well.
std::string AddOnnxRowSum(OnnxGraph& graph, const std::string& name, const std::string& vectors,
                          const std::string& mask) {
  const std::string zero = graph.Float(name + "/zero", 0);
  const std::string there = graph.Add("Where", name + "/there", {mask, vectors, zero});
  return graph.ReduceSum(name + "/sum", there, 1);
}

class SequenceSumLayer : public Layer {
 public:
  SequenceSumLayer(int32_t sequence, int32_t dim) : sequence_(sequence), dim_(dim) {}
  TensorShape output() const override { return {1, dim_}; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .sequences = true, .shared_rows = true};
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    const OnnxSequence& sequence = onnx.sequences[static_cast<size_t>(sequence_)];
    return AddOnnxRowSum(*onnx.graph, onnx.name, sequence.rows, sequence.mask);
  }

  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    const Sequence& sequence = pass.sequences[static_cast<size_t>(sequence_)];
    return WeightedRowSum(ctx, {.rows = RowsOn(ctx, sequence, pass.batch_size, dim_),
                                .output = pass.output.data,
                                .output_stride = pass.output.row_stride});
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const Sequence& sequence = pass.sequences[static_cast<size_t>(sequence_)];
    return RowSumGrad(ctx, {.rows = RowsOn(ctx, sequence, pass.batch_size, dim_),
                            .output_gradient = pass.output_gradient.data,
                            .output_gradient_stride = pass.output_gradient.row_stride,
                            .row_gradient = sequence.gradient});
  }

 private:
  const int32_t sequence_;
  const int32_t dim_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TargetAttentionLayer>> TargetAttentionLayer::Create(
    const Options& options, const ExecContext& ctx) {
  std::unique_ptr<TargetAttentionLayer> out(new TargetAttentionLayer(options));
  MlpOptions mlp = options.mlp;
  mlp.sizes = options.sizes;
  mlp.sizes.insert(mlp.sizes.begin(), 4 * options.dim);
  mlp.max_batch_size = options.max_rows;
  // Its rows have no number in the whole batch that a slice could know.
  mlp.dropout = 0;
  HOTROW_ASSIGN_OR_RETURN(out->mlp_, Mlp::Create(mlp, ctx));
  const auto take = [&](int64_t columns, DeviceMemory<float>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer,
                            DeviceMemory<float>::Create(options.max_rows * columns,
                                                        {ctx.device, ctx.stream, HugePages::kTry}));
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(take(4 * out->dim(), &out->pairs_));
  HOTROW_RETURN_IF_ERROR(take(4 * out->dim(), &out->pair_gradients_));
  HOTROW_RETURN_IF_ERROR(take(1, &out->relevances_));
  HOTROW_RETURN_IF_ERROR(take(1, &out->relevance_gradients_));
  return out;
}

LayerTraits TargetAttentionLayer::traits() const {
  return {.on_gpu = true,
          .sequences = true,
          .shared_rows = true,
          .inputs_until = LayerPhase::kBackwardInputs,
          .gradient_until = LayerPhase::kBackwardInputs};
}

void TargetAttentionLayer::InitParameters(uint64_t seed, std::span<float> parameters) const {
  mlp_->InitParameters(seed, parameters);
}

void TargetAttentionLayer::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  const int64_t pair = 4 * dim();
  int64_t inputs = pair;
  for (const int32_t size : options_.sizes) {
    layers->Add(
        {.name = "attention", .rows = options_.max_length, .inputs = inputs, .outputs = size});
    inputs = size;
  }
  layers->Add({.name = "attention",
               .macs = options_.max_length * (pair + dim()),
               .activations = options_.max_length * pair + dim()});
}

absl::StatusOr<std::string> TargetAttentionLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const std::string& name = onnx.name;
  const OnnxSequence& sequence = onnx.sequences[static_cast<size_t>(options_.sequence)];
  const std::string& rows = sequence.rows;
  const std::string t = graph.Unsqueeze(name + "/target", onnx.inputs[0].name, 1);  // [B, 1, D]
  const std::string shape = graph.Add("Shape", name + "/shape", {rows});
  const std::string targets = graph.Add("Expand", name + "/targets", {t, shape});
  const std::string differences = graph.Add("Sub", name + "/differences", {rows, t});
  const std::string products = graph.Add("Mul", name + "/products", {rows, t});
  const std::string pairs =
      graph.Concat(name + "/pairs", {rows, targets, differences, products}, 2);  // [B, L, 4 D]
  const std::string relevances =
      AddOnnxMlp(graph, name, *mlp_, onnx.parameters, pairs, /*is_matrix=*/false);  // [B, L, 1]
  const std::string weighted = graph.Add("Mul", name + "/weighted", {rows, relevances});
  return AddOnnxRowSum(graph, name, weighted, sequence.mask);
}

Mlp::BackwardArgs TargetAttentionLayer::ArgsOf(const LayerBackward& pass) {
  return {.parameters = pass.parameters,
          .dy = relevance_gradients_.data(),
          .dy_stride = 1,
          .dx = pair_gradients_.data(),
          .dx_stride = 4 * dim(),
          .parameter_gradients = pass.gradients};
}

absl::Status TargetAttentionLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const Sequence& sequence = pass.sequences[static_cast<size_t>(options_.sequence)];
  const int64_t num_rows = sequence.offsets[pass.batch_size] - sequence.offsets[0];
  if (num_rows > options_.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", num_rows, " rows of a history, expected ", options_.max_rows, " at most"));
  }
  const JaggedRows rows = RowsOn(ctx, sequence, pass.batch_size, options_.dim);
  HOTROW_RETURN_IF_ERROR(TargetPairs(ctx, {.rows = rows,
                                           .target = pass.inputs[0].data,
                                           .target_stride = pass.inputs[0].row_stride,
                                           .pairs = pairs_.data()}));
  HOTROW_RETURN_IF_ERROR(mlp_->Forward(ctx, {.parameters = pass.parameters,
                                             .x = pairs_.data(),
                                             .x_stride = 4 * dim(),
                                             .batch_size = num_rows,
                                             .y = relevances_.data(),
                                             .y_stride = 1,
                                             .training = pass.training,
                                             .step = pass.step,
                                             .parameters_number = pass.parameters_number}));
  return WeightedRowSum(ctx, {.rows = rows,
                              .weights = relevances_.data(),
                              .output = pass.output.data,
                              .output_stride = pass.output.row_stride});
}

absl::Status TargetAttentionLayer::BackwardInputs(const ExecContext& ctx,
                                                  const LayerBackward& pass) {
  const Sequence& sequence = pass.sequences[static_cast<size_t>(options_.sequence)];
  const JaggedRows rows = RowsOn(ctx, sequence, pass.batch_size, options_.dim);
  HOTROW_RETURN_IF_ERROR(
      RowWeightGrad(ctx, {.rows = rows,
                          .output_gradient = pass.output_gradient.data,
                          .output_gradient_stride = pass.output_gradient.row_stride,
                          .weight_gradient = relevance_gradients_.data()}));
  HOTROW_RETURN_IF_ERROR(mlp_->BackwardInput(ctx, ArgsOf(pass)));
  return TargetAttentionGrad(ctx, {.rows = rows,
                                   .weights = relevances_.data(),
                                   .target = pass.inputs[0].data,
                                   .target_stride = pass.inputs[0].row_stride,
                                   .pair_gradient = pair_gradients_.data(),
                                   .output_gradient = pass.output_gradient.data,
                                   .output_gradient_stride = pass.output_gradient.row_stride,
                                   .row_gradient = sequence.gradient,
                                   .target_gradient = pass.input_gradients[0].data,
                                   .target_gradient_stride = pass.input_gradients[0].row_stride});
}

absl::Status TargetAttentionLayer::BackwardParameters(const ExecContext& ctx,
                                                      const LayerBackward& pass) {
  return mlp_->BackwardParameters(ctx, ArgsOf(pass));
}

GraphValue AddSequenceSum(ModelGraph& graph, std::string_view name, int32_t sequence) {
  return graph.AddLayer(
      name, std::make_unique<SequenceSumLayer>(sequence, graph.options().table_columns), {});
}

GraphValue AddTargetAttention(ModelGraph& graph, std::string_view name, int32_t sequence,
                              GraphValue target, const std::string& flag,
                              std::vector<int32_t> sizes) {
  if (!graph.ok()) return {};
  const ModelGraphOptions& options = graph.options();
  if (graph.shape(target).width() != options.table_columns) {
    return graph.Fail(absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": the target has ", graph.shape(target).width(),
                     " columns and the rows of the history ", options.table_columns)));
  }
  for (const int32_t size : sizes) {
    if (size >= 1) continue;
    return graph.Fail(
        absl::InvalidArgumentError(absl::StrCat(flag, ": every layer needs a size of at least 1")));
  }
  sizes.push_back(1);
  const int64_t max_length = options.max_lengths[static_cast<size_t>(sequence)];
  const int64_t max_rows = options.max_batch_size * max_length;
  const auto num_layers = static_cast<int32_t>(sizes.size());
  return graph.AddLayer(
      name,
      TargetAttentionLayer::Create({.sequence = sequence,
                                    .dim = options.table_columns,
                                    .max_rows = std::max<int64_t>(max_rows, 1),
                                    .max_length = max_length,
                                    .sizes = std::move(sizes),
                                    .mlp = {.seed = options.seed,
                                            .first_layer_id = graph.TakeLayerIds(num_layers),
                                            .precision = options.precision}},
                                   graph.ctx()),
      {target});
}

}  // namespace hotrow
