#ifndef HOTROW_TOOLS_CALIBRATION_CALIBRATION_H_
#define HOTROW_TOOLS_CALIBRATION_CALIBRATION_H_

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/plan/hardware.h"

namespace hotrow {

struct CalibrationOptions {
  // Measured as a disk; must exist. A directory is made in it and removed again; it takes up to
  // about a GB.
  std::string dir = ".";
  int threads = 1;
  // Of the time and the sizes of a full calibration, about 45 s; in (0, 1]. Tests want less.
  double effort = 1;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// Measures what programs reach on this machine with so many threads: memory, rows by key, a disk,
// dense layers, what each part of a training step costs in the table engine, and how much parts
// that run beside each other hold each other up. Calls `progress` with a line before each part.
// Wants the machine for itself: what else runs makes it look slower. Errors: InvalidArgument
// (options), ResourceExhausted (too little room on the disk, says how much), what the file system
// says.
absl::StatusOr<HardwareProfile> Calibrate(const CalibrationOptions& options,
                                          absl::FunctionRef<void(std::string_view)> progress);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_CALIBRATION_CALIBRATION_H_
