#include "models/zoo/layers/interaction_layers.h"

#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/onnx/onnx_graph.h"
#include "ops/interactions/dot_interaction.h"
#include "ops/interactions/fm_interaction.h"
#include "ops/interactions/outer_product.h"
#include "ops/interactions/padded_dot.h"

namespace hotrow {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// Half of a product that fits into 32 bits then.
int32_t Half(int64_t a, int64_t b) { return static_cast<int32_t>(a * b / 2); }

// The op over fields whose first one, where no other vector is given, is the dense vector.
DotInteractionArgs DotArgs(int64_t batch_size, std::span<const TensorView> inputs,
                           const TensorView& output, bool copies_dense) {
  const TensorView& fields = inputs.back();
  const bool has_vector = inputs.size() == 2;
  const int32_t dim = fields.shape.dim;
  return {.batch_size = batch_size,
          .num_sparse = has_vector ? fields.shape.fields : fields.shape.fields - 1,
          .dim = dim,
          .dense = inputs[0].data,
          .dense_stride = inputs[0].row_stride,
          .sparse = has_vector ? fields.data : fields.data + dim,
          .sparse_stride = fields.row_stride,
          .output = output.data,
          .output_stride = output.row_stride,
          .copies_dense = copies_dense};
}

absl::Status DotForward(const ExecContext& ctx, const LayerForward& pass, bool copies_dense) {
  if (pass.batch_size == 0) return absl::OkStatus();
  return DotInteraction(ctx, DotArgs(pass.batch_size, pass.inputs, pass.output, copies_dense));
}

absl::Status DotBackward(const ExecContext& ctx, const LayerBackward& pass, bool copies_dense) {
  if (pass.batch_size == 0) return absl::OkStatus();
  const TensorView& fields = pass.input_gradients.back();
  const bool has_vector = pass.input_gradients.size() == 2;
  return DotInteractionGrad(
      ctx, {.forward = DotArgs(pass.batch_size, pass.inputs, pass.output_gradient, copies_dense),
            .output_gradient = pass.output_gradient.data,
            .dense_gradient = pass.input_gradients[0].data,
            .dense_gradient_stride = pass.input_gradients[0].row_stride,
            .sparse_gradient = has_vector ? fields.data : fields.data + fields.shape.dim,
            .sparse_gradient_stride = fields.row_stride});
}

// The entries of square matrices [B, size, size], row by row below their diagonals, or with them.
std::string AddOnnxTriangle(OnnxGraph& graph, const std::string& name, const std::string& matrices,
                            int64_t size, bool with_diagonal) {
  std::vector<int64_t> entries;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < i + (with_diagonal ? 1 : 0); ++j) entries.push_back(i * size + j);
  }
  const std::string flat = graph.Reshape(name + "/entries", matrices, {0, size * size});
  return graph.Columns(name + "/triangle", flat, entries);
}

// The products of all pairs of vectors that lie end to end in x.
std::string AddOnnxPairs(OnnxGraph& graph, const std::string& name, const std::string& x,
                         int64_t vectors, int64_t dim) {
  const std::string rows = graph.Reshape(name + "/vectors", x, {0, vectors, dim});
  const std::string columns = graph.Add("Transpose", name + "/transposed", {rows},
                                        {{"perm", std::vector<int64_t>{0, 2, 1}}});
  const std::string all = graph.Add("MatMul", name + "/products", {rows, columns});
  return AddOnnxTriangle(graph, name, all, vectors, /*with_diagonal=*/false);
}

class DotInteractionLayer : public Layer {
 public:
  explicit DotInteractionLayer(TensorShape output) : output_(output) {}
  TensorShape output() const override { return output_; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .inputs_until = LayerPhase::kBackwardInputs};
  }
  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    layers->interaction = "dot";
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    OnnxGraph& graph = *onnx.graph;
    const TensorShape& fields = onnx.inputs.back().shape;
    const bool has_vector = onnx.inputs.size() == 2;
    OnnxGraph::Inputs values;
    for (const LayerOnnx::Value& input : onnx.inputs) values.push_back(input.name);
    const std::string x = graph.Concat(onnx.name + "/x", values, 1);
    const int64_t vectors = int64_t{fields.fields} + (has_vector ? 1 : 0);
    const std::string vector =
        has_vector ? values[0] : graph.Slice(onnx.name + "/vector", x, 1, 0, fields.dim);
    if (vectors == 1) return vector;
    return graph.Concat(onnx.name + "/output",
                        {vector, AddOnnxPairs(graph, onnx.name, x, vectors, fields.dim)}, 1);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    return DotForward(ctx, pass, /*copies_dense=*/true);
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    return DotBackward(ctx, pass, /*copies_dense=*/true);
  }

 private:
  const TensorShape output_;
};

