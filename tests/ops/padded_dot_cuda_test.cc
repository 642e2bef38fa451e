#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/interactions/padded_dot.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/padded_dot_problem.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"
#if HOTROW_EMULATED_GPU
#include "tests/emulated_gpu/emulated_gpu.h"
#endif

namespace hotrow {
namespace {

using test::DotProblem;
using test::DotShape;

constexpr DotPrecision kPrecisions[] = {DotPrecision::kFp32, DotPrecision::kTf32,
                                        DotPrecision::kBf16, DotPrecision::kFp16};
// Those of tensor cores.
constexpr DotPrecision kTilePrecisions[] = {DotPrecision::kTf32, DotPrecision::kBf16,
                                            DotPrecision::kFp16};

// Both passes on the device; results come back into p.
void RunOnGpu(const test::GpuStream& stream, DotProblem& p) {
  test::DeviceArray<std::byte> dense(p.dense.bytes()), sparse(p.sparse.bytes()),
      output(p.output.bytes()), output_gradient(p.output_gradient.bytes()),
      dense_gradient(p.dense_gradient.bytes()), sparse_gradient(p.sparse_gradient.bytes());
  const PaddedDotArgs forward = p.Forward(dense.data(), sparse.data(), output.data());
  HOTROW_ASSERT_OK(PaddedDot(stream.ctx(), forward));
  HOTROW_ASSERT_OK(PaddedDotGrad(
      stream.ctx(),
      p.Backward(forward, output_gradient.data(), dense_gradient.data(), sparse_gradient.data())));
  stream.Wait();
  p.output.bytes() = output.ToHost();
  p.dense_gradient.bytes() = dense_gradient.ToHost();
  p.sparse_gradient.bytes() = sparse_gradient.ToHost();
}

void ExpectEqualResults(const DotProblem& a, const DotProblem& b) {
  EXPECT_EQ(a.output.bytes(), b.output.bytes());
  EXPECT_EQ(a.dense_gradient.bytes(), b.dense_gradient.bytes());
  EXPECT_EQ(a.sparse_gradient.bytes(), b.sparse_gradient.bytes());
}

#if HOTROW_EMULATED_GPU
// The emulated GPU as an Ampere, whose copies go another way.
class AsAmpere {
 public:
  AsAmpere() { emulated::SetComputeCapability(80); }
  ~AsAmpere() { emulated::SetComputeCapability(90); }
};
#endif

// Numbers of tiles from 1 to 4, whole and begun; one chunk, several, and a last one that is
// shorter; fewer samples than warps, and several for each.
std::vector<DotShape> TileShapes(DotPrecision precision) {
  std::vector<DotShape> shapes = {
      {precision, 1, 0, 16},       {precision, 1, 1, 16},
      {precision, 18, 8, 16},      {precision, 3, 15, 64, 16},
      {precision, 2, 16, 48, 32},  {precision, test::ForGpu(2048, 3), 26, 128},
      {precision, 2, 31, 144, 16}, {precision, 1, 47, 80},
      {precision, 13, 26, 16}};
  // The most shared memory of a block.
  if (!test::kEmulatedGpu || precision == DotPrecision::kBf16) {
    shapes.push_back({precision, 1, 63, 512});
  }
  return shapes;
}

TEST(PaddedDotCudaTest, OnTensorCoresBothPassesAreWithinTheirBoundAndLeaveGapsAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const DotPrecision precision : kTilePrecisions) {
    for (const DotShape& shape : TileShapes(precision)) {
      SCOPED_TRACE(testing::Message() << shape);
      DotProblem p(shape, 5);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
      ASSERT_NO_FATAL_FAILURE(p.CheckForward());
      ASSERT_NO_FATAL_FAILURE(p.CheckBackward());
    }
  }
}

#if HOTROW_EMULATED_GPU
TEST(PaddedDotCudaTest, AnAmpereGivesTheBitsOfAHopper) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const DotPrecision precision :
       {DotPrecision::kFp32, DotPrecision::kTf32, DotPrecision::kFp16}) {
    for (const DotShape& shape : TileShapes(precision)) {
      SCOPED_TRACE(testing::Message() << shape);
      DotProblem hopper(shape, 6);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, hopper));
      const AsAmpere ampere_now;
      DotProblem ampere(shape, 6);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, ampere));
      ExpectEqualResults(ampere, hopper);
    }
  }
}
#endif

