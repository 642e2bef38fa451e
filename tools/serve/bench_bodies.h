#ifndef HOTROW_TOOLS_SERVE_BENCH_BODIES_H_
#define HOTROW_TOOLS_SERVE_BENCH_BODIES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

struct BenchBodiesOptions {
  int64_t samples = 1;        // of a request; of candidates with user_features
  int64_t user_features = 0;  // the first features, given once: the others are the candidates'
  int64_t hotness = 1;        // keys of a feature of a sample
  int64_t keys = 1000;        // keys lie below it
  double zipf = 1.05;         // how popular few keys are; 0: all alike
  bool json = false;          // JSON instead of binary tensors
  uint64_t seed = 1;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// The body of an infer request, and how much of it is JSON.
struct BenchBody {
  std::string bytes;
  int64_t json_bytes = 0;
};

// Draws `count` requests for a model whose metadata a server gave. They wish `scores`, in the form
// of their inputs. Errors: InvalidArgument (an option, or metadata that are none of ours).
absl::StatusOr<std::vector<BenchBody>> DrawBenchBodies(std::string_view metadata,
                                                       const BenchBodiesOptions& options,
                                                       int64_t count);

// Requests with lines of a file, `samples` each, over and over.
std::vector<BenchBody> LineBenchBodies(const std::vector<std::string>& lines, int64_t samples,
                                       int64_t count);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_BENCH_BODIES_H_
