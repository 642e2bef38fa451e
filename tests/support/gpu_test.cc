#include "tests/support/gpu_test.h"

#include <cstdlib>
#include <string_view>

#if HOTROW_HAVE_CUDA
#include "base/cuda_device.h"
#endif

namespace hotrow::test {

absl::Status UsableGpu() {
#if HOTROW_HAVE_CUDA
  return CheckUsableGpu();
#else
  return absl::FailedPreconditionError(
      "no usable GPU: this build has no CUDA; configure with -DHOTROW_CUDA=ON");
#endif
}

bool GpuRequired() {
  const char* const required = std::getenv("HOTROW_REQUIRE_GPU");
  return required != nullptr && std::string_view(required) == "1";
}

}  // namespace hotrow::test