// The same on the tensor cores of a GPU, whose rows are padded with zeros and a one.
class TensorDotLayer : public DotInteractionLayer {
 public:
  // has_vector: the inputs are the dense vector and the fields, not the fields alone.
  TensorDotLayer(TensorShape output, int64_t padded_columns, bool has_vector)
      : DotInteractionLayer(output), padded_columns_(padded_columns), has_vector_(has_vector) {}
  LayerTraits traits() const override {
    LayerTraits traits = DotInteractionLayer::traits();
    traits.padded_columns = padded_columns_;
    traits.reads_rows = has_vector_;
    return traits;
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    if (pass.batch_size == 0) return absl::OkStatus();
    PaddedDotArgs args = Args(pass.batch_size, pass.inputs);
    args.output = pass.output.data;
    args.output_stride = pass.output.row_stride;
    return PaddedDot(ctx, args);
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    if (pass.batch_size == 0) return absl::OkStatus();
    PaddedDotGradArgs args = {.forward = Args(pass.batch_size, pass.inputs),
                              .output_gradient = pass.output_gradient.data};
    args.forward.output_stride = pass.output_gradient.row_stride;
    const TensorView& fields = pass.input_gradients.back();
    const bool has_vector = pass.input_gradients.size() == 2;
    args.dense_gradient = pass.input_gradients[0].data;
    args.dense_gradient_stride = pass.input_gradients[0].row_stride;
    args.sparse_gradient = has_vector ? fields.data : fields.data + fields.shape.dim;
    args.sparse_gradient_stride = fields.row_stride;
    return PaddedDotGrad(ctx, args);
  }

 private:
  static PaddedDotArgs Args(int64_t batch_size, std::span<const TensorView> inputs) {
    const DotInteractionArgs dot = DotArgs(batch_size, inputs, {}, /*copies_dense=*/true);
    return {.precision = DotPrecision::kTf32,
            .batch_size = batch_size,
            .num_sparse = dot.num_sparse,
            .dim = dot.dim,
            .dense = dot.dense,
            .dense_stride = dot.dense_stride,
            .sparse = dot.sparse,
            .sparse_stride = dot.sparse_stride,
            .sparse_rows = reinterpret_cast<const void* const*>(inputs.back().rows)};
  }

  const int64_t padded_columns_;
  const bool has_vector_;
};

// Whether that layer takes them: where products of matrices are rounded at least as much as it
// rounds its factors, and the shape is one of tensor cores (ops/interactions/padded_dot.h).
bool TakesTensorCores(const ModelGraph& graph, int32_t vectors, int32_t dim) {
  return graph.ctx().device != Device::kCpu && graph.options().precision != DensePrecision::kFp32 &&
         vectors <= 64 && dim <= 512 && dim % 16 == 0;
}

