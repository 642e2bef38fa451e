#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/cuda_handles.h"
#include "base/philox.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"
#include "tests/ops/half_reference.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::DeviceArray;
using Kind = SparseOptimizerKind;

// Rows of random weights and their gradients, in host memory and on the device. Rows lie side by
// side; so do gradients, which then begin on any multiple of four bytes.
class TwoTables {
 public:
  TwoTables(const SparseOptimizerConfig& config, int32_t dim, int64_t num_rows, uint64_t seed,
            WeightsPrecision precision = WeightsPrecision::kFp32)
      : config_(config),
        layout_(RowLayout::For(dim, config.kind, precision)),
        num_rows_(num_rows),
        random_(seed, RandomPurpose::kTest),
        host_(static_cast<size_t>(num_rows * layout_.row_bytes) / sizeof(Line)),
        gradients_(static_cast<size_t>(num_rows * dim)) {
    const bool is_sum = config.kind == Kind::kAdagrad || config.kind == Kind::kRowWiseAdagrad;
    for (int64_t u = 0; u < num_rows; ++u) {
      for (int32_t d = 0; d < dim; ++d) {
        test::StoreWeight(precision, /*stochastic=*/false, random_.Normal(), 0, HostRow(u), d);
      }
      auto* const state = reinterpret_cast<float*>(HostRow(u) + layout_.state_offset);
      for (int32_t i = 0; i < layout_.state_floats; ++i) {
        if (is_sum || (config.kind == Kind::kFtrl && i >= dim)) {
          state[i] = config.initial_accumulator;
        }
      }
    }
    device_ = std::make_unique<DeviceArray<Line>>(host_);
  }

  // One step on every `stride`-th row of both, which agree on how many were new.
  void Update(uint32_t step, float factor, CudaStream stream, int64_t stride = 1) {
    for (float& g : gradients_) g = random_.Below(8) == 0 ? -0.0f : random_.Normal();
    DeviceArray<float> gradients(gradients_);
    std::vector<std::byte*> host_rows;
    std::vector<std::byte*> device_rows;
    std::vector<const float*> host_gradients;
    std::vector<const float*> device_gradients;
    std::vector<uint64_t> keys;
    for (int64_t u = 0; u < num_rows_; u += stride) {
      keys.push_back(static_cast<uint64_t>(u) * 0x9e3779b97f4a7c15ull);
      host_rows.push_back(HostRow(u));
      device_rows.push_back(reinterpret_cast<std::byte*>(device_->data()) + u * layout_.row_bytes);
      host_gradients.push_back(gradients_.data() + u * layout_.dim);
      device_gradients.push_back(gradients.data() + u * layout_.dim);
    }
    DeviceArray<std::byte*> device_row_pointers(device_rows);
    DeviceArray<const float*> device_gradient_pointers(device_gradients);
    DeviceArray<uint64_t> device_keys(keys);
    DeviceArray<int64_t> device_new_rows(std::vector<int64_t>{7});
    int64_t new_rows = 7;
    SparseUpdateArgs args{.config = config_,
                          .layout = &layout_,
                          .num_rows = std::ssize(host_rows),
                          .rows = host_rows.data(),
                          .gradients = host_gradients.data(),
                          .learning_rate_factor = factor,
                          .step = step,
                          .seed = 5,
                          .table = 4,
                          .keys = keys.data(),
                          .new_rows = &new_rows};
    HOTROW_ASSERT_OK(SparseUpdate({}, args));
    args.rows = device_row_pointers.data();
    args.gradients = device_gradient_pointers.data();
    args.keys = device_keys.data();
    args.new_rows = device_new_rows.data();
    // Before it, one that is left out.
    DeviceArray<uint32_t> skips(std::vector<uint32_t>{1, 0});
    for (const int64_t skip : {0, 1}) {
      args.skip = skips.data() + skip;
      HOTROW_ASSERT_OK(SparseUpdate({.device = Device::kCuda, .stream = stream}, args));
    }
    EXPECT_EQ(device_new_rows.ToHost()[0], new_rows);
  }

