#ifndef HOTROW_BASE_MACROS_H_
#define HOTROW_BASE_MACROS_H_

// Marks a function that both the host compiler and nvcc compile, so that one definition serves
// both.
#if defined(__CUDACC__)
#define HOTROW_HOST_DEVICE __host__ __device__
#else
#define HOTROW_HOST_DEVICE
#endif

#endif  // HOTROW_BASE_MACROS_H_
