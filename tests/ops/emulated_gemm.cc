// GemmCuda of the emulated GPU, in place of cublasLt: plain loops, sums in double.

#include "ops/gemm_cuda_impl.h"

#include <memory>
#include <utility>

#include "base/cuda_device.h"
#include "base/status_macros.h"
#include "tests/emulated_gpu/emulated_gpu.h"

namespace hotrow::internal {

struct GemmCuda::Impl {};

GemmCuda::GemmCuda(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmCuda::~GemmCuda() = default;

absl::StatusOr<std::unique_ptr<GemmCuda>> GemmCuda::Create(GemmPrecision) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  return std::unique_ptr<GemmCuda>(new GemmCuda(std::make_unique<Impl>()));
}

absl::Status GemmCuda::Run(CudaStream stream, const ColumnMajorProduct& p, std::byte*) {
  emulated::EnqueueOnStream(stream, [p] {
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t i = 0; i < p.m; ++i) {
        double sum = 0;
        for (int64_t l = 0; l < p.k; ++l) {
          const float a = p.transpose_a ? p.a[i * p.lda + l] : p.a[l * p.lda + i];
          const float b = p.transpose_b ? p.b[l * p.ldb + j] : p.b[j * p.ldb + l];
          sum += double{a} * double{b};
        }
        p.c[j * p.ldc + i] = static_cast<float>(sum);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
