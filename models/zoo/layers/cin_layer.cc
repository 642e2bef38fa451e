#include "models/zoo/layers/cin_layer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/mlp_layer_impl.h"
#include "models/zoo/model_parts.h"
#include "ops/layers/inner_layer.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<CinLayer>> CinLayer::Create(const Options& options,
                                                           const ExecContext& ctx) {
  std::unique_ptr<CinLayer> layer(new CinLayer(options));
  int64_t offset = 0;
  int64_t output = 0;
  int64_t rows_before = options.fields.fields;
  for (const int32_t size : options.sizes) {
    const int64_t products = rows_before * options.fields.fields;
    const int64_t rows = options.max_batch_size * options.fields.dim;
    if (products > std::numeric_limits<int32_t>::max() ||
        rows > std::numeric_limits<int64_t>::max() / 16 / products) {
      return absl::InvalidArgumentError(
          absl::StrCat(rows_before, " rows times ", options.fields.fields,
                       " features are too many products; lower --cin_layer_sizes"));
    }
    Level level = {
        .offset = offset, .rows = size, .rows_before = rows_before, .first_output = output};
    MlpOptions map;
    map.sizes = {static_cast<int32_t>(products), size};
    map.first_layer_id = options.first_layer_id + static_cast<int32_t>(layer->levels_.size());
    map.max_batch_size = rows;
    HOTROW_ASSIGN_OR_RETURN(level.map, Mlp::Create(map, ctx));
    offset += level.map->num_parameters();
    output += size;
    rows_before = size;
    layer->levels_.push_back(std::move(level));
  }
  HOTROW_RETURN_IF_ERROR(layer->Allocate(ctx));
  return layer;
}

absl::Status CinLayer::Allocate(const ExecContext& ctx) {
  const int64_t rows = options_.max_batch_size * options_.fields.dim;
  const auto allocate = [&](int64_t columns, DeviceMemory<float>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(
        *buffer,
        DeviceMemory<float>::Create(rows * columns, {ctx.device, ctx.stream, HugePages::kTry}));
    return absl::OkStatus();
  };
  int64_t most_products = 0;
  for (Level& level : levels_) {
    const int64_t products = level.rows_before * options_.fields.fields;
    most_products = std::max(most_products, products);
    HOTROW_RETURN_IF_ERROR(allocate(products, &level.products));
    HOTROW_RETURN_IF_ERROR(allocate(level.rows, &level.values));
    HOTROW_RETURN_IF_ERROR(allocate(level.rows, &level.gradients));
  }
  HOTROW_RETURN_IF_ERROR(allocate(most_products, &product_gradients_));
  HOTROW_RETURN_IF_ERROR(allocate(options_.fields.fields, &inputs_));
  return allocate(options_.fields.fields, &inputs_gradient_);
}

TensorShape CinLayer::output() const {
  return {1, static_cast<int32_t>(levels_.back().first_output + levels_.back().rows)};
}

LayerTraits CinLayer::traits() const {
  return {.on_gpu = true, .strided_fields = true, .reports_gradients = true};
}

int64_t CinLayer::num_parameters() const {
  return levels_.back().offset + levels_.back().map->num_parameters();
}

std::vector<InnerLayer> CinLayer::inner_layers() const {
  std::vector<InnerLayer> layers;
  for (const Level& level : levels_) {
    const InnerLayer map = level.map->inner_layers().front();
    layers.push_back({level.offset + map.parameters_end,
                      {level.values.data(), map.output.rows, level.rows, level.rows}});
  }
  return layers;
}

void CinLayer::InitParameters(uint64_t seed, std::span<float> parameters) const {
  for (const Level& level : levels_) {
    level.map->InitParameters(seed,
                              parameters.subspan(static_cast<size_t>(level.offset),
                                                 static_cast<size_t>(level.map->num_parameters())));
  }
}

void CinLayer::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  const int64_t dim = options_.fields.dim;
  for (const Level& level : levels_) {
    const int64_t products = level.rows_before * options_.fields.fields;
    layers->Add({.name = "cin",
                 .rows = dim,
                 .inputs = products,
                 .outputs = level.rows,
                 .macs = dim * products,
                 .activations = dim * products});
  }
}

// As Forward: each level is a map of the rows (b, d).
absl::StatusOr<std::string> CinLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const int64_t num_fields = options_.fields.fields;
  const int64_t dim = options_.fields.dim;
  const std::string fields =
      graph.Reshape(onnx.name + "/fields", onnx.inputs[0].name, {0, num_fields, dim});
  std::string before = graph.Add("Transpose", onnx.name + "/x0", {fields},
                                 {{"perm", std::vector<int64_t>{0, 2, 1}}});  // [B, D, F]
  const std::string x0 = graph.Unsqueeze(onnx.name + "/columns", before, 2);  // [B, D, 1, F]
  OnnxGraph::Inputs outputs;
  for (size_t k = 0; k < levels_.size(); ++k) {
    const Level& level = levels_[k];
    const std::string name = absl::StrCat(onnx.name, "/", k);
    std::string z = graph.Unsqueeze(name + "/rows", before, 3);  // [B, D, H, 1]
    z = graph.Add("Mul", name + "/pairs", {z, x0});              // [B, D, H, F]
    z = graph.Reshape(name + "/products", z, {0, dim, level.rows_before * num_fields});
    before = AddOnnxMlp(graph, name, *level.map, onnx.parameters + level.offset, z,
                        /*is_matrix=*/false);  // [B, D, H_k]
    outputs.push_back(graph.ReduceSum(name + "/sum", before, 1));
  }
  return graph.Concat(onnx.name + "/output", outputs, 1);
}

