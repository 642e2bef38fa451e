#ifndef HOTROW_OPS_LAYERS_DENSE_NETWORK_H_
#define HOTROW_OPS_LAYERS_DENSE_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {
struct InnerLayer;
namespace internal {
class DenseEngine;
struct DenseShape;
}  // namespace internal

// A network of dense layers: Mlp or CrossNetwork. Keeps what the backward pass needs of the last
// forward pass. It works on the device of the context that made it: the calls take contexts of the
// same one.
//
// Data:    inputs and outputs are row-major [B, columns]. Parameters and gradients belong to the
//          caller, as flat arrays of num_parameters floats: layer by layer, each block of weights
//          or biases padded to 64 bytes.
// Threads: one call at a time. Work is split over ctx.pool (null = the calling thread alone) in
//          pieces that depend on the shapes only, within which oneDNN multiplies on one thread;
//          sums over the batch run in a fixed order: equal bits with any number of threads.
// CUDA:    x, y, dy, dx, parameters and their gradients are device memory, and the calls enqueue
//          work on ctx.stream, one stream at a time; gradients of parameters are made on a second
//          one, from BackwardInput to BackwardParameters, behind which ctx.stream has them. The
//          first pass with a batch size asks cublasLt for algorithms and tries them, for which it
//          waits, and loads kernels; later ones allocate nothing, wait for nothing and can be
//          captured in a CUDA graph. Results repeat bit for bit on one kind of GPU and differ from
//          the CPU's by the rounding of sums.
// Errors:  InvalidArgument (names the field), FailedPrecondition (Backward without Forward, no
//          usable GPU, no bf16), ResourceExhausted (no memory), Unimplemented (a build without
//          CUDA), Internal (what cublasLt or oneDNN says).
class DenseNetwork {
 public:
  virtual ~DenseNetwork();

  int64_t num_parameters() const;  // padding between blocks included

  // Draws the parameters before the first step; padding is zero. parameters has num_parameters
  // elements, in host memory on every device.
  virtual void InitParameters(uint64_t seed, std::span<float> parameters) const = 0;

  // x [B, input columns] with row stride x_stride, y [B, output columns] with y_stride (floats);
  // they must not overlap. x is read again by Backward and must stay until then; y need not.
  // training switches dropout on and makes Backward possible; step goes into dropout's counter, and
  // so does first_row >= 0, the number of row 0 in a larger batch of which x is a slice.
  struct ForwardArgs {
    const float* parameters = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    int64_t batch_size = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
    bool training = false;
    uint32_t step = 0;
    const uint32_t* device_step = nullptr;  // DropoutArgs
    int64_t first_row = 0;
    // Not 0, and not in training: `parameters` are those that came with this number before.
    int64_t parameters_number = 0;
  };
  absl::Status Forward(const ExecContext& ctx, const ForwardArgs& args);

  // Gradients of the last Forward, which must have had training = true. dy [B, output columns] is
  // overwritten as scratch. dx may be null when the input needs no gradient. parameter_gradients is
  // overwritten (not added to), its padding with zeros. parameters must be those of that Forward.
  struct BackwardArgs {
    const float* parameters = nullptr;
    float* dy = nullptr;
    int64_t dy_stride = 0;
    float* dx = nullptr;
    int64_t dx_stride = 0;
    // Columns of dx that may be written, where these are more than the input's: an Mlp on a GPU
    // then needs no copy where the input's are no multiple of 8.
    int64_t dx_columns = 0;
    float* parameter_gradients = nullptr;
    // Null, or told when parameter_gradients[begin, end) are final: those of one layer with their
    // padding, the last layer first, on the calling thread while others go on with the layers
    // below. Also for B = 0. The first error it returns is Backward's error, and no call follows.
    // On CUDA they are final for what is enqueued on ctx.stream from then on.
    std::function<absl::Status(int64_t begin, int64_t end)> gradients_ready;
  };
  absl::Status Backward(const ExecContext& ctx, const BackwardArgs& args);

  // Backward in two halves: first dx, which the caller may pass on, then parameter_gradients. Both
  // take the same args. Until the second half dy must stay as the first left it, and on a GPU
  // parameter_gradients are being written. The second without the first is FailedPrecondition.
  absl::Status BackwardInput(const ExecContext& ctx, const BackwardArgs& args);
  absl::Status BackwardParameters(const ExecContext& ctx, const BackwardArgs& args);

  // All memory this object keeps: activations, their gradients and what products work with; not
  // the 32 MiB of workspaces that all networks on one stream of a GPU share, and its padded copies.
  int64_t activation_bytes() const;
  std::vector<InnerLayer> inner_layers() const;  // in order; ops/layers/inner_layer.h

 protected:
  DenseNetwork(internal::DenseShape shape, Device device,
               std::unique_ptr<internal::DenseEngine> engine);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_DENSE_NETWORK_H_
