#ifndef HOTROW_MODELS_DATA_TIME_PARTS_H_
#define HOTROW_MODELS_DATA_TIME_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// Parts of a point in time as categorical features: clicks differ by hour and by day of the week.
enum class TimePart {
  kHour,     // 0 to 23
  kWeekday,  // 0 (Monday) to 6
  kWeekend,  // 1 on Saturday and Sunday, otherwise 0
  kDay,      // of the month, 1 to 31
  kMonth,    // 1 to 12
};

// Keys of the part lie below this number.
int64_t TimePartSize(TimePart part);

// Times lie in the years 0 to 9999: seconds since 1970, from here on and below that.
inline constexpr int64_t kUnixOfYear0 = -62'167'219'200;
inline constexpr int64_t kUnixOfYear10000 = 253'402'300'800;

// Seconds since 1970 as a date of UTC, "2014-10-21", or with the time of day behind it where that
// is not midnight: "2014-10-21 17:05:09".
std::string TimeText(int64_t unix_seconds);

// A length of time: a whole number of seconds above 0 as "90s", "30m", "12h" or "1d"; nullopt where
// the text is none. The text is in the largest unit that fits: "1d" of 24h.
std::optional<int64_t> ParseDuration(std::string_view text);
std::string DurationText(int64_t seconds);

struct PointInTime;  // models/data/time_parts.cc

// How a point in time is written: "iso8601" (2014-10-21, 2014-10-21T17:05:09.5+02:00, or with a
// blank), "unix" and "unix_ms" (whole seconds or milliseconds since 1970, UTC), or a pattern of
// digits as strptime takes it: %Y (four digits), %y (two; 69 to 99 are 19xx), %m, %d, %H, %M, %S
// (two each), %% and other characters, which stand for themselves. Parts are those
// of the clock that wrote the text: an offset from UTC is checked and not applied.
class TimeFormat {
 public:
  TimeFormat() = default;
  // InvalidArgument: it is none of these, names a part twice, or has no day.
  static absl::StatusOr<TimeFormat> Parse(std::string_view text);

  // The part's key; false: the text is not of this format, or there is no such day or time. One
  // without a time of day has hour 0.
  bool Key(std::string_view text, TimePart part, uint64_t* key) const;
  // Seconds since 1970, UTC; parts of one are left out. An offset is applied; text without one is
  // of UTC. False: as Key.
  bool Seconds(std::string_view text, int64_t* unix_seconds) const;
  // What messages ask for: `a time as "%y%m%d%H"`.
  std::string Expected() const;

  bool has_hour() const { return has_hour_; }
  const std::string& text() const { return text_; }  // as Parse takes it

 private:
  enum class Kind { kIso8601, kUnix, kUnixMs, kPattern };

  bool Read(std::string_view text, PointInTime* time) const;

  Kind kind_ = Kind::kIso8601;
  std::string text_ = "iso8601";
  bool has_hour_ = true;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TIME_PARTS_H_
