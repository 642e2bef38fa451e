#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/synthetic.h"

namespace hotrow {
namespace {

struct IntegerKey {
  const char* name;
  int64_t SyntheticOptions::*field;
  int64_t min;
  int64_t max;
  const char* meaning;
};
constexpr int64_t kMaxHotness = 65'535;  // a place in the bag has 16 bits of the counter
constexpr IntegerKey kIntegerKeys[] = {
    {"tables", &SyntheticOptions::tables, 1, 10'000, "number of tables, one feature each"},
    {"rows", &SyntheticOptions::rows, 1, int64_t{1} << 40, "ids per table"},
    {"dense", &SyntheticOptions::dense, 0, 10'000, "number of dense features"},
    {"shared", &SyntheticOptions::shared, 0, 10'000, "further features that look up table 0"},
    {"samples", &SyntheticOptions::samples, 1, int64_t{1} << 48, "training samples"},
    {"valid", &SyntheticOptions::valid, 0, int64_t{1} << 48, "validation samples"},
    {"test", &SyntheticOptions::test, 0, int64_t{1} << 48, "test samples"},
    {"drift", &SyntheticOptions::drift, 0, int64_t{1} << 40,
     "ids of each table that become its most popular ones in the course of the training samples, "
     "which then come in their order; 0: popularity stays"},
    {"seconds", &SyntheticOptions::seconds, 0, int64_t{1} << 36,
     "time from 1970 on that the training samples span evenly, which then come in their order; 0: "
     "they have no time"},
    {"resident", &SyntheticOptions::resident, 0, int64_t{1} << 24,
     "training samples drawn once, then used with other ids in every pass; 0: none"},
};
constexpr double kMaxZipf = 10;
constexpr char kZipfExpected[] = "a number in [0, 10]";
constexpr char kHotnessExpected[] =
    "a number such as 4 or a range such as 0-8, at least 1 at its upper end and at most 65535";
constexpr char kSeedExpected[] = "a whole number in [0, 2^64)";

absl::Status BadValue(std::string_view key, std::string_view found, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("--data=synthetic: key \"", std::string(key), "\": found \"", std::string(found),
                   "\", expected ", std::string(expected), "; ", SyntheticHelp()));
}

std::string IntegerExpected(const IntegerKey& key) {
  return absl::StrCat("a whole number in [", key.min, ", ", key.max,
                      "], with k, M or G for thousands, millions, billions");
}

// Digits and at most one of k, M, G; no sign. False: something else, or 2^63 and more.
bool ParseInteger(std::string_view text, int64_t* value) {
  int64_t unit = 1;
  if (!text.empty()) {
    if (text.back() == 'k' || text.back() == 'K') unit = 1'000;
    if (text.back() == 'm' || text.back() == 'M') unit = 1'000'000;
    if (text.back() == 'g' || text.back() == 'G') unit = 1'000'000'000;
    if (unit != 1) text.remove_suffix(1);
  }
  if (text.empty() || text.front() == '-') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() &&
         !__builtin_mul_overflow(*value, unit, value);
}

template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseHotness(std::string_view text, SyntheticOptions* options) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    if (!ParseInteger(text, &options->hotness_max)) return false;
    options->hotness_min = options->hotness_max;
    return true;
  }
  return ParseInteger(text.substr(0, dash), &options->hotness_min) &&
         ParseInteger(text.substr(dash + 1), &options->hotness_max);
}

std::string HotnessText(const SyntheticOptions& options) {
  if (options.hotness_min == options.hotness_max) return absl::StrCat(options.hotness_max);
  return absl::StrCat(options.hotness_min, "-", options.hotness_max);
}

absl::Status ParseOption(std::string_view key, std::string_view value, SyntheticOptions* options) {
  for (const IntegerKey& k : kIntegerKeys) {
    if (key != k.name) continue;
    if (!ParseInteger(value, &(options->*k.field))) {
      return BadValue(key, value, IntegerExpected(k));
    }
    // -1 means "not given" inside the struct, but no text reads as -1.
    return absl::OkStatus();
  }
  if (key == "zipf") {
    return ParseNumber(value, &options->zipf) ? absl::OkStatus()
                                              : BadValue(key, value, kZipfExpected);
  }
  if (key == "hotness") {
    return ParseHotness(value, options) ? absl::OkStatus() : BadValue(key, value, kHotnessExpected);
  }
  if (key == "seed") {
    return ParseNumber(value, &options->seed) ? absl::OkStatus()
                                              : BadValue(key, value, kSeedExpected);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--data=synthetic: unknown key \"", std::string(key), "\"; ", SyntheticHelp()));
}

}  // namespace

absl::Status SyntheticOptions::Validate() const {
  for (const IntegerKey& key : kIntegerKeys) {
    const int64_t value = this->*key.field;
    const bool held_out =
        key.field == &SyntheticOptions::valid || key.field == &SyntheticOptions::test;
    if (held_out && value == -1) continue;
    if (value < key.min || value > key.max) {
      return BadValue(key.name, absl::StrCat(value), IntegerExpected(key));
    }
  }
  if (!(zipf >= 0 && zipf <= kMaxZipf)) return BadValue("zipf", absl::StrCat(zipf), kZipfExpected);
  if (hotness_min < 0 || hotness_min > hotness_max || hotness_max < 1 ||
      hotness_max > kMaxHotness) {
    return BadValue("hotness", HotnessText(*this), kHotnessExpected);
  }
  if ((drift > 0 || seconds > 0) && resident > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data=synthetic: ", drift > 0 ? "drift" : "seconds",
                     " and resident exclude one another; leave one of them out"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SyntheticOptions> ParseSyntheticOptions(std::string_view text, uint64_t seed) {
  SyntheticOptions options;
  options.seed = seed;
  std::vector<std::string_view> seen;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || (comma != text.npos && comma + 1 == text.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--data=synthetic: found \"", std::string(comma + 1 == text.size() ? text : item),
          "\", expected key=value,...; ", SyntheticHelp()));
    }
    const std::string_view key = item.substr(0, equals);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--data=synthetic: key \"", std::string(key),
                                                     "\" is given twice; ", SyntheticHelp()));
    }
    seen.push_back(key);
    HOTROW_RETURN_IF_ERROR(ParseOption(key, item.substr(equals + 1), &options));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  HOTROW_RETURN_IF_ERROR(options.Validate());
  return options;
}

std::string SyntheticHelp() {
  const SyntheticOptions defaults;
  std::string help = "known keys:";
  for (const IntegerKey& key : kIntegerKeys) {
    const int64_t value = defaults.*key.field;
    absl::StrAppend(&help, " ", key.name, " (", key.meaning, ", default ",
                    value < 0 ? "a tenth of samples within [20k, 100k]" : absl::StrCat(value),
                    "),");
  }
  absl::StrAppend(&help, " zipf (exponent of the popularity of ids, 0 = uniform, default ",
                  defaults.zipf, "), hotness (ids per feature, such as 4, or uniform in a range ",
                  "such as 0-8, default ", HotnessText(defaults), "), seed (default --seed)");
  return help;
}

}  // namespace hotrow
