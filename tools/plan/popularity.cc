#include "tools/plan/popularity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"

namespace hotrow {
namespace {

constexpr int kExactTerms = 1024;
constexpr int kSingleRanks = 64;
constexpr double kGroupRatio = 1.08;
// The grid of characteristic times: 10 for each factor of 10 leave hit rates between two of them
// within 0.05 points of a straight line.
constexpr double kTimeRatio = 1.25;
constexpr double kTimeLeast = 1e-3;
constexpr double kTimeMost = 1e12;

// The integral of x^-s from a to b.
double PowerIntegral(double a, double b, double s) {
  const double t = (1 - s) * std::log(b / a);
  const double growth = std::abs(t) < 1e-8 ? 1 + t / 2 : std::expm1(t) / t;
  return std::pow(a, 1 - s) * std::log(b / a) * growth;
}

// 1 - (1 - p)^n without cancellation.
double AnyOf(double p, double n) { return p >= 1 ? 1 : -std::expm1(n * std::log1p(-p)); }

}  // namespace

double HarmonicSum(double n, double s) {
  const int exact = static_cast<int>(std::min<double>(n, kExactTerms));
  double sum = 0;
  for (int r = exact; r >= 1; --r) sum += std::pow(r, -s);  // the small ones first
  if (n > exact) sum += PowerIntegral(exact + 0.5, n + 0.5, s);
  return sum;
}

double Popularity::rows() const {
  double sum = 0;
  for (const Group& group : groups) sum += group.rows;
  return sum;
}

Popularity Popularity::Zipf(double rows, double exponent) {
  HOTROW_CHECK(rows >= 1);
  HOTROW_CHECK(exponent >= 0);
  Popularity law;
  if (exponent == 0) {
    law.groups = {{rows, 1 / rows}};
    return law;
  }
  rows = std::floor(rows);
  double total = 0;
  for (double first = 1; first <= rows;) {
    const double count = first <= kSingleRanks
                             ? 1
                             : std::min(std::floor(first * (kGroupRatio - 1)), rows - first + 1);
    const double mass = count == 1 ? std::pow(first, -exponent)
                                   : PowerIntegral(first - 0.5, first + count - 0.5, exponent);
    law.groups.push_back({count, mass / count});
    total += mass;
    first += count;
  }
  for (Group& group : law.groups) group.probability /= total;
  return law;
}

Popularity Popularity::FromCounts(std::vector<Group> rows_and_lookups) {
  Popularity law;
  law.groups = std::move(rows_and_lookups);
  std::sort(law.groups.begin(), law.groups.end(),
            [](const Group& a, const Group& b) { return a.probability > b.probability; });
  double total = 0;
  for (const Group& group : law.groups) total += group.rows * group.probability;
  HOTROW_CHECK(total > 0);
  for (Group& group : law.groups) group.probability /= total;
  return law;
}

double ExpectedUnique(const Popularity& law, double n) {
  double sum = 0;
  for (const Popularity::Group& group : law.groups) sum += group.rows * AnyOf(group.probability, n);
  return sum;
}

Footprint::Footprint(std::span<const CurvePoint> curve, double table_rows)
    : table_rows_(table_rows) {
  HOTROW_CHECK(!curve.empty());
  // Enough pieces between two points that the line between two marks is the curve.
  constexpr int kPieces = 16;
  constexpr double kMissRateMin = 1e-9;
  marks_.push_back({0, 0});
  double miss_rate = 1;
  for (const CurvePoint& point : curve) {
    const Mark begin = marks_.back();
    if (point.rows <= begin.rows || point.rows > table_rows) continue;
    const double next = std::clamp(1 - point.hit_rate, kMissRateMin, miss_rate);
    const double piece = (point.rows - begin.rows) / kPieces;
    for (int i = 0; i < kPieces; ++i) {
      const double middle = miss_rate + (next - miss_rate) * (i + 0.5) / kPieces;
      marks_.push_back({marks_.back().lookups + piece / middle, marks_.back().rows + piece});
    }
    miss_rate = next;
  }
  if (marks_.back().rows < table_rows) {
    marks_.push_back(
        {marks_.back().lookups + (table_rows - marks_.back().rows) / miss_rate, table_rows});
  }
}

double Footprint::Rows(double lookups) const {
  const auto after = std::upper_bound(marks_.begin(), marks_.end(), lookups,
                                      [](double l, const Mark& mark) { return l < mark.lookups; });
  if (after == marks_.begin()) return 0;
  if (after == marks_.end()) return marks_.back().rows;
  const Mark& before = *(after - 1);
  return before.rows + (after->rows - before.rows) * (lookups - before.lookups) /
                           (after->lookups - before.lookups);
}

namespace {

// What a step's lookups of a row count.
double WeightOf(const CacheClient& client, double probability) {
  const double n = client.step_lookups;
  return client.parts > 1 ? client.parts * AnyOf(probability, n / client.parts) : n * probability;
}

}  // namespace

double CacheClient::weight() const {
  if (!(parts > 1)) return step_lookups;
  const double in_part = step_lookups / parts;
  return parts * (footprint != nullptr ? footprint->Rows(in_part) : ExpectedUnique(*law, in_part));
}

CacheModel::Point CacheModel::HeldBy(const CacheClient& client, double time) {
  Point point;
  const double n = client.step_lookups;
  if (client.footprint != nullptr) {
    point.rows = client.footprint->Rows(n * time);
    const double misses = client.footprint->Rows(n * (time + 1)) - point.rows;
    point.rates.unique_keys = std::max(0.0, client.footprint->Rows(n) - misses);
    point.rates.lookups = std::max(0.0, client.weight() - misses);
    return point;
  }
  for (const Popularity::Group& group : client.law->groups) {
    const double used = AnyOf(group.probability, n);
    const double held = group.rows * AnyOf(used, time);
    point.rows += held;
    point.rates.lookups += WeightOf(client, group.probability) * held;
    point.rates.unique_keys += used * held;
  }
  return point;
}

namespace {

// More groups than this are merged where steps use their rows about equally often: within 1 % to
// either side, so what they hold and hit after any time differs from the sum by less than a point
// in a thousand.
constexpr size_t kUsesMany = 4096;
constexpr double kMergeLogWidth = 0.02;

}  // namespace

std::vector<CacheModel::Use> CacheModel::Merged(const std::vector<Use>& uses) {
  std::map<int64_t, Use> merged;
  for (const Use& use : uses) {
    // Rows that every step uses have no finite logarithm, and rows that are never used none at all.
    int64_t place = std::numeric_limits<int64_t>::max();
    if (use.log_unused == 0) {
      place = std::numeric_limits<int64_t>::min();
    } else if (std::isfinite(use.log_unused)) {
      place = std::llround(std::log(-use.log_unused) / kMergeLogWidth);
    }
    Use& sum = merged.try_emplace(place, Use{0, 0, 0, 0}).first->second;
    sum.rows += use.rows;
    sum.used += use.rows * use.used;
    sum.log_unused += use.rows * use.log_unused;
    sum.lookups += use.rows * use.lookups;
  }
  std::vector<Use> out;
  for (const auto& [place, sum] : merged) {
    out.push_back(
        {sum.rows, sum.used / sum.rows, sum.log_unused / sum.rows, sum.lookups / sum.rows});
  }
  return out;
}

CacheModel::CacheModel(std::span<const CacheClient> clients)
    : clients_(clients.begin(), clients.end()) {
  std::vector<Use>& uses = uses_;
  for (const CacheClient& client : clients_) {
    lookups_ += client.weight();
    if (client.footprint != nullptr) {
      has_bound_ = false;
      rows_ += client.footprint->table_rows();
      unique_keys_ += client.footprint->Rows(client.step_lookups);
      continue;
    }
    for (const Popularity::Group& group : client.law->groups) {
      const double used = AnyOf(group.probability, client.step_lookups);
      uses.push_back({group.rows, used, std::log1p(-used), WeightOf(client, group.probability)});
      rows_ += group.rows;
      unique_keys_ += group.rows * used;
    }
  }
  if (unique_keys_ <= 0) return;
  if (uses.size() > kUsesMany) uses = Merged(uses);
  for (double time = kTimeLeast; time < kTimeMost; time *= kTimeRatio) {
    Point sum;
    for (const CacheClient& client : clients_) {
      if (client.footprint == nullptr) continue;
      const Point point = HeldBy(client, time);
      sum.rows += point.rows;
      sum.rates.lookups += point.rates.lookups / lookups_;
      sum.rates.unique_keys += point.rates.unique_keys / unique_keys_;
    }
    for (const Use& use : uses) {
      // log_unused is -inf for a row that every step uses.
      const double held = use.rows * -std::expm1(time * use.log_unused);
      sum.rows += held;
      sum.rates.lookups += use.lookups * held / lookups_;
      sum.rates.unique_keys += use.used * held / unique_keys_;
    }
    times_.push_back(time);
    points_.push_back(sum);
    if (sum.rows >= rows_ * (1 - 1e-9)) break;
  }
  if (!has_bound_) return;
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.used > b.used; });
  Point point;
  hottest_.push_back(point);
  for (const Use& use : uses) {
    point.rows += use.rows;
    point.rates.lookups += use.lookups * use.rows / lookups_;
    point.rates.unique_keys += use.used * use.rows / unique_keys_;
    hottest_.push_back(point);
  }
}