  // All of it: weights, state, last steps and padding. Within `tolerance` of the CPU's, relative to
  // what is larger than 1; 0: the same bits.
  void ExpectAlike(double tolerance) {
    const std::vector<Line> device = device_->ToHost();
    for (int64_t u = 0; u < num_rows_; ++u) {
      const auto* const got =
          reinterpret_cast<const std::byte*>(device.data()) + u * layout_.row_bytes;
      if (tolerance == 0) {
        ASSERT_EQ(std::memcmp(got, HostRow(u), static_cast<size_t>(layout_.state_offset)), 0)
            << "weights of row " << u << ", the first is "
            << test::LoadWeight(layout_.precision, got, 0) << ", want "
            << test::LoadWeight(layout_.precision, HostRow(u), 0);
      }
      const int64_t floats = layout_.payload_bytes / static_cast<int64_t>(sizeof(float));
      for (int64_t i = 0; i < floats; ++i) {
        float a;
        float b;
        std::memcpy(&a, got + i * 4, sizeof(a));
        std::memcpy(&b, HostRow(u) + i * 4, sizeof(b));
        if (tolerance == 0) {
          ASSERT_EQ(std::memcmp(&a, &b, sizeof(a)), 0)
              << "row " << u << ", float " << i << ": got " << a << ", want " << b;
        } else {
          ASSERT_NEAR(a, b, tolerance * std::max(1.0f, std::abs(b))) << "row " << u << ", " << i;
        }
      }
      ASSERT_EQ(std::memcmp(got + layout_.step_offset, HostRow(u) + layout_.step_offset,
                            static_cast<size_t>(layout_.row_bytes - layout_.step_offset)),
                0)
          << "last step or padding of row " << u;
    }
  }

 private:
  // Rows are multiples of it.
  struct alignas(16) Line {
    float v[4] = {};
  };

  std::byte* HostRow(int64_t u) {
    return reinterpret_cast<std::byte*>(host_.data()) + u * layout_.row_bytes;
  }

  SparseOptimizerConfig config_;
  RowLayout layout_;
  int64_t num_rows_;
  RandomStream random_;
  std::vector<Line> host_;
  std::unique_ptr<DeviceArray<Line>> device_;
  std::vector<float> gradients_;
};

class SparseOptimizerCudaTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, SparseOptimizerCudaTest,
                         testing::Values(Kind::kSgd, Kind::kMomentum, Kind::kAdagrad,
                                         Kind::kRowWiseAdagrad, Kind::kAdam,
                                         Kind::kPartialRowWiseAdam, Kind::kFtrl, Kind::kLamb,
                                         Kind::kPartialRowWiseLamb),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return std::string(SparseOptimizerName(info.param));
                         });

// The first step makes some of the rows, the others come at the second.
TEST_P(SparseOptimizerCudaTest, GivesTheBitsOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  int turn = static_cast<int>(GetParam());
  for (const int32_t dim : {1, 3, 7, 16, 17, 33, 64, 100, 128, 1000}) {
    ++turn;
    for (const bool decoupled : {false, true}) {
      // Emulated, kinds share the pairs of a width and a way to decay.
      if (test::kEmulatedGpu && decoupled != (turn % 2 == 0)) continue;
      SCOPED_TRACE(testing::Message() << "dim " << dim << ", decoupled " << decoupled);
      SparseOptimizerConfig config{
          .kind = GetParam(), .learning_rate = 0.05f, .initial_accumulator = 0.1f};
      config.weight_decay = 0.02f;
      if (decoupled && GetParam() == Kind::kFtrl) config.weight_decay = 0;
      config.weight_decay_mode = decoupled ? WeightDecayMode::kDecoupled : WeightDecayMode::kL2;
      config.l1 = decoupled ? 0.3f : 0;
      config.l2 = decoupled ? 0 : 0.2f;
      TwoTables tables(config, dim, /*num_rows=*/test::ForGpu(333, 133),
                       static_cast<uint64_t>(dim));
      tables.Update(1, 1, stream.get(), /*stride=*/3);
      tables.ExpectAlike(0);
      tables.Update(2, 0.5f, stream.get());
      tables.Update(3, 0, stream.get());
      tables.ExpectAlike(0);
    }
  }
}

