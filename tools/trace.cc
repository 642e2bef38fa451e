// hotrow trace: what is in a file of accesses, and what caches would make of it.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "cache/cache_policies.h"
#include "cache/cache_policy.h"
#include "cache/cache_simulation.h"
#include "cache/miss_ratio_curve.h"
#include "models/train/report.h"
#include "tools/access_source.h"
#include "tools/command.h"
#include "tools/trace_analysis.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormatHelp[] =
    "auto, text, int64be, int64le, npy or trace; .gz and .xz are unpacked";

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

std::string TableName(const AccessTraceTable& table) {
  return table.name.empty() ? absl::StrCat("table ", table.table) : table.name;
}

int64_t Rounded(double x) { return static_cast<int64_t>(std::llround(x)); }

// --- info
// ------------------------------------------------------------------------------------------

Json SummaryJson(const TraceSummary& summary) {
  Json json;
  json["accesses"] = summary.accesses;
  json["distinct"] = Rounded(summary.distinct);
  json["used_once"] = Rounded(summary.used_once);
  json["accesses_per_key"] =
      summary.distinct > 0 ? static_cast<double>(summary.accesses) / summary.distinct : 0;
  json["zipf_exponent"] = summary.zipf_exponent;
  json["zipf_fit"] = "maximum likelihood over the ranks that occur";
  Json shares = Json::array();
  for (const auto& share : summary.hot_shares) {
    shares.push_back({{"fraction", share.fraction},
                      {"share", share.share},
                      {"fitted_share", share.fitted_share}});
  }
  json["hottest"] = std::move(shares);
  Json reuse = Json::array();
  for (size_t i = 0; i < summary.keys_by_accesses.size(); ++i) {
    reuse.push_back({{"accesses_min", int64_t{1} << i},
                     {"accesses_max", (int64_t{2} << i) - 1},
                     {"keys", Rounded(summary.keys_by_accesses[i])}});
  }
  json["reuse"] = std::move(reuse);
  Json growth = Json::array();
  for (const auto& mark : summary.growth) {
    growth.push_back({{"accesses", mark.accesses}, {"distinct", Rounded(mark.distinct)}});
  }
  json["growth"] = std::move(growth);
  Json sets = Json::array();
  for (const auto& set : summary.working_sets) {
    sets.push_back({{"window", set.window}, {"distinct", set.distinct}});
  }
  json["working_set"] = std::move(sets);
  return json;
}

std::string SummaryText(const TraceSummary& summary) {
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&out, "  %-16s %s\n", name, value);
  };
  line("accesses", FormatCount(summary.accesses));
  if (summary.distinct == 0) return out;
  line("distinct keys",
       absl::StrCat(FormatCount(Rounded(summary.distinct)), ", ",
                    FormatCount(Rounded(summary.used_once)), " of them used once"));
  line("reuse",
       absl::StrFormat("%.2f accesses a key; %s of the accesses are to a key seen before",
                       static_cast<double>(summary.accesses) / summary.distinct,
                       Percent(1 - summary.distinct / static_cast<double>(summary.accesses))));
  line("Zipf exponent", absl::StrFormat("%.3f (maximum likelihood over the ranks that occur)",
                                        summary.zipf_exponent));
  absl::StrAppend(&out, "\n  hottest keys    of the accesses     by the fitted law\n");
  for (const auto& share : summary.hot_shares) {
    absl::StrAppendFormat(&out, "  %10g %%  %16s  %20s\n", 100 * share.fraction,
                          Percent(share.share), Percent(share.fitted_share));
  }
  absl::StrAppend(&out, "\n  accesses of a key              keys\n");
  for (size_t i = 0; i < summary.keys_by_accesses.size(); ++i) {
    absl::StrAppendFormat(
        &out, "  %-20s %14s\n",
        absl::StrCat(FormatCount(int64_t{1} << i), " .. ", FormatCount((int64_t{2} << i) - 1)),
        FormatCount(Rounded(summary.keys_by_accesses[i])));
  }
  absl::StrAppend(&out, "\n  after accesses   distinct so far\n");
  for (const auto& mark : summary.growth) {
    absl::StrAppendFormat(&out, "  %14s  %16s\n", FormatCount(mark.accesses),
                          FormatCount(Rounded(mark.distinct)));
  }
  absl::StrAppend(&out, "\n  in a window of   distinct (mean)\n");
  for (const auto& set : summary.working_sets) {
    absl::StrAppendFormat(&out, "  %14s  %16s\n", FormatCount(set.window),
                          FormatCount(Rounded(set.distinct)));
  }
  return out;
}

