#include "tools/plan/plan_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/json/json_text.h"
#include "models/train/report.h"
#include "ops/rows/row_layout.h"
#include "tools/plan/plan.h"
#include "tools/plan/tier_bytes.h"

namespace hotrow {
namespace {

// Rows from which on an SSD store's index is as full as planned.
constexpr double kIndexRowsMin = 1e6;

using Json = nlohmann::ordered_json;
using Verdict = PlanCheckItem::Verdict;

// Fields of a report, missing ones as they would be in one that has nothing to say.
class Report {
 public:
  explicit Report(Json json) : json_(std::move(json)) {}

  static double Number(const Json& object, const char* field) {
    const auto at = object.find(field);
    return at != object.end() && at->is_number() ? at->get<double>() : 0;
  }
  static std::string Text(const Json& object, const char* field) {
    const auto at = object.find(field);
    return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
  }
  double Number(const char* field) const { return Number(json_, field); }
  const Json& List(const char* field) const { return Part(field, /*list=*/true); }
  const Json& flags() const { return Part("flags", /*list=*/false); }
  const Json& exchange() const { return Part("exchange", /*list=*/false); }
  // The tier of that name; null when there is none.
  const Json* Tier(std::string_view name) const {
    for (const Json& tier : List("tiers")) {
      if (tier.is_object() && Text(tier, "name") == name) return &tier;
    }
    return nullptr;
  }
  // Seconds of a span, all of the run.
  double Span(std::string_view name) const {
    for (const Json& stage : List("stages")) {
      if (stage.is_object() && Text(stage, "name") == name) return Number(stage, "ms") / 1e3;
    }
    return 0;
  }

 private:
  const Json& Part(const char* field, bool list) const {
    static const Json empty_list = Json::array();
    static const Json empty_map = Json::object();
    const auto at = json_.find(field);
    if (at == json_.end() || at->is_array() != list || (!list && !at->is_object())) {
      return list ? empty_list : empty_map;
    }
    return *at;
  }

  Json json_;
};

// What of the spec the report contradicts; empty when they belong together.
std::string Differences(const PlanSpec& spec, const Report& report) {
  std::vector<std::string> out;
  const auto differ = [&](const std::string& what, const std::string& planned,
                          const std::string& run) {
    out.push_back(absl::StrCat(what, ": the spec has ", planned, ", the report ", run));
  };
  const Json& flags = report.flags();
  const double batch = Report::Number(flags, "batch_size");
  if (batch != static_cast<double>(spec.batch_size)) {
    differ("batch_size", FormatCount(spec.batch_size), FormatCount(std::llround(batch)));
  }
  const double world = std::max(1.0, report.Number("world_size"));
  if (world != spec.ranks) differ("ranks", absl::StrCat(spec.ranks), absl::StrCat(world));

  std::map<std::string, const PlanTable*> planned;
  for (const PlanTable& table : spec.tables) planned.emplace(table.name, &table);
  const std::string optimizer = Report::Text(flags, "optimizer");
  bool optimizer_named = false;
  // Reports without the flag are of a time when all rows were fp32.
  std::string precision = Report::Text(flags, "weights_precision");
  if (precision.empty()) precision = WeightsPrecisionName(WeightsPrecision::kFp32);
  bool precision_named = false;
  for (const Json& table : report.List("tables")) {
    if (!table.is_object()) continue;
    const std::string name = Report::Text(table, "name");
    const auto at = planned.find(name);
    if (at == planned.end()) {
      out.push_back(absl::StrCat("table ", name, ": is in the report and not in the spec"));
      continue;
    }
    const PlanTable& want = *at->second;
    const double dim = Report::Number(table, "dim");
    const auto kind = std::string(SparseOptimizerName(want.optimizer));
    const auto weights = std::string(WeightsPrecisionName(want.weights_precision));
    if (dim != want.dim) {
      differ(absl::StrCat("dim of table ", name), absl::StrCat(want.dim), absl::StrCat(dim));
    } else if (!optimizer.empty() && optimizer != kind) {
      if (!optimizer_named) differ(absl::StrCat("optimizer of table ", name), kind, optimizer);
      optimizer_named = true;
    } else if (precision != weights) {
      if (!precision_named) {
        differ(absl::StrCat("weights_precision of table ", name), weights, precision);
      }
      precision_named = true;
    } else if (const auto bytes = static_cast<double>(want.layout().row_bytes);
               bytes != Report::Number(table, "row_bytes")) {
      differ(absl::StrCat("row bytes of table ", name), absl::StrCat(bytes),
             absl::StrCat(Report::Number(table, "row_bytes")));
    }
    if (const double rows = Report::Number(table, "rows"); rows > static_cast<double>(want.rows)) {
      differ(absl::StrCat("rows of table ", name), FormatCount(want.rows),
             FormatCount(std::llround(rows)));
    }
    planned.erase(at);
  }
  for (const auto& [name, table] : planned) {
    out.push_back(absl::StrCat("table ", name, ": is in the spec and not in the report"));
  }
  if (!spec.store_auto && report.Tier(StoreKindName(spec.store)) == nullptr) {
    differ("store", std::string(StoreKindName(spec.store)), Report::Text(flags, "store"));
  }
  if (const Json* cache = report.Tier("cache"); spec.cache_bytes != PlanSpec::kAuto) {
    const double budget =
        cache == nullptr ? 0 : Report::Number(*cache, "budget_bytes") / spec.ranks;
    if (budget != static_cast<double>(spec.cache_bytes)) {
      differ("cache_bytes", FormatBytes(spec.cache_bytes), FormatBytes(std::llround(budget)));
    }
  }
  // A few say enough.
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, out.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", out[i]);
  }
  if (out.size() > kNamed) absl::StrAppend(&text, "; and ", out.size() - kNamed, " more");
  return text;
}

class Checker {
 public:
  Checker(const PlanSpec& spec, const Report& report) : spec_(spec), report_(report) {}
  absl::Status Run(PlanCheck* check);

