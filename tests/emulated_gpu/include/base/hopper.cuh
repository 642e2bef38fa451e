#ifndef HOTROW_TESTS_EMULATED_GPU_BASE_HOPPER_CUH_
#define HOTROW_TESTS_EMULATED_GPU_BASE_HOPPER_CUH_

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/emulated_gpu/emulated_gpu.h"

// The twins of base/hopper.cuh, which says what each word does.
namespace hotrow::gpu {

inline std::byte* DynamicShared() { return emulated::DynamicShared(); }

// --- Matrix fragments

namespace twin {

constexpr uint32_t kAllLanes = 0xffffffffu;

inline uint32_t Element(uint64_t row, int column) {
  uint16_t value;
  std::memcpy(&value, reinterpret_cast<const std::byte*>(row) + 2 * column, sizeof(value));
  return value;
}

// Each lane reads when its turn comes: what others have written by then shows, so that a
// __syncwarp that is missing is found.
template <bool kTransposed>
void Load(const char* what, const void* row, uint32_t (&m)[4]) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulated::Fail("ldmatrix: a misaligned row");
  const uint64_t* const rows =
      emulated::MeetLanes(what, kAllLanes, reinterpret_cast<uint64_t>(row)).data();
  const int g = emulated::CurrentLane() / 4;
  const int t = emulated::CurrentLane() % 4;
  for (int r = 0; r < 4; ++r) {
    const uint64_t* const of = rows + 8 * r;
    m[r] = kTransposed ? Element(of[2 * t], g) | Element(of[2 * t + 1], g) << 16
                       : Element(of[g], 2 * t) | Element(of[g], 2 * t + 1) << 16;
  }
}

enum class Factor { kBf16, kFp16, kTf32 };

// Without checks: all of it is ours, and most of what an emulated product costs.
#define HOTROW_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

// Element `part` of a register.
template <Factor kFactor>
HOTROW_UNCHECKED inline float Widen(uint32_t word, int part) {
  if constexpr (kFactor == Factor::kTf32) return __builtin_bit_cast(float, word);
  const uint32_t bits = (word >> (16 * part)) & 0xffffu;
  if constexpr (kFactor == Factor::kBf16) return __builtin_bit_cast(float, bits << 16);
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16_t>(bits)));
}

// The lane's part of a product, of the registers a[0..3], b0, b1 of each lane.
template <Factor kFactor>
HOTROW_UNCHECKED void Multiply(const uint32_t* words, int lane, float (&c)[4]) {
  constexpr int kHalf = kFactor == Factor::kTf32 ? 4 : 8;  // columns of a[0], of four lanes
  constexpr int kParts = kHalf / 4;                        // of a register
  const int g = lane / 4;
  const int t = lane % 4;
  float a[2][2 * kHalf];  // rows g and g + 8
  float b[2][2 * kHalf];  // columns 2t and 2t + 1
  for (int k = 0; k < 2 * kHalf; ++k) {
    const int half = k / kHalf;
    const int owner = k % kHalf / kParts;
    const int part = k % kParts;
    for (int i = 0; i < 2; ++i) {
      a[i][k] = Widen<kFactor>(words[6 * (4 * g + owner) + i + 2 * half], part);
      b[i][k] = Widen<kFactor>(words[6 * (4 * (2 * t + i) + owner) + 4 + half], part);
    }
  }
  for (int e = 0; e < 4; ++e) {
    for (int k = 0; k < 2 * kHalf; ++k) c[e] = __builtin_fmaf(a[e / 2][k], b[e % 2][k], c[e]);
  }
}
#undef HOTROW_UNCHECKED

template <Factor kFactor>
void Mma(const char* what, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const emulated::LaneBlocks& lanes = emulated::MeetLanesWith(
      what, kAllLanes,
      {uint64_t{a[1]} << 32 | a[0], uint64_t{a[3]} << 32 | a[2], uint64_t{b1} << 32 | b0});
  static_assert(std::endian::native == std::endian::little && sizeof(lanes[0]) == 24);
  Multiply<kFactor>(reinterpret_cast<const uint32_t*>(lanes.data()), emulated::CurrentLane(), c);
}

