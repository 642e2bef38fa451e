#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/rows/row_init.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;
using Kind = SparseOptimizerKind;

constexpr uint64_t kMaxKey = std::numeric_limits<uint64_t>::max();
constexpr Kind kOptimizers[] = {
    Kind::kSgd,  Kind::kMomentum,           Kind::kAdagrad, Kind::kRowWiseAdagrad,
    Kind::kAdam, Kind::kPartialRowWiseAdam, Kind::kFtrl};

// Rows that begin at float `front` of some memory, one float between them or none.
struct Table {
  Initializer initializer;
  Kind optimizer = Kind::kSgd;
  int32_t dim = 1;
  int64_t front = 0;
  int64_t gap = 0;
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

std::vector<uint64_t> Keys() {
  std::vector<uint64_t> keys = {0, kMaxKey, 1, uint64_t{1} << 32};
  for (uint64_t k = 0; k < 60; ++k) keys.push_back(k * 0x9e3779b97f4a7c15ull);
  return keys;
}

std::vector<std::byte*> Rows(const Table& table, const RowLayout& layout, float* memory, size_t n) {
  std::vector<std::byte*> rows;
  for (size_t i = 0; i < n; ++i) {
    rows.push_back(reinterpret_cast<std::byte*>(
        memory + table.front + static_cast<int64_t>(i) * (layout.row_bytes / 4 + table.gap)));
  }
  return rows;
}

// What is in the memory around and in the rows afterwards.
struct Memory {
  std::vector<float> on_cpu;
  std::vector<float> on_gpu;
};
Memory Init(const Table& table, const std::vector<uint64_t>& keys, test::Enqueue enqueue) {
  const RowLayout layout = RowLayout::For(table.dim, table.optimizer, table.precision);
  const auto size = static_cast<size_t>(table.front + static_cast<int64_t>(keys.size()) *
                                                          (layout.row_bytes / 4 + table.gap));
  std::vector<float> on_cpu(size, 77.0f);
  RowInitArgs args = {.initializer = table.initializer,
                      .layout = &layout,
                      .initial_accumulator = 0.25f,
                      .optimizer = table.optimizer,
                      .seed = 5,
                      .table = 3,
                      .num_rows = static_cast<int64_t>(keys.size())};
  DeviceArray<float> on_gpu(on_cpu);
  const std::vector<std::byte*> rows = Rows(table, layout, on_cpu.data(), keys.size());
  args.keys = keys.data();
  args.rows = rows.data();
  HOTROW_EXPECT_OK(InitRows({}, args));
  DeviceArray<uint64_t> device_keys(keys);
  DeviceArray<std::byte*> device_rows(Rows(table, layout, on_gpu.data(), keys.size()));
  args.keys = device_keys.data();
  args.rows = device_rows.data();
  test::RunOnGpu(enqueue, [&](const ExecContext& ctx) { return InitRows(ctx, args); });
  return {std::move(on_cpu), on_gpu.ToHost()};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(RowInitCudaTest, SameBitsAsOnTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Initializer& initializer :
       {Initializer{InitializerKind::kZeros, 3}, Initializer{InitializerKind::kConstant, -3},
        Initializer{InitializerKind::kUniform, 0.3f}}) {
    for (const Kind optimizer : kOptimizers) {
      for (const int32_t dim : {1, 3, 4, 7, 32, 64, 128, 1000}) {
        for (const int64_t unaligned : {0, 1}) {
          SCOPED_TRACE(testing::Message() << static_cast<int>(initializer.kind) << " "
                                          << std::string(SparseOptimizerName(optimizer)) << " dim "
                                          << dim << " front " << unaligned);
          const Table table = {initializer, optimizer, dim, unaligned, unaligned};
          const Memory memory = Init(table, Keys(), test::Enqueue::kDirectly);
          EXPECT_TRUE(SameBits(memory.on_gpu, memory.on_cpu));
        }
      }
    }
  }
  const Memory graph =
      Init({.initializer = {InitializerKind::kUniform, 0.3f}, .optimizer = Kind::kAdam, .dim = 64},
           Keys(), test::Enqueue::kAsGraph);
  EXPECT_TRUE(SameBits(graph.on_gpu, graph.on_cpu));
  EXPECT_TRUE(Init({}, {}, test::Enqueue::kDirectly).on_gpu.empty());
}

// A last bit of kNormal that differs (see below) would show in fewer than one half in 10^10.
TEST(RowInitCudaTest, HalfWeightsHaveTheBitsOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  int turn = 0;
  for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    for (const Initializer& initializer :
         {Initializer{InitializerKind::kZeros, 3}, Initializer{InitializerKind::kConstant, 1e6f},
          Initializer{InitializerKind::kUniform, 0.3f},
          Initializer{InitializerKind::kUniform, 1e-6f},
          Initializer{InitializerKind::kNormal, 0.5f}}) {
      for (const Kind optimizer : kOptimizers) {
        ++turn;
        for (const int32_t dim : {1, 2, 3, 7, 8, 15, 17, 64, 130, 1000}) {
          if (test::kEmulatedGpu && ++turn % 2 == 0) continue;  // the next optimizer has it
          for (const int64_t unaligned : {0, 1}) {
            if (test::kEmulatedGpu && unaligned != dim % 2) continue;
            SCOPED_TRACE(testing::Message() << std::string(WeightsPrecisionName(precision)) << " "
                                            << static_cast<int>(initializer.kind) << " "
                                            << std::string(SparseOptimizerName(optimizer))
                                            << " dim " << dim << " front " << unaligned);
            const Table table = {initializer, optimizer, dim, unaligned, unaligned, precision};
            const Memory memory = Init(table, Keys(), test::Enqueue::kDirectly);
            EXPECT_TRUE(SameBits(memory.on_gpu, memory.on_cpu));
          }
        }
      }
    }
  }
}

// What the header promises of kNormal: the last bit at most, and hardly ever.
TEST(RowInitCudaTest, NormalNumbersAreThoseOfTheCpuToTheLastBit) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<uint64_t> keys(1000);
  for (uint64_t k = 0; k < keys.size(); ++k) keys[k] = k;
  for (const int32_t dim : {1, 3, 128, 1000}) {
    SCOPED_TRACE(dim);
    // A power of two, so that the product is exact.
    const Table table = {{InitializerKind::kNormal, 0.5f}, Kind::kAdagrad, dim};
    const Memory memory = Init(table, keys, test::Enqueue::kDirectly);
    ASSERT_EQ(memory.on_gpu.size(), memory.on_cpu.size());
    int different = 0;
    for (size_t i = 0; i < memory.on_cpu.size(); ++i) {
      const auto a = std::bit_cast<int32_t>(memory.on_cpu[i]);
      const auto b = std::bit_cast<int32_t>(memory.on_gpu[i]);
      different += a == b ? 0 : 1;
      ASSERT_LE(std::abs(static_cast<int64_t>(a) - b), 1) << memory.on_cpu[i] << " at " << i;
    }
    // At most 0.1 of a million numbers are expected to differ.
    EXPECT_LE(different, 3);
  }
}

}  // namespace
}  // namespace hotrow