 private:
  void Add(const char* name, const char* what, const char* unit, double predicted, double measured,
           double tolerance, PlanCheck* check) const;
  void AddStages(const Plan& plan, double steps, PlanCheck* check) const;
  void AddExchange(const Plan& plan, PlanCheck* check) const;
  void AddSpeed(const PlanSpec& spec, const Plan& plan, PlanCheck* check) const;
  // What the report has as a sum over ranks.
  double OfRank(const Json& tier, const char* field) const {
    return Report::Number(tier, field) / spec_.ranks;
  }

  const PlanSpec& spec_;
  const Report& report_;
};

// tolerance 0: only shown.
void Checker::Add(const char* name, const char* what, const char* unit, double predicted,
                  double measured, double tolerance, PlanCheck* check) const {
  PlanCheckItem item;
  item.name = name;
  item.what = what;
  item.unit = unit;
  item.predicted = predicted;
  item.measured = measured;
  item.tolerance = tolerance;
  if (item.unit == "share") {
    item.difference = 100 * (predicted - measured);
  } else if (measured != 0) {
    item.difference = 100 * (predicted - measured) / measured;
  } else {
    item.difference = predicted == 0 ? 0 : 100;
  }
  if (tolerance > 0) {
    item.verdict = std::abs(item.difference) <= tolerance ? Verdict::kGood : Verdict::kOver;
  }
  check->items.push_back(std::move(item));
}

// The planner's stages and the spans they stand for. On the CPU alone: a GPU has no such spans.
void Checker::AddStages(const Plan& plan, double steps, PlanCheck* check) const {
  struct Pair {
    const char* name;
    std::vector<const char*> stages;
    std::vector<const char*> spans;
  };
  static const std::vector<Pair> pairs = {
      {"find the distinct keys", {"sort ids and find the distinct ones"}, {"unique"}},
      {"find rows, read and write back",
       {"find rows in the cache", "find rows in the store", "read misses", "write evicted rows",
        "make new rows", "wait for reads of the disk"},
       {"place", "fill", "gather"}},
      {"pool", {"pool"}, {"pool"}},
      {"dense layers",
       {"dense layers", "update dense parameters"},
       {"forward", "loss", "backward", "dense_update"}},
      {"sum gradients", {"sum gradients"}, {"segment_sum"}},
      {"update rows", {"update rows"}, {"sparse_update"}},
      {"read and draw the data, beside", {"read and draw the data"}, {"read"}}};
  for (const Pair& pair : pairs) {
    PlanCheck::Stage stage;
    stage.name = pair.name;
    for (const PlanStage& planned : plan.stages) {
      for (const char* const name : pair.stages) {
        if (planned.name == name) stage.predicted += planned.seconds;
      }
    }
    for (const char* const span : pair.spans) stage.measured += report_.Span(span) / steps;
    if (stage.predicted > 0 || stage.measured > 0) check->stages.push_back(std::move(stage));
  }
}

// The exchange of all ranks together, as the report has it.
void Checker::AddExchange(const Plan& plan, PlanCheck* check) const {
  const Json& exchange = report_.exchange();
  const auto add = [&](const char* name, const char* what, const char* field, double predicted) {
    Add(name, what, "bytes", predicted * spec_.ranks, Report::Number(exchange, field),
        kExchangeTolerance, check);
  };
  add("exchange.ids_bytes", "ids sent in a step", "ids_bytes", plan.exchange.ids);
  add("exchange.forward_bytes", "rows sent in a step", "forward_bytes", plan.exchange.forward);
  add("exchange.backward_bytes", "gradients sent in a step", "backward_bytes",
      plan.exchange.backward);
  if (spec_.model.top.empty() && spec_.model.bottom.empty()) {
    check->notes.push_back(
        "exchange.dense_bytes: the spec has no dense model, so it is not compared");
    return;
  }
  // Whichever way the sum goes, a report counts 2 (N - 1) / N of the gradients for each rank.
  constexpr double kFloatBytes = 4;
  add("exchange.dense_bytes", "dense gradients sent in a step", "dense_bytes",
      2.0 * (spec_.ranks - 1) / spec_.ranks * plan.size.dense_parameters * kFloatBytes);
}

void Checker::AddSpeed(const PlanSpec& spec, const Plan& plan, PlanCheck* check) const {
  double tolerance = kSamplesPerSecondTolerance;
  const HardwareProfile& hardware = spec.hardware;
  const int32_t ranks = std::min(spec.ranks, spec.ranks_per_node);
  const double threads = ranks * std::max(1.0, report_.Number("threads"));
  if (!hardware.calibrated()) {
    check->notes.push_back(
        "speed rests on data sheets and assumed shares of them, not on measurements of the machine "
        "that trained: give hotrow calibrate's profile with --hardware=FILE");
  } else if (threads > hardware.threads && ranks > 1) {
    check->notes.push_back(absl::StrFormat(
        "samples_per_second: %d ranks of %s threads on %d processors; ranks that wait for others "
        "poll, and take processor time from those that work, so it is not held to a tolerance",
        ranks, FormatCount(std::llround(report_.Number("threads"))), hardware.threads));
    tolerance = 0;
  } else if (threads != hardware.threads) {
    check->notes.push_back(absl::StrFormat(
        "samples_per_second: the run had %g threads on a machine, its costs were measured with %d, "
        "so it is not held to a tolerance; calibrate with as many",
        threads, hardware.threads));
    tolerance = 0;
  }
  Add("samples_per_second", "samples a second", "", plan.samples_per_second,
      report_.Number("samples_per_second"), tolerance, check);
}

absl::Status Checker::Run(PlanCheck* check) {
  const double steps = report_.Number("steps") - report_.Number("resumed_from_step");
  const double batch = static_cast<double>(spec_.batch_size);
  PlanSpec spec = spec_;
  spec.run_steps = steps;
  // The run's own tiers, where the spec leaves them open.
  const Json* const cache = report_.Tier("cache");
  if (spec.cache_bytes == PlanSpec::kAuto) {
    spec.cache_bytes = cache == nullptr ? 0 : std::llround(OfRank(*cache, "budget_bytes"));
    check->notes.push_back(absl::StrCat("cache_bytes: auto in the spec; checked with the run's ",
                                        FormatBytes(spec.cache_bytes)));
  }
  spec.store_auto = false;
  for (const StoreKind kind : PlannedStores()) {
    if (spec_.store_auto && report_.Tier(StoreKindName(kind)) != nullptr) spec.store = kind;
  }
  const Json* const store = report_.Tier(StoreKindName(spec.store));
  if (store == nullptr) {
    return absl::InvalidArgumentError("its store is of a kind that is not planned");
  }
  spec.run_store_bytes = OfRank(*store, "budget_bytes");
  const bool on_disk = FactsOf(spec.store).on_disk;
  if (on_disk && Report::Number(*store, "disk_budget_bytes") > 0) {
    spec.run_disk_bytes = OfRank(*store, "disk_budget_bytes");
  }
  if (spec.prefetch_depth == 0) {
    // Nothing but time depends on it.
    spec.prefetch_depth = static_cast<int32_t>(
        std::clamp(Report::Number(report_.flags(), "prefetch_depth"), 0.0, 32.0));
  }
  const double samples = report_.Number("samples");
  if (spec.data_seconds_per_sample == 0 && report_.Span("read") > 0 && samples > 0) {
    spec.data_seconds_per_sample = report_.Span("read") / samples;
    check->notes.push_back(absl::StrFormat(
        "reading and drawing the data: what the run's reader took, %.2f us a sample, which is more "
        "than its processor time where it had to share one (data_seconds_per_sample in the spec "
        "sets it)",
        1e6 * spec.data_seconds_per_sample));
  }
  HOTROW_ASSIGN_OR_RETURN(const Plan plan, MakePlan(spec, /*advise=*/false));

  if (spec.ranks > 1) {
    check->notes.push_back(absl::StrFormat(
        "bytes and transfers are the mean of a rank, of %d; distinct keys and what is exchanged "
        "are "
        "of all ranks; the hit rate of lookups counts a key once for each rank that asks for it",
        spec.ranks));
  }
  // The store of a rank with the rows that were there at the end: not those that have been in the
  // cache alone.
  std::map<std::string, double> share_of;
  for (size_t t = 0; t < plan.traffic.store_shares.size(); ++t) {
    share_of[spec.tables[t].name] = plan.traffic.store_shares[t];
  }
  std::vector<TierRows> rows;
  double held = 0;
  double held_by_rank = 0;
  for (const Json& table : report_.List("tables")) {
    const double n = Report::Number(table, "rows");
    const auto share = share_of.find(Report::Text(table, "name"));
    const double stored = n / spec.ranks * (share == share_of.end() ? 1 : share->second);
    rows.push_back({stored, std::llround(Report::Number(table, "row_bytes"))});
    held += n;
    held_by_rank += stored;
  }
  if (held_by_rank < 0.99 * held / spec.ranks) {
    check->notes.push_back(absl::StrFormat(
        "%.1f %% of the rows have never left the cache, by the model, and are not in the store",
        100 - 100 * held_by_rank * spec.ranks / held));
  }
  if (plan.size.rows > held) {
    check->notes.push_back(absl::StrCat(
        "the run has seen ", FormatCount(std::llround(held)), " of the spec's ",
        FormatCount(std::llround(plan.size.rows)), " rows; the store is checked with those"));
  }
  if (cache != nullptr && plan.cache.bytes > 0) {
    double used = 0;
    for (const PlanItem& item : plan.items) {
      if (item.name.rfind("cache: ", 0) == 0) used += item.bytes;
    }
    Add("cache.used_bytes", "memory of the cache", "bytes", used, OfRank(*cache, "used_bytes"),
        kBytesTolerance, check);
  }
  const double store_used = OfRank(*store, "used_bytes");
  if (!on_disk) {
    const HostStoreBytes size = SizeOfHostStore(rows, spec.run_store_bytes);
    // The store grows by whole extents: where the rows end near the end of one, there may be one
    // more or less than planned, and nothing else follows from it. So for each rank: the mean of
    // them may be off by a part of one.
    const double extent = HostStoreExtentBytes(spec.run_store_bytes, store_used);
    double planned = size.total();
    const auto fits = [&](double bytes) {
      return std::abs(bytes - store_used) <= kBytesTolerance / 100 * store_used;
    };
    for (int32_t off = 1; off <= spec.ranks && !fits(planned); ++off) {
      for (const double sign : {-1.0, 1.0}) {
        const double other = size.total() + sign * extent * off / spec.ranks;
        if (!fits(other) || fits(planned)) continue;
        planned = other;
        check->notes.push_back(absl::StrCat(
            "memory.used_bytes: planned ", FormatBytes(std::llround(size.total())), ", ",
            spec.ranks == 1 ? "one extent"
                            : absl::StrCat("for ", off, " of ", spec.ranks, " ranks one extent"),
            " of ", FormatBytes(std::llround(extent)), sign > 0 ? " less" : " more",
            " than there is"));
      }
    }
    Add("memory.used_bytes", "memory of the store", "bytes", planned, store_used, kBytesTolerance,
        check);
  } else {
    const double budget = spec.run_disk_bytes;
    const SsdStoreBytes size = SizeOfSsdStore(rows, budget);
    Add("ssd.index_bytes", "index of the SSD store", "bytes", size.index_bytes,
        OfRank(*store, "index_bytes"), held_by_rank < kIndexRowsMin ? 0 : kIndexBytesTolerance,
        check);
    if (held_by_rank < kIndexRowsMin) {
      check->notes.push_back(
          "ssd.index_bytes: an index of less than a million rows grows by a quarter at a time, "
          "so it is not held to a tolerance");
    }
    Add("ssd.used_bytes", "memory of the SSD store with buffers", "bytes", size.memory(),
        store_used, 0, check);
    // What was written, until the log is as long as it may be.
    Add("ssd.disk_used_bytes", "on the disk", "bytes",
        std::min(budget, plan.disk.bytes_written * steps), OfRank(*store, "disk_used_bytes"), 0,
        check);
  }
  Add("unique_keys_per_step", "distinct keys of a step", "", plan.traffic.unique_keys * spec.ranks,
      report_.Number("unique_keys_per_step"), kIosTolerance, check);
  if (cache != nullptr && plan.cache.bytes > 0) {
    // A curve tells of keys, not of how often a step looks one up that misses.
    const bool has_curve = std::any_of(spec.tables.begin(), spec.tables.end(),
                                       [](const PlanTable& table) { return !table.curve.empty(); });
    if (has_curve) {
      check->notes.push_back(
          "cache.hit_rate: of a measured curve a key that misses is planned with one lookup in its "
          "step, so the rate is an upper bound and not held to a tolerance");
    }
    Add("cache.hit_rate", "hit rate of lookups", "share", plan.cache.hit_rate,
        Report::Number(*cache, "hit_rate"), has_curve ? 0 : kHitRateTolerance, check);
    Add("cache.unique_hit_rate", "hit rate of distinct keys", "share", plan.cache.unique_hit_rate,
        Report::Number(*cache, "unique_hit_rate"), kHitRateTolerance, check);
  }
  if (on_disk && steps > 0) {
    double row_bytes = 0;
    for (const TierRows& table : rows) {
      row_bytes += table.rows / std::max(1.0, held_by_rank) * static_cast<double>(table.row_bytes);
    }
    // Writes of whole chunks and what the cleaner reads are few beside single rows.
    const double chunk_bytes = SsdChunkBytes(spec.run_store_bytes);
    Add("ssd.ios per step", "transfers of the disk", "",
        plan.disk.ios_read + plan.disk.bytes_written / chunk_bytes, OfRank(*store, "ios") / steps,
        kIosTolerance, check);
    Add("ssd.bytes_written per step", "written to the disk", "bytes", plan.disk.bytes_written,
        OfRank(*store, "bytes_written") / steps, 0, check);
    Add("ssd.write_amplification", "bytes written over bytes of rows", "",
        plan.disk.write_amplification *
            static_cast<double>(SsdBytesPerRow(std::llround(row_bytes))) / row_bytes,
        Report::Number(*store, "write_amplification"), 0, check);
  }
  if (spec.ranks > 1) AddExchange(plan, check);
  AddSpeed(spec, plan, check);
  check->chains = plan.chains;
  // Spans of several ranks are those of the first, and much of them is waiting for the others.
  if (spec.hardware.hbm_bytes == 0 && spec.ranks == 1 && steps > 0) AddStages(plan, steps, check);
  if (batch * steps < 1) return absl::InvalidArgumentError("the run took no step");
  return absl::OkStatus();
}

std::string Amount(const PlanCheckItem& item, double value) {
  if (item.unit == "bytes") return FormatBytes(std::llround(value));
  if (item.unit == "share") return absl::StrFormat("%.2f %%", 100 * value);
  if (std::abs(value) < 100) return absl::StrFormat("%.2f", value);
  return FormatCount(std::llround(value));
}

const char* VerdictName(Verdict verdict) {
  return verdict == Verdict::kGood ? "good" : verdict == Verdict::kOver ? "OVER" : "";
}

}  // namespace

