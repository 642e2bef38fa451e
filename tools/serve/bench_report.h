#ifndef HOTROW_TOOLS_SERVE_BENCH_REPORT_H_
#define HOTROW_TOOLS_SERVE_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/serve/bench_load.h"

namespace hotrow {

// A benchmark of a server, to be shown.
struct BenchReport {
  std::string server;   // "127.0.0.1:8000"
  std::string model;    // "dlrm, step 120"
  int64_t samples = 1;  // of a request
  // What else was asked of it: "26 features", "binary tensors".
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<BenchLevel> levels;
};

// A table, a line for each level.
std::string BenchText(const BenchReport& report);
// All numbers; docs/serving_http.md names the members.
std::string BenchJson(const BenchReport& report);
// One page without scripts: requests a second and times over the number of clients, and the table.
std::string BenchHtml(const BenchReport& report);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_BENCH_REPORT_H_
