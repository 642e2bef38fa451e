#include "ops/products/int8_gemm_impl.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

constexpr float kWeightCodeMax = 127;
constexpr int64_t kQuadRows = 4;  // of a panel, whose numbers of a column lie side by side
constexpr int64_t kQuadNumbers = kQuadRows * kPanelColumns;
// Codes of x and W have 8 and 7 bits beside the sign: 2^16 products fill 31 bits.
constexpr int64_t kInputsMax = int64_t{1} << 16;
static_assert(255 * 127 * kInputsMax <= std::numeric_limits<int32_t>::max());

// Rows of a product: code is made for few heights, and a request of one sample waits for few rows.
constexpr int64_t kFewRows = 8;
int64_t ProductRows(int64_t rows) {
  return rows <= kFewRows ? kFewRows : RoundUp(rows, kPanelRows);
}

}  // namespace

absl::Status CheckInt8(bool onednn_supports, bool rows_supported, const std::string& processor,
                       const std::string& option) {
  if (!PanelProductsKnown()) {
    return absl::FailedPreconditionError(
        absl::StrCat(option, "int8 needs a build with oneDNN 2; use ", option, "fp32"));
  }
  if (onednn_supports && rows_supported) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      option,
      "int8 needs a processor with AVX-512 VNNI (better: AMX), which this one lacks or the "
      "environment forbids (ONEDNN_MAX_CPU_ISA): ",
      processor, "; use ", option, "fp32"));
}

absl::Status Int8Linear::Init(int64_t in, int64_t out) {
  in_ = in;
  out_ = out;
  in_padded_ = RoundUp(in, kPanelColumns);
  out_padded_ = RoundUp(out, kPanelColumns);
  if (few_outputs()) return absl::OkStatus();
  if (few_inputs()) {
    HOTROW_ASSIGN_OR_RETURN(transposed_, HostBuffer<float>::Create(in * out_padded_));
    return absl::OkStatus();
  }
  if (in > kInputsMax) {
    return absl::InvalidArgumentError(absl::StrCat("precision int8: a layer of ", in,
                                                   " inputs, at most ", kInputsMax,
                                                   "; use precision fp32"));
  }
  HOTROW_ASSIGN_OR_RETURN(codes_,
                          HostBuffer<int8_t>::Create(in_padded_ * out_padded_, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(scales_, HostBuffer<float>::Create(out_padded_));
  HOTROW_ASSIGN_OR_RETURN(code_sums_, HostBuffer<int32_t>::Create(out_padded_));
  return absl::OkStatus();
}

void Int8Linear::Prepare(ThreadPool* pool, const float* weights) {
  if (few_outputs()) return;
  if (few_inputs()) {
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t k = 0; k < in_; ++k) transposed_[k * out_padded_ + o] = weights[o * in_ + k];
    }
    return;
  }
  // What is padded stays zero.
  ParallelFor(pool, out_, kPanelColumns, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) EncodeOutput(weights, o);
  });
}

void Int8Linear::EncodeOutput(const float* weights, int64_t output) {
  const float* const w = weights + output * in_;
  float most = 0;
  bool finite = true;
  for (int64_t k = 0; k < in_; ++k) {
    finite = finite && std::isfinite(w[k]);
    most = std::max(most, std::abs(w[k]));
  }
  const float scale = most / kWeightCodeMax;
  const bool coded = finite && scale >= kInt8ScaleMin;
  const float inverse = coded ? 1 / scale : 0;
  int8_t* const column = codes_.data() + output / kPanelColumns * in_padded_ * kPanelColumns +
                         output % kPanelColumns * kQuadRows;
  int32_t sum = 0;
  for (int64_t k = 0; k < in_; ++k) {
    const float steps = coded ? std::nearbyint(w[k] * inverse) : 0;
    const auto code = static_cast<int8_t>(std::clamp(steps, -kWeightCodeMax, kWeightCodeMax));
    column[k / kQuadRows * kQuadNumbers + k % kQuadRows] = code;
    sum += code;
  }
  const float none = finite ? 0 : std::numeric_limits<float>::quiet_NaN();
  scales_[output] = coded ? scale : none;
  code_sums_[output] = sum;
}

absl::Status Int8Linear::Forward(PanelProducts* products, const ConstMatrix& x, int64_t rows,
                                 const float* weights, const float* bias, bool relu,
                                 const Matrix& y, ProductScratch* scratch) const {
  HOTROW_DCHECK(rows <= kGemmChunkRows);
  if (few_outputs()) {
    for (int64_t r = 0; r < rows; ++r) {
      MultiplyFewOutputs(x.row(r), weights, bias, in_, out_, relu, y.row(r));
    }
    return absl::OkStatus();
  }
  if (few_inputs()) {
    for (int64_t r = 0; r < rows; ++r) {
      MultiplyFewInputs(x.row(r), transposed_.data(), out_padded_, bias, in_, out_, relu, y.row(r));
    }
    return absl::OkStatus();
  }
  const int64_t height = ProductRows(rows);
  HOTROW_ASSIGN_OR_RETURN(uint8_t* const codes,
                          ProductScratch::Take(height * in_padded_, &scratch->codes));
  HOTROW_ASSIGN_OR_RETURN(int32_t* const sums,
                          ProductScratch::Take(height * out_padded_, &scratch->sums));
  std::array<Int8Row, static_cast<size_t>(kGemmChunkRows)> encoded;
  for (int64_t r = 0; r < rows; ++r) {
    encoded[static_cast<size_t>(r)] =
        EncodeInt8Row(x.row(r), in_, in_padded_, codes + r * in_padded_);
  }
  std::fill(codes + rows * in_padded_, codes + height * in_padded_, uint8_t{0});
  HOTROW_RETURN_IF_ERROR(
      products->Run({.rows = height, .inner = in_padded_, .columns = out_padded_, .int8 = true},
                    codes, codes_.data(), nullptr, sums, scratch));
  for (int64_t r = 0; r < rows; ++r) {
    DecodeInt8Sums(sums + r * out_padded_, encoded[static_cast<size_t>(r)], scales_.data(),
                   code_sums_.data(), bias, out_, relu, y.row(r));
  }
  return absl::OkStatus();
}

int64_t Int8Linear::bytes() const {
  return transposed_.bytes() + codes_.bytes() + scales_.bytes() + code_sums_.bytes();
}

}  // namespace hotrow::internal
