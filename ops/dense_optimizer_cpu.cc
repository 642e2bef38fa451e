#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "ops/dense_optimizer_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// One step of each optimizer for the elements [begin, end) of one tensor. The formulas are those of
// torch.optim, so that a run there can be repeated here.

// w -= lr g
struct SgdStep {
  Vec8 weight_decay;
  Vec8 learning_rate;

  void operator()(const DenseTensor& t, int64_t begin, int64_t end) const {
    ForEachVec8(end - begin, [&](int64_t i, auto lanes) {
      const int64_t e = begin + i;
      const Vec8 w = LoadLanes(t.parameters.data() + e, lanes);
      const Vec8 g = LoadLanes(t.gradients.data() + e, lanes) + weight_decay * w;
      StoreLanes(w - learning_rate * g, t.parameters.data() + e, lanes);
    });
  }
};

// s += g^2;  w -= lr g / (sqrt(s) + eps)
struct AdagradStep {
  Vec8 weight_decay;
  Vec8 learning_rate;
  Vec8 eps;

  void operator()(const DenseTensor& t, int64_t begin, int64_t end) const {
    ForEachVec8(end - begin, [&](int64_t i, auto lanes) {
      const int64_t e = begin + i;
      const Vec8 w = LoadLanes(t.parameters.data() + e, lanes);
      const Vec8 g = LoadLanes(t.gradients.data() + e, lanes) + weight_decay * w;
      const Vec8 s = LoadLanes(t.momentum1.data() + e, lanes) + g * g;
      StoreLanes(s, t.momentum1.data() + e, lanes);
      StoreLanes(w - learning_rate * g / (Vec8::Sqrt(s) + eps), t.parameters.data() + e, lanes);
    });
  }
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
// w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
struct AdamStep {
  Vec8 weight_decay;
  Vec8 step_size;  // lr / (1 - b1^t)
  Vec8 eps;
  Vec8 beta1;
  Vec8 one_minus_beta1;
  Vec8 beta2;
  Vec8 one_minus_beta2;
  Vec8 root_correction2;  // sqrt(1 - b2^t)

  void operator()(const DenseTensor& t, int64_t begin, int64_t end) const {
    ForEachVec8(end - begin, [&](int64_t i, auto lanes) {
      const int64_t e = begin + i;
      const Vec8 w = LoadLanes(t.parameters.data() + e, lanes);
      const Vec8 g = LoadLanes(t.gradients.data() + e, lanes) + weight_decay * w;
      const Vec8 m = beta1 * LoadLanes(t.momentum1.data() + e, lanes) + one_minus_beta1 * g;
      const Vec8 v = beta2 * LoadLanes(t.momentum2.data() + e, lanes) + one_minus_beta2 * (g * g);
      StoreLanes(m, t.momentum1.data() + e, lanes);
      StoreLanes(v, t.momentum2.data() + e, lanes);
      const Vec8 denominator = Vec8::Sqrt(v) / root_correction2 + eps;
      StoreLanes(w - step_size * m / denominator, t.parameters.data() + e, lanes);
    });
  }
};

// Lays the tensors end to end and cuts that line into chunks of equal size, whatever the tensors'
// lengths.
template <typename Step>
void UpdateAll(ThreadPool* pool, std::span<const DenseTensor> tensors, const Step& update) {
  constexpr int64_t kChunkElements = 16384;
  std::vector<int64_t> first(tensors.size() + 1, 0);  // where tensor i begins on the line
  for (size_t i = 0; i < tensors.size(); ++i) {
    first[i + 1] = first[i] + static_cast<int64_t>(tensors[i].parameters.size());
  }
  ParallelFor(pool, first.back(), kChunkElements, [&](int64_t begin, int64_t end) {
    // The tensor that holds `begin`: the last one that begins at or before it.
    auto i = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), begin) -
                                 first.begin() - 1);
    for (; begin < end; ++i) {
      const int64_t stop = std::min(end, first[i + 1]);
      if (begin < stop) update(tensors[i], begin - first[i], stop - first[i]);
      begin = std::max(begin, stop);
    }
  });
}

}  // namespace

absl::Status DenseUpdateCpu(ThreadPool* pool, const DenseOptimizerConfig& config,
                            std::span<const DenseTensor> tensors, float learning_rate_factor,
                            uint32_t step) {
  const double learning_rate = static_cast<double>(config.learning_rate) * learning_rate_factor;
  const Vec8 weight_decay = Vec8::Set(config.weight_decay);
  const auto set = [](double x) { return Vec8::Set(static_cast<float>(x)); };
  switch (config.kind) {
    case DenseOptimizerKind::kSgd:
      UpdateAll(pool, tensors,
                SgdStep{.weight_decay = weight_decay, .learning_rate = set(learning_rate)});
      return absl::OkStatus();
    case DenseOptimizerKind::kAdagrad:
      UpdateAll(pool, tensors,
                AdagradStep{.weight_decay = weight_decay,
                            .learning_rate = set(learning_rate),
                            .eps = Vec8::Set(config.eps)});
      return absl::OkStatus();
    case DenseOptimizerKind::kAdam: {
      // The corrections are scalars, worked out in double: 1 - b2^t cancels in float for small t.
      const double beta1 = config.beta1;
      const double beta2 = config.beta2;
      UpdateAll(pool, tensors,
                AdamStep{.weight_decay = weight_decay,
                         .step_size = set(learning_rate / (1 - std::pow(beta1, step))),
                         .eps = Vec8::Set(config.eps),
                         .beta1 = Vec8::Set(config.beta1),
                         .one_minus_beta1 = set(1 - beta1),
                         .beta2 = Vec8::Set(config.beta2),
                         .one_minus_beta2 = set(1 - beta2),
                         .root_correction2 = set(std::sqrt(1 - std::pow(beta2, step)))});
      return absl::OkStatus();
    }
  }
  HOTROW_CHECK(false && "unknown DenseOptimizerKind");
  return absl::OkStatus();
}

}  // namespace hotrow::internal