absl::StatusOr<int> RunInfo(const Command& self, std::span<const char* const> arguments) {
  bool json = false;
  std::string format_name = "auto";
  FlagSet flags("hotrow trace info");
  flags.AddString("format", "NAME", &format_name, kFormatHelp);
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  HOTROW_ASSIGN_OR_RETURN(const AccessFormat format, ParseAccessFormat(format_name));
  HOTROW_ASSIGN_OR_RETURN(const auto source, AccessSource::Open(PosixEnv(), operands[0], format));
  std::map<uint32_t, TraceAnalysis> analyses;
  for (const AccessTraceTable& table : source->tables()) {
    analyses.try_emplace(table.table, source->sample_rate());
  }
  AccessBlock block;
  int64_t steps = 0;
  while (true) {
    HOTROW_ASSIGN_OR_RETURN(const bool more, source->Next(&block));
    if (!more) break;
    const auto at = analyses.find(block.table);
    if (at == analyses.end()) {
      return absl::DataLossError(absl::StrCat(operands[0], ": a step names table ", block.table,
                                              ", which its header does not know"));
    }
    at->second.Add(block.keys, block.unsampled);
    steps += block.ends_step;
  }

  const bool is_trace = source->format() == AccessFormat::kTrace;
  if (json) {
    Json out;
    out["file"] = operands[0];
    out["format"] = AccessFormatName(source->format());
    out["sample_rate"] = source->sample_rate();
    if (is_trace) {
      out["steps"] = steps;
      out["complete"] = source->complete();
    }
    Json tables = Json::array();
    for (const AccessTraceTable& table : source->tables()) {
      Json entry = {{"table", table.table}, {"name", table.name}};
      entry.update(SummaryJson(analyses.at(table.table).Summary()));
      tables.push_back(std::move(entry));
    }
    if (!is_trace) {
      out.update(tables[0]);
    } else {
      out["tables"] = std::move(tables);
    }
    std::printf("%s\n", out.dump(2).c_str());
    return kExitGood;
  }
  std::printf("%s: %s", operands[0].c_str(),
              std::string(AccessFormatName(source->format())).c_str());
  if (is_trace) {
    std::printf(", %s steps, %s of the keys%s", FormatCount(steps).c_str(),
                Percent(source->sample_rate()).c_str(),
                source->complete() ? "" : ", ends where its writer was killed");
  }
  std::printf("\n");
  for (const AccessTraceTable& table : source->tables()) {
    if (is_trace) std::printf("\n%s\n", TableName(table).c_str());
    std::fputs(SummaryText(analyses.at(table.table).Summary()).c_str(), stdout);
  }
  return kExitGood;
}

// --- mrc
// -------------------------------------------------------------------------------------------

constexpr char kExactLru[] = "lru";

// "hotrow-lru" and so on: the policies of RowCache, in the order of CachePolicies().
std::vector<std::string> SimulatedPolicies() {
  std::vector<std::string> names;
  for (const CachePolicyFacts& facts : CachePolicies()) {
    names.push_back(absl::StrCat("hotrow-", std::string(facts.name)));
  }
  return names;
}

