#include "base/flag_set.h"
#include "base/flag_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace hotrow {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpColumn = 37;  // where the text starts; the longest flag fits before it
constexpr std::string_view kPresetFlag = "preset";
constexpr std::string_view kHelpFlag = "help";
constexpr std::string_view kPresets = "Presets";

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// Insertions, deletions and replacements that turn a into b (Levenshtein 1966).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// In lower case; empty: none.
std::string HelpTopic(const std::vector<std::pair<std::string, std::string>>& given) {
  const auto asked = std::find_if(given.begin(), given.end(),
                                  [](const auto& flag) { return flag.first == kHelpFlag; });
  return asked == given.end() ? std::string() : absl::AsciiStrToLower(asked->second);
}

// A word as a shell takes it for one argument.
std::string ShellQuoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_=:,./+@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

absl::Status TooManyBytes(int64_t bytes_max) {
  return absl::InvalidArgumentError(
      absl::StrCat("takes at most ", bytes_max, " bytes (", bytes_max >> 40, " TiB)"));
}

absl::StatusOr<std::vector<int32_t>> ParseSizes(std::string_view text) {
  constexpr int32_t kMaxSize = 1 << 20;  // a layer of a million units is a typing error
  std::vector<int32_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of("-,", begin), text.size());
    int32_t size = 0;
    if (!absl::SimpleAtoi(Absl(text.substr(begin, end - begin)), &size) || size < 1 ||
        size > kMaxSize) {
      return absl::InvalidArgumentError(absl::StrCat("takes layer sizes from 1 to ", kMaxSize,
                                                     " joined by - or commas, as in 512-256-16"));
    }
    sizes.push_back(size);
    begin = end + 1;
  }
  return sizes;
}

std::string RealRange(double min, double max) {
  constexpr double kNoLimit = 3e38;  // nearly as much as a float holds
  if (max > kNoLimit && min < -kNoLimit) return "that is finite";
  if (max > kNoLimit) return absl::StrCat("of at least ", min);
  if (min < -kNoLimit) return absl::StrCat("of at most ", max);
  return absl::StrCat("from ", min, " to ", max);
}

template <typename T>
FlagField RealField(T* field, double min, double max) {
  return {.hint = "X",
          .set =
              [=](std::string_view text) {
                double value = 0;
                if (!absl::SimpleAtod(Absl(text), &value) || !(value >= min && value <= max)) {
                  return absl::InvalidArgumentError(
                      absl::StrCat("takes a number ", RealRange(min, max)));
                }
                *field = static_cast<T>(value);
                return absl::OkStatus();
              },
          .get =
              [field] {
                char text[32];
                const char* const end = std::to_chars(text, text + sizeof(text), *field).ptr;
                double value = 0;
                std::from_chars(text, end, value);
                return FlagValue(value);
              }};
}

}  // namespace

std::string FlagText(const FlagValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  if (const auto* real = std::get_if<double>(&value)) {
    // The shortest text that reads back as this number.
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), *real).ptr);
  }
  return std::get<std::string>(value);
}

absl::Status FlagField::SetAs(std::string_view name, std::string_view text) const {
  const absl::Status status = set(text);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(name), "=", Absl(text), ": ", status.message()));
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(Absl(text));
  const size_t digits_end =
      std::min(std::string_view(lower).find_first_not_of("0123456789."), lower.size());
  std::string_view unit = std::string_view(lower).substr(digits_end);
  const absl::Status error = absl::InvalidArgumentError(
      "takes a number of bytes of at least 0, such as 4096, 64MiB (powers of 1024) or 1.5G (powers "
      "of 1000)");

  double scale = 1;
  if (!unit.empty() && unit != "b") {
    constexpr std::string_view kPrefixes = "kmgtpe";
    const size_t power = kPrefixes.find(unit[0]);
    const std::string_view rest = unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) {
      return error;
    }
    scale = std::pow(rest == "ib" ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  const absl::string_view digits = absl::string_view(lower).substr(0, digits_end);
  int64_t whole = 0;
  if (scale == 1 && absl::SimpleAtoi(digits, &whole)) {
    if (whole > kFlagBytesMax) return TooManyBytes(kFlagBytesMax);
    return whole;
  }
  double number = 0;
  if (digits.empty() || !absl::SimpleAtod(digits, &number)) return error;
  const double bytes = number * scale;
  if (!(bytes <= static_cast<double>(kFlagBytesMax))) return TooManyBytes(kFlagBytesMax);
  return static_cast<int64_t>(bytes);
}

