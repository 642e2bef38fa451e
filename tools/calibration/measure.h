#ifndef HOTROW_TOOLS_CALIBRATION_MEASURE_H_
#define HOTROW_TOOLS_CALIBRATION_MEASURE_H_

#include "absl/status/status.h"
#include "tools/calibration/bench.h"
#include "tools/calibration/click_tables.h"
#include "tools/plan/hardware.h"

// The parts of a calibration. Each fills its fields of the profile; Beside also reads those of
// Disk. Memory, Disk and Engine are for both devices.
namespace hotrow {

// Rates of reading and copying memory.
absl::Status MeasureMemory(CalibrationBench* bench, HardwareProfile* profile);
// Rate of finding rows by key in a memory store.
absl::Status MeasureGather(CalibrationBench* bench, HardwareProfile* profile);
// Rates of the disk alone.
absl::Status MeasureDisk(CalibrationBench* bench, HardwareProfile* profile);
// A GPU's name, memory and bus.
absl::Status MeasureGpu(CalibrationBench* bench, HardwareProfile* profile);
// Dense layers and dot interactions of several widths and batches, forward and backward.
absl::Status MeasureDense(CalibrationBench* bench, HardwareProfile* profile);
// Products of a GPU, and what layers take beside them. After MeasureGpu.
absl::Status MeasureDenseOnGpu(CalibrationBench* bench, HardwareProfile* profile);
// Costs of each part of a training step in the table engine.
absl::Status MeasureEngine(CalibrationBench* bench, const ClickTables& tables,
                           HardwareProfile* profile);
// How much concurrent parts of a step slow each other down.
absl::Status MeasureBeside(CalibrationBench* bench, const ClickTables& tables,
                           HardwareProfile* profile);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_CALIBRATION_MEASURE_H_
