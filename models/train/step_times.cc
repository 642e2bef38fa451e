#include "models/train/step_times.h"

#include <algorithm>
#include <cmath>

namespace hotrow {

void StepTimes::Add(int64_t nanos) {
  max_ = std::max(max_, nanos);
  const int64_t step = count_++;
  if (step % stride_ != 0) return;
  if (kept_.size() == kMaxKept) {
    for (size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
    kept_.resize(kMaxKept / 2);
    stride_ *= 2;
    if (step % stride_ != 0) return;
  }
  kept_.push_back(nanos);
}

int64_t StepTimes::Quantile(double q) const {
  if (kept_.empty()) return 0;
  std::vector<int64_t> sorted = kept_;
  const double rank = std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size()));
  const auto at = std::max<int64_t>(static_cast<int64_t>(rank) - 1, 0);
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end());
  return sorted[static_cast<size_t>(at)];
}

}  // namespace hotrow
