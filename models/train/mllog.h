#ifndef HOTROW_MODELS_TRAIN_MLLOG_H_
#define HOTROW_MODELS_TRAIN_MLLOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hotrow {

// Writes the lines that MLPerf's tools read:
//
//   :::MLLOG {"namespace": "", "time_ms": ..., "event_type": ..., "key": ..., "value": ...,
//             "metadata": {...}}
//
// each on one line. time_ms is milliseconds since 1970; event_type is POINT_IN_TIME, INTERVAL_START
// or INTERVAL_END; keys are those of MLPerf's logging package, as far as it has them.
class MlLogger {
 public:
  using Value = std::variant<std::monostate, int64_t, double, std::string>;  // the first is null
  using Metadata = std::vector<std::pair<std::string, Value>>;

  // `print` gets each line, without its end.
  explicit MlLogger(std::function<void(std::string_view line)> print) : print_(std::move(print)) {}

  void Point(std::string_view key, const Value& value, const Metadata& metadata = {});
  void Start(std::string_view key, const Metadata& metadata = {});
  void End(std::string_view key, const Metadata& metadata = {});

 private:
  void Print(std::string_view event_type, std::string_view key, const Value& value,
             const Metadata& metadata);

  std::function<void(std::string_view)> print_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_MLLOG_H_
