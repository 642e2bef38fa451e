#ifndef HOTROW_BASE_EXPOSITION_H_
#define HOTROW_BASE_EXPOSITION_H_

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Numbers as the text that Prometheus reads: its exposition format, version 0.0.4.

namespace hotrow {

// The Content-Type of the text.
inline constexpr char kExpositionContentType[] = "text/plain; version=0.0.4; charset=utf-8";

enum class MetricKind { kCounter, kGauge, kHistogram };

// A label and its value. Values are any bytes: those that are not UTF-8 are written as U+FFFD.
using MetricLabel = std::pair<std::string_view, std::string_view>;

// ExpositionWriter writes families one after another, each with its samples.
//
// Use:     Family, then its samples; Take at the end. The families of one text have different
//          names, and so have the label sets of one family: a reader refuses a text that repeats
//          one. Names are ours, so a wrong one is a bug and stops the program.
// Threads: one at a time.
class ExpositionWriter {
 public:
  // common: labels of every sample, before its own; the views must outlive the writer.
  explicit ExpositionWriter(std::vector<MetricLabel> common = {}) : common_(std::move(common)) {}

  // Begins a family. name: [a-z_][a-z0-9_]*; that of a counter ends in _total, of others not.
  // help: one sentence, not empty.
  void Family(std::string_view name, MetricKind kind, std::string_view help);
  // A sample of the family. Counts are written in full, doubles so that they read back the same.
  void Sample(std::span<const MetricLabel> labels, int64_t value);
  void Sample(std::span<const MetricLabel> labels, double value);
  template <std::integral Count>
  void Sample(Count value) {
    Sample({}, static_cast<int64_t>(value));
  }
  void Sample(double value) { Sample({}, value); }
  // The samples of a histogram. counts has one number for each of `bounds`, which ascend, of the
  // values up to there and above the bound before, and one more for those above the last. sum: of
  // the values.
  void Buckets(std::span<const MetricLabel> labels, std::span<const double> bounds,
               std::span<const int64_t> counts, double sum);

  // The text. Nothing may follow.
  std::string Take() { return std::move(text_); }

 private:
  void Line(std::string_view suffix, std::span<const MetricLabel> labels, std::string_view value,
            const MetricLabel* last = nullptr);

  const std::vector<MetricLabel> common_;
  std::string text_;
  std::string name_;  // of the family
  MetricKind kind_ = MetricKind::kGauge;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_EXPOSITION_H_
