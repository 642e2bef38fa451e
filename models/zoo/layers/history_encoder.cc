#include "models/zoo/layers/history_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/model_parts.h"
#include "ops/layers/self_attention.h"

namespace hotrow {
namespace {

using Sequence = CtrModel::Sequence;

constexpr int64_t kFloatsPerLine = kBufferAlignment / static_cast<int64_t>(sizeof(float));
// ONNX's type INT64.
constexpr int64_t kOnnxInt64 = 7;

JaggedRows RowsOf(const Sequence& sequence, int64_t batch_size, int32_t dim, bool with_shared) {
  return {.batch_size = batch_size,
          .dim = dim,
          .rows = sequence.rows,
          .offsets = sequence.offsets,
          .shared = with_shared && sequence.shared};
}

}  // namespace

HistoryEncoder::HistoryEncoder(const Options& options, Blocks blocks)
    : options_(options),
      columns_(static_cast<int32_t>(options.sequences.size()) * options.dim),
      blocks_(std::move(blocks)) {
  int64_t end = num_positions() * columns_;
  for (const auto& block : blocks_) {
    offsets_.push_back(RoundUp(end, kFloatsPerLine));
    end = offsets_.back() + block->num_parameters();
  }
  num_parameters_ = RoundUp(end, kFloatsPerLine);
}

absl::StatusOr<std::unique_ptr<HistoryEncoder>> HistoryEncoder::Create(const Options& options,
                                                                       Blocks blocks,
                                                                       const ExecContext& ctx) {
  std::unique_ptr<HistoryEncoder> out(new HistoryEncoder(options, std::move(blocks)));
  const int64_t length = out->num_positions();
  const auto take = [&](DeviceMemory<float>* memory) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(
        *memory, DeviceMemory<float>::Create(options.max_batch_size * length * out->columns_,
                                             {ctx.device, ctx.stream, HugePages::kTry}));
    return absl::OkStatus();
  };
  out->rows_.resize(out->blocks_.size() + 1);
  for (DeviceMemory<float>& memory : out->rows_) HOTROW_RETURN_IF_ERROR(take(&memory));
  HOTROW_RETURN_IF_ERROR(take(&out->gradient_));
  HOTROW_ASSIGN_OR_RETURN(
      out->scratch_, SequenceScratch::Create(options.max_batch_size, length, out->columns_, ctx));
  out->sequences_.reserve(static_cast<size_t>(options.max_batch_size) + 1);
  return out;
}

void HistoryEncoder::InitParameters(uint64_t seed, std::span<float> parameters) const {
  for (size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l]->InitParameters(
        seed, parameters.subspan(static_cast<size_t>(offsets_[l]),
                                 static_cast<size_t>(blocks_[l]->num_parameters())));
  }
}

void HistoryEncoder::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  const int64_t numbers = num_positions() * columns_;
  layers->Add(
      {.name = "positions", .parameters = numbers, .macs = numbers, .activations = numbers});
  for (const auto& block : blocks_) block->Describe(layers);
}