namespace {

// The place of `rows` between points, as an index and a share of the step to the next.
template <typename Points>
std::pair<size_t, double> PlaceOf(const Points& points, double rows) {
  const auto after = std::upper_bound(points.begin(), points.end(), rows,
                                      [](double r, const auto& point) { return r < point.rows; });
  if (after == points.begin()) return {0, 0};
  if (after == points.end()) return {points.size() - 1, 0};
  const auto before = after - 1;
  return {static_cast<size_t>(before - points.begin()),
          (rows - before->rows) / (after->rows - before->rows)};
}

template <typename Points>
CacheHitRates Between(const Points& points, double rows) {
  if (points.empty() || rows <= 0) return {};
  const auto [at, share] = PlaceOf(points, rows);
  CacheHitRates rates = points[at].rates;
  if (share > 0) {
    const CacheHitRates& next = points[at + 1].rates;
    rates.lookups += share * (next.lookups - rates.lookups);
    rates.unique_keys += share * (next.unique_keys - rates.unique_keys);
  }
  return {std::min(1.0, rates.lookups), std::min(1.0, rates.unique_keys)};
}

}  // namespace

CacheHitRates CacheModel::Lru(double cache_rows) const {
  if (cache_rows >= rows_) return unique_keys_ > 0 ? CacheHitRates{1, 1} : CacheHitRates{};
  return Between(points_, cache_rows);
}

