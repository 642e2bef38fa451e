#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda_device.h"
#include "base/status_macros.h"
#include "ops/cublaslt_impl.cuh"
#include "ops/gemm_cuda_impl.h"

namespace hotrow::internal {
namespace {

// A batch size makes a few; a caller with ever new ones must not fill the memory.
constexpr size_t kMaxPlans = 1024;

absl::Status CublasStatus(const CublasLt& lt, cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", lt.cublasLtGetStatusName(status), " (",
                                           lt.cublasLtGetStatusString(status), ")");
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::FailedPreconditionError(absl::StrCat("no usable GPU: ", message));
    default:
      return absl::InternalError(message);
  }
}

// "a product [512, 2048] of [512, 13] and [13, 2048]", in column-major terms.
std::string ShapeText(const GemmKey& key) {
  return absl::StrCat("cublasLt, a product [", key.m, ", ", key.n, "] of [", key.m, ", ", key.k,
                      "] and [", key.k, ", ", key.n, "]");
}

// Descriptors point to nothing, so they may lie where the plan lies; Plan is never moved.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

template <typename T>
cublasStatus_t SetPreference(const CublasLt& lt, cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return lt.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
}

cublasStatus_t InitLayout(const CublasLt& lt, cublasLtMatrixLayout_t layout, cudaDataType_t type,
                          bool transposed, int64_t rows, int64_t columns, int64_t ld) {
  if (transposed) std::swap(rows, columns);
  return lt.cublasLtMatrixLayoutInit_internal(layout, sizeof(*layout), type,
                                              static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(columns), ld);
}

}  // namespace

struct GemmCuda::Impl {
  ~Impl() {
    if (handle != nullptr) lt->cublasLtDestroy(handle);
  }
  absl::Status Choose(const GemmKey& key, Plan* plan) const;

  const CublasLt* lt = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_32F;
  cudaDataType_t factor_type = CUDA_R_32F;
  std::map<GemmKey, Plan> plans;
};

absl::Status GemmCuda::Impl::Choose(const GemmKey& key, Plan* plan) const {
  const auto check = [&](cublasStatus_t status) {
    return CublasStatus(*lt, status, ShapeText(key));
  };
  const cublasOperation_t op_a = key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  HOTROW_RETURN_IF_ERROR(check(lt->cublasLtMatmulDescInit_internal(
      &plan->operation, sizeof(plan->operation), compute_type, CUDA_R_32F)));
  HOTROW_RETURN_IF_ERROR(check(lt->cublasLtMatmulDescSetAttribute(
      &plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a))));
  HOTROW_RETURN_IF_ERROR(check(lt->cublasLtMatmulDescSetAttribute(
      &plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b))));
  HOTROW_RETURN_IF_ERROR(
      check(InitLayout(*lt, &plan->a, factor_type, key.transpose_a, key.m, key.k, key.lda)));
  HOTROW_RETURN_IF_ERROR(
      check(InitLayout(*lt, &plan->b, factor_type, key.transpose_b, key.k, key.n, key.ldb)));
  HOTROW_RETURN_IF_ERROR(check(InitLayout(*lt, &plan->c, key.half_result ? factor_type : CUDA_R_32F,
                                          /*transposed=*/false, key.m, key.n, key.ldc)));

  cublasLtMatmulPreferenceOpaque_t preference;
  HOTROW_RETURN_IF_ERROR(
      check(lt->cublasLtMatmulPreferenceInit_internal(&preference, sizeof(preference))));
  // What is cut along k is summed by a pass of its own, in a fixed order. The scheme that is left
  // out adds in the order in which blocks finish.
  HOTROW_RETURN_IF_ERROR(
      check(SetPreference(*lt, &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                          uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE})));
  HOTROW_RETURN_IF_ERROR(
      check(SetPreference(*lt, &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                          static_cast<uint64_t>(kGemmWorkspaceBytes))));
  const std::pair<cublasLtMatmulPreferenceAttributes_t, uint32_t> alignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_a},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_b},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c}};
  for (const auto& [attribute, bytes] : alignments) {
    HOTROW_RETURN_IF_ERROR(check(SetPreference(*lt, &preference, attribute, bytes)));
  }

  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  HOTROW_RETURN_IF_ERROR(check(
      lt->cublasLtMatmulAlgoGetHeuristic(handle, &plan->operation, &plan->a, &plan->b, &plan->c,
                                         &plan->c, &preference, 1, &result, &count)));
  if (count == 0) {
    return absl::InternalError(absl::StrCat(ShapeText(key), ": no algorithm for it"));
  }
  HOTROW_RETURN_IF_ERROR(check(result.state));
  plan->algorithm = result.algo;
  return absl::OkStatus();
}

GemmCuda::GemmCuda(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmCuda::~GemmCuda() = default;

absl::StatusOr<std::unique_ptr<GemmCuda>> GemmCuda::Create(GemmPrecision precision) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  auto impl = std::make_unique<Impl>();
  HOTROW_ASSIGN_OR_RETURN(impl->lt, LoadCublasLt());
  HOTROW_RETURN_IF_ERROR(
      CublasStatus(*impl->lt, impl->lt->cublasLtCreate(&impl->handle), "cublasLtCreate"));
  if (precision == GemmPrecision::kTf32) impl->compute_type = CUBLAS_COMPUTE_32F_FAST_TF32;
  if (precision == GemmPrecision::kBf16) impl->factor_type = CUDA_R_16BF;
  if (precision == GemmPrecision::kFp16) impl->factor_type = CUDA_R_16F;
  return std::unique_ptr<GemmCuda>(new GemmCuda(std::move(impl)));
}

absl::Status GemmCuda::Run(CudaStream stream, const ColumnMajorProduct& product,
                           std::byte* workspace) {
  const GemmKey key = KeyOf(product);
  auto found = impl_->plans.find(key);
  if (found == impl_->plans.end()) {
    if (impl_->plans.size() >= kMaxPlans) impl_->plans.clear();
    found = impl_->plans.try_emplace(key).first;
    const absl::Status chosen = impl_->Choose(key, &found->second);
    if (!chosen.ok()) {
      impl_->plans.erase(found);
      return chosen;
    }
  }
  Plan& plan = found->second;
  constexpr float kOne = 1;
  const float kept = product.adds ? 1.0f : 0.0f;  // of what C was
  const cublasStatus_t status = impl_->lt->cublasLtMatmul(
      impl_->handle, &plan.operation, &kOne, product.a, &plan.a, product.b, &plan.b, &kept,
      product.c, &plan.c, product.c, &plan.c, &plan.algorithm, workspace,
      static_cast<size_t>(kGemmWorkspaceBytes), stream);
  // The text is made for an error only: this runs a dozen times a step.
  return status == CUBLAS_STATUS_SUCCESS ? absl::OkStatus()
                                         : CublasStatus(*impl_->lt, status, ShapeText(key));
}

}  // namespace hotrow::internal
