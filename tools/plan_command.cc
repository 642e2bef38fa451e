// hotrow plan: what a spec needs and how fast it would be, without building any of it.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "cache/miss_ratio_curve.h"
#include "tools/access_source.h"
#include "tools/command.h"
#include "tools/plan/plan.h"
#include "tools/plan/plan_check.h"
#include "tools/plan/plan_log.h"
#include "tools/plan/plan_sweep.h"

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

// What lies beside a spec, or where its own path says.
std::string BesideSpec(const std::string& spec_path, const std::string& name) {
  if (!name.empty() && name[0] == '/') return name;
  const size_t slash = spec_path.rfind('/');
  return absl::StrCat(slash == std::string::npos ? "" : spec_path.substr(0, slash + 1), name);
}

absl::Status ReadCurve(const std::string& spec_path, PlanTable* table) {
  const bool is_trace = !table->trace_file.empty();
  const std::string& name = is_trace ? table->trace_file : table->curve_file;
  if (name.empty()) return absl::OkStatus();
  const std::string file = BesideSpec(spec_path, name);
  absl::StatusOr<std::vector<CurvePoint>> curve;
  if (is_trace) {
    curve = CurveOfTrace(file);
  } else {
    const absl::StatusOr<std::string> text = ReadWholeFile(PosixEnv(), file, kManifestBytesMax);
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

absl::StatusOr<HardwareProfile> ReadHardwareFile(const std::string& path, PlanInputs* inputs) {
  const absl::StatusOr<std::string> text = ReadWholeFile(PosixEnv(), path, kManifestBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(text.status().message()),
                     "; make a profile with: hotrow calibrate --output=", path));
  }
  inputs->Add("hardware", path, *text);
  return ParseHardwareProfile(*text, path);
}

// A built-in profile or a file.
absl::StatusOr<HardwareProfile> HardwareNamed(const std::string& name, PlanInputs* inputs) {
  if (const HardwareProfile* profile = FindAccelerator(name); profile != nullptr) {
    inputs->Add("hardware", name, name);
    return *profile;
  }
  const absl::StatusOr<HardwareProfile> profile = ReadHardwareFile(name, inputs);
  if (profile.ok()) return profile;
  std::string names;
  for (const HardwareProfile& known : Accelerators()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--hardware=", name, ": is none of the profiles ", names,
                   ", and as a file: ", std::string(profile.status().message())));
}

struct PlanFlags {
  std::string fail_if;
  std::string hardware;
  std::string check;
  std::string html;
  std::string log;
  std::string sweep;
  std::string sweep_batch = "fixed";
  bool json = false;
};

absl::StatusOr<int> RunSweep(const PlanFlags& f, const PlanSpec& spec) {
  SweepOptions options;
  const absl::StatusOr<std::vector<int32_t>> ranks = ParseSweepRanks(f.sweep);
  if (!ranks.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep=", std::string(ranks.status().message())));
  }
  options.ranks = *ranks;
  if (f.sweep_batch != "fixed" && f.sweep_batch != "per_rank") {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep_batch=", f.sweep_batch, ": takes fixed or per_rank"));
  }
  options.batch_per_rank = f.sweep_batch == "per_rank";
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SweepPoint> points, SweepPlan(spec, options));
  std::fputs((f.json ? SweepJson(spec, points) : SweepText(spec, points)).c_str(), stdout);
  return kExitGood;
}

