#include "models/zoo/layers/mixture_layer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/mlp_layer.h"

namespace hotrow {
namespace {

// A row is a microsecond or two of work.
constexpr int64_t kChunkRows = 64;

// Shares that add up to one. The largest exponent is 0, so nothing overflows.
void Softmax(const float* x, std::vector<float>* shares) {
  const float largest = *std::max_element(x, x + shares->size());
  float sum = 0;
  for (size_t e = 0; e < shares->size(); ++e) {
    (*shares)[e] = std::exp(x[e] - largest);
    sum += (*shares)[e];
  }
  for (float& share : *shares) share /= sum;
}

float* RowOf(const TensorView& view, int64_t r) { return view.data + r * view.row_stride; }

// The experts' vectors [B, E D], each times its share: [B, E, D].
std::string AddOnnxShares(OnnxGraph& graph, const std::string& name, const std::string& gate,
                          const std::string& experts, int64_t num_experts, int64_t columns) {
  std::string shares = graph.Add("Softmax", name + "/shares", {gate}, {{"axis", int64_t{1}}});
  shares = graph.Unsqueeze(name + "/of_columns", shares, 2);
  const std::string vectors = graph.Reshape(name + "/vectors", experts, {0, num_experts, columns});
  return graph.Add("Mul", name + "/shared", {vectors, shares});
}

// function(row, shares of the experts), of a gate of [B, experts] numbers
template <typename Function>
void ForRows(const ExecContext& ctx, int64_t rows, const TensorView& gate,
             const Function& function) {
  ParallelFor(ctx.pool, rows, kChunkRows, [&](int64_t begin, int64_t end) {
    std::vector<float> shares(static_cast<size_t>(gate.shape.width()));
    for (int64_t r = begin; r < end; ++r) {
      Softmax(RowOf(gate, r), &shares);
      function(r, shares);
    }
  });
}

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// From the shares p_e and d_e = d(loss)/d(p_e), which is there, to the gradient of the gate:
// p_e (d_e - sum p d).
void SoftmaxGradient(const std::vector<float>& shares, float* gradient) {
  const float mean = Dot(gradient, shares.data(), std::ssize(shares));
  for (size_t e = 0; e < shares.size(); ++e) gradient[e] = shares[e] * (gradient[e] - mean);
}

class MixtureLayer : public Layer {
 public:
  MixtureLayer(int64_t experts, int64_t dim) : experts_(experts), dim_(dim) {}
  TensorShape output() const override { return {1, static_cast<int32_t>(dim_)}; }
  LayerTraits traits() const override { return {.inputs_until = LayerPhase::kBackwardInputs}; }

  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    layers->Add({.name = "mixture", .macs = experts_ * dim_, .activations = dim_});
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    const std::string shared = AddOnnxShares(*onnx.graph, onnx.name, onnx.inputs[0].name,
                                             onnx.inputs[1].name, experts_, dim_);
    return onnx.graph->ReduceSum(onnx.name + "/sum", shared, 1);
  }

  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    ForRows(ctx, pass.batch_size, pass.inputs[0], [&](int64_t r, const std::vector<float>& shares) {
      const float* x = RowOf(pass.inputs[1], r);
      float* const y = RowOf(pass.output, r);
      std::fill_n(y, dim_, 0.0f);
      for (const float share : shares) {
        for (int64_t i = 0; i < dim_; ++i) y[i] += share * x[i];
        x += dim_;
      }
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    ForRows(ctx, pass.batch_size, pass.inputs[0], [&](int64_t r, const std::vector<float>& shares) {
      const float* const dy = RowOf(pass.output_gradient, r);
      if (pass.input_gradients[1].data != nullptr) {
        float* dx = RowOf(pass.input_gradients[1], r);
        for (const float share : shares) {
          for (int64_t i = 0; i < dim_; ++i) dx[i] = share * dy[i];
          dx += dim_;
        }
      }
      if (pass.input_gradients[0].data == nullptr) return;
      float* const dgate = RowOf(pass.input_gradients[0], r);
      const float* x = RowOf(pass.inputs[1], r);
      for (size_t e = 0; e < shares.size(); ++e, x += dim_) dgate[e] = Dot(dy, x, dim_);
      SoftmaxGradient(shares, dgate);
    });
    return absl::OkStatus();
  }

 private:
  const int64_t experts_;
  const int64_t dim_;
};

// Whether there are as many columns for each number of the gate; otherwise the graph fails.
bool CheckGate(ModelGraph& graph, std::string_view name, GraphValue gate, GraphValue experts) {
  if (!graph.ok()) return false;
  const int64_t count = graph.shape(gate).width();
  const int64_t width = graph.shape(experts).width();
  if (count >= 1 && width % count == 0) return true;
  graph.Fail(absl::InvalidArgumentError(absl::StrCat(std::string(name), ": a gate of ", count,
                                                     " experts, which have ", width,
                                                     " columns in all; each needs as many")));
  return false;
}

}  // namespace

GraphValue AddMixture(ModelGraph& graph, std::string_view name, GraphValue gate,
                      GraphValue experts) {
  if (!CheckGate(graph, name, gate, experts)) return {};
  const int64_t count = graph.shape(gate).width();
  return graph.AddLayer(name,
                        std::make_unique<MixtureLayer>(count, graph.shape(experts).width() / count),
                        {gate, experts});
}

absl::StatusOr<std::unique_ptr<GatedMapsLayer>> GatedMapsLayer::Create(const Options& options) {
  std::unique_ptr<GatedMapsLayer> layer(new GatedMapsLayer(options));
  for (int64_t e = 0; e < options.experts; ++e) {
    MlpOptions map;
    map.sizes = {options.columns, options.columns};
    map.relu_on_output = true;
    map.first_layer_id = options.first_layer_id + static_cast<int32_t>(e);
    map.max_batch_size = options.max_batch_size;
    map.precision = options.precision;
    HOTROW_ASSIGN_OR_RETURN(layer->maps_.emplace_back(), Mlp::Create(map));
  }
  for (HostBuffer<float>* buffer : {&layer->values_, &layer->gradients_}) {
    HOTROW_ASSIGN_OR_RETURN(
        *buffer,
        HostBuffer<float>::Create(options.max_batch_size * layer->columns(), HugePages::kTry));
  }
  return layer;
}

LayerTraits GatedMapsLayer::traits() const {
  return {.inputs_until = LayerPhase::kBackwardParameters, .reports_gradients = true};
}

void GatedMapsLayer::InitParameters(uint64_t seed, std::span<float> parameters) const {
  for (int64_t e = 0; e < options_.experts; ++e) {
    map(e).InitParameters(seed, parameters.subspan(static_cast<size_t>(offset(e)),
                                                   static_cast<size_t>(map(e).num_parameters())));
  }
}

void GatedMapsLayer::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  for (int64_t e = 0; e < options_.experts; ++e) {
    layers->Add({.name = "gated_map",
                 .inputs = options_.columns,
                 .outputs = options_.columns,
                 .macs = options_.columns,
                 .activations = options_.columns});
  }
}

