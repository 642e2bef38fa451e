#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "ops/interactions/cin_products.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

// All ops as a CIN calls them, forward and back, on both devices.

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  int64_t batch_size;     // B
  int32_t num_fields;     // F
  int32_t dim;            // D
  int32_t columns;        // H
  int64_t field_gap = 0;  // unused floats after each field
  int64_t gap = 0;        // unused floats after each row of fields and of sums

  int64_t rows() const { return batch_size * dim; }
  int64_t field_stride() const { return dim + field_gap; }
  int64_t fields_stride() const { return num_fields * field_stride() + gap; }
  int64_t sums_stride() const { return columns + gap; }
};

struct Inputs {
  explicit Inputs(const Shape& s) {
    RandomStream random(9, RandomPurpose::kTest);
    fields = test::RandomFloats(random, s.batch_size * s.fields_stride());
    x = test::RandomFloats(random, s.rows() * s.columns);
    dz = test::RandomFloats(random, s.rows() * s.columns * s.num_fields);
    dz_squares = test::RandomFloats(random, s.rows() * s.num_fields * s.num_fields);
    dy = test::RandomFloats(random, s.batch_size * s.sums_stride());
    // A sum of -0 that begins with 0 is 0.
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(s.columns)) x[i] = -0.0f;
  }
  std::vector<float> fields, x, dz, dz_squares, dy;
};

// What the ops write, in their order.
constexpr int kNumOutputs = 10;
struct Outputs {
  explicit Outputs(const Shape& s) {
    const int64_t inputs = s.rows() * s.num_fields;
    const int64_t values = s.rows() * s.columns;
    const int64_t sizes[kNumOutputs] = {
        inputs,                            // 0: x_0
        values * s.num_fields,             // 1: products of x and x_0
        inputs * s.num_fields,             // 2: of x_0 and x_0
        s.batch_size * s.sums_stride(),    // 3: sums of x
        values,                            // 4: their gradient
        values,                            // 5: the same, added to what is there
        values,                            // 6: gradient of x
        inputs,                            // 7: of x_0, from both products
        inputs,                            // 8: of x_0, from the squares alone
        s.batch_size * s.fields_stride(),  // 9: of the fields
    };
    for (int i = 0; i < kNumOutputs; ++i) arrays[i].assign(static_cast<size_t>(sizes[i]), kUnused);
  }
  std::vector<float> arrays[kNumOutputs];
};

// Arrays in the memory of ctx.device.
struct Arrays {
  const float *fields, *x, *dz, *dz_squares, *dy;
  float* out[kNumOutputs];
};
void Run(const ExecContext& ctx, const Shape& s, const Arrays& a) {
  const int64_t sample = int64_t{s.dim} * s.num_fields;
  HOTROW_ASSERT_OK(TransposeFields(ctx, {.batch_size = s.batch_size,
                                         .rows = s.num_fields,
                                         .columns = s.dim,
                                         .from = a.fields,
                                         .from_stride = s.fields_stride(),
                                         .from_row_stride = s.field_stride(),
                                         .to = a.out[0],
                                         .to_stride = sample,
                                         .to_row_stride = s.num_fields}));
  const CinProductsArgs products = {.num_rows = s.rows(),
                                    .x_columns = s.columns,
                                    .x0_columns = s.num_fields,
                                    .x = a.x,
                                    .x0 = a.out[0],
                                    .products = a.out[1]};
  CinProductsArgs squares = products;
  squares.x_columns = s.num_fields;
  squares.x = a.out[0];
  squares.products = a.out[2];
  HOTROW_ASSERT_OK(CinProducts(ctx, products));
  HOTROW_ASSERT_OK(CinProducts(ctx, squares));
  HOTROW_ASSERT_OK(CinSum(ctx, {.batch_size = s.batch_size,
                                .rows = s.dim,
                                .columns = s.columns,
                                .values = a.x,
                                .output = a.out[3],
                                .output_stride = s.sums_stride()}));
  CinSumGradArgs sum_grad = {.batch_size = s.batch_size,
                             .rows = s.dim,
                             .columns = s.columns,
                             .output_gradient = a.dy,
                             .output_gradient_stride = s.sums_stride(),
                             .values_gradient = a.out[4]};
  HOTROW_ASSERT_OK(CinSumGrad(ctx, sum_grad));
  sum_grad.values_gradient = a.out[5];
  HOTROW_ASSERT_OK(CinSumGrad(ctx, sum_grad));
  sum_grad.add = true;
  HOTROW_ASSERT_OK(CinSumGrad(ctx, sum_grad));
  HOTROW_ASSERT_OK(CinProductsGrad(ctx, {.forward = products,
                                         .products_gradient = a.dz,
                                         .x_gradient = a.out[6],
                                         .x0_gradient = a.out[7]}));
  HOTROW_ASSERT_OK(CinProductsGrad(ctx, {.forward = squares,
                                         .products_gradient = a.dz_squares,
                                         .x0_gradient = a.out[7],
                                         .add_to_x0_gradient = true}));
  HOTROW_ASSERT_OK(CinProductsGrad(
      ctx, {.forward = squares, .products_gradient = a.dz_squares, .x0_gradient = a.out[8]}));
  // To a gradient that is there.
  HOTROW_ASSERT_OK(CinProductsGrad(ctx, {.forward = products,
                                         .products_gradient = a.dz,
                                         .x_gradient = a.out[6],
                                         .x0_gradient = a.out[7],
                                         .add_to_x0_gradient = true}));
  HOTROW_ASSERT_OK(TransposeFields(ctx, {.batch_size = s.batch_size,
                                         .rows = s.dim,
                                         .columns = s.num_fields,
                                         .from = a.out[7],
                                         .from_stride = sample,
                                         .from_row_stride = s.num_fields,
                                         .to = a.out[9],
                                         .to_stride = s.fields_stride(),
                                         .to_row_stride = s.field_stride()}));
}

