#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "ops/products/cublaslt_impl.cuh"
#include "ops/products/gemm_cuda_impl.h"
#include "ops/products/gemm_probe_impl.h"
#include "ops/products/unfused_products.h"

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

// Descriptors point to nothing of ours, so they may lie where the plan lies; Plan is never moved
// while it is in use.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  bool fused = true;  // what its epilogue says is part of the product
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

bool HasBias(const GemmKey& key) { return key.align_bias > 0; }
bool HasEpilogue(const GemmKey& key) { return key.relu || HasBias(key); }
GemmKey WithoutEpilogue(GemmKey key) {
  key.relu = false;
  key.align_bias = 0;
  return key;
}
ColumnMajorProduct WithoutEpilogue(ColumnMajorProduct product) {
  product.epilogue = GemmEpilogue::kNone;
  product.bias = nullptr;
  product.mask = nullptr;
  product.dropout = nullptr;
  return product;
}

cublasLtEpilogue_t EpilogueOf(const GemmKey& key) {
  if (key.relu) return HasBias(key) ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  return CUBLASLT_EPILOGUE_BIAS;
}
std::string EpilogueText(const GemmKey& key) {
  if (!key.relu) return "bias";
  return HasBias(key) ? "bias and ReLU" : "ReLU";
}

// Columns of the products that try a plan: few, since what an epilogue does to a number does not
// depend on how many there are.
constexpr int64_t kProbeColumns = 256;

// A matrix of a product and what cublasLt gets in its place.
struct LinesOf {
  const void* data;
  int64_t ld, line, lines;  // of the caller
  int64_t to_line, to_lines;
  int64_t room;
  int64_t number_bytes;

  // Whether the caller's memory will not do.
  bool needs_copy() const {
    return AddressAlignment(data) < 16 || ld * number_bytes % 16 != 0 || lines != to_lines ||
           to_line > std::max(line, room);
  }
  int64_t bytes() const { return RoundUp(to_line * to_lines * number_bytes, kBufferAlignment); }
  CopyLinesArgs CopyTo(std::byte* to) const {
    return {data, ld, line, lines, to, to_line, to_line, to_lines, number_bytes == 2};
  }
};
LinesOf OfA(const ColumnMajorProduct& p, const ColumnMajorProduct& q, int64_t bytes) {
  return p.transpose_a ? LinesOf{p.a, p.lda, p.k, p.m, q.k, q.m, p.a_room, bytes}
                       : LinesOf{p.a, p.lda, p.m, p.k, q.m, q.k, p.a_room, bytes};
}
LinesOf OfB(const ColumnMajorProduct& p, const ColumnMajorProduct& q, int64_t bytes) {
  return p.transpose_b ? LinesOf{p.b, p.ldb, p.n, p.k, q.n, q.k, p.b_room, bytes}
                       : LinesOf{p.b, p.ldb, p.k, p.n, q.k, q.n, p.b_room, bytes};
}
LinesOf OfC(const ColumnMajorProduct& p, const ColumnMajorProduct& q, int64_t bytes) {
  return {p.c, p.ldc, p.m, p.n, q.m, q.n, p.c_room, bytes};
}

}  // namespace

ColumnMajorProduct PaddedSizes(const ColumnMajorProduct& product, bool halves) {
  ColumnMajorProduct padded = product;
  // Products with a vector of floats read all their memory once, by kernels for that.
  if (!halves && std::min({product.m, product.n, product.k}) == 1) return padded;
  const auto pad = [&](int64_t size, bool is_line) {
    return is_line && size % (halves ? 8 : 4) != 0 ? PaddedLine(size) : size;
  };
  padded.m = pad(product.m, true);
  padded.n = pad(product.n, product.transpose_b);
  padded.k = pad(product.k, product.transpose_a || !product.transpose_b);
  return padded;
}

struct GemmCuda::Impl {
  ~Impl();
  absl::Status Init(GemmPrecision precision);

