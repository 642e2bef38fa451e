#ifndef HOTROW_OPS_PRODUCTS_GEMM_CUDA_IMPL_H_
#define HOTROW_OPS_PRODUCTS_GEMM_CUDA_IMPL_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "ops/products/gemm_impl.h"

namespace hotrow {
struct DropoutArgs;
}

// Matrix products on a GPU by cublasLt, and the products of a linear map in its terms.
namespace hotrow::internal {

// What becomes of a sum before it is written.
enum class GemmEpilogue : uint8_t {
  kNone,
  kRelu,      // C = relu(sum); a NaN stays one. Bit of the mask: whether C > 0, or a NaN
  kReluGrad,  // C = sum where the mask has its bit, else 0
};

// Masks of ReLU are matrices of bits, column-major as C is, the first row in the lowest bit of a
// word. Words from one column to the next:
constexpr int64_t ReluMaskStride(int64_t m) { return CeilDiv(m, 128) * 4; }

// Kernels that load 16 bytes at a time want whole lines of them: what is padded for them is padded
// to this many numbers.
inline constexpr int64_t kLineNumbers = 8;
constexpr int64_t PaddedLine(int64_t numbers) { return RoundUp(numbers, kLineNumbers); }

// C = op(A) op(B) with all three column-major, as cublasLt counts: C is [m, n], op(A) [m, k], op(B)
// [k, n]; ld* are the numbers from one column to the next. A row-major matrix is its own transpose
// in these terms, with the row stride as ld. The factors are floats, or of 16 bits in a
// GemmCuda of kBf16 or kFp16; C is floats unless half_result says that it is like the factors,
// rounded to the nearest.
struct ColumnMajorProduct {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  const void* b = nullptr;
  int64_t ldb = 0;
  void* c = nullptr;
  int64_t ldc = 0;
  bool half_result = false;  // kBf16, kFp16
  bool adds = false;         // C += op(A) op(B), of floats, without what follows
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  const float* bias = nullptr;  // [m], added to each column; where C is floats
  // [n, ReluMaskStride(m)], 16-byte aligned: kRelu writes it, unless it is null; kReluGrad reads
  // it.
  uint32_t* mask = nullptr;
  // Null, or dropout behind kRelu, whose columns are C's rows; data and stride are not read. What
  // it drops has no bit in the mask, so kReluGrad needs its rate alone.
  const DropoutArgs* dropout = nullptr;
  // A line is what lies side by side: a column, of A and B a row where they are transposed. Where
  // memory belongs to lines beyond their end: numbers of a line that may be read, and are finite
  // where the factors' are, or written. Less than the line: none beyond it.
  int64_t a_room = 0;
  int64_t b_room = 0;
  int64_t c_room = 0;
};

// y = x W^T: x [rows, in], W [out, in] without gaps, y [rows, out], all row-major.
inline ColumnMajorProduct LinearForward(int64_t rows, int64_t in, int64_t out, const ConstMatrix& x,
                                        const float* weights, const Matrix& y) {
  return {.transpose_a = true,
          .m = out,
          .n = rows,
          .k = in,
          .a = weights,
          .lda = in,
          .b = x.data,
          .ldb = x.stride,
          .c = y.data,
          .ldc = y.stride};
}

// dx = dy W.
inline ColumnMajorProduct LinearInputGradient(int64_t rows, int64_t in, int64_t out,
                                              const ConstMatrix& dy, const float* weights,
                                              const Matrix& dx) {
  return {.m = in,
          .n = rows,
          .k = out,
          .a = weights,
          .lda = in,
          .b = dy.data,
          .ldb = dy.stride,
          .c = dx.data,
          .ldc = dx.stride};
}

// dW = dy^T x, without gaps.
inline ColumnMajorProduct LinearWeightGradient(int64_t rows, int64_t in, int64_t out,
                                               const ConstMatrix& dy, const ConstMatrix& x,
                                               float* weight_gradient) {
  return {.transpose_b = true,
          .m = in,
          .n = out,
          .k = rows,
          .a = x.data,
          .lda = x.stride,
          .b = dy.data,
          .ldb = dy.stride,
          .c = weight_gradient,
          .ldc = in};
}

// `product` added to what is there.
inline ColumnMajorProduct Added(ColumnMajorProduct product) {
  product.adds = true;
  return product;
}

// Enough for the products of a network of layers of a thousand units to be cut along k: a partial
// result of 1024 x 1024 floats is 4 MiB.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{16} << 20;

// What the choice of an algorithm depends on, and nothing else: products with equal keys share one.
struct GemmKey {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  uint32_t align_a, align_b, align_c;  // bytes that divide the addresses
  uint32_t align_bias;                 // 0: there is none
  bool half_result;
  bool relu;

  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

// Kernels load at most 16 bytes at a time, so that more alignment makes no difference.
inline uint32_t AddressAlignment(const void* data) {
  constexpr uintptr_t kMax = 16;
  const uintptr_t address = reinterpret_cast<uintptr_t>(data) | kMax;
  return static_cast<uint32_t>(address & (~address + 1));
}

inline GemmKey KeyOf(const ColumnMajorProduct& p) {
  return {.transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .lda = p.lda,
          .ldb = p.ldb,
          .ldc = p.ldc,
          .align_a = AddressAlignment(p.a),
          .align_b = AddressAlignment(p.b),
          .align_c = AddressAlignment(p.c),
          .align_bias = p.bias == nullptr ? 0 : AddressAlignment(p.bias),
          .half_result = p.half_result,
          .relu = p.epilogue == GemmEpilogue::kRelu && !p.half_result};
}

// What cublasLt chose for a key, in its numbers.
struct GemmPlan {
  GemmKey key;
  uint32_t algorithm = 0;
  uint32_t tile = 0;
  uint32_t cut = 0;     // into so many parts along k
  uint32_t scheme = 0;  // of their sum
};

// The product that cublasLt gets in the place of `product`: with the sizes of padded lines.
ColumnMajorProduct PaddedSizes(const ColumnMajorProduct& product, bool halves);

enum class GemmPrecision {
  kFp32,
  kTf32,  // factors are rounded to 10 bits after the point, sums are fp32
  kBf16,  // factors are bf16, sums are fp32
  kFp16,  // factors are fp16, sums are fp32
};

// The products of all networks that work on one stream: a handle of cublasLt, the algorithms that
// it chose, two workspaces and a second stream. It works on the device that was current when it was
// made.
//
// Bias and ReLU are part of products of floats where cublasLt has a kernel for that, which is tried
// once before it is believed (ops/products/gemm_probe_impl.h): a NaN must stay one, and equal
// products must give equal bits. Otherwise a kernel of ours follows the product, with the same
// meaning (ops/products/unfused_products.h). Masks and the gradient of ReLU are always a kernel of
// ours, and so is ReLU in 16 bits, where cublasLt makes zero of a NaN.
//
// cublasLt sees only lines of whole 16 bytes, but for factors that are vectors of floats: all else
// goes through padded copies, with zeros behind the lines.
//
// The first product with a key asks for an algorithm on the host, loads its kernels, and waits for
// the GPU if it has to be tried. Those that follow allocate nothing, wait for nothing and can be
// captured in a CUDA graph. Products that are cut along k are summed in a fixed order, so equal
// products give equal bits, with anything else running beside them.
//
// Threads: any. Errors: FailedPrecondition (no usable GPU), ResourceExhausted (no memory), Internal
// (what cublasLt says, with the shape).
class GemmCuda {
 public:
  // That of `stream`, which must outlive it: one for all that ask while one of them keeps it.
  static absl::StatusOr<std::shared_ptr<GemmCuda>> OfStream(GemmPrecision precision,
                                                            CudaStream stream);
  ~GemmCuda();

  // All pointers are device memory; every dimension is > 0. `stream` is that of OfStream, or one
  // that is captured in order to run there.
  absl::Status Run(CudaStream stream, const ColumnMajorProduct& product);

  // The second stream, behind all that `stream` has now: what is enqueued there runs beside what
  // `stream` gets later. RunBeside runs a product there. BesideWork
  // (ops/products/beside_work_impl.cuh) is how networks use both.
  absl::StatusOr<CudaStream> Fork(CudaStream stream);
  // `stream` goes on behind all that the second stream has now, of any network.
  absl::Status Join(CudaStream stream);
  absl::Status RunBeside(const ColumnMajorProduct& product);

  // For benchmarks: the plans of all products so far.
  std::vector<GemmPlan> Plans() const;

 private:
  struct Impl;
  explicit GemmCuda(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_GEMM_CUDA_IMPL_H_
