#ifndef HOTROW_MODELS_ZOO_LAYERS_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_LAYER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

class OnnxGraph;
struct InnerLayer;

// The columns of a sample: `fields` vectors of `dim` numbers, such as the embeddings of features. A
// plain vector is one field.
struct TensorShape {
  int32_t fields = 1;
  int32_t dim = 0;
  int64_t width() const { return int64_t{fields} * dim; }
};

// Where the samples of such a shape lie. Strides are in floats.
struct TensorView {
  float* data = nullptr;  // null: not wanted, or `rows` is there
  int64_t row_stride = 0;
  TensorShape shape;
  int64_t field_stride = 0;  // >= shape.dim
  int64_t room = 0;          // of a gradient: Location::room
  // Where each field of each sample of an input lies, [B, fields], for layers that say reads_rows.
  const float* const* rows = nullptr;

  // Whether a sample's columns follow each other, so that the view is a matrix.
  bool packed() const { return shape.fields == 1 || field_stride == shape.dim; }
};

// Parts of a step, in their order.
enum class LayerPhase { kForward, kBackwardInputs, kBackwardParameters };

// What the plan of a model must know of a layer.
struct LayerTraits {
  bool on_gpu = false;          // works on a GPU as well: ctx.device says where
  bool strided_fields = false;  // takes inputs that are not packed
  bool reads_rows = false;      // its last input may be TensorView::rows
  bool sequences = false;       // reads sequences, which have gradients
  bool shared_rows = false;     // and knows Sequence::shared
  // The last phase that reads the inputs, and the last one that reads the gradient of the output.
  LayerPhase inputs_until = LayerPhase::kForward;
  LayerPhase gradient_until = LayerPhase::kBackwardInputs;
  bool overwrites_gradient = false;  // takes the gradient of the output as scratch
  bool reports_gradients = false;    // calls gradients_ready itself, for less than all at once
  // Where it is more than the output has: so many columns of each row are the layer's, those behind
  // the output too, which it may overwrite; also of the gradient's rows, which it does not read.
  int64_t padded_columns = 0;
};

// One batch on its way through a layer. Inputs are only read.
struct LayerForward {
  int64_t batch_size = 0;
  bool training = false;
  uint32_t step = 0;  // as CtrModel::Input
  const uint32_t* device_step = nullptr;
  int64_t first_sample = 0;  // as CtrModel::Input
  const float* parameters = nullptr;
  int64_t parameters_number = 0;  // as CtrModel::Input
  std::span<const TensorView> inputs;
  std::span<const CtrModel::Sequence> sequences;  // all of the model's
  TensorView output;                              // packed; to be overwritten
  SliceSums sum_over_slices;                      // CtrModel::Input's
};

// The way back of the last Forward, which was for training. The same for both phases.
struct LayerBackward {
  int64_t batch_size = 0;
  const float* parameters = nullptr;
  float* gradients = nullptr;  // of the parameters
  std::span<const TensorView> inputs;
  std::span<const CtrModel::Sequence> sequences;  // a layer adds its share to their gradients
  TensorView output_gradient;  // packed; only read, unless LayerTraits say otherwise
  // Shaped as the inputs. To be overwritten; where data is null nobody wants it.
  std::span<const TensorView> input_gradients;
  // Null, or to be called as CtrModel::BackwardHooks::gradients_ready, counted from the layer's
  // first parameter. Only for layers that say reports_gradients.
  std::function<absl::Status(int64_t begin, int64_t end)> gradients_ready;
  SliceSums sum_over_slices;  // CtrModel::Input's
};

// The rows of a feature that is not pooled, as values of an ONNX graph.
struct OnnxSequence {
  std::string rows;  // [B, L, D], of samples with fewer than L rows anything behind them
  std::string mask;  // [B, L, 1], bool: which rows there are
};
// A layer on its way into an ONNX graph (models/onnx/onnx_graph.h, docs/onnx.md).
struct LayerOnnx {
  struct Value {
    std::string name;  // of a matrix [B, columns], the fields of a sample end to end
    TensorShape shape;
  };
  OnnxGraph* graph = nullptr;
  std::string name;                   // of the part; names of its values are "name/..."
  const float* parameters = nullptr;  // in host memory
  std::span<const Value> inputs;
  std::span<const OnnxSequence> sequences;  // all of the model's
};

// A part of a model with one output: what a ModelGraph is made of. It is made for the shapes of its
// inputs and the largest batch, keeps what its backward pass needs beyond its inputs, and owns
// neither parameters nor activations.
//
// Bits:    as CtrModel: results depend neither on ctx.pool nor on how a batch is sliced, but for
//          the rounding of sums over the batch.
// Threads: one call at a time, in the order Forward, BackwardInputs, BackwardParameters. A batch
//          may be empty: then gradients are zeros.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual TensorShape output() const = 0;
  virtual LayerTraits traits() const = 0;

  virtual int64_t num_parameters() const { return 0; }
  // How many of them, the last ones, are CtrModel::untrained_parameters; and their EndStep.
  virtual int64_t num_untrained() const { return 0; }
  virtual absl::Status EndStep(const ExecContext& ctx, int64_t samples, float* parameters) {
    return absl::OkStatus();
  }
  // The layers that it is made of, in order (ops/layers/inner_layer.h); none: it is one.
  virtual std::vector<InnerLayer> inner_layers() const;
  // Fills parameters in host memory, on every device. What it leaves is zero.
  virtual void InitParameters(uint64_t seed, std::span<float> parameters) const {}

  // Adds itself to what the planner is told. reads_embeddings: directly or by way of others.
  virtual void Describe(bool reads_embeddings, DenseLayers* layers) const {}

  // Adds the operations of Forward, not for training, in fp32, and gives the value [B, columns of
  // output()]. Names depend on the layer's shapes alone. Unimplemented: the layer has no such form.
  virtual absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const {
    return absl::UnimplementedError("this part does not say how it is written as ONNX");
  }

  virtual absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) = 0;
  virtual absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) = 0;
  virtual absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) {
    return absl::OkStatus();
  }
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_LAYER_H_