bool PlanCheck::good() const {
  return std::none_of(items.begin(), items.end(),
                      [](const PlanCheckItem& item) { return item.verdict == Verdict::kOver; });
}

absl::StatusOr<PlanCheck> CheckPlan(const PlanSpec& spec, std::string_view text,
                                    std::string_view name) {
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": ", what));
  };
  absl::StatusOr<Json> parsed = ParseJson<Json>(text);
  if (!parsed.ok()) {
    return bad(absl::StrCat("is no report of a training run (",
                            std::string(parsed.status().message()),
                            "); a trainer writes one with --report=FILE"));
  }
  Json& json = *parsed;
  if (!json.is_object() || !json.contains("tiers") || !json.contains("tables") ||
      !json.contains("flags") || !json.contains("steps")) {
    return bad("is no report of a training run; a trainer writes one with --report=FILE");
  }
  const Report report(std::move(json));
  if (report.Number("steps") - report.Number("resumed_from_step") < 1) {
    return bad("the run took no step");
  }
  if (report.Number("resumed_from_step") > 0) {
    return bad("the run went on from a checkpoint; check one that began with empty tables");
  }
  if (const std::string differences = Differences(spec, report); !differences.empty()) {
    return bad(absl::StrCat("is of another model than ", spec.name, ": ", differences));
  }
  PlanCheck check;
  check.report = std::string(name);
  if (const absl::Status status = Checker(spec, report).Run(&check); !status.ok()) {
    return bad(std::string(status.message()));
  }
  return check;
}

