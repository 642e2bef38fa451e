#include "base/exposition_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr size_t kShownBytes = 60;  // of a line, in an error

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
}
bool IsNamePart(char c) { return IsNameStart(c) || (c >= '0' && c <= '9'); }

// One line of a text, from left to right.
class LineReader {
 public:
  LineReader(std::string_view line, int64_t number) : line_(line), left_(line), number_(number) {}

  bool done() const { return left_.empty(); }
  std::string_view rest() const { return left_; }
  void SkipBlanks() {
    while (!left_.empty() && (left_[0] == ' ' || left_[0] == '\t')) left_.remove_prefix(1);
  }
  bool Take(char c) {
    if (left_.empty() || left_[0] != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  // Up to the next blank.
  std::string_view Word() {
    const size_t n = std::min(left_.find_first_of(" \t"), left_.size());
    const std::string_view word = left_.substr(0, n);
    left_.remove_prefix(n);
    return word;
  }
  absl::StatusOr<std::string> Name(const char* what) {
    size_t n = 0;
    while (n < left_.size() && (n == 0 ? IsNameStart(left_[n]) : IsNamePart(left_[n]))) ++n;
    if (n == 0) return Error(absl::StrCat(what, " is missing"));
    std::string name(left_.substr(0, n));
    left_.remove_prefix(n);
    return name;
  }
  // The value of a label, with its quotes.
  absl::StatusOr<std::string> Quoted() {
    if (!Take('"')) return Error("the value of a label is not in quotes");
    std::string out;
    while (!left_.empty()) {
      const char c = left_[0];
      left_.remove_prefix(1);
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (left_.empty()) break;
      const char escaped = left_[0];
      left_.remove_prefix(1);
      if (escaped != 'n' && escaped != '"' && escaped != '\\') {
        return Error("a label has an escape other than \\n, \\\" and \\\\");
      }
      out += escaped == 'n' ? '\n' : escaped;
    }
    return Error("the value of a label does not end");
  }
  absl::StatusOr<double> Number() {
    std::string_view word = Word();
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (word == "+Inf" || word == "Inf") return std::numeric_limits<double>::infinity();
    if (word == "-Inf") return -std::numeric_limits<double>::infinity();
    if (word.starts_with('+')) word.remove_prefix(1);
    double value = 0;
    const char* const end = word.data() + word.size();
    const std::from_chars_result got = std::from_chars(word.data(), end, value);
    if (word.empty() || got.ec != std::errc() || got.ptr != end)
      return Error("the value is no number");
    return value;
  }
  absl::Status Error(std::string_view what) const {
    std::string shown(line_.substr(0, kShownBytes));
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    return absl::InvalidArgumentError(
        absl::StrCat("line ", number_, ": ", std::string(what), ": ", shown));
  }

 private:
  const std::string_view line_;
  std::string_view left_;
  const int64_t number_;
};

std::string UnescapedHelp(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped =
        text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == 'n' || text[i + 1] == '\\');
    if (escaped) ++i;
    out += escaped && text[i] == 'n' ? '\n' : text[i];
  }
  return out;
}

// "# HELP name text", "# TYPE name kind"; other comments are skipped.
absl::Status ReadComment(LineReader* line, MetricFamilies* families) {
  line->SkipBlanks();
  const std::string_view word = line->Word();
  if (word != "HELP" && word != "TYPE") return absl::OkStatus();
  line->SkipBlanks();
  HOTROW_ASSIGN_OR_RETURN(const std::string name, line->Name("the name of a metric"));
  line->SkipBlanks();
  MetricFamily& family = (*families)[name];
  if (word == "HELP") {
    if (!family.help.empty()) return line->Error("a second HELP of a metric");
    family.help = UnescapedHelp(line->rest());
    return absl::OkStatus();
  }
  if (!family.kind.empty()) return line->Error("a second TYPE of a metric");
  if (!family.samples.empty()) return line->Error("TYPE comes after a sample of the metric");
  family.kind = std::string(line->rest());
  for (const char* const known : {"counter", "gauge", "histogram", "summary", "untyped"}) {
    if (family.kind == known) return absl::OkStatus();
  }
  return line->Error("an unknown TYPE");
}

// The family of a sample: that of its name, or of a histogram whose part it is.
MetricFamily& FamilyOf(const std::string& name, MetricFamilies* families) {
  if (families->contains(name)) return (*families)[name];
  for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
    if (!name.ends_with(suffix)) continue;
    const auto at = families->find(name.substr(0, name.size() - suffix.size()));
    if (at == families->end()) continue;
    if (at->second.kind == "histogram" || at->second.kind == "summary") return at->second;
  }
  return (*families)[name];
}

absl::Status ReadSample(LineReader* line, MetricFamilies* families) {
  MetricSample sample;
  HOTROW_ASSIGN_OR_RETURN(sample.name, line->Name("the name of a metric"));
  line->SkipBlanks();
  if (line->Take('{')) {
    line->SkipBlanks();
    while (!line->Take('}')) {
      HOTROW_ASSIGN_OR_RETURN(const std::string label, line->Name("the name of a label"));
      line->SkipBlanks();
      if (!line->Take('=')) return line->Error("a label has no value");
      line->SkipBlanks();
      HOTROW_ASSIGN_OR_RETURN(std::string value, line->Quoted());
      if (!sample.labels.emplace(label, std::move(value)).second) {
        return line->Error("a label is there twice");
      }
      line->SkipBlanks();
      const bool more = line->Take(',');
      line->SkipBlanks();
      if (!more && (line->done() || line->rest()[0] != '}')) {
        return line->Error("the labels do not end");
      }
    }
    line->SkipBlanks();
  }
  HOTROW_ASSIGN_OR_RETURN(sample.value, line->Number());
  line->SkipBlanks();
  if (!line->done()) {
    HOTROW_RETURN_IF_ERROR(line->Number().status());  // a time stamp
    line->SkipBlanks();
    if (!line->done()) return line->Error("something stands behind the value");
  }
  FamilyOf(sample.name, families).samples.push_back(std::move(sample));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MetricFamilies> ParseExposition(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kExpositionBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a text of metrics has ", text.size(),
                                                   " bytes; the most is ", kExpositionBytesMax));
  }
  MetricFamilies families;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    LineReader line(text.substr(0, end), ++number);
    if (end == text.size()) return line.Error("the last line is cut off");
    text.remove_prefix(end + 1);
    line.SkipBlanks();
    if (line.done()) continue;
    HOTROW_RETURN_IF_ERROR(line.Take('#') ? ReadComment(&line, &families)
                                          : ReadSample(&line, &families));
  }
  for (auto& [name, family] : families) {
    if (family.kind.empty()) family.kind = "untyped";
  }
  return families;
}

}  // namespace hotrow
