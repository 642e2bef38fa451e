#ifndef HOTROW_TOOLS_CALIBRATION_CALIBRATION_H_
#define HOTROW_TOOLS_CALIBRATION_CALIBRATION_H_

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "tools/plan/hardware.h"

namespace hotrow {

struct CalibrationOptions {
  // An existing directory on the disk to measure. A temporary directory in it takes up to about a
  // GB.
  std::string dir = ".";
  int threads = 1;
  // Where rows are trained. kCuda: the current GPU, and the host and the disk beside it.
  Device device = Device::kCpu;
  // Share of the time (about 45 s) and sizes of a full calibration, in (0, 1]; tests use less.
  double effort = 1;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// This machine for people: "AMD EPYC 7B13, 16 processors, 62.8 GiB, Linux x86_64".
std::string MachineName();

// Measures the rates that programs reach on this machine with so many threads: memory, rows by key,
// a disk, dense layers, the cost of each part of a training step in the table engine, and how much
// concurrent parts slow each other down. With a GPU: memory, the disk, the GPU's memory and bus,
// dense layers, the table engine. Calls `progress` with a line before each part. Other load on the
// machine falsifies results. Errors: InvalidArgument (options), FailedPrecondition (no usable GPU),
// ResourceExhausted (too little room on the disk; says how much is needed), those of the file
// system.
absl::StatusOr<HardwareProfile> Calibrate(const CalibrationOptions& options,
                                          absl::FunctionRef<void(std::string_view)> progress);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_CALIBRATION_CALIBRATION_H_