std::string PlanCheckText(const PlanCheck& check) {
  std::string out;
  absl::StrAppendFormat(&out, "Predicted against %s\n\n  %-28s %14s %14s %12s %10s\n", check.report,
                        "", "predicted", "measured", "difference", "tolerance");
  for (const PlanCheckItem& item : check.items) {
    const char* const unit = item.unit == "share" ? "pt" : "% ";
    absl::StrAppendFormat(
        &out, "  %-28s %14s %14s %9.2f %s %10s  %s\n", item.name, Amount(item, item.predicted),
        Amount(item, item.measured), item.difference, unit,
        item.tolerance > 0 ? absl::StrFormat("%g %s", item.tolerance, unit) : std::string(),
        VerdictName(item.verdict));
  }
  if (!check.stages.empty()) {
    absl::StrAppendFormat(&out, "\n  %-36s %14s %14s\n", "ms of a step", "predicted", "measured");
    for (const PlanCheck::Stage& stage : check.stages) {
      absl::StrAppendFormat(&out, "  %-36s %14.3f %14.3f\n", stage.name, 1e3 * stage.predicted,
                            1e3 * stage.measured);
    }
  }
  if (!check.notes.empty()) absl::StrAppend(&out, "\n");
  for (const std::string& note : check.notes) absl::StrAppend(&out, "  - ", note, "\n");
  absl::StrAppend(&out, check.good() ? "\nEvery prediction is within its tolerance.\n"
                                     : "\nNot every prediction is within its tolerance.\n");
  return out;
}

