#ifndef HOTROW_BENCH_GPU_BENCH_H_
#define HOTROW_BENCH_GPU_BENCH_H_

// What the parts of gpu_bench share: the stream, the clock, the figures.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_handles.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "bench/gpu_bench_plan.h"
#include "ops/products/dense_precision.h"

namespace hotrow::bench {

class GpuBench {
 public:
  // FailedPrecondition "no usable GPU: ..." where there is none.
  static absl::StatusOr<std::unique_ptr<GpuBench>> Create(const GpuBenchFlags& flags);

  const GpuBenchFlags& flags() const { return flags_; }
  const GpuBenchPoints& points() const { return points_; }
  const GpuBenchSizes& sizes() const { return sizes_; }
  const nlohmann::ordered_json& device() const { return device_; }
  int64_t l2_bytes() const { return l2_bytes_; }
  CudaStream stream() const { return stream_.get(); }
  ExecContext Gpu() const { return {.device = Device::kCuda, .stream = stream()}; }
  ExecContext Host() const { return {.pool = pool_.get()}; }

  // Times timed(r) by events on the stream, for r in [0, warmup + repeats); the first ones are not
  // counted. between(r) comes before and is not timed; the stream is idle when timed(r) is called.
  // kEnqueued: timed only enqueues, and runs without gaps between launches. kHostWorks: it waits or
  // computes meanwhile.
  enum class Clock { kEnqueued, kHostWorks };
  using Step = std::function<absl::Status(int64_t repeat)>;
  absl::StatusOr<Times> Measure(const Step& timed, const Step& between = nullptr,
                                Clock clock = Clock::kEnqueued);
  absl::Status Wait();  // for the stream

  // Prints the figure and keeps it for the report.
  void Add(Figure figure);
  // The same for what is no rate.
  void AddNote(nlohmann::ordered_json json, const std::string& line);
  const nlohmann::ordered_json& figures() const { return figures_; }

  // What parts that ran before found out, in units a second: "copy" bytes, "h2d" and "d2h" bytes,
  // gather of a dim in rows. 0: not measured.
  double limit(const std::string& name) const;
  void SetLimit(const std::string& name, double per_second) { limits_[name] = per_second; }

 private:
  GpuBench() = default;

  GpuBenchFlags flags_;
  GpuBenchPoints points_;
  GpuBenchSizes sizes_;
  nlohmann::ordered_json device_;
  int64_t l2_bytes_ = 0;
  StreamHandle stream_;
  EventHandle begin_;
  EventHandle end_;
  std::unique_ptr<ThreadPool> pool_;
  nlohmann::ordered_json figures_ = nlohmann::ordered_json::array();
  std::map<std::string, double> limits_;
};

std::string GatherLimit(int dim);  // the name of that limit

// Measures a square product in this precision, which is the limit of that name: in flop a second.
std::string ProductLimit(DensePrecision precision);
absl::Status MeasureProductRate(GpuBench& bench, DensePrecision precision);

// Measures each product of this precision that was asked for so far and is not in `seen`, with what
// cublasLt chose for it.
absl::Status MeasureNewPlans(GpuBench& bench, DensePrecision precision,
                             std::set<std::string>& seen);

// The parts. Each takes and gives back its own memory.
absl::Status MeasureCopy(GpuBench& bench);
absl::Status MeasureGather(GpuBench& bench);
absl::Status MeasureBus(GpuBench& bench);
absl::Status MeasureHostGather(GpuBench& bench);
absl::Status MeasureStaging(GpuBench& bench);
absl::Status MeasureGemm(GpuBench& bench);
absl::Status MeasurePlans(GpuBench& bench);
absl::Status MeasureDense(GpuBench& bench);
absl::Status MeasureFind(GpuBench& bench);
absl::Status MeasureInsert(GpuBench& bench);
absl::Status MeasureLoad(GpuBench& bench);
absl::Status MeasureUnique(GpuBench& bench);
absl::Status MeasurePartition(GpuBench& bench);
absl::Status MeasureLookup(GpuBench& bench);
absl::Status MeasureGradientSum(GpuBench& bench);
absl::Status MeasureUpdate(GpuBench& bench);
absl::Status MeasureTiers(GpuBench& bench);
absl::Status MeasureStep(GpuBench& bench);

}  // namespace hotrow::bench

#endif  // HOTROW_BENCH_GPU_BENCH_H_
