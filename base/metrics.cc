#include "base/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace hotrow {
namespace {

constexpr int kSubBits = 4;  // 16 buckets to each power of two

// Values below 16 have a bucket each; from there on the bucket is the exponent and the four bits
// behind the leading one.
int BucketOf(int64_t value) {
  if (value < (1 << kSubBits)) return static_cast<int>(value);
  const int exponent = std::bit_width(static_cast<uint64_t>(value)) - 1;
  const auto sub = static_cast<int>((value >> (exponent - kSubBits)) & ((1 << kSubBits) - 1));
  return ((exponent - kSubBits + 1) << kSubBits) + sub;
}

// The middle of the bucket's values.
double ValueOf(int bucket) {
  if (bucket < (1 << kSubBits)) return bucket;
  const int shift = (bucket >> kSubBits) - 1;
  const int64_t lowest = static_cast<int64_t>((1 << kSubBits) + (bucket & ((1 << kSubBits) - 1)))
                         << shift;
  return static_cast<double>(lowest) + 0.5 * static_cast<double>((int64_t{1} << shift) - 1);
}

}  // namespace

void Histogram::Add(int64_t value) {
  static_assert(kSubBuckets == 1 << kSubBits);
  HOTROW_DCHECK(value >= 0);
  value = std::max<int64_t>(value, 0);
  counts_[static_cast<size_t>(BucketOf(value))].fetch_add(1, std::memory_order_relaxed);
  int64_t max = max_.load(std::memory_order_relaxed);
  while (value > max && !max_.compare_exchange_weak(max, value, std::memory_order_relaxed)) {
  }
}

int64_t Histogram::count() const {
  int64_t sum = 0;
  for (const std::atomic<int64_t>& count : counts_) sum += count.load(std::memory_order_relaxed);
  return sum;
}

double Histogram::Quantile(double q) const {
  HOTROW_DCHECK(q >= 0 && q <= 1);
  const auto max_value = static_cast<double>(max());
  if (q >= 1) return max_value;
  // The quantile is the value of this rank, counted from 1, among the sorted values.
  const auto rank =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(q * static_cast<double>(count()))));
  int64_t seen = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    seen += counts_[static_cast<size_t>(bucket)].load(std::memory_order_relaxed);
    if (seen >= rank) return std::min(ValueOf(bucket), max_value);
  }
  return max_value;
}

}  // namespace hotrow