std::vector<std::string> WrapText(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!line.empty() && !word.empty()) line += ' ';
    line += word;
    if (end < text.size() && text[end] == '\n') {
      lines.push_back(std::move(line));
      line.clear();
    }
    begin = end + 1;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string OneOf(const std::vector<std::string_view>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", Absl(words[i]));
  }
  return out;
}

namespace internal {

FlagField IntFlag(int64_t min, int64_t max, std::function<void(int64_t)> set,
                  std::function<FlagValue()> get) {
  return {.hint = "N",
          .set =
              [=](std::string_view text) {
                int64_t value = 0;
                if (!absl::SimpleAtoi(Absl(text), &value) || value < min || value > max) {
                  return absl::InvalidArgumentError(
                      max == INT64_MAX
                          ? absl::StrCat("takes a whole number of at least ", min)
                          : absl::StrCat("takes a whole number from ", min, " to ", max));
                }
                set(value);
                return absl::OkStatus();
              },
          .get = std::move(get),
          .min = min};
}

FlagField WordFlag(std::string_view hint, std::vector<std::string_view> words,
                   std::function<void(size_t word)> set, std::function<std::string_view()> get) {
  return {.hint = std::string(hint),
          .set =
              [=](std::string_view text) {
                const auto at = std::find(words.begin(), words.end(), text);
                if (at == words.end()) {
                  return absl::InvalidArgumentError(absl::StrCat("takes ", OneOf(words)));
                }
                set(static_cast<size_t>(at - words.begin()));
                return absl::OkStatus();
              },
          .get = [=] { return FlagValue(std::string(get())); }};
}

}  // namespace internal

FlagField RealFlag(double* field, double min, double max) { return RealField(field, min, max); }
FlagField RealFlag(float* field, double min, double max) { return RealField(field, min, max); }

FlagField StringFlag(std::string_view hint, std::string* field) {
  return {.hint = std::string(hint),
          .set =
              [field](std::string_view text) {
                *field = text;
                return absl::OkStatus();
              },
          .get = [field] { return FlagValue(*field); }};
}

FlagField SwitchFlag(bool* field) {
  return {.is_switch = true,
          .set =
              [field](std::string_view text) {
                if (text != "true" && text != "false") {
                  return absl::InvalidArgumentError("takes true or false");
                }
                *field = text == "true";
                return absl::OkStatus();
              },
          .get = [field] { return FlagValue(std::string(*field ? "true" : "false")); }};
}

FlagField SizesFlag(std::vector<int32_t>* field) {
  return {.hint = "N-N-...",
          .set =
              [field](std::string_view text) {
                HOTROW_ASSIGN_OR_RETURN(*field, ParseSizes(text));
                return absl::OkStatus();
              },
          .get = [field] { return FlagValue(absl::StrJoin(*field, "-")); }};
}

FlagField BytesFlag(int64_t* field, int64_t word_value, int64_t bytes_max) {
  return {.hint = "BYTES",
          .set =
              [=](std::string_view text) {
                if (text == "min" && word_value != kNoMinWord) {
                  *field = word_value;
                  return absl::OkStatus();
                }
                HOTROW_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text));
                if (bytes > bytes_max) return TooManyBytes(bytes_max);
                *field = bytes;
                return absl::OkStatus();
              },
          .get = [field] { return FlagValue(*field); },
          .min = 0,
          .word_value = word_value};
}

void FlagSet::Group(std::string_view title) {
  group_ = static_cast<size_t>(std::find(groups_.begin(), groups_.end(), title) - groups_.begin());
  if (group_ == groups_.size()) groups_.emplace_back(title);
}

void FlagSet::Add(std::string_view name, FlagField field, std::string_view help) {
  if (groups_.empty()) Group("Flags");
  std::string default_text = FlagText(field.get());
  flags_.push_back({.name = std::string(name),
                    .help = std::string(help),
                    .default_text = std::move(default_text),
                    .group = group_,
                    .field = std::move(field)});
}

void FlagSet::AddString(std::string_view name, std::string_view hint, std::string* field,
                        std::string_view help) {
  Add(name, StringFlag(hint, field), help);
}

void FlagSet::AddInt(std::string_view name, int64_t min, int64_t max, int64_t* field,
                     std::string_view help) {
  Add(name, IntFlag(field, min, max), help);
}

void FlagSet::AddReal(std::string_view name, double min, double max, double* field,
                      std::string_view help) {
  Add(name, RealFlag(field, min, max), help);
}

