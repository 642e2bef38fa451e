#include "tools/top_screen.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exposition_reader.h"
#include "models/train/report.h"

namespace hotrow {
namespace {

constexpr int kNameColumns = 24;

using Labels = std::map<std::string, std::string>;

// The samples of one moment by name and labels. The label `rank`, which all have or none, counts
// for nothing.
class Samples {
 public:
  explicit Samples(const MetricFamilies& families) {
    for (const auto& [name, family] : families) {
      for (const MetricSample& sample : family.samples) {
        // What is not finite is shown as 0: it can be neither compared nor subtracted.
        const double value = std::isfinite(sample.value) ? sample.value : 0;
        first_.emplace(sample.name, value);
        by_labels_.emplace(KeyOf(sample.name, sample.labels), value);
      }
    }
  }

  // Without labels: the first of the name. 0: there is none.
  double Find(const std::string& name, const Labels& labels) const {
    const auto& in = labels.empty() ? first_ : by_labels_;
    const auto at = in.find(labels.empty() ? name : KeyOf(name, labels));
    return at == in.end() ? 0 : at->second;
  }

 private:
  // A name and labels have no byte 0xff, which no UTF-8 has.
  static std::string KeyOf(const std::string& name, const Labels& labels) {
    std::string key = name;
    for (const auto& [label, value] : labels) {
      if (label != "rank") absl::StrAppend(&key, "\xff", label, "\xff", value);
    }
    return key;
  }

  std::map<std::string, double> first_;
  std::map<std::string, double> by_labels_;
};

// Reads numbers of two moments.
class Numbers {
 public:
  Numbers(const MetricFamilies& before, const MetricFamilies& now, double seconds)
      : now_(now), before_samples_(before), now_samples_(now), seconds_(seconds) {}

  bool Has(const std::string& name) const {
    const auto family = now_.find(name);
    return family != now_.end() && !family->second.samples.empty();
  }
  double Now(const std::string& name, const Labels& labels = {}) const {
    return now_samples_.Find(name, labels);
  }
  // How much a counter has grown. A counter that is smaller now is that of another process, from 0.
  double Growth(const std::string& name, const Labels& labels = {}) const {
    const double now = now_samples_.Find(name, labels);
    const double before = before_samples_.Find(name, labels);
    return now >= before ? now - before : now;
  }
  bool HasRates() const { return seconds_ > 0; }
  double Rate(const std::string& name, const Labels& labels = {}) const {
    return seconds_ > 0 ? Growth(name, labels) / seconds_ : 0;
  }
  // The share of one counter's growth in another's; where that has not grown, since the beginning.
  double Share(const std::string& part, const std::string& whole, const Labels& labels = {}) const {
    if (const double grown = Growth(whole, labels); grown > 0) return Growth(part, labels) / grown;
    const double all = Now(whole, labels);
    return all > 0 ? Now(part, labels) / all : 0;
  }
  // The values of a label, in the order of the text.
  std::vector<std::string> ValuesOf(const std::string& name, const std::string& label) const {
    std::vector<std::string> out;
    std::set<std::string> seen;
    const auto family = now_.find(name);
    if (family == now_.end()) return out;
    for (const MetricSample& sample : family->second.samples) {
      const auto value = sample.labels.find(label);
      if (value != sample.labels.end() && seen.insert(value->second).second) {
        out.push_back(value->second);
      }
    }
    return out;
  }
  // The least bound of a histogram's buckets that a share q of the growth does not exceed; 0: none.
  double Quantile(const std::string& name, double q) const {
    const auto family = now_.find(name);
    if (family == now_.end()) return 0;
    const double all = Growth(absl::StrCat(name, "_count"));
    for (const MetricSample& sample : family->second.samples) {
      if (!sample.name.ends_with("_bucket") || !sample.labels.contains("le")) continue;
      double bound = 0;
      if (!absl::SimpleAtod(sample.labels.at("le"), &bound)) continue;
      if (all > 0 && Growth(sample.name, {{"le", sample.labels.at("le")}}) >= q * all) return bound;
    }
    return 0;
  }

