#include "models/train/report.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "embedding/stats_fields.h"
#include "models/data/time_parts.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }
double Millis(int64_t nanos) { return 1e-6 * static_cast<double>(nanos); }

// null: there were no samples, as where there is no such split.
Json MetricsJson(const CtrMetrics& metrics) {
  if (metrics.samples == 0) return nullptr;
  return {{"auc", metrics.auc},
          {"logloss", metrics.logloss},
          {"ne", metrics.ne},
          {"calibration", metrics.calibration}};
}

// With the AUC of the data's own probabilities, where they have them.
Json MetricsJson(const CtrMetrics& metrics, double best_auc) {
  Json json = MetricsJson(metrics);
  if (best_auc > 0) json["best_auc"] = best_auc;
  return json;
}

Json WindowsJson(const TrainReport& report) {
  Json json = Json::array();
  for (size_t k = 0; k < report.windows.size(); ++k) {
    const TrainedWindow& window = report.windows[k];
    Json& one = json.emplace_back();
    one["begin"] = TimeText(window.number * report.window_seconds);
    one["empty_before"] = EmptyBefore(report.windows, k);
    one["samples"] = window.samples;
    one["valid"] = MetricsJson(window.valid, window.best_auc);
    for (size_t task = 0; task < window.valid_tasks.size() && task < report.tasks.size(); ++task) {
      one["tasks"].push_back(
          {{"label", report.tasks[task].label}, {"valid", MetricsJson(window.valid_tasks[task])}});
    }
    one["train"] = nullptr;
    if (static_cast<int64_t>(k) < report.epochs) one["train"] = {{"logloss", window.train_logloss}};
  }
  return json;
}

// The counts by their names, in their order. Rates take the place of what they are made of.
Json TierJson(const TierStats& tier) {
  Json json = {{"name", tier.name}};
  for (const StatsField<TierStats>& field : TierStatsFields()) {
    if (field.count == &TierStats::unique_keys || field.count == &TierStats::unique_hits) continue;
    if (field.count == &TierStats::lookup_hits) {
      json["unique_hit_rate"] =
          Ratio(static_cast<double>(tier.unique_hits), static_cast<double>(tier.unique_keys));
      json["hit_rate"] =
          Ratio(static_cast<double>(tier.lookup_hits), static_cast<double>(tier.lookups));
    } else if (field.count == &TierStats::payload_bytes_written) {
      json["write_amplification"] = tier.write_amplification;
    } else {
      json[field.name] = tier.*field.count;
    }
  }
  return json;
}

Json CurveJson(const MissRatioCurve& curve) {
  Json points = Json::array();
  for (const MissRatioCurve::Point& point : curve.points) {
    points.push_back({{"size", point.size},
                      {"hit_rate", point.hit_rate},
                      {"fraction", point.fraction},
                      {"error", point.error}});
  }
  return {{"distinct", std::llround(curve.distinct)},
          {"accesses", curve.accesses},
          {"points", std::move(points)},
          {"sample_rate", curve.sample_rate},
          {"memory_bytes", curve.memory_bytes}};
}

// As `hotrow trace mrc --json` prints it.
Json CurvesJson(const MissRatioCurves& curves) {
  Json json = CurveJson(curves.all);
  json["policy"] = "lru";
  json["tables"] = Json::array();
  for (const MissRatioCurve& curve : curves.tables) {
    Json entry = {{"name", curve.name}};
    entry.update(CurveJson(curve));
    json["tables"].push_back(std::move(entry));
  }
  return json;
}

// The stages that make up a step. Others (such as "gather") run inside one of these or beside it.
constexpr std::array<std::string_view, 8> kStepStages = {
    "data", "prefetch", "lookup", "forward", "loss", "backward", "update", "dense_update"};

// "key    value   remark", the columns of the summary.
void AppendRow(std::string* out, std::string_view key, std::string_view value,
               std::string_view remark) {
  absl::StrAppendFormat(out, "  %-16s %12s  %s\n", std::string(key), std::string(value),
                        std::string(remark));
}