struct MrcFlags {
  std::string at = "0.01,0.02,0.05,0.1,0.2,0.5,1";
  std::string rows;
  double sample_rate = 1;
  int64_t keys_max = 0;
  int64_t seed = 0;
  std::string policy = kExactLru;
  int64_t step_lookups = 1;
  int64_t prefetch_depth = 0;
  std::string format = "auto";
  std::string table;
  bool json = false;
};

template <typename T>
absl::StatusOr<std::vector<T>> ParseList(const char* flag, const std::string& text, T least,
                                         const char* legal) {
  std::vector<T> values;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipWhitespace()))) {
    T value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || !(value > least)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": \"", part, "\" is not ", legal));
    }
    values.push_back(value);
  }
  return values;
}

struct MrcPoint {
  double fraction = 0;  // of the distinct keys
  int64_t size = 0;     // rows
  double hit_rate = 0;
  double error = 0;  // two standard errors
};

struct Mrc {
  std::string name;  // of the table; empty: all of the file
  int64_t accesses = 0;
  double distinct = 0;
  double sample_rate = 1;
  int64_t memory_bytes = 0;
  std::vector<MrcPoint> points;
};

// One curve over the tables it is asked about.
class CurveBuilder {
 public:
  CurveBuilder(double sample_rate, int64_t keys_max, uint64_t seed) {
    if (sample_rate >= 1 && keys_max == 0) {
      exact_.emplace(seed);
    } else {
      sampled_.emplace(
          SampledLruCurveOptions{.sample_rate = sample_rate, .keys_max = keys_max, .seed = seed});
    }
  }
  void Add(const AccessBlock& block) {
    if (exact_.has_value()) {
      for (const uint64_t key : block.keys) exact_->Add(key, block.table);
      return;
    }
    for (const uint64_t key : block.keys) sampled_->Add(key, block.table);
    sampled_->AddUnsampled(block.unsampled);
  }
  Mrc Curve(const std::vector<double>& fractions, const std::vector<int64_t>& rows) const {
    Mrc mrc;
    mrc.accesses = exact_.has_value() ? exact_->accesses() : sampled_->accesses();
    mrc.distinct =
        exact_.has_value() ? static_cast<double>(exact_->distinct()) : sampled_->distinct();
    mrc.sample_rate = exact_.has_value() ? 1 : sampled_->sample_rate();
    mrc.memory_bytes = exact_.has_value() ? exact_->MemoryBytes() : sampled_->MemoryBytes();
    std::vector<int64_t> sizes = rows;
    for (const double fraction : fractions) {
      sizes.push_back(std::max<int64_t>(1, Rounded(fraction * mrc.distinct)));
    }
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    const std::vector<double> exact_rates =
        exact_.has_value() ? exact_->HitRates(sizes) : std::vector<double>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      MrcPoint point;
      point.size = sizes[i];
      point.fraction = mrc.distinct > 0 ? static_cast<double>(sizes[i]) / mrc.distinct : 0;
      point.hit_rate =
          exact_.has_value() ? exact_rates[i] : sampled_->HitRate(static_cast<double>(sizes[i]));
      point.error = exact_.has_value() ? 0 : sampled_->HitRateError(static_cast<double>(sizes[i]));
      mrc.points.push_back(point);
    }
    return mrc;
  }

 private:
  std::optional<LruCurve> exact_;
  std::optional<SampledLruCurve> sampled_;
};

