#ifndef HOTROW_TESTS_OPS_MLP_CUDA_PROBLEM_CUH_
#define HOTROW_TESTS_OPS_MLP_CUDA_PROBLEM_CUH_

#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <memory>
#include <vector>

#include "ops/layers/mlp.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/mlp_reference.h"
#include "tests/support/device_array.cuh"
#include "tests/support/status_matchers.h"

namespace hotrow::test {

inline std::unique_ptr<Mlp> NewMlp(const MlpOptions& options, const ExecContext& ctx) {
  auto mlp = Mlp::Create(options, ctx);
  HOTROW_EXPECT_OK(mlp);
  return mlp.ok() ? *std::move(mlp) : nullptr;
}

// A problem in device memory, and its passes.
class GpuMlpProblem {
 public:
  explicit GpuMlpProblem(const MlpProblem& p)
      : p_(p),
        parameters_(p.parameters),
        x_(p.x),
        dy_given_(p.dy),
        dy_(p.dy),
        y_(std::vector<float>(p.dy.size(), kUnused)),
        dx_(std::vector<float>(p.x.size(), kUnused)),
        dw_(std::vector<float>(p.parameters.size(), kUnused)) {}

  void Enqueue(const ExecContext& ctx, Mlp& mlp) {
    // Backward uses dy as scratch.
    EXPECT_EQ(cudaMemcpyAsync(dy_.data(), dy_given_.data(), dy_.size() * sizeof(float),
                              cudaMemcpyDeviceToDevice, ctx.stream),
              cudaSuccess);
    HOTROW_EXPECT_OK(mlp.Forward(ctx, {.parameters = parameters_.data(),
                                       .x = x_.data(),
                                       .x_stride = p_.x_stride(),
                                       .batch_size = p_.batch_size,
                                       .y = y_.data(),
                                       .y_stride = p_.y_stride(),
                                       .training = p_.training,
                                       .step = p_.step}));
    HOTROW_EXPECT_OK(mlp.Backward(ctx, {.parameters = parameters_.data(),
                                        .dy = dy_.data(),
                                        .dy_stride = p_.y_stride(),
                                        .dx = dx_.data(),
                                        .dx_stride = p_.x_stride(),
                                        .parameter_gradients = dw_.data()}));
  }
  MlpResult Get() const { return {y_.ToHost(), dx_.ToHost(), dw_.ToHost()}; }

 private:
  const MlpProblem& p_;
  DeviceArray<float> parameters_, x_, dy_given_, dy_, y_, dx_, dw_;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_MLP_CUDA_PROBLEM_CUH_