TEST(PaddedDotCudaTest, ElsewhereBothPassesGiveTheBitsOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const DotPrecision precision : kPrecisions) {
    for (DotShape shape :
         {DotShape{{}, 1, 0, 1}, DotShape{{}, 5, 1, 7, 1}, DotShape{{}, 3, 9, 24, 5},
          DotShape{{}, 7, 26, 33}, DotShape{{}, 1, 70, 16}, DotShape{{}, 1, 2, 528},
          // Tiles, but for rows that are not 16-byte aligned.
          DotShape{{}, 3, 5, 32, 1}}) {
      shape.precision = precision;
      SCOPED_TRACE(testing::Message() << shape);
      DotProblem p(shape, 7);
      DotProblem want(shape, 7);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
      HOTROW_ASSERT_OK(PaddedDot({}, want.Forward()));
      HOTROW_ASSERT_OK(PaddedDotGrad({}, want.Backward()));
      ExpectEqualResults(p, want);
    }
  }
  DotProblem p({DotPrecision::kFp32, 4, 26, 128}, 8);
  DotProblem want({DotPrecision::kFp32, 4, 26, 128}, 8);
  ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
  HOTROW_ASSERT_OK(PaddedDot({}, want.Forward()));
  HOTROW_ASSERT_OK(PaddedDotGrad({}, want.Backward()));
  ExpectEqualResults(p, want);
}

// As out of a cache: the vectors of two samples may be one, and they lie in no order.
TEST(PaddedDotCudaTest, VectorsAreReadWhereTheyLieWithTheSameBits) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const DotPrecision precision : kPrecisions) {
    for (const DotShape shape : {DotShape{precision, 9, 26, 32}, DotShape{precision, 3, 35, 160},
                                 DotShape{precision, 5, 3, 8}}) {
      SCOPED_TRACE(testing::Message() << shape);
      DotProblem p(shape, 13);
      test::DeviceArray<std::byte> dense(p.dense.bytes()), sparse(p.sparse.bytes()),
          output(p.output.bytes()), output_gradient(p.output_gradient.bytes()),
          dense_gradient(p.dense_gradient.bytes()), sparse_gradient(p.sparse_gradient.bytes());
      std::vector<const void*> rows = p.Rows(sparse.data());
      std::reverse(rows.begin(), rows.end());
      rows[1] = rows[rows.size() - 1];
      test::DeviceArray<const void*> device_rows(rows);
      PaddedDotArgs forward = p.Forward(dense.data(), nullptr, output.data());
      forward.sparse_rows = device_rows.data();
      HOTROW_ASSERT_OK(PaddedDot(stream.ctx(), forward));
      HOTROW_ASSERT_OK(
          PaddedDotGrad(stream.ctx(), p.Backward(forward, output_gradient.data(),
                                                 dense_gradient.data(), sparse_gradient.data())));
      stream.Wait();
      // The same vectors side by side.
      DotProblem want(shape, 13);
      const auto vector_bytes = static_cast<int64_t>(shape.dim * DotElementBytes(precision));
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto from = static_cast<const std::byte*>(rows[i]) - sparse.data();
        std::copy_n(p.sparse.bytes().begin() + from, vector_bytes,
                    want.sparse.bytes().begin() + static_cast<int64_t>(i) * vector_bytes);
      }
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, want));
      p.output.bytes() = output.ToHost();
      p.dense_gradient.bytes() = dense_gradient.ToHost();
      p.sparse_gradient.bytes() = sparse_gradient.ToHost();
      ExpectEqualResults(p, want);
    }
  }
}