  absl::Status Choose(const GemmKey& key, Plan* plan) const;
  // What a stream's products work with.
  struct Lane {
    CudaStream stream = nullptr;
    DeviceBuffer<std::byte> workspace;
    // Memory of padded copies; kept, since graphs may have been recorded with them.
    std::vector<DeviceBuffer<std::byte>> rooms;
  };
  static absl::StatusOr<std::byte*> Room(Lane& lane, int64_t bytes);
  absl::StatusOr<Plan*> PlanOf(CudaStream on, const GemmKey& key, std::byte* work);
  // Whether a plan with an epilogue does what it should: "" or the reason why not.
  absl::StatusOr<std::string> Probe(CudaStream on, const GemmKey& key, const Plan& plan,
                                    int64_t columns, std::byte* work) const;
  // What cublasLt says of the launch.
  cublasStatus_t Launch(CudaStream on, const GemmKey& key, Plan& plan,
                        const ColumnMajorProduct& product, std::byte* work) const;
  absl::Status Run(CudaStream on, const ColumnMajorProduct& product, Lane& lane);
  // A product whose lines cublasLt takes as they are.
  absl::Status RunLines(CudaStream on, const ColumnMajorProduct& product, std::byte* work);
  absl::Status Fork(CudaStream on);
  absl::Status Join(CudaStream on);

  cudaDataType_t ResultType(const GemmKey& key) const {
    return key.half_result ? factor_type : CUDA_R_32F;
  }
  bool halves() const { return factor_type != CUDA_R_32F; }
  GemmNumbers Numbers(cudaDataType_t type) const {
    if (type == CUDA_R_32F) return GemmNumbers::kFloat;
    return type == CUDA_R_16F ? GemmNumbers::kFp16 : GemmNumbers::kBf16;
  }

  const CublasLt* lt = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_32F;
  cudaDataType_t factor_type = CUDA_R_32F;
  CudaStream stream = nullptr;
  StreamHandle beside;
  Lane own, other;     // of `stream`, of `beside`
  EventHandle forked;  // of Fork and Join

  std::mutex mutex;  // of `forked`, of what follows, and of plans' operations, which get pointers
  std::map<GemmKey, Plan> plans;
};

GemmCuda::Impl::~Impl() {
  if (handle != nullptr) lt->cublasLtDestroy(handle);
  // What `beside` owns goes back behind the graphs of `stream`.
  if (beside != nullptr && forked != nullptr) Fork(stream).IgnoreError();
}

absl::Status GemmCuda::Impl::Fork(CudaStream on) {
  const std::lock_guard<std::mutex> lock(mutex);
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked.get(), on));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(beside.get(), forked.get(), 0));
  return absl::OkStatus();
}

absl::Status GemmCuda::Impl::Join(CudaStream on) {
  const std::lock_guard<std::mutex> lock(mutex);
  HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked.get(), beside.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(on, forked.get(), 0));
  return absl::OkStatus();
}

absl::Status GemmCuda::Impl::Init(GemmPrecision precision) {
  HOTROW_RETURN_IF_ERROR(CublasStatus(*lt, lt->cublasLtCreate(&handle), "cublasLtCreate"));
  if (precision == GemmPrecision::kTf32) compute_type = CUBLAS_COMPUTE_32F_FAST_TF32;
  if (precision == GemmPrecision::kBf16) factor_type = CUDA_R_16BF;
  if (precision == GemmPrecision::kFp16) factor_type = CUDA_R_16F;
  HOTROW_ASSIGN_OR_RETURN(beside, CreateStream());
  for (Lane* const lane : {&own, &other}) {
    lane->stream = lane == &own ? stream : beside.get();
    HOTROW_ASSIGN_OR_RETURN(lane->workspace,
                            DeviceBuffer<std::byte>::Create(kGemmWorkspaceBytes, lane->stream));
  }
  HOTROW_ASSIGN_OR_RETURN(forked, CreateEvent());
  return absl::OkStatus();
}

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
  HOTROW_RETURN_IF_ERROR(check(
      InitLayout(*lt, &plan->c, ResultType(key), /*transposed=*/false, key.m, key.n, key.ldc)));
  if (HasEpilogue(key)) {
    const cublasLtEpilogue_t epilogue = EpilogueOf(key);
    HOTROW_RETURN_IF_ERROR(check(lt->cublasLtMatmulDescSetAttribute(
        &plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue))));
    // Addresses that are aligned like those to come: the heuristics look at them.
    if (HasBias(key)) {
      const void* const like = own.workspace.data() + key.align_bias;
      HOTROW_RETURN_IF_ERROR(check(lt->cublasLtMatmulDescSetAttribute(
          &plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &like, sizeof(like))));
    }
  }

  cublasLtMatmulPreferenceOpaque_t preference;
  HOTROW_RETURN_IF_ERROR(
      check(lt->cublasLtMatmulPreferenceInit_internal(&preference, sizeof(preference))));
  // All of them give equal bits in each run: an H100 said so of each algorithm that it offered, for
  // 17 shapes in three precisions. The blocks that add in place take turns.
  HOTROW_RETURN_IF_ERROR(
      check(SetPreference(*lt, &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                          uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK})));
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

