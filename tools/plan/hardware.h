#ifndef HOTROW_TOOLS_PLAN_HARDWARE_H_
#define HOTROW_TOOLS_PLAN_HARDWARE_H_

#include <span>
#include <string>
#include <string_view>

namespace hotrow {

// What one rank can use of a machine. Rates are what a program reaches, not what is printed on the
// box: built-in profiles are data-sheet figures times the shares below. Zero: there is none.
struct HardwareProfile {
  std::string name;
  // The accelerator of a rank; hbm_bytes 0: ranks compute on the CPU and the cache lies in DRAM.
  double hbm_bytes = 0;
  double hbm_bytes_per_second = 0;
  double dense_flops = 0;                 // multiply-adds count two, in the dense layers' precision
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
};

// a10, a100-40, a100-80, h100-pcie, h100-sxm, h200, b200, gb200, cpu; null when there is no such.
const HardwareProfile* FindAccelerator(std::string_view name);
std::span<const HardwareProfile> Accelerators();

// Disks by class: nvme-read (about 1 drive write a day over 5 years), nvme-mixed (3), nvme-write
// (10), each of 3.84 or 3.2 TB on PCIe 4; sata. Only the ssd_ fields are set.
const HardwareProfile* FindDisk(std::string_view name);
std::span<const HardwareProfile> Disks();

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_HARDWARE_H_
