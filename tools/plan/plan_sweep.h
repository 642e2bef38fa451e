#ifndef HOTROW_TOOLS_PLAN_PLAN_SWEEP_H_
#define HOTROW_TOOLS_PLAN_PLAN_SWEEP_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/plan/plan_spec.h"

// One model on many numbers of ranks and several kinds of node; docs/scaling.md has the model.
namespace hotrow {

struct SweepOptions {
  std::vector<int32_t> ranks;   // ascending
  bool batch_per_rank = false;  // the batch grows with the ranks; otherwise it is the spec's
};

// "ranks=1..1024": powers of two from the first to the last; "ranks=1,2,12": a list. Errors:
// InvalidArgument, with the legal forms.
absl::StatusOr<std::vector<int32_t>> ParseSweepRanks(std::string_view text);

struct SweepPoint {
  std::string node;          // "h100-sxm"
  double network_gbits = 0;  // of a rank, each direction
  int32_t ranks = 0;
  int64_t batch_size = 0;  // of all ranks
  double step_seconds = 0;
  double samples_per_second = 0;  // of all ranks
  double efficiency = 0;          // samples/s of a rank over those at the fewest ranks
  std::string bottleneck;
  bool fits = true;
  std::string over;  // the first exceeded limit
};

// Plans A100, H100, H200 and B200 nodes with 200 and 400 Gb/s a rank instead of the spec's
// hardware; disks and memory limits of a node are the spec's. Leaves out more ranks than samples.
// Errors: as MakePlan.
absl::StatusOr<std::vector<SweepPoint>> SweepPlan(const PlanSpec& spec,
                                                  const SweepOptions& options);

std::string SweepText(const PlanSpec& spec, const std::vector<SweepPoint>& points);
std::string SweepJson(const PlanSpec& spec, const std::vector<SweepPoint>& points);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLAN_SWEEP_H_
