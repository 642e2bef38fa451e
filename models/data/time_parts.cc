#include "models/data/time_parts.h"

#include <charconv>
#include <ctime>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/json/quote.h"

namespace hotrow {

struct PointInTime {
  int64_t year = 1970;
  int32_t month = 1;
  int32_t day = 1;
  int32_t hour = 0;
  int32_t minute = 0;
  int32_t second = 0;
  int32_t offset_seconds = 0;           // of the clock from UTC
  std::optional<int64_t> unix_seconds;  // of texts that say it; their year counts modulo 400
};

namespace {

constexpr int64_t kDaySeconds = 86'400;
constexpr int64_t kThursday = 3;  // 1970-01-01, with Monday as 0
constexpr std::string_view kDirectives = "YymdHMS";
// The largest first.
constexpr std::pair<char, int64_t> kUnits[] = {
    {'d', kDaySeconds}, {'h', 3600}, {'m', 60}, {'s', 1}};

bool IsLeap(int64_t year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

int32_t DaysOfMonth(int64_t year, int32_t month) {
  constexpr int32_t kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  return month == 2 && IsLeap(year) ? 29 : kDays[month - 1];
}

// Days since 1970-01-01 of a date from year 0 on.
int64_t DaysSince1970(const PointInTime& time) {
  int64_t days = time.day - 1;
  for (int32_t month = 1; month < time.month; ++month) days += DaysOfMonth(time.year, month);
  const int64_t before = time.year + 399;  // years 1 to year - 1, shifted by 400 to be positive
  const int64_t leaps = before / 4 - before / 100 + before / 400;
  return days + 365 * (time.year + 400) + leaps - 865'624;
}

// The month and day of a number of days since 1970-01-01.
void FromDays(int64_t days, PointInTime* time) {
  // 400 years have the same number of days wherever they begin.
  constexpr int64_t kDaysOf400Years = 146'097;
  int64_t rest = days % kDaysOf400Years;
  if (rest < 0) rest += kDaysOf400Years;
  time->year = 1970;
  while (rest >= (IsLeap(time->year) ? 366 : 365)) rest -= IsLeap(time->year++) ? 366 : 365;
  time->month = 1;
  while (rest >= DaysOfMonth(time->year, time->month)) {
    rest -= DaysOfMonth(time->year, time->month++);
  }
  time->day = static_cast<int32_t>(rest) + 1;
}

// A second of 60 is a leap second.
bool IsValid(const PointInTime& time) {
  return time.month >= 1 && time.month <= 12 && time.day >= 1 &&
         time.day <= DaysOfMonth(time.year, time.month) && time.hour <= 23 && time.minute <= 59 &&
         time.second <= 60;
}

// Takes `count` digits from the front of the text.
template <typename T>
bool TakeDigits(std::string_view* text, size_t count, T* value) {
  if (text->size() < count) return false;
  T sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto digit = static_cast<unsigned>((*text)[i]) - '0';
    if (digit > 9) return false;
    sum = static_cast<T>(10 * sum + static_cast<T>(digit));
  }
  text->remove_prefix(count);
  *value = sum;
  return true;
}
bool TakeCharacter(std::string_view* text, std::string_view any_of) {
  if (text->empty() || any_of.find(text->front()) == std::string_view::npos) return false;
  text->remove_prefix(1);
  return true;
}

// Z, +02:00, +0200 or +02; or nothing.
bool TakeOffset(std::string_view* text, int32_t* seconds) {
  if (text->empty() || TakeCharacter(text, "Zz")) return true;
  const int32_t sign = text->front() == '-' ? -1 : 1;
  int32_t hours = 0;
  int32_t minutes = 0;
  if (!TakeCharacter(text, "+-") || !TakeDigits(text, 2, &hours) || hours > 23) return false;
  *seconds = sign * 3600 * hours;
  if (text->empty()) return true;
  TakeCharacter(text, ":");
  if (!TakeDigits(text, 2, &minutes) || minutes > 59) return false;
  *seconds += sign * 60 * minutes;
  return true;
}

bool ParseIso(std::string_view text, PointInTime* time) {
  if (!TakeDigits(&text, 4, &time->year)) return false;
  const bool dashes = TakeCharacter(&text, "-");
  if (!TakeDigits(&text, 2, &time->month)) return false;
  if (dashes != TakeCharacter(&text, "-") || !TakeDigits(&text, 2, &time->day)) return false;
  if (text.empty()) return true;
  if (!TakeCharacter(&text, "Tt ") || !TakeDigits(&text, 2, &time->hour)) return false;
  const bool colons = TakeCharacter(&text, ":");
  if (!TakeDigits(&text, 2, &time->minute)) {
    return !colons && TakeOffset(&text, &time->offset_seconds) && text.empty();
  }
  const bool seconds = colons ? TakeCharacter(&text, ":")
                              : !text.empty() && text.front() >= '0' && text.front() <= '9';
  if (seconds) {
    if (!TakeDigits(&text, 2, &time->second)) return false;
    if (TakeCharacter(&text, ".,")) {
      int32_t digit = 0;
      if (!TakeDigits(&text, 1, &digit)) return false;
      while (TakeDigits(&text, 1, &digit)) continue;
    }
  }
  return TakeOffset(&text, &time->offset_seconds) && text.empty();
}

bool ParsePattern(std::string_view pattern, std::string_view text, PointInTime* time) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      if (!TakeCharacter(&text, pattern.substr(i, 1))) return false;
      continue;
    }
    bool good = true;
    switch (pattern[++i]) {
      case 'Y':
        good = TakeDigits(&text, 4, &time->year);
        break;
      case 'y':
        good = TakeDigits(&text, 2, &time->year);
        time->year += time->year >= 69 ? 1900 : 2000;
        break;
      case 'm':
        good = TakeDigits(&text, 2, &time->month);
        break;
      case 'd':
        good = TakeDigits(&text, 2, &time->day);
        break;
      case 'H':
        good = TakeDigits(&text, 2, &time->hour);
        break;
      case 'M':
        good = TakeDigits(&text, 2, &time->minute);
        break;
      case 'S':
        good = TakeDigits(&text, 2, &time->second);
        break;
      default:
        good = TakeCharacter(&text, "%");
        break;
    }
    if (!good) return false;
  }
  return text.empty();
}

