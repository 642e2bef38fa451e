#ifndef HOTROW_MODELS_ZOO_LAYERS_NETWORK_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_NETWORK_LAYER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "ops/layers/dense_network.h"
#include "ops/layers/inner_layer.h"

namespace hotrow {

// A DenseNetwork as a part of a graph: matrices in, matrices out.
template <typename Network>
class NetworkLayer : public Layer {
 public:
  // The network, which says where its parameters lie in its part.
  const Network& network() const { return *network_; }

  int64_t num_parameters() const override { return network_->num_parameters(); }
  std::vector<InnerLayer> inner_layers() const override { return network_->inner_layers(); }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override {
    network_->InitParameters(seed, parameters);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    return network_->Forward(ctx, {.parameters = pass.parameters,
                                   .x = pass.inputs[0].data,
                                   .x_stride = pass.inputs[0].row_stride,
                                   .batch_size = pass.batch_size,
                                   .y = pass.output.data,
                                   .y_stride = pass.output.row_stride,
                                   .training = pass.training,
                                   .step = pass.step,
                                   .device_step = pass.device_step,
                                   .first_row = pass.first_sample,
                                   .parameters_number = pass.parameters_number});
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    return network_->BackwardInput(ctx, ArgsOf(pass));
  }
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override {
    return network_->BackwardParameters(ctx, ArgsOf(pass));
  }

 protected:
  explicit NetworkLayer(std::unique_ptr<Network> network) : network_(std::move(network)) {}

 private:
  static DenseNetwork::BackwardArgs ArgsOf(const LayerBackward& pass) {
    return {.parameters = pass.parameters,
            .dy = pass.output_gradient.data,
            .dy_stride = pass.output_gradient.row_stride,
            .dx = pass.input_gradients[0].data,
            .dx_stride = pass.input_gradients[0].row_stride,
            .dx_columns = pass.input_gradients[0].room,
            .parameter_gradients = pass.gradients,
            .gradients_ready = pass.gradients_ready};
  }

  const std::unique_ptr<Network> network_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_NETWORK_LAYER_H_
