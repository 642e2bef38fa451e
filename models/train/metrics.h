#ifndef HOTROW_MODELS_TRAIN_METRICS_H_
#define HOTROW_MODELS_TRAIN_METRICS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace hotrow {

// The quality of a set of predictions.
struct CtrMetrics {
  int64_t samples = 0;
  double auc = 0;      // exact; 0.5 when one class is missing
  double logloss = 0;  // mean, natural logarithm
  double ne = 0;  // logloss / entropy of the base rate (He et al. 2014); 0 when that entropy is 0
  double calibration = 0;  // sum of predictions / sum of labels; 0 without positives
};

// The means of each number over the tasks; of one task its own. `tasks` is not empty.
CtrMetrics MeanOverTasks(std::span<const CtrMetrics> tasks);

// Area under the ROC curve by ranks: the share of (positive, negative) pairs in the right order,
// ties counting one half (Mann & Whitney 1947). Exact: sums are integers. Sizes are equal, scores
// finite, labels 0 or 1 (above 0.5 is positive).
double Auc(std::span<const float> scores, std::span<const float> labels);

// Collects predictions batch by batch. Keeps 8 bytes a sample.
class MetricsAccumulator {
 public:
  // Takes logits, so that the log-loss of extreme predictions stays finite. Of both spans, which
  // are [B, T], those of task `task` of T = num_tasks.
  void Add(std::span<const float> logits, std::span<const float> labels, int32_t task = 0,
           int32_t num_tasks = 1);
  CtrMetrics Compute() const;
  void Clear();

 private:
  std::vector<float> logits_;
  std::vector<float> labels_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_METRICS_H_
