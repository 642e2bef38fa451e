#include "ops/layers/target_attention.h"

#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  int64_t batch_size;
  int32_t dim;
  int64_t length_max;  // of a sample; some have none
  int64_t gap = 0;     // unused floats after each vector of a sample
  int64_t first = 0;   // offsets[0]
  bool target = true;  // its gradient is wanted

  int64_t stride() const { return dim + gap; }
};

template <template <typename> typename Array>
struct Arrays {
  Array<int64_t> offsets;
  Array<float> rows, target, weights, dy, dpairs;                          // read
  Array<float> pairs, weighted, sum, dweights, dsum_rows, drows, dtarget;  // written
};
template <typename T>
using HostArray = std::vector<T>;

Arrays<HostArray> NewArrays(const Shape& s) {
  RandomStream random(9, RandomPurpose::kTest);
  Arrays<HostArray> a;
  a.offsets.push_back(s.first);
  for (int64_t b = 0; b < s.batch_size; ++b) {
    const int64_t length = b % 4 == 1 ? 0 : 1 + (b * 7) % std::max<int64_t>(s.length_max, 1);
    a.offsets.push_back(a.offsets.back() + (s.length_max == 0 ? 0 : length));
  }
  const int64_t n = a.offsets.back() - s.first;
  a.rows = test::RandomFloats(random, n * s.dim);
  a.target = test::RandomFloats(random, s.batch_size * s.stride());
  a.weights = test::RandomFloats(random, n);
  a.dy = test::RandomFloats(random, s.batch_size * s.stride());
  a.dpairs = test::RandomFloats(random, n * 4 * s.dim);
  a.pairs.assign(a.dpairs.size(), kUnused);
  a.weighted.assign(a.dy.size(), kUnused);
  a.sum.assign(a.dy.size(), kUnused);
  a.dweights.assign(a.weights.size(), kUnused);
  a.dsum_rows = test::RandomFloats(random, n * s.dim);
  a.drows = test::RandomFloats(random, n * s.dim);
  a.dtarget.assign(a.dy.size(), kUnused);
  return a;
}

template <template <typename> typename Array>
void Run(const ExecContext& ctx, const Shape& s, Arrays<Array>& a) {
  const JaggedRows rows = {
      .batch_size = s.batch_size, .dim = s.dim, .rows = a.rows.data(), .offsets = a.offsets.data()};
  HOTROW_ASSERT_OK(TargetPairs(ctx, {.rows = rows,
                                     .target = a.target.data(),
                                     .target_stride = s.stride(),
                                     .pairs = a.pairs.data()}));
  HOTROW_ASSERT_OK(WeightedRowSum(ctx, {.rows = rows,
                                        .weights = a.weights.data(),
                                        .output = a.weighted.data(),
                                        .output_stride = s.stride()}));
  HOTROW_ASSERT_OK(
      WeightedRowSum(ctx, {.rows = rows, .output = a.sum.data(), .output_stride = s.stride()}));
  HOTROW_ASSERT_OK(RowWeightGrad(ctx, {.rows = rows,
                                       .output_gradient = a.dy.data(),
                                       .output_gradient_stride = s.stride(),
                                       .weight_gradient = a.dweights.data()}));
  HOTROW_ASSERT_OK(RowSumGrad(ctx, {.rows = rows,
                                    .output_gradient = a.dy.data(),
                                    .output_gradient_stride = s.stride(),
                                    .row_gradient = a.dsum_rows.data()}));
  HOTROW_ASSERT_OK(
      TargetAttentionGrad(ctx, {.rows = rows,
                                .weights = a.weights.data(),
                                .target = a.target.data(),
                                .target_stride = s.stride(),
                                .pair_gradient = a.dpairs.data(),
                                .output_gradient = a.dy.data(),
                                .output_gradient_stride = s.stride(),
                                .row_gradient = a.drows.data(),
                                .target_gradient = s.target ? a.dtarget.data() : nullptr,
                                .target_gradient_stride = s.target ? s.stride() : 0}));
}

Arrays<HostArray> RunOnCpu(const Shape& s, Arrays<HostArray> a) {
  Run({}, s, a);
  return a;
}