// Replaces the hit rates of a curve by those of RowCache, simulated at each of its sizes. A sampled
// trace is simulated in miniature: a cache of rate * size rows on the sampled keys (Waldspurger et
// al., "Cache Modeling and Optimization using Miniature Simulations", ATC'17), misses weighed
// against all accesses as SampledLruCurve does.
absl::Status Simulate(const std::string& path, AccessFormat format, const MrcFlags& flags,
                      CachePolicy policy, std::optional<uint32_t> table, Mrc* mrc) {
  HOTROW_ASSIGN_OR_RETURN(const auto source, AccessSource::Open(PosixEnv(), path, format));
  const double rate = source->sample_rate();
  std::vector<std::unique_ptr<CacheSimulation>> simulations;
  for (const MrcPoint& point : mrc->points) {
    HOTROW_ASSIGN_OR_RETURN(
        simulations.emplace_back(),
        CacheSimulation::Create(
            {.rows = std::max<int64_t>(1, Rounded(static_cast<double>(point.size) * rate)),
             .policy = policy,
             .step_lookups = flags.step_lookups,
             .prefetch_depth = static_cast<int32_t>(flags.prefetch_depth)}));
  }
  const bool is_trace = source->format() == AccessFormat::kTrace;
  AccessBlock block;
  std::vector<RowKey> step;
  while (true) {
    HOTROW_ASSIGN_OR_RETURN(const bool more, source->Next(&block));
    if (!more) break;
    if (is_trace) {
      if (!table.has_value() || *table == block.table) {
        for (const uint64_t key : block.keys) step.push_back({key, block.table});
      }
      if (!block.ends_step) continue;
      for (const auto& simulation : simulations) simulation->Step(step, {});
      step.clear();
      continue;
    }
    for (const auto& simulation : simulations) {
      for (const uint64_t key : block.keys) simulation->Add({key, block.table});
    }
  }
  for (size_t i = 0; i < simulations.size(); ++i) {
    CacheSimulation& simulation = *simulations[i];
    simulation.EndStep();
    MrcPoint& point = mrc->points[i];
    point.size = Rounded(static_cast<double>(simulation.ways()) / rate);
    point.fraction = mrc->distinct > 0 ? static_cast<double>(point.size) / mrc->distinct : 0;
    point.error = 0;
    if (is_trace) {
      const auto misses =
          static_cast<double>(simulation.counts().unique_keys - simulation.counts().unique_hits);
      point.hit_rate =
          std::clamp(1 - misses / (rate * static_cast<double>(mrc->accesses)), 0.0, 1.0);
    } else {
      point.hit_rate = simulation.counts().hit_rate();
    }
  }
  return absl::OkStatus();
}

Json MrcJson(const Mrc& mrc) {
  Json json;
  json["distinct"] = Rounded(mrc.distinct);
  json["accesses"] = mrc.accesses;
  Json points = Json::array();
  for (const MrcPoint& point : mrc.points) {
    Json entry = {{"size", point.size}, {"hit_rate", point.hit_rate}, {"fraction", point.fraction}};
    if (mrc.sample_rate < 1) entry["error"] = point.error;
    points.push_back(std::move(entry));
  }
  json["points"] = std::move(points);
  json["sample_rate"] = mrc.sample_rate;
  json["memory_bytes"] = mrc.memory_bytes;
  return json;
}

void PrintMrc(const Mrc& mrc, bool simulated) {
  std::printf("%s accesses, %s distinct keys", FormatCount(mrc.accesses).c_str(),
              FormatCount(Rounded(mrc.distinct)).c_str());
  if (mrc.sample_rate < 1) {
    std::printf(", estimated from %s of the keys", Percent(mrc.sample_rate).c_str());
  }
  std::printf("\n%16s %18s %10s\n", "rows", "of the distinct", "hit rate");
  for (const MrcPoint& point : mrc.points) {
    std::printf("%16s %18s %10s", FormatCount(point.size).c_str(), Percent(point.fraction).c_str(),
                Percent(point.hit_rate).c_str());
    if (mrc.sample_rate < 1 && !simulated) std::printf(" +- %.1f", 100 * point.error);
    std::printf("\n");
  }
}

