#ifndef HOTROW_TOOLS_PLAN_HARDWARE_H_
#define HOTROW_TOOLS_PLAN_HARDWARE_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// The cost of a piece of work: a fixed part, and a part for each byte of its row.
struct EngineCost {
  double seconds = 0;
  double seconds_per_byte = 0;
  double Of(double count, double bytes) const { return seconds * count + seconds_per_byte * bytes; }
};

// Costs of the table engine, in seconds with all threads of the machine. `hotrow calibrate`
// measures them. "Row bytes" are those of RowLayout, "weight bytes" four times the dim. A GPU has
// those from `unique_seconds_per_lookup` to `update` but `in_place` and `ssd_miss`; pool is without
// what it writes.
struct EngineCosts {
  double unique_seconds_per_lookup = 0;  // finding the distinct keys, sorting lookups by them
  EngineCost in_place;  // of a distinct key, without a cache: the address of its row; row bytes
  EngineCost hit;       // of a distinct key in the cache: probe, pin, mark; row bytes
  EngineCost miss;      // of one that is not: room, read from host memory, fill; row bytes
  EngineCost evict;     // of a changed row that goes back to host memory; row bytes
  EngineCost ssd_miss;  // miss and evict with an SSD store, without waiting; row bytes
  EngineCost pool;      // of a lookup; weight bytes
  EngineCost sum;       // of a lookup, backward; weight bytes
  EngineCost update;    // of a distinct key; row bytes
  // Costs in addition, for a row that no step has used before; row bytes.
  EngineCost new_in_place;  // makes it in the store, without a cache
  EngineCost new_row;       // makes it in the cache
  // The share of the threads that the work keeps busy, in (0, 1]. Work on a single thread that runs
  // ahead leaves the others to the rest of a step.
  double unique_busy = 1;
  double hit_busy = 1;
  double miss_busy = 1;      // of miss and evict
  double ssd_miss_busy = 1;  // of ssd_miss
  // Concurrent chains of work: the seconds by which a chain becomes longer for each second that all
  // processors together work for the other chains. Work that keeps all of them busy and shares them
  // without loss has 1. 0: not measured.
  double step_beside = 0;  // of a training step
  double disk_beside = 0;  // of the chain that places rows and reads them from a disk
  // Wait for a row that is read from a disk, by the one thread that requests and processes rows, in
  // addition to that work and to the reads at the disk's rate; row bytes. With `ssd_wait_measured`
  // rows are processed between reads; otherwise the model processes them during reads.
  EngineCost ssd_wait;
  bool ssd_wait_measured() const { return ssd_wait.seconds > 0 || ssd_wait.seconds_per_byte > 0; }
  // What kernels of a GPU take when its memory is so many times slower.
  void ScaleKernels(double factor);
};

// One rank's share of a machine. Rates are those that programs reach: built-in GPUs have those of
// an H100, scaled by data sheets. Zero: there is none.
struct HardwareProfile {
  std::string name;
  // The accelerator of a rank; hbm_bytes 0: ranks compute on the CPU and the cache lies in DRAM.
  double hbm_bytes = 0;
  double hbm_bytes_per_second = 0;
  double dense_flops = 0;  // multiply-adds count two, in the dense layers' precision (TF32, fp32)
  // The same with 16-bit inputs; 0: as dense_flops.
  double dense_flops_16 = 0;
  // Only with a GPU's measured costs: what a layer moves in its memory, forward and backward, for
  // each number that it puts out, beside its products.
  double activation_bytes = 0;
  double host_link_bytes_per_second = 0;  // PCIe or NVLink-C2C, each direction
  double gpu_link_bytes_per_second = 0;   // to other ranks of the node, each direction
  // The host's share of one rank.
  double dram_bytes = 0;
  double dram_bytes_per_second = 0;
  double cpu_seconds_per_key = 0;  // of finding a row in memory and copying it; all cores together
  // The share of one rank of the disk, or of several that its rows are striped over, together.
  double ssd_bytes = 0;
  double ssd_read_ios_per_second = 0;  // of 4 KiB, at a deep queue
  double ssd_read_bytes_per_second = 0;
  double ssd_write_bytes_per_second = 0;
  double ssd_endurance_bytes = 0;  // that may be written over its life (TBW); 0: not known
  // The rate between nodes, each direction, for one rank.
  double network_bytes_per_second = 0;
  int ranks_per_node = 1;
  double price_per_rank_hour = 0;  // 0: not known

