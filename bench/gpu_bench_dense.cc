// The products of matrices of a DLRM, as its MLPs ask for them: y = x W^T, dx = dy W, dW = dy^T x.

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_kernels.h"
#include "ops/products/gemm_cuda_impl.h"

namespace hotrow::bench {
namespace {

using internal::ColumnMajorProduct;
using internal::GemmCuda;
using internal::GemmPrecision;

// Seeds of SmallFloat.
enum Operand : uint64_t { kX = 1, kWeights = 2, kDy = 3 };

struct Layer {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t x_stride = 0;  // floats from one row of x, and of dx, to the next

  int64_t products() const { return 3; }
  double flop() const {
    return 2.0 * static_cast<double>(products() * rows) * static_cast<double>(in * out);
  }
};

class LayerProducts {
 public:
  static absl::StatusOr<std::unique_ptr<LayerProducts>> Create(GpuBench& bench,
                                                               const Layer& layer) {
    std::unique_ptr<LayerProducts> products(new LayerProducts(bench, layer));
    HOTROW_RETURN_IF_ERROR(products->Allocate());
    return products;
  }

  absl::Status Run(GemmCuda& gemm) {
    const CudaStream stream = bench_.stream();
    HOTROW_RETURN_IF_ERROR(
        gemm.Run(stream, internal::LinearForward(l_.rows, l_.in, l_.out, {x_.data(), l_.x_stride},
                                                 weights_.data(), {y_.data(), l_.out})));
    HOTROW_RETURN_IF_ERROR(gemm.Run(
        stream, internal::LinearInputGradient(l_.rows, l_.in, l_.out, {dy_.data(), l_.out},
                                              weights_.data(), {dx_.data(), l_.x_stride})));
    return gemm.Run(stream,
                    internal::LinearWeightGradient(l_.rows, l_.in, l_.out, {dy_.data(), l_.out},
                                                   {x_.data(), l_.x_stride}, dw_.data()));
  }

