#ifndef HOTROW_TESTS_EMULATED_GPU_CUDA_FP16_H_
#define HOTROW_TESTS_EMULATED_GPU_CUDA_FP16_H_

#include <cstdint>

// As much of CUDA's header as kernels use.
struct __half {
  uint16_t bits;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half value) {
  _Float16 half;
  static_assert(sizeof(half) == sizeof(value));
  __builtin_memcpy(&half, &value, sizeof(half));
  return static_cast<float>(half);
}

#endif  // HOTROW_TESTS_EMULATED_GPU_CUDA_FP16_H_
