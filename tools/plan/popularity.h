#ifndef HOTROW_TOOLS_PLAN_POPULARITY_H_
#define HOTROW_TOOLS_PLAN_POPULARITY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Popularity of the rows of a table, and hit rates of caches, under the independent reference
// model: each lookup draws its row independently from one law.
namespace hotrow {

// sum over r = 1..n of r^-s: the first ranks one by one, the rest as an integral from half a rank
// before to half a rank after (the midpoint rule; below 1e-7 of the sum for s <= 4).
double HarmonicSum(double n, double s);

// A law as groups of equally popular rows, the hottest first. Neighbouring ranks share a group: 64
// groups of one row, then groups 8 % wide, which changes no result of this header by more than 0.05
// points.
struct Popularity {
  struct Group {
    double rows = 0;
    double probability = 0;  // of one row, in one lookup
  };
  std::vector<Group> groups;  // sum of rows * probability is 1

  double rows() const;
  // p(rank) proportional to rank^-exponent, ranks 1..rows; exponent 0 is uniform.
  static Popularity Zipf(double rows, double exponent);
  // Numbers of rows and their lookups in some window, in any order, without rows that had none. The
  // caller judges whether the window is long enough.
  static Popularity FromCounts(std::vector<Group> rows_and_lookups);
};

// Distinct rows among n lookups: sum of 1 - (1 - p)^n.
double ExpectedUnique(const Popularity& law, double n);

// One point of a miss-ratio curve, as `hotrow trace mrc --json` prints it.
struct CurvePoint {
  double rows = 0;
  double hit_rate = 0;
};

// The time scale of a measured LRU curve. A cache that fills from empty gains a row with each miss,
// so it holds c rows after the integral of dx / miss_rate(x) up to c lookups (the mean footprint:
// Xiang et al., "HOTL: a higher order theory of locality", ASPLOS'13). The miss rate is linear
// between points, and constant after the last one, until all rows are there.
class Footprint {
 public:
  // Points by growing rows; at least one.
  Footprint(std::span<const CurvePoint> curve, double table_rows);
  // Distinct rows in a window of so many lookups.
  double Rows(double lookups) const;
  double table_rows() const { return table_rows_; }

 private:
  struct Mark {
    double lookups;
    double rows;
  };
  std::vector<Mark> marks_;
  double table_rows_;
};

// One table among several that share a cache: the popularity of its rows, by a law or by a measured
// curve, and its lookups in a training step.
struct CacheClient {
  const Popularity* law = nullptr;
  double step_lookups = 0;
  const Footprint* footprint = nullptr;  // if set, law is ignored
  // Above 1: hit rates "of lookups" count a key once for each of so many equal parts of a step that
  // uses it, as for so many ranks, each of which asks once for a key of its slice.
  double parts = 1;

  double weight() const;  // denominator of a step's hits; step_lookups for one part
};

struct CacheHitRates {
  double lookups = 0;      // hit_rate: weighted by lookups
  double unique_keys = 0;  // unique_hit_rate: of the distinct keys of a step
};

// Hit rates of an LRU cache of these tables as a function of its rows, by Che's approximation (Che,
// Tung, Wang, "Hierarchical Web caching systems", IEEE JSAC 2002; its accuracy: Fricker, Robert,
// Roberts, ITC 24, 2012). The unit of time is a training step, which counts as one access of a row.
// A step uses a row with probability q = 1 - (1 - p)^n. Rows stay for a characteristic time of T
// steps after their use, so a row is there with probability 1 - (1 - q)^T. The sum of these is the
// rows of the cache, which gives T.
//
// A client with a measured curve holds its footprint of T steps, and misses in a step the growth of
// the footprint by one more step.
//
// The hottest-kept bound keeps the rows with the highest q. It is unknown if a client has a
// measured curve; Hottest then returns Lru.
class CacheModel {
 public:
  // Evaluates each group some hundred times; later calls look sizes up. Laws and footprints outlive
  // the model.
  explicit CacheModel(std::span<const CacheClient> clients);

  double unique_keys() const { return unique_keys_; }  // of a step, expected
  double lookups() const { return lookups_; }  // of a step, as the clients' parts count them
  double rows() const { return rows_; }        // of all tables
  CacheHitRates Lru(double cache_rows) const;
  CacheHitRates Hottest(double cache_rows) const;
  // Lru averaged over the first `steps` >= 1 steps of an empty cache; first uses are misses.
  CacheHitRates LruFromEmpty(double cache_rows, double steps) const;
  // Distinct rows of so many steps.
  double RowsAfter(double steps) const;
  // Steps that a row stays after its use; with a cache of all rows, more than any number.
  double StayOf(double cache_rows) const;
  // Distinct keys of a step that one of so many previous steps has used.
  double KeysUsedWithin(double steps) const { return At(steps).rates.unique_keys * unique_keys_; }
  // The share of a client's rows used in so many first steps of an empty cache that were evicted at
  // least once: the rows of a store below it. A row that a step uses with probability q is evicted
  // after a use with (1 - q)^T, so on average q T (1 - q)^T times in T steps, and at most once. For
  // a measured curve: the rows used before the last T steps.
  double LeftShareOfClient(size_t client, double cache_rows, double steps) const;
  // What a second cache finds of the rows that miss in one of cache_rows, of keys of a step. It
  // gets the rows that leave the first one, and keeps those for `stay` steps after they last did.
  struct Below {
    double keys = 0;
    double stay = 0;
  };
  Below FoundBelow(double cache_rows, double below_rows) const;

 private:
  // A group of rows of one table, as a step sees it.
  struct Use {
    double rows;
    double used;        // probability that a step uses a row of the group
    double log_unused;  // log of the probability that it does not
    double lookups;     // of a row, in a step
  };
  static std::vector<Use> Merged(const std::vector<Use>& uses);
  // The state after a characteristic time: rows held, hits by both counts, per client and in all.
  struct Point {
    double rows = 0;
    CacheHitRates rates;
  };
  double TimeOf(double cache_rows) const;
  Point At(double time) const;
  // Rows that a client holds and hits after a characteristic time; hits are rows of a step, not
  // rates.
  static Point HeldBy(const CacheClient& client, double time);

  std::vector<CacheClient> clients_;  // with laws and footprints of the caller's
  std::vector<Use> uses_;             // of clients with laws
  std::vector<double> times_;         // of points_, a geometric grid
  std::vector<Point> points_;         // by growing rows
  std::vector<Point> hottest_;        // by growing rows
  bool has_bound_ = true;
  double lookups_ = 0;
  double unique_keys_ = 0;
  double rows_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_POPULARITY_H_