absl::StatusOr<int> RunMrc(const Command& self, std::span<const char* const> arguments) {
  MrcFlags flags;
  FlagSet set("hotrow trace mrc");
  set.AddString("at", "LIST", &flags.at, "cache sizes as fractions of the distinct keys");
  set.AddString("rows", "LIST", &flags.rows, "further cache sizes, in rows");
  set.AddReal("sample_rate", 1e-9, 1, &flags.sample_rate,
              "share of the keys to sample; 1: all keys, exact");
  set.AddInt("keys_max", 0, int64_t{1} << 40, &flags.keys_max,
             "most keys in the sample, at least 256: with more the rate falls; 0: no limit");
  set.AddInt("seed", 0, INT64_MAX, &flags.seed, "seed of the sample of keys");
  set.AddString("policy", "NAME", &flags.policy,
                absl::StrCat("lru (exact stack distances), or our cache, simulated at each size: ",
                             absl::StrJoin(SimulatedPolicies(), ", ")));
  set.AddInt("step_lookups", 1, INT32_MAX, &flags.step_lookups,
             "hotrow-*: lookups of a training step; a trace has its own steps");
  set.AddInt("prefetch_depth", 0, 32, &flags.prefetch_depth,
             "hotrow-*: prefetched steps that pin their rows besides the current step");
  set.AddString("table", "NAME", &flags.table, "of a trace: this table alone, by name or number");
  set.AddString("format", "NAME", &flags.format, kFormatHelp);
  set.AddSwitch("json", &flags.json,
                "print one JSON object: distinct, accesses, points[].{size,hit_rate}");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &set, &operands));
  if (operands.empty()) return kExitGood;
  const std::string& path = operands[0];

  HOTROW_ASSIGN_OR_RETURN(const AccessFormat format, ParseAccessFormat(flags.format));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<double> fractions,
                          ParseList<double>("at", flags.at, 0, "a fraction above 0 such as 0.05"));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> rows,
                          ParseList<int64_t>("rows", flags.rows, 0, "a number of rows above 0"));
  if (fractions.empty() && rows.empty()) {
    return absl::InvalidArgumentError("--at and --rows are empty: name a size");
  }
  const bool simulated = flags.policy != kExactLru;
  CachePolicy policy = CachePolicy::kLru;
  if (simulated) {
    const std::vector<std::string> names = SimulatedPolicies();
    const auto at = std::find(names.begin(), names.end(), flags.policy);
    if (at == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--policy: there is no \"", flags.policy,
                                                     "\"; there are: ", kExactLru, ", ",
                                                     absl::StrJoin(names, ", ")));
    }
    policy = CachePolicies()[static_cast<size_t>(at - names.begin())].policy;
  }
  if (simulated && (flags.sample_rate < 1 || flags.keys_max > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sample_rate and --keys_max are for --policy lru; --policy ", flags.policy,
        " simulates all keys of the file (a trace that was recorded sampled is simulated in "
        "miniature)"));
  }
  if (flags.keys_max != 0) {
    const absl::Status status =
        SampledLruCurveOptions{.sample_rate = 1, .keys_max = flags.keys_max}.Validate();
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--keys_max: must be 0 or at least 256, is ", flags.keys_max));
    }
  }

  HOTROW_ASSIGN_OR_RETURN(const auto source, AccessSource::Open(PosixEnv(), path, format));
  const bool is_trace = source->format() == AccessFormat::kTrace;
  std::optional<uint32_t> table;
  if (!flags.table.empty()) {
    std::string names;
    for (const AccessTraceTable& known : source->tables()) {
      if (known.name == flags.table || absl::StrCat(known.table) == flags.table) {
        table = known.table;
      }
      absl::StrAppend(&names, names.empty() ? "" : ", ", TableName(known));
    }
    if (!is_trace) {
      return absl::InvalidArgumentError(
          absl::StrCat("--table: ", path, " is ", std::string(AccessFormatName(source->format())),
                       " and has one table only; leave --table away"));
    }
    if (!table.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--table: ", path, " has no table \"", flags.table, "\"; it has: ", names));
    }
  }
  // A trace's own sample can only be cut down further, by the same hash.
  const double rate = std::min(flags.sample_rate, source->sample_rate());
  const uint64_t seed = is_trace ? source->seed() : static_cast<uint64_t>(flags.seed);

  // All tables as one stream, and each alone.
  CurveBuilder all(rate, flags.keys_max, seed);
  std::map<uint32_t, CurveBuilder> by_table;
  if (source->tables().size() > 1 && !table.has_value()) {
    for (const AccessTraceTable& known : source->tables()) {
      by_table.try_emplace(known.table, rate, flags.keys_max, seed);
    }
  }
  AccessBlock block;
  while (true) {
    HOTROW_ASSIGN_OR_RETURN(const bool more, source->Next(&block));
    if (!more) break;
    if (table.has_value() && *table != block.table) continue;
    all.Add(block);
    const auto at = by_table.find(block.table);
    if (at != by_table.end()) at->second.Add(block);
  }
  Mrc mrc = all.Curve(fractions, rows);
  if (mrc.accesses == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": there are no accesses in it"));
  }
  if (simulated) HOTROW_RETURN_IF_ERROR(Simulate(path, format, flags, policy, table, &mrc));
  std::vector<Mrc> tables;
  for (const AccessTraceTable& known : source->tables()) {
    const auto at = by_table.find(known.table);
    if (at == by_table.end()) continue;
    Mrc& one = tables.emplace_back(at->second.Curve(fractions, rows));
    one.name = TableName(known);
    if (simulated) {
      HOTROW_RETURN_IF_ERROR(Simulate(path, format, flags, policy, known.table, &one));
    }
  }

  if (flags.json) {
    Json out = MrcJson(mrc);
    out["policy"] = flags.policy;
    if (!tables.empty()) {
      Json list = Json::array();
      for (const Mrc& one : tables) {
        Json entry = {{"name", one.name}};
        entry.update(MrcJson(one));
        list.push_back(std::move(entry));
      }
      out["tables"] = std::move(list);
    }
    std::printf("%s\n", out.dump(2).c_str());
    return kExitGood;
  }
  std::printf("%s, policy %s\n", path.c_str(), flags.policy.c_str());
  PrintMrc(mrc, simulated);
  for (const Mrc& one : tables) {
    std::printf("\n%s: ", one.name.c_str());
    PrintMrc(one, simulated);
  }
  return kExitGood;
}

