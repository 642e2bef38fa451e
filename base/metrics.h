#ifndef HOTROW_BASE_METRICS_H_
#define HOTROW_BASE_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace hotrow {

// Reading a metric does not reset it: readers do not disturb each other, and the difference of two
// readings is a rate. All methods may run concurrently; reads are relaxed.

// A count that only grows.
class Counter {
 public:
  void Add(int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// A distribution of non-negative values in logarithmic buckets, 16 to each power of two, so that a
// quantile is off by at most 1/32 of its value.
class Histogram {
 public:
  void Add(int64_t value);
  int64_t count() const;
  int64_t max() const { return max_.load(std::memory_order_relaxed); }
  // The value at quantile q in [0, 1]; 0 when empty. Quantile(1) is the exact maximum.
  double Quantile(double q) const;

 private:
  static constexpr int kSubBuckets = 16;
  static constexpr int kBuckets = 61 * kSubBuckets;
  std::array<std::atomic<int64_t>, kBuckets> counts_{};
  std::atomic<int64_t> max_{0};
};

}  // namespace hotrow

#endif  // HOTROW_BASE_METRICS_H_
