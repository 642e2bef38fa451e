// The words of base/hopper.cuh: on a GPU that the tables in its comments are true, on the emulated
// one that its twins follow them.

#include "base/hopper.cuh"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/cuda_handles.h"
#include "gtest/gtest.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr int kLanes = 32;

// Eight 16-bit elements a row: element j of row i of matrix q is 64 q + 8 i + j. Rows lie in a
// mixed order, 48 bytes from each other.
constexpr int kRowBytes = 48;
__device__ int PlaceOfRow(int row) { return row * 5 % kLanes; }

__global__ void LoadMatricesKernel(uint32_t* plain, uint32_t* transposed) {
  std::byte* const shared = gpu::DynamicShared();
  const int lane = static_cast<int>(threadIdx.x);
  std::byte* const row = shared + PlaceOfRow(lane) * kRowBytes;
  for (int j = 0; j < 8; ++j) {
    reinterpret_cast<uint16_t*>(row)[j] = static_cast<uint16_t>(8 * lane + j);
  }
  __syncwarp();
  uint32_t m[4];
  gpu::LoadMatrices(row, m);
  for (int r = 0; r < 4; ++r) plain[4 * lane + r] = m[r];
  gpu::LoadMatricesTransposed(row, m);
  for (int r = 0; r < 4; ++r) transposed[4 * lane + r] = m[r];
}

TEST(HopperWordsTest, MatricesAreLoadedAsTheTableSays) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::DeviceArray<uint32_t> plain(4 * kLanes), transposed(4 * kLanes);
  LoadMatricesKernel<<<1, kLanes, kLanes * kRowBytes>>>(plain.data(), transposed.data());
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  const std::vector<uint32_t> got = plain.ToHost();
  const std::vector<uint32_t> got_transposed = transposed.ToHost();
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t g = lane / 4;
    const uint32_t t = lane % 4;
    for (uint32_t r = 0; r < 4; ++r) {
      const auto element = [r](uint32_t i, uint32_t j) { return 64 * r + 8 * i + j; };
      EXPECT_EQ(got[4 * lane + r], element(g, 2 * t) | element(g, 2 * t + 1) << 16);
      EXPECT_EQ(got_transposed[4 * lane + r], element(2 * t, g) | element(2 * t + 1, g) << 16);
    }
  }
}

enum class Kind { kBf16, kFp16, kTf32 };

// One product: registers as they are given, by lane.
template <Kind kKind>
__global__ void MmaKernel(const uint32_t* a, const uint32_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t a_words[4];
  float sums[4];
  for (int r = 0; r < 4; ++r) {
    a_words[r] = a[4 * lane + r];
    sums[r] = c[4 * lane + r];
  }
  const uint32_t b0 = b[2 * lane];
  const uint32_t b1 = b[2 * lane + 1];
  if constexpr (kKind == Kind::kBf16) gpu::MmaBf16(sums, a_words, b0, b1);
  if constexpr (kKind == Kind::kFp16) gpu::MmaFp16(sums, a_words, b0, b1);
  if constexpr (kKind == Kind::kTf32) gpu::MmaTf32(sums, a_words, b0, b1);
  for (int r = 0; r < 4; ++r) c[4 * lane + r] = sums[r];
}

// Small integers, which all three formats have; sums of their products are exact in any order.
float SmallInteger(int i, int j) { return static_cast<float>((7 * i + 3 * j) % 15 - 7); }

uint32_t ElementBits(Kind kind, float value) {
  uint32_t bits = 0;
  if (kind == Kind::kTf32) {
    std::memcpy(&bits, &value, 4);
  } else if (kind == Kind::kBf16) {
    std::memcpy(&bits, &value, 4);
    bits >>= 16;
  } else if (value != 0) {  // an integer below 16
    const int exponent = std::ilogb(value);
    const float fraction = std::abs(std::ldexp(value, -exponent)) - 1;
    bits = (value < 0 ? 0x8000u : 0) | static_cast<uint32_t>(exponent + 15) << 10 |
           static_cast<uint32_t>(fraction * 1024);
  }
  return bits;
}