// Rows whose weights are halves, with paddings of two bytes and states that begin on four.
TEST_P(SparseOptimizerCudaTest, HalfWeightsHaveTheBitsOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  int turn = static_cast<int>(GetParam());
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    ++turn;
    for (const int32_t dim : {1, 2, 3, 7, 8, 15, 17, 64, 130, 1000}) {
      if (test::kEmulatedGpu && ++turn % 2 == 0) continue;  // the next kind has it
      SCOPED_TRACE(testing::Message() << WeightsPrecisionName(precision) << " dim " << dim);
      const SparseOptimizerConfig config{.kind = GetParam(),
                                         .learning_rate = 0.05f,
                                         .weight_decay = 0.02f,
                                         .initial_accumulator = 0.1f};
      TwoTables tables(config, dim, /*num_rows=*/test::ForGpu(333, 133), static_cast<uint64_t>(dim),
                       precision);
      tables.Update(1, 1, stream.get(), /*stride=*/3);
      tables.ExpectAlike(0);
      tables.Update(2, 0.5f, stream.get());
      tables.Update(3, 0, stream.get());
      // Into the range of fp16's subnormals and of its largest numbers.
      tables.Update(4, 1e6f, stream.get());
      tables.ExpectAlike(0);
    }
  }
}

// Powers come from another library: a few units in the last place a step, on a z of size 20.
TEST(FtrlCudaTest, AnyPowerIsNearTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  for (const int32_t dim : {3, 128}) {
    TwoTables tables({.kind = Kind::kFtrl,
                      .learning_rate = 0.05f,
                      .initial_accumulator = 0.1f,
                      .lr_power = -0.7f},
                     dim, /*num_rows=*/100, 1);
    for (uint32_t step = 1; step <= 3; ++step) tables.Update(step, 1, stream.get());
    tables.ExpectAlike(2e-5);
  }
}

TEST(SparseUpdateCudaTest, AHundredStepsOfSgd) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  TwoTables tables({.kind = Kind::kSgd, .learning_rate = 0.1f}, 24, /*num_rows=*/50, 2);
  for (uint32_t step = 1; step <= 100; ++step) {
    tables.Update(step, 1, stream.get(), 1 + step % 3);
  }
  tables.ExpectAlike(0);
}

// One row; fewer rows than a warp takes; more than the largest grid takes at a time.
TEST(SparseUpdateCudaTest, AnyNumberOfRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  for (const Kind kind : {Kind::kSgd, Kind::kRowWiseAdagrad}) {
    for (const int64_t num_rows : {1, 5, 31, 33, 257, test::ForGpu(600'000, 70'000)}) {
      if (test::kEmulatedGpu && kind != Kind::kSgd && num_rows > 1000) continue;
      SCOPED_TRACE(num_rows);
      TwoTables tables({.kind = kind}, /*dim=*/1, num_rows, 3);
      tables.Update(1, 1, stream.get(), /*stride=*/2);
      tables.Update(2, 1, stream.get());
      tables.ExpectAlike(0);
    }
  }
  const RowLayout layout = RowLayout::For(4, Kind::kSgd);
  HOTROW_EXPECT_OK(SparseUpdate({.device = Device::kCuda, .stream = stream.get()},
                                {.config = {.kind = Kind::kSgd}, .layout = &layout, .step = 1}));
}

TEST(SparseUpdateCudaTest, CanBeCapturedInAGraph) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const RowLayout layout = RowLayout::For(4, Kind::kSgd);
  ASSERT_EQ(layout.row_bytes, 32);
  DeviceArray<float4> row(std::vector<float4>(2, make_float4(0, 0, 0, 0)));
  DeviceArray<float> gradient(std::vector<float>{1, 2, 3, 4});
  DeviceArray<std::byte*> rows({reinterpret_cast<std::byte*>(row.data())});
  DeviceArray<const float*> gradients({gradient.data()});
  DeviceArray<int64_t> new_rows(std::vector<int64_t>{0});
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const absl::Status status = SparseUpdate({.device = Device::kCuda, .stream = stream.get()},
                                           {.config = {.kind = Kind::kSgd, .learning_rate = 0.5f},
                                            .layout = &layout,
                                            .num_rows = 1,
                                            .rows = rows.data(),
                                            .gradients = gradients.data(),
                                            .step = 9,
                                            .new_rows = new_rows.data()});
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  HOTROW_ASSERT_OK(status);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int launch = 0; launch < 2; ++launch) {
    EXPECT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
  }
  const float4 weights = row.ToHost()[0];
  EXPECT_EQ(weights.x, -1);
  EXPECT_EQ(weights.w, -4);
  EXPECT_EQ(new_rows.ToHost()[0], 1);  // new at the first launch only
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace hotrow
