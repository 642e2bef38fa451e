#ifndef HOTROW_MODELS_TRAIN_ACCESS_RECORDER_H_
#define HOTROW_MODELS_TRAIN_ACCESS_RECORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "cache/access_trace.h"
#include "cache/key_sampler.h"
#include "cache/miss_ratio_curve.h"

namespace hotrow {

class Env;

// The hit rates of LRU caches of several sizes, as from `hotrow trace mrc`: an access is a distinct
// key of a training step, first uses are misses.
struct MissRatioCurve {
  struct Point {
    int64_t size = 0;     // rows
    double fraction = 0;  // of the distinct keys
    double hit_rate = 0;
    double error = 0;  // two standard errors, see cache/miss_ratio_curve.h
  };
  std::string name;  // of the table; empty: of all tables
  int64_t accesses = 0;
  double distinct = 0;     // keys, estimated from the sample
  double sample_rate = 1;  // share of keys in the sample, at the end
  int64_t memory_bytes = 0;
  std::vector<Point> points;  // by size; none where there was no access
};

struct MissRatioCurves {
  MissRatioCurve all;                  // one cache for all tables, as rows of equal width share one
  std::vector<MissRatioCurve> tables;  // a cache for each table
};

struct AccessRecorderOptions {
  std::vector<std::string> tables;  // names by number; required
  std::string trace_path;           // of an access trace, replaced if it is there; empty: none
  double trace_sample_rate = 0.01;  // in (0, 1]
  bool curves = false;
  uint64_t seed = 0;   // of the choice of keys
  Env* env = nullptr;  // not owned; null: the real file system
};

// The file of one rank of a run. Several ranks write FILE.rank<r>. A run that resumed at step k
// writes FILE.step<k> and keeps the earlier files; resumed_step is -1 if it did not resume.
std::string AccessTracePath(const std::string& file, int32_t rank, int32_t world_size,
                            int64_t resumed_step);

// Records the table accesses of a run's training steps on one rank: as an access trace
// (docs/formats/trace.md), as miss-ratio curves, or both.
//
// Cost: one hash and one comparison for each key that is not sampled; with trace and curves, twice.
// Memory: a curve samples at most kCurveKeysMax keys, with about 60 bytes for each.
// Threads: one at a time.
// Errors: those of the trace's file, which name --record_trace. Curves continue after an error.
class AccessRecorder {
 public:
  // Curves begin with this share of the keys and lower it when the sample exceeds this number.
  // bench/results/planner.md has what they cost.
  static constexpr double kCurveSampleRate = 0.05;
  static constexpr int64_t kCurveKeysMax = 8192;

  static absl::StatusOr<std::unique_ptr<AccessRecorder>> Open(const AccessRecorderOptions& options);

  // Adds the distinct keys of one table in the current step, and the lookups of each. Once per
  // table and step.
  void Add(uint32_t table, std::span<const RowKey> keys, std::span<const int32_t> lookups);
  // Ends the step; `samples` is the batch size. Returns the first error once; recording then stops.
  absl::Status EndStep(int64_t step, int64_t samples);
  // Makes the trace durable. Returns the first error so far.
  absl::Status Close();

  // The curves of the steps so far; none without options.curves. `sum` adds numbers over the ranks,
  // which all call this; null: one rank. A size is then that of all ranks together, each caching
  // the same share of its own keys.
  using SumOverRanks = std::function<absl::Status(std::span<double>)>;
  absl::StatusOr<std::optional<MissRatioCurves>> Curves(const SumOverRanks& sum) const;

 private:
  explicit AccessRecorder(const AccessRecorderOptions& options);
  absl::Status TraceStatus(const absl::Status& status) const;

  AccessRecorderOptions options_;
  std::unique_ptr<AccessTraceWriter> trace_;  // null: none, or closed
  absl::Status status_;                       // the first error of the trace
  std::vector<uint64_t> keys_;
  // One for each table, the last one for all of them; none without curves.
  std::vector<SampledLruCurve> curves_;
  std::vector<KeySampler> samplers_;
  uint64_t limit_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_ACCESS_RECORDER_H_
