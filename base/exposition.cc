#include "base/exposition.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/utf8.h"

namespace hotrow {
namespace {

bool IsOurName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// The length of the character of UTF-8 that `text` begins with; 0: it begins with none.
size_t CharacterBytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(text.size(), 4); ++n) {
    if (IsUtf8(text.substr(0, n))) return n;
  }
  return 0;
}

// A label's value between its quotes. A line feed would end the line.
void AppendEscaped(std::string_view value, std::string* out) {
  const bool whole = IsUtf8(value);
  for (size_t i = 0; i < value.size();) {
    const size_t n = whole ? 1 : CharacterBytes(value.substr(i));
    const char c = value[i];
    if (n == 0) {
      *out += "\xef\xbf\xbd";  // U+FFFD
    } else if (c == '\\') {
      *out += "\\\\";
    } else if (c == '"') {
      *out += "\\\"";
    } else if (c == '\n') {
      *out += "\\n";
    } else {
      out->append(value.substr(i, n));
    }
    i += std::max<size_t>(n, 1);
  }
}

// The shortest text that reads back as the same number.
std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string_view MetricKindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "untyped";
}

}  // namespace

// --- Writing

void ExpositionWriter::Family(std::string_view name, MetricKind kind, std::string_view help) {
  HOTROW_CHECK(IsOurName(name));
  HOTROW_CHECK(name.ends_with("_total") == (kind == MetricKind::kCounter));
  HOTROW_CHECK(!help.empty());
  HOTROW_CHECK(help.find_first_of("\n\\") == std::string_view::npos);
  name_ = name;
  kind_ = kind;
  text_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ");
  text_.append(name).append(" ").append(MetricKindName(kind)).append("\n");
}

void ExpositionWriter::Line(std::string_view suffix, std::span<const MetricLabel> labels,
                            std::string_view value, const MetricLabel* last) {
  HOTROW_CHECK(!name_.empty());
  text_.append(name_).append(suffix);
  char before = '{';
  const auto append = [&](const MetricLabel& label) {
    HOTROW_DCHECK(IsOurName(label.first));
    text_ += before;
    text_.append(label.first).append("=\"");
    AppendEscaped(label.second, &text_);
    text_ += '"';
    before = ',';
  };
  for (const MetricLabel& label : common_) append(label);
  for (const MetricLabel& label : labels) append(label);
  if (last != nullptr) append(*last);
  if (before == ',') text_ += '}';
  text_.append(" ").append(value).append("\n");
}

void ExpositionWriter::Sample(std::span<const MetricLabel> labels, int64_t value) {
  HOTROW_DCHECK(kind_ != MetricKind::kHistogram);
  Line("", labels, std::to_string(value));
}

void ExpositionWriter::Sample(std::span<const MetricLabel> labels, double value) {
  HOTROW_DCHECK(kind_ != MetricKind::kHistogram);
  Line("", labels, NumberText(value));
}

void ExpositionWriter::Buckets(std::span<const MetricLabel> labels, std::span<const double> bounds,
                               std::span<const int64_t> counts, double sum) {
  HOTROW_CHECK(kind_ == MetricKind::kHistogram);
  HOTROW_CHECK(counts.size() == bounds.size() + 1);
  int64_t up_to = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    up_to += counts[i];
    const std::string bound = i < bounds.size() ? NumberText(bounds[i]) : "+Inf";
    const MetricLabel le = {"le", bound};
    Line("_bucket", labels, std::to_string(up_to), &le);
  }
  Line("_sum", labels, NumberText(sum));
  Line("_count", labels, std::to_string(up_to));
}

}  // namespace hotrow