std::string PlanCheckJson(const PlanCheck& check) {
  Json json;
  json["report"] = check.report;
  json["good"] = check.good();
  json["items"] = Json::array();
  for (const PlanCheckItem& item : check.items) {
    json["items"].push_back(
        {{"name", item.name},
         {"what", item.what},
         {"unit", item.unit},
         {"predicted", item.predicted},
         {"measured", item.measured},
         {"difference", item.difference},
         {"difference_unit", item.unit == "share" ? "points" : "percent"},
         {"tolerance", item.tolerance > 0 ? Json(item.tolerance) : Json(nullptr)},
         {"verdict", item.verdict == Verdict::kNotHeld
                         ? Json(nullptr)
                         : Json(item.verdict == Verdict::kGood ? "good" : "over")}});
  }
  json["stages"] = Json::array();
  for (const PlanCheck::Stage& stage : check.stages) {
    json["stages"].push_back({{"name", stage.name},
                              {"predicted_seconds", stage.predicted},
                              {"measured_seconds", stage.measured}});
  }
  json["chains"] = Json::array();
  for (const PlanChain& chain : check.chains) {
    json["chains"].push_back(
        {{"name", chain.name}, {"seconds", chain.seconds}, {"held_up_seconds", chain.held_up}});
  }
  json["notes"] = check.notes;
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hotrow