void FlagSet::AddBytes(std::string_view name, int64_t* field, std::string_view help,
                       int64_t word_value, int64_t bytes_max) {
  Add(name, BytesFlag(field, word_value, bytes_max), help);
}

void FlagSet::AddSizes(std::string_view name, std::vector<int32_t>* field, std::string_view help) {
  Add(name, SizesFlag(field), help);
}

void FlagSet::AddSwitch(std::string_view name, bool* field, std::string_view help) {
  Add(name, SwitchFlag(field), help);
}

void FlagSet::DescribeDefault(std::string_view text) { flags_.back().default_text = text; }

const FlagSet::Flag* FlagSet::Find(std::string_view name) const {
  const auto at = std::find_if(flags_.begin(), flags_.end(),
                               [name](const Flag& flag) { return flag.name == name; });
  return at == flags_.end() ? nullptr : &*at;
}

absl::Status FlagSet::UnknownFlag(std::string_view name) const {
  const Flag* nearest = nullptr;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;  // farther away it is no typing error
  for (const Flag& flag : flags_) {
    const size_t distance = EditDistance(name, flag.name);
    if (distance < least) {
      least = distance;
      nearest = &flag;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag --", Absl(name), "; ",
      nearest == nullptr ? std::string() : absl::StrCat("did you mean --", nearest->name, "? "),
      program_, " --help lists all flags"));
}

absl::Status FlagSet::Set(const Flag& flag, std::string_view value) const {
  HOTROW_RETURN_IF_ERROR(CheckUtf8Path(absl::StrCat("--", flag.name), value));
  return flag.field.SetAs(absl::StrCat("--", flag.name), value);
}

void FlagSet::AddPresets(std::vector<FlagPreset> presets) {
  presets_ = std::move(presets);
  std::vector<std::string> names;
  for (const FlagPreset& preset : presets_) names.push_back(preset.name);
  Add(kPresetFlag,
      {.hint = "NAME",
       .set = [](std::string_view) { return absl::OkStatus(); },  // Parse calls ApplyPreset
       .get = [preset = preset_] { return FlagValue(*preset); }},
      absl::StrCat("flags that reproduce a result, see below: ", absl::StrJoin(names, " or "),
                   ". Flags on the command line override it"));
}

absl::Status FlagSet::ApplyPreset(std::string_view name) {
  std::vector<std::string> names;
  for (const FlagPreset& preset : presets_) {
    names.push_back(preset.name);
    if (preset.name != name) continue;
    *preset_ = preset.name;
    for (const std::string& text : preset.flags) {
      const size_t equals = text.find('=');
      const Flag* const flag = Find(std::string_view(text).substr(2, equals - 2));
      if (flag == nullptr) return absl::InternalError(absl::StrCat("there is no flag ", text));
      HOTROW_RETURN_IF_ERROR(Set(*flag, std::string_view(text).substr(equals + 1)));
    }
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--", Absl(kPresetFlag), "=", Absl(name),
                                                 ": takes ", absl::StrJoin(names, " or ")));
}

absl::Status FlagSet::Parse(int argc, const char* const* argv) {
  // All are told apart before any is set, since a preset comes first wherever it stands.
  std::vector<std::pair<const Flag*, std::string_view>> given;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--" && i + 1 == argc) break;
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", Absl(argument),
                                                     "\"; flags are written --name=value (",
                                                     program_, " --help lists them)"));
    }
    const std::string_view body = argument.substr(argument[1] == '-' ? 2 : 1);
    const size_t equals = body.find('=');
    const std::string_view name = body.substr(0, equals);
    if (name == "help" || name == "h") {
      help_requested_ = true;
      if (equals != std::string_view::npos) given_.emplace_back(kHelpFlag, body.substr(equals + 1));
      continue;
    }
    const Flag* const flag = Find(name);
    if (flag == nullptr) return UnknownFlag(name);
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = body.substr(equals + 1);
    } else if (flag->field.is_switch) {
      value = "true";
    } else if (i + 1 < argc && std::string_view(argv[i + 1]).substr(0, 2) != "--") {
      value = argv[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->name, " needs a value: --", flag->name, "=", flag->field.hint));
    }
    given.emplace_back(flag, value);
  }
  for (const auto& [flag, value] : given) {
    if (flag->name != kPresetFlag) continue;
    if (!preset_->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag->name, "=", Absl(value), ": --",
                                                     flag->name, "=", *preset_,
                                                     " is given too; leave one of them out"));
    }
    HOTROW_RETURN_IF_ERROR(ApplyPreset(value));
  }
  for (const auto& [flag, value] : given) {
    HOTROW_RETURN_IF_ERROR(Set(*flag, value));
    given_.emplace_back(flag->name, value);
  }
  if (const std::string topic = HelpTopic(given_); !topic.empty() && Help().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--help=", topic,
        ": no group of flags has this name, and no flag has it in its own; groups: ",
        absl::AsciiStrToLower(absl::StrJoin(groups_, ", ")), "; ", program_, " --help lists all"));
  }
  return absl::OkStatus();
}

