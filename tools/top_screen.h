#ifndef HOTROW_TOOLS_TOP_SCREEN_H_
#define HOTROW_TOOLS_TOP_SCREEN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/exposition_reader.h"
#include "base/fetch_text.h"
#include "base/text_server.h"

namespace hotrow {

// Where `hotrow top` reads: a file, or a server.
struct TopSource {
  std::string file;  // empty: a server
  TextAddress server;
};

// "9400", "127.0.0.1:9400", "[::1]:9400", "http://127.0.0.1:9400/metrics", or the name of a file.
// Errors: InvalidArgument, which says what is legal.
absl::StatusOr<TopSource> ParseTopSource(const std::string& text);

// The numbers of a run that are read for control, whoever wrote them.
struct TopState {
  std::string name;          // "training"; empty: not told
  double unix_seconds = 0;   // that the numbers are of; 0: not told
  double start_seconds = 0;  // when the process began; 0: not told
  bool over() const { return name == "finished" || name == "failed"; }
};
TopState TopStateOf(const MetricFamilies& metrics);

// The screen: lines of at most 100 columns, for people. Rates are those between `before` and `now`,
// `seconds` apart; an empty `before`: since the process began. tables_max: so many tables, those
// with the most lookups. Names of tables lose the characters that a terminal would obey. What a
// text does not have is left out: texts of other trainers have what MetricsText of a collection
// says (embedding/stats.h).
std::string TopScreen(const MetricFamilies& before, const MetricFamilies& now, double seconds,
                      int64_t tables_max);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_TOP_SCREEN_H_