  // Latencies of a step: starting its kernels; each collective call within a node; each between
  // nodes, and each message of it to a rank of another node.
  double step_seconds = 0;
  double link_seconds = 0;
  double network_seconds = 0;
  double network_message_seconds = 0;
  // Samples of a rank at which dense layers reach half of their rate, since small batches leave an
  // accelerator partly idle. 0: any batch has the full rate.
  double dense_half_batch = 0;

  // Only in measured profiles. Forward and backward of square layers of these widths, and of the
  // dot interaction of vectors of these lengths.
  static constexpr double kNarrow = 64, kMiddle = 256, kWide = 1024;
  double dense_flops_narrow = 0;
  double dense_flops_middle = 0;
  double dense_flops_wide = 0;
  static constexpr double kDotShort = 16, kDotLong = 128;
  double dot_flops_short = 0;
  double dot_flops_long = 0;
  // The same for small batches, where each layer has a fixed cost. Those above are for kBatchLarge
  // samples.
  static constexpr double kBatchSmall = 64, kBatchMiddle = 256, kBatchLarge = 2048;
  struct DenseRates {
    double narrow = 0;
    double middle = 0;
    double wide = 0;
    double dot_short = 0;
    double dot_long = 0;
  };
  DenseRates dense_small;   // of kBatchSmall samples
  DenseRates dense_middle;  // of kBatchMiddle
  // Rows of 512 bytes by random key from a store in memory.
  double gather_rows_per_second = 0;
  EngineCosts engine;
  std::string machine;  // that was measured
  int threads = 0;

  bool calibrated() const { return engine.unique_seconds_per_lookup > 0; }
  // Rate of a layer, from measurements at the widths next to the mean of its sides and at the
  // batches next to `samples`; the time of a step is interpolated linearly in the samples. If small
  // batches were not measured, any batch has the rate of a large one.
  double LayerFlops(double in, double out, double samples = kBatchLarge) const;
  double DotFlops(double dim, double samples = kBatchLarge) const;
  // The share of each of so many busy ranks on this machine: memory, disk, rates. For measured
  // profiles, which describe a whole machine; `engine` stays.
  HardwareProfile SharedBy(int ranks) const;
  // So many of the disk that is there, over which --store_path=a,b stripes the rows: bytes, rates
  // and endurance add up. What a row costs the processor, and waits, stay.
  void MultiplyDisk(double drives);
};
// So many drives a rank has at most.
inline constexpr int kDrivesMax = 64;

// a10, a100-40, a100-80, h100-pcie, h100-sxm, h200, b200, gb200, cpu; null when there is no such.
const HardwareProfile* FindAccelerator(std::string_view name);
std::span<const HardwareProfile> Accelerators();

// Disks by class: nvme-read (about 1 drive write a day over 5 years), nvme-mixed (3), nvme-write
// (10), each of 3.84 or 3.2 TB on PCIe 4; sata. Only the ssd_ fields are set.
const HardwareProfile* FindDisk(std::string_view name);
std::span<const HardwareProfile> Disks();

// The file of a measured profile: "name: value" lines, each with unit and meaning as a comment, see
// docs/planner.md. Fields that are 0 are left out.
std::string HardwareProfileText(const HardwareProfile& profile);
// Reads such a file, which may say "drives: N" besides: so many of the disk that was measured.
// Missing fields are those of the profile "cpu" without a disk. Errors: InvalidArgument,
// "NAME:LINE:COLUMN: MESSAGE".
absl::StatusOr<HardwareProfile> ParseHardwareProfile(std::string_view text, std::string_view name);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_HARDWARE_H_
