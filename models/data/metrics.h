#ifndef HOTROW_MODELS_DATA_METRICS_H_
#define HOTROW_MODELS_DATA_METRICS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hotrow {

// The quality of a set of predictions.
struct CtrMetrics {
  int64_t samples = 0;
  double auc = 0;          // exact; NaN when a class is missing, since there is none then
  double logloss = 0;      // mean, natural logarithm
  double ne = 0;           // logloss / entropy of the base rate (He et al. 2014); NaN where auc is
  double calibration = 0;  // sum of predictions / sum of labels; NaN without positives
};

// The means of each number over the tasks; of one task its own. `tasks` is not empty.
CtrMetrics MeanOverTasks(std::span<const CtrMetrics> tasks);

// Area under the ROC curve by ranks: the share of (positive, negative) pairs in the right order,
// ties counting one half (Mann & Whitney 1947). Exact: sums are integers. Sizes are equal, scores
// finite, labels 0 or 1 (above 0.5 is positive). NaN where there are no pairs.
double Auc(std::span<const float> scores, std::span<const float> labels);
// "0.7512", or why there is none.
std::string FormatMetric(double metric, int digits = 4);

// Collects predictions batch by batch. Keeps 8 bytes a sample.
class MetricsAccumulator {
 public:
  // Takes logits, so that the log-loss of extreme predictions stays finite. Both spans are [B, T];
  // it reads those of task `task` of T = num_tasks.
  void Add(std::span<const float> logits, std::span<const float> labels, int32_t task = 0,
           int32_t num_tasks = 1);
  CtrMetrics Compute() const;
  void Clear();

 private:
  std::vector<float> logits_;
  std::vector<float> labels_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_METRICS_H_
