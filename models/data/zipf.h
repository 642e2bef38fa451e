#ifndef HOTROW_MODELS_DATA_ZIPF_H_
#define HOTROW_MODELS_DATA_ZIPF_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/philox.h"

namespace hotrow {

// Draws ranks in [0, size) with probability proportional to (rank + 1)^-exponent, for any
// exponent >= 0: 0 is uniform, and 1 is no special case.
//
// The first kHeadRanks ranks, and "some later rank" as one more outcome, are drawn from an alias
// table (Walker 1977, built as in Vose 1991): one multiplication and one read. Later ranks are
// drawn by rejection-inversion (Hormann & Derflinger, "Rejection-inversion to generate variates
// from monotone discrete distributions", 1996). So memory is bounded, 8 * kHeadRanks bytes,
// for any size, and both halves are exact: the alias table up to 2^-32 of a column, the rest
// up to rounding of doubles.
//
// Threads: immutable.
class ZipfSampler {
 public:
  static constexpr uint64_t kHeadRanks = uint64_t{1} << 16;

  // size in [1, 2^48], exponent in [0, 32].
  ZipfSampler(uint64_t size, double exponent);

  // `block` holds the random bits of this draw; one in 10^9 draws or so rejects them and asks for
  // more: retry(n), n = 1, 2, ..., gives further blocks.
  template <typename Retry>
  uint64_t Rank(PhiloxBlock block, const Retry& retry) const {
    const uint64_t bits = static_cast<uint64_t>(block.v[0]) << 32 | block.v[1];
    if (columns_.empty()) return MulHigh(bits, size_).high;
    // bits / 2^64 * columns: the integer part chooses a column, the fraction decides within it.
    const Product product = MulHigh(bits, columns_.size());
    const Column& column = columns_[product.high];
    const uint64_t rank =
        static_cast<uint32_t>(product.low >> 32) < column.threshold ? product.high : column.alias;
    if (rank < kHeadRanks) return rank;
    for (uint32_t n = 1;; ++n) {
      uint64_t tail_rank = 0;
      if (TailRank(UniformDouble(block.v[2], block.v[3]), &tail_rank)) return tail_rank;
      block = retry(n);
    }
  }

 private:
  struct Column {
    uint32_t threshold;  // of 2^32: below it this column's own rank, otherwise alias
    uint32_t alias;
  };
  struct Product {
    uint64_t high;
    uint64_t low;
  };
  static Product MulHigh(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product)};
  }

  // The tail in units of its first place a = kHeadRanks + 1 (places count from 1): density y^-s for
  // y = place / a, integral Integral(y) from 1. In these units nothing cancels for large s.
  double Integral(double y) const {
    const double t = (1 - exponent_) * std::log(y);
    return std::log(y) * (std::abs(t) < 1e-8 ? 1 + t / 2 : std::expm1(t) / t);
  }
  double InverseIntegral(double area) const {
    const double t = (1 - exponent_) * area;
    return std::exp(area * (std::abs(t) < 1e-8 ? 1 - t / 2 : std::log1p(t) / t));
  }
  bool TailRank(double uniform, uint64_t* rank) const;
  double TailMass() const;  // relative to the probability of the tail's first rank
  void BuildColumns(std::vector<double> mass);

  uint64_t size_;
  double exponent_;
  std::vector<Column> columns_;  // one a head rank, one for the tail; empty when uniform
  double area_begin_ = 0;        // Integral at half a place before the first place of the tail
  double area_end_ = 0;          // and at half a place after the last
};

inline ZipfSampler::ZipfSampler(uint64_t size, double exponent) : size_(size), exponent_(exponent) {
  HOTROW_CHECK(size >= 1);
  HOTROW_CHECK(size <= uint64_t{1} << 48);
  HOTROW_CHECK(exponent >= 0);
  HOTROW_CHECK(exponent <= 32);
  if (exponent == 0) return;
  const uint64_t head = std::min(size, kHeadRanks);
  std::vector<double> mass(head);
  for (uint64_t rank = 0; rank < head; ++rank) {
    mass[rank] = std::pow(static_cast<double>(rank + 1), -exponent);
  }
  if (size > head) {
    const double first = static_cast<double>(head + 1);
    area_begin_ = Integral((first - 0.5) / first);
    area_end_ = Integral((static_cast<double>(size) + 0.5) / first);
    mass.push_back(std::pow(first, -exponent) * TailMass());
  }
  BuildColumns(std::move(mass));
}

// Euler-Maclaurin for the sum over places a..b of (x / a)^-s, as integral, ends and first
// derivatives. The next term is s(s+1)(s+2) / (720 a^3): below 1e-13 here.
inline double ZipfSampler::TailMass() const {
  const double first = static_cast<double>(kHeadRanks + 1);
  const double end = static_cast<double>(size_) / first;
  const double last_density = std::pow(end, -exponent_);
  return first * Integral(end) + (1 + last_density) / 2 +
         exponent_ * (1 - last_density / end) / (12 * first);
}

inline void ZipfSampler::BuildColumns(std::vector<double> mass) {
  const auto n = static_cast<uint32_t>(mass.size());
  double total = 0;
  for (const double m : mass) total += m;
  std::vector<uint32_t> small;
  std::vector<uint32_t> large;
  for (uint32_t i = 0; i < n; ++i) {
    mass[i] *= n / total;
    (mass[i] < 1 ? small : large).push_back(i);
  }
  // What rounding leaves over at the end is a column that is full, up to rounding.
  columns_.resize(n);
  for (uint32_t i = 0; i < n; ++i) columns_[i] = {0, i};
  while (!small.empty() && !large.empty()) {
    const uint32_t low = small.back();
    const uint32_t high = large.back();
    small.pop_back();
    columns_[low] = {static_cast<uint32_t>(mass[low] * 0x1p32), high};
    mass[high] -= 1 - mass[low];
    if (mass[high] < 1) {
      large.pop_back();
      small.push_back(high);
    }
  }
}

// Place k owns the areas (Integral(k - 1/2), Integral(k + 1/2)], which by convexity is a little
// more than its density; the last part, as long as the density, is accepted.
inline bool ZipfSampler::TailRank(double uniform, uint64_t* rank) const {
  const double first = static_cast<double>(kHeadRanks + 1);
  const double area = area_begin_ + uniform * (area_end_ - area_begin_);
  const double x = first * InverseIntegral(area);
  const double place = std::clamp(std::nearbyint(x), first, static_cast<double>(size_));
  *rank = static_cast<uint64_t>(place) - 1;
  // The rejected part of a place is its lowest share s(s+1) / (24 k^2) or so, which is below
  // 32 * 33 / (24 * 2^32) < 2^-26: away from the lower end there is nothing to compute.
  if (x - (place - 0.5) > 0x1p-20) return true;
  return area >= Integral((place + 0.5) / first) - std::pow(place / first, -exponent_) / first;
}

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_ZIPF_H_
