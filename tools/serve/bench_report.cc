#include "tools/serve/bench_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/plan/page_template.h"

namespace hotrow {

extern const char kBenchPage[];  // tools/serve/bench_page.html, compiled in

namespace {

using Json = nlohmann::ordered_json;

struct Quantile {
  const char* name;
  const char* colour;
  double BenchLevel::*value;
};
constexpr Quantile kQuantiles[] = {{"TP50", "--c1", &BenchLevel::tp50_ms},
                                   {"TP90", "--c0", &BenchLevel::tp90_ms},
                                   {"TP99", "--c2", &BenchLevel::tp99_ms},
                                   {"TP99.9", "--c3", &BenchLevel::tp999_ms}};

std::string RefusalsText(const BenchLevel& level) {
  std::string out;
  for (const auto& [status, count] : level.refusals) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", count, " x ", status);
  }
  return out.empty() ? "none" : out;
}

std::string Tenths(double value) { return absl::StrFormat("%.1f", value); }
std::string Millis(double value) {
  return absl::StrFormat("%.*f", value < 10 ? 3 : value < 100 ? 2 : 1, value);
}

// The box of a plot on the page.
constexpr double kLeft = 60, kRight = 850, kTop = 20, kBottom = 236;

// Positions of levels, all as far apart, and of values between 0 or a power of ten and `high`.
double XOf(size_t level, size_t levels) {
  const double share =
      levels < 2 ? 0.5 : static_cast<double>(level) / static_cast<double>(levels - 1);
  return kLeft + 20 + share * (kRight - kLeft - 40);
}

Json ClientsJson(const BenchReport& report) {
  Json out = Json::array();
  for (size_t i = 0; i < report.levels.size(); ++i) {
    out.push_back({{"x", Tenths(XOf(i, report.levels.size()))},
                   {"clients", absl::StrCat(report.levels[i].clients)}});
  }
  return out;
}

Json LineJson(const std::vector<std::pair<double, double>>& points, const char* colour) {
  std::string text;
  Json dots = Json::array();
  for (const auto& [x, y] : points) {
    absl::StrAppend(&text, Tenths(x), ",", Tenths(y), " ");
    dots.push_back({{"x", Tenths(x)}, {"y", Tenths(y)}, {"colour", colour}});
  }
  return {{"points", text}, {"colour", colour}, {"dots", std::move(dots)}};
}

// Requests a second, from 0 to a round number.
Json RatesJson(const BenchReport& report) {
  double high = 1;
  for (const BenchLevel& level : report.levels) high = std::max(high, level.qps());
  const double unit = std::pow(10, std::floor(std::log10(high)));
  const double step = high / unit > 5 ? 2 * unit : high / unit > 2 ? unit : unit / 2;
  const double top = std::ceil(high / step) * step;
  const auto y = [&](double value) { return kBottom - value / top * (kBottom - kTop); };
  Json grid = Json::array();
  for (double value = 0; value <= top + step / 2; value += step) {
    grid.push_back({{"y", Tenths(y(value))},
                    {"label_y", Tenths(y(value) + 4)},
                    {"text", absl::StrFormat("%.6g", value)}});
  }
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < report.levels.size(); ++i) {
    points.emplace_back(XOf(i, report.levels.size()), y(report.levels[i].qps()));
  }
  return {{"grid", std::move(grid)}, {"line", LineJson(points, "--c0")}};
}