absl::StatusOr<int> RunCheck(const PlanFlags& f, const PlanSpec& spec) {
  HOTROW_ASSIGN_OR_RETURN(const std::string report,
                          ReadWholeFile(PosixEnv(), f.check, kManifestBytesMax));
  HOTROW_ASSIGN_OR_RETURN(const PlanCheck check, CheckPlan(spec, report, f.check));
  std::fputs((f.json ? PlanCheckJson(check) : PlanCheckText(check)).c_str(), stdout);
  if (check.good()) return kExitGood;
  std::fprintf(stderr, "hotrow plan: --check: not every prediction is within its tolerance\n");
  return kExitDamage;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  PlanFlags f;
  FlagSet flags("hotrow plan");
  flags.AddString("hardware", "NAME", &f.hardware,
                  "hardware to plan for instead of the spec's: a built-in profile, or a file of "
                  "hotrow calibrate");
  flags.AddString(
      "check", "REPORT", &f.check,
      "compare the plan with the --report of a run; exit with status 1 when a prediction "
      "is outside its tolerance");
  flags.AddString("html", "FILE", &f.html, "write one page with charts there, too");
  flags.AddString("log", "FILE", &f.log,
                  "append a line to FILE: every number of the plan, with a digest of what it was "
                  "made from");
  flags.AddString("sweep", "RANKS", &f.sweep,
                  "step time on A100, H100, H200 and B200 nodes: ranks=1..1024 or ranks=1,2,12");
  flags.AddString(
      "sweep_batch", "WORD", &f.sweep_batch,
      "batch of --sweep: fixed (the spec's batch for all ranks together) or per_rank (it "
      "grows with the ranks)");
  flags.AddString("fail-if", "CONDITION", &f.fail_if,
                  "exit with status 1 if this holds, for example 'hbm_bytes>70e9 || fits==0'");
  flags.AddSwitch("json", &f.json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  // What prints something else than a plan stands alone.
  const int modes = static_cast<int>(!f.check.empty()) + static_cast<int>(!f.sweep.empty()) +
                    static_cast<int>(!f.html.empty() || !f.fail_if.empty() || !f.log.empty());
  if (modes > 1) {
    return absl::InvalidArgumentError(
        "--check and --sweep print something else than a plan: give one of them, without --html, "
        "--fail-if and --log");
  }
  const std::string& path = operands[0];
  const absl::StatusOr<std::string> read = ReadWholeFile(PosixEnv(), path, kManifestBytesMax);
  if (!read.ok()) {
    return absl::Status(
        read.status().code(),
        absl::StrCat(std::string(read.status().message()),
                     "; SPEC is a file as docs/planner.md has it, or as --save_spec "
                     "of a trainer writes it"));
  }
  const std::string& text = *read;
  PlanInputs inputs;
  inputs.Add("spec", path, text);
  HardwareSource source;
  source.read = [&](const std::string& file) {
    return ReadHardwareFile(BesideSpec(path, file), &inputs);
  };
  if (!f.hardware.empty()) {
    HOTROW_ASSIGN_OR_RETURN(source.instead, HardwareNamed(f.hardware, &inputs));
  }
  HOTROW_ASSIGN_OR_RETURN(PlanSpec spec, ParsePlanSpec(text, path, source));
  for (PlanTable& table : spec.tables) {
    HOTROW_RETURN_IF_ERROR(ReadCurve(path, &table));
    inputs.AddCurve(table);
  }
  if (!f.sweep.empty()) return RunSweep(f, spec);
  if (!f.check.empty()) return RunCheck(f, spec);
  HOTROW_ASSIGN_OR_RETURN(const Plan plan, MakePlan(spec));
  if (!f.html.empty()) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<PlanCurvePoint> curve, PlanCurve(spec, plan));
    const absl::Status written =
        WriteFileAtomically(PosixEnv(), f.html, PlanHtml(spec, plan, curve));
    if (!written.ok()) {
      return absl::Status(written.code(),
                          absl::StrCat("--html=", f.html, ": ", std::string(written.message())));
    }
  }
  if (!f.log.empty()) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const absl::Status written =
        AppendLine(PosixEnv(), f.log,
                   PlanLogLine(spec, plan, inputs,
                               std::chrono::duration_cast<std::chrono::seconds>(now).count()));
    if (!written.ok()) {
      return absl::Status(written.code(),
                          absl::StrCat("--log=", f.log, ": ", std::string(written.message())));
    }
  }
  bool failed = false;
  if (!f.fail_if.empty()) {
    const absl::StatusOr<bool> holds = EvaluateCondition(f.fail_if, plan.Values());
    if (!holds.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--fail-if: ", std::string(holds.status().message())));
    }
    failed = *holds;
  }
  std::fputs((f.json ? PlanJson(spec, plan) : PlanText(spec, plan)).c_str(), stdout);
  if (!failed) return kExitGood;
  std::fprintf(stderr, "hotrow plan: --fail-if: %s holds\n", f.fail_if.c_str());
  return kExitDamage;
}

}  // namespace

const Command kPlanCommand = {
    .name = "plan",
    .operands = "SPEC",
    .summary = "predicts memory, hit rates, speed and SSD life of a model before it is trained",
    .details =
        "SPEC is JSON or YAML: tables, model, batch, ranks, hardware. docs/planner.md lists its\n"
        "fields and explains each number. Times come from data sheets, or from measurements by\n"
        "hotrow calibrate.\n",
    .run = Run};

}  // namespace hotrow