CinProductsArgs CinLayer::ProductsArgs(size_t k, int64_t batch_size) {
  return {.num_rows = batch_size * options_.fields.dim,
          .x_columns = static_cast<int32_t>(levels_[k].rows_before),
          .x0_columns = options_.fields.fields,
          .x = k == 0 ? inputs_.data() : levels_[k - 1].values.data(),
          .x0 = inputs_.data(),
          .products = levels_[k].products.data()};
}

absl::Status CinLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const int32_t num_fields = options_.fields.fields;
  const int32_t dim = options_.fields.dim;
  const TensorView& x = pass.inputs[0];
  HOTROW_RETURN_IF_ERROR(TransposeFields(ctx, {.batch_size = pass.batch_size,
                                               .rows = num_fields,
                                               .columns = dim,
                                               .from = x.data,
                                               .from_stride = x.row_stride,
                                               .from_row_stride = x.field_stride,
                                               .to = inputs_.data(),
                                               .to_stride = int64_t{dim} * num_fields,
                                               .to_row_stride = num_fields}));
  for (size_t k = 0; k < levels_.size(); ++k) {
    Level& level = levels_[k];
    HOTROW_RETURN_IF_ERROR(CinProducts(ctx, ProductsArgs(k, pass.batch_size)));
    HOTROW_RETURN_IF_ERROR(level.map->Forward(ctx, {.parameters = pass.parameters + level.offset,
                                                    .x = level.products.data(),
                                                    .x_stride = level.rows_before * num_fields,
                                                    .batch_size = pass.batch_size * dim,
                                                    .y = level.values.data(),
                                                    .y_stride = level.rows,
                                                    .training = pass.training,
                                                    .step = pass.step,
                                                    .parameters_number = pass.parameters_number}));
    HOTROW_RETURN_IF_ERROR(CinSum(ctx, {.batch_size = pass.batch_size,
                                        .rows = dim,
                                        .columns = static_cast<int32_t>(level.rows),
                                        .values = level.values.data(),
                                        .output = pass.output.data + level.first_output,
                                        .output_stride = pass.output.row_stride}));
  }
  return absl::OkStatus();
}

Mlp::BackwardArgs CinLayer::ArgsOf(Level& level, const LayerBackward& pass) {
  Mlp::BackwardArgs args = {.parameters = pass.parameters + level.offset,
                            .dy = level.gradients.data(),
                            .dy_stride = level.rows,
                            .dx = product_gradients_.data(),
                            .dx_stride = level.rows_before * options_.fields.fields,
                            .parameter_gradients = pass.gradients + level.offset};
  if (pass.gradients_ready != nullptr) {
    args.gradients_ready = [&pass, offset = level.offset](int64_t begin, int64_t end) {
      return pass.gradients_ready(offset + begin, offset + end);
    };
  }
  return args;
}

absl::Status CinLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  const int32_t num_fields = options_.fields.fields;
  const int32_t dim = options_.fields.dim;
  const TensorView& dy = pass.output_gradient;
  for (size_t k = levels_.size(); k-- > 0;) {
    Level& level = levels_[k];
    const bool is_first = k + 1 == levels_.size();  // on the way back
    HOTROW_RETURN_IF_ERROR(CinSumGrad(ctx, {.batch_size = pass.batch_size,
                                            .rows = dim,
                                            .columns = static_cast<int32_t>(level.rows),
                                            .output_gradient = dy.data + level.first_output,
                                            .output_gradient_stride = dy.row_stride,
                                            .values_gradient = level.gradients.data(),
                                            .add = !is_first}));
    HOTROW_RETURN_IF_ERROR(level.map->BackwardInput(ctx, ArgsOf(level, pass)));
    HOTROW_RETURN_IF_ERROR(
        CinProductsGrad(ctx, {.forward = ProductsArgs(k, pass.batch_size),
                              .products_gradient = product_gradients_.data(),
                              .x_gradient = k == 0 ? nullptr : levels_[k - 1].gradients.data(),
                              .x0_gradient = inputs_gradient_.data(),
                              .add_to_x0_gradient = !is_first}));
  }
  const TensorView& dx = pass.input_gradients[0];
  if (dx.data == nullptr) return absl::OkStatus();
  return TransposeFields(ctx, {.batch_size = pass.batch_size,
                               .rows = dim,
                               .columns = num_fields,
                               .from = inputs_gradient_.data(),
                               .from_stride = int64_t{dim} * num_fields,
                               .from_row_stride = num_fields,
                               .to = dx.data,
                               .to_stride = dx.row_stride,
                               .to_row_stride = dx.field_stride});
}

absl::Status CinLayer::BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) {
  for (size_t k = levels_.size(); k-- > 0;) {
    HOTROW_RETURN_IF_ERROR(levels_[k].map->BackwardParameters(ctx, ArgsOf(levels_[k], pass)));
  }
  return absl::OkStatus();
}

GraphValue AddCin(ModelGraph& graph, std::string_view name, GraphValue fields,
                  const std::string& flag, const std::vector<int32_t>& sizes) {
  if (absl::Status status = CheckLayerSizes(flag, sizes); !status.ok()) {
    return graph.Fail(std::move(status));
  }
  if (!graph.ok()) return {};
  const CinLayer::Options options = {
      .fields = graph.shape(fields),
      .sizes = sizes,
      .first_layer_id = graph.TakeLayerIds(static_cast<int32_t>(sizes.size())),
      .max_batch_size = graph.options().max_batch_size};
  return graph.AddLayer(name, CinLayer::Create(options, graph.ctx()), {fields});
}

}  // namespace hotrow
