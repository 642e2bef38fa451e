#ifndef HOTROW_MODELS_ZOO_LAYERS_NETWORK_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_NETWORK_LAYER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"

namespace hotrow {

// A network of ops/ (Mlp, CrossNetwork) as a part of a graph: matrices in, matrices out. Such a
// network has parameters in one flat array, a Forward, and a Backward in two halves.
template <typename Network>
class NetworkLayer : public Layer {
 public:
  // The network, which says where its parameters lie in its part.
  const Network& network() const { return *network_; }

  int64_t num_parameters() const override { return network_->num_parameters(); }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override {
    network_->InitParameters(seed, parameters);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    typename Network::ForwardArgs args = {.parameters = pass.parameters,
                                          .x = pass.inputs[0].data,
                                          .x_stride = pass.inputs[0].row_stride,
                                          .batch_size = pass.batch_size,
                                          .y = pass.output.data,
                                          .y_stride = pass.output.row_stride,
                                          .training = pass.training};
    if constexpr (requires { args.first_row; }) {  // it draws what it drops
      args.step = pass.step;
      args.device_step = pass.device_step;
      args.first_row = pass.first_sample;
    }
    return network_->Forward(ctx, args);
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
  static typename Network::BackwardArgs ArgsOf(const LayerBackward& pass) {
    typename Network::BackwardArgs args = {.parameters = pass.parameters,
                                           .dy = pass.output_gradient.data,
                                           .dy_stride = pass.output_gradient.row_stride,
                                           .dx = pass.input_gradients[0].data,
                                           .dx_stride = pass.input_gradients[0].row_stride,
                                           .parameter_gradients = pass.gradients,
                                           .gradients_ready = pass.gradients_ready};
    if constexpr (requires { args.dx_columns; }) args.dx_columns = pass.input_gradients[0].room;
    return args;
  }

  const std::unique_ptr<Network> network_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_NETWORK_LAYER_H_
