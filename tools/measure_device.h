#ifndef HOTROW_TOOLS_MEASURE_DEVICE_H_
#define HOTROW_TOOLS_MEASURE_DEVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/io_queue.h"

// The speed of a disk without the page cache: the bound of every store on it.
namespace hotrow {

struct DeviceMeasurementOptions {
  std::string dir;         // made if missing; gets two files of file_bytes
  int64_t file_bytes = 0;  // required; rounded up to whole rounds of writes
  int64_t batch = 16'384;  // reads submitted at a time
  int64_t batches = 50;
  IoQueueKind io = IoQueueKind::kAuto;
  uint64_t seed = 1;  // of the offsets to read
  bool mixed = true;  // also measures reads during writes
  bool keep = false;  // keeps the files
  // Ends each phase (laying out the file, writing, each kind of read) after about so many seconds,
  // perhaps with a smaller file. 0: no limit.
  double seconds_max = 0;
};

// Random reads of 4 KiB at depth 128.
struct DeviceReads {
  std::vector<double> batch_seconds;
  double wall_seconds = 0;
  double cpu_seconds = 0;  // of the process
  int64_t count = 0;

  double per_second() const {
    return wall_seconds > 0 ? static_cast<double>(count) / wall_seconds : 0;
  }
  void Add(const DeviceReads& more);
};
inline constexpr int64_t kDeviceReadBytes = 4096;

struct DeviceMeasurement {
  bool direct = false;
  int64_t block_bytes = 0;
  int64_t file_bytes = 0;
  // Sequential writes over an existing file, 1 MiB each, 8 in flight, synced.
  double write_bytes_per_second = 0;
  double write_cpu_seconds_per_gb = 0;
  DeviceReads by_io_queue;  // Env::NewIoQueue
  DeviceReads by_liburing;  // without IoQueue; valid if liburing_status is OK
  absl::Status liburing_status;
  std::optional<DeviceReads> mixed;  // through the queue, while another file is written
  double mixed_write_bytes_per_second = 0;

  // The limit of the device: the faster of the two.
  bool liburing_is_better() const {
    return liburing_status.ok() && by_liburing.per_second() > by_io_queue.per_second();
  }
};

// Errors: those of the file system, which name the file; DataLoss when reads differ from writes.
// Removes the files in any case, unless `keep`.
absl::StatusOr<DeviceMeasurement> MeasureDevice(const DeviceMeasurementOptions& options);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_MEASURE_DEVICE_H_
