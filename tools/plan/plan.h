#ifndef HOTROW_TOOLS_PLAN_PLAN_H_
#define HOTROW_TOOLS_PLAN_PLAN_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/plan/plan_spec.h"

// The plan of a spec. Figures are of one rank unless noted: keys are distributed by hash, so ranks
// are alike. tools/plan/README.md has the model and its formulas.
namespace hotrow {

struct PlanItem {
  std::string tier;  // "hbm", "dram", "ssd"
  std::string name;
  double bytes = 0;
};

struct PlanTier {
  std::string name;
  double bytes = 0;
  double limit_bytes = 0;  // 0: there is no such tier
};

struct PlanStage {
  std::string name;
  double seconds = 0;
  std::string bound_by;     // "hbm", "host link", "ssd reads", "network", ...
  bool overlapped = false;  // runs while the step before computes
};

// Work that runs in sequence, step after step. With measured costs the chains of a step run
// concurrently; the longest one is the time of a step.
struct PlanChain {
  std::string name;
  double seconds = 0;  // alone
  double held_up = 0;  // delay by the work of other chains on the same processors
};

// The effect of one more GB (1e9 bytes) of a tier.
struct PlanMarginal {
  std::string tier;
  std::string what;
  double samples_per_second = 0;  // gained
  double unique_hit_rate = 0;     // gained
};

// What there is, of all ranks but for whole_cache_bytes.
struct PlanSize {
  double rows = 0;               // of all tables, after `days` of growth
  double weight_bytes = 0;       // without state
  double payload_bytes = 0;      // weights and state
  double row_bytes = 0;          // with step and padding
  double whole_cache_bytes = 0;  // a cache of one rank that holds every row it owns
  double dense_parameters = 0;
};

struct PlanCache {
  double bytes = 0;  // budget; 0: no cache
  double rows = 0;
  std::string choice;   // origin of bytes
  double hit_rate = 1;  // of lookups
  double unique_hit_rate = 1;
  double hit_rate_bound = 1;  // of the hottest rows kept; unique keys
  // Host memory between a GPU's cache and a store on a disk; 0: none.
  double host_bytes = 0;
  double host_rows = 0;
  double host_hit_rate = 0;  // of the rows that the cache has not
};

// Rows that a step moves.
struct PlanTraffic {
  double lookups = 0;
  double unique_keys = 0;  // of those the rank owns
  double miss_rows = 0;
  double new_rows = 0;  // of them, rows that no step had used before (a run from empty tables)
  double link_bytes_down = 0;  // from host memory to the accelerator
  double link_bytes_up = 0;
  // The share of rows of a run from empty tables that the store has, by table; the others never
  // left the cache. Empty: all are there.
  std::vector<double> store_shares;
};

// The disk of the store: transfers and bytes of a step.
struct PlanDisk {
  double ios_read = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double write_amplification = 0;  // 0: no SSD
  double life_years = 0;           // 0: nothing is written, or the endurance is not known
};

// Bytes that a rank sends in a step; all 0 with one rank.
struct ExchangeBytes {
  double ids = 0;       // keys, and how many there are of each table
  double forward = 0;   // rows
  double backward = 0;  // their gradients
  double total = 0;     // of these three
  double node = 0;      // of total, to ranks of the same node
  double network = 0;
  double allreduce = 0;  // of dense gradients, in its node and over the network
};

struct PlanCheckpoint {
  double bytes = 0;  // a full one, of all ranks
  double seconds = 0;
};

// What deltas hold, of all ranks; 0 where the spec asks for none.
struct PlanDeltas {
  double living_rows = 0;  // used in ttl_steps steps
  double rows = 0;         // in a delta: used in delta_interval_steps steps
  double bytes = 0;        // its file of rows
  double bytes_per_hour = 0;
};

struct Plan {
  std::vector<PlanItem> items;
  std::vector<PlanTier> tiers;
  bool fits = true;
  std::vector<std::string> over;      // exceeded limits, with the excess
  std::vector<std::string> warnings;  // of a plan that fits
  std::vector<std::string> remedies;  // each with its effect

  StoreKind store{};
  PlanSize size;
  PlanCache cache;
  PlanTraffic traffic;
  PlanDisk disk;
  ExchangeBytes exchange;
  PlanCheckpoint checkpoint;
  PlanDeltas deltas;

  std::vector<PlanStage> stages;
  std::vector<PlanChain> chains;  // only with measured costs
  double step_seconds = 0;
  std::string bottleneck;
  double samples_per_second = 0;  // of all ranks
  double price_per_billion_samples = 0;
  std::vector<PlanMarginal> marginals;

  double TierBytes(const std::string& tier) const;
  // Every number by a name, for conditions and for JSON: "hbm_bytes", "samples_per_second", ...
  std::map<std::string, double> Values() const;
};

// Errors: InvalidArgument, which names the place in the spec. A plan that does not fit is no error.
// Without `advise` there are no warnings, remedies and marginals, each of which costs a plan.
absl::StatusOr<Plan> MakePlan(const PlanSpec& spec, bool advise = true);

// Hit rates of caches of other sizes over the store of `plan`, from the smallest that holds the
// steps in flight to one of all rows.
struct PlanCurvePoint {
  double cache_bytes = 0;  // of a rank
  double cache_rows = 0;
  double hit_rate = 0;
  double unique_hit_rate = 0;
  double hit_rate_bound = 0;  // of distinct keys, with the hottest rows kept
  double samples_per_second = 0;
};
absl::StatusOr<std::vector<PlanCurvePoint>> PlanCurve(const PlanSpec& spec, const Plan& plan);

// A number for people, the same in text and on pages: "0.1234", "12.34", "386,500", "38.65 M",
// "1.20 G", "endless".
std::string FormatAmount(double amount);
// The amount with its sign in front.
std::string FormatChange(double amount);
// The same as FormatBytes in models/train/report.h.
std::string FormatPlanBytes(double bytes);

// The plan for people; what `hotrow plan --json` prints.
std::string PlanText(const PlanSpec& spec, const Plan& plan);
std::string PlanJson(const PlanSpec& spec, const Plan& plan);
// A self-contained HTML page: verdict, miss-ratio curve, bytes per tier, stages, prices.
std::string PlanHtml(const PlanSpec& spec, const Plan& plan,
                     const std::vector<PlanCurvePoint>& curve);

// Evaluates a condition such as "hbm_bytes>70e9 || samples_per_second<1e6": comparisons (< <= > >=
// == !=) of a name of Plan::Values() with a number or another name, joined by && and ||; && binds
// tighter. Errors: InvalidArgument with the place.
absl::StatusOr<bool> EvaluateCondition(const std::string& condition,
                                       const std::map<std::string, double>& values);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLAN_H_
