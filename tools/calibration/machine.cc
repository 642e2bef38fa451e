#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/machine_limits.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/tiers/store_reads.h"
#include "models/programs/trainer_flags.h"
#include "store/host/host_store.h"
#include "tools/calibration/measure.h"
#include "tools/measure_device.h"

namespace hotrow {
namespace {

// Larger than the processors' caches, those of many cores together included.
constexpr int64_t kMemoryBytes = 1024 * kMiB;
constexpr int64_t kGatherRows = 1'000'000;
constexpr int64_t kGatherRowBytes = 512;
constexpr int64_t kGatherBatch = 16'384;
constexpr int64_t kDiskFileBytes = 512 * kMiB;
constexpr int64_t kDiskBatch = 1024;
constexpr int64_t kDiskBatches = 128;

}  // namespace

absl::Status MeasureMemory(CalibrationBench* bench, HardwareProfile* profile) {
  const int64_t bytes =
      std::max(16 * kMiB, std::min(UsableMemoryBytes() / 8, bench->Scaled(kMemoryBytes)));
  HOTROW_ASSIGN_OR_RETURN(auto buffer, HostBuffer<uint64_t>::Create(bytes / 8, HugePages::kTry));
  uint64_t* const words = buffer.data();
  const int64_t n = bytes / 8;
  constexpr int64_t kGrain = kMiB / 8;
  ParallelFor(&bench->pool, n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) words[i] = static_cast<uint64_t>(i);
  });
  std::atomic<uint64_t> total{0};
  HOTROW_ASSIGN_OR_RETURN(const double read_seconds,
                          MedianSeconds(bench->options.effort, [&]() -> absl::Status {
                            total = 0;
                            ParallelFor(&bench->pool, n, kGrain, [&](int64_t begin, int64_t end) {
                              uint64_t sum = 0;
                              for (int64_t i = begin; i < end; ++i) sum += words[i];
                              total.fetch_add(sum, std::memory_order_relaxed);
                            });
                            return absl::OkStatus();
                          }));
  const auto count = static_cast<uint64_t>(n);
  if (total.load() != count * (count - 1) / 2) {
    return absl::DataLossError("memory: what was read is not what was written");
  }
  profile->dram_bytes_per_second = static_cast<double>(bytes) / read_seconds;
  HOTROW_ASSIGN_OR_RETURN(
      const double copy_seconds, MedianSeconds(bench->options.effort / 2, [&]() -> absl::Status {
        ParallelFor(&bench->pool, n / 2, kGrain, [&](int64_t begin, int64_t end) {
          std::memcpy(words + n / 2 + begin, words + begin, static_cast<size_t>(end - begin) * 8);
        });
        return absl::OkStatus();
      }));
  profile->gpu_link_bytes_per_second = static_cast<double>(bytes) / 2 / copy_seconds;
  profile->dram_bytes = static_cast<double>(UsableMemoryBytes());
  return absl::OkStatus();
}

absl::Status MeasureGather(CalibrationBench* bench, HardwareProfile* profile) {
  const int64_t rows = bench->Scaled(kGatherRows);
  HostStoreOptions store_options;
  store_options.tables = {{.table = 0, .row_bytes = kGatherRowBytes}};
  store_options.budget_bytes = rows * (kGatherRowBytes + 32) * 5 / 4 + 64 * kMiB;
  HOTROW_ASSIGN_OR_RETURN(const auto store, HostStore::Open(store_options));
  std::vector<RowKey> keys(kGatherBatch);
  std::vector<std::byte> memory(kGatherBatch * kGatherRowBytes);
  std::vector<std::byte*> places(kGatherBatch);
  for (int64_t i = 0; i < kGatherBatch; ++i) {
    places[static_cast<size_t>(i)] = memory.data() + i * kGatherRowBytes;
  }
  for (int64_t begin = 0; begin < rows; begin += kGatherBatch) {
    const auto n = static_cast<size_t>(std::min(kGatherBatch, rows - begin));
    for (size_t i = 0; i < n; ++i) {
      keys[i] = {Mix64(static_cast<uint64_t>(begin) + i), 0};
    }
    HOTROW_RETURN_IF_ERROR(store->InsertOrAssign(
        std::span(keys).first(n), std::span<const std::byte* const>(places.data(), n)));
  }
  std::vector<uint8_t> found(kGatherBatch);
  RandomStream random(kCalibrationSeed, RandomPurpose::kTest, 1);
  // Keys are drawn outside of what is timed.
  std::vector<double> seconds;
  double spent = 0;
  while (std::ssize(seconds) < 3 || spent < 1.5 * bench->options.effort) {
    for (RowKey& key : keys) key = {Mix64(random.Below(static_cast<uint64_t>(rows))), 0};
    const double begin = WallSeconds();
    HOTROW_RETURN_IF_ERROR(
        FindInStore(bench->ctx, store.get(), /*spread=*/true, keys, places, found));
    seconds.push_back(WallSeconds() - begin);
    spent += seconds.back();
    if (std::count(found.begin(), found.end(), 1) != kGatherBatch) {
      return absl::InternalError("the store in memory has lost rows");
    }
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  profile->gather_rows_per_second = static_cast<double>(kGatherBatch) / seconds[seconds.size() / 2];
  profile->cpu_seconds_per_key = 1 / profile->gather_rows_per_second;
  return absl::OkStatus();
}

absl::Status MeasureDisk(CalibrationBench* bench, HardwareProfile* profile) {
  DeviceMeasurementOptions device;
  device.dir = bench->dir + "/raw";
  device.file_bytes = bench->Scaled(kDiskFileBytes);
  device.batch = kDiskBatch;
  device.batches = bench->Scaled(kDiskBatches);
  device.mixed = false;
  device.seconds_max = 3 * bench->options.effort;
  HOTROW_ASSIGN_OR_RETURN(const DeviceMeasurement measured, MeasureDevice(device));
  const DeviceReads& reads =
      measured.liburing_is_better() ? measured.by_liburing : measured.by_io_queue;
  profile->ssd_read_ios_per_second = reads.per_second();
  // The rate of single blocks; longer reads may be faster, which plans do not count on.
  profile->ssd_read_bytes_per_second = reads.per_second() * static_cast<double>(kDeviceReadBytes);
  profile->ssd_write_bytes_per_second = measured.write_bytes_per_second;
  profile->ssd_bytes = static_cast<double>(UsableDiskBytes({bench->options.dir}));
  return absl::OkStatus();
}

}  // namespace hotrow