class FmLayer : public Layer {
 public:
  FmLayer(int64_t fields_width, bool has_first_order)
      : fields_width_(fields_width), has_first_order_(has_first_order) {}
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override {
    // The op overwrites all columns of a field, so it needs fields without others between.
    return {.on_gpu = true, .inputs_until = LayerPhase::kBackwardInputs};
  }
  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    // The sum of the fields and that of their squares.
    layers->Add({.name = "fm", .macs = 2 * fields_width_, .activations = 1});
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    OnnxGraph& graph = *onnx.graph;
    const std::string& name = onnx.name;
    const TensorShape& shape = onnx.inputs[0].shape;
    const int64_t dim = has_first_order_ ? shape.dim - 1 : shape.dim;
    std::string v =
        graph.Reshape(name + "/fields", onnx.inputs[0].name, {0, shape.fields, shape.dim});
    std::string first_order;
    if (has_first_order_) {
      const std::string weights = graph.Slice(name + "/weights", v, 2, dim, shape.dim);
      first_order = graph.ReduceSum(name + "/first_order", weights, 1);  // [B, 1]
      v = graph.Slice(name + "/vectors", v, 2, 0, dim);
    }
    const std::string sum = graph.ReduceSum(name + "/sum", v, 1);  // [B, D]
    const std::string square = graph.Add("Mul", name + "/square", {sum, sum});
    const std::string squares = graph.Add("Mul", name + "/squares", {v, v});
    const std::string own = graph.ReduceSum(name + "/own", squares, 1);
    const std::string pairs = graph.Add("Sub", name + "/pairs", {square, own});
    const std::string twice = graph.ReduceSum(name + "/twice", pairs, 1, /*keep_axis=*/true);
    const std::string half = graph.Float(name + "/half", 0.5f);
    const std::string second_order = graph.Add("Mul", name + "/second_order", {twice, half});
    if (!has_first_order_) return second_order;
    return graph.Add("Add", name + "/output", {first_order, second_order});
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    if (pass.batch_size == 0) return absl::OkStatus();
    return FmInteraction(ctx, Args(pass.batch_size, pass.inputs[0], pass.output));
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    if (pass.batch_size == 0) return absl::OkStatus();
    const TensorView& dx = pass.input_gradients[0];
    const TensorView& dy = pass.output_gradient;
    return FmInteractionGrad(ctx, {.forward = Args(pass.batch_size, pass.inputs[0], dy),
                                   .output_gradient = dy.data,
                                   .output_gradient_stride = dy.row_stride,
                                   .fields_gradient = dx.data,
                                   .fields_gradient_stride = dx.row_stride});
  }

 private:
  FmInteractionArgs Args(int64_t batch_size, const TensorView& fields,
                         const TensorView& output) const {
    const int32_t columns = fields.shape.dim;
    return {.batch_size = batch_size,
            .num_fields = fields.shape.fields,
            .dim = has_first_order_ ? columns - 1 : columns,
            .field_stride = columns,
            .fields = fields.data,
            .fields_stride = fields.row_stride,
            .first_order_column = has_first_order_ ? columns - 1 : kNoFirstOrder,
            .output = output.data,
            .output_stride = output.row_stride};
  }

  const int64_t fields_width_;
  const bool has_first_order_;
};

// DLRM's interaction with the first field as its vector, without that vector in the output.
class InnerProductsLayer : public Layer {
 public:
  explicit InnerProductsLayer(const TensorShape& fields) : fields_(fields) {}
  TensorShape output() const override { return {1, Half(fields_.fields, fields_.fields - 1)}; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .inputs_until = LayerPhase::kBackwardInputs};
  }
  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    layers->interaction = "dot";
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    return AddOnnxPairs(*onnx.graph, onnx.name, onnx.inputs[0].name, fields_.fields, fields_.dim);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    return DotForward(ctx, pass, /*copies_dense=*/false);
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    return DotBackward(ctx, pass, /*copies_dense=*/false);
  }

 private:
  const TensorShape fields_;
};

class OuterProductLayer : public Layer {
 public:
  explicit OuterProductLayer(const TensorShape& fields) : fields_(fields) {}
  TensorShape output() const override { return {1, Half(fields_.dim, fields_.dim + 1)}; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .strided_fields = true, .inputs_until = LayerPhase::kBackwardInputs};
  }
  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    layers->Add({.name = "outer_product",
                 .macs = fields_.width() + output().width(),
                 .activations = output().width()});
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    OnnxGraph& graph = *onnx.graph;
    const std::string& name = onnx.name;
    const std::string v =
        graph.Reshape(name + "/fields", onnx.inputs[0].name, {0, fields_.fields, fields_.dim});
    const std::string sum = graph.ReduceSum(name + "/sum", v, 1);
    const std::string rows = graph.Unsqueeze(name + "/rows", sum, 2);
    const std::string columns = graph.Unsqueeze(name + "/columns", sum, 1);
    const std::string all = graph.Add("Mul", name + "/products", {rows, columns});
    return AddOnnxTriangle(graph, name, all, fields_.dim, /*with_diagonal=*/true);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    return OuterProduct(ctx, Args(pass.batch_size, pass.inputs[0], pass.output));
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& dx = pass.input_gradients[0];
    const TensorView& dy = pass.output_gradient;
    if (dx.data == nullptr) return absl::OkStatus();
    return OuterProductGrad(ctx, {.forward = Args(pass.batch_size, pass.inputs[0], dy),
                                  .output_gradient = dy.data,
                                  .fields_gradient = dx.data,
                                  .fields_gradient_stride = dx.row_stride,
                                  .field_gradient_stride = dx.field_stride});
  }

 private:
  OuterProductArgs Args(int64_t batch_size, const TensorView& fields,
                        const TensorView& output) const {
    return {.batch_size = batch_size,
            .num_fields = fields.shape.fields,
            .dim = fields.shape.dim,
            .fields = fields.data,
            .fields_stride = fields.row_stride,
            .field_stride = fields.field_stride,
            .output = output.data,
            .output_stride = output.row_stride};
  }

  const TensorShape fields_;
};

