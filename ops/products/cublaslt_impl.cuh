#ifndef HOTROW_OPS_PRODUCTS_CUBLASLT_IMPL_CUH_
#define HOTROW_OPS_PRODUCTS_CUBLASLT_IMPL_CUH_

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace hotrow::internal {

// The functions of cublasLt that we call. Those that end in _internal stand behind inline functions
// of cublasLt.h, which pass the size of the struct along.
#define HOTROW_CUBLASLT_FUNCTIONS(X)       \
  X(cublasLtCreate)                        \
  X(cublasLtDestroy)                       \
  X(cublasLtGetStatusName)                 \
  X(cublasLtGetStatusString)               \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoConfigGetAttribute)  \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)  \
  X(cublasLtMatrixLayoutInit_internal)

struct CublasLt {
#define HOTROW_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  HOTROW_CUBLASLT_FUNCTIONS(HOTROW_CUBLASLT_MEMBER)
#undef HOTROW_CUBLASLT_MEMBER
};

// The library, loaded when it is first asked for and kept. Not linked: it is half a gigabyte, and a
// program with CUDA in it should start, and train on the CPU, where it is missing. Looked for as
// the loader looks, LD_LIBRARY_PATH included, in the major version that we were compiled for.
// FailedPrecondition "no usable GPU: ..." says what is missing and where to get it.
absl::StatusOr<const CublasLt*> LoadCublasLt();

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_CUBLASLT_IMPL_CUH_