 private:
  const MetricFamilies& now_;
  const Samples before_samples_;
  const Samples now_samples_;
  const double seconds_;
};

// 950, 12.3 k, 4.56 M, 1.20 G.
std::string Short(double x) {
  if (x < 10 && x != std::floor(x)) return absl::StrFormat("%.1f", x);
  if (x < 1000) return absl::StrFormat("%.0f", x);
  if (x < 1e6) return absl::StrFormat("%.1f k", x / 1e3);
  if (x < 1e9) return absl::StrFormat("%.2f M", x / 1e6);
  return absl::StrFormat("%.2f G", x / 1e9);
}

int64_t Whole(double x) {
  return x > 0 ? static_cast<int64_t>(std::llround(std::min(x, 9e18))) : 0;
}
std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }
std::string Bytes(double x) { return FormatBytes(Whole(x)); }
std::string Millis(double seconds) { return absl::StrFormat("%.3g ms", 1e3 * seconds); }

// Text of others for a terminal, at most `columns` characters: control characters, also those of
// two bytes in UTF-8, would move the cursor and worse.
std::string ForTerminal(std::string_view text, int columns) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool begins = (c & 0xc0) != 0x80;
    if (begins && columns-- <= 0) return out;
    const bool c1 =
        c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    if (c < 0x20 || c == 0x7f || c1) {
      out += '?';
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

// The name and as many blanks as fill its column, which printf would count in bytes.
std::string Column(std::string_view text) {
  std::string out = ForTerminal(text, kNameColumns);
  const auto characters = std::count_if(out.begin(), out.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  });
  out.append(static_cast<size_t>(kNameColumns - characters), ' ');
  return out;
}

std::string InfoOf(const MetricFamilies& now, const std::string& label) {
  const auto family = now.find("hotrow_run_info");
  if (family == now.end() || family->second.samples.empty()) return std::string();
  const Labels& labels = family->second.samples[0].labels;
  const auto at = labels.find(label);
  return at == labels.end() ? std::string() : ForTerminal(at->second, kNameColumns);
}

// The mean of a histogram's growth; where it has not grown, since the beginning.
double Mean(const Numbers& n, const std::string& name) {
  return n.Share(absl::StrCat(name, "_sum"), absl::StrCat(name, "_count"));
}

// What `hotrow serve` says.
void AppendServer(const Numbers& n, std::string* out) {
  const std::vector<std::string> models = n.ValuesOf("hotrow_serve_info", "model");
  if (models.empty()) return;
  absl::StrAppendFormat(out, "%s served, of step %s, %s rows in %s: %s\n",
                        ForTerminal(models[0], kNameColumns),
                        FormatCount(Whole(n.Now("hotrow_serve_model_step"))),
                        FormatCount(Whole(n.Now("hotrow_serve_model_rows"))),
                        Bytes(n.Now("hotrow_serve_model_table_bytes")),
                        n.Now("hotrow_serve_ready") == 1 ? "ready" : "NOT READY");
  if (n.HasRates()) {
    absl::StrAppendFormat(out, "  %s requests/s, %s samples/s",
                          Short(n.Rate("hotrow_serve_request_seconds_count")),
                          Short(n.Rate("hotrow_serve_samples_total")));
  } else {
    absl::StrAppendFormat(out, "  %s requests, %s samples so far",
                          Short(n.Now("hotrow_serve_request_seconds_count")),
                          Short(n.Now("hotrow_serve_samples_total")));
  }
  absl::StrAppendFormat(out, "; %s of %s places to wait taken, %s connections\n",
                        FormatCount(Whole(n.Now("hotrow_serve_queue_requests"))),
                        FormatCount(Whole(n.Now("hotrow_serve_queue_requests_max"))),
                        FormatCount(Whole(n.Now("hotrow_serve_connections"))));
  absl::StrAppendFormat(out, "  %s a request, %s of them waiting, %s scoring",
                        Millis(Mean(n, "hotrow_serve_request_seconds")),
                        Millis(Mean(n, "hotrow_serve_queue_seconds")),
                        Millis(Mean(n, "hotrow_serve_score_seconds")));
  if (const double most = n.Quantile("hotrow_serve_request_seconds", 0.99);
      most > 0 && std::isfinite(most)) {
    absl::StrAppendFormat(out, "; 99 %% within %s", Millis(most));
  }
  absl::StrAppendFormat(
      out, "; %s samples a batch\n",
      Short(n.Share("hotrow_serve_batch_samples_total", "hotrow_serve_batches_total")));
  if (n.Now("hotrow_serve_row_cache_rows") > 0) {
    const double hits = n.Now("hotrow_serve_row_cache_hits_total");
    const double keys = hits + n.Now("hotrow_serve_row_cache_misses_total");
    absl::StrAppendFormat(out, "  cache of rows: %s of keys; %s/s read from the disk\n",
                          Percent(keys > 0 ? hits / keys : 0),
                          Bytes(n.Rate("hotrow_serve_row_read_bytes_total")));
  }
  const double behind = n.Now("hotrow_serve_newest_step") - n.Now("hotrow_serve_model_step");
  if (behind > 0 || n.Now("hotrow_serve_looks_failed_total") > 0) {
    absl::StrAppendFormat(out, "  BEHIND BY %s STEPS, %s looks refused what they found\n",
                          FormatCount(Whole(behind)),
                          FormatCount(Whole(n.Now("hotrow_serve_looks_failed_total"))));
  }
  std::string replies;
  for (const std::string& code : n.ValuesOf("hotrow_serve_replies_total", "code")) {
    absl::StrAppend(&replies, replies.empty() ? "" : ", ",
                    FormatCount(Whole(n.Growth("hotrow_serve_replies_total", {{"code", code}}))),
                    " of ", ForTerminal(code, kNameColumns));
  }
  if (!replies.empty()) absl::StrAppend(out, "  replies: ", replies, "\n");
}

void AppendRun(const MetricFamilies& metrics, const Numbers& n, std::string* out) {
  if (!n.Has("hotrow_run_info")) return;
  absl::StrAppend(out, InfoOf(metrics, "model"), " on the ", InfoOf(metrics, "device"), " over ",
                  InfoOf(metrics, "store"), ": ", TopStateOf(metrics).name);
  if (n.Now("hotrow_run_ranks") > 1) {
    absl::StrAppend(out, ", rank ", InfoOf(metrics, "rank"), " of ",
                    Whole(n.Now("hotrow_run_ranks")));
  }
  absl::StrAppendFormat(out, "\n  step %s, epoch %.3f, loss %.4f",
                        FormatCount(Whole(n.Now("hotrow_steps_total"))), n.Now("hotrow_epochs"),
                        n.Now("hotrow_training_loss"));
  if (n.Has("hotrow_validation_auc_ratio")) {
    absl::StrAppendFormat(out, ", validation AUC %.4f", n.Now("hotrow_validation_auc_ratio"));
  }
  const double steps = n.Growth("hotrow_step_seconds_count");
  double samples_rate = n.Rate("hotrow_samples_total");
  double steps_rate = n.Rate("hotrow_steps_total");
  if (metrics.contains("hotrow_step_seconds")) {
    // The rates of this process alone: the totals go on where a checkpoint ended, so their growth
    // from nothing would be that of the processes before, too.
    steps_rate = n.Rate("hotrow_step_seconds_count");
    const double all = n.Growth("hotrow_steps_total");
    samples_rate = all > 0 ? steps_rate * n.Growth("hotrow_samples_total") / all : 0;
  }
  absl::StrAppendFormat(out, "\n  %s samples/s, %s steps/s", Short(samples_rate),
                        Short(steps_rate));
  if (steps > 0) {
    absl::StrAppendFormat(out, ", %s a step", Millis(n.Growth("hotrow_step_seconds_sum") / steps));
    if (const double most = n.Quantile("hotrow_step_seconds", 0.99);
        most > 0 && std::isfinite(most)) {
      absl::StrAppendFormat(out, ", 99 %% within %s", Millis(most));
    }
  }
  absl::StrAppend(out, "\n");
  const double bad = n.Now("hotrow_non_finite_gradients_total") + n.Now("hotrow_divergences_total");
  if (bad > 0) absl::StrAppend(out, "  GRADIENTS OR LOSS ARE NOT FINITE\n");
}

void AppendLookups(const Numbers& n, std::string* out) {
  absl::StrAppendFormat(
      out, "  %s lookups/s, %s found in memory, %s of new keys; lookups waited %s a second\n",
      Short(n.Rate("hotrow_lookups_total")),
      Percent(n.Share("hotrow_memory_hits_total", "hotrow_lookups_total")),
      Percent(n.Share("hotrow_new_key_lookups_total", "hotrow_lookups_total")),
      Millis(n.Rate("hotrow_lookup_wait_seconds_total")));
}

void AppendTiers(const Numbers& n, std::string* out) {
  absl::StrAppendFormat(out, "\n  %-12s %9s %9s %12s %12s %12s %14s\n", "tier", "hit rate",
                        "distinct", "memory", "budget", "evicted/s", "written back/s");
  for (const std::string& tier : n.ValuesOf("hotrow_tier_memory_bytes", "tier")) {
    const Labels of = {{"tier", tier}};
    const bool has_lookups = n.Now("hotrow_tier_lookups_total", of) > 0;
    absl::StrAppendFormat(
        out, "  %-12s %9s %9s %12s %12s %12s %14s\n", ForTerminal(tier, 12),
        has_lookups ? Percent(n.Share("hotrow_tier_hits_total", "hotrow_tier_lookups_total", of))
                    : "-",
        Percent(n.Share("hotrow_tier_unique_hits_total", "hotrow_tier_unique_keys_total", of)),
        Bytes(n.Now("hotrow_tier_memory_bytes", of)),
        Bytes(n.Now("hotrow_tier_memory_budget_bytes", of)),
        Short(n.Rate("hotrow_tier_evictions_total", of)),
        Short(n.Rate("hotrow_tier_write_backs_total", of)));
  }
  if (!n.Has("hotrow_disk_bytes")) return;
  absl::StrAppendFormat(
      out, "  disk: %s/s read, %s/s written, amplification %.2f; %s of %s\n",
      Bytes(n.Rate("hotrow_disk_read_bytes_total")),
      Bytes(n.Rate("hotrow_disk_written_bytes_total")),
      n.Now("hotrow_disk_write_amplification_ratio"), Bytes(n.Now("hotrow_disk_bytes")),
      n.Now("hotrow_disk_budget_bytes") > 0 ? Bytes(n.Now("hotrow_disk_budget_bytes"))
                                            : "no limit");
  if (!n.Has("hotrow_disk_endurance_bytes")) return;
  const double written = n.Rate("hotrow_disk_written_bytes_total");
  absl::StrAppendFormat(out, "  endurance: %.3g %% used by this process",
                        100 * n.Now("hotrow_disk_endurance_used_ratio"));
  if (written > 0) {
    constexpr double kSecondsPerYear = 365.25 * 86400;
    absl::StrAppendFormat(out, "; at this rate a whole life takes %.3g years",
                          n.Now("hotrow_disk_endurance_bytes") / written / kSecondsPerYear);
  }
  absl::StrAppend(out, "\n");
}

void AppendTables(const Numbers& n, int64_t tables_max, std::string* out) {
  std::vector<std::string> tables = n.ValuesOf("hotrow_table_lookups_total", "table");
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < tables.size(); ++i) {
    order.emplace_back(-n.Growth("hotrow_table_lookups_total", {{"table", tables[i]}}), i);
  }
  std::sort(order.begin(), order.end());
  const auto shown =
      std::min<size_t>(order.size(), static_cast<size_t>(std::max<int64_t>(tables_max, 0)));
  if (shown == 0) return;
  const std::vector<std::string> tiers = n.ValuesOf("hotrow_table_misses_total", "tier");
  absl::StrAppend(out, "\n  ", Column("table"),
                  absl::StrFormat(" %12s %12s", "lookups/s", "distinct/s"));
  for (const std::string& tier : tiers) {
    absl::StrAppendFormat(out, " %16s", absl::StrCat(ForTerminal(tier, 10), " misses"));
  }
  absl::StrAppend(out, "\n");
  for (size_t i = 0; i < shown; ++i) {
    const std::string& table = tables[order[i].second];
    const Labels of = {{"table", table}};
    absl::StrAppendFormat(out, "  %s %12s %12s", Column(table),
                          Short(n.Rate("hotrow_table_lookups_total", of)),
                          Short(n.Rate("hotrow_table_unique_keys_total", of)));
    const double lookups = n.Growth("hotrow_table_lookups_total", of);
    for (const std::string& tier : tiers) {
      const double misses =
          n.Growth("hotrow_table_misses_total", {{"table", table}, {"tier", tier}});
      // Misses are counted some steps before their lookups.
      absl::StrAppendFormat(out, " %16s",
                            Percent(lookups > 0 ? std::min(misses / lookups, 1.0) : 0));
    }
    absl::StrAppend(out, "\n");
  }
  if (shown < order.size()) {
    absl::StrAppendFormat(out, "  and %d more tables\n", order.size() - shown);
  }
}