void AppendQuality(const TrainReport& report, std::string* out) {
  if (report.test.samples > 0) {
    std::string best;
    if (report.best_auc > 0) {
      best = absl::StrFormat("best possible %.4f, gap %.4f", report.best_auc,
                             report.best_auc - report.test.auc);
    }
    if (report.best_epoch > 0) {
      best = absl::StrFormat("at the best validation, epoch %d, step %s%s%s", report.best_epoch,
                             FormatCount(report.best_step), best.empty() ? "" : "; ", best);
    }
    AppendRow(out, "test AUC", FormatMetric(report.test.auc), best);
    AppendRow(out, "test logloss", absl::StrFormat("%.4f", report.test.logloss),
              absl::StrFormat("NE %s, calibration %s", FormatMetric(report.test.ne),
                              FormatMetric(report.test.calibration, 3)));
  } else {
    AppendRow(out, "test AUC", "-", "not evaluated");
  }
  for (const TrainReport::Task& task : report.tasks) {
    if (task.test.samples == 0) break;
    AppendRow(
        out, absl::StrCat("  ", task.label), FormatMetric(task.test.auc),
        absl::StrFormat("logloss %.4f, NE %s, calibration %s%s", task.test.logloss,
                        FormatMetric(task.test.ne), FormatMetric(task.test.calibration, 3),
                        task.valid.samples == 0
                            ? std::string()
                            : absl::StrCat("; validation AUC ", FormatMetric(task.valid.auc))));
  }
  AppendRow(out, "train logloss", absl::StrFormat("%.4f", report.train_logloss),
            report.valid.samples == 0
                ? std::string()
                : absl::StrFormat("validation AUC %s, logloss %.4f", FormatMetric(report.valid.auc),
                                  report.valid.logloss));
}

void AppendWindows(const TrainReport& report, std::string* out) {
  double sum = 0;
  int64_t judged = 0;
  for (const TrainedWindow& window : report.windows) {
    if (window.valid.samples == 0 || std::isnan(window.valid.auc)) continue;
    sum += window.valid.auc;
    ++judged;
  }
  if (judged == 0) return;
  AppendRow(
      out, "windows", FormatCount(std::ssize(report.windows)),
      absl::StrFormat("of %s; AUC of the next one, not yet trained: %.4f in the mean",
                      DurationText(report.window_seconds), sum / static_cast<double>(judged)));
}

void AppendSpeed(const TrainReport& report, std::string* out) {
  AppendRow(
      out, "samples/s", FormatCount(static_cast<int64_t>(report.samples_per_second())),
      absl::StrFormat("%s samples in %s steps, %.1f s of training", FormatCount(report.samples),
                      FormatCount(report.steps), report.train_seconds));
  AppendRow(out, "step", absl::StrFormat("%.1f ms", report.step_ms_p50),
            absl::StrFormat("median; 99 %% within %.1f ms; longest %.1f ms", report.step_ms_p99,
                            report.step_ms_max));
  if (!report.unfused_products.empty()) {
    AppendRow(out, "products", FormatCount(static_cast<int64_t>(report.unfused_products.size())),
              absl::StrCat("take a kernel more, the first: ", report.unfused_products.front()));
  }
  if (!report.has_digest()) return;
  AppendRow(out, "rows", FormatCount(report.rows()),
            absl::StrFormat("in %d tables, %s; %s unique keys a step", report.digest.tables.size(),
                            FormatBytes(report.row_bytes()),
                            FormatCount(report.tables.unique_keys /
                                        std::max<int64_t>(report.tables.steps, 1))));
}

void AppendTiers(const TrainReport& report, std::string* out) {
  absl::StrAppendFormat(out, "\n  %-10s %9s %9s %12s %12s %14s\n", "tier", "hit rate", "unique",
                        "used", "budget", "evictions");
  for (const TierStats& tier : report.tables.tiers) {
    absl::StrAppendFormat(
        out, "  %-10s %7.2f %% %7.2f %% %12s %12s %14s\n", tier.name,
        100 * Ratio(static_cast<double>(tier.lookup_hits), static_cast<double>(tier.lookups)),
        100 * Ratio(static_cast<double>(tier.unique_hits), static_cast<double>(tier.unique_keys)),
        FormatBytes(tier.used_bytes), FormatBytes(tier.budget_bytes), FormatCount(tier.evictions));
  }
  for (const TierStats& tier : report.tables.tiers) {
    if (tier.disk_budget_bytes == 0) continue;
    absl::StrAppendFormat(
        out, "  %-10s %s of %s on disk%s; %s transfers, %s read, %s written, amplification %.2f\n",
        "", FormatBytes(tier.disk_used_bytes), FormatBytes(tier.disk_budget_bytes),
        tier.snapshot_bytes > 0
            ? absl::StrCat(", ", FormatBytes(tier.snapshot_bytes), " for checkpoints alone")
            : std::string(),
        FormatCount(tier.ios), FormatBytes(tier.bytes_read), FormatBytes(tier.bytes_written),
        tier.write_amplification);
  }
  if (report.tables.lookup_waits > 0) {
    absl::StrAppendFormat(out, "  %-10s %s lookups waited for rows, %.1f s in all\n", "",
                          FormatCount(report.tables.lookup_waits),
                          1e-3 * Millis(report.tables.lookup_wait_ns));
  }
}

