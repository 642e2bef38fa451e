#ifndef HOTROW_TOOLS_PLAN_PLAN_CHECK_H_
#define HOTROW_TOOLS_PLAN_PLAN_CHECK_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/plan/plan.h"
#include "tools/plan/plan_spec.h"

// Compares a plan with the --report of a training run.
namespace hotrow {

struct PlanCheckItem {
  enum class Verdict {
    kGood,
    kOver,    // outside the tolerance
    kNotHeld  // for information only
  };
  std::string name;  // the report's: "cache.used_bytes", "samples_per_second"
  std::string what;
  std::string unit;  // "bytes", "share", "" ...
  double predicted = 0;
  double measured = 0;
  double difference = 0;  // percent of the measured value; for shares, points
  double tolerance = 0;   // in the same
  Verdict verdict = Verdict::kNotHeld;
};

struct PlanCheck {
  std::string report;
  std::vector<PlanCheckItem> items;
  // Seconds of a step by stage: the planner's name, predicted, and the trainer's spans together.
  struct Stage {
    std::string name;
    double predicted = 0;
    double measured = 0;
  };
  std::vector<Stage> stages;
  std::vector<PlanChain> chains;  // of the plan, with measured costs
  std::vector<std::string> notes;
  bool good() const;
};

// Tolerances.
inline constexpr double kBytesTolerance = 2;  // percent
// A partition of the SSD store's index is filled from 0.92 to 0.98, planned with 0.95.
inline constexpr double kIndexBytesTolerance = 3.5;       // percent
inline constexpr double kHitRateTolerance = 1;            // points
inline constexpr double kIosTolerance = 5;                // percent
inline constexpr double kExchangeTolerance = 5;           // percent
inline constexpr double kSamplesPerSecondTolerance = 20;  // percent

// Plans the run of the report: its number of steps, from empty tables and cache to its final rows.
//                              If
// the spec leaves them open, budgets of cache and disk and the processor time of the reader are
// those of the run. With several ranks, sums of the report are compared as the mean of a rank,
// except for distinct keys and exchanged bytes, which are those of all ranks. `json` is the report,
// `name` its place in errors. Errors: InvalidArgument, one line: not a report, or one of another
// model; then it names the difference (tables, rows, dims, optimizer, batch size, ranks, store,
// cache).
absl::StatusOr<PlanCheck> CheckPlan(const PlanSpec& spec, std::string_view json,
                                    std::string_view name);

std::string PlanCheckText(const PlanCheck& check);
std::string PlanCheckJson(const PlanCheck& check);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLAN_CHECK_H_
