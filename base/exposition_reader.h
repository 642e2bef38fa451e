#ifndef HOTROW_BASE_EXPOSITION_READER_H_
#define HOTROW_BASE_EXPOSITION_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

// Reads the text of base/exposition.h.

namespace hotrow {

struct MetricSample {
  std::string name;  // of a histogram with its suffix
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct MetricFamily {
  std::string kind;  // "counter", "gauge", "histogram"; "untyped" where the text does not say
  std::string help;
  std::vector<MetricSample> samples;  // in the order of the text
};

using MetricFamilies = std::map<std::string, MetricFamily>;

// Reads the text back, of any writer of the format. Labels may be escaped, lines may have time
// stamps, which are dropped; a sample of a histogram belongs to the family of its name without
// suffix. The text has kExpositionBytesMax bytes at most.
// Errors: InvalidArgument, which names the line and what is wrong with it.
inline constexpr int64_t kExpositionBytesMax = int64_t{64} << 20;
absl::StatusOr<MetricFamilies> ParseExposition(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_BASE_EXPOSITION_READER_H_
