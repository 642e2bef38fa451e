#ifndef HOTROW_TOOLS_PLAN_POPULARITY_H_
#define HOTROW_TOOLS_PLAN_POPULARITY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// How often the rows of a table are looked up, and what follows for caches, under the independent
// reference model: each lookup draws its row anew from one law.
namespace hotrow {

// sum over r = 1..n of r^-s: the first ranks one by one, the rest as an integral from half a rank
// before to half a rank after (the midpoint rule; below 1e-7 of the sum for s <= 4).
double HarmonicSum(double n, double s);

// A law as groups of rows that are looked up equally often, the hottest first. Ranks that are near
// each other share a group: 64 groups of one row, then groups 8 % wide, which moves no result of
// this header by more than 0.05 points.
struct Popularity {
  struct Group {
    double rows = 0;
    double probability = 0;  // of one row, in one lookup
  };
  std::vector<Group> groups;  // sum of rows * probability is 1

  double rows() const;
  // p(rank) proportional to rank^-exponent, ranks 1..rows; exponent 0 is uniform.
  static Popularity Zipf(double rows, double exponent);
  // Row counts and how many lookups each of those rows had in some window, in any order; rows that
  // had none are left out. What the window is long enough to show is the caller's judgement.
  static Popularity FromCounts(std::vector<Group> rows_and_lookups);
};

// Share of lookups that go to the `rows` hottest rows: no cache that keeps rows fixed, and none
// that does not know the future of independent lookups, hits more often.
double HottestHitRate(const Popularity& law, double rows);

// Distinct rows among n lookups: sum of 1 - (1 - p)^n.
double ExpectedUnique(const Popularity& law, double n);

// One point of a miss-ratio curve, as `hotrow trace mrc --json` prints it.
struct CurvePoint {
  double rows = 0;
  double hit_rate = 0;
};

// What a measured LRU curve says of time: while a cache that is empty at first fills, it gains a
// row with each miss, so it holds c rows after the integral of dx / miss_rate(x) up to c lookups
// (the mean footprint: Xiang et al., "HOTL: a higher order theory of locality", ASPLOS'13). The
// miss rate is taken as linear between points, and as constant behind the last, until all rows are
// there.
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

// One table's share of a cache that several tables use: how its rows are used, by a law or by a
// measured curve, and its lookups in a training step.
struct CacheClient {
  const Popularity* law = nullptr;
  double step_lookups = 0;
  const Footprint* footprint = nullptr;  // if there is one, law is not looked at
  // More than 1: hit rates "of lookups" count a key once for each of so many equal parts of a step
  // that uses it, as the caches of so many ranks do: each rank asks once for a key of its slice.
  double parts = 1;

  double weight() const;  // what the hits of a step are a share of; step_lookups for one part
};

struct CacheHitRates {
  double lookups = 0;      // hit_rate: weighted by lookups
  double unique_keys = 0;  // unique_hit_rate: of the distinct keys of a step
};

// What an LRU cache in front of these tables hits, as a function of its rows, by Che's
// approximation (Che, Tung, Wang, "Hierarchical Web caching systems", IEEE JSAC 2002; why it is so
// good: Fricker, Robert, Roberts, ITC 24, 2012), with training steps as the unit of time: a row
// that a step uses with probability q = 1 - (1 - p)^n stays for a characteristic time of T steps
// after its use, the same for all rows, so it is there with probability 1 - (1 - q)^T, and T
// follows from the sum of these being the rows of the cache. The steps count as one access each for
// a row, however often it is looked up within.
//
// A client with a measured curve holds what its footprint is in T steps, and misses in a step what
// the footprint grows by in one step more.
//
// The hottest-kept bound of the same step: the rows with the highest q. With a measured curve among
// the clients it is not known, and Hottest gives what Lru does.
class CacheModel {
 public:
  // Costs some hundred evaluations of each group; after that a size is looked up. Laws and
  // footprints outlive the model.
  explicit CacheModel(std::span<const CacheClient> clients);

  double unique_keys() const { return unique_keys_; }  // of a step, expected
  double lookups() const { return lookups_; }  // of a step, as the clients' parts count them
  double rows() const { return rows_; }        // of all tables
  CacheHitRates Lru(double cache_rows) const;
  CacheHitRates Hottest(double cache_rows) const;
  // What Lru gives on average over the first `steps` steps of an empty cache, first uses being
  // misses; steps >= 1.
  CacheHitRates LruFromEmpty(double cache_rows, double steps) const;
  // Distinct rows of so many steps.
  double RowsAfter(double steps) const;
  // How many steps a row stays after its use; with a cache of all rows, longer than any.
  double StayOf(double cache_rows) const;
  // Distinct keys of a step that one of the so many steps before has used.
  double KeysUsedWithin(double steps) const { return At(steps).rates.unique_keys * unique_keys_; }
  // Of the rows of a client that so many first steps of an empty cache use, the share that has left
  // it at least once since: those are what a store below it has. A row that a step uses with
  // probability q leaves after a use with (1 - q)^T, so q T (1 - q)^T times in T steps on average,
  // and at most once. Of a measured curve: what was used before the last T steps.
  double LeftShareOfClient(size_t client, double cache_rows, double steps) const;
  // Of one client: its share in Lru's hits.
  CacheHitRates LruOfClient(size_t client, double cache_rows) const;

 private:
  // The state after a characteristic time: rows held, hits by both counts, per client and in all.
  struct Point {
    double rows = 0;
    CacheHitRates rates;
  };
  double TimeOf(double cache_rows) const;
  Point At(double time) const;
  // What a client holds and hits after a characteristic time; hits are rows of a step, not rates.
  static Point HeldBy(const CacheClient& client, double time);

  std::vector<CacheClient> clients_;  // with laws and footprints of the caller's
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