void AppendCheckpoints(const TrainReport& report, std::string* out) {
  const CheckpointStats& stats = report.checkpoints;
  if (stats.count == 0) return;
  std::string text = absl::StrFormat(
      "training paused %.1f ms at most, %.1f ms in the mean; committed within %.2f s; %s in all",
      Millis(stats.pause_ns_max), Ratio(Millis(stats.pause_ns), static_cast<double>(stats.count)),
      1e-3 * Millis(stats.commit_ns_max), FormatBytes(stats.bytes));
  if (stats.early > 0) {
    absl::StrAppendFormat(&text, "; %d early to free disk space", stats.early);
  }
  absl::StrAppend(out, "\n");
  AppendRow(out, "checkpoints", FormatCount(stats.count), text);
}

void AppendStages(const TrainReport& report, std::string* out) {
  if (report.train_seconds <= 0) return;
  double rest = 100;
  absl::StrAppend(out, "\n  time by stage    ");
  for (const std::string_view name : kStepStages) {
    for (const TraceRecorder::StageTotal& stage : report.stages) {
      if (stage.name != name) continue;
      const double percent = stage.ms / report.train_seconds / 10;
      rest -= percent;
      absl::StrAppendFormat(out, "%s %.0f %%, ", stage.name, percent);
    }
  }
  absl::StrAppendFormat(out, "other %.0f %%\n", std::max(rest, 0.0));
}

}  // namespace

int64_t EmptyBefore(const std::vector<TrainedWindow>& windows, size_t position) {
  return position == 0 ? 0 : windows[position].number - windows[position - 1].number - 1;
}

int64_t TrainReport::rows() const {
  int64_t rows = 0;
  for (const TableDigest& table : digest.tables) rows += table.rows;
  return rows;
}

int64_t TrainReport::row_bytes() const {
  int64_t bytes = 0;
  for (const TableDigest& table : digest.tables) bytes += table.rows * table.row_bytes;
  return bytes;
}

