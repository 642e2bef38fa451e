#include "tools/trace_analysis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "tools/plan/popularity.h"

namespace hotrow {
namespace {

constexpr double kExponentMax = 8;
constexpr double kFractions[] = {0.001, 0.01, 0.05, 0.1, 0.2, 0.5};

int Log2(int64_t n) { return std::bit_width(static_cast<uint64_t>(n)) - 1; }

}  // namespace

double FitZipfExponent(std::span<const int64_t> counts) {
  const auto ranks = static_cast<double>(counts.size());
  if (counts.size() < 2) return 0;
  double total = 0;
  double log_ranks = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += static_cast<double>(counts[i]);
    log_ranks += static_cast<double>(counts[i]) * std::log(static_cast<double>(i + 1));
  }
  const double mean_log_rank = log_ranks / total;
  const auto cost = [&](double s) { return s * mean_log_rank + std::log(HarmonicSum(ranks, s)); };
  // Golden-section search: the cost is convex in s.
  const double golden = (std::sqrt(5.0) - 1) / 2;
  double low = 0;
  double high = kExponentMax;
  double a = high - golden * (high - low);
  double b = low + golden * (high - low);
  double cost_a = cost(a);
  double cost_b = cost(b);
  while (high - low > 1e-6) {
    if (cost_a < cost_b) {
      high = b;
      b = a;
      cost_b = cost_a;
      a = high - golden * (high - low);
      cost_a = cost(a);
    } else {
      low = a;
      a = b;
      cost_a = cost_b;
      b = low + golden * (high - low);
      cost_b = cost(b);
    }
  }
  return (low + high) / 2;
}

void TraceAnalysis::Add(std::span<const uint64_t> keys, int64_t unsampled) {
  // The unsampled accesses lie spread between the sampled ones.
  const auto n = static_cast<int64_t>(keys.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t now = accesses_ + i + unsampled * (i + 1) / (n + 1);
    Use& use = uses_[keys[static_cast<size_t>(i)]];
    if (use.count > 0) {
      const int64_t gap = std::max<int64_t>(1, now - use.last);
      ++gaps_[static_cast<size_t>(Log2(gap))];
      gap_sums_[static_cast<size_t>(Log2(gap))] += static_cast<double>(gap);
    }
    ++use.count;
    use.last = now;
    // A mark at 1,000 accesses and at each doubling.
    const int64_t seen = now + 1;
    const int64_t next = growth_.empty() ? 1000 : growth_.back().accesses;
    if (growth_.empty() ? seen >= next : seen >= 2 * next) {
      growth_.push_back({seen, static_cast<double>(uses_.size()) / sample_rate_});
    }
  }
  accesses_ += n + unsampled;
  sampled_ += n;
}

TraceSummary TraceAnalysis::Summary() const {
  TraceSummary summary;
  summary.accesses = accesses_;
  summary.sample_rate = sample_rate_;
  summary.distinct = static_cast<double>(uses_.size()) / sample_rate_;
  summary.growth = growth_;
  if (uses_.empty()) return summary;
  summary.growth.push_back({accesses_, summary.distinct});

  std::vector<int64_t> counts;
  counts.reserve(uses_.size());
  // Last uses reach to the end of the trace.
  std::array<int64_t, 64> gaps = gaps_;
  std::array<double, 64> gap_sums = gap_sums_;
  for (const auto& [key, use] : uses_) {
    counts.push_back(use.count);
    summary.used_once += use.count == 1 ? 1 / sample_rate_ : 0;
    const auto bucket = static_cast<size_t>(Log2(use.count));
    if (bucket >= summary.keys_by_accesses.size()) summary.keys_by_accesses.resize(bucket + 1);
    summary.keys_by_accesses[bucket] += 1 / sample_rate_;
    const int64_t gap = std::max<int64_t>(1, accesses_ - use.last);
    ++gaps[static_cast<size_t>(Log2(gap))];
    gap_sums[static_cast<size_t>(Log2(gap))] += static_cast<double>(gap);
  }
  std::sort(counts.begin(), counts.end(), std::greater<>());
  summary.zipf_exponent = FitZipfExponent(counts);

  const auto ranks = static_cast<double>(counts.size());
  const double law_total = HarmonicSum(ranks, summary.zipf_exponent);
  int64_t sum = 0;
  size_t counted = 0;
  for (const double fraction : kFractions) {
    const auto end = static_cast<size_t>(fraction * ranks);
    if (end == 0) continue;
    for (; counted < end; ++counted) sum += counts[counted];
    summary.hot_shares.push_back(
        {fraction, static_cast<double>(sum) / static_cast<double>(sampled_),
         HarmonicSum(static_cast<double>(end), summary.zipf_exponent) / law_total});
  }

  // An access at x keeps its key in the windows of T accesses that end at x, x + 1, ... up to the
  // next use or to x + T - 1: min(T, gap) of them. The mean over all ends is the working set.
  for (int i = 4; (int64_t{1} << i) <= accesses_; i += 2) {
    double held = 0;
    int64_t longer = 0;
    for (int g = 0; g < 64; ++g) {
      if (g < i) {
        held += gap_sums[static_cast<size_t>(g)];
      } else {
        longer += gaps[static_cast<size_t>(g)];
      }
    }
    const double window = std::ldexp(1.0, i);
    held += static_cast<double>(longer) * window;
    summary.working_sets.push_back(
        {int64_t{1} << i, held / static_cast<double>(accesses_) / sample_rate_});
  }
  return summary;
}

}  // namespace hotrow
