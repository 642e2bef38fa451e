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
#include "ops/layers/silu.h"

namespace hotrow {
namespace {

constexpr int32_t kFeedForwardFactor = 4;
constexpr int64_t kFloatsPerLine = kBufferAlignment / static_cast<int64_t>(sizeof(float));

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

absl::Status MapForward(const ExecContext& ctx, const SequenceMap& map, const SequencePass& pass,
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
absl::Status MapBackward(const ExecContext& ctx, const SequenceMap& map, const SequencePass& pass,
                         float* dy, float* dx) {
  return map.mlp->Backward(ctx, {.parameters = pass.parameters + map.offset,
                                 .dy = dy,
                                 .dy_stride = map.mlp->output_size(),
                                 .dx = dx,
                                 .dx_stride = map.mlp->input_size(),
                                 .parameter_gradients = pass.parameter_gradients + map.offset});
}

// Lays out the parameters of a block, each part from a multiple of 64 bytes on, and makes its maps.
struct ParameterPlan {
  const SequenceBlockOptions& options;
  const ExecContext& ctx;
  int64_t end = 0;
  int32_t maps = 0;

  int64_t Take(int64_t count) { return std::exchange(end, RoundUp(end + count, kFloatsPerLine)); }
  absl::StatusOr<SequenceMap> TakeMap(std::vector<int32_t> sizes) {
    MlpOptions mlp = {.sizes = std::move(sizes),
                      .seed = options.seed,
                      .first_layer_id = options.first_layer_id + maps,
                      .max_batch_size = options.max_batch_size * options.max_length,
                      .precision = options.precision};
    maps += static_cast<int32_t>(mlp.sizes.size()) - 1;
    SequenceMap map;
    HOTROW_ASSIGN_OR_RETURN(map.mlp, Mlp::Create(mlp, ctx));
    map.offset = Take(map.mlp->num_parameters());
    return map;
  }
};

void InitMap(const SequenceMap& map, uint64_t seed, std::span<float> parameters) {
  map.mlp->InitParameters(seed, parameters.subspan(static_cast<size_t>(map.offset),
                                                   static_cast<size_t>(map.mlp->num_parameters())));
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

// The gradient of what it made becomes that of x.
absl::Status NormBackward(const ExecContext& ctx, const SequencePass& pass, int64_t offset,
                          int32_t columns, const float* x, float* gradient,
                          SequenceScratch* scratch) {
  return LayerNormGrad(ctx, {.num_rows = pass.num_rows,
                             .columns = columns,
                             .x = x,
                             .x_stride = columns,
                             .gamma = pass.parameters + offset,
                             .output_gradient = gradient,
                             .output_gradient_stride = columns,
                             .x_gradient = gradient,
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

std::string AddOnnxMap(OnnxGraph& graph, const std::string& name, const SequenceMap& map,
                       const float* parameters, const std::string& x) {
  return AddOnnxMlp(graph, name, *map.mlp, parameters + map.offset, x, /*is_matrix=*/false);
}

// Part `number` of E columns of x [B, M, parts E], by heads: [B, M, H, E / H] in the given order of
// axes.
std::string AddOnnxHeads(OnnxGraph& graph, const std::string& name, const std::string& x,
                         int64_t number, const SequenceBlockOptions& options,
                         std::vector<int64_t> order) {
  const int64_t columns = options.columns;
  const std::string part =
      graph.Slice(name + "/columns", x, 2, number * columns, (number + 1) * columns);
  const std::string by_head =
      graph.Reshape(name + "/heads", part, {0, 0, options.num_heads, columns / options.num_heads});
  return graph.Add("Transpose", name, {by_head}, {{"perm", std::move(order)}});
}
// [B, H, M, E / H] to [B, M, E].
std::string AddOnnxRowsOfHeads(OnnxGraph& graph, const std::string& name, const std::string& x,
                               int64_t columns) {
  const std::string rows =
      graph.Add("Transpose", name + "/rows", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  return graph.Reshape(name, rows, {0, 0, columns});
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
  ParameterPlan plan = {.options = options, .ctx = ctx};
  HOTROW_ASSIGN_OR_RETURN(out->projections_, plan.TakeMap({columns, 3 * columns}));
  HOTROW_ASSIGN_OR_RETURN(out->output_, plan.TakeMap({columns, columns}));
  out->first_norm_ = plan.Take(2 * int64_t{columns});
  HOTROW_ASSIGN_OR_RETURN(out->feed_forward_,
                          plan.TakeMap({columns, kFeedForwardFactor * columns, columns}));
  out->second_norm_ = plan.Take(2 * int64_t{columns});
  out->num_parameters_ = plan.end;
  HOTROW_ASSIGN_OR_RETURN(out->projected_, TakeRows(ctx, rows, 3 * int64_t{columns}));
  HOTROW_ASSIGN_OR_RETURN(out->normalizers_, TakeRows(ctx, rows, options.num_heads));
  for (DeviceMemory<float>* memory :
       {&out->attended_, &out->first_sum_, &out->normed_, &out->second_sum_}) {
    HOTROW_ASSIGN_OR_RETURN(*memory, TakeRows(ctx, rows, columns));
  }
  return out;
}

void TransformerBlock::InitParameters(uint64_t seed, std::span<float> parameters) const {
  for (const SequenceMap* map : {&projections_, &output_, &feed_forward_}) {
    InitMap(*map, seed, parameters);
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
                                     const float* parameters, const OnnxSequenceRows& rows) const {
  const std::string projected =
      AddOnnxMap(graph, name + "/projections", projections_, parameters, rows.x);  // [B, M, 3 E]
  const auto part = [&](const char* what, int64_t number, std::vector<int64_t> order) {
    return AddOnnxHeads(graph, name + what, projected, number, options_, std::move(order));
  };
  const std::string queries = part("/queries", 0, {0, 2, 1, 3});  // [B, H, M, E / H]
  const std::string keys = part("/keys", 1, {0, 2, 3, 1});        // [B, H, E / H, M]
  const std::string values = part("/values", 2, {0, 2, 1, 3});
  const auto head_dim = static_cast<float>(options_.columns / options_.num_heads);
  const std::string scale = graph.Float(name + "/scale", 1 / std::sqrt(head_dim));
  const std::string least = graph.Float(name + "/least", std::numeric_limits<float>::lowest());
  std::string scores = graph.Add("MatMul", name + "/dots", {queries, keys});
  scores = graph.Add("Mul", name + "/scores", {scores, scale});
  scores = graph.Add("Where", name + "/there", {rows.mask, scores, least});
  const std::string weights =
      graph.Add("Softmax", name + "/weights", {scores}, {{"axis", int64_t{3}}});
  const std::string sums = graph.Add("MatMul", name + "/sums", {weights, values});
  std::string y = AddOnnxRowsOfHeads(graph, name + "/attended", sums, columns());
  y = AddOnnxMap(graph, name + "/output", output_, parameters, y);
  y = graph.Add("Add", name + "/first_sum", {rows.x, y});
  y = AddOnnxLayerNorm(graph, name + "/first_norm", y, parameters + first_norm_, columns());
  const std::string fed = AddOnnxMap(graph, name + "/feed_forward", feed_forward_, parameters, y);
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
  HOTROW_RETURN_IF_ERROR(
      NormBackward(ctx, pass, second_norm_, e, second_sum_.data(), pass.gradient, scratch));
  HOTROW_RETURN_IF_ERROR(move(MoveColumnsArgs::Kind::kCopy, pass.gradient, copy));
  HOTROW_RETURN_IF_ERROR(MapBackward(ctx, feed_forward_, pass, copy, by_map));
  HOTROW_RETURN_IF_ERROR(move(MoveColumnsArgs::Kind::kAdd, by_map, pass.gradient));
  HOTROW_RETURN_IF_ERROR(
      NormBackward(ctx, pass, first_norm_, e, first_sum_.data(), pass.gradient, scratch));
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

absl::StatusOr<std::unique_ptr<HstuBlock>> HstuBlock::Create(const SequenceBlockOptions& options,
                                                             const ExecContext& ctx) {
  std::unique_ptr<HstuBlock> out(new HstuBlock(options));
  const int64_t rows = options.max_batch_size * options.max_length;
  const int32_t columns = options.columns;
  ParameterPlan plan = {.options = options, .ctx = ctx};
  out->first_norm_ = plan.Take(2 * int64_t{columns});
  HOTROW_ASSIGN_OR_RETURN(out->projections_, plan.TakeMap({columns, 4 * columns}));
  out->position_bias_ = plan.Take(2 * options.max_length - 1);
  out->second_norm_ = plan.Take(2 * int64_t{columns});
  HOTROW_ASSIGN_OR_RETURN(out->output_, plan.TakeMap({columns, columns}));
  out->num_parameters_ = plan.end;
  for (DeviceMemory<float>* memory : {&out->projected_, &out->activated_}) {
    HOTROW_ASSIGN_OR_RETURN(*memory, TakeRows(ctx, rows, 4 * int64_t{columns}));
  }
  for (DeviceMemory<float>* memory :
       {&out->first_normed_, &out->attended_, &out->second_normed_, &out->gated_}) {
    HOTROW_ASSIGN_OR_RETURN(*memory, TakeRows(ctx, rows, columns));
  }
  HOTROW_ASSIGN_OR_RETURN(out->workspace_, DeviceMemory<std::byte>::Create(
                                               SelfAttentionGradWorkspaceBytes(
                                                   options.max_batch_size, options.max_length),
                                               {ctx.device, ctx.stream}));
  return out;
}

void HstuBlock::InitParameters(uint64_t seed, std::span<float> parameters) const {
  InitMap(projections_, seed, parameters);
  InitMap(output_, seed, parameters);
  for (const int64_t norm : {first_norm_, second_norm_}) {
    std::fill_n(parameters.begin() + norm, columns(), 1.0f);
  }
}

void HstuBlock::Describe(DenseLayers* layers) const {
  const int64_t length = options_.max_length;
  const int64_t e = columns();
  // Beside the map: half of the scores and weighted sums, two norms, silu, gate and sum.
  layers->Add({.name = "attention",
               .rows = length,
               .inputs = e,
               .outputs = 4 * e,
               .parameters = 4 * e + 2 * length - 1,
               .macs = length * length * e + 14 * length * e,
               .activations = 9 * length * e});
  layers->Add({.name = "attention", .rows = length, .inputs = e, .outputs = e});
}

std::string HstuBlock::ToOnnx(OnnxGraph& graph, const std::string& name, const float* parameters,
                              const OnnxSequenceRows& rows) const {
  const int64_t furthest = options_.max_length - 1;
  const auto silu = [&](const std::string& of, const std::string& x) {
    return graph.Add("Mul", of, {x, graph.Add("Sigmoid", of + "/sigmoid", {x})});
  };
  const std::string normed =
      AddOnnxLayerNorm(graph, name + "/first_norm", rows.x, parameters + first_norm_, columns());
  const std::string activated = silu(
      name + "/activated",
      AddOnnxMap(graph, name + "/projections", projections_, parameters, normed));  // [B, M, 4 E]
  const auto part = [&](const char* what, int64_t number, std::vector<int64_t> order) {
    return AddOnnxHeads(graph, name + what, activated, number, options_, std::move(order));
  };
  const std::string gate = graph.Slice(name + "/gate", activated, 2, 0, columns());
  const std::string values = part("/values", 1, {0, 2, 1, 3});  // [B, H, M, E / H]
  const std::string queries = part("/queries", 2, {0, 2, 1, 3});
  const std::string keys = part("/keys", 3, {0, 2, 3, 1});
  // Distances of a query i and a key j: how much further before the target the key stands.
  const std::string of_target =
      graph.Add("Sub", name + "/of_target", {rows.length, rows.length});  // zeros
  const std::string of_queries = graph.Concat(name + "/of_queries", {rows.numbers, of_target}, 1);
  const std::string of_keys = graph.Add("Transpose", name + "/of_keys", {of_queries},
                                        {{"perm", std::vector<int64_t>{0, 2, 1}}});
  const std::string distances = graph.Add("Sub", name + "/distances", {of_keys, of_queries});
  const std::string negative = graph.Int(name + "/negative", -1);
  std::string before = graph.Add("Less", name + "/before", {negative, distances});  // [B, M, M]
  before = graph.Unsqueeze(name + "/before_of_heads", before, 1);
  const std::string mask = graph.Add("And", name + "/mask", {rows.mask, before});
  const std::string table =
      graph.Floats(name + "/position_bias", {2 * furthest + 1},
                   {parameters + position_bias_, static_cast<size_t>(2 * furthest + 1)});
  const std::string first = graph.Int(name + "/furthest", furthest);
  const std::string index = graph.Add("Add", name + "/index", {distances, first});
  std::string bias = graph.Add("Gather", name + "/biases", {table, index});
  bias = graph.Unsqueeze(name + "/bias", bias, 1);  // [B, 1, M, M]
  std::string weights = graph.Add("MatMul", name + "/dots", {queries, keys});
  weights = silu(name + "/silu", graph.Add("Add", name + "/scores", {weights, bias}));
  const std::string bound =
      graph.Float(name + "/length_bound", static_cast<float>(options_.max_length));
  weights = graph.Add("Div", name + "/of_length", {weights, bound});
  const std::string nothing = graph.Float(name + "/nothing", 0);
  weights = graph.Add("Where", name + "/weights", {mask, weights, nothing});
  const std::string sums = graph.Add("MatMul", name + "/sums", {weights, values});
  std::string y = AddOnnxRowsOfHeads(graph, name + "/attended", sums, columns());
  y = AddOnnxLayerNorm(graph, name + "/second_norm", y, parameters + second_norm_, columns());
  y = graph.Add("Mul", name + "/gated", {y, gate});
  y = AddOnnxMap(graph, name + "/output", output_, parameters, y);
  return graph.Add("Add", name + "/y", {rows.x, y});
}

SelfAttentionArgs HstuBlock::AttentionOf(const SequencePass& pass) {
  return {.kind = AttentionKind::kSilu,
          .causal = true,
          .batch_size = pass.batch_size,
          .num_heads = options_.num_heads,
          .head_dim = options_.columns / options_.num_heads,
          .length_bound = static_cast<float>(options_.max_length),
          .offsets = pass.offsets,
          .queries = activated_.data() + 2 * columns(),
          .keys = activated_.data() + 3 * columns(),
          .values = activated_.data() + columns(),
          .row_stride = 4 * columns(),
          .position_bias = pass.parameters + position_bias_,
          .num_positions = options_.max_length,
          .output = attended_.data(),
          .output_stride = columns()};
}

absl::Status HstuBlock::Forward(const ExecContext& ctx, const SequencePass& pass) {
  const int32_t e = options_.columns;
  HOTROW_RETURN_IF_ERROR(NormForward(ctx, pass, first_norm_, e, pass.x, first_normed_.data()));
  HOTROW_RETURN_IF_ERROR(
      MapForward(ctx, projections_, pass, first_normed_.data(), projected_.data()));
  HOTROW_RETURN_IF_ERROR(Silu(ctx, {.num_rows = pass.num_rows,
                                    .columns = 4 * e,
                                    .x = projected_.data(),
                                    .x_stride = 4 * columns(),
                                    .output = activated_.data(),
                                    .output_stride = 4 * columns()}));
  HOTROW_RETURN_IF_ERROR(SelfAttention(ctx, AttentionOf(pass)));
  HOTROW_RETURN_IF_ERROR(
      NormForward(ctx, pass, second_norm_, e, attended_.data(), second_normed_.data()));
  HOTROW_RETURN_IF_ERROR(RowProducts(ctx, {.num_rows = pass.num_rows,
                                           .columns = e,
                                           .a = second_normed_.data(),
                                           .a_stride = e,
                                           .b = activated_.data(),  // u
                                           .b_stride = 4 * columns(),
                                           .output = gated_.data(),
                                           .output_stride = e}));
  HOTROW_RETURN_IF_ERROR(MapForward(ctx, output_, pass, gated_.data(), pass.y));
  return MoveRows(ctx, MoveColumnsArgs::Kind::kAdd, pass.num_rows, e, pass.x, pass.y);
}

absl::Status HstuBlock::Backward(const ExecContext& ctx, const SequencePass& pass,
                                 SequenceScratch* scratch) {
  const int32_t e = options_.columns;
  float* const copy = scratch->rows[0].data();
  float* const gradient = scratch->rows[1].data();
  float* const wide = scratch->wide.data();  // of u, v, q, k
  HOTROW_RETURN_IF_ERROR(
      MoveRows(ctx, MoveColumnsArgs::Kind::kCopy, pass.num_rows, e, pass.gradient, copy));
  HOTROW_RETURN_IF_ERROR(MapBackward(ctx, output_, pass, copy, gradient));
  RowProductsArgs products = {.num_rows = pass.num_rows,
                              .columns = e,
                              .a = gradient,
                              .a_stride = e,
                              .b = second_normed_.data(),
                              .b_stride = e,
                              .output = wide,
                              .output_stride = 4 * columns()};
  HOTROW_RETURN_IF_ERROR(RowProducts(ctx, products));
  products.b = activated_.data();
  products.b_stride = 4 * columns();
  products.output = gradient;
  products.output_stride = e;
  HOTROW_RETURN_IF_ERROR(RowProducts(ctx, products));
  HOTROW_RETURN_IF_ERROR(
      NormBackward(ctx, pass, second_norm_, e, attended_.data(), gradient, scratch));
  HOTROW_RETURN_IF_ERROR(
      SelfAttentionGrad(ctx, {.forward = AttentionOf(pass),
                              .output_gradient = gradient,
                              .output_gradient_stride = e,
                              .query_gradient = wide + 2 * columns(),
                              .key_gradient = wide + 3 * columns(),
                              .value_gradient = wide + columns(),
                              .gradient_stride = 4 * columns(),
                              .position_bias_gradient = pass.parameter_gradients + position_bias_,
                              .workspace = workspace_.data(),
                              .workspace_bytes = workspace_.bytes()}));
  HOTROW_RETURN_IF_ERROR(SiluGrad(ctx, {.num_rows = pass.num_rows,
                                        .columns = 4 * e,
                                        .x = projected_.data(),
                                        .x_stride = 4 * columns(),
                                        .gradient = wide,
                                        .gradient_stride = 4 * columns()}));
  HOTROW_RETURN_IF_ERROR(MapBackward(ctx, projections_, pass, wide, gradient));
  HOTROW_RETURN_IF_ERROR(NormBackward(ctx, pass, first_norm_, e, pass.x, gradient, scratch));
  return MoveRows(ctx, MoveColumnsArgs::Kind::kAdd, pass.num_rows, e, gradient, pass.gradient);
}

}  // namespace hotrow
