#include "tools/calibration/bench.h"

#include <time.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/trace.h"

namespace hotrow {

double WallSeconds() { return 1e-9 * static_cast<double>(NowNanos()); }

double ProcessorSeconds() {
  // Unlike that of getrusage, to the nanosecond.
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

absl::StatusOr<double> MedianSeconds(double seconds, absl::FunctionRef<absl::Status()> call) {
  std::vector<double> times;
  double spent = 0;
  while (std::ssize(times) < 3 || spent < seconds) {
    const double begin = WallSeconds();
    HOTROW_RETURN_IF_ERROR(call());
    times.push_back(WallSeconds() - begin);
    spent += times.back();
  }
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

EngineCost LineThrough(double bytes0, double seconds0, double bytes1, double seconds1) {
  const double slope = (seconds1 - seconds0) / (bytes1 - bytes0);
  if (slope <= 0) return {std::max(0.0, (seconds0 + seconds1) / 2), 0};
  const double base = seconds0 - slope * bytes0;
  if (base >= 0) return {base, slope};
  return {0, std::max(0.0, seconds1 / bytes1)};
}

CalibrationBench::CalibrationBench(const CalibrationOptions& bench_options, std::string bench_dir,
                                   DeviceStream bench_stream)
    : options(bench_options),
      dir(std::move(bench_dir)),
      pool(options.threads),
      stream(std::move(bench_stream)),
      ctx(stream.On({.pool = &pool})) {}

absl::StatusOr<DeviceMemory<float>> CalibrationBench::OnDevice(
    const std::vector<float>& values) const {
  HOTROW_ASSIGN_OR_RETURN(
      auto memory, DeviceMemory<float>::Create(std::ssize(values), {ctx.device, ctx.stream}));
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, memory.data(), values.data(), memory.bytes()));
  return memory;
}

int64_t CalibrationBench::Scaled(int64_t n) const {
  return std::max<int64_t>(1, static_cast<int64_t>(options.effort * static_cast<double>(n)));
}

}  // namespace hotrow
