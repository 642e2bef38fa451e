// The part "tiers" on a GPU: its clock, and what the other parts found out.

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_tiers.h"

namespace hotrow::bench {
namespace {

class EventTimer final : public StreamTimer {
 public:
  absl::Status Create(CudaStream stream) {
    stream_ = stream;
    HOTROW_ASSIGN_OR_RETURN(begin_, CreateEvent(EventTiming::kOn));
    HOTROW_ASSIGN_OR_RETURN(end_, CreateEvent(EventTiming::kOn));
    return absl::OkStatus();
  }
  absl::Status Begin() override {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(begin_.get(), stream_));
    return absl::OkStatus();
  }
  absl::Status End() override {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(end_.get(), stream_));
    return absl::OkStatus();
  }
  absl::StatusOr<double> Seconds() override {
    float milliseconds = 0;
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e-3 * milliseconds;
  }

 private:
  CudaStream stream_ = nullptr;
  EventHandle begin_;
  EventHandle end_;
};

}  // namespace

absl::Status MeasureTiers(GpuBench& bench) {
  EventTimer timer;
  HOTROW_RETURN_IF_ERROR(timer.Create(bench.stream()));
  TiersRun run;
  HOTROW_ASSIGN_OR_RETURN(run.plan, PlanTiers(bench.flags(), bench.sizes(), Device::kCuda));
  run.plan.shares = bench.points().shares;
  run.ctx = bench.Gpu();
  run.ctx.pool = bench.Host().pool;
  run.timer = &timer;
  run.path = bench.flags().path;
  run.bus_bytes_per_second = bench.limit("h2d");
  run.add = [&bench](nlohmann::ordered_json json, const std::string& line) {
    bench.AddNote(std::move(json), line);
  };
  return MeasureTiers(run);
}

}  // namespace hotrow::bench
