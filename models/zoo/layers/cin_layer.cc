#include "models/zoo/layers/cin_layer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/mlp_layer.h"
#include "models/zoo/model_parts.h"

namespace hotrow {
namespace {

// Samples of one piece of work.
constexpr int64_t kChunkSamples = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<CinLayer>> CinLayer::Create(const Options& options) {
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
    HOTROW_ASSIGN_OR_RETURN(level.map, Mlp::Create(map));
    offset += level.map->num_parameters();
    output += size;
    rows_before = size;
    layer->levels_.push_back(std::move(level));
  }
  HOTROW_RETURN_IF_ERROR(layer->Allocate());
  return layer;
}

absl::Status CinLayer::Allocate() {
  const int64_t rows = options_.max_batch_size * options_.fields.dim;
  const auto allocate = [&](int64_t columns, HostBuffer<float>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<float>::Create(rows * columns, HugePages::kTry));
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

LayerTraits CinLayer::traits() const { return {.strided_fields = true, .reports_gradients = true}; }

int64_t CinLayer::num_parameters() const {
  return levels_.back().offset + levels_.back().map->num_parameters();
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

absl::Status CinLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const int64_t num_fields = options_.fields.fields;
  const int64_t dim = options_.fields.dim;
  const int64_t batch = pass.batch_size;
  const TensorView& x = pass.inputs[0];
  ParallelFor(ctx.pool, batch, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t f = 0; f < num_fields; ++f) {
        const float* const field = x.data + b * x.row_stride + f * x.field_stride;
        for (int64_t d = 0; d < dim; ++d) inputs_[(b * dim + d) * num_fields + f] = field[d];
      }
    }
  });
  const float* before = inputs_.data();
  for (Level& level : levels_) {
    const int64_t columns = level.rows_before * num_fields;
    ParallelFor(ctx.pool, batch, kChunkSamples, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * dim; r < end * dim; ++r) {
        const float* const x0 = inputs_.data() + r * num_fields;
        float* product = level.products.data() + r * columns;
        for (int64_t i = 0; i < level.rows_before; ++i, product += num_fields) {
          const float xi = before[r * level.rows_before + i];
          for (int64_t j = 0; j < num_fields; ++j) product[j] = xi * x0[j];
        }
      }
    });
    HOTROW_RETURN_IF_ERROR(level.map->Forward(ctx, {.parameters = pass.parameters + level.offset,
                                                    .x = level.products.data(),
                                                    .x_stride = columns,
                                                    .batch_size = batch * dim,
                                                    .y = level.values.data(),
                                                    .y_stride = level.rows,
                                                    .training = pass.training,
                                                    .step = pass.step}));
    ParallelFor(ctx.pool, batch, kChunkSamples, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float* const y = pass.output.data + b * pass.output.row_stride + level.first_output;
        std::fill_n(y, level.rows, 0.0f);
        for (int64_t d = 0; d < dim; ++d) {
          const float* const values = level.values.data() + (b * dim + d) * level.rows;
          for (int64_t h = 0; h < level.rows; ++h) y[h] += values[h];
        }
      }
    });
    before = level.values.data();
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

// The output is a sum over d: each of the D rows of a sample has its gradient.
void CinLayer::SpreadGradient(const ExecContext& ctx, const Level& level, const LayerBackward& pass,
                              bool add, float* gradients) const {
  const int64_t dim = options_.fields.dim;
  const TensorView& dy = pass.output_gradient;
  ParallelFor(ctx.pool, pass.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin * dim; r < end * dim; ++r) {
      const float* const from = dy.data + r / dim * dy.row_stride + level.first_output;
      float* const to = gradients + r * level.rows;
      for (int64_t h = 0; h < level.rows; ++h) to[h] = add ? to[h] + from[h] : from[h];
    }
  });
}

void CinLayer::MultiplyBack(const ExecContext& ctx, size_t k, int64_t rows) {
  Level& level = levels_[k];
  const int64_t num_fields = options_.fields.fields;
  const float* const before = k == 0 ? inputs_.data() : levels_[k - 1].values.data();
  const bool is_last = k + 1 == levels_.size();  // the first one on the way back
  ParallelFor(ctx.pool, rows, kChunkSamples * options_.fields.dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const x0 = inputs_.data() + r * num_fields;
      float* const dx0 = inputs_gradient_.data() + r * num_fields;
      const float* dz = product_gradients_.data() + r * level.rows_before * num_fields;
      if (is_last) std::fill_n(dx0, num_fields, 0.0f);
      for (int64_t i = 0; i < level.rows_before; ++i, dz += num_fields) {
        const float xi = before[r * level.rows_before + i];
        float sum = 0;
        for (int64_t j = 0; j < num_fields; ++j) sum += dz[j] * x0[j];
        for (int64_t j = 0; j < num_fields; ++j) dx0[j] += dz[j] * xi;
        if (k == 0) {
          dx0[i] += sum;
        } else {
          levels_[k - 1].gradients[r * level.rows_before + i] = sum;
        }
      }
    }
  });
}

absl::Status CinLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  const int64_t num_fields = options_.fields.fields;
  const int64_t dim = options_.fields.dim;
  for (size_t k = levels_.size(); k-- > 0;) {
    Level& level = levels_[k];
    const bool is_last = k + 1 == levels_.size();
    SpreadGradient(ctx, level, pass, /*add=*/!is_last, level.gradients.data());
    HOTROW_RETURN_IF_ERROR(level.map->BackwardInput(ctx, ArgsOf(level, pass)));
    MultiplyBack(ctx, k, pass.batch_size * dim);
  }
  const TensorView& dx = pass.input_gradients[0];
  if (dx.data == nullptr) return absl::OkStatus();
  ParallelFor(ctx.pool, pass.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t f = 0; f < num_fields; ++f) {
        float* const field = dx.data + b * dx.row_stride + f * dx.field_stride;
        for (int64_t d = 0; d < dim; ++d) {
          field[d] = inputs_gradient_[(b * dim + d) * num_fields + f];
        }
      }
    }
  });
  return absl::OkStatus();
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
  return graph.AddLayer(name, CinLayer::Create(options), {fields});
}

}  // namespace hotrow
