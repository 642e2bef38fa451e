// GemmCuda of the emulated GPU, in place of cublasLt: plain loops, sums in double.

#include "ops/gemm_cuda_impl.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/cuda_device.h"
#include "base/status_macros.h"
#include "tests/emulated_gpu/emulated_gpu.h"

namespace hotrow::internal {

struct GemmCuda::Impl {
  bool bf16 = false;  // the factors
};

namespace {

float FactorAt(const void* factors, bool bf16, int64_t i) {
  if (!bf16) return static_cast<const float*>(factors)[i];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(factors)[i]} << 16);
}

void PutResult(double sum, bool bf16, void* results, int64_t i) {
  const auto value = static_cast<float>(sum);
  if (!bf16) {
    static_cast<float*>(results)[i] = value;
    return;
  }
  // To the nearest, ties to even, beyond the largest to infinity.
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = std::isnan(value) ? 0x7fff0000 : bits + 0x7fff + ((bits >> 16) & 1);
  static_cast<uint16_t*>(results)[i] = static_cast<uint16_t>(rounded >> 16);
}

}  // namespace

GemmCuda::GemmCuda(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmCuda::~GemmCuda() = default;

absl::StatusOr<std::unique_ptr<GemmCuda>> GemmCuda::Create(GemmPrecision precision) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  auto impl = std::make_unique<Impl>();
  impl->bf16 = precision == GemmPrecision::kBf16;
  return std::unique_ptr<GemmCuda>(new GemmCuda(std::move(impl)));
}

absl::Status GemmCuda::Run(CudaStream stream, const ColumnMajorProduct& p, std::byte*) {
  emulated::EnqueueOnStream(stream, [p, bf16 = impl_->bf16] {
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t i = 0; i < p.m; ++i) {
        double sum = 0;
        for (int64_t l = 0; l < p.k; ++l) {
          const float a = FactorAt(p.a, bf16, p.transpose_a ? i * p.lda + l : l * p.lda + i);
          const float b = FactorAt(p.b, bf16, p.transpose_b ? l * p.ldb + j : j * p.ldb + l);
          sum += double{a} * double{b};
        }
        if (p.adds) sum += double{static_cast<const float*>(p.c)[j * p.ldc + i]};
        PutResult(sum, p.bf16_result, p.c, j * p.ldc + i);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