Outputs RunOnCpu(const Shape& s, const Inputs& in) {
  Outputs out(s);
  Arrays a = {in.fields.data(), in.x.data(), in.dz.data(), in.dz_squares.data(), in.dy.data()};
  for (int i = 0; i < kNumOutputs; ++i) a.out[i] = out.arrays[i].data();
  Run({}, s, a);
  return out;
}

// As a graph, so that what allocates or waits fails; `times` times.
Outputs RunOnGpu(const Shape& s, const Inputs& in, int times = 1) {
  Outputs out(s);
  test::GpuStream stream;
  test::DeviceArray<float> fields(in.fields), x(in.x), dz(in.dz), dz_squares(in.dz_squares),
      dy(in.dy);
  std::vector<std::unique_ptr<test::DeviceArray<float>>> arrays;
  Arrays a = {fields.data(), x.data(), dz.data(), dz_squares.data(), dy.data()};
  for (int i = 0; i < kNumOutputs; ++i) {
    arrays.push_back(std::make_unique<test::DeviceArray<float>>(out.arrays[i]));
    a.out[i] = arrays.back()->data();
  }
  stream.RunAsGraph(times, [&] { Run(stream.ctx(), s, a); });
  for (size_t i = 0; i < kNumOutputs; ++i) out.arrays[i] = arrays[i]->ToHost();
  return out;
}

TEST(CinProductsCudaTest, AllPassesGiveTheBitsOfTheCpuAndLeaveGapsAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s :
       {Shape{0, 3, 4, 5}, Shape{1, 1, 1, 1}, Shape{1, 3, 2, 5, 2, 1}, Shape{3, 2, 9, 1, 1},
        Shape{test::ForGpu(500, 5), 26, 16, 16, 1}, Shape{2, 32, 3, 32}, Shape{2, 33, 4, 31, 1, 3},
        Shape{2, 7, 33, 40}, Shape{1, 70, 5, 65, 2}, Shape{test::ForGpu(40, 1), 39, 64, 100}}) {
    SCOPED_TRACE(testing::Message()
                 << s.batch_size << " samples, " << s.num_fields << " of " << s.dim << " + "
                 << s.field_gap << ", " << s.columns << " rows, gap " << s.gap);
    const Inputs in(s);
    const Outputs cpu = RunOnCpu(s, in);
    // The emulated GPU draws other orders of threads and blocks each time.
    for (const int times : {1, 2}) {
      const Outputs gpu = RunOnGpu(s, in, times);
      for (int i = 0; i < kNumOutputs; ++i) {
        ASSERT_EQ(test::Bits(gpu.arrays[i]), test::Bits(cpu.arrays[i])) << i;
      }
    }
  }
}

// Which NaN it is the devices choose.
TEST(CinProductsCudaTest, ANanStaysInItsRow) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {3, 34, 5, 6};
  Inputs in(s);
  // Column 2 of field 30 of sample 1: number 30 of row 7.
  in.fields[static_cast<size_t>(s.fields_stride() + 30 * s.field_stride() + 2)] =
      std::numeric_limits<float>::quiet_NaN();
  const Outputs cpu = RunOnCpu(s, in);
  const Outputs gpu = RunOnGpu(s, in);
  for (const Outputs* const found : {&cpu, &gpu}) {
    const auto expect = [&](int array, int64_t row_columns, const auto& is_nan) {
      const std::vector<float>& numbers = found->arrays[array];
      for (size_t i = 0; i < numbers.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        ASSERT_EQ(std::isnan(numbers[i]), is_nan(at / row_columns, at % row_columns))
            << array << ": " << i;
      }
    };
    expect(0, 34, [](int64_t r, int64_t f) { return r == 7 && f == 30; });
    expect(1, 6 * 34, [](int64_t r, int64_t p) { return r == 7 && p % 34 == 30; });
    expect(3, 6, [](int64_t, int64_t) { return false; });
    expect(6, 6, [](int64_t r, int64_t) { return r == 7; });
    expect(8, 34, [](int64_t r, int64_t) { return r == 7; });
    expect(9, 34 * 5, [](int64_t b, int64_t c) { return b == 1 && c % 5 == 2; });
  }
}

}  // namespace
}  // namespace hotrow