// All flags; with --help=TOPIC those of the group of this name, or else those with it in theirs.
std::string FlagSet::Help() const {
  const std::string topic = HelpTopic(given_);
  const auto is_topic = [&](std::string_view title) {
    return absl::AsciiStrToLower(Absl(title)) == topic;
  };
  const bool is_group = is_topic(kPresets) || std::any_of(groups_.begin(), groups_.end(), is_topic);
  const auto is_shown = [&](const Flag& flag) {
    return topic.empty() ||
           (is_group ? is_topic(groups_[flag.group]) : flag.name.find(topic) != std::string::npos);
  };
  std::string out;
  for (size_t group = 0; group < groups_.size(); ++group) {
    bool has_title = false;
    for (const Flag& flag : flags_) {
      if (flag.group != group || !is_shown(flag)) continue;
      if (!has_title) absl::StrAppend(&out, out.empty() ? "" : "\n", groups_[group], "\n");
      has_title = true;
      std::string line =
          absl::StrCat("  --", flag.name, flag.field.is_switch ? "" : "=", flag.field.hint);
      line.resize(std::max(kHelpColumn, line.size() + 1), ' ');
      std::string text = flag.help;
      if (!flag.default_text.empty()) absl::StrAppend(&text, " [", flag.default_text, "]");
      for (const std::string& part : WrapText(text, kHelpWidth - kHelpColumn)) {
        absl::StrAppend(&out, line, part, "\n");
        line.assign(kHelpColumn, ' ');
      }
    }
  }
  const bool has_presets = !presets_.empty() && (topic.empty() || is_topic(kPresets));
  if (has_presets) absl::StrAppend(&out, out.empty() ? "" : "\n", Absl(kPresets), "\n");
  for (const FlagPreset& preset : presets_) {
    if (!has_presets) break;
    absl::StrAppend(&out, "  --", Absl(kPresetFlag), "=", preset.name, "\n");
    for (const std::string& text : {preset.result, absl::StrJoin(preset.flags, " ")}) {
      for (const std::string& line : WrapText(text, kHelpWidth - 6)) {
        absl::StrAppend(&out, "      ", line, "\n");
      }
    }
  }
  constexpr size_t kFewGroups = 3;
  if (topic.empty() && groups_.size() > kFewGroups) {
    const std::string titles = absl::AsciiStrToLower(absl::StrJoin(groups_, ", "));
    const std::string text = absl::StrCat(
        "--help=TOPIC shows some of these flags: those of a group (", titles,
        presets_.empty() ? "" : ", presets", "), or those that have TOPIC in their names.");
    absl::StrAppend(&out, "\n", absl::StrJoin(WrapText(text, kHelpWidth), "\n"), "\n");
  }
  return out;
}

std::vector<std::pair<std::string, FlagValue>> FlagSet::Values() const {
  std::vector<std::pair<std::string, FlagValue>> values;
  values.reserve(flags_.size());
  for (const Flag& flag : flags_) values.emplace_back(flag.name, flag.field.get());
  return values;
}

std::vector<std::pair<std::string, std::string>> FlagSet::TextsOfGroup(
    std::string_view title) const {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Flag& flag : flags_) {
    if (groups_[flag.group] == title) texts.emplace_back(flag.name, FlagText(flag.field.get()));
  }
  return texts;
}

std::string FlagSet::CommandLineWith(std::string_view name, std::string_view value) const {
  std::string out = program_;
  for (const auto& [given_name, given_value] : given_) {
    if (given_name == name) continue;
    absl::StrAppend(&out, " ", ShellQuoted(absl::StrCat("--", given_name, "=", given_value)));
  }
  absl::StrAppend(&out, " ", ShellQuoted(absl::StrCat("--", Absl(name), "=", Absl(value))));
  return out;
}

}  // namespace hotrow
