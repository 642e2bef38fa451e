#ifndef HOTROW_BASE_MACROS_H_
#define HOTROW_BASE_MACROS_H_

// Marks a function for host and device: nvcc compiles one definition for both.
#if defined(__CUDACC__)
#define HOTROW_HOST_DEVICE __host__ __device__
#else
#define HOTROW_HOST_DEVICE
#endif

#endif  // HOTROW_BASE_MACROS_H_
