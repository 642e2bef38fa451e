#include "cache/miss_ratio_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace hotrow {
namespace {

constexpr int64_t kKeysMaxLeast = 256;
// A sample that is full loses this share of its keys at once, so that lowering the rate costs each
// key that came in a constant.
constexpr int64_t kKeysDroppedShare = 8;

}  // namespace

int64_t LruCurve::Add(uint64_t key, uint32_t table) {
  ++accesses_;
  const int64_t distance = stack_.Touch(KeySampler(seed_, table).Hash(key));
  if (distance < 0) return distance;
  if (distance >= std::ssize(hits_at_)) hits_at_.resize(static_cast<size_t>(distance) + 1);
  ++hits_at_[static_cast<size_t>(distance)];
  return distance;
}

double LruCurve::HitRate(int64_t rows) const { return HitRates({rows})[0]; }

std::vector<double> LruCurve::HitRates(const std::vector<int64_t>& rows) const {
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  std::vector<double> rates(rows.size());
  int64_t hits = 0;
  int64_t counted = 0;
  for (const size_t i : order) {
    const int64_t end = std::min<int64_t>(rows[i], std::ssize(hits_at_));
    for (; counted < end; ++counted) hits += hits_at_[static_cast<size_t>(counted)];
    rates[i] = accesses_ == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(accesses_);
  }
  return rates;
}

int64_t LruCurve::MemoryBytes() const {
  return stack_.MemoryBytes() + static_cast<int64_t>(hits_at_.capacity() * sizeof(int64_t));
}

absl::Status SampledLruCurveOptions::Validate() const {
  if (!(sample_rate > 0 && sample_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("SampledLruCurveOptions.sample_rate must lie in (0, 1], is ", sample_rate));
  }
  if (keys_max != 0 && keys_max < kKeysMaxLeast) {
    return absl::InvalidArgumentError(
        absl::StrCat("SampledLruCurveOptions.keys_max must be 0 (no limit) or at least ",
                     kKeysMaxLeast, ", is ", keys_max));
  }
  return absl::OkStatus();
}

size_t SampledLruCurve::Histogram::BucketOf(int64_t distance) const {
  const int64_t linear = int64_t{1} << bits_;
  if (distance < linear) return static_cast<size_t>(distance);
  const int exponent = std::bit_width(static_cast<uint64_t>(distance)) - 1;
  const int shift = exponent - bits_;
  return static_cast<size_t>(((shift + 1) << bits_) + ((distance >> shift) - linear));
}

double SampledLruCurve::Histogram::LowerEnd(size_t bucket) const {
  const auto linear = size_t{1} << bits_;
  if (bucket < linear) return static_cast<double>(bucket);
  const int shift = static_cast<int>(bucket >> bits_) - 1;
  return std::ldexp(static_cast<double>(linear + (bucket & (linear - 1))), shift);
}

void SampledLruCurve::Histogram::Add(int64_t distance, double weight) {
  const size_t bucket = BucketOf(distance);
  if (bucket >= counts_.size()) counts_.resize(bucket + 1);
  counts_[bucket] += weight;
}

void SampledLruCurve::Histogram::Scale(double factor) {
  for (double& count : counts_) count *= factor;
}

double SampledLruCurve::Histogram::Below(double distance) const {
  double sum = 0;
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    const double begin = LowerEnd(bucket);
    if (begin >= distance) break;
    const double end = LowerEnd(bucket + 1);
    sum += counts_[bucket] * std::min(1.0, (distance - begin) / (end - begin));
  }
  return sum;
}

SampledLruCurve::SampledLruCurve(const SampledLruCurveOptions& options)
    : options_(options),
      sampler_(options.seed, 0),
      limit_(KeySampler::LimitOfRate(options.sample_rate)) {
  HOTROW_CHECK(options.Validate().ok());
}

void SampledLruCurve::SetTable(uint32_t table) {
  table_ = table;
  sampler_ = KeySampler(options_.seed, table);
}

void SampledLruCurve::AddSampled(uint64_t hash) {
  sampled_accesses_ += 1;
  // The lowest bits choose the group; the limit cuts at the highest.
  Group& group = groups_[hash % kGroups];
  group.accesses += 1;
  const int64_t distance = stack_.Touch(hash);
  if (distance >= 0) {
    const auto scaled = static_cast<int64_t>(static_cast<double>(distance) / sample_rate());
    hits_.Add(scaled, 1);
    group.hits.Add(scaled, 1);
  } else if (options_.keys_max > 0 && stack_.size() > options_.keys_max) {
    LowerRate();
  }
}

void SampledLruCurve::LowerRate() {
  const int64_t kept = options_.keys_max - options_.keys_max / kKeysDroppedShare;
  const double before = sample_rate();
  limit_ = stack_.NthHash(kept - 1);
  stack_.RemoveAbove(limit_);
  const double factor = sample_rate() / before;
  sampled_accesses_ *= factor;
  hits_.Scale(factor);
  for (Group& group : groups_) {
    group.accesses *= factor;
    group.hits.Scale(factor);
  }
}

double SampledLruCurve::HitRate(double rows) const {
  if (accesses_ == 0) return 0;
  const double misses = sampled_accesses_ - hits_.Below(rows);
  const double expected = static_cast<double>(accesses_) * sample_rate();
  return std::clamp(1 - misses / expected, 0.0, 1.0);
}

double SampledLruCurve::HitRateError(double rows) const {
  const double rate = sample_rate();
  if (accesses_ == 0 || rate >= 1) return 0;
  std::array<double, kGroups> misses;
  double mean = 0;
  for (size_t g = 0; g < kGroups; ++g) {
    misses[g] = groups_[g].accesses - groups_[g].hits.Below(rows);
    mean += misses[g] / kGroups;
  }
  double squares = 0;
  for (const double m : misses) squares += (m - mean) * (m - mean);
  const double expected = static_cast<double>(accesses_) * rate;
  const double choice = (1 - rate) * squares * kGroups / (kGroups - 1) / (expected * expected);
  const double blur = std::sqrt(rows * (1 - rate) / rate);
  const double distance = (HitRate(rows + blur) - HitRate(std::max(0.0, rows - blur))) / 2;
  return 2 * std::sqrt(choice + distance * distance);
}

int64_t SampledLruCurve::MemoryBytes() const {
  int64_t bytes = static_cast<int64_t>(sizeof(*this)) + stack_.MemoryBytes() + hits_.MemoryBytes();
  for (const Group& group : groups_) bytes += group.hits.MemoryBytes();
  return bytes;
}

}  // namespace hotrow
