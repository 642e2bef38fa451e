#include "ops/products/dense_precision.h"

#include <dnnl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/parse_word.h"
#include "ops/products/bf16_gemm_impl.h"
#include "ops/products/int8_gemm_impl.h"
#include "ops/products/processor_kind.h"

namespace hotrow {

namespace {

constexpr EnumWord<DensePrecision> kDensePrecisions[] = {{"fp32", DensePrecision::kFp32},
                                                         {"tf32", DensePrecision::kTf32},
                                                         {"bf16", DensePrecision::kBf16},
                                                         {"fp16", DensePrecision::kFp16},
                                                         {"int8", DensePrecision::kInt8}};

}  // namespace

absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name) {
  return ParseWord(kDensePrecisions, "precision", name);
}
std::string_view DensePrecisionName(DensePrecision precision) {
  return WordOf(kDensePrecisions, precision);
}

absl::Status CheckDensePrecision(DensePrecision precision, Device device, std::string_view option) {
  const std::string name(option);
  if (device != Device::kCpu && precision == DensePrecision::kInt8) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "int8 is for scoring on the CPU; on a GPU use ", name, "fp16"));
  }
  if (device != Device::kCpu || precision == DensePrecision::kFp32) return absl::OkStatus();
  if (precision == DensePrecision::kTf32) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "tf32 is for GPUs; on the CPU use ", name, "fp32"));
  }
  if (precision == DensePrecision::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "fp16 is for GPUs; on the CPU use ", name, "bf16 or ", name, "fp32"));
  }
  const auto onednn_has = [](dnnl_cpu_isa_t isa) {
    const auto bits = static_cast<unsigned>(isa);
    return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & bits) == bits;
  };
  if (precision == DensePrecision::kInt8) {
    return internal::CheckInt8(onednn_has(dnnl_cpu_isa_avx512_core_vnni),
                               internal::Int8RowsSupported(), ProcessorKind(), name);
  }
  return internal::CheckBf16(onednn_has(dnnl_cpu_isa_avx512_core_bf16),
                             internal::Bf16RowsSupported(), ProcessorKind(), name);
}

}  // namespace hotrow