CacheHitRates CacheModel::Hottest(double cache_rows) const {
  return has_bound_ ? Between(hottest_, cache_rows) : Lru(cache_rows);
}

double CacheModel::TimeOf(double cache_rows) const {
  const auto [at, share] = PlaceOf(points_, cache_rows);
  return share > 0 ? times_[at] * std::pow(kTimeRatio, share) : times_[at];
}

CacheModel::Point CacheModel::At(double time) const {
  Point out;
  if (points_.empty() || time <= 0) return out;
  if (time <= times_.front()) {
    // Nothing is held after no time.
    out = points_.front();
    const double share = time / times_.front();
    out.rows *= share;
    out.rates.lookups *= share;
    out.rates.unique_keys *= share;
    return out;
  }
  const double place = std::log(time / times_.front()) / std::log(kTimeRatio);
  const auto at = std::min(static_cast<size_t>(place), points_.size() - 1);
  out = points_[at];
  if (at + 1 == points_.size()) return out;
  const double share = place - static_cast<double>(at);
  const Point& next = points_[at + 1];
  out.rows += share * (next.rows - out.rows);
  out.rates.lookups += share * (next.rates.lookups - out.rates.lookups);
  out.rates.unique_keys += share * (next.rates.unique_keys - out.rates.unique_keys);
  return out;
}

double CacheModel::StayOf(double cache_rows) const {
  if (points_.empty() || cache_rows <= 0) return 0;
  return cache_rows >= rows_ ? times_.back() : TimeOf(cache_rows);
}

double CacheModel::RowsAfter(double steps) const { return std::min(rows_, At(steps).rows); }

// After k steps the cache holds what was used in the last k, until it is full: so step k hits as
// one of a cache with the characteristic time min(k, T).
CacheHitRates CacheModel::LruFromEmpty(double cache_rows, double steps) const {
  if (points_.empty() || cache_rows <= 0) return {};
  const double time = StayOf(cache_rows);
  const double filling = std::min(std::floor(steps), std::ceil(time));
  CacheHitRates sum;
  const auto add = [&](double count, double at) {
    const CacheHitRates rates = At(std::min(at, time)).rates;
    sum.lookups += count * std::min(1.0, rates.lookups);
    sum.unique_keys += count * std::min(1.0, rates.unique_keys);
  };
  // Step by step at first, then several that differ little at a time.
  constexpr double kOneByOne = 64;
  constexpr double kWidth = 0.05;
  for (double k = 0; k < filling;) {
    const double count =
        k < kOneByOne ? 1 : std::min(filling - k, std::max(1.0, std::floor(k * kWidth)));
    add(count, k + (count - 1) / 2);
    k += count;
  }
  if (steps > filling) add(steps - filling, time);
  return {sum.lookups / steps, sum.unique_keys / steps};
}