// Rounds away `cut` bits of a finite magnitude, ties to even.
inline uint32_t RoundBits(uint32_t magnitude, uint32_t cut) {
  return (magnitude + (1u << (cut - 1)) - 1 + ((magnitude >> cut) & 1)) >> cut << cut;
}

inline uint32_t NarrowBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  const uint32_t magnitude = bits & 0x7fffffffu;
  return (bits >> 31 << 15) | RoundBits(magnitude, 16) >> 16;  // past the largest: infinity's bits
}
inline uint32_t NarrowFp16(float value) {
  if (std::isnan(value)) return 0x7fff;
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

}  // namespace twin

inline void LoadMatrices(const void* row, uint32_t (&m)[4]) {
  twin::Load<false>("ldmatrix", row, m);
}
inline void LoadMatricesTransposed(const void* row, uint32_t (&m)[4]) {
  twin::Load<true>("ldmatrix.trans", row, m);
}

inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  twin::Mma<twin::Factor::kBf16>("mma.bf16", c, a, b0, b1);
}
inline void MmaFp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  twin::Mma<twin::Factor::kFp16>("mma.f16", c, a, b0, b1);
}
inline void MmaTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (const uint32_t word : {a[0], a[1], a[2], a[3], b0, b1}) {
    if ((word & 0x1fff) != 0) emulated::Fail("mma.tf32: a factor that was not rounded");
  }
  twin::Mma<twin::Factor::kTf32>("mma.tf32", c, a, b0, b1);
}

// --- Conversions

inline uint32_t PackBf16(float low, float high) {
  return twin::NarrowBf16(low) | twin::NarrowBf16(high) << 16;
}
inline uint32_t PackFp16(float low, float high) {
  return twin::NarrowFp16(low) | twin::NarrowFp16(high) << 16;
}
inline float2 UnpackBf16(uint32_t pair) {
  return {twin::Widen<twin::Factor::kBf16>(pair, 0), twin::Widen<twin::Factor::kBf16>(pair, 1)};
}
inline float2 UnpackFp16(uint32_t pair) {
  return {twin::Widen<twin::Factor::kFp16>(pair, 0), twin::Widen<twin::Factor::kFp16>(pair, 1)};
}
inline uint32_t RoundToTf32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fffe000u;
  if (std::isinf(value)) return bits;
  return (bits + 0x1000u) & 0xffffe000u;  // a carry raises the exponent, up to infinity
}

// --- Copies

inline void CopyAsync16(void* shared, const void* global) {
  emulated::BeginCopy(shared, global, 16);
}
inline void CopyAsync16ByL1(void* shared, const void* global) { CopyAsync16(shared, global); }
inline void CopyAsync8(void* shared, const void* global) { emulated::BeginCopy(shared, global, 8); }
inline void PrefetchToL2(const void*) {}
inline void CommitCopies() { emulated::CommitCopies(); }
template <int kLatest>
void WaitForCopies() {
  emulated::WaitForCopies(kLatest);
}

inline bool HasBulkCopies() { return emulated::ComputeCapability() >= 90; }
using CopyBarrier = uint64_t;
inline void InitCopyBarrier(CopyBarrier* barrier, uint32_t arrivals) {
  emulated::InitCopyBarrier(barrier, arrivals);
}
inline void ArriveAndExpect(CopyBarrier* barrier, uint32_t bytes) {
  emulated::ArriveAndExpect(barrier, bytes);
}
inline void WaitForPhase(CopyBarrier* barrier, uint32_t parity) {
  emulated::WaitForPhase(barrier, parity);
}
inline void BulkCopy(void* shared, const void* global, uint32_t bytes, CopyBarrier* barrier) {
  emulated::BeginBulkCopy(shared, global, bytes, barrier);
}
inline void FenceAsyncCopies() {}

}  // namespace hotrow::gpu

#endif  // HOTROW_TESTS_EMULATED_GPU_BASE_HOPPER_CUH_