absl::StatusOr<std::string> GatedMapsLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const int64_t width = options_.columns;
  OnnxGraph::Inputs values;
  for (int64_t e = 0; e < options_.experts; ++e) {
    const std::string name = absl::StrCat(onnx.name, "/expert", e);
    const std::string x =
        graph.Slice(name + "/x", onnx.inputs[1].name, 1, e * width, (e + 1) * width);
    values.push_back(AddOnnxMlp(graph, name, map(e), onnx.parameters + offset(e), x));
  }
  const std::string shared =
      AddOnnxShares(graph, onnx.name, onnx.inputs[0].name,
                    graph.Concat(onnx.name + "/values", values, 1), options_.experts, width);
  return graph.Reshape(onnx.name + "/output", shared, {0, columns()});
}

absl::Status GatedMapsLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const int64_t width = options_.columns;
  for (int64_t e = 0; e < options_.experts; ++e) {
    HOTROW_RETURN_IF_ERROR(
        maps_[static_cast<size_t>(e)]->Forward(ctx, {.parameters = pass.parameters + offset(e),
                                                     .x = pass.inputs[1].data + e * width,
                                                     .x_stride = pass.inputs[1].row_stride,
                                                     .batch_size = pass.batch_size,
                                                     .y = values_.data() + e * width,
                                                     .y_stride = columns(),
                                                     .training = pass.training,
                                                     .step = pass.step}));
  }
  ForRows(ctx, pass.batch_size, pass.inputs[0], [&](int64_t r, const std::vector<float>& shares) {
    const float* value = values_.data() + r * columns();
    float* y = RowOf(pass.output, r);
    for (const float share : shares) {
      for (int64_t i = 0; i < width; ++i) y[i] = share * value[i];
      value += width;
      y += width;
    }
  });
  return absl::OkStatus();
}

