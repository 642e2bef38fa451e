#ifndef HOTROW_OPS_LAYERS_DENSE_NETWORK_IMPL_H_
#define HOTROW_OPS_LAYERS_DENSE_NETWORK_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/layers/dense_network.h"
#include "ops/layers/inner_layer.h"

namespace hotrow::internal {

using DenseForward = DenseNetwork::ForwardArgs;
using DenseBackward = DenseNetwork::BackwardArgs;

// Where the parameters of a layer lie: weights first, then biases.
struct LayerParameters {
  int64_t weight_offset = 0;
  int64_t bias_offset = 0;
  int64_t end = 0;  // padding included
};

// args.gradients_ready for a layer, where it is given.
inline absl::Status LayerReady(const LayerParameters& layer, const DenseBackward& args) {
  if (args.gradients_ready == nullptr) return absl::OkStatus();
  return args.gradients_ready(layer.weight_offset, layer.end);
}

// Whether an engine must make its copies of the parameters for this pass, those of the last pass
// not being of the same. `number` is the engine's.
inline bool NewParameters(const DenseForward& args, int64_t* number) {
  const int64_t last = std::exchange(*number, args.training ? 0 : args.parameters_number);
  return *number == 0 || *number != last;
}

// What a network checks the arguments of its calls by.
struct DenseShape {
  std::string_view name;  // in errors
  int64_t input_columns = 0;
  int64_t output_columns = 0;
  int64_t max_batch_size = 0;
  std::vector<LayerParameters> layers;
  bool backward_uses_up = false;  // what Forward kept: one BackwardInput for each Forward
  bool scores_only = false;       // its engine is a ForwardEngine
};

// The memory and the passes of a network on one device. Arguments have been checked, and the order
// of calls too: `forward` is what the last Forward, in training, was given. A batch may be empty,
// but for BackwardParameters.
class DenseEngine {
 public:
  virtual ~DenseEngine() = default;
  virtual absl::Status Forward(const ExecContext& ctx, const DenseForward& args) = 0;
  virtual absl::Status BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                     const DenseBackward& args) = 0;
  virtual absl::Status BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                          const DenseBackward& args) = 0;
  virtual int64_t bytes() const = 0;
  // InnerLayer::output, without the number of rows.
  virtual NumbersView Output(size_t /*layer*/) const { return {}; }
};

// An engine without a way back. The network refuses training before it comes here.
class ForwardEngine : public DenseEngine {
 public:
  absl::Status BackwardInput(const ExecContext&, const DenseForward&, const DenseBackward&) final {
    return absl::InternalError("this engine has no way back");
  }
  absl::Status BackwardParameters(const ExecContext&, const DenseForward&,
                                  const DenseBackward&) final {
    return absl::InternalError("this engine has no way back");
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_DENSE_NETWORK_IMPL_H_
