// The cublasLt of the emulated GPU, which is linked, in place of the library that is looked for.

#include "ops/products/cublaslt_impl.cuh"

namespace hotrow::internal {

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const CublasLt functions = {
#define HOTROW_CUBLASLT_ADDRESS(name) .name = &::name,
      HOTROW_CUBLASLT_FUNCTIONS(HOTROW_CUBLASLT_ADDRESS)
#undef HOTROW_CUBLASLT_ADDRESS
  };
  return &functions;
}

}  // namespace hotrow::internal
