#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/layers/columns.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using Kind = MoveColumnsArgs::Kind;

struct Layout {
  int32_t dim;
  int64_t field_stride;
  int64_t row_stride;
};
struct Shape {
  int64_t batch_size;
  int32_t width;
  Layout from, to;
};

// What MoveColumns leaves in `to`, and behind it the sums of the columns of `from`.
void Run(const ExecContext& ctx, const Shape& s, Kind kind, const float* from, float* to,
         float* sums) {
  const Columns<const float> x = {from, s.from.row_stride, s.from.dim, s.from.field_stride};
  HOTROW_ASSERT_OK(MoveColumns(ctx, {.kind = kind,
                                     .batch_size = s.batch_size,
                                     .width = s.width,
                                     .from = x,
                                     .to = {to, s.to.row_stride, s.to.dim, s.to.field_stride}}));
  HOTROW_ASSERT_OK(SumColumns(
      ctx,
      {.batch_size = s.batch_size, .width = s.width, .x = x, .output = sums, .output_stride = 3}));
}

struct Result {
  std::vector<float> to, sums;
};

void RunOnBoth(const Shape& s, Kind kind, const std::vector<float>& from,
               const std::vector<float>& to, Result* cpu, Result* gpu) {
  *cpu = {to, std::vector<float>(static_cast<size_t>(3 * s.batch_size), 9.0f)};
  const test::GpuStream stream;
  test::DeviceArray<float> gpu_from(from), gpu_to(to), gpu_sums(cpu->sums);
  ASSERT_NO_FATAL_FAILURE(Run({}, s, kind, from.data(), cpu->to.data(), cpu->sums.data()));
  ASSERT_NO_FATAL_FAILURE(
      Run(stream.ctx(), s, kind, gpu_from.data(), gpu_to.data(), gpu_sums.data()));
  stream.Wait();
  *gpu = {gpu_to.ToHost(), gpu_sums.ToHost()};
}

TEST(ColumnsCudaTest, MovesAndSumsHaveTheBitsOfTheCpuAndLeaveTheRestAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s : {Shape{0, 3, {3, 0, 3}, {3, 0, 3}},         // no samples
                         Shape{1, 1, {1, 0, 1}, {1, 0, 1}},         // one number
                         Shape{1, 45, {45, 0, 45}, {5, 6, 54}},     // one sample
                         Shape{300, 1, {1, 0, 1}, {1, 0, 7}},       // a column
                         Shape{65, 5, {1, 17, 85}, {5, 0, 5}},      // first-order weights
                         Shape{65, 5, {5, 0, 5}, {1, 17, 85}},      // and back
                         Shape{37, 80, {16, 17, 85}, {80, 0, 96}},  // vectors beside them
                         Shape{37, 80, {80, 0, 96}, {16, 17, 85}},  // and back
                         Shape{19, 24, {6, 7, 30}, {4, 5, 31}},     // neither is packed
                         Shape{7, 13, {13, 0, 0}, {13, 0, 16}},     // the same for all samples
                         Shape{test::ForGpu(5000, 300), 416, {16, 16, 416}, {416, 0, 432}}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples of " << s.width);
    RandomStream random(9, RandomPurpose::kTest);
    const int64_t rows = std::max<int64_t>(s.batch_size, 1);
    const std::vector<float> from =
        test::RandomFloats(random, rows * std::max<int64_t>(s.from.row_stride, s.width));
    const std::vector<float> to = test::RandomFloats(random, rows * s.to.row_stride);
    for (const Kind kind : {Kind::kCopy, Kind::kAdd, Kind::kSpread, Kind::kZero}) {
      Result cpu, gpu;
      ASSERT_NO_FATAL_FAILURE(RunOnBoth(s, kind, from, to, &cpu, &gpu));
      ASSERT_EQ(test::Bits(gpu.to), test::Bits(cpu.to)) << static_cast<int>(kind);
      ASSERT_EQ(test::Bits(gpu.sums), test::Bits(cpu.sums));
    }
  }
}

TEST(ColumnsCudaTest, ANanStaysInItsSample) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {40, 10, {5, 6, 12}, {10, 0, 11}};
  RandomStream random(9, RandomPurpose::kTest);
  std::vector<float> from = test::RandomFloats(random, 40 * 12);
  const std::vector<float> to = test::RandomFloats(random, 40 * 11);
  from[17 * 12 + 6] = std::numeric_limits<float>::quiet_NaN();  // column 5
  for (const Kind kind : {Kind::kCopy, Kind::kAdd}) {
    Result cpu, gpu;
    ASSERT_NO_FATAL_FAILURE(RunOnBoth(s, kind, from, to, &cpu, &gpu));
    for (const Result* const found : {&cpu, &gpu}) {
      for (size_t i = 0; i < to.size(); ++i) {
        EXPECT_EQ(std::isnan(found->to[i]), i == 17 * 11 + 5) << i;
      }
      for (size_t i = 0; i < found->sums.size(); ++i) {
        EXPECT_EQ(std::isnan(found->sums[i]), i == 17 * 3) << i;
      }
    }
  }
}

// Moves of one launch see what those before them left, whichever lanes wrote it; more of them than
// a launch has room for.
TEST(ColumnsCudaTest, MovesOfOneCallAreMadeInTheirOrder) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t width : {1, 7, 40}) {
    SCOPED_TRACE(width);
    constexpr int64_t kBatch = 37;
    const int64_t stride = 3 * width;
    RandomStream random(7, RandomPurpose::kTest);
    const std::vector<float> from = test::RandomFloats(random, kBatch * width);
    const std::vector<float> before = test::RandomFloats(random, kBatch * stride);
    const auto run = [&](const ExecContext& ctx, const float* source, float* data) {
      const auto at = [&](int64_t offset) { return Columns<float>{data + offset, stride, width}; };
      const auto read = [&](int64_t offset) {
        return Columns<const float>{data + offset, stride, width};
      };
      std::vector<MoveColumnsArgs> moves = {
          {Kind::kCopy, kBatch, width, {source, width, width}, at(0)},
          {Kind::kAdd, kBatch, width, read(2 * width), at(0)},
          // Column c of one is column 0 of the others, which other lanes wrote.
          {Kind::kSpread, kBatch, width, read(width - 1), at(width)},
          {Kind::kZero, kBatch, 1, {}, at(2 * width)}};
      for (int i = 0; i < 20; ++i) {
        moves.push_back({Kind::kAdd, kBatch, width, read(i % 3 * width), at((i + 1) % 3 * width)});
      }
      HOTROW_ASSERT_OK(MoveColumns(ctx, moves));
    };
    std::vector<float> cpu = before;
    run({}, from.data(), cpu.data());
    const test::GpuStream stream;
    test::DeviceArray<float> gpu_from(from), gpu(before);
    run(stream.ctx(), gpu_from.data(), gpu.data());
    stream.Wait();
    EXPECT_EQ(gpu.ToHost(), cpu);
  }
}

TEST(ColumnsCudaTest, MovesOfAnotherBatchAreRefused) {
  float numbers[4] = {};
  const Columns<float> to = {numbers, 1, 1};
  const MoveColumnsArgs moves[] = {{Kind::kZero, 4, 1, {}, to}, {Kind::kZero, 3, 1, {}, to}};
  EXPECT_THAT(MoveColumns({}, moves),
              test::StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("batch_size")));
}

}  // namespace
}  // namespace hotrow
