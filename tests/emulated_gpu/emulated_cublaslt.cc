// cublasLt of the emulated GPU: descriptors are read as cublasLt reads them, products are plain
// loops with sums in double.
//
// Stricter:  an algorithm runs products like that for which it was chosen alone: operation,
//            layouts and alignments must be the same, so a plan that is shared wrongly is an error.
//            The result may have fewer columns.
// Workspace: its first and last bytes are written, so one that is too small, gone, or given to two
//            products at once, is found.
// TF32:      factors are rounded to 10 bits of fraction, ties away from zero, as tensor cores do.
// Missing:   algorithms that do not exist for a shape, and speed.

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated_gpu/emulated_gpu.h"

struct cublasLtContext {
  int unused = 0;
};

namespace {

struct Layout {
  uint32_t magic;
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};
constexpr uint32_t kLayoutMagic = 0x1a40;

struct Desc {
  uint32_t magic;
  cublasComputeType_t compute_type;
  cublasOperation_t op_a, op_b;
  cublasLtEpilogue_t epilogue;
  const float* bias;

  bool Has(uint32_t bits) const { return (epilogue & bits) == bits; }
};
constexpr uint32_t kDescMagic = 0xde5c;

struct Preference {
  uint32_t magic;
  uint32_t reduction_mask;
  uint64_t workspace;
  uint32_t alignment[4];  // of A, B, C, D
};
constexpr uint32_t kPreferenceMagic = 0x9f3e;

// What an algorithm was chosen for.
struct Algorithm {
  uint64_t request;  // a hash of the operation and the layouts, but for n
  uint64_t columns;  // n
  uint64_t workspace;
  uint32_t alignment[4];
};

template <typename T, typename Opaque>
void Put(const T& value, Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  *opaque = {};
  std::memcpy(opaque, &value, sizeof(T));
}
template <typename T, typename Opaque>
T Get(const Opaque* opaque) {
  T value;
  std::memcpy(&value, opaque, sizeof(T));
  return value;
}

struct Product {
  Desc desc;
  std::array<Layout, 4> layouts;  // of A, B, C, D
  uint64_t m, n, k;
};

int64_t SizeOf(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

std::atomic<hotrow::emulated::EpilogueFault> epilogue_fault =
    hotrow::emulated::EpilogueFault::kNone;

uint64_t HashOf(const Product& product) {
  const Desc& desc = product.desc;
  uint64_t hash = 1469598103934665603u;
  const auto mix = [&hash](uint64_t x) { hash = (hash ^ x) * 1099511628211u + (x >> 7); };
  for (const uint64_t x : {uint64_t{desc.compute_type}, uint64_t{desc.op_a}, uint64_t{desc.op_b},
                           uint64_t{desc.epilogue}, product.m, product.k}) {
    mix(x);
  }
  for (const Layout& layout : product.layouts) {
    mix(layout.type);
    mix(static_cast<uint64_t>(layout.ld));
  }
  return hash;
}

// Whether descriptors fit each other.
cublasStatus_t Read(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Product* product) {
  product->desc = Get<Desc>(desc);
  if (product->desc.magic != kDescMagic) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasLtMatrixLayout_t given[] = {a, b, c, d};
  for (size_t i = 0; i < 4; ++i) {
    product->layouts[i] = Get<Layout>(given[i]);
    const Layout& layout = product->layouts[i];
    if (layout.magic != kLayoutMagic || layout.rows == 0 || layout.cols == 0 ||
        layout.ld < static_cast<int64_t>(layout.rows)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const auto& [la, lb, lc, ld] = product->layouts;
  const bool ta = product->desc.op_a == CUBLAS_OP_T;
  const bool tb = product->desc.op_b == CUBLAS_OP_T;
  product->m = ta ? la.cols : la.rows;
  product->k = ta ? la.rows : la.cols;
  product->n = tb ? lb.rows : lb.cols;
  const bool fit = (tb ? lb.cols : lb.rows) == product->k && lc.rows == product->m &&
                   lc.cols == product->n && ld.rows == lc.rows && ld.cols == lc.cols;
  if (!fit) return CUBLAS_STATUS_INVALID_VALUE;
  // The types that it multiplies with sums of fp32.
  const bool halves = la.type != CUDA_R_32F;
  const bool types = la.type == lb.type && lc.type == ld.type &&
                     (lc.type == CUDA_R_32F || lc.type == la.type) &&
                     (!halves || product->desc.compute_type == CUBLAS_COMPUTE_32F);
  if (!types) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Desc& of = product->desc;
  // Biases have the type of the result; those of 16 bits we do not know.
  if (of.Has(CUBLASLT_EPILOGUE_BIAS) && ld.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (of.Has(CUBLASLT_EPILOGUE_BIAS) && of.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

bool Aligned(const void* data, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

float RoundToTf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x) || std::isinf(x)) return x;
  return std::bit_cast<float>((bits + 0x1000) & ~uint32_t{0x1fff});
}

float FromFp16(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  float value = 0;
  if (exponent == 31) {
    value = fraction != 0 ? std::nanf("") : INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (half >> 15) != 0 ? -value : value;
}
uint16_t ToFp16(float x) {  // to the nearest, ties to even, beyond the largest to infinity
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return sign | 0x7e00;
  const float magnitude = std::fabs(x);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  const auto places = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (unit == -24) return static_cast<uint16_t>(sign | places);  // subnormals, and the first normal
  // places is in [1024, 2048]; 2048 carries into the exponent.
  return static_cast<uint16_t>(sign | (((static_cast<uint32_t>(unit + 24) << 10) + places)));
}

float LoadNumber(const void* data, const Layout& layout, int64_t i) {
  switch (layout.type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_16BF:
      return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[i]} << 16);
    case CUDA_R_16F:
      break;
  }
  return FromFp16(static_cast<const uint16_t*>(data)[i]);
}

void StoreNumber(float value, void* data, const Layout& layout, int64_t i) {
  switch (layout.type) {
    case CUDA_R_32F:
      static_cast<float*>(data)[i] = value;
      return;
    case CUDA_R_16BF: {
      // To the nearest, ties to even, beyond the largest to infinity.
      const auto bits = std::bit_cast<uint32_t>(value);
      const uint32_t rounded = std::isnan(value) ? 0x7fff0000 : bits + 0x7fff + ((bits >> 16) & 1);
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(rounded >> 16);
      return;
    }
    case CUDA_R_16F:
      static_cast<uint16_t*>(data)[i] = ToFp16(value);
  }
}

// op(X) as vectors of length k end to end, rows of A or columns of B.
std::vector<double> Vectors(const Product& p, const void* data, const Layout& layout,
                            bool contiguous, uint64_t count) {
  std::vector<double> out(count * p.k);
  for (uint64_t i = 0; i < count; ++i) {
    for (uint64_t l = 0; l < p.k; ++l) {
      const auto at = static_cast<int64_t>(contiguous ? l : i) +
                      static_cast<int64_t>(contiguous ? i : l) * layout.ld;
      float x = LoadNumber(data, layout, at);
      if (p.desc.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32) x = RoundToTf32(x);
      out[i * p.k + l] = double{x};
    }
  }
  return out;
}

// The product of numbers that have been read with checks.
__attribute__((optimize("O3"), no_sanitize("address", "undefined"))) double Dot(const double* a,
                                                                                const double* b,
                                                                                uint64_t n) {
  double sums[4] = {};
  uint64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (uint64_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// What the epilogue makes of a sum.
float FinishedNumber(const Desc& desc, float sum, int64_t row) {
  using Fault = hotrow::emulated::EpilogueFault;
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return sum;
  const Fault fault = epilogue_fault;
  if (desc.Has(CUBLASLT_EPILOGUE_BIAS) && fault != Fault::kNoBias) sum += desc.bias[row];
  if (desc.Has(CUBLASLT_EPILOGUE_RELU)) {
    if (fault == Fault::kNaNBecomesZero && std::isnan(sum)) sum = 0;
    if (sum <= 0) sum = 0;
  }
  static std::atomic<uint32_t> count = 0;
  // Only sums that rounding may change: whole ones are the same in any order.
  const bool is_whole = sum == std::nearbyint(sum);
  if (fault == Fault::kDoesNotRepeat && !is_whole && ++count % 97 == 0) sum *= 1.01f;
  return sum;
}

void Multiply(const Product& p, float alpha, const void* a, const void* b, float beta,
              const void* c, void* d) {
  const bool ta = p.desc.op_a == CUBLAS_OP_T;
  const bool tb = p.desc.op_b == CUBLAS_OP_T;
  const std::vector<double> rows = Vectors(p, a, p.layouts[0], ta, p.m);
  const std::vector<double> columns = Vectors(p, b, p.layouts[1], !tb, p.n);
  for (uint64_t j = 0; j < p.n; ++j) {
    for (uint64_t i = 0; i < p.m; ++i) {
      double sum = alpha * Dot(rows.data() + i * p.k, columns.data() + j * p.k, p.k);
      const auto column = static_cast<int64_t>(j);
      const auto row = static_cast<int64_t>(i);
      // What beta = 0 leaves out is not read: it may be a NaN.
      if (beta != 0) {
        sum += double{beta} * LoadNumber(c, p.layouts[2], column * p.layouts[2].ld + row);
      }
      const auto number = FinishedNumber(p.desc, static_cast<float>(sum), row);
      StoreNumber(number, d, p.layouts[3], column * p.layouts[3].ld + row);
    }
  }
}

std::mutex unaligned_mutex;
std::vector<std::string> unaligned_products;

void NoteUnaligned(const Product& p, const void* const data[4]) {
  const bool halves = p.layouts[0].type != CUDA_R_32F;
  if (!halves && std::min({p.m, p.n, p.k}) == 1) return;
  bool aligned = true;
  for (size_t i = 0; i < 4; ++i) {
    const Layout& of = p.layouts[i];
    const auto bytes = static_cast<uint64_t>(SizeOf(of.type));
    aligned = aligned && of.rows * bytes % 16 == 0 &&
              static_cast<uint64_t>(of.ld) * bytes % 16 == 0 && Aligned(data[i], 16);
  }
  if (aligned) return;
  const std::lock_guard<std::mutex> lock(unaligned_mutex);
  unaligned_products.push_back(std::to_string(p.m) + " x " + std::to_string(p.n) + " x " +
                               std::to_string(p.k));
}

// Marks a workspace, at both ends, as that of one product, and sees that it still is when the
// product ends: two at once would destroy each other's sums.
class WorkspaceInUse {
 public:
  WorkspaceInUse(unsigned char* data, uint64_t bytes) : data_(data), bytes_(bytes) {
    static std::atomic<uint64_t> products = 0;
    mark_ = ++products;
    if (bytes_ < sizeof(mark_)) return;
    std::memcpy(data_, &mark_, sizeof(mark_));
    std::memcpy(data_ + bytes_ - sizeof(mark_), &mark_, sizeof(mark_));
  }
  ~WorkspaceInUse() {
    if (bytes_ < sizeof(mark_)) return;
    for (const unsigned char* const end : {data_, data_ + bytes_ - sizeof(mark_)}) {
      if (std::memcmp(end, &mark_, sizeof(mark_)) == 0) continue;
      hotrow::emulated::Fail("cublasLt: the workspace of a product was written by others");
    }
  }
  WorkspaceInUse(const WorkspaceInUse&) = delete;
  WorkspaceInUse& operator=(const WorkspaceInUse&) = delete;

 private:
  unsigned char* const data_;
  const uint64_t bytes_;
  uint64_t mark_ = 0;
};

}  // namespace

void hotrow::emulated::SetEpilogueFault(EpilogueFault fault) { epilogue_fault = fault; }
std::vector<std::string> hotrow::emulated::TakeUnalignedProducts() {
  const std::lock_guard<std::mutex> lock(unaligned_mutex);
  return std::exchange(unaligned_products, {});
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "of the emulated GPU"; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t size,
                                               cublasComputeType_t compute_type,
                                               cudaDataType_t scale_type) {
  if (size < sizeof(*desc)) return CUBLAS_STATUS_ALLOC_FAILED;
  if (scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  Put(Desc{.magic = kDescMagic,
           .compute_type = compute_type,
           .op_a = CUBLAS_OP_N,
           .op_b = CUBLAS_OP_N,
           .epilogue = CUBLASLT_EPILOGUE_DEFAULT},
      desc);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  auto read = Get<Desc>(desc);
  if (read.magic != kDescMagic) return CUBLAS_STATUS_INVALID_VALUE;
  const auto take = [&](auto* to) {
    if (size != sizeof(*to)) return false;
    std::memcpy(to, value, size);
    return true;
  };
  bool valid = false;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB: {
      cublasOperation_t* const op =
          attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &read.op_a : &read.op_b;
      valid = take(op) && (*op == CUBLAS_OP_N || *op == CUBLAS_OP_T);
      break;
    }
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      valid = take(&read.epilogue);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      valid = take(&read.bias);
      break;
  }
  if (!valid) return CUBLAS_STATUS_INVALID_VALUE;
  Put(read, desc);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType_t type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  if (size < sizeof(*layout)) return CUBLAS_STATUS_ALLOC_FAILED;
  Put(Layout{kLayoutMagic, type, rows, cols, ld}, layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
  if (size < sizeof(*preference)) return CUBLAS_STATUS_ALLOC_FAILED;
  Put(Preference{kPreferenceMagic, ~0u, 0, {256, 256, 256, 256}}, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  auto read = Get<Preference>(preference);
  const bool is_workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  if (read.magic != kPreferenceMagic ||
      size != (is_workspace ? sizeof(uint64_t) : sizeof(uint32_t))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (is_workspace) {
    std::memcpy(&read.workspace, value, size);
  } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    std::memcpy(&read.reduction_mask, value, size);
  } else {
    std::memcpy(&read.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                size);
  }
  Put(read, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto wanted = Get<Preference>(preference);
  if (requested < 1 || wanted.magic != kPreferenceMagic) return CUBLAS_STATUS_INVALID_VALUE;
  Product product;
  if (const cublasStatus_t read = Read(desc, a, b, c, d, &product); read != CUBLAS_STATUS_SUCCESS) {
    return read;
  }
  if (product.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
      epilogue_fault == hotrow::emulated::EpilogueFault::kUnknown) {
    *count = 0;
    return CUBLAS_STATUS_SUCCESS;
  }
  Algorithm algorithm = {
      .request = HashOf(product), .columns = product.n, .workspace = wanted.workspace};
  for (size_t i = 0; i < 4; ++i) algorithm.alignment[i] = wanted.alignment[i];
  results[0] = {};
  Put(algorithm, &results[0].algo);
  results[0].workspaceSize = static_cast<size_t>(wanted.workspace);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
  const uint32_t number = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? 1 : 0;
  if (size != sizeof(number)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, size);
  if (written != nullptr) *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Product product;
  if (const cublasStatus_t read = Read(desc, a_layout, b_layout, c_layout, d_layout, &product);
      read != CUBLAS_STATUS_SUCCESS) {
    return read;
  }
  const auto chosen = Get<Algorithm>(algorithm);
  if (product.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
      epilogue_fault == hotrow::emulated::EpilogueFault::kRefused) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  bool fits = chosen.request == HashOf(product) && product.n <= chosen.columns &&
              chosen.workspace <= workspace_bytes && Aligned(workspace, 256);
  const void* const data[] = {a, b, c, d};
  for (size_t i = 0; i < 4; ++i) {
    fits = fits && Aligned(data[i], chosen.alignment[i]) &&
           Aligned(data[i], static_cast<uint32_t>(SizeOf(product.layouts[i].type)));
  }
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  NoteUnaligned(product, data);
  const float times = *static_cast<const float*>(alpha);
  const float kept = *static_cast<const float*>(beta);
  // In the workspace of a product that is cut along k lie partial sums.
  auto* const work = static_cast<unsigned char*>(workspace);
  hotrow::emulated::EnqueueOnStream(
      stream, [product, times, a, b, kept, c, d, work, bytes = chosen.workspace] {
        const WorkspaceInUse in_use(work, bytes);
        Multiply(product, times, a, b, kept, c, d);
      });
  return CUBLAS_STATUS_SUCCESS;
}