// The target stands behind the longest history, where its number alone says that it is next to the
// last row of each: blocks see a set of rows, and a mask says which there are.
absl::StatusOr<std::string> HistoryEncoder::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const std::string& name = onnx.name;
  const std::string& mask =
      onnx.sequences[static_cast<size_t>(options_.sequences[0])].mask;  // [B, L, 1]
  OnnxGraph::Inputs histories, targets;
  const std::string nothing = graph.Float(name + "/nothing", 0);
  for (size_t f = 0; f < options_.sequences.size(); ++f) {
    const OnnxSequence& sequence = onnx.sequences[static_cast<size_t>(options_.sequences[f])];
    histories.push_back(graph.Add("Where", absl::StrCat(name, "/history", f),
                                  {sequence.mask, sequence.rows, nothing}));
    targets.push_back(onnx.inputs[f].name);
  }
  const std::string zero = graph.Int(name + "/zero", 0);
  const std::string one = graph.Int(name + "/one", 1);
  const std::string last = graph.Int(name + "/last_number", options_.max_length);
  const std::string table =
      graph.Floats(name + "/positions", {num_positions(), columns_},
                   {onnx.parameters, static_cast<size_t>(num_positions() * columns_)});
  // Numbers of rows: length - index.
  const std::string there = graph.Add("Cast", name + "/there", {mask}, {{"to", kOnnxInt64}});
  const std::string length = graph.ReduceSum(name + "/length", there, 1, /*keep_axis=*/true);
  const std::string size =
      graph.Add("Shape", name + "/size", {mask}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  const std::string end = graph.Add("Squeeze", name + "/end", {size});
  std::string index = graph.Add("Range", name + "/index", {zero, end, one});
  index = graph.Unsqueeze(name + "/index_of_row", index, 1);  // [L, 1]
  std::string numbers = graph.Add("Sub", name + "/before", {length, index});
  numbers = graph.Add("Max", name + "/not_behind", {numbers, zero});
  numbers = graph.Add("Min", name + "/not_beyond", {numbers, last});  // [B, L, 1]
  const std::string of_rows = graph.Add("Gather", name + "/of_rows",
                                        {table, graph.Reshape(name + "/numbers", numbers, {0, 0})});
  const std::string of_target = graph.Add("Gather", name + "/of_target", {table, zero});  // [E]
  const std::string rows =
      graph.Add("Add", name + "/rows", {graph.Concat(name + "/histories", histories, 2), of_rows});
  std::string target =
      graph.Unsqueeze(name + "/targets_row", graph.Concat(name + "/targets", targets, 1), 1);
  target = graph.Add("Add", name + "/target", {target, of_target});
  std::string x = graph.Concat(name + "/sequence", {rows, target}, 1);  // [B, L + 1, E]
  // The mask of keys, where the target always is.
  const std::string negative = graph.Int(name + "/negative", -1);
  const std::string always = graph.Add("Less", name + "/always", {negative, length});
  std::string keys = graph.Concat(name + "/mask", {mask, always}, 1);
  keys = graph.Add("Transpose", name + "/mask_of_keys", {keys},
                   {{"perm", std::vector<int64_t>{0, 2, 1}}});
  keys = graph.Unsqueeze(name + "/keys", keys, 1);  // [B, 1, 1, L + 1]
  for (size_t l = 0; l < blocks_.size(); ++l) {
    x = blocks_[l]->ToOnnx(graph, absl::StrCat(name, "/block", l), onnx.parameters + offsets_[l],
                           {.x = x, .mask = keys, .numbers = numbers, .length = length});
  }
  x = graph.Slice(name + "/last", x, 1, -1, std::numeric_limits<int64_t>::max());
  return graph.Reshape(name + "/output", x, {0, columns_});
}

// Checks the lengths of the histories and adds a row for each target to them.
absl::Status HistoryEncoder::FindSequences(const LayerForward& pass) {
  const auto history = [&](size_t f) -> const Sequence& {
    return pass.sequences[static_cast<size_t>(options_.sequences[f])];
  };
  const int64_t* const offsets = history(0).offsets;
  sequences_.resize(static_cast<size_t>(pass.batch_size) + 1);
  for (int64_t b = 0; b <= pass.batch_size; ++b) {
    sequences_[static_cast<size_t>(b)] = offsets[b] - offsets[0] + b;
  }
  for (size_t f = 1; f < options_.sequences.size(); ++f) {
    const int64_t* const others = history(f).offsets;
    for (int64_t b = 0; b < pass.batch_size; ++b) {
      const int64_t length = offsets[b + 1] - offsets[b];
      const int64_t other = others[b + 1] - others[b];
      if (length == other) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "sample ", b, " has ", length, " values of ", options_.names[0], " and ", other, " of ",
          options_.names[f],
          ", but features of one history say different things of the same events: give as many"));
    }
  }
  const int64_t most = options_.max_batch_size * num_positions();
  if (sequences_.back() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a batch of ", sequences_.back() - pass.batch_size, " rows of a history, expected ",
      options_.max_batch_size * options_.max_length, " at most"));
}

absl::Status HistoryEncoder::Forward(const ExecContext& ctx, const LayerForward& pass) {
  HOTROW_RETURN_IF_ERROR(FindSequences(pass));
  for (size_t f = 0; f < options_.sequences.size(); ++f) {
    const int64_t column = static_cast<int64_t>(f) * options_.dim;
    const Sequence& sequence = pass.sequences[static_cast<size_t>(options_.sequences[f])];
    HOTROW_RETURN_IF_ERROR(
        AppendTarget(ctx, {.rows = RowsOf(sequence, pass.batch_size, options_.dim, true),
                           .target = pass.inputs[f].data,
                           .target_stride = pass.inputs[f].row_stride,
                           .positions = pass.parameters + column,
                           .position_stride = columns_,
                           .num_positions = num_positions(),
                           .output = rows_[0].data() + column,
                           .output_stride = columns_}));
  }
  for (size_t l = 0; l < blocks_.size(); ++l) {
    HOTROW_RETURN_IF_ERROR(blocks_[l]->Forward(ctx, {.batch_size = pass.batch_size,
                                                     .offsets = sequences_.data(),
                                                     .num_rows = sequences_.back(),
                                                     .parameters = pass.parameters + offsets_[l],
                                                     .x = rows_[l].data(),
                                                     .y = rows_[l + 1].data(),
                                                     .training = pass.training,
                                                     .step = pass.step,
                                                     .parameters_number = pass.parameters_number}));
  }
  return LastRow(ctx, {.rows = {.batch_size = pass.batch_size,
                                .dim = columns_,
                                .rows = rows_.back().data(),
                                .offsets = sequences_.data()},
                       .output = pass.output.data,
                       .output_stride = pass.output.row_stride});
}