std::string ReportToJson(const TrainReport& report) {
  Json flags = Json::object();
  for (const auto& [name, value] : report.flags) {
    std::visit([&flags, &key = name](const auto& v) { flags[key] = v; }, value);
  }
  Json tables = Json::array();
  for (const TableDigest& table : report.digest.tables) {
    tables.push_back({{"name", table.name},
                      {"rows", table.rows},
                      {"dim", table.dim},
                      {"weights_precision", WeightsPrecisionName(report.weights_precision)},
                      {"row_bytes", table.row_bytes},
                      {"hash", table.hash.ToHex()}});
  }
  Json tiers = Json::array();
  for (const TierStats& tier : report.tables.tiers) tiers.push_back(TierJson(tier));
  Json stages = Json::array();
  for (const TraceRecorder::StageTotal& stage : report.stages) {
    stages.push_back({{"name", stage.name}, {"ms", stage.ms}});
  }
  Json json;
  json["model"] = report.model;
  json["flags"] = std::move(flags);
  json["samples"] = report.samples;
  json["steps"] = report.steps;
  json["epochs"] = report.epochs;
  json["resumed_from_step"] = report.resumed_from_step;
  json["best_epoch"] = report.best_epoch;
  json["best_step"] = report.best_step;
  json["threads"] = report.threads;
  json["device"] = report.device;
  json["world_size"] = report.world_size;
  json["seconds"] = report.seconds;
  json["train_seconds"] = report.train_seconds;
  json["cpu_seconds"] = report.cpu_seconds;
  json["samples_per_second"] = report.samples_per_second();
  json["step_ms"] = {
      {"p50", report.step_ms_p50}, {"p99", report.step_ms_p99}, {"max", report.step_ms_max}};
  json["train"] = {{"logloss", report.train_logloss}};
  json["graph_steps"] = report.graph_steps;
  json["fused_lookup_steps"] = report.fused_lookup_steps;
  json["unfused_products"] = report.unfused_products;
  if (report.loss_scale.has_value()) {
    json["loss_scale"] = {{"scale", report.loss_scale->scale},
                          {"skipped_steps", report.loss_scale->skipped_steps}};
  }
  json["valid"] = MetricsJson(report.valid);
  json["test"] = MetricsJson(report.test, report.best_auc);
  for (const TrainReport::Task& task : report.tasks) {
    json["tasks"].push_back({{"label", task.label},
                             {"valid", MetricsJson(task.valid)},
                             {"test", MetricsJson(task.test)}});
  }
  if (report.window_seconds > 0) json["windows"] = WindowsJson(report);
  if (report.has_digest()) {
    json["tables_hash"] = report.digest.hash.ToHex();
    json["dense_hash"] = report.dense_hash;
    json["rows"] = report.rows();
  }
  json["peak_rss_bytes"] = report.peak_rss_bytes;
  json["unique_keys_per_step"] = Ratio(static_cast<double>(report.tables.unique_keys),
                                       static_cast<double>(report.tables.steps));
  json["prefetch_waits"] = report.tables.prefetch_waits;
  json["lookup_waits"] = {{"count", report.tables.lookup_waits},
                          {"ms", Millis(report.tables.lookup_wait_ns)}};
  // Sent per step, by all ranks together; what stays on its rank does not count.
  const auto per_step = [&report](int64_t bytes) {
    return Ratio(static_cast<double>(bytes), static_cast<double>(report.tables.steps));
  };
  json["exchange"] = {
      {"ids_bytes", per_step(report.tables.exchange_ids_bytes)},
      {"forward_bytes", per_step(report.tables.exchange_forward_bytes)},
      {"backward_bytes", per_step(report.tables.exchange_backward_bytes)},
      {"dense_bytes", per_step(report.exchange_dense_bytes)},
      {"evaluation_bytes", report.tables.exchange_evaluation_bytes},
      {"wait_ms", Millis(report.tables.exchange_wait_ns)},
      {"buffer_bytes", report.tables.exchange_buffer_bytes},
      {"feedback_bytes", report.tables.exchange_feedback_bytes},
      {"feedback_hit_rate", Ratio(static_cast<double>(report.tables.exchange_feedback_hits),
                                  static_cast<double>(report.tables.exchange_feedback_keys))}};
  json["transfer"] = {{"host_bytes", report.tables.transfer_host_bytes},
                      {"device_bytes", report.tables.transfer_device_bytes}};
  json["device_index"] = {{"bytes", report.tables.device_index_bytes},
                          {"keys", report.tables.device_index_keys},
                          {"left_out", report.tables.device_index_left_out},
                          {"rows_read", report.tables.device_index_rows_read}};
  json["overflow_rows"] = report.tables.overflow_rows;
  json["initialised_rows"] = report.tables.initialised_rows;
  json["admission_rejected"] = report.tables.admission_rejected_keys;
  json["expired_rows"] = report.tables.aged_rows + report.tables.dropped_rows;
  if (report.has_digest()) json["tables"] = std::move(tables);
  json["tiers"] = std::move(tiers);
  json["stages"] = std::move(stages);
  if (report.mrc.has_value()) json["mrc"] = CurvesJson(*report.mrc);
  const CheckpointStats& checkpoints = report.checkpoints;
  json["checkpoints"] = {
      {"count", checkpoints.count},
      {"early", checkpoints.early},
      {"bytes", checkpoints.bytes},
      {"ms", Millis(checkpoints.commit_ns)},
      {"commit_ms", {{"max", Millis(checkpoints.commit_ns_max)}}},
      {"pause_ms",
       {{"max", Millis(checkpoints.pause_ns_max)},
        {"mean", Ratio(Millis(checkpoints.pause_ns), static_cast<double>(checkpoints.count))}}},
      {"resumed_step", report.resumed_step}};
  // A file name on the command line may hold any bytes; those that are not UTF-8 become U+FFFD.
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

namespace {

std::string SignalName(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

}  // namespace

std::string FormatSummary(const TrainReport& report) {
  std::string out;
  if (report.stopped_by_signal != 0) {
    absl::StrAppendFormat(&out, "Stopped by %s after step %s.\n\n",
                          SignalName(report.stopped_by_signal), FormatCount(report.steps));
  }
  if (report.stopped_early) {
    absl::StrAppendFormat(&out, "Stopped after epoch %d: validation no longer improved.\n\n",
                          report.epochs);
  }
  AppendQuality(report, &out);
  AppendWindows(report, &out);
  AppendSpeed(report, &out);
  AppendTiers(report, &out);
  AppendStages(report, &out);
  AppendCheckpoints(report, &out);
  return out;
}

std::string FormatCount(int64_t n) {
  const std::string digits = absl::StrCat(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool starts_group = i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-';
    if (starts_group) out += ',';
    out += digits[i];
  }
  return out;
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

int64_t PeakResidentBytes() {
  // Not getrusage: its maximum includes that of the program which started this one.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %lld kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

double ProcessCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace hotrow
