#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <vector>

#include "ops/layers/dropout.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

// For any shape, what the CPU drops and keeps, and the gaps between rows as they were.
TEST(DropoutCudaTest, DropsWhatTheCpuDrops) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  test::DeviceArray<uint32_t> step_there(std::vector<uint32_t>{4});
  for (const int64_t rows : {0, 1, 37, test::ForGpu(2048, 200)}) {
    for (const int64_t columns : {1, 3, 17, 512}) {
      for (const int64_t gap : {0, 5}) {
        for (const int64_t first_row : {0, 7}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", gap " << gap
                                          << ", from row " << first_row);
          RandomStream random(rows + columns, RandomPurpose::kTest);
          std::vector<float> data = test::RandomFloats(random, rows * (columns + gap));
          test::DeviceArray<float> on_gpu(data);
          DropoutArgs args = {.data = data.data(),
                              .rows = rows,
                              .columns = columns,
                              .stride = columns + gap,
                              .rate = 0.3f,
                              .seed = 11,
                              .step = 4,
                              .layer = 2,
                              .first_row = first_row};
          HOTROW_ASSERT_OK(Dropout({}, args));
          args.data = on_gpu.data();
          if (gap > 0) {  // the number of the step lies there
            args.step = 77;
            args.device_step = step_there.data();
          }
          HOTROW_ASSERT_OK(Dropout(stream.ctx(), args));
          ASSERT_EQ(test::Bits(on_gpu.ToHost()), test::Bits(data));
        }
      }
    }
  }
}

// More elements than fit 2^31: counted in the generator, not in memory.
TEST(DropoutCudaTest, RowsFarDownALargeBatchCountOn) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  std::vector<float> data(2 * 1000, 1.0f);
  test::DeviceArray<float> on_gpu(data);
  DropoutArgs args = {.data = data.data(),
                      .rows = 2,
                      .columns = 1000,
                      .stride = 1000,
                      .rate = 0.5f,
                      .first_row = int64_t{1} << 40};
  HOTROW_ASSERT_OK(Dropout({}, args));
  args.data = on_gpu.data();
  HOTROW_ASSERT_OK(Dropout(stream.ctx(), args));
  EXPECT_EQ(test::Bits(on_gpu.ToHost()), test::Bits(data));
}

}  // namespace
}  // namespace hotrow