void AppendStages(const Numbers& n, std::string* out) {
  std::vector<std::pair<double, std::string>> stages;
  for (const std::string& stage : n.ValuesOf("hotrow_stage_seconds_total", "stage")) {
    const double share = n.Rate("hotrow_stage_seconds_total", {{"stage", stage}});
    if (share >= 0.0005) stages.emplace_back(-share, stage);
  }
  if (stages.empty()) return;
  std::sort(stages.begin(), stages.end());
  std::string line = "\n  time by stage:";
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::string item =
        absl::StrCat(" ", ForTerminal(stages[i].second, kNameColumns), " ",
                     Percent(-stages[i].first), i + 1 < stages.size() ? "," : "");
    if (line.size() + item.size() > 99) {
      absl::StrAppend(out, line, "\n");
      line = "   ";
    }
    absl::StrAppend(&line, item);
  }
  absl::StrAppend(out, line, "\n");
}

}  // namespace

absl::StatusOr<TopSource> ParseTopSource(const std::string& text) {
  TopSource source;
  std::string rest = text;
  const bool http = rest.starts_with("http://");
  if (http) {
    rest = rest.substr(7);
    if (const size_t slash = rest.find('/'); slash != std::string::npos) {
      source.server.path = rest.substr(slash);
      rest = rest.substr(0, slash);
    }
  }
  const size_t colon = rest.rfind(':');
  const std::string number = colon == std::string::npos ? rest : rest.substr(colon + 1);
  const bool digits =
      !number.empty() && number.size() <= 5 &&
      std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  // A path with a slash is a file, with any end.
  if (!digits || rest.find('/') != std::string::npos) {
    if (http || text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text,
                       "\" is neither a port, as 9400, nor ADDRESS:PORT, as "
                       "127.0.0.1:9400, nor a file of --metrics_file"));
    }
    source.file = text;
    return source;
  }
  if (!absl::SimpleAtoi(number, &source.server.port) || source.server.port < 1 ||
      source.server.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": a port lies between 1 and 65535"));
  }
  if (colon != std::string::npos && colon > 0) {
    source.server.address = rest.substr(0, colon);
    std::string& address = source.server.address;
    if (address.size() > 2 && address.front() == '[' && address.back() == ']') {
      address = address.substr(1, address.size() - 2);
    }
  }
  return source;
}

TopState TopStateOf(const MetricFamilies& metrics) {
  TopState state;
  const MetricFamilies none;
  const Numbers n(none, metrics, 0);
  for (const std::string& name : n.ValuesOf("hotrow_run_state", "state")) {
    if (n.Now("hotrow_run_state", {{"state", name}}) == 1)
      state.name = ForTerminal(name, kNameColumns);
  }
  state.unix_seconds = n.Now("hotrow_metrics_timestamp_seconds");
  state.start_seconds = n.Now("hotrow_run_start_timestamp_seconds");
  return state;
}

std::string TopScreen(const MetricFamilies& before, const MetricFamilies& now, double seconds,
                      int64_t tables_max) {
  const Numbers numbers(before, now, seconds);
  std::string out;
  AppendServer(numbers, &out);
  AppendRun(now, numbers, &out);
  if (numbers.Has("hotrow_lookups_total")) {
    AppendLookups(numbers, &out);
    AppendTiers(numbers, &out);
  }
  AppendTables(numbers, tables_max, &out);
  AppendStages(numbers, &out);
  if (out.empty()) out = "no numbers of hotrow yet\n";
  return out;
}

}  // namespace hotrow