// Whole seconds or milliseconds; pandas writes those of a column with gaps as 978300760.0. Parts of
// one are left out, towards the past: -1.5 lies in second -2.
bool ParseUnix(std::string_view text, int64_t per_second, PointInTime* time) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc()) return false;
  std::string_view rest(result.ptr, static_cast<size_t>(end - result.ptr));
  if (!rest.empty()) {
    if (!TakeCharacter(&rest, ".") || rest.empty()) return false;
    bool whole = true;
    for (int32_t digit = 0; !rest.empty(); whole = whole && digit == 0) {
      if (!TakeDigits(&rest, 1, &digit)) return false;
    }
    if (!whole && text.front() == '-') {
      if (value == std::numeric_limits<int64_t>::min()) return false;
      --value;
    }
  }
  int64_t seconds = value / per_second;
  if (value % per_second < 0) --seconds;
  // Beyond them it is in another unit: milliseconds of our time are seconds of the year 49,000.
  if (seconds < kUnixOfYear0 || seconds >= kUnixOfYear10000) return false;
  time->unix_seconds = seconds;
  int64_t days = seconds / kDaySeconds;
  int64_t second = seconds % kDaySeconds;
  if (second < 0) {
    second += kDaySeconds;
    --days;
  }
  FromDays(days, time);
  time->hour = static_cast<int32_t>(second / 3600);
  time->minute = static_cast<int32_t>(second / 60 % 60);
  time->second = static_cast<int32_t>(second % 60);
  return true;
}

}  // namespace

int64_t TimePartSize(TimePart part) {
  switch (part) {
    case TimePart::kHour:
      return 24;
    case TimePart::kWeekday:
      return 7;
    case TimePart::kWeekend:
      return 2;
    case TimePart::kDay:
      return 32;
    case TimePart::kMonth:
      break;
  }
  return 13;
}

