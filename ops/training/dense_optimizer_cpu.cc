#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/training/dense_optimizer_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {

// Found by the formulas, so it stands where Vec8 stands.
static Vec8 DenseRoot(Vec8 x) { return Vec8::Sqrt(x); }

namespace {

// The elements [begin, end) of one tensor.
template <typename Step>
void UpdateElements(const DenseTensor& t, int64_t begin, int64_t end, const Step& step,
                    Vec8 gradient_scale, Vec8 average_weight) {
  ForEachVec8(end - begin, [&](int64_t i, auto lanes) {
    const int64_t e = begin + i;
    Vec8 w = LoadLanes(t.parameters.data() + e, lanes);
    Vec8 m1 = Vec8::Zero();
    Vec8 m2 = Vec8::Zero();
    if constexpr (Step::kStates >= 1) m1 = LoadLanes(t.momentum1.data() + e, lanes);
    if constexpr (Step::kStates >= 2) m2 = LoadLanes(t.momentum2.data() + e, lanes);
    step(w, gradient_scale * LoadLanes(t.gradients.data() + e, lanes), m1, m2);
    if constexpr (Step::kStates >= 1) StoreLanes(m1, t.momentum1.data() + e, lanes);
    if constexpr (Step::kStates >= 2) StoreLanes(m2, t.momentum2.data() + e, lanes);
    StoreLanes(w, t.parameters.data() + e, lanes);
    if (t.average.empty()) return;
    const Vec8 average = LoadLanes(t.average.data() + e, lanes);
    StoreLanes(MoveAverage(average, w, average_weight), t.average.data() + e, lanes);
  });
}

// Lays the tensors end to end and cuts that line into chunks of equal size, for tensors of any
// lengths.
template <typename Step>
void UpdateAll(ThreadPool* pool, std::span<const DenseTensor> tensors, const Step& step,
               Vec8 gradient_scale, Vec8 average_weight) {
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
      if (begin < stop) {
        UpdateElements(tensors[i], begin - first[i], stop - first[i], step, gradient_scale,
                       average_weight);
      }
      begin = std::max(begin, stop);
    }
  });
}

}  // namespace

absl::Status DenseUpdateCpu(ThreadPool* pool, const DenseOptimizerConfig& config,
                            std::span<const DenseTensor> tensors, float learning_rate_factor,
                            uint32_t step, float gradient_scale) {
  return WithDenseStep(
      config, learning_rate_factor, step, [](float x) { return Vec8::Set(x); },
      [&](const auto& formula) {
        UpdateAll(pool, tensors, formula, Vec8::Set(gradient_scale),
                  Vec8::Set(DenseAverageWeight(config.average_decay, step)));
        return absl::OkStatus();
      });
}

}  // namespace hotrow::internal
