#include "models/zoo/layers/sequence_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/mlp_layer_impl.h"
#include "ops/layers/columns.h"
#include "ops/layers/layer_norm.h"

namespace hotrow {
namespace {

constexpr int32_t kFeedForwardFactor = 4;
constexpr int64_t kFloatsPerLine = kBufferAlignment / static_cast<int64_t>(sizeof(float));

using Map = TransformerBlock::Map;

absl::StatusOr<DeviceMemory<float>> TakeRows(const ExecContext& ctx, int64_t rows,
                                             int64_t columns) {
  return DeviceMemory<float>::Create(rows * columns, {ctx.device, ctx.stream, HugePages::kTry});
}

// to += from, or to = from: [N, E].
absl::Status MoveRows(const ExecContext& ctx, MoveColumnsArgs::Kind kind, int64_t num_rows,
                      int32_t columns, const float* from, float* to) {
  return MoveColumns(ctx, {.kind = kind,
                           .batch_size = num_rows,
                           .width = columns,
                           .from = {from, columns, columns},
                           .to = {to, columns, columns}});
}

absl::Status MapForward(const ExecContext& ctx, const Map& map, const SequencePass& pass,
                        const float* x, float* y) {
  return map.mlp->Forward(ctx, {.parameters = pass.parameters + map.offset,
                                .x = x,
                                .x_stride = map.mlp->input_size(),
                                .batch_size = pass.num_rows,
                                .y = y,
                                .y_stride = map.mlp->output_size(),
                                .training = pass.training,
                                .step = pass.step,
                                .parameters_number = pass.parameters_number});
}

// dy is scratch afterwards.
absl::Status MapBackward(const ExecContext& ctx, const Map& map, const SequencePass& pass,
                         float* dy, float* dx) {
  return map.mlp->Backward(ctx, {.parameters = pass.parameters + map.offset,
                                 .dy = dy,
                                 .dy_stride = map.mlp->output_size(),
                                 .dx = dx,
                                 .dx_stride = map.mlp->input_size(),
                                 .parameter_gradients = pass.parameter_gradients + map.offset});
}

// offset: of gamma and beta.
absl::Status NormForward(const ExecContext& ctx, const SequencePass& pass, int64_t offset,
                         int32_t columns, const float* x, float* y) {
  return LayerNorm(ctx, {.num_rows = pass.num_rows,
                         .columns = columns,
                         .x = x,
                         .x_stride = columns,
                         .gamma = pass.parameters + offset,
                         .beta = pass.parameters + offset + columns,
                         .output = y,
                         .output_stride = columns});
}

// pass.gradient becomes that of x.
absl::Status NormBackward(const ExecContext& ctx, const SequencePass& pass, int64_t offset,
                          int32_t columns, const float* x, SequenceScratch* scratch) {
  return LayerNormGrad(ctx, {.num_rows = pass.num_rows,
                             .columns = columns,
                             .x = x,
                             .x_stride = columns,
                             .gamma = pass.parameters + offset,
                             .output_gradient = pass.gradient,
                             .output_gradient_stride = columns,
                             .x_gradient = pass.gradient,
                             .x_gradient_stride = columns,
                             .gamma_gradient = pass.parameter_gradients + offset,
                             .beta_gradient = pass.parameter_gradients + offset + columns,
                             .workspace = scratch->workspace.data(),
                             .workspace_bytes = scratch->workspace.bytes()});
}

// LayerNorm of [B, L, E], operation by operation.
std::string AddOnnxLayerNorm(OnnxGraph& graph, const std::string& name, const std::string& x,
                             const float* gamma_and_beta, int64_t columns) {
  const auto mean_of = [&](const char* what, const std::string& of) {
    return graph.Add("ReduceMean", name + what, {of},
                     {{"axes", std::vector<int64_t>{2}}, {"keepdims", int64_t{1}}});
  };
  const auto count = static_cast<size_t>(columns);
  const std::string gamma = graph.Floats(name + "/gamma", {columns}, {gamma_and_beta, count});
  const std::string beta = graph.Floats(name + "/beta", {columns}, {gamma_and_beta + count, count});
  const std::string epsilon = graph.Float(name + "/epsilon", static_cast<float>(kLayerNormEpsilon));
  const std::string centered = graph.Add("Sub", name + "/centered", {x, mean_of("/mean", x)});
  const std::string squares = graph.Add("Mul", name + "/squares", {centered, centered});
  std::string deviation = graph.Add("Add", name + "/sum", {mean_of("/variance", squares), epsilon});
  deviation = graph.Add("Sqrt", name + "/deviation", {deviation});
  std::string y = graph.Add("Div", name + "/normalized", {centered, deviation});
  y = graph.Add("Mul", name + "/scaled", {y, gamma});
  return graph.Add("Add", name + "/shifted", {y, beta});
}

}  // namespace

absl::StatusOr<SequenceScratch> SequenceScratch::Create(int64_t max_batch_size, int64_t max_length,
                                                        int32_t columns, const ExecContext& ctx) {
  SequenceScratch out;
  const int64_t rows = max_batch_size * max_length;
  for (DeviceMemory<float>& memory : out.rows) {
    HOTROW_ASSIGN_OR_RETURN(memory, TakeRows(ctx, rows, columns));
  }
  HOTROW_ASSIGN_OR_RETURN(out.wide, TakeRows(ctx, rows, 4 * int64_t{columns}));
  HOTROW_ASSIGN_OR_RETURN(
      out.workspace, DeviceMemory<std::byte>::Create(LayerNormGradWorkspaceBytes(rows, columns),
                                                     {ctx.device, ctx.stream}));
  return out;
}

absl::StatusOr<std::unique_ptr<TransformerBlock>> TransformerBlock::Create(
    const SequenceBlockOptions& options, const ExecContext& ctx) {
  std::unique_ptr<TransformerBlock> out(new TransformerBlock(options));
  const int64_t rows = options.max_batch_size * options.max_length;
  const int32_t columns = options.columns;
  int32_t next_id = options.first_layer_id;
  const auto make = [&](std::vector<int32_t> sizes, Map* map) -> absl::Status {
    MlpOptions mlp = {.sizes = std::move(sizes),
                      .seed = options.seed,
                      .first_layer_id = next_id,
                      .max_batch_size = rows,
                      .precision = options.precision};
    next_id += static_cast<int32_t>(mlp.sizes.size()) - 1;
    HOTROW_ASSIGN_OR_RETURN(map->mlp, Mlp::Create(mlp, ctx));
    map->offset = out->num_parameters_;
    out->num_parameters_ = RoundUp(map->offset + map->mlp->num_parameters(), kFloatsPerLine);
    return absl::OkStatus();
  };
  const auto take_norm = [&] {
    return std::exchange(out->num_parameters_,
                         RoundUp(out->num_parameters_ + 2 * columns, kFloatsPerLine));
  };
  HOTROW_RETURN_IF_ERROR(make({columns, 3 * columns}, &out->projections_));
  HOTROW_RETURN_IF_ERROR(make({columns, columns}, &out->output_));
  out->first_norm_ = take_norm();
  HOTROW_RETURN_IF_ERROR(
      make({columns, kFeedForwardFactor * columns, columns}, &out->feed_forward_));
  out->second_norm_ = take_norm();
  HOTROW_ASSIGN_OR_RETURN(out->projected_, TakeRows(ctx, rows, 3 * int64_t{columns}));
  HOTROW_ASSIGN_OR_RETURN(out->normalizers_, TakeRows(ctx, rows, options.num_heads));
  for (DeviceMemory<float>* memory :
       {&out->attended_, &out->first_sum_, &out->normed_, &out->second_sum_}) {
    HOTROW_ASSIGN_OR_RETURN(*memory, TakeRows(ctx, rows, columns));
  }
  return out;
}

void TransformerBlock::InitParameters(uint64_t seed, std::span<float> parameters) const {
  for (const Map* map : {&projections_, &output_, &feed_forward_}) {
    map->mlp->InitParameters(seed,
                             parameters.subspan(static_cast<size_t>(map->offset),
                                                static_cast<size_t>(map->mlp->num_parameters())));
  }
  for (const int64_t norm : {first_norm_, second_norm_}) {
    std::fill_n(parameters.begin() + norm, columns(), 1.0f);
  }
}

void TransformerBlock::Describe(DenseLayers* layers) const {
  const int64_t length = options_.max_length;
  const int64_t e = columns();
  const int64_t hidden = kFeedForwardFactor * e;
  // Beside the map of queries, keys and values: scores, weighted sums, two norms and two sums.
  layers->Add({.name = "attention",
               .rows = length,
               .inputs = e,
               .outputs = 3 * e,
               .parameters = 4 * e,
               .macs = 2 * length * length * e + 8 * length * e,
               .activations = 5 * length * e});
  layers->Add({.name = "attention", .rows = length, .inputs = e, .outputs = e});
  layers->Add({.name = "feed_forward", .rows = length, .inputs = e, .outputs = hidden});
  layers->Add({.name = "feed_forward", .rows = length, .inputs = hidden, .outputs = e});
}

std::string TransformerBlock::ToOnnx(OnnxGraph& graph, const std::string& name,
                                     const float* parameters, const std::string& x,
                                     const std::string& mask) const {
  const auto map = [&](const char* what, const Map& of, const std::string& in) {
    return AddOnnxMlp(graph, name + what, *of.mlp, parameters + of.offset, in,
                      /*is_matrix=*/false);
  };
  const int64_t heads = options_.num_heads;
  const std::string projected = map("/projections", projections_, x);  // [B, L, 3 E]
  const auto part = [&](const char* what, int64_t number, std::vector<int64_t> order) {
    const std::string of = name + what;
    const std::string slice =
        graph.Slice(of + "/columns", projected, 2, number * columns(), (number + 1) * columns());
    const std::string by_head =
        graph.Reshape(of + "/heads", slice, {0, 0, heads, columns() / heads});
    return graph.Add("Transpose", of, {by_head}, {{"perm", std::move(order)}});
  };
  const std::string queries = part("/queries", 0, {0, 2, 1, 3});  // [B, H, L, E / H]
  const std::string keys = part("/keys", 1, {0, 2, 3, 1});        // [B, H, E / H, L]
  const std::string values = part("/values", 2, {0, 2, 1, 3});
  const std::string scale =
      graph.Float(name + "/scale", 1 / std::sqrt(static_cast<float>(columns() / heads)));
  const std::string least = graph.Float(name + "/least", std::numeric_limits<float>::lowest());
  std::string scores = graph.Add("MatMul", name + "/dots", {queries, keys});
  scores = graph.Add("Mul", name + "/scores", {scores, scale});
  scores = graph.Add("Where", name + "/there", {mask, scores, least});
  const std::string weights =
      graph.Add("Softmax", name + "/weights", {scores}, {{"axis", int64_t{3}}});
  std::string y = graph.Add("MatMul", name + "/sums", {weights, values});
  y = graph.Add("Transpose", name + "/rows", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  y = graph.Reshape(name + "/attended", y, {0, 0, columns()});
  y = graph.Add("Add", name + "/first_sum", {x, map("/output", output_, y)});
  y = AddOnnxLayerNorm(graph, name + "/first_norm", y, parameters + first_norm_, columns());
  const std::string fed = map("/feed_forward", feed_forward_, y);
  y = graph.Add("Add", name + "/second_sum", {y, fed});
  return AddOnnxLayerNorm(graph, name + "/second_norm", y, parameters + second_norm_, columns());
}

SelfAttentionArgs TransformerBlock::AttentionOf(const SequencePass& pass) {
  const int32_t head_dim = options_.columns / options_.num_heads;
  return {.kind = AttentionKind::kSoftmax,
          .batch_size = pass.batch_size,
          .num_heads = options_.num_heads,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
          .offsets = pass.offsets,
          .queries = projected_.data(),
          .keys = projected_.data() + columns(),
          .values = projected_.data() + 2 * columns(),
          .row_stride = 3 * columns(),
          .output = attended_.data(),
          .output_stride = columns(),
          .normalizers = normalizers_.data()};
}

absl::Status TransformerBlock::Forward(const ExecContext& ctx, const SequencePass& pass) {
  const int32_t e = options_.columns;
  HOTROW_RETURN_IF_ERROR(MapForward(ctx, projections_, pass, pass.x, projected_.data()));
  HOTROW_RETURN_IF_ERROR(SelfAttention(ctx, AttentionOf(pass)));
  HOTROW_RETURN_IF_ERROR(MapForward(ctx, output_, pass, attended_.data(), first_sum_.data()));
  HOTROW_RETURN_IF_ERROR(
      MoveRows(ctx, MoveColumnsArgs::Kind::kAdd, pass.num_rows, e, pass.x, first_sum_.data()));
  HOTROW_RETURN_IF_ERROR(NormForward(ctx, pass, first_norm_, e, first_sum_.data(), normed_.data()));
  HOTROW_RETURN_IF_ERROR(MapForward(ctx, feed_forward_, pass, normed_.data(), second_sum_.data()));
  HOTROW_RETURN_IF_ERROR(MoveRows(ctx, MoveColumnsArgs::Kind::kAdd, pass.num_rows, e,
                                  normed_.data(), second_sum_.data()));
  return NormForward(ctx, pass, second_norm_, e, second_sum_.data(), pass.y);
}

// A sum passes its gradient on as it is, and by way of a map, which takes a copy.
absl::Status TransformerBlock::Backward(const ExecContext& ctx, const SequencePass& pass,
                                        SequenceScratch* scratch) {
  const int32_t e = options_.columns;
  float* const copy = scratch->rows[0].data();
  float* const by_map = scratch->rows[1].data();
  const auto move = [&](MoveColumnsArgs::Kind kind, const float* from, float* to) {
    return MoveRows(ctx, kind, pass.num_rows, e, from, to);
  };
  HOTROW_RETURN_IF_ERROR(NormBackward(ctx, pass, second_norm_, e, second_sum_.data(), scratch));
  HOTROW_RETURN_IF_ERROR(move(MoveColumnsArgs::Kind::kCopy, pass.gradient, copy));
  HOTROW_RETURN_IF_ERROR(MapBackward(ctx, feed_forward_, pass, copy, by_map));
  HOTROW_RETURN_IF_ERROR(move(MoveColumnsArgs::Kind::kAdd, by_map, pass.gradient));
  HOTROW_RETURN_IF_ERROR(NormBackward(ctx, pass, first_norm_, e, first_sum_.data(), scratch));
  HOTROW_RETURN_IF_ERROR(move(MoveColumnsArgs::Kind::kCopy, pass.gradient, copy));
  HOTROW_RETURN_IF_ERROR(MapBackward(ctx, output_, pass, copy, by_map));
  HOTROW_RETURN_IF_ERROR(
      SelfAttentionGrad(ctx, {.forward = AttentionOf(pass),
                              .output_gradient = by_map,
                              .output_gradient_stride = e,
                              .query_gradient = scratch->wide.data(),
                              .key_gradient = scratch->wide.data() + columns(),
                              .value_gradient = scratch->wide.data() + 2 * columns(),
                              .gradient_stride = 3 * columns()}));
  HOTROW_RETURN_IF_ERROR(MapBackward(ctx, projections_, pass, scratch->wide.data(), by_map));
  return move(MoveColumnsArgs::Kind::kAdd, by_map, pass.gradient);
}

}  // namespace hotrow