GraphValue FailSize(ModelGraph& graph, std::string_view name, const std::string& what) {
  return graph.Fail(
      absl::InvalidArgumentError(absl::StrCat(graph.options().name, ", ", Absl(name), ": ", what)));
}

}  // namespace

GraphValue AddDotInteraction(ModelGraph& graph, std::string_view name,
                             const std::vector<GraphValue>& inputs) {
  if (!graph.ok()) return {};
  const TensorShape fields = graph.shape(inputs.back());
  const bool has_vector = inputs.size() == 2;
  if (has_vector && graph.shape(inputs[0]).width() != fields.dim) {
    return FailSize(graph, name,
                    absl::StrCat("a vector of ", graph.shape(inputs[0]).width(),
                                 " columns has no dot product with embeddings of ", fields.dim,
                                 "; make --embedding_dim the size of the last layer before it"));
  }
  const int64_t columns =
      DotInteractionOutputSize(has_vector ? fields.fields : fields.fields - 1, fields.dim);
  if (columns > std::numeric_limits<int32_t>::max()) {
    return FailSize(graph, name, absl::StrCat(columns, " columns are more than 2^31 - 1"));
  }
  const TensorShape output = {1, static_cast<int32_t>(columns)};
  const int32_t vectors = fields.fields + (has_vector ? 1 : 0);
  if (TakesTensorCores(graph, vectors, fields.dim)) {
    return graph.AddLayer(name,
                          std::make_unique<TensorDotLayer>(
                              output, PaddedDotColumns(vectors - 1, fields.dim), has_vector),
                          inputs);
  }
  return graph.AddLayer(name, std::make_unique<DotInteractionLayer>(output), inputs);
}

GraphValue AddFm(ModelGraph& graph, std::string_view name, GraphValue fields,
                 bool has_first_order) {
  if (!graph.ok()) return {};
  if (graph.shape(fields).dim < (has_first_order ? 2 : 1)) {
    return FailSize(graph, name, "there is no column for a vector");
  }
  return graph.AddLayer(
      name, std::make_unique<FmLayer>(graph.shape(fields).width(), has_first_order), {fields});
}

GraphValue AddInnerProducts(ModelGraph& graph, std::string_view name, GraphValue fields) {
  if (!graph.ok()) return {};
  const TensorShape shape = graph.shape(fields);
  constexpr int32_t kMaxFields = 65'536;  // whose pairs can still be counted
  if (shape.fields < 2 || shape.fields > kMaxFields) {
    return FailSize(graph, name,
                    absl::StrCat("products of pairs need 2 to ", kMaxFields,
                                 " features, there are ", shape.fields));
  }
  return graph.AddLayer(name, std::make_unique<InnerProductsLayer>(shape), {fields});
}

GraphValue AddOuterProduct(ModelGraph& graph, std::string_view name, GraphValue fields) {
  if (!graph.ok()) return {};
  const TensorShape shape = graph.shape(fields);
  const int32_t dim_max = OuterProductDimMax(graph.ctx().device);
  if (shape.dim > dim_max) {
    return FailSize(graph, name, absl::StrCat("--embedding_dim is at most ", dim_max));
  }
  return graph.AddLayer(name, std::make_unique<OuterProductLayer>(shape), {fields});
}

}  // namespace hotrow