// Tries a plan on its own numbers: the same algorithm on fewer columns.
absl::StatusOr<std::string> GemmCuda::Impl::Probe(CudaStream on, const GemmKey& key,
                                                  const Plan& plan, int64_t columns,
                                                  std::byte* work) const {
  GemmKey few = key;
  few.n = columns;
  Plan tried = plan;
  const auto check = [&](cublasStatus_t status) {
    return CublasStatus(*lt, status, ShapeText(few));
  };
  HOTROW_RETURN_IF_ERROR(
      check(InitLayout(*lt, &tried.b, factor_type, key.transpose_b, key.k, columns, key.ldb)));
  HOTROW_RETURN_IF_ERROR(check(
      InitLayout(*lt, &tried.c, ResultType(key), /*transposed=*/false, key.m, columns, key.ldc)));
  const GemmKey plain_key = WithoutEpilogue(few);
  Plan plain;
  HOTROW_RETURN_IF_ERROR(Choose(plain_key, &plain));

  const GemmNumbers factors = Numbers(factor_type);
  const GemmNumbers results = Numbers(ResultType(key));
  const int64_t a_count = key.lda * (key.transpose_a ? key.m : key.k);
  const int64_t b_count = key.ldb * (key.transpose_b ? key.k : columns);
  const int64_t c_count = key.ldc * columns;
  // Buffers of the widest numbers, for all.
  using Floats = DeviceBuffer<float>;
  HOTROW_ASSIGN_OR_RETURN(Floats a, Floats::Create(a_count, on));
  HOTROW_ASSIGN_OR_RETURN(Floats b, Floats::Create(b_count, on));
  HOTROW_ASSIGN_OR_RETURN(Floats c, Floats::Create(c_count, on));
  HOTROW_ASSIGN_OR_RETURN(Floats sums, Floats::Create(c_count, on));
  HOTROW_ASSIGN_OR_RETURN(Floats bias, Floats::Create(key.m, on));
  constexpr int kTests = 3;  // whole numbers, NaNs, equal bits
  HOTROW_ASSIGN_OR_RETURN(auto wrong, DeviceBuffer<uint32_t>::Create(kTests, on));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(wrong.data(), 0, kTests * sizeof(uint32_t), on));

  ColumnMajorProduct product = {.transpose_a = key.transpose_a,
                                .transpose_b = key.transpose_b,
                                .m = key.m,
                                .n = columns,
                                .k = key.k,
                                .a = a.data(),
                                .lda = key.lda,
                                .b = b.data(),
                                .ldb = key.ldb,
                                .c = c.data(),
                                .ldc = key.ldc,
                                .half_result = key.half_result,
                                .epilogue = key.relu ? GemmEpilogue::kRelu : GemmEpilogue::kNone,
                                .bias = HasBias(key) ? bias.data() : nullptr};
  const GemmMatrix result = {c.data(), key.ldc, results};
  const GemmMatrix other = {sums.data(), key.ldc, results};
  // Where NaNs lie: in one column of op(B), and in the bias of one row.
  const int64_t nan_k = key.k / 2;
  const int64_t nan_j = columns / 2;
  const int64_t nan_b = key.transpose_b ? nan_j + nan_k * key.ldb : nan_k + nan_j * key.ldb;
  const auto fill = [&](bool whole, bool nans) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(FillProbeCuda(on, {a.data(), a_count, factors, whole, 1}));
    HOTROW_RETURN_IF_ERROR(
        FillProbeCuda(on, {b.data(), b_count, factors, whole, 1u << 30, nans ? nan_b : -1}));
    return FillProbeCuda(
        on, {bias.data(), key.m, GemmNumbers::kFloat, whole, 2u << 30, nans ? key.m / 2 : -1});
  };
  // What the last product left in the workspace must not matter.
  constexpr size_t kJunkBytes = 1 << 20;
  bool runs = true;
  const auto run = [&](int junk) -> absl::Status {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(work, junk, kJunkBytes, on));
    runs = runs && Launch(on, few, tried, product, work) == CUBLAS_STATUS_SUCCESS;
    return absl::OkStatus();
  };

  for (const bool nans : {false, true}) {
    HOTROW_RETURN_IF_ERROR(fill(/*whole=*/true, nans));
    ColumnMajorProduct of_sums = WithoutEpilogue(product);
    of_sums.c = sums.data();
    HOTROW_RETURN_IF_ERROR(check(Launch(on, plain_key, plain, of_sums, work)));
    HOTROW_RETURN_IF_ERROR(run(0xff));
    HOTROW_RETURN_IF_ERROR(
        CompareWithSumsCuda(on, product, result, other, wrong.data() + (nans ? 1 : 0)));
  }
  HOTROW_RETURN_IF_ERROR(fill(/*whole=*/false, /*nans=*/false));
  HOTROW_RETURN_IF_ERROR(run(0));
  product.c = sums.data();
  for (const int junk : {0xff, 0x3f}) {
    HOTROW_RETURN_IF_ERROR(run(junk));
    HOTROW_RETURN_IF_ERROR(CompareBitsCuda(on, key.m, columns, result, other, wrong.data() + 2));
  }
  uint32_t found[kTests] = {};
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(found, wrong.data(), sizeof(found), cudaMemcpyDeviceToHost, on));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(on));
  if (!runs) return "cublasLt does not run it";
  constexpr const char* kReasons[kTests] = {"numbers are others", "NaNs are treated otherwise",
                                            "equal products give other bits"};
  for (int i = 0; i < kTests; ++i) {
    if (found[i] > 0) return absl::StrCat(kReasons[i], " (", found[i], ")");
  }
  return "";
}

