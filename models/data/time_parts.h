#ifndef HOTROW_MODELS_DATA_TIME_PARTS_H_
#define HOTROW_MODELS_DATA_TIME_PARTS_H_

#include <cstdint>
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

// How a point in time is written: "iso8601" (2014-10-21, 2014-10-21T17:05:09.5+02:00, or with a
// blank), "unix" and "unix_ms" (whole seconds or milliseconds since 1970, UTC), or a pattern of
// digits as strptime takes it: %Y (four digits), %y (two; 69 to 99 are 19xx), %m, %d, %H, %M, %S
// (two each), %% and other characters, which stand for themselves. An offset from UTC is checked
// and not applied: parts are those of the clock that wrote the text.
class TimeFormat {
 public:
  TimeFormat() = default;
  // InvalidArgument: it is none of these, names a part twice, or has no day.
  static absl::StatusOr<TimeFormat> Parse(std::string_view text);

  // The part's key; false: the text is not of this format, or there is no such day or time. One
  // without a time of day has hour 0.
  bool Key(std::string_view text, TimePart part, uint64_t* key) const;
  // What messages ask for: `a time as "%y%m%d%H"`.
  std::string Expected() const;

  bool has_hour() const { return has_hour_; }
  const std::string& text() const { return text_; }  // as Parse takes it

 private:
  enum class Kind { kIso8601, kUnix, kUnixMs, kPattern };

  Kind kind_ = Kind::kIso8601;
  std::string text_ = "iso8601";
  bool has_hour_ = true;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TIME_PARTS_H_
