#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/layers/gated_experts_impl.h"

namespace hotrow::internal {
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

// function(row, shares of the experts)
template <typename Function>
void ForRows(ThreadPool* pool, const GatedExpertsArgs& args, const Function& function) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    std::vector<float> shares(static_cast<size_t>(args.num_experts));
    for (int64_t r = begin; r < end; ++r) {
      Softmax(args.gate + r * args.gate_stride, &shares);
      function(r, shares);
    }
  });
}

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// From the shares p_e and d_e = d(loss)/d(p_e), which is there, to the gradient of the gate.
void SoftmaxGradient(const std::vector<float>& shares, float* gradient) {
  const float mean = Dot(gradient, shares.data(), std::ssize(shares));
  for (size_t e = 0; e < shares.size(); ++e) gradient[e] = shares[e] * (gradient[e] - mean);
}

}  // namespace

absl::Status GatedExpertsCpu(ThreadPool* pool, const GatedExpertsArgs& args) {
  const int64_t dim = args.dim;
  ForRows(pool, args, [&](int64_t r, const std::vector<float>& shares) {
    const float* x = args.x + r * args.x_stride;
    float* y = args.output + r * args.output_stride;
    if (args.kind == GatedOutput::kScaled) {
      for (const float share : shares) {
        for (int64_t i = 0; i < dim; ++i) y[i] = share * x[i];
        x += dim;
        y += dim;
      }
      return;
    }
    std::fill_n(y, dim, 0.0f);
    for (const float share : shares) {
      for (int64_t i = 0; i < dim; ++i) y[i] += share * x[i];
      x += dim;
    }
  });
  return absl::OkStatus();
}

absl::Status GatedExpertsGradCpu(ThreadPool* pool, const GatedExpertsGradArgs& args) {
  const GatedExpertsArgs& forward = args.forward;
  const int64_t dim = forward.dim;
  const int64_t next = forward.kind == GatedOutput::kScaled ? dim : 0;  // of an expert's gradient
  ForRows(pool, forward, [&](int64_t r, const std::vector<float>& shares) {
    const float* dy = args.output_gradient + r * args.output_gradient_stride;
    const float* x = forward.x + r * forward.x_stride;
    float* dx = args.x_gradient == nullptr ? nullptr : args.x_gradient + r * args.x_gradient_stride;
    float* const dgate = args.gate_gradient == nullptr
                             ? nullptr
                             : args.gate_gradient + r * args.gate_gradient_stride;
    for (size_t e = 0; e < shares.size(); ++e) {
      if (dgate != nullptr) dgate[e] = Dot(dy, x, dim);
      if (dx != nullptr) {
        for (int64_t i = 0; i < dim; ++i) dx[i] = shares[e] * dy[i];
        dx += dim;
      }
      x += dim;
      dy += next;
    }
    if (dgate != nullptr) SoftmaxGradient(shares, dgate);
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