absl::StatusOr<Plan*> GemmCuda::Impl::PlanOf(CudaStream on, const GemmKey& key, std::byte* work) {
  if (const auto found = plans.find(key); found != plans.end()) return &found->second;
  Plan plan;
  const absl::Status chosen = Choose(key, &plan);
  if (!HasEpilogue(key)) {
    HOTROW_RETURN_IF_ERROR(chosen);
  } else {
    std::string reason(chosen.message());
    if (chosen.ok()) {
      const int64_t few = std::min(key.n, kProbeColumns);
      absl::StatusOr<std::string> probed = Probe(on, key, plan, few, work);
      if (absl::IsResourceExhausted(probed.status())) probed = "no memory to try it";
      HOTROW_ASSIGN_OR_RETURN(reason, std::move(probed));
    }
    plan.fused = reason.empty();
    if (!plan.fused) {
      AddUnfusedProduct(absl::StrCat(ShapeText(key), ", ", EpilogueText(key), ": ", reason));
    }
  }
  if (plans.size() >= kMaxPlans) plans.clear();
  return &plans.try_emplace(key, plan).first->second;
}

cublasStatus_t GemmCuda::Impl::Launch(CudaStream on, const GemmKey& key, Plan& plan,
                                      const ColumnMajorProduct& product, std::byte* work) const {
  const auto point = [&](cublasLtMatmulDescAttributes_t attribute, const void* to) {
    return lt->cublasLtMatmulDescSetAttribute(&plan.operation, attribute, &to, sizeof(to));
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (HasBias(key)) status = point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  constexpr float kOne = 1;
  const float kept = product.adds ? 1.0f : 0.0f;  // of what C was
  return lt->cublasLtMatmul(handle, &plan.operation, &kOne, product.a, &plan.a, product.b, &plan.b,
                            &kept, product.c, &plan.c, product.c, &plan.c, &plan.algorithm, work,
                            static_cast<size_t>(kGemmWorkspaceBytes), on);
}

absl::StatusOr<std::byte*> GemmCuda::Impl::Room(Lane& lane, int64_t bytes) {
  DeviceBuffer<std::byte>* best = nullptr;
  for (DeviceBuffer<std::byte>& room : lane.rooms) {
    if (room.bytes() >= bytes && (best == nullptr || room.bytes() < best->bytes())) best = &room;
  }
  if (best != nullptr) return best->data();
  // Some to spare, so that products of nearly that size share it.
  HOTROW_ASSIGN_OR_RETURN(auto room,
                          DeviceBuffer<std::byte>::Create(bytes + bytes / 8, lane.stream));
  lane.rooms.push_back(std::move(room));
  return lane.rooms.back().data();
}

absl::Status GemmCuda::Impl::Run(CudaStream on, const ColumnMajorProduct& product, Lane& lane) {
  const std::lock_guard<std::mutex> lock(mutex);
  ColumnMajorProduct padded = PaddedSizes(product, halves());
  const int64_t factor_bytes = halves() ? 2 : 4;
  const LinesOf a = OfA(product, padded, factor_bytes);
  const LinesOf b = OfB(product, padded, factor_bytes);
  const LinesOf c = OfC(product, padded, product.half_result ? 2 : 4);
  const bool is_vector = !halves() && std::min({product.m, product.n, product.k}) == 1;
  // Beyond k one factor must be zero: A, since B is the batch.
  const bool copy_a = !is_vector && (a.needs_copy() || padded.k != product.k);
  const bool copy_b = !is_vector && b.needs_copy();
  const bool copy_c = !is_vector && c.needs_copy();
  const bool copy_bias = product.bias != nullptr && padded.m != product.m;
  const LinesOf bias = {product.bias, product.m, product.m, 1, padded.m, 1, 0, 4};
  const int64_t bytes = (copy_a ? a.bytes() : 0) + (copy_b ? b.bytes() : 0) +
                        (copy_c ? c.bytes() : 0) + (copy_bias ? bias.bytes() : 0);
  if (bytes == 0) return RunLines(on, padded, lane.workspace.data());

  HOTROW_ASSIGN_OR_RETURN(auto* room, Room(lane, bytes));
  std::vector<CopyLinesArgs> copies;
  const auto take = [&](const LinesOf& of, bool reads) {
    std::byte* const to = std::exchange(room, room + of.bytes());
    if (reads) copies.push_back(of.CopyTo(to));
    return to;
  };
  if (copy_a) padded.a = take(a, true), padded.lda = a.to_line;
  if (copy_b) padded.b = take(b, true), padded.ldb = b.to_line;
  if (copy_c) padded.c = take(c, product.adds), padded.ldc = c.to_line;
  if (copy_bias) padded.bias = reinterpret_cast<float*>(take(bias, true));
  if (!copies.empty()) HOTROW_RETURN_IF_ERROR(CopyLinesCuda(on, copies));
  HOTROW_RETURN_IF_ERROR(RunLines(on, padded, lane.workspace.data()));
  if (!copy_c) return absl::OkStatus();
  const CopyLinesArgs back = {padded.c,    padded.ldc, product.m, product.n,          product.c,
                              product.ldc, product.m,  product.n, product.half_result};
  return CopyLinesCuda(on, std::span<const CopyLinesArgs>(&back, 1));
}

absl::Status GemmCuda::Impl::RunLines(CudaStream on, const ColumnMajorProduct& product,
                                      std::byte* work) {
  const GemmKey key = KeyOf(product);
  HOTROW_ASSIGN_OR_RETURN(Plan* const plan, PlanOf(on, key, work));
  const GemmNumbers numbers = Numbers(ResultType(key));
  const bool is_plain = product.epilogue == GemmEpilogue::kNone && product.bias == nullptr;
  if (HasEpilogue(key) && plan->fused) {
    const cublasStatus_t status = Launch(on, key, *plan, product, work);
    // The text is made for an error only: this runs a dozen times a step.
    if (status != CUBLAS_STATUS_SUCCESS) return CublasStatus(*lt, status, ShapeText(key));
    const bool drops = product.dropout != nullptr;
    if (product.mask == nullptr && !drops) return absl::OkStatus();
    ColumnMajorProduct output = product;
    output.bias = nullptr;
    return FinishProductCuda(on, output, numbers, /*mask_only=*/key.relu && !drops);
  }
  const ColumnMajorProduct sums = WithoutEpilogue(product);
  const GemmKey sums_key = KeyOf(sums);
  HOTROW_ASSIGN_OR_RETURN(Plan* const sums_plan, PlanOf(on, sums_key, work));
  const cublasStatus_t status = Launch(on, sums_key, *sums_plan, sums, work);
  if (status != CUBLAS_STATUS_SUCCESS) return CublasStatus(*lt, status, ShapeText(key));
  return is_plain ? absl::OkStatus() : FinishProductCuda(on, product, numbers);
}

GemmCuda::GemmCuda(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmCuda::~GemmCuda() = default;

absl::StatusOr<std::shared_ptr<GemmCuda>> GemmCuda::OfStream(GemmPrecision precision,
                                                             CudaStream stream) {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  int device = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  using Key = std::tuple<int, CudaStream, GemmPrecision>;
  static std::mutex mutex;
  static auto* const all = new std::map<Key, std::weak_ptr<GemmCuda>>();
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(*all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<GemmCuda>& entry = (*all)[{device, stream, precision}];
  if (std::shared_ptr<GemmCuda> shared = entry.lock()) return shared;
  auto impl = std::make_unique<Impl>();
  impl->stream = stream;
  HOTROW_ASSIGN_OR_RETURN(impl->lt, LoadCublasLt());
  HOTROW_RETURN_IF_ERROR(impl->Init(precision));
  std::shared_ptr<GemmCuda> made(new GemmCuda(std::move(impl)));
  entry = made;
  return made;
}

absl::Status GemmCuda::Run(CudaStream stream, const ColumnMajorProduct& product) {
  return impl_->Run(stream, product, impl_->own);
}

absl::StatusOr<CudaStream> GemmCuda::Fork(CudaStream stream) {
  HOTROW_RETURN_IF_ERROR(impl_->Fork(stream));
  return impl_->beside.get();
}

std::vector<GemmPlan> GemmCuda::Plans() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  std::vector<GemmPlan> plans;
  for (const auto& [key, plan] : impl_->plans) {
    if (!plan.fused) continue;
    GemmPlan& of = plans.emplace_back(GemmPlan{.key = key});
    const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, uint32_t* to) {
      size_t written = 0;
      impl_->lt->cublasLtMatmulAlgoConfigGetAttribute(&plan.algorithm, attribute, to, sizeof(*to),
                                                      &written);
    };
    read(CUBLASLT_ALGO_CONFIG_ID, &of.algorithm);
    read(CUBLASLT_ALGO_CONFIG_TILE_ID, &of.tile);
    read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &of.cut);
    read(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &of.scheme);
  }
  return plans;
}

absl::Status GemmCuda::Join(CudaStream stream) { return impl_->Join(stream); }

absl::Status GemmCuda::RunBeside(const ColumnMajorProduct& product) {
  return impl_->Run(impl_->beside.get(), product, impl_->other);
}

}  // namespace hotrow::internal
