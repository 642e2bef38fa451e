#include "models/zoo/layers/mixture_layer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"

namespace hotrow {
namespace {

// A row is a microsecond or two of work.
constexpr int64_t kChunkRows = 64;

// Shares that add up to one. The largest exponent is 0, so nothing overflows.
void Softmax(const float* x, std::vector<float>* shares) {
  const float largest = *std::max_element(x, x + shares->size());
  float sum = 0;
  for (size_t e = 0; e < shares->size(); ++e) {
    (*shares)[e] = std::exp(x[e] - largest);
    sum += (*shares)[e];
  }
  for (float& share : *shares) share /= sum;
}

class MixtureLayer : public Layer {
 public:
  MixtureLayer(int64_t experts, int64_t dim) : experts_(experts), dim_(dim) {}
  TensorShape output() const override { return {1, static_cast<int32_t>(dim_)}; }
  LayerTraits traits() const override { return {.inputs_until = LayerPhase::kBackwardInputs}; }

  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    layers->Add({.name = "mixture", .macs = experts_ * dim_, .activations = dim_});
  }

  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    ForRows(ctx, pass.batch_size, pass.inputs[0], [&](int64_t r, const std::vector<float>& shares) {
      const float* x = RowOf(pass.inputs[1], r);
      float* const y = RowOf(pass.output, r);
      std::fill_n(y, dim_, 0.0f);
      for (const float share : shares) {
        for (int64_t i = 0; i < dim_; ++i) y[i] += share * x[i];
        x += dim_;
      }
    });
    return absl::OkStatus();
  }

  // With p the shares and d_e = <dy, expert e>: the gradient of the gate is p_e (d_e - sum p d).
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    ForRows(ctx, pass.batch_size, pass.inputs[0], [&](int64_t r, const std::vector<float>& shares) {
      const float* const dy = RowOf(pass.output_gradient, r);
      if (pass.input_gradients[1].data != nullptr) {
        float* dx = RowOf(pass.input_gradients[1], r);
        for (const float share : shares) {
          for (int64_t i = 0; i < dim_; ++i) dx[i] = share * dy[i];
          dx += dim_;
        }
      }
      if (pass.input_gradients[0].data == nullptr) return;
      float* const dgate = RowOf(pass.input_gradients[0], r);
      const float* x = RowOf(pass.inputs[1], r);
      float mean = 0;
      for (size_t e = 0; e < shares.size(); ++e, x += dim_) {
        float product = 0;
        for (int64_t i = 0; i < dim_; ++i) product += dy[i] * x[i];
        dgate[e] = product;
        mean += shares[e] * product;
      }
      for (size_t e = 0; e < shares.size(); ++e) dgate[e] = shares[e] * (dgate[e] - mean);
    });
    return absl::OkStatus();
  }

 private:
  static float* RowOf(const TensorView& view, int64_t r) { return view.data + r * view.row_stride; }

  // function(row, shares of the experts)
  template <typename Function>
  void ForRows(const ExecContext& ctx, int64_t rows, const TensorView& gate,
               const Function& function) const {
    ParallelFor(ctx.pool, rows, kChunkRows, [&](int64_t begin, int64_t end) {
      std::vector<float> shares(static_cast<size_t>(experts_));
      for (int64_t r = begin; r < end; ++r) {
        Softmax(RowOf(gate, r), &shares);
        function(r, shares);
      }
    });
  }

  const int64_t experts_;
  const int64_t dim_;
};

}  // namespace

GraphValue AddMixture(ModelGraph& graph, std::string_view name, GraphValue gate,
                      GraphValue experts) {
  if (!graph.ok()) return {};
  const int64_t count = graph.shape(gate).width();
  const int64_t width = graph.shape(experts).width();
  if (count < 1 || width % count != 0) {
    return graph.Fail(absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": a gate of ", count, " experts, which have ", width,
                     " columns in all; each needs as many")));
  }
  return graph.AddLayer(name, std::make_unique<MixtureLayer>(count, width / count),
                        {gate, experts});
}

}  // namespace hotrow
