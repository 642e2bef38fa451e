#ifndef HOTROW_TOOLS_SERVE_BENCH_LOAD_H_
#define HOTROW_TOOLS_SERVE_BENCH_LOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/serve/bench_bodies.h"

namespace hotrow {

struct BenchLoadOptions {
  std::string address = "127.0.0.1";
  int32_t port = 0;
  std::string path;                    // "/v2/models/dlrm/infer"
  std::vector<int32_t> clients = {1};  // levels, one after another
  int64_t seconds_ms = 3000;           // of a level, at least 1
  int64_t warm_up_ms = 500;            // before each, not counted
  int64_t timeout_ms = 30'000;         // of a request

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// What so many clients got.
struct BenchLevel {
  int32_t clients = 0;
  double seconds = 0;
  int64_t requests = 0;             // that were answered with scores
  std::map<int, int64_t> refusals;  // by status
  std::string first_refusal;        // the text of one
  // Times of requests that were answered with scores, from the first byte sent to the last
  // received.
  double tp50_ms = 0, tp90_ms = 0, tp99_ms = 0, tp999_ms = 0, max_ms = 0;

  double qps() const { return seconds > 0 ? static_cast<double>(requests) / seconds : 0; }
};

// Sends requests from closed-loop clients, each over its own connection: the next request
// follows the reply to the last. Bodies are taken in turn, each client beginning at another.
// Quantiles are times of requests, without rounding.
//
// Errors: InvalidArgument (an option), Unavailable (nobody answers, or a connection ends), DataLoss
//         (no HTTP). A reply of another status than 200 is none.
absl::StatusOr<std::vector<BenchLevel>> RunBenchLoad(const BenchLoadOptions& options,
                                                     const std::vector<BenchBody>& bodies);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_BENCH_LOAD_H_
