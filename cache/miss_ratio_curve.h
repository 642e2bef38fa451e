#ifndef HOTROW_CACHE_MISS_RATIO_CURVE_H_
#define HOTROW_CACHE_MISS_RATIO_CURVE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cache/key_sampler.h"
#include "cache/lru_stack.h"

// Hit rates of LRU caches of every size, from one pass over the accesses. With the unique keys of
// each training step as accesses the curves give unique_hit_rate; with all lookups they give the
// hit_rate of a cache that handles lookups one by one.
//
// First uses are misses: nothing is warm before the first access.
namespace hotrow {

// The exact curve. Memory is that of LruStack and 8 bytes for each distance up to the longest.
//
// Threads: one at a time.
class LruCurve {
 public:
  explicit LruCurve(uint64_t seed = 0) : seed_(seed) {}

  // Returns the stack distance, -1 for a first use.
  int64_t Add(uint64_t key, uint32_t table = 0);

  int64_t accesses() const { return accesses_; }
  int64_t distinct() const { return stack_.size(); }
  // The hit rate of an LRU cache of `rows` rows; 0 before the first access.
  double HitRate(int64_t rows) const;
  // The same for many sizes in one pass; sizes may come in any order.
  std::vector<double> HitRates(const std::vector<int64_t>& rows) const;
  int64_t MemoryBytes() const;

 private:
  uint64_t seed_;
  LruStack stack_;
  std::vector<int64_t> hits_at_;  // by distance
  int64_t accesses_ = 0;
};

struct SampledLruCurveOptions {
  double sample_rate = 0.1;  // in (0, 1]: the share of keys in the sample
  // With more sampled keys the rate falls for good, which bounds memory for any stream. At least
  // 256; 0: the rate is fixed.
  int64_t keys_max = 0;
  uint64_t seed = 0;  // of the choice of keys

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// The curve estimated from a sample of the keys: adjusted SHARDS (Waldspurger et al., FAST'15).
// Keys with a low hash go through their own stack, whose distances are divided by the rate. A
// surplus or deficit of accesses in the sample (a hot key is in it or not) counts as accesses that
// hit at once. A key outside the sample costs one hash and one comparison.
//
// Error. With n the accesses, R the rate, S the sampled keys and m_i(c) the misses of key i in a
// cache of c rows, the adjusted estimate is 1 - sum over S of m_i(c) / (n R): a Horvitz-Thompson
// estimate of the miss rate. HitRateError(c) states two standard errors of it, from
//   - which keys are in the sample: the spread of the sum over kGroups groups of keys, drawn by
//     other bits of the hash ("random groups", Wolter, Introduction to Variance Estimation, ch. 2);
//   - the distances: of d distinct keys Binomial(d, R) are sampled, so the sample cannot tell a
//     cache of c rows from one of c +- sqrt(c (1 - R) / R); the difference of the hit rates there
//     is taken as the error of all accesses.
// If errors are normal, 95 % of estimates lie within it. It is no bound for every stream: where one
// key has half of the accesses, its misses may exceed it. Sizes below a few 1 / R are not resolved.
//
// When keys_max lowers the rate, earlier counts are scaled with it, as in the paper.
//
// Threads: one at a time.
class SampledLruCurve {
 public:
  // `options` must be valid.
  explicit SampledLruCurve(const SampledLruCurveOptions& options);

  void Add(uint64_t key, uint32_t table = 0) {
    if (table != table_) SetTable(table);
    AddHash(sampler_.Hash(key));
  }
  // `hash` is KeySampler(options.seed, table).Hash(key).
  void AddHash(uint64_t hash) {
    ++accesses_;
    if (hash <= limit_) AddSampled(hash);
  }
  // Accesses of keys known to be outside the sample: the unsampled ones of a sampled trace.
  void AddUnsampled(int64_t accesses) { accesses_ += accesses; }

  int64_t accesses() const { return accesses_; }
  double sample_rate() const { return KeySampler::RateOfLimit(limit_); }  // now
  int64_t sampled_keys() const { return stack_.size(); }
  double distinct() const { return static_cast<double>(stack_.size()) / sample_rate(); }
  double HitRate(double rows) const;
  // The error of HitRate, see above; 0 when every key is sampled.
  double HitRateError(double rows) const;
  int64_t MemoryBytes() const;

 private:
  static constexpr int kGroups = 16;

  // Counts by distance: exact below 2^bits, then 2^bits buckets for each doubling, so a size is
  // known to 1 part in 2^bits.
  class Histogram {
   public:
    explicit Histogram(int bits) : bits_(bits) {}
    void Add(int64_t distance, double weight);
    void Scale(double factor);
    double Below(double distance) const;  // linear within a bucket
    int64_t MemoryBytes() const { return static_cast<int64_t>(counts_.capacity() * 8); }

   private:
    size_t BucketOf(int64_t distance) const;
    double LowerEnd(size_t bucket) const;
    int bits_;
    std::vector<double> counts_;
  };
  struct Group {
    double accesses = 0;
    Histogram hits{3};
  };

  void SetTable(uint32_t table);
  void AddSampled(uint64_t hash);
  void LowerRate();

  SampledLruCurveOptions options_;
  KeySampler sampler_;
  uint32_t table_ = 0;
  uint64_t limit_;
  LruStack stack_;
  int64_t accesses_ = 0;
  double sampled_accesses_ = 0;  // scaled when the rate falls
  Histogram hits_{7};
  std::array<Group, kGroups> groups_;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_MISS_RATIO_CURVE_H_
