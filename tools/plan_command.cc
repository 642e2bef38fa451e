// hotrow plan: what a spec needs and how fast it would be, without building any of it.

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "cache/miss_ratio_curve.h"
#include "tools/access_source.h"
#include "tools/command.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

// Sampled keys that a trace's curve is made of; a trace of fewer keys is followed exactly.
constexpr int64_t kTraceKeysMax = 1 << 18;
constexpr double kCurveRatio = 1.1;

// The curve of a file with one access for each lookup.
absl::StatusOr<std::vector<CurvePoint>> CurveOfTrace(const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const auto source,
                          AccessSource::Open(PosixEnv(), path, AccessFormat::kAuto));
  if (source->format() == AccessFormat::kTrace) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": was recorded step by step and has no single lookups; make a curve of it (hotrow "
        "trace mrc ",
        path, " --table NAME --json) and give that as curve"));
  }
  SampledLruCurve curve({.sample_rate = 1, .keys_max = kTraceKeysMax});
  AccessBlock block;
  while (true) {
    HOTROW_ASSIGN_OR_RETURN(const bool more, source->Next(&block));
    if (!more) break;
    for (const uint64_t key : block.keys) curve.Add(key);
  }
  std::vector<CurvePoint> points;
  for (double rows = 1; rows < curve.distinct(); rows = std::ceil(rows * kCurveRatio)) {
    points.push_back({rows, curve.HitRate(rows)});
  }
  points.push_back({curve.distinct(), curve.HitRate(curve.distinct())});
  return points;
}

absl::Status ReadCurve(const std::string& spec_path, PlanTable* table) {
  const bool is_trace = !table->trace_file.empty();
  const std::string& name = is_trace ? table->trace_file : table->curve_file;
  if (name.empty()) return absl::OkStatus();
  // Files lie beside the spec.
  const size_t slash = spec_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : spec_path.substr(0, slash + 1);
  const std::string file = name[0] == '/' ? name : folder + name;
  absl::StatusOr<std::vector<CurvePoint>> curve;
  if (is_trace) {
    curve = CurveOfTrace(file);
  } else {
    const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), file);
    curve = text.ok() ? ParseCurve(*text, file) : text.status();
  }
  if (!curve.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec_path, ":", table->line, ":", table->column + 1, ": table ", table->name,
                     ": ", std::string(curve.status().message()),
                     absl::IsNotFound(curve.status())
                         ? is_trace ? "; give a file of ids, see hotrow trace info --help"
                                    : "; make it with: hotrow trace mrc TRACE --json"
                         : ""));
  }
  table->curve = *std::move(curve);
  return absl::OkStatus();
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  bool json = false;
  std::string fail_if;
  FlagSet flags("hotrow plan");
  flags.AddString("fail-if", "CONDITION", &fail_if,
                  "end with status 1 when it holds, for example 'hbm_bytes>70e9 || fits==0'");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  const std::string& path = operands[0];
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(PosixEnv(), path));
  HOTROW_ASSIGN_OR_RETURN(PlanSpec spec, ParsePlanSpec(text, path));
  for (PlanTable& table : spec.tables) HOTROW_RETURN_IF_ERROR(ReadCurve(path, &table));
  HOTROW_ASSIGN_OR_RETURN(const Plan plan, MakePlan(spec));
  bool failed = false;
  if (!fail_if.empty()) {
    const absl::StatusOr<bool> holds = EvaluateCondition(fail_if, plan.Values());
    if (!holds.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--fail-if: ", std::string(holds.status().message())));
    }
    failed = *holds;
  }
  std::fputs((json ? PlanJson(spec, plan) : PlanText(spec, plan)).c_str(), stdout);
  if (!failed) return kExitGood;
  std::fprintf(stderr, "hotrow plan: --fail-if: %s holds\n", fail_if.c_str());
  return kExitDamage;
}

}  // namespace

const Command kPlanCommand = {
    .name = "plan",
    .operands = "SPEC",
    .summary = "memory, hit rates, speed and life of a model, before it is trained",
    .details =
        "SPEC is JSON or YAML: tables, model, batch, ranks, hardware. docs/planner.md lists its\n"
        "fields and says how each number comes about. Times rest on data sheets until they are\n"
        "measured.\n",
    .run = Run};

}  // namespace hotrow