// The table in hopper.cuh, by hand: which (row, column) element k of a register holds.
template <Kind kKind>
void ExpectTheProduct() {
  constexpr bool kHalf = kKind != Kind::kTf32;
  constexpr int kColumns = kHalf ? 16 : 8;
  std::vector<uint32_t> a(4 * kLanes), b(2 * kLanes);
  std::vector<float> c(4 * kLanes);
  const auto a_at = [](int i, int k) { return SmallInteger(i, k); };
  const auto b_at = [](int k, int j) { return SmallInteger(2 * k + 5, 3 * j + 1); };
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      const int row = r % 2 == 0 ? g : g + 8;
      if (kHalf) {
        const int column = r < 2 ? 2 * t : 2 * t + 8;
        a[static_cast<size_t>(4 * lane + r)] =
            ElementBits(kKind, a_at(row, column)) | ElementBits(kKind, a_at(row, column + 1)) << 16;
      } else {
        a[static_cast<size_t>(4 * lane + r)] = ElementBits(kKind, a_at(row, r < 2 ? t : t + 4));
      }
      c[static_cast<size_t>(4 * lane + r)] =
          static_cast<float>(1000 * (r < 2 ? g : g + 8) + 2 * t + r % 2);
    }
    for (int r = 0; r < 2; ++r) {
      const int row = kHalf ? 2 * t + 8 * r : t + 4 * r;
      b[static_cast<size_t>(2 * lane + r)] =
          kHalf ? ElementBits(kKind, b_at(row, g)) | ElementBits(kKind, b_at(row + 1, g)) << 16
                : ElementBits(kKind, b_at(row, g));
    }
  }
  test::DeviceArray<uint32_t> device_a(a), device_b(b);
  test::DeviceArray<float> device_c(c);
  MmaKernel<kKind><<<1, kLanes>>>(device_a.data(), device_b.data(), device_c.data());
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  const std::vector<float> got = device_c.ToHost();
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int i = r < 2 ? lane / 4 : lane / 4 + 8;
      const int j = 2 * (lane % 4) + r % 2;
      float want = static_cast<float>(1000 * i + j);
      for (int k = 0; k < kColumns; ++k) want += a_at(i, k) * b_at(k, j);
      EXPECT_EQ(got[static_cast<size_t>(4 * lane + r)], want) << i << ", " << j;
    }
  }
}

TEST(HopperWordsTest, ProductsTakeTheirElementsFromWhereTheTableSays) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectTheProduct<Kind::kBf16>();
  ExpectTheProduct<Kind::kFp16>();
  ExpectTheProduct<Kind::kTf32>();
}

__global__ void ConvertKernel(const float* values, int n, uint32_t* bf16, uint32_t* fp16,
                              uint32_t* tf32, float* back) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    bf16[i] = gpu::PackBf16(values[i], 1.0f);
    fp16[i] = gpu::PackFp16(1.0f, values[i]);
    tf32[i] = gpu::RoundToTf32(values[i]);
    back[4 * i] = gpu::UnpackBf16(bf16[i]).x;
    back[4 * i + 1] = gpu::UnpackBf16(bf16[i]).y;
    back[4 * i + 2] = gpu::UnpackFp16(fp16[i]).y;
    back[4 * i + 3] = gpu::UnpackFp16(fp16[i]).x;
  }
}

TEST(HopperWordsTest, ConversionsRoundToTheNearest) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Case {
    float value, bf16, fp16, tf32;
  };
  const std::vector<Case> cases = {
      {0.0f, 0.0f, 0.0f, 0.0f},
      {-1.5f, -1.5f, -1.5f, -1.5f},
      {1 + 0x1p-8f, 1.0f, 1 + 0x1p-8f, 1 + 0x1p-8f},         // bf16: a tie, to even
      {1 + 0x3p-8f, 1 + 0x1p-6f, 1 + 0x3p-8f, 1 + 0x3p-8f},  // the same, up
      {1 + 0x1p-11f, 1.0f, 1.0f, 1 + 0x1p-10f},              // TF32: a tie, away from zero
      {-1 - 0x1p-11f, -1.0f, -1.0f, -1 - 0x1p-10f},
      {1 + 0x1.fp-12f, 1.0f, 1.0f, 1.0f},
      {65519.0f, 65536.0f, 65504.0f, 65504.0f},
      {65520.0f, 65536.0f, kInf, 65536.0f},
      {-0x1.fep127f, -0x1.fep127f, -kInf, -0x1.fep127f},
      {0x1.ffp127f, kInf, kInf, 0x1.ffp127f},
      {0x1.fffffep127f, kInf, kInf, kInf},
      {0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f},  // fp16: its least number
      {0x1p-25f, 0x1p-25f, 0.0f, 0x1p-25f},
      {kInf, kInf, kInf, kInf},
  };
  std::vector<float> values;
  for (const Case& c : cases) values.push_back(c.value);
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  const auto n = values.size();
  test::DeviceArray<float> device_values(values), back(4 * n);
  test::DeviceArray<uint32_t> bf16(n), fp16(n), tf32(n);
  ConvertKernel<<<1, kLanes>>>(device_values.data(), static_cast<int>(n), bf16.data(), fp16.data(),
                               tf32.data(), back.data());
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  const std::vector<float> got = back.ToHost();
  const std::vector<uint32_t> got_tf32 = tf32.ToHost();
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].value);
    EXPECT_EQ(got[4 * i], cases[i].bf16);
    EXPECT_EQ(got[4 * i + 1], 1.0f);
    EXPECT_EQ(got[4 * i + 2], cases[i].fp16);
    EXPECT_EQ(got[4 * i + 3], 1.0f);
    float value;
    std::memcpy(&value, &got_tf32[i], sizeof(value));
    EXPECT_EQ(value, cases[i].tf32);
    EXPECT_EQ(got_tf32[i] & 0x1fff, 0u);
  }
  const size_t nan = n - 1;
  EXPECT_EQ(bf16.ToHost()[nan] & 0xffff, 0x7fffu);
  EXPECT_EQ(fp16.ToHost()[nan] >> 16, 0x7fffu);
  EXPECT_TRUE(std::isnan(got[4 * nan]));
  EXPECT_TRUE(std::isnan(got[4 * nan + 2]));
  EXPECT_EQ(got_tf32[nan] & 0x7fc00000, 0x7fc00000u);
}