// The gradients of parameters are there early: blocks make theirs on the way back, so that one
// buffer of gradients serves all.
absl::Status HistoryEncoder::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  HOTROW_RETURN_IF_ERROR(LastRowGrad(
      ctx, {.rows = {.batch_size = pass.batch_size, .dim = columns_, .offsets = sequences_.data()},
            .output_gradient = pass.output_gradient.data,
            .output_gradient_stride = pass.output_gradient.row_stride,
            .row_gradient = gradient_.data()}));
  for (size_t l = blocks_.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(
        blocks_[l]->Backward(ctx,
                             {.batch_size = pass.batch_size,
                              .offsets = sequences_.data(),
                              .num_rows = sequences_.back(),
                              .parameters = pass.parameters + offsets_[l],
                              .x = rows_[l].data(),
                              .gradient = gradient_.data(),
                              .parameter_gradients = pass.gradients + offsets_[l]},
                             &scratch_));
  }
  for (size_t f = 0; f < options_.sequences.size(); ++f) {
    const int64_t column = static_cast<int64_t>(f) * options_.dim;
    const Sequence& sequence = pass.sequences[static_cast<size_t>(options_.sequences[f])];
    HOTROW_RETURN_IF_ERROR(
        AppendTargetGrad(ctx, {.rows = RowsOf(sequence, pass.batch_size, options_.dim, false),
                               .output_gradient = gradient_.data() + column,
                               .output_gradient_stride = columns_,
                               .row_gradient = sequence.gradient,
                               .target_gradient = pass.input_gradients[f].data,
                               .target_gradient_stride = pass.input_gradients[f].row_stride,
                               .position_gradient = pass.gradients + column,
                               .position_gradient_stride = columns_,
                               .num_positions = num_positions()}));
  }
  return absl::OkStatus();
}

GraphValue AddHistoryEncoder(ModelGraph& graph, std::string_view name,
                             const HistoryEncoderSpec& spec) {
  if (!graph.ok()) return {};
  const ModelGraphOptions& options = graph.options();
  if (graph.ctx().device != Device::kCpu) {
    return graph.Fail(WorksOnlyOn(options.name, Device::kCpu, graph.ctx().device, name));
  }
  const int64_t columns = std::ssize(spec.histories) * int64_t{options.table_columns};
  // Products of them have up to four times as many.
  constexpr int64_t kMostColumns = int64_t{1} << 28;
  if (columns > kMostColumns) {
    return graph.Fail(absl::InvalidArgumentError(absl::StrCat(
        "--embedding_dim: ", spec.histories.size(), " histories of ", options.table_columns,
        " columns are ", columns, ", at most ", kMostColumns, "; lower it")));
  }
  if (spec.num_heads < 1 || columns % spec.num_heads != 0) {
    return graph.Fail(absl::InvalidArgumentError(
        absl::StrCat("--num_heads=", spec.num_heads, ": heads share ", columns, " columns (",
                     spec.histories.size(), " histories of --embedding_dim=", options.table_columns,
                     ") equally; give a number that divides them")));
  }
  HistoryEncoder::Options encoder = {
      .sequences = spec.histories,
      .names = spec.names,
      .dim = options.table_columns,
      .max_batch_size = std::max<int64_t>(options.max_batch_size, 1)};
  for (const int32_t sequence : spec.histories) {
    encoder.max_length =
        std::max(encoder.max_length, options.max_lengths[static_cast<size_t>(sequence)]);
  }
  HistoryEncoder::Blocks blocks;
  for (int32_t l = 0; l < spec.num_blocks; ++l) {
    absl::StatusOr<std::unique_ptr<SequenceBlock>> block =
        spec.make_block({.columns = static_cast<int32_t>(columns),
                         .num_heads = spec.num_heads,
                         .max_batch_size = encoder.max_batch_size,
                         .max_length = encoder.max_length + 1,
                         .seed = options.seed,
                         .first_layer_id = graph.TakeLayerIds(spec.maps_of_block),
                         .precision = options.precision},
                        graph.ctx());
    if (!block.ok()) return graph.Fail(std::move(block).status());
    blocks.push_back(*std::move(block));
  }
  return graph.AddLayer(name, HistoryEncoder::Create(encoder, std::move(blocks), graph.ctx()),
                        spec.targets);
}

}  // namespace hotrow