absl::StatusOr<TimeFormat> TimeFormat::Parse(std::string_view text) {
  TimeFormat format;
  format.text_ = text;
  if (text == "iso8601") return format;
  format.kind_ = text == "unix" ? Kind::kUnix : text == "unix_ms" ? Kind::kUnixMs : Kind::kPattern;
  if (format.kind_ != Kind::kPattern) return format;
  std::string seen;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') continue;
    const std::string_view directive = text.substr(++i, 1);
    if (directive == "%") continue;
    if (directive.empty() || kDirectives.find(directive) == std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "%", std::string(directive), " is not known; known: %Y %y %m %d %H %M %S %%"));
    }
    const bool year = directive == "Y" || directive == "y";
    const bool twice = seen.find(directive) != std::string::npos ||
                       (year && seen.find_first_of("Yy") != std::string::npos);
    if (twice) {
      return absl::InvalidArgumentError(absl::StrCat("%", std::string(directive), " twice"));
    }
    seen += directive;
  }
  const bool has_date = seen.find_first_of("Yy") != std::string::npos &&
                        seen.find('m') != std::string::npos && seen.find('d') != std::string::npos;
  if (!has_date) {
    return absl::InvalidArgumentError(
        "it has no date; expected \"iso8601\", \"unix\", \"unix_ms\", or a pattern with %Y or %y, "
        "%m and %d, such as \"%y%m%d%H\"");
  }
  format.has_hour_ = seen.find('H') != std::string::npos;
  return format;
}

std::optional<int64_t> ParseDuration(std::string_view text) {
  for (const auto& [letter, seconds] : kUnits) {
    if (text.empty() || text.back() != letter) continue;
    const char* const end = text.data() + text.size() - 1;
    int64_t value = 0;
    const auto result = std::from_chars(text.data(), end, value);
    const bool whole = result.ec == std::errc() && result.ptr == end && value > 0;
    if (!whole || __builtin_mul_overflow(value, seconds, &value)) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

std::string DurationText(int64_t seconds) {
  for (const auto& [letter, unit] : kUnits) {
    if (seconds % unit == 0) return absl::StrCat(seconds / unit, std::string(1, letter));
  }
  return absl::StrCat(seconds, "s");
}

std::string TimeText(int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm parts = {};
  if (::gmtime_r(&time, &parts) == nullptr) return absl::StrCat(unix_seconds, " s since 1970");
  std::string text =
      absl::StrFormat("%04d-%02d-%02d", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
  if (parts.tm_hour + parts.tm_min + parts.tm_sec == 0) return text;
  absl::StrAppendFormat(&text, " %02d:%02d:%02d", parts.tm_hour, parts.tm_min, parts.tm_sec);
  return text;
}

bool TimeFormat::Read(std::string_view text, PointInTime* time) const {
  const bool parsed = kind_ == Kind::kIso8601  ? ParseIso(text, time)
                      : kind_ == Kind::kUnix   ? ParseUnix(text, 1, time)
                      : kind_ == Kind::kUnixMs ? ParseUnix(text, 1000, time)
                                               : ParsePattern(text_, text, time);
  return parsed && IsValid(*time);
}

bool TimeFormat::Seconds(std::string_view text, int64_t* unix_seconds) const {
  PointInTime time;
  if (!Read(text, &time)) return false;
  const int64_t of_day = int64_t{3600} * time.hour + 60 * time.minute + time.second;
  *unix_seconds =
      time.unix_seconds.value_or(DaysSince1970(time) * kDaySeconds + of_day - time.offset_seconds);
  return true;
}

bool TimeFormat::Key(std::string_view text, TimePart part, uint64_t* key) const {
  PointInTime time;
  if (!Read(text, &time)) return false;
  const auto weekday = [&] {
    const int64_t rest = (DaysSince1970(time) + kThursday) % 7;
    return static_cast<uint64_t>(rest < 0 ? rest + 7 : rest);
  };
  switch (part) {
    case TimePart::kHour:
      *key = static_cast<uint64_t>(time.hour);
      break;
    case TimePart::kWeekday:
      *key = weekday();
      break;
    case TimePart::kWeekend:
      *key = weekday() >= 5 ? 1 : 0;
      break;
    case TimePart::kDay:
      *key = static_cast<uint64_t>(time.day);
      break;
    case TimePart::kMonth:
      *key = static_cast<uint64_t>(time.month);
      break;
  }
  return true;
}

std::string TimeFormat::Expected() const {
  if (kind_ == Kind::kUnix) {
    return "whole seconds since 1970, up to the year 9999 (\"unix_ms\" reads milliseconds)";
  }
  if (kind_ == Kind::kUnixMs) return "whole milliseconds since 1970, up to the year 9999";
  if (kind_ == Kind::kIso8601) return "a time as ISO 8601 writes it, such as 2014-10-21 17:05:09";
  return absl::StrCat("a time as ", QuoteForMessage(text_), " writes it");
}

}  // namespace hotrow
