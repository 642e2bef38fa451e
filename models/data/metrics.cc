#include "models/data/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace hotrow {
namespace {

// Bit 0 is the label, the bits above it order like the scores.
using ScoredLabel = uint64_t;

// Floats order like their bits once those of negative numbers are flipped. Adding zero makes -0 and
// +0 one value, as they compare equal.
ScoredLabel ToScoredLabel(float score, float label) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 1 | (label > 0.5f ? 1 : 0);
}

// Least significant digit first, three digits of 11 bits of the score; ties stay in any order.
void RadixSort(std::vector<ScoredLabel>* items) {
  constexpr int kDigitBits = 11;
  constexpr uint64_t kDigits = uint64_t{1} << kDigitBits;
  std::vector<ScoredLabel> other(items->size());
  for (int shift = 1; shift < 33; shift += kDigitBits) {
    std::array<int64_t, kDigits> begin = {};
    for (const ScoredLabel item : *items) ++begin[(item >> shift) % kDigits];
    int64_t sum = 0;
    for (int64_t& b : begin) {
      const int64_t count = b;
      b = sum;
      sum += count;
    }
    for (const ScoredLabel item : *items) {
      other[static_cast<size_t>(begin[(item >> shift) % kDigits]++)] = item;
    }
    items->swap(other);
  }
}

}  // namespace

double Auc(std::span<const float> scores, std::span<const float> labels) {
  HOTROW_CHECK(scores.size() == labels.size());
  std::vector<ScoredLabel> items(scores.size());
  for (size_t i = 0; i < items.size(); ++i) items[i] = ToScoredLabel(scores[i], labels[i]);
  RadixSort(&items);
  // Walks groups of equal scores upwards. A positive beats every negative below it and ties with
  // those of its group. Twice the sum is at most n^2 / 2, so it fits for n up to 2^32.
  uint64_t negatives = 0;
  uint64_t positives = 0;
  uint64_t twice_ordered_pairs = 0;
  for (size_t begin = 0; begin < items.size();) {
    uint64_t counts[2] = {0, 0};
    size_t end = begin;
    for (; end < items.size() && items[end] >> 1 == items[begin] >> 1; ++end) {
      ++counts[items[end] & 1];
    }
    twice_ordered_pairs += counts[1] * (2 * negatives + counts[0]);
    negatives += counts[0];
    positives += counts[1];
    begin = end;
  }
  if (negatives == 0 || positives == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(twice_ordered_pairs) /
         (2 * static_cast<double>(positives) * static_cast<double>(negatives));
}

std::string FormatMetric(double metric, int digits) {
  return std::isnan(metric) ? "none (one class)" : absl::StrFormat("%.*f", digits, metric);
}

CtrMetrics MeanOverTasks(std::span<const CtrMetrics> tasks) {
  if (tasks.size() == 1) return tasks.front();
  const auto mean = [&](double CtrMetrics::*number) {
    double sum = 0;
    for (const CtrMetrics& task : tasks) sum += task.*number;
    return sum / static_cast<double>(tasks.size());
  };
  return {.samples = tasks.front().samples,
          .auc = mean(&CtrMetrics::auc),
          .logloss = mean(&CtrMetrics::logloss),
          .ne = mean(&CtrMetrics::ne),
          .calibration = mean(&CtrMetrics::calibration)};
}

void MetricsAccumulator::Add(std::span<const float> logits, std::span<const float> labels,
                             int32_t task, int32_t num_tasks) {
  HOTROW_CHECK(logits.size() == labels.size());
  if (num_tasks == 1) {
    logits_.insert(logits_.end(), logits.begin(), logits.end());
    labels_.insert(labels_.end(), labels.begin(), labels.end());
    return;
  }
  for (auto i = static_cast<size_t>(task); i < logits.size(); i += static_cast<size_t>(num_tasks)) {
    logits_.push_back(logits[i]);
    labels_.push_back(labels[i]);
  }
}

void MetricsAccumulator::Clear() {
  logits_.clear();
  labels_.clear();
}

CtrMetrics MetricsAccumulator::Compute() const {
  CtrMetrics metrics;
  metrics.samples = static_cast<int64_t>(logits_.size());
  metrics.auc = Auc(logits_, labels_);
  if (logits_.empty()) return metrics;
  double loss = 0;
  double predicted = 0;
  int64_t positives = 0;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const double x = logits_[i];
    const bool positive = labels_[i] > 0.5f;
    // -log(sigmoid(+-x)) = log(1 + exp(-+x)), written so that exp never overflows and a small loss
    // keeps its digits.
    const double e = std::exp(-std::abs(x));
    const double wrong = positive ? -x : x;
    loss += std::max(wrong, 0.0) + std::log1p(e);
    predicted += (x >= 0 ? 1.0 : e) / (1 + e);
    positives += positive ? 1 : 0;
  }
  const auto n = static_cast<double>(metrics.samples);
  const auto clicks = static_cast<double>(positives);
  metrics.logloss = loss / n;
  metrics.ne = std::numeric_limits<double>::quiet_NaN();
  metrics.calibration = metrics.ne;
  if (positives > 0 && positives < metrics.samples) {
    const double rate = clicks / n;
    metrics.ne = metrics.logloss / -(rate * std::log(rate) + (1 - rate) * std::log1p(-rate));
  }
  if (positives > 0) metrics.calibration = predicted / clicks;
  return metrics;
}

}  // namespace hotrow