constexpr Command kInfo = {
    .name = "trace info",
    .operands = "FILE",
    .summary = "accesses, distinct keys, reuse, skew, working set of a file of accesses",
    .details =
        "FILE holds ids: as text, one a line; as big-endian (or, with --format, little-endian)\n"
        "64-bit integers; as a .npy array; or as a trace that a trainer recorded. gzip and xz are\n"
        "unpacked. In a trace an access is a distinct key of a step. For a sampled trace the\n"
        "numbers are estimates.\n",
    .run = RunInfo};

constexpr Command kMrc = {.name = "trace mrc",
                          .operands = "FILE",
                          .summary = "miss-ratio curve: hit rates of caches of many sizes",
                          .details =
                              "FILE as for `hotrow trace info`. First uses count as misses. With "
                              "--sample_rate the curve\n"
                              "is estimated from a sample of the keys; its error is given as two "
                              "standard errors.\n",
                          .run = RunMrc};

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  const std::string_view action = arguments.empty() ? "" : arguments[0];
  for (const Command* command : {&kInfo, &kMrc}) {
    if (action == std::string_view(command->name).substr(std::string_view("trace ").size())) {
      return command->run(*command, arguments.subspan(1));
    }
  }
  // Help of `hotrow trace` itself, and what is wrong with anything else.
  FlagSet flags("hotrow trace");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no \"hotrow trace ", operands[0], "\"; there are: info, mrc"));
}

}  // namespace

const Command kTraceCommand = {
    .name = "trace",
    .operands = "info|mrc FILE",
    .summary = "analyses a file of accesses: reuse, skew, and hit rates of caches",
    .details =
        "hotrow trace info FILE   accesses, distinct keys, reuse, skew, working set\n"
        "hotrow trace mrc FILE    hit rates of caches of many sizes\n"
        "Each has its own --help.\n",
    .run = Run};

}  // namespace hotrow
