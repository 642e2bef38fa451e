#ifndef HOTROW_BASE_HOPPER_CUH_
#define HOTROW_BASE_HOPPER_CUH_

#include <cstddef>
#include <cstdint>

// Words of Ampere and Hopper that CUDA C++ has no names for, one function for each instruction of
// PTX. Kernels of the dense part are written in them. The emulated GPU has a header of this name
// with a twin of each (tests/emulated_gpu/include/base/hopper.cuh), which includes shadow this one.
//
// Who calls: "warp" in a comment means that all 32 lanes call, in step, as .sync.aligned wants it.
// Shared memory is given as an ordinary pointer; the compiler sees through the conversion.
namespace hotrow::gpu {

// The bytes of shared memory that the launch asked for, 128-byte aligned. More than 48 KiB need
// cudaFuncAttributeMaxDynamicSharedMemorySize.
__device__ inline std::byte* DynamicShared() {
  extern __shared__ __align__(128) unsigned char hotrow_dynamic_shared[];
  return reinterpret_cast<std::byte*>(hotrow_dynamic_shared);
}

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// --- Matrix fragments
//
// Below, lane = 4 g + t: g = lane / 4 in [0, 8), t = lane % 4. PTX calls them groupID and
// threadID_in_group.

// Four 8 x 8 matrices of 16-bit elements, whose rows are 16 bytes each and 16-byte aligned. Lane l
// names row l % 8 of matrix l / 8. Register r of a lane is of matrix r:
//
//   LoadMatrices            row g, elements 2t and 2t + 1 (the first in the low half)
//   LoadMatricesTransposed  rows 2t and 2t + 1, element g
//
// With four 32-bit elements a row, LoadMatrices gives row g, element t. Warp; orders nothing: where
// lanes write what others read, __syncwarp stands between.
__device__ inline void LoadMatrices(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ inline void LoadMatricesTransposed(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// c += a b, where a is 16 x K, b is K x 8 and c is 16 x 8, in fp32. Which element of which register
// lies where (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... m16n8k8"):
//
//                bf16, fp16: K = 16, two a register     TF32: K = 8, one a register
//   a[0]         row g,     columns 2t, 2t + 1          row g,     column t
//   a[1]         row g + 8, columns 2t, 2t + 1          row g + 8, column t
//   a[2]         row g,     columns 2t + 8, 2t + 9      row g,     column t + 4
//   a[3]         row g + 8, columns 2t + 8, 2t + 9      row g + 8, column t + 4
//   b0           rows 2t, 2t + 1,     column g          row t,     column g
//   b1           rows 2t + 8, 2t + 9, column g          row t + 4, column g
//   c[0], c[1]   row g,     columns 2t and 2t + 1       the same
//   c[2], c[3]   row g + 8, columns 2t and 2t + 1       the same
//
// So with a of 16 rows of X by LoadMatrices, b = X^T of the first eight of these rows is a[0],
// a[2], and of the other eight a[1], a[3]. Products are exact; sums are of at least fp32's bits, in
// an order that the hardware keeps to itself but never changes, and may cut instead of round. Warp.
__device__ inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void MmaFp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Registers are floats whose lower 13 bits are zero (RoundToTf32).
__device__ inline void MmaTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- Conversions
//
// To the nearest, ties to even, beyond the largest to infinity, NaN to 0x7fff; two a word, the
// first in the low half.
__device__ inline uint32_t PackBf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline uint32_t PackFp16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float2 UnpackBf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ inline float2 UnpackFp16(uint32_t pair) {
  float2 values;
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}
// Rounds to the nearest number with ten bits of fraction, ties away from zero; the bits of a float.
__device__ inline uint32_t RoundToTf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits & 0xffffe000u;  // the instruction does not promise zeros below
}

// --- Copies from device to shared memory that go on beside the thread, Ampere's way
//
// Sixteen or eight bytes, both addresses aligned to as many; through the L1, or sixteen past it.
// Copies that a thread began before CommitCopies are a group; WaitForCopies<n> returns when all
// groups of the thread but the latest n have arrived. The others of the warp or block see the bytes
// after a barrier behind that.
__device__ inline void CopyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)), "l"(global)
               : "memory");
}
__device__ inline void CopyAsync16ByL1(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)), "l"(global)
               : "memory");
}
__device__ inline void CopyAsync8(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(SharedAddress(shared)), "l"(global)
               : "memory");
}
// Into the L2 alone, and nobody waits.
__device__ inline void PrefetchToL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLatest>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLatest) : "memory");
}

// --- The same, Hopper's way: one thread copies many bytes, and a barrier in shared memory counts
// what has arrived.

// Whether the device that this is compiled for has them. Elsewhere they stop the kernel.
__device__ inline bool HasBulkCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return true;
#else
  return false;
#endif
}

// An mbarrier: eight bytes of shared memory. A phase ends when `arrivals` threads have arrived and
// all bytes that they announced are there; phases count from 0.
using CopyBarrier = uint64_t;

// Made by one thread; then FenceAsyncCopies by that thread and a barrier before others use it.
__device__ inline void InitCopyBarrier(CopyBarrier* barrier, uint32_t arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
#else
  __trap();
#endif
}
// Arrives, and announces so many bytes to the current phase.
__device__ inline void ArriveAndExpect(CopyBarrier* barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
#else
  __trap();
#endif
}
// Waits until the latest phase whose number has this parity has ended; what was copied is then
// visible to the calling thread. A barrier that is new counts as one whose phase of parity 1 has
// ended.
__device__ inline void WaitForPhase(CopyBarrier* barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nHOTROW_WAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra HOTROW_WAIT_%=;\n}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
#else
  __trap();
#endif
}
// Copies; both addresses and the number of bytes are multiples of 16. The bytes arrive at the
// barrier, whose phase somebody has announced them to or will.
__device__ inline void BulkCopy(void* shared, const void* global, uint32_t bytes,
                                CopyBarrier* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
#else
  __trap();
#endif
}
// Stands between what a thread did with shared memory itself (barriers that it made, bytes that it
// read or wrote) and bulk copies to the same place, which go another way to memory. By each such
// thread; then a barrier; then the copies.
__device__ inline void FenceAsyncCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace hotrow::gpu

#endif  // HOTROW_BASE_HOPPER_CUH_