Mlp::BackwardArgs GatedMapsLayer::ArgsOf(int64_t expert, const LayerBackward& pass) {
  const int64_t column = expert * options_.columns;
  const TensorView& dx = pass.input_gradients[1];
  Mlp::BackwardArgs args = {.parameters = pass.parameters + offset(expert),
                            .dy = gradients_.data() + column,
                            .dy_stride = columns(),
                            .dx = dx.data == nullptr ? nullptr : dx.data + column,
                            .dx_stride = dx.row_stride,
                            .parameter_gradients = pass.gradients + offset(expert)};
  if (pass.gradients_ready != nullptr) {
    args.gradients_ready = [&pass, first = offset(expert)](int64_t begin, int64_t end) {
      return pass.gradients_ready(first + begin, first + end);
    };
  }
  return args;
}

absl::Status GatedMapsLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  const int64_t width = options_.columns;
  ForRows(ctx, pass.batch_size, pass.inputs[0], [&](int64_t r, const std::vector<float>& shares) {
    const float* dy = RowOf(pass.output_gradient, r);
    const float* value = values_.data() + r * columns();
    float* gradient = gradients_.data() + r * columns();
    const TensorView& dgate = pass.input_gradients[0];
    float* const of_gate = dgate.data == nullptr ? nullptr : RowOf(dgate, r);
    for (size_t e = 0; e < shares.size(); ++e) {
      if (of_gate != nullptr) of_gate[e] = Dot(dy, value, width);
      for (int64_t i = 0; i < width; ++i) gradient[i] = shares[e] * dy[i];
      dy += width;
      value += width;
      gradient += width;
    }
    if (of_gate != nullptr) SoftmaxGradient(shares, of_gate);
  });
  for (int64_t e = 0; e < options_.experts; ++e) {
    HOTROW_RETURN_IF_ERROR(maps_[static_cast<size_t>(e)]->BackwardInput(ctx, ArgsOf(e, pass)));
  }
  return absl::OkStatus();
}

absl::Status GatedMapsLayer::BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) {
  for (int64_t e = options_.experts; e-- > 0;) {
    HOTROW_RETURN_IF_ERROR(maps_[static_cast<size_t>(e)]->BackwardParameters(ctx, ArgsOf(e, pass)));
  }
  return absl::OkStatus();
}

GraphValue AddGatedMaps(ModelGraph& graph, std::string_view name, GraphValue gate, GraphValue x) {
  if (!CheckGate(graph, name, gate, x)) return {};
  const int64_t experts = graph.shape(gate).width();
  return graph.AddLayer(
      name,
      GatedMapsLayer::Create({.experts = experts,
                              .columns = static_cast<int32_t>(graph.shape(x).width() / experts),
                              .first_layer_id = graph.TakeLayerIds(static_cast<int32_t>(experts)),
                              .max_batch_size = graph.options().max_batch_size,
                              .precision = graph.options().precision}),
      {gate, x});
}

}  // namespace hotrow
