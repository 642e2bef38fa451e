#ifndef HOTROW_TOOLS_PLAN_HARDWARE_H_
#define HOTROW_TOOLS_PLAN_HARDWARE_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// What a piece of work costs: so much each, and so much for each byte of its row.
struct EngineCost {
  double seconds = 0;
  double seconds_per_byte = 0;
  double Of(double count, double bytes) const { return seconds * count + seconds_per_byte * bytes; }
};

// What the table engine costs a rank that computes on the CPU, in seconds with all threads of the
// machine at work on it. `hotrow calibrate` measures them. "Row bytes" are those of RowLayout,
// "weight bytes" four times the dim.
struct EngineCosts {
  double unique_seconds_per_lookup = 0;  // finding the distinct keys, sorting lookups by them
  EngineCost in_place;  // of a distinct key, without a cache: the address of its row; row bytes
  EngineCost hit;       // of a distinct key whose row the cache has: probe, pin, mark; row bytes
  EngineCost miss;      // of one it has not: room, read from host memory, fill; row bytes
  EngineCost evict;     // of a changed row that goes back to host memory; row bytes
  EngineCost ssd_miss;  // the same two with an SSD store instead, without waiting; row bytes
  EngineCost pool;      // of a lookup; weight bytes
  EngineCost sum;       // of a lookup, backward; weight bytes
  EngineCost update;    // of a distinct key; row bytes
  // Beside these, of a row that no step has used before; row bytes.
  EngineCost new_in_place;  // makes it in the store, without a cache
  EngineCost new_row;       // makes it in the cache
  // The share of the threads that work meanwhile, in (0, 1]: what runs on one of them alone leaves
  // the others to the rest of a step, once it runs ahead.
  double unique_busy = 1;
  double hit_busy = 1;
  double miss_busy = 1;      // of miss and evict
  double ssd_miss_busy = 1;  // of ssd_miss
  // Chains of work that run beside each other: so many seconds a chain takes longer for each second
  // that the processors, all of them together, work for the others meanwhile. 1 is what sharing
  // them without a loss costs work that keeps them all busy. 0: not measured.
  double step_beside = 0;  // of a training step
  double disk_beside = 0;  // of the chain that places rows and reads them from a disk
  // Of a row that is read from a disk: waited for by the one thread that asks for rows and deals
  // with them, beside that work and the time of the reads at the disk's own rate; row bytes. With
  // `ssd_wait_measured` rows are dealt with between reads, otherwise they are thought to be dealt
  // with while others come.
  EngineCost ssd_wait;
  bool ssd_wait_measured() const { return ssd_wait.seconds > 0 || ssd_wait.seconds_per_byte > 0; }
};

// What one rank can use of a machine. Rates are what a program reaches, not what is printed on the
// box: built-in profiles are data-sheet figures times the shares below. Zero: there is none.
struct HardwareProfile {
  std::string name;
  // The accelerator of a rank; hbm_bytes 0: ranks compute on the CPU and the cache lies in DRAM.
  double hbm_bytes = 0;
  double hbm_bytes_per_second = 0;
  double dense_flops = 0;  // multiply-adds count two, in the dense layers' precision (TF32, fp32)
  // The same with 16-bit inputs; 0: as dense_flops.
  double dense_flops_16 = 0;
  double host_link_bytes_per_second = 0;  // PCIe or NVLink-C2C, each direction
  double gpu_link_bytes_per_second = 0;   // to other ranks of the node, each direction
  // The host's share of one rank.
  double dram_bytes = 0;
  double dram_bytes_per_second = 0;
  double cpu_seconds_per_key = 0;  // of finding a row in memory and copying it; all cores together
  // The disk's share of one rank.
  double ssd_bytes = 0;
  double ssd_read_ios_per_second = 0;  // of 4 KiB, at a deep queue
  double ssd_read_bytes_per_second = 0;
  double ssd_write_bytes_per_second = 0;
  double ssd_endurance_bytes = 0;  // that may be written over its life (TBW); 0: not known
  // Between nodes, each direction, for one rank.
  double network_bytes_per_second = 0;
  int ranks_per_node = 1;
  double price_per_rank_hour = 0;  // 0: not known

  // What a step waits for beside the amounts it moves: starting its kernels; each collective call
  // within a node; each between nodes, and each message of it to a rank of another node.
  double step_seconds = 0;
  double link_seconds = 0;
  double network_seconds = 0;
  double network_message_seconds = 0;
  // Samples of a rank at which dense layers reach half of their rate: small batches leave much of
  // an accelerator idle. 0: any batch gives the whole rate.
  double dense_half_batch = 0;

  // Only in measured profiles. Forward and backward of square layers so wide, and of the dot
  // interaction of vectors so long.
  static constexpr double kNarrow = 64, kMiddle = 256, kWide = 1024;
  double dense_flops_narrow = 0;
  double dense_flops_middle = 0;
  double dense_flops_wide = 0;
  static constexpr double kDotShort = 16, kDotLong = 128;
  double dot_flops_short = 0;
  double dot_flops_long = 0;
  // The same of small batches: a step pays for each layer, whatever the batch. Those above are of
  // kBatchLarge samples.
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
  std::string machine;  // what was measured
  int threads = 0;

  bool calibrated() const { return engine.unique_seconds_per_lookup > 0; }
  // Of a layer, by what was measured at the widths next to the mean of its sides and at the batches
  // next to `samples`: between those the time of a step is a line in the samples. Where small
  // batches were not measured, any batch has the rate of a large one.
  double LayerFlops(double in, double out, double samples = kBatchLarge) const;
  double DotFlops(double dim, double samples = kBatchLarge) const;
  // What each of so many ranks of this machine has, with all of them at work: shares of its memory,
  // disk, and rates. Only of measured profiles, which are of a whole machine; `engine` stays.
  HardwareProfile SharedBy(int ranks) const;
};

// a10, a100-40, a100-80, h100-pcie, h100-sxm, h200, b200, gb200, cpu; null when there is no such.
const HardwareProfile* FindAccelerator(std::string_view name);
std::span<const HardwareProfile> Accelerators();

// Disks by class: nvme-read (about 1 drive write a day over 5 years), nvme-mixed (3), nvme-write
// (10), each of 3.84 or 3.2 TB on PCIe 4; sata. Only the ssd_ fields are set.
const HardwareProfile* FindDisk(std::string_view name);
std::span<const HardwareProfile> Disks();

// A measured profile as a file: "name: value" lines, each with its unit and meaning as a comment,
// as docs/planner.md describes. Fields that are 0 are left out.
std::string HardwareProfileText(const HardwareProfile& profile);
// Reads one, with what it leaves out from the profile "cpu" and no disk. Errors: InvalidArgument,
// "NAME:LINE:COLUMN: what".
absl::StatusOr<HardwareProfile> ParseHardwareProfile(std::string_view text, std::string_view name);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_HARDWARE_H_