  // Some numbers of each product in double; `tolerance` is of the sum of absolute products.
  absl::Status Check(double tolerance) {
    constexpr int64_t kSamples = 32;
    HOTROW_ASSIGN_OR_RETURN(auto found, PinnedBuffer<float>::Create(1));
    for (int64_t s = 0; s < kSamples; ++s) {
      const auto pick = [s](int64_t n, uint64_t what) {
        return static_cast<int64_t>(Mix64(what * 1000 + static_cast<uint64_t>(s) + 1) %
                                    static_cast<uint64_t>(n));
      };
      const int64_t r = pick(l_.rows, 1);
      const int64_t i = pick(l_.in, 2);
      const int64_t o = pick(l_.out, 3);
      struct Number {
        const char* name;
        const float* at;
        double value = 0;
        double size = 0;
        void Add(double product) {
          value += product;
          size += std::abs(product);
        }
      };
      Number y = {"y", y_.data() + r * l_.out + o};
      for (int64_t k = 0; k < l_.in; ++k) y.Add(X(r, k) * W(o, k));
      Number dx = {"dx", dx_.data() + r * l_.x_stride + i};
      for (int64_t k = 0; k < l_.out; ++k) dx.Add(Dy(r, k) * W(k, i));
      Number dw = {"dW", dw_.data() + o * l_.in + i};
      for (int64_t k = 0; k < l_.rows; ++k) dw.Add(Dy(k, o) * X(k, i));
      for (const Number& number : {y, dx, dw}) {
        HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(found.data(), number.at, sizeof(float),
                                                    cudaMemcpyDefault, bench_.stream()));
        HOTROW_RETURN_IF_ERROR(bench_.Wait());
        // Written so that a NaN is wrong, too.
        if (!(std::abs(found[0] - number.value) <= tolerance * number.size)) {
          return absl::DataLossError(absl::StrCat(number.name, " of ", l_.rows, " rows, ", l_.in,
                                                  " to ", l_.out, " is ", found[0], " and not ",
                                                  number.value));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  LayerProducts(GpuBench& bench, const Layer& layer) : bench_(bench), l_(layer) {}

  absl::Status Allocate() {
    const CudaStream stream = bench_.stream();
    const auto make = [&](DeviceBuffer<float>& buffer, int64_t n, uint64_t seed) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(buffer, DeviceBuffer<float>::Create(n, stream));
      return FillSmallFloats(stream, buffer.data(), n, seed);
    };
    HOTROW_RETURN_IF_ERROR(make(x_, l_.rows * l_.x_stride, kX));
    HOTROW_RETURN_IF_ERROR(make(weights_, l_.in * l_.out, kWeights));
    HOTROW_RETURN_IF_ERROR(make(dy_, l_.rows * l_.out, kDy));
    // Outputs begin as something that is no product.
    HOTROW_RETURN_IF_ERROR(make(y_, l_.rows * l_.out, 4));
    HOTROW_RETURN_IF_ERROR(make(dx_, l_.rows * l_.x_stride, 5));
    HOTROW_RETURN_IF_ERROR(make(dw_, l_.in * l_.out, 6));
    return absl::OkStatus();
  }
  double X(int64_t r, int64_t i) const {
    return SmallFloat(kX, static_cast<uint64_t>(r * l_.x_stride + i));
  }
  double W(int64_t o, int64_t i) const {
    return SmallFloat(kWeights, static_cast<uint64_t>(o * l_.in + i));
  }
  double Dy(int64_t r, int64_t o) const {
    return SmallFloat(kDy, static_cast<uint64_t>(r * l_.out + o));
  }

  GpuBench& bench_;
  Layer l_;
  DeviceBuffer<float> x_;
  DeviceBuffer<float> weights_;
  DeviceBuffer<float> dy_;
  DeviceBuffer<float> y_;
  DeviceBuffer<float> dx_;
  DeviceBuffer<float> dw_;
};

absl::Status MeasureLayer(GpuBench& bench, GemmCuda& gemm, GemmPrecision precision,
                          const Layer& layer) {
  HOTROW_ASSIGN_OR_RETURN(const auto products, LayerProducts::Create(bench, layer));
  // The first call asks cublasLt for algorithms on the host.
  HOTROW_RETURN_IF_ERROR(products->Run(gemm));
  HOTROW_ASSIGN_OR_RETURN(const Times times,
                          bench.Measure([&](int64_t) { return products->Run(gemm); }));
  const bool fp32 = precision == GemmPrecision::kFp32;
  // Sums of fp32 err by some 1e-7 of the sum of sizes for each rounding that does not cancel; TF32
  // rounds each factor to 2^-11.
  HOTROW_RETURN_IF_ERROR(products->Check(fp32 ? 1e-5 : 2e-3));
  bench.Add({"gemm",
             absl::StrCat("gemm ", fp32 ? "fp32" : "tf32", " ", layer.rows, " x ", layer.in, "-",
                          layer.out, layer.x_stride == layer.in ? "" : " padded"),
             times,
             layer.flop(),
             "flop",
             "",
             0,
             {{"rows", layer.rows},
              {"in", layer.in},
              {"out", layer.out},
              {"x_stride", layer.x_stride},
              {"precision", fp32 ? "fp32" : "tf32"}}});
  return absl::OkStatus();
}

GemmPrecision PrecisionOf(DensePrecision precision) {
  switch (precision) {
    case DensePrecision::kFp32:
      return GemmPrecision::kFp32;
    case DensePrecision::kTf32:
      return GemmPrecision::kTf32;
    case DensePrecision::kBf16:
      return GemmPrecision::kBf16;
    case DensePrecision::kFp16:
    case DensePrecision::kInt8:  // none of a GPU's
      break;
  }
  return GemmPrecision::kFp16;
}

absl::StatusOr<DeviceBuffer<float>> NewFloats(GpuBench& bench, int64_t n, uint64_t seed) {
  HOTROW_ASSIGN_OR_RETURN(auto buffer, DeviceBuffer<float>::Create(n, bench.stream()));
  HOTROW_RETURN_IF_ERROR(FillSmallFloats(bench.stream(), buffer.data(), n, seed));
  return buffer;
}

}  // namespace

absl::Status MeasureGemm(GpuBench& bench) {
  for (const GemmPrecision precision : {GemmPrecision::kFp32, GemmPrecision::kTf32}) {
    HOTROW_ASSIGN_OR_RETURN(const auto gemm, GemmCuda::OfStream(precision, bench.stream()));
    for (const int64_t rows : bench.sizes().gemm_rows) {
      for (const GemmLayer& shape : kDlrmLayers) {
        Layer layer = {rows, shape.in, shape.out, shape.in};
        HOTROW_RETURN_IF_ERROR(MeasureLayer(bench, *gemm, precision, layer));
        // What a row of x that begins on a multiple of 16 bytes is worth.
        if (shape.in % 4 == 0 || rows != bench.sizes().gemm_rows.back()) continue;
        layer.x_stride = (shape.in + 3) / 4 * 4;
        HOTROW_RETURN_IF_ERROR(MeasureLayer(bench, *gemm, precision, layer));
      }
    }
  }
  return absl::OkStatus();
}

std::string ProductLimit(DensePrecision precision) {
  return absl::StrCat("product in ", std::string(DensePrecisionName(precision)));
}

// So large that nothing but multiplication counts: what cublasLt reaches.
absl::Status MeasureProductRate(GpuBench& bench, DensePrecision precision) {
  const bool is_half = HasHalfFactors(precision);
  const int64_t n = bench.sizes().matrix_side;
  const CudaStream stream = bench.stream();
  HOTROW_ASSIGN_OR_RETURN(const auto gemm, GemmCuda::OfStream(PrecisionOf(precision), stream));
  DeviceBuffer<float> matrices[3];
  for (DeviceBuffer<float>& matrix : matrices) {
    HOTROW_ASSIGN_OR_RETURN(matrix, DeviceBuffer<float>::Create(n * n, stream));
    HOTROW_RETURN_IF_ERROR(FillSmallFloats(stream, matrix.data(), n * n, kX));
  }
  const auto run = [&](int64_t) {
    return gemm->Run(stream, {.m = n,
                              .n = n,
                              .k = n,
                              .a = matrices[0].data(),
                              .lda = n,
                              .b = matrices[1].data(),
                              .ldb = n,
                              .c = matrices[2].data(),
                              .ldc = n,
                              .half_result = is_half});
  };
  HOTROW_RETURN_IF_ERROR(run(0));  // which asks cublasLt for an algorithm
  HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure(run));
  const double flop = 2.0 * static_cast<double>(n) * static_cast<double>(n * n);
  bench.Add({"dense",
             ProductLimit(precision),
             times,
             flop,
             "flop",
             "",
             0,
             {{"side", n}, {"precision", std::string(DensePrecisionName(precision))}}});
  bench.SetLimit(ProductLimit(precision), flop / times.median);
  return absl::OkStatus();
}

absl::Status MeasureNewPlans(GpuBench& bench, DensePrecision precision,
                             std::set<std::string>& seen) {
  HOTROW_ASSIGN_OR_RETURN(const auto gemm,
                          GemmCuda::OfStream(PrecisionOf(precision), bench.stream()));
  const std::string precision_name(DensePrecisionName(precision));
  const int64_t bytes = HasHalfFactors(precision) ? 2 : 4;
  for (const internal::GemmPlan& plan : gemm->Plans()) {
    const internal::GemmKey& key = plan.key;
    const std::string name =
        absl::StrCat("plan ", precision_name, " ", key.m, " x ", key.n, " x ", key.k,
                     key.transpose_a ? " A'" : " A", key.transpose_b ? " B'" : " B",
                     key.relu ? " relu" : "", key.align_bias > 0 ? " bias" : "", ", algorithm ",
                     plan.algorithm, " tile ", plan.tile, " cut ", plan.cut, " scheme ",
                     plan.scheme, " aligned ", key.align_a, " ", key.align_b, " ", key.align_c);
    if (!seen.insert(name).second) continue;
    // Matrices that begin where the plan's alignment says.
    const auto matrix = [&](int64_t numbers, int64_t number_bytes, uint64_t seed) {
      return NewFloats(bench, CeilDiv(numbers * number_bytes + 16, int64_t{4}), seed);
    };
    const auto begin = [](DeviceBuffer<float>& buffer, uint32_t alignment) {
      return reinterpret_cast<std::byte*>(buffer.data()) + (alignment < 16 ? alignment : 0);
    };
    HOTROW_ASSIGN_OR_RETURN(auto a, matrix(key.lda * (key.transpose_a ? key.m : key.k), bytes, 1));
    HOTROW_ASSIGN_OR_RETURN(auto b, matrix(key.ldb * (key.transpose_b ? key.k : key.n), bytes, 2));
    HOTROW_ASSIGN_OR_RETURN(auto c, matrix(key.ldc * key.n, key.half_result ? bytes : 4, 3));
    HOTROW_ASSIGN_OR_RETURN(auto bias, matrix(key.m, 4, 4));
    ColumnMajorProduct product = {.transpose_a = key.transpose_a,
                                  .transpose_b = key.transpose_b,
                                  .m = key.m,
                                  .n = key.n,
                                  .k = key.k,
                                  .a = begin(a, key.align_a),
                                  .lda = key.lda,
                                  .b = begin(b, key.align_b),
                                  .ldb = key.ldb,
                                  .c = begin(c, key.align_c),
                                  .ldc = key.ldc,
                                  .half_result = key.half_result};
    if (key.relu) product.epilogue = internal::GemmEpilogue::kRelu;
    if (key.align_bias > 0) {
      product.bias = reinterpret_cast<const float*>(begin(bias, key.align_bias));
    }
    const auto run = [&](int64_t) { return gemm->Run(bench.stream(), product); };
    HOTROW_RETURN_IF_ERROR(run(0));
    HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure(run));
    const double flop = 2.0 * static_cast<double>(key.m * key.n) * static_cast<double>(key.k);
    const std::string limit = ProductLimit(precision);
    bench.Add({"plans",
               name,
               times,
               flop,
               "flop",
               limit,
               bench.limit(limit),
               {{"precision", precision_name},
                {"m", key.m},
                {"n", key.n},
                {"k", key.k},
                {"transpose_a", key.transpose_a},
                {"transpose_b", key.transpose_b},
                {"algorithm", plan.algorithm},
                {"tile", plan.tile},
                {"cut", plan.cut},
                {"scheme", plan.scheme}}});
  }
  return absl::OkStatus();
}

}  // namespace hotrow::bench