TEST(PaddedDotCudaTest, BitsDependOnTheSampleAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const DotPrecision precision : kTilePrecisions) {
    const DotShape shape = {precision, 18, 18, 48};
    DotProblem once(shape, 9);
    ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, once));
    for (int repeat = 0; repeat < 3; ++repeat) {  // threads take other orders each time
      DotProblem again(shape, 9);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, again));
      ExpectEqualResults(again, once);
    }
    // The last sample alone.
    DotProblem alone({precision, 1, 18, 48}, 0);
    const auto last = [&](const test::DotBuffer& from, test::DotBuffer& to) {
      std::copy(from.bytes().end() - static_cast<int64_t>(to.bytes().size()), from.bytes().end(),
                to.bytes().begin());
    };
    last(once.dense, alone.dense);
    last(once.sparse, alone.sparse);
    last(once.output_gradient, alone.output_gradient);
    ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, alone));
    DotProblem want({precision, 1, 18, 48}, 0);
    last(once.output, want.output);
    last(once.dense_gradient, want.dense_gradient);
    last(once.sparse_gradient, want.sparse_gradient);
    ExpectEqualResults(alone, want);
  }
}

TEST(PaddedDotCudaTest, ANanStaysWhereItBelongs) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kSample = 4;
  for (const DotPrecision precision : kTilePrecisions) {
    const DotShape shape = {precision, 9, 20, 32};
    DotProblem clean(shape, 10);
    ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, clean));
    for (const int64_t vector : {0, 7, 20}) {
      SCOPED_TRACE(testing::Message() << shape << ", vector " << vector);
      constexpr int64_t kColumn = 17;
      DotProblem p(shape, 10);
      (vector == 0 ? p.dense : p.sparse).Set(p.At(kSample, vector, kColumn), kNan);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
      for (int64_t b = 0; b < shape.batch_size; ++b) {
        for (int64_t i = 1; i < p.vectors(); ++i) {
          for (int64_t j = 0; j < i; ++j) {
            const bool hit = b == kSample && (i == vector || j == vector);
            const int64_t at = p.PairAt(b, i, j);
            ASSERT_EQ(std::isnan(p.output.Get(at)), hit) << b << ": " << i << "," << j;
            if (!hit) {
              ASSERT_EQ(p.output.Get(at), clean.output.Get(at));
            }
          }
        }
        for (int64_t i = 0; i < p.vectors(); ++i) {
          for (int64_t d = 0; d < shape.dim; ++d) {
            const bool hit = b == kSample && d == kColumn;
            ASSERT_EQ(std::isnan(p.gradient(b, i, d)), hit) << b << ": " << i << "," << d;
            if (!hit) {
              ASSERT_EQ(p.gradient(b, i, d), clean.gradient(b, i, d));
            }
          }
        }
      }
    }
    // In the gradient of a pair, and in that of the dense vector's copy.
    for (const bool in_pair : {true, false}) {
      SCOPED_TRACE(testing::Message() << shape << ", in a pair: " << in_pair);
      constexpr int64_t kI = 16, kJ = 3, kColumn = 30;
      DotProblem p(shape, 10);
      p.output_gradient.Set(
          in_pair ? p.PairAt(kSample, kI, kJ) : kSample * p.output_stride + kColumn, kNan);
      ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
      for (int64_t b = 0; b < shape.batch_size; ++b) {
        for (int64_t i = 0; i < p.vectors(); ++i) {
          for (int64_t d = 0; d < shape.dim; ++d) {
            const bool hit =
                b == kSample && (in_pair ? i == kI || i == kJ : i == 0 && d == kColumn);
            ASSERT_EQ(std::isnan(p.gradient(b, i, d)), hit) << b << ": " << i << "," << d;
            if (!hit) {
              ASSERT_EQ(p.gradient(b, i, d), clean.gradient(b, i, d));
            }
          }
        }
      }
    }
    // What the padding's gradients are is nobody's business.
    DotProblem p(shape, 10);
    for (int64_t b = 0; b < shape.batch_size; ++b) {
      for (int64_t c = p.products; c < p.columns; ++c) {
        p.output_gradient.Set(b * p.output_stride + c, kNan);
      }
    }
    ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
    ExpectEqualResults(p, clean);
  }
}