namespace {

// That a row with `rate` departures in a time T on average has had none by `x` times T. After the
// use that a departure follows there is none for T, and none can have come in the T before it, so
// S'(x) = -rate * S(x - 1), which is solved by the sum over k of (-rate)^k (x - k + 1)^k / k! as
// far as x > k - 1. rate <= 1/e.
double NeverLeft(double rate, double x) {
  // The terms are small up to here; beyond, S falls as its slowest exponential does.
  constexpr double kFar = 8;
  const double near = std::min(x, kFar);
  double sum = 0;
  double factor = 1;  // (-rate)^k / k!
  for (int k = 0; k == 0 || near > k - 1; ++k) {
    double power = 1;  // (x - k + 1)^k; std::pow takes ten times as long
    for (int i = 0; i < k; ++i) power *= near - k + 1;
    sum += factor * power;
    factor *= -rate / (k + 1);
  }
  if (x > kFar) {
    double decay = rate;  // decay = rate * e^decay
    for (double last = 0; decay - last > 1e-9;) {
      last = std::exchange(decay, std::min(1.0, rate * std::exp(decay)));
    }
    sum *= std::exp(-decay * (x - kFar));
  }
  return std::clamp(sum, 0.0, 1.0);
}

}  // namespace

double CacheModel::LeftShareOfClient(size_t client, double cache_rows, double steps) const {
  if (points_.empty() || cache_rows <= 0) return 1;
  if (cache_rows >= rows_) return 0;
  const double stay = TimeOf(cache_rows);
  const double over = std::max(0.0, steps - stay);
  const CacheClient& one = clients_[client];
  const double n = one.step_lookups;
  double seen = 0;
  double left = 0;
  if (one.footprint != nullptr) {
    seen = one.footprint->Rows(n * steps);
    left = one.footprint->Rows(n * over);
  } else {
    for (const Popularity::Group& group : one.law->groups) {
      const double used = AnyOf(group.probability, n);
      seen += group.rows * AnyOf(used, steps);
      if (used >= 1) continue;
      const double leaves = used * std::exp(stay * std::log1p(-used));
      left += group.rows * (1 - NeverLeft(leaves * stay, over / stay));
    }
  }
  return seen > 0 ? std::min(1.0, left / seen) : 0;
}

CacheModel::Below CacheModel::FoundBelow(double cache_rows, double below_rows) const {
  if (points_.empty() || cache_rows >= rows_ || below_rows <= 0) return {};
  const double stay = StayOf(cache_rows);
  std::vector<double> leaves;  // of each use: how often a row leaves in `stay` steps
  for (const Use& use : uses_) {
    leaves.push_back(use.used < 1 ? stay * use.used * std::exp(stay * use.log_unused) : 0);
  }
  // Rows that have left within so many steps.
  const auto left = [&](double time) {
    double rows = 0;
    constexpr double kFew = 1e-3;  // hardly a row twice
    for (size_t u = 0; u < uses_.size(); ++u) {
      const double mean = leaves[u] * time / stay;
      rows += uses_[u].rows * (mean < kFew ? mean : 1 - NeverLeft(leaves[u], time / stay));
    }
    for (const CacheClient& client : clients_) {
      if (client.footprint == nullptr) continue;
      // One that comes back and leaves again counts twice, as far as there are rows.
      const double n = client.step_lookups;
      const double now = client.footprint->Rows(n * (stay + 1)) - client.footprint->Rows(n * stay);
      rows += std::min(now * time, client.footprint->Rows(n * (stay + time)));
    }
    return rows;
  };
  double low = kTimeLeast;
  double high = kTimeMost;
  if (left(high) <= below_rows) low = high;
  constexpr double kNear = 1.01;
  while (high / low > kNear) {
    const double middle = std::sqrt(low * high);
    (left(middle) <= below_rows ? low : high) = middle;
  }
  return {std::max(0.0, KeysUsedWithin(stay + low) - KeysUsedWithin(stay)), low};
}

}  // namespace hotrow
