#ifndef HOTROW_TOOLS_TRACE_ANALYSIS_H_
#define HOTROW_TOOLS_TRACE_ANALYSIS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache/key_sampler.h"

namespace hotrow {

// The exponent s of p(rank) ~ rank^-s that makes the counts likeliest: maximum likelihood over the
// ranks that occur, each key's rank being its place by count, found by golden-section search on the
// convex -log L = sum(count * s * log(rank)) + n * log(sum over ranks of rank^-s). `counts`
// sorted, the largest first.
double FitZipfExponent(std::span<const int64_t> counts);

// What `hotrow trace info` says of one table. For a sampled trace the numbers are estimates for the
// whole: counts of the sample divided by the rate.
struct TraceSummary {
  int64_t accesses = 0;
  double sample_rate = 1;
  double distinct = 0;
  double used_once = 0;  // keys
  double zipf_exponent = 0;
  // How well the law fits: the hottest `fraction` of the distinct keys have `share` of the
  // accesses, by the law `fitted_share`.
  struct HotShare {
    double fraction = 0;
    double share = 0;
    double fitted_share = 0;
  };
  std::vector<HotShare> hot_shares;
  // Keys by their number of accesses: [2^i, 2^(i + 1)).
  std::vector<double> keys_by_accesses;
  // Distinct keys seen when so many accesses had passed.
  struct Growth {
    int64_t accesses = 0;
    double distinct = 0;
  };
  std::vector<Growth> growth;
  // Working set (Denning 1968): distinct keys in a window of so many accesses, averaged over the
  // window's place.
  struct WorkingSet {
    int64_t window = 0;
    double distinct = 0;
  };
  std::vector<WorkingSet> working_sets;
};

// Gathers a TraceSummary in one pass; memory: about 32 bytes a sampled key.
class TraceAnalysis {
 public:
  explicit TraceAnalysis(double sample_rate) : sample_rate_(sample_rate) {}

  // Sampled keys, in order, among further accesses to keys that are not in the sample.
  void Add(std::span<const uint64_t> keys, int64_t unsampled);
  TraceSummary Summary() const;

 private:
  struct Use {
    int64_t count = 0;
    int64_t last = 0;  // when, in accesses
  };

  double sample_rate_;
  int64_t accesses_ = 0;
  int64_t sampled_ = 0;
  absl::flat_hash_map<uint64_t, Use> uses_;
  // Times between two uses of a key, by floor(log2): how many, and their sum.
  std::array<int64_t, 64> gaps_ = {};
  std::array<double, 64> gap_sums_ = {};
  std::vector<TraceSummary::Growth> growth_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_TRACE_ANALYSIS_H_
