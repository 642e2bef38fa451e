#ifndef HOTROW_TESTS_SUPPORT_GPU_TEST_H_
#define HOTROW_TESTS_SUPPORT_GPU_TEST_H_

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace hotrow::test {

// CheckUsableGpu(), or its answer in a build without CUDA.
absl::Status UsableGpu();

// Whether HOTROW_REQUIRE_GPU=1 is set: machines that have a GPU set it, so that a broken driver is
// a failure there and not a silent skip.
bool GpuRequired();

// How much work a test gives a GPU, and how much one that is emulated (tests/emulated_gpu/), which
// is slower by orders of magnitude.
#if HOTROW_EMULATED_GPU
constexpr bool kEmulatedGpu = true;
#else
constexpr bool kEmulatedGpu = false;
#endif
template <typename T>
constexpr T ForGpu(T full, T emulated) {
  return kEmulatedGpu ? emulated : full;
}

}  // namespace hotrow::test

// First line of a test that needs a GPU: skips it, with the reason, where there is none.
#define HOTROW_REQUIRE_GPU_OR_SKIP()                                            \
  do {                                                                          \
    const absl::Status hotrow_gpu_status_ = ::hotrow::test::UsableGpu();        \
    if (!hotrow_gpu_status_.ok()) {                                             \
      if (::hotrow::test::GpuRequired()) {                                      \
        FAIL() << "HOTROW_REQUIRE_GPU=1, but " << hotrow_gpu_status_.message(); \
      }                                                                         \
      GTEST_SKIP() << hotrow_gpu_status_.message();                             \
    }                                                                           \
  } while (false)

#endif  // HOTROW_TESTS_SUPPORT_GPU_TEST_H_
