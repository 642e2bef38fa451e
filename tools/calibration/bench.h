#ifndef HOTROW_TOOLS_CALIBRATION_BENCH_H_
#define HOTROW_TOOLS_CALIBRATION_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "tools/calibration/calibration.h"
#include "tools/plan/hardware.h"

// Tools that all parts of a calibration share.
namespace hotrow {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr uint64_t kCalibrationSeed = 1;

// Seconds since some moment.
double WallSeconds();
// Processor time of all threads of this process.
double ProcessorSeconds();
// Seconds of one call: the median of at least three calls that take about `seconds` in all.
absl::StatusOr<double> MedianSeconds(double seconds, absl::FunctionRef<absl::Status()> call);

// A line through two points that is nowhere negative.
EngineCost LineThrough(double bytes0, double seconds0, double bytes1, double seconds1);

// The threads, the directory and the sizes of one calibration.
struct CalibrationBench {
  // dir: an empty directory on the disk that is measured. stream: of options.device.
  CalibrationBench(const CalibrationOptions& options, std::string dir, DeviceStream stream);

  bool on_gpu() const { return options.device == Device::kCuda; }
  // A copy where the device works.
  absl::StatusOr<DeviceMemory<float>> OnDevice(const std::vector<float>& values) const;
  // Scales a count of a full calibration to this one's effort; at least 1.
  int64_t Scaled(int64_t n) const;

  const CalibrationOptions options;
  const std::string dir;
  ThreadPool pool;  // may have fewer threads, see status()
  const DeviceStream stream;
  ExecContext ctx;  // of the device
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_CALIBRATION_BENCH_H_