// loss = sum over outputs of c * z, from the definition.
TEST(PaddedDotCudaTest, GradientsAreTheFiniteDifferencesOfTheLoss) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const DotPrecision precision : kTilePrecisions) {
    DotProblem p({precision, 1, 16, 16}, 11);
    ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, p));
    const int64_t dim = p.shape.dim;
    std::vector<double> x;
    for (int64_t i = 0; i < p.vectors(); ++i) {
      for (int64_t d = 0; d < dim; ++d) x.push_back(p.x(0, i, d));
    }
    const auto loss = [&](const std::vector<double>& v) {
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        sum += p.output_gradient.Get(d) * v[static_cast<size_t>(d)];
      }
      for (int64_t i = 1; i < p.vectors(); ++i) {
        for (int64_t j = 0; j < i; ++j) {
          double product = 0;
          for (int64_t d = 0; d < dim; ++d) {
            product += v[static_cast<size_t>(i * dim + d)] * v[static_cast<size_t>(j * dim + d)];
          }
          sum += p.output_gradient.Factor(p.PairAt(0, i, j)) * product;
        }
      }
      return sum;
    };
    constexpr double kStep = 1e-3;  // the loss is quadratic: no error but that of rounding
    for (int64_t i = 0; i < p.vectors(); i += 5) {
      for (int64_t d = 0; d < dim; d += 3) {
        std::vector<double> up = x;
        std::vector<double> down = x;
        up[static_cast<size_t>(i * dim + d)] += kStep;
        down[static_cast<size_t>(i * dim + d)] -= kStep;
        const double want = (loss(up) - loss(down)) / (2 * kStep);
        ASSERT_NEAR(p.gradient(0, i, d), want, p.Unit() * std::abs(want) * 1.01 + 1e-4);
      }
    }
  }
}

TEST(PaddedDotCudaTest, EmptyBatchesNeedNothingAndGraphsTakeBothPasses) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  HOTROW_EXPECT_OK(
      PaddedDot(stream.ctx(),
                {.precision = DotPrecision::kBf16, .batch_size = 0, .num_sparse = 3, .dim = 16}));
  DotProblem p({DotPrecision::kBf16, 5, 26, 128}, 12);
  DotProblem want({DotPrecision::kBf16, 5, 26, 128}, 12);
  ASSERT_NO_FATAL_FAILURE(RunOnGpu(stream, want));
  test::DeviceArray<std::byte> dense(p.dense.bytes()), sparse(p.sparse.bytes()),
      output(p.output.bytes()), output_gradient(p.output_gradient.bytes()),
      dense_gradient(p.dense_gradient.bytes()), sparse_gradient(p.sparse_gradient.bytes());
  const PaddedDotArgs forward = p.Forward(dense.data(), sparse.data(), output.data());
  stream.RunAsGraph(2, [&] {
    HOTROW_ASSERT_OK(PaddedDot(stream.ctx(), forward));
    HOTROW_ASSERT_OK(
        PaddedDotGrad(stream.ctx(), p.Backward(forward, output_gradient.data(),
                                               dense_gradient.data(), sparse_gradient.data())));
  });
  p.output.bytes() = output.ToHost();
  p.dense_gradient.bytes() = dense_gradient.ToHost();
  p.sparse_gradient.bytes() = sparse_gradient.ToHost();
  ExpectEqualResults(p, want);
}

}  // namespace
}  // namespace hotrow
