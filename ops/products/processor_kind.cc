#include "ops/products/processor_kind.h"

#include <dnnl.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hotrow {
namespace {

std::string IsaName(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_all:
      return "baseline";  // older than all that have a name
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    default:  // versions differ in which others they have
      return absl::StrFormat("isa_%#x", static_cast<unsigned>(isa));
  }
}

}  // namespace

std::string ProcessorKind() {
  const dnnl_version_t* const version = dnnl_version();
  return absl::StrCat("oneDNN ", version->major, ".", version->minor, ".", version->patch, " ",
                      IsaName(dnnl_get_effective_cpu_isa()));
}

}  // namespace hotrow