// Times on a logarithmic axis of whole powers of ten.
Json TimesJson(const BenchReport& report) {
  double low = 1e9, high = 1e-3;
  for (const BenchLevel& level : report.levels) {
    if (level.requests == 0) continue;
    low = std::min(low, level.tp50_ms);
    high = std::max(high, level.tp999_ms);
  }
  const double first = std::floor(std::log10(std::clamp(low, 1e-3, high)));
  const double last = std::max(first + 1, std::ceil(std::log10(high)));
  const auto y = [&](double value) {
    const double share = (std::log10(std::max(value, 1e-6)) - first) / (last - first);
    return kBottom - std::clamp(share, 0.0, 1.0) * (kBottom - kTop);
  };
  Json grid = Json::array();
  for (double power = first; power <= last; ++power) {
    const double value = std::pow(10, power);
    grid.push_back({{"y", Tenths(y(value))},
                    {"label_y", Tenths(y(value) + 4)},
                    {"text", absl::StrFormat("%.6g ms", value)}});
  }
  Json lines = Json::array();
  // The labels at the right end lie over each other where the lines meet: bottom up, 15 apart.
  Json labels = Json::array();
  double above = kBottom + 30;
  for (const Quantile& quantile : kQuantiles) {
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < report.levels.size(); ++i) {
      if (report.levels[i].requests == 0) continue;
      points.emplace_back(XOf(i, report.levels.size()), y(report.levels[i].*quantile.value));
    }
    if (points.empty()) continue;
    above = std::min(points.back().second + 4, above - 15);
    labels.push_back({{"y", Tenths(above)}, {"name", quantile.name}, {"colour", quantile.colour}});
    lines.push_back(LineJson(points, quantile.colour));
  }
  return {{"grid", std::move(grid)}, {"lines", std::move(lines)}, {"labels", std::move(labels)}};
}

}  // namespace

std::string BenchText(const BenchReport& report) {
  std::string out =
      absl::StrCat(report.model, " at ", report.server, ", ", report.samples, " samples a request");
  for (const auto& [name, value] : report.facts) absl::StrAppend(&out, ", ", name, " ", value);
  absl::StrAppendFormat(&out, "\n%8s %10s %12s %9s %9s %9s %9s %9s  %s\n", "clients", "QPS",
                        "samples/s", "TP50 ms", "TP90 ms", "TP99 ms", "TP99.9 ms", "max ms",
                        "refused");
  for (const BenchLevel& level : report.levels) {
    absl::StrAppendFormat(&out, "%8d %10.1f %12.0f %9s %9s %9s %9s %9s  %s\n", level.clients,
                          level.qps(), level.qps() * static_cast<double>(report.samples),
                          Millis(level.tp50_ms), Millis(level.tp90_ms), Millis(level.tp99_ms),
                          Millis(level.tp999_ms), Millis(level.max_ms), RefusalsText(level));
  }
  return out;
}

std::string BenchJson(const BenchReport& report) {
  Json levels = Json::array();
  for (const BenchLevel& level : report.levels) {
    Json refusals = Json::object();
    for (const auto& [status, count] : level.refusals) refusals[absl::StrCat(status)] = count;
    levels.push_back({{"clients", level.clients},
                      {"seconds", level.seconds},
                      {"requests", level.requests},
                      {"qps", level.qps()},
                      {"samples_per_second", level.qps() * static_cast<double>(report.samples)},
                      {"tp50_ms", level.tp50_ms},
                      {"tp90_ms", level.tp90_ms},
                      {"tp99_ms", level.tp99_ms},
                      {"tp99.9_ms", level.tp999_ms},
                      {"max_ms", level.max_ms},
                      {"refusals", std::move(refusals)}});
  }
  Json facts = Json::object();
  for (const auto& [name, value] : report.facts) facts[name] = value;
  return Json{{"server", report.server},
              {"model", report.model},
              {"samples", report.samples},
              {"facts", std::move(facts)},
              {"levels", std::move(levels)}}
             .dump(2) +
         "\n";
}

std::string BenchHtml(const BenchReport& report) {
  Json facts = Json::array();
  for (const auto& [name, value] : report.facts) {
    facts.push_back({{"name", name}, {"value", value}});
  }
  Json rows = Json::array();
  for (const BenchLevel& level : report.levels) {
    rows.push_back({{"clients", absl::StrCat(level.clients)},
                    {"qps", Tenths(level.qps())},
                    {"samples", Tenths(level.qps() * static_cast<double>(report.samples))},
                    {"tp50", Millis(level.tp50_ms)},
                    {"tp90", Millis(level.tp90_ms)},
                    {"tp99", Millis(level.tp99_ms)},
                    {"tp999", Millis(level.tp999_ms)},
                    {"max", Millis(level.max_ms)},
                    {"refused", RefusalsText(level)}});
  }
  return FillPage(kBenchPage, {{"model", report.model},
                               {"server", report.server},
                               {"samples", absl::StrCat(report.samples)},
                               {"facts", std::move(facts)},
                               {"clients", ClientsJson(report)},
                               {"rates", RatesJson(report)},
                               {"times", TimesJson(report)},
                               {"rows", std::move(rows)}});
}

}  // namespace hotrow
