#include "ops/products/dense_precision.h"

#include <dnnl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/parse_word.h"
#include "ops/products/bf16_gemm_impl.h"
#include "ops/products/processor_kind.h"

namespace hotrow {

namespace {

constexpr EnumWord<DensePrecision> kDensePrecisions[] = {{"fp32", DensePrecision::kFp32},
                                                         {"tf32", DensePrecision::kTf32},
                                                         {"bf16", DensePrecision::kBf16},
                                                         {"fp16", DensePrecision::kFp16}};

}  // namespace

absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name) {
  return ParseWord(kDensePrecisions, "precision", name);
}
std::string_view DensePrecisionName(DensePrecision precision) {
  return WordOf(kDensePrecisions, precision);
}

absl::Status CheckDensePrecision(DensePrecision precision, Device device, std::string_view option) {
  if (device != Device::kCpu || precision == DensePrecision::kFp32) return absl::OkStatus();
  const std::string name(option);
  if (precision == DensePrecision::kTf32) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "tf32 is for GPUs; on the CPU use ", name, "fp32"));
  }
  if (precision == DensePrecision::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "fp16 is for GPUs; on the CPU use ", name, "bf16 or ", name, "fp32"));
  }
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  const bool onednn_supports =
      (isa & dnnl_cpu_isa_avx512_core_bf16) == static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
  return internal::CheckBf16(onednn_supports, internal::Bf16RowsSupported(), ProcessorKind(), name);
}

}  // namespace hotrow
