#include "ops/products/bf16_gemm_impl.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

// A block of a weight gradient: 128 x 256 over a batch of 2048 is 0.11 ms of a core with AMX. The
// speed falls by a fifth with 512 columns, whose panels no longer fit the cache.
constexpr int64_t kBlockOutputs = 128;
constexpr int64_t kBlockInputs = 256;
constexpr int64_t kBlockOutputStep = 16;
static_assert(kGemmChunkRows % kPanelRows == 0);

}  // namespace

absl::Status CheckBf16(bool onednn_supports, bool rows_supported, const std::string& processor,
                       const std::string& option) {
  if (!PanelProductsKnown()) {
    return absl::FailedPreconditionError(
        absl::StrCat(option, "bf16 needs a build with oneDNN 2; use ", option, "fp32"));
  }
  if (onednn_supports && rows_supported) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      option,
      "bf16 needs a processor with AVX-512 BF16 (better: AMX), which this one lacks or "
      "the environment forbids (ONEDNN_MAX_CPU_ISA): ",
      processor, "; use ", option, "fp32"));
}

absl::Status Bf16Linear::Init(int64_t in, int64_t out, int64_t max_batch_size) {
  in_ = in;
  out_ = out;
  in_padded_ = RoundUp(in, kPanelColumns);
  out_padded_ = RoundUp(out, kPanelColumns);
  const int64_t batch = RoundUp(max_batch_size, kGemmChunkRows);
  const auto make = [](int64_t size, HostBuffer<Bf16>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<Bf16>::Create(size, HugePages::kTry));
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(make(in_padded_ * out_padded_, &transposed_));
  HOTROW_RETURN_IF_ERROR(make(in_padded_ * out_padded_, &weights_));
  HOTROW_RETURN_IF_ERROR(make(batch * in_padded_, &inputs_));
  HOTROW_RETURN_IF_ERROR(make(batch * out_padded_, &gradients_));
  HOTROW_ASSIGN_OR_RETURN(bias_, HostBuffer<float>::Create(out_padded_));
  return absl::OkStatus();
}

int64_t Bf16Linear::bytes() const {
  return transposed_.bytes() + weights_.bytes() + inputs_.bytes() + gradients_.bytes() +
         bias_.bytes();
}

void Bf16Linear::Prepare(ThreadPool* pool, const float* weights, const float* bias,
                         int64_t batch_size, bool training) {
  batch_padded_ = RoundUp(batch_size, kGemmChunkRows);
  has_bias_ = bias != nullptr;
  if (has_bias_) std::copy_n(bias, out_, bias_.data());
  ParallelFor(pool, out_padded_ / kPanelColumns, 1, [&](int64_t begin, int64_t end) {
    WeightsToPanels(weights, in_, out_, begin * kPanelColumns, end * kPanelColumns,
                    transposed_.data(), training ? weights_.data() : nullptr);
  });
}

absl::Status Bf16Linear::Forward(PanelProducts* products, const Bf16* x, int64_t rows,
                                 bool float_result, void* y, ProductScratch* scratch) const {
  return products->Run({rows, in_padded_, out_padded_, float_result, has_bias_}, x,
                       transposed_.data(), bias_.data(), y, scratch);
}

absl::Status Bf16Linear::InputGradient(PanelProducts* products, const Bf16* dy, bool float_result,
                                       void* dx, ProductScratch* scratch) const {
  return products->Run({kGemmChunkRows, out_padded_, in_padded_, float_result}, dy, weights_.data(),
                       nullptr, dx, scratch);
}

void Bf16Linear::KeepInput(const Bf16* x, int64_t begin) {
  ToPanels(x, kGemmChunkRows, in_padded_, begin, batch_padded_, inputs_.data());
}

void Bf16Linear::KeepGradient(const Bf16* dy, int64_t begin) {
  ToColumns(dy, kGemmChunkRows, out_padded_, begin, batch_padded_, gradients_.data());
}

absl::Status Bf16Linear::WeightGradient(PanelProducts* products, const WeightBlock& block,
                                        float* dw, ProductScratch* scratch) const {
  const int64_t outputs = std::min(kBlockOutputs, out_ - block.output);
  const int64_t inputs = std::min(kBlockInputs, in_ - block.input);
  const ProductShape shape = {.rows = RoundUp(outputs, kBlockOutputStep),
                              .inner = batch_padded_,
                              .columns = RoundUp(inputs, kPanelColumns),
                              .float_result = true};
  HOTROW_ASSIGN_OR_RETURN(float* const product,
                          ProductScratch::Take(kBlockOutputs * kBlockInputs, &scratch->product));
  HOTROW_RETURN_IF_ERROR(products->Run(shape, gradients_.data() + block.output * batch_padded_,
                                       inputs_.data() + block.input * batch_padded_, nullptr,
                                       product, scratch));
  for (int64_t r = 0; r < outputs; ++r) {
    std::copy_n(product + r * shape.columns, inputs, dw + (block.output + r) * in_ + block.input);
  }
  return absl::OkStatus();
}

WeightBlocks CutWeights(std::span<const Bf16Linear* const> linears) {
  std::vector<WeightShape> shapes;
  for (const Bf16Linear* const linear : linears) {
    shapes.push_back({.in = linear->in(), .out = linear->out()});
  }
  return CutWeights(shapes, kBlockOutputs, kBlockInputs);
}

}  // namespace hotrow::internal
