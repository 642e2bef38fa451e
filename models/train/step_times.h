#ifndef HOTROW_MODELS_TRAIN_STEP_TIMES_H_
#define HOTROW_MODELS_TRAIN_STEP_TIMES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hotrow {

// How long steps took. Quantiles are times of steps, without rounding: of all steps up to
// kMaxKept, beyond that of every second one, every fourth and so on, so that memory stays bounded.
//
// Threads: one at a time.
class StepTimes {
 public:
  static constexpr size_t kMaxKept = 1 << 16;

  void Add(int64_t nanos);
  // The time at quantile q in [0, 1]: the least that a share q of the steps does not exceed; 0
  // where there are none.
  int64_t Quantile(double q) const;
  int64_t max() const { return max_; }  // of all steps

 private:
  std::vector<int64_t> kept_;  // of steps 0, stride_, 2 stride_ ...
  int64_t stride_ = 1;
  int64_t count_ = 0;
  int64_t max_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_STEP_TIMES_H_
