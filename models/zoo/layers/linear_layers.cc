#include "models/zoo/layers/linear_layers.h"

#include <algorithm>
#include <memory>

#include "base/thread_pool.h"
#include "models/onnx/onnx_graph.h"

namespace hotrow {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;
// Columns whose sums over the rows are made together: some cache lines of each row.
constexpr int64_t kChunkColumns = 64;

class LinearLayer : public Layer {
 public:
  explicit LinearLayer(int64_t columns) : columns_(columns) {}
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override {
    return {.inputs_until = LayerPhase::kBackwardParameters,
            .gradient_until = LayerPhase::kBackwardParameters};
  }
  int64_t num_parameters() const override { return columns_; }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    const std::string weight = onnx.graph->Floats(onnx.name + "/weight", {columns_, 1},
                                                  {onnx.parameters, static_cast<size_t>(columns_)});
    return onnx.graph->Add("MatMul", onnx.name + "/matmul", {onnx.inputs[0].name, weight});
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    const TensorView& x = pass.inputs[0];
    ParallelFor(ctx.pool, pass.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* const row = x.data + r * x.row_stride;
        float sum = 0;
        for (int64_t i = 0; i < columns_; ++i) sum += row[i] * pass.parameters[i];
        pass.output.data[r * pass.output.row_stride] = sum;
      }
    });
    return absl::OkStatus();
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& dx = pass.input_gradients[0];
    if (dx.data == nullptr) return absl::OkStatus();
    const TensorView& dy = pass.output_gradient;
    ParallelFor(ctx.pool, pass.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* const row = dx.data + r * dx.row_stride;
        const float g = dy.data[r * dy.row_stride];
        for (int64_t i = 0; i < columns_; ++i) row[i] = g * pass.parameters[i];
      }
    });
    return absl::OkStatus();
  }
  // Sums run in the order of rows, whatever the pool.
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& x = pass.inputs[0];
    const TensorView& dy = pass.output_gradient;
    ParallelFor(ctx.pool, columns_, kChunkColumns, [&](int64_t begin, int64_t end) {
      std::fill(pass.gradients + begin, pass.gradients + end, 0.0f);
      for (int64_t r = 0; r < pass.batch_size; ++r) {
        const float* const row = x.data + r * x.row_stride;
        const float g = dy.data[r * dy.row_stride];
        for (int64_t i = begin; i < end; ++i) pass.gradients[i] += g * row[i];
      }
    });
    return absl::OkStatus();
  }

 private:
  const int64_t columns_;
};

class BiasLayer : public Layer {
 public:
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override {
    return {.gradient_until = LayerPhase::kBackwardParameters};
  }
  int64_t num_parameters() const override { return 1; }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    OnnxGraph& graph = *onnx.graph;
    const std::string bias = graph.Floats(onnx.name + "/bias", {1, 1}, {onnx.parameters, 1});
    const int64_t one = 1;
    const std::string columns = graph.Ints(onnx.name + "/columns", {1}, {&one, 1});
    const std::string shape = graph.Concat(onnx.name + "/shape", {graph.BatchSize(), columns}, 0);
    return graph.Add("Expand", onnx.name + "/samples", {bias, shape});
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    for (int64_t r = 0; r < pass.batch_size; ++r) {
      pass.output.data[r * pass.output.row_stride] = *pass.parameters;
    }
    return absl::OkStatus();
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    return absl::OkStatus();
  }
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override {
    float sum = 0;
    for (int64_t r = 0; r < pass.batch_size; ++r) {
      sum += pass.output_gradient.data[r * pass.output_gradient.row_stride];
    }
    *pass.gradients = sum;
    return absl::OkStatus();
  }
};

class ColumnSumLayer : public Layer {
 public:
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override { return {.strided_fields = true}; }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    return onnx.graph->ReduceSum(onnx.name + "/sum", onnx.inputs[0].name, 1, /*keep_axis=*/true);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    const TensorView& x = pass.inputs[0];
    ParallelFor(ctx.pool, pass.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* field = x.data + r * x.row_stride;
        float sum = 0;
        for (int32_t f = 0; f < x.shape.fields; ++f, field += x.field_stride) {
          for (int32_t i = 0; i < x.shape.dim; ++i) sum += field[i];
        }
        pass.output.data[r * pass.output.row_stride] = sum;
      }
    });
    return absl::OkStatus();
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& dx = pass.input_gradients[0];
    const TensorView& dy = pass.output_gradient;
    if (dx.data == nullptr) return absl::OkStatus();
    ParallelFor(ctx.pool, pass.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* field = dx.data + r * dx.row_stride;
        for (int32_t f = 0; f < dx.shape.fields; ++f, field += dx.field_stride) {
          std::fill_n(field, dx.shape.dim, dy.data[r * dy.row_stride]);
        }
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace

GraphValue AddLinear(ModelGraph& graph, std::string_view name, GraphValue x) {
  return graph.AddLayer(name, std::make_unique<LinearLayer>(graph.shape(x).width()), {x});
}

GraphValue AddBias(ModelGraph& graph, std::string_view name, bool joins_previous) {
  return graph.AddLayer(name, std::make_unique<BiasLayer>(), {}, joins_previous);
}

GraphValue AddColumnSum(ModelGraph& graph, std::string_view name, GraphValue fields) {
  return graph.AddLayer(name, std::make_unique<ColumnSumLayer>(), {fields});
}

void AddWideLogit(ModelGraph& graph, int32_t column) {
  const bool has_dense = graph.options().num_dense > 0;
  if (has_dense) graph.AddLogit(AddLinear(graph, "linear", graph.Dense()));
  graph.AddLogit(AddBias(graph, "bias", /*joins_previous=*/has_dense));
  graph.AddLogit(AddColumnSum(graph, "first_order", graph.Embeddings(column, 1)));
}

}  // namespace hotrow
