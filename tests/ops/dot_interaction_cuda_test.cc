#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <vector>

#include "ops/interactions/dot_interaction.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  int64_t batch_size;
  int32_t num_sparse;
  int32_t dim;
  int64_t gap = 0;  // unused floats after each row
  bool copies_dense = true;

  int64_t output_stride() const {
    return DotInteractionOutputSize(num_sparse, dim, copies_dense) + gap;
  }
};

// Forward and backward with these arrays, in the memory of ctx.device.
struct Arrays {
  const float* dense;
  const float* sparse;
  const float* output_gradient;
  float* output;
  float* dense_gradient;
  float* sparse_gradient;
};
void RunPasses(const ExecContext& ctx, const Shape& s, const Arrays& a) {
  const int64_t sparse_columns = int64_t{s.num_sparse} * s.dim;
  const DotInteractionArgs forward = {.batch_size = s.batch_size,
                                      .num_sparse = s.num_sparse,
                                      .dim = s.dim,
                                      .dense = a.dense,
                                      .dense_stride = s.dim + s.gap,
                                      .sparse = a.sparse,
                                      .sparse_stride = sparse_columns + s.gap,
                                      .output = a.output,
                                      .output_stride = s.output_stride(),
                                      .copies_dense = s.copies_dense};
  HOTROW_ASSERT_OK(DotInteraction(ctx, forward));
  HOTROW_ASSERT_OK(DotInteractionGrad(ctx, {.forward = forward,
                                            .output_gradient = a.output_gradient,
                                            .dense_gradient = a.dense_gradient,
                                            .dense_gradient_stride = s.dim + s.gap,
                                            .sparse_gradient = a.sparse_gradient,
                                            .sparse_gradient_stride = sparse_columns + s.gap}));
}

TEST(DotInteractionCudaTest, BothPassesGiveTheBitsOfTheCpuAndLeaveGapsAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const Shape& s :
       {Shape{0, 3, 4}, Shape{1, 0, 1}, Shape{1, 1, 1}, Shape{37, 0, 5, 2}, Shape{37, 1, 7, 1},
        Shape{5, 2, 8}, Shape{37, 8, 16, 3}, Shape{9, 26, 33}, Shape{3, 70, 13, 1},
        Shape{37, 1, 7, 1, false}, Shape{9, 8, 16, 0, false},
        Shape{test::ForGpu(2048, 200), 26, 16}, Shape{test::ForGpu(2048, 200), 26, 128},
        Shape{3, 2, 1000},
        // Tiles of pairs: the fewest; several rounds and chunks.
        Shape{5, 0, 16}, Shape{5, 1, 16, 4}, Shape{3, 63, 144, 4}, Shape{9, 30, 80, 0, false}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples, " << s.num_sparse << " of "
                                    << s.dim << ", gap " << s.gap);
    RandomStream random(9, RandomPurpose::kTest);
    const int64_t b = s.batch_size;
    const auto columns = int64_t{s.num_sparse} * s.dim;
    const std::vector<float> dense = test::RandomFloats(random, b * (s.dim + s.gap));
    const std::vector<float> sparse = test::RandomFloats(random, b * (columns + s.gap));
    const std::vector<float> output_gradient = test::RandomFloats(random, b * s.output_stride());
    std::vector<float> output(output_gradient.size(), kUnused);
    std::vector<float> dense_gradient(dense.size(), kUnused);
    std::vector<float> sparse_gradient(sparse.size(), kUnused);
    test::DeviceArray<float> gpu_dense(dense), gpu_sparse(sparse),
        gpu_output_gradient(output_gradient), gpu_output(output),
        gpu_dense_gradient(dense_gradient), gpu_sparse_gradient(sparse_gradient);
    ASSERT_NO_FATAL_FAILURE(
        RunPasses({}, s,
                  {dense.data(), sparse.data(), output_gradient.data(), output.data(),
                   dense_gradient.data(), sparse_gradient.data()}));
    ASSERT_NO_FATAL_FAILURE(
        RunPasses(stream.ctx(), s,
                  {gpu_dense.data(), gpu_sparse.data(), gpu_output_gradient.data(),
                   gpu_output.data(), gpu_dense_gradient.data(), gpu_sparse_gradient.data()}));
    stream.Wait();
    ASSERT_EQ(test::Bits(gpu_output.ToHost()), test::Bits(output));
    ASSERT_EQ(test::Bits(gpu_dense_gradient.ToHost()), test::Bits(dense_gradient));
    ASSERT_EQ(test::Bits(gpu_sparse_gradient.ToHost()), test::Bits(sparse_gradient));
  }
}

}  // namespace
}  // namespace hotrow