// As a graph, so that what allocates or waits fails.
Arrays<HostArray> RunOnGpu(const Shape& s, const Arrays<HostArray>& in) {
  using Floats = test::DeviceArray<float>;
  test::GpuStream stream;
  Arrays<test::DeviceArray> a = {test::DeviceArray<int64_t>(in.offsets),
                                 Floats(in.rows),
                                 Floats(in.target),
                                 Floats(in.weights),
                                 Floats(in.dy),
                                 Floats(in.dpairs),
                                 Floats(in.pairs),
                                 Floats(in.weighted),
                                 Floats(in.sum),
                                 Floats(in.dweights),
                                 Floats(in.dsum_rows),
                                 Floats(in.drows),
                                 Floats(in.dtarget)};
  stream.RunAsGraph(1, [&] { Run(stream.ctx(), s, a); });
  Arrays<HostArray> out = in;
  out.pairs = a.pairs.ToHost();
  out.weighted = a.weighted.ToHost();
  out.sum = a.sum.ToHost();
  out.dweights = a.dweights.ToHost();
  out.dsum_rows = a.dsum_rows.ToHost();
  out.drows = a.drows.ToHost();
  out.dtarget = a.dtarget.ToHost();
  return out;
}

TEST(TargetAttentionCudaTest, GivesTheBitsOfTheCpuButForDotProductsWhichRepeat) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s : {Shape{0, 3, 2}, Shape{1, 1, 1}, Shape{5, 8, 0}, Shape{9, 5, 3, 2, 7},
                         Shape{13, 16, 9}, Shape{7, 17, 6, 0, 0, false}, Shape{6, 33, 11, 3},
                         Shape{3, 100, 5}, Shape{test::ForGpu(3000, 40), 8, 40, 0, 3}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples of up to " << s.length_max
                                    << " rows of " << s.dim << ", gap " << s.gap);
    const Arrays<HostArray> in = NewArrays(s);
    const Arrays<HostArray> cpu = RunOnCpu(s, in);
    const Arrays<HostArray> gpu = RunOnGpu(s, in);
    ASSERT_EQ(test::Bits(gpu.pairs), test::Bits(cpu.pairs));
    ASSERT_EQ(test::Bits(gpu.weighted), test::Bits(cpu.weighted));
    ASSERT_EQ(test::Bits(gpu.sum), test::Bits(cpu.sum));
    ASSERT_EQ(test::Bits(gpu.dsum_rows), test::Bits(cpu.dsum_rows));
    ASSERT_EQ(test::Bits(gpu.drows), test::Bits(cpu.drows));
    ASSERT_EQ(test::Bits(gpu.dtarget), test::Bits(cpu.dtarget));
    for (int64_t b = 0; b < s.batch_size; ++b) {
      for (int64_t j = in.offsets[static_cast<size_t>(b)];
           j < in.offsets[static_cast<size_t>(b + 1)]; ++j) {
        const auto row = static_cast<size_t>(j - s.first);
        double magnitude = 0;
        for (int32_t i = 0; i < s.dim; ++i) {
          magnitude += std::abs(in.dy[static_cast<size_t>(b * s.stride() + i)] *
                                in.rows[row * static_cast<size_t>(s.dim) + static_cast<size_t>(i)]);
        }
        ASSERT_NEAR(gpu.dweights[row], cpu.dweights[row], 2 * test::Gamma(s.dim + 1) * magnitude);
      }
    }
    // The emulated GPU draws other orders of threads and blocks each time.
    ASSERT_EQ(test::Bits(RunOnGpu(s, in).dweights), test::Bits(gpu.dweights));
  }
}

TEST(TargetAttentionCudaTest, ANanStaysInItsRowAndInWhatIsSummedFromIt) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t dim : {5, 20}) {
    const Shape s = {9, dim, 5};
    const auto nans = [](const std::vector<float>& v) {
      std::vector<bool> out;
      for (const float x : v) out.push_back(std::isnan(x));
      return out;
    };
    for (int input = 0; input < 4; ++input) {
      Arrays<HostArray> in = NewArrays(s);
      std::vector<float>* const of[] = {&in.rows, &in.target, &in.weights, &in.dpairs};
      // In row 0, or in the target of sample 2, which has rows.
      (*of[input])[input == 1 ? static_cast<size_t>(2 * dim) : 3] =
          std::numeric_limits<float>::quiet_NaN();
      const Arrays<HostArray> cpu = RunOnCpu(s, in);
      const Arrays<HostArray> gpu = RunOnGpu(s, in);
      EXPECT_EQ(nans(gpu.pairs), nans(cpu.pairs)) << input;
      EXPECT_EQ(nans(gpu.weighted), nans(cpu.weighted)) << input;
      EXPECT_EQ(nans(gpu.sum), nans(cpu.sum)) << input;
      EXPECT_EQ(nans(gpu.dweights), nans(cpu.dweights)) << input;
      EXPECT_EQ(nans(gpu.drows), nans(cpu.drows)) << input;
      EXPECT_EQ(nans(gpu.dtarget), nans(cpu.dtarget)) << input;
    }
  }
}

}  // namespace
}  // namespace hotrow