// Rounds of kLanes x 16 bytes through two stages, each asked for one round ahead; words come out
// with a one added, by another lane than copied them.
constexpr int kRoundWords = kLanes * 4;

__global__ void CopyAheadKernel(const uint32_t* from, uint32_t* to, int rounds) {
  auto* const shared = reinterpret_cast<uint32_t*>(gpu::DynamicShared());
  const int lane = static_cast<int>(threadIdx.x);
  const auto ask = [&](int round) {
    if (round < rounds) {
      gpu::CopyAsync16(shared + round % 2 * kRoundWords + 4 * lane,
                       from + round * kRoundWords + 4 * lane);
    }
    gpu::CommitCopies();
  };
  ask(0);
  for (int round = 0; round < rounds; ++round) {
    __syncwarp();
    ask(round + 1);
    gpu::WaitForCopies<1>();
    __syncwarp();
    for (int i = kLanes - 1 - lane; i < kRoundWords; i += kLanes) {
      to[round * kRoundWords + i] = shared[round % 2 * kRoundWords + i] + 1;
    }
  }
}
// The same by bulk copies of pieces of different sizes.
__global__ void BulkCopyAheadKernel(const uint32_t* from, uint32_t* to, int rounds) {
  if (!gpu::HasBulkCopies()) return;
  std::byte* const bytes = gpu::DynamicShared();
  auto* const barriers = reinterpret_cast<gpu::CopyBarrier*>(bytes);
  auto* const shared = reinterpret_cast<uint32_t*>(bytes + 16);
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    gpu::InitCopyBarrier(barriers, 1);
    gpu::InitCopyBarrier(barriers + 1, 1);
    gpu::FenceAsyncCopies();
  }
  __syncwarp();
  const auto ask = [&](int round) {
    if (round >= rounds) return;
    gpu::CopyBarrier* const barrier = barriers + round % 2;
    if (lane == 0) gpu::ArriveAndExpect(barrier, kRoundWords * 4);
    constexpr int kWords[] = {4, 20, 40, kRoundWords - 64};
    int begin = 0;
    for (int piece = 0; piece < 4; ++piece) {
      if (lane == 7 * piece) {
        gpu::BulkCopy(shared + round % 2 * kRoundWords + begin, from + round * kRoundWords + begin,
                      static_cast<uint32_t>(kWords[piece] * 4), barrier);
      }
      begin += kWords[piece];
    }
  };
  ask(0);
  for (int round = 0; round < rounds; ++round) {
    gpu::FenceAsyncCopies();
    __syncwarp();
    ask(round + 1);
    gpu::WaitForPhase(barriers + round % 2, static_cast<uint32_t>(round / 2 % 2));
    for (int i = kLanes - 1 - lane; i < kRoundWords; i += kLanes) {
      to[round * kRoundWords + i] = shared[round % 2 * kRoundWords + i] + 1;
    }
  }
}

TEST(HopperWordsTest, CopiesAheadArriveBeforeTheyAreReadAndNotBeforeTheStageIsFree) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int kRounds = 9;
  std::vector<uint32_t> from(kRounds * kRoundWords);
  std::vector<uint32_t> want;
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<uint32_t>(3 * i);
    want.push_back(from[i] + 1);
  }
  test::DeviceArray<uint32_t> device_from(from);
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  for (int repeat = 0; repeat < 5; ++repeat) {
    test::DeviceArray<uint32_t> to(from.size()), bulk_to(from.size());
    CopyAheadKernel<<<1, kLanes, 2 * kRoundWords * 4>>>(device_from.data(), to.data(), kRounds);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(to.ToHost(), want);
    BulkCopyAheadKernel<<<1, kLanes, 16 + 2 * kRoundWords * 4>>>(device_from.data(), bulk_to.data(),
                                                                 kRounds);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    if (major >= 9) {
      EXPECT_EQ(bulk_to.ToHost(), want);
    }
  }
}

}  // namespace
}  // namespace hotrow
