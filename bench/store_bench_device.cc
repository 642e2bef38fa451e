#include <algorithm>

#include "base/status_macros.h"
#include "bench/store_bench.h"
#include "tools/measure_device.h"

namespace hotrow::bench {
namespace {

nlohmann::ordered_json ReadsJson(const DeviceReads& reads, const char* how) {
  const BatchTimes times = SummarizeBatches(reads.batch_seconds);
  return {{"how", how},
          {"rows_per_second", reads.per_second()},
          {"cpu_us_per_row", 1e6 * reads.cpu_seconds / static_cast<double>(reads.count)},
          {"ios_per_row", 1.0},
          {"bytes_read_per_row", static_cast<double>(kDeviceReadBytes)},
          {"p50_batch_ms", times.p50_ms},
          {"p99_batch_ms", times.p99_ms},
          {"max_batch_ms", times.max_ms}};
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureDevice(const StoreBenchFlags& flags) {
  DeviceMeasurementOptions options;
  options.dir = flags.path;
  options.file_bytes = flags.rows * flags.row_bytes;
  options.batch = flags.batch;
  options.batches = flags.batches;
  options.io = flags.io == "uring"     ? IoQueueKind::kUring
               : flags.io == "threads" ? IoQueueKind::kThreads
                                       : IoQueueKind::kAuto;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.keep = flags.keep;
  HOTROW_ASSIGN_OR_RETURN(const DeviceMeasurement device, hotrow::MeasureDevice(options));
  nlohmann::ordered_json json;
  json["direct"] = device.direct;
  json["block_bytes"] = device.block_bytes;
  json["file_bytes"] = device.file_bytes;
  json["write_bytes_per_second"] = device.write_bytes_per_second;
  json["write_cpu_seconds_per_gb"] = device.write_cpu_seconds_per_gb;
  json["by_io_queue"] = ReadsJson(device.by_io_queue, "IoQueue");
  nlohmann::ordered_json best = json["by_io_queue"];
  if (device.liburing_status.ok()) {
    json["by_liburing"] = ReadsJson(device.by_liburing, "liburing");
    if (device.liburing_is_better()) best = json["by_liburing"];
  } else {
    json["by_liburing"] = {{"error", device.liburing_status.ToString()}};
  }
  json.update(best);  // the limit of the device: the better of the two
  json["mixed"] = ReadsJson(*device.mixed, "IoQueue");
  json["mixed"]["write_bytes_per_second"] = device.mixed_write_bytes_per_second;
  return json;
}

}  // namespace hotrow::bench
