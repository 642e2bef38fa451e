#include "tools/plan/hardware.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace hotrow {
namespace {

constexpr double kGB = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kTera = 1e12;

// An H100 SXM (NVIDIA H100 80GB HBM3, 16 cores beside it) at commit 84b1f9e on 2026-11-28
// (bench/results/gpu.md, gradients of weights with the three lines). Other GPUs are taken to reach
// as much of their data sheets.
constexpr char kMeasuredName[] = "h100-sxm";
constexpr char kMeasured[] = "an H100 SXM, 2026-11-28, commit 84b1f9e";
constexpr int kMeasuredThreads = 16;
constexpr double kMeasuredGbPerSecond = 3350;  // its data sheet
constexpr double kMemoryShare = 0.9;           // copy: 3.0 TB/s of 3.35
constexpr double kGemmShare = 0.83;  // product: 831 TFLOP/s of 990 (bf16), 407 of 495 (TF32)
constexpr double kLinkShare = 0.86;  // bus: 55 GB/s of 64; of other links assumed
// MLPs of a step in bf16, 65,536 samples: 3.12 ms for 863 GFLOP and 185 M outputs (top), 0.74 ms
// for 67 and 59 (bottom); this on top of the rate of a product gives both.
constexpr double kActivationBytes = 34;
// A step of 2,048 samples takes 0.41 ms, of which its stages as planned explain half.
constexpr double kStepSeconds = 2e-4;

EngineCosts MeasuredCosts() {
  EngineCosts costs;
  // tiers, all in the cache: 1,048,570 ids take 2.28 ms, of which their lookup 0.29 and `hit` 0.05.
  costs.unique_seconds_per_lookup = 1.86e-9;
  costs.hit = {1.9e-10, 0};  // insert, dim 128, load 1, all hits: 5.39 G keys/s
  // tiers, 80 % in the cache, dim 128: 15,114 misses take 1.16 ms more; with training 15,281 misses
  // and as many changed rows 5.04 ms. The bytes are at the rate of the bus.
  costs.miss = {6.7e-8, 1.8e-11};
  costs.evict = {2.43e-7, 1.8e-11};
  // lookup, dims 32 and 128, bags of 1 and 8: 0.104, 0.283, 0.058, 0.129 ms for 1,048,570 ids.
  costs.pool = {3.2e-11, 1.3e-13};
  // step, rows of dim 128: 1.00 ms for 1.70 M lookups of 677 k rows; update fused with the sum:
  // 0.59 for 1.05 M of 316 k; gradient sums of dim 32: 0.53 of those of 128.
  costs.sum = {1.3e-10, 2.9e-13};
  costs.update = {2.7e-10, 8.2e-13};
  return costs;
}

// Assumptions: one processor of a server's, layers a few hundred wide on it, and what a step waits
// for with one message a rank.
constexpr double kCpuMemoryShare = 0.85;
constexpr double kCpuGemmShare = 0.4;
constexpr double kLinkSeconds = 1e-5;
constexpr double kNetworkSeconds = 1e-5;
constexpr double kNetworkMessageSeconds = 2e-7;

struct Sheet {
  const char* name;
  double hbm_gb;
  double hbm_gb_per_second;
  double tensor_tflops;            // dense (no sparsity), TF32
  double host_link_gb_per_second;  // each direction
  double gpu_link_gb_per_second;   // each direction
  double network_gb_per_second;    // each direction
  int ranks_per_node;
};

// Data sheets of NVIDIA: "A10 Tensor Core GPU", "A100 Tensor Core GPU", "H100 Tensor Core GPU",
// "H200 Tensor Core GPU", "DGX B200", "GB200 NVL72" (its figures for 72 GPUs divided by 72). NVLink
// is printed as the sum of both directions, so half of it stands here; PCIe 4 x16 carries 32 GB/s
// and PCIe 5 x16 64 GB/s each way; where there is no NVLink, GPUs talk over PCIe. Networks: 200
// Gb/s a GPU with A100, 400 Gb/s with H100 and later, as in DGX systems; 100 Gb/s for a server with
// A10s, shared by four.
constexpr Sheet kSheets[] = {
    {"a10", 24, 600, 62.5, 32, 32, 3.1, 4},      {"a100-40", 40, 1555, 156, 32, 300, 25, 8},
    {"a100-80", 80, 2039, 156, 32, 300, 25, 8},  {"h100-pcie", 80, 2000, 378, 64, 64, 25, 4},
    {"h100-sxm", 80, 3350, 495, 64, 450, 50, 8}, {"h200", 141, 4800, 495, 64, 450, 50, 8},
    {"b200", 180, 8000, 1125, 64, 900, 50, 8},   {"gb200", 186, 8000, 1250, 225, 900, 50, 4},
};

std::vector<HardwareProfile> MakeAccelerators() {
  std::vector<HardwareProfile> profiles;
  for (const Sheet& sheet : kSheets) {
    HardwareProfile profile;
    profile.name = sheet.name;
    profile.hbm_bytes = sheet.hbm_gb * kGB;
    profile.hbm_bytes_per_second = sheet.hbm_gb_per_second * kGB * kMemoryShare;
    profile.dense_flops = sheet.tensor_tflops * kTera * kGemmShare;
    profile.dense_flops_16 = 2 * profile.dense_flops;
    profile.activation_bytes = kActivationBytes;
    profile.engine = MeasuredCosts();
    profile.engine.ScaleKernels(kMeasuredGbPerSecond / sheet.hbm_gb_per_second);
    profile.machine = kMeasured;
    if (profile.name != kMeasuredName) profile.machine += ", scaled by data sheets";
    profile.threads = kMeasuredThreads;
    profile.host_link_bytes_per_second = sheet.host_link_gb_per_second * kGB * kLinkShare;
    profile.gpu_link_bytes_per_second = sheet.gpu_link_gb_per_second * kGB * kLinkShare;
    profile.network_bytes_per_second = sheet.network_gb_per_second * kGB * kLinkShare;
    profile.ranks_per_node = sheet.ranks_per_node;
    // A server of two sockets: 2 TiB of DRAM and some 400 GB/s, shared by its ranks.
    profile.dram_bytes = 2048 * kGiB / sheet.ranks_per_node;
    profile.dram_bytes_per_second = 400 * kGB / sheet.ranks_per_node;
    profile.step_seconds = kStepSeconds;
    profile.link_seconds = kLinkSeconds;
    profile.network_seconds = kNetworkSeconds;
    profile.network_message_seconds = kNetworkMessageSeconds;
    profiles.push_back(profile);
  }
  // One rank on 16 cores with AVX2, half of a server: 16 cores x 3 GHz x 32 flops.
  HardwareProfile cpu;
  cpu.name = "cpu";
  cpu.dense_flops = 1.5 * kTera * kCpuGemmShare;
  cpu.dram_bytes = 256 * kGiB;
  cpu.dram_bytes_per_second = 150 * kGB * kCpuMemoryShare;
  // 12 M rows of 512 bytes found and copied a second by a thread, with two-pass prefetching.
  cpu.cpu_seconds_per_key = 1 / (12e6 * 16);
  cpu.gpu_link_bytes_per_second = 20 * kGB;  // through the node's memory
  cpu.network_bytes_per_second = 12.5 * kGB * kLinkShare;
  profiles.push_back(cpu);
  return profiles;
}

std::vector<HardwareProfile> MakeDisks() {
  struct DiskSheet {
    const char* name;
    double terabytes;
    double read_kios;
    double read_gb_per_second;
    double write_gb_per_second;
    double drive_writes_per_day;  // over five years
  };
  // Typical of data-centre drives' data sheets (PCIe 4 x4, U.2): about 1 M random reads of 4 KiB a
  // second, 6.5 to 7 GB/s read, 3.5 to 5.5 GB/s written; endurance is what the classes differ in.
  constexpr DiskSheet kDisks[] = {
      {"nvme-read", 3.84, 1000, 6.5, 3.5, 1},
      {"nvme-mixed", 3.2, 1000, 6.5, 4.0, 3},
      {"nvme-write", 3.2, 1000, 6.8, 4.8, 10},
      {"sata", 3.84, 90, 0.55, 0.5, 1},
  };
  std::vector<HardwareProfile> profiles;
  for (const DiskSheet& disk : kDisks) {
    HardwareProfile profile;
    profile.name = disk.name;
    profile.ssd_bytes = disk.terabytes * kTera;
    profile.ssd_read_ios_per_second = disk.read_kios * 1e3;
    profile.ssd_read_bytes_per_second = disk.read_gb_per_second * kGB;
    profile.ssd_write_bytes_per_second = disk.write_gb_per_second * kGB;
    profile.ssd_endurance_bytes = disk.drive_writes_per_day * 365 * 5 * disk.terabytes * kTera;
    profiles.push_back(profile);
  }
  return profiles;
}

// By the logarithm of the size, as it is outside of what was measured.
double Between(double size, double size0, double value0, double size1, double value1) {
  const double share =
      std::clamp(std::log(std::max(size, 1.0) / size0) / std::log(size1 / size0), 0.0, 1.0);
  return value0 + share * (value1 - value0);
}

// The rate at so many samples from those at three batches. The time of a step is a line in the
// samples between two batches, and below the smallest; so the time of a sample is one in 1 /
// samples.
double OfBatch(double samples, double small, double middle, double large) {
  if (small <= 0 || middle <= 0 || samples >= HardwareProfile::kBatchLarge) return large;
  const auto line = [&](double batch0, double rate0, double batch1, double rate1) {
    const double share = (1 / std::max(samples, 1.0) - 1 / batch1) / (1 / batch0 - 1 / batch1);
    const double seconds = 1 / rate1 + share * (1 / rate0 - 1 / rate1);
    // Below the smallest batch the line goes on; it does not fall where a noise made it fall.
    return 1 / std::max(seconds, std::min(1 / rate0, 1 / rate1));
  };
  return samples < HardwareProfile::kBatchMiddle
             ? line(HardwareProfile::kBatchSmall, small, HardwareProfile::kBatchMiddle, middle)
             : line(HardwareProfile::kBatchMiddle, middle, HardwareProfile::kBatchLarge, large);
}

const HardwareProfile* Find(std::span<const HardwareProfile> profiles, std::string_view name) {
  const auto at = std::find_if(profiles.begin(), profiles.end(),
                               [&](const HardwareProfile& p) { return p.name == name; });
  return at == profiles.end() ? nullptr : &*at;
}

}  // namespace

void EngineCosts::ScaleKernels(double factor) {
  for (EngineCost* const cost : {&hit, &pool, &sum, &update}) {
    cost->seconds *= factor;
    cost->seconds_per_byte *= factor;
  }
}

double HardwareProfile::LayerFlops(double in, double out, double samples) const {
  const double width = std::sqrt(in * out);
  const auto rate = [&](double narrow, double middle, double wide) {
    if (narrow <= 0 || middle <= 0 || wide <= 0) return 0.0;
    return width < kMiddle ? Between(width, kNarrow, narrow, kMiddle, middle)
                           : Between(width, kMiddle, middle, kWide, wide);
  };
  const double large = rate(dense_flops_narrow, dense_flops_middle, dense_flops_wide);
  if (large <= 0) return dense_flops;
  const double whole =
      OfBatch(samples, rate(dense_small.narrow, dense_small.middle, dense_small.wide),
              rate(dense_middle.narrow, dense_middle.middle, dense_middle.wide), large);
  // What a small batch costs beside its operations is a layer's, however few operations it has.
  const double thin = std::max(1.0, kNarrow * kNarrow / std::max(1.0, in * out));
  return 1 / (1 / large + thin * std::max(0.0, 1 / whole - 1 / large));
}

double HardwareProfile::DotFlops(double dim, double samples) const {
  const auto rate = [&](double at_short, double at_long) {
    if (at_short <= 0 || at_long <= 0) return 0.0;
    return Between(dim, kDotShort, at_short, kDotLong, at_long);
  };
  const double large = rate(dot_flops_short, dot_flops_long);
  if (large <= 0) return dense_flops;
  return OfBatch(samples, rate(dense_small.dot_short, dense_small.dot_long),
                 rate(dense_middle.dot_short, dense_middle.dot_long), large);
}

HardwareProfile HardwareProfile::SharedBy(int ranks) const {
  HardwareProfile share = *this;
  if (ranks <= 1) return share;
  for (double HardwareProfile::*const rate :
       {&HardwareProfile::dram_bytes, &HardwareProfile::dram_bytes_per_second,
        &HardwareProfile::gpu_link_bytes_per_second, &HardwareProfile::network_bytes_per_second,
        &HardwareProfile::ssd_bytes, &HardwareProfile::ssd_read_ios_per_second,
        &HardwareProfile::ssd_read_bytes_per_second, &HardwareProfile::ssd_write_bytes_per_second,
        &HardwareProfile::ssd_endurance_bytes, &HardwareProfile::dense_flops,
        &HardwareProfile::dense_flops_16, &HardwareProfile::dense_flops_narrow,
        &HardwareProfile::dense_flops_middle, &HardwareProfile::dense_flops_wide,
        &HardwareProfile::dot_flops_short, &HardwareProfile::dot_flops_long,
        &HardwareProfile::gather_rows_per_second}) {
    share.*rate /= ranks;
  }
  for (DenseRates* const rates : {&share.dense_small, &share.dense_middle}) {
    for (double DenseRates::*const rate :
         {&DenseRates::narrow, &DenseRates::middle, &DenseRates::wide, &DenseRates::dot_short,
          &DenseRates::dot_long}) {
      rates->*rate /= ranks;
    }
  }
  share.cpu_seconds_per_key *= ranks;
  return share;
}

void HardwareProfile::MultiplyDisk(double drives) {
  for (double* const figure : {&ssd_bytes, &ssd_read_ios_per_second, &ssd_read_bytes_per_second,
                               &ssd_write_bytes_per_second, &ssd_endurance_bytes}) {
    *figure *= drives;
  }
}

std::span<const HardwareProfile> Accelerators() {
  static const std::vector<HardwareProfile> profiles = MakeAccelerators();
  return profiles;
}
std::span<const HardwareProfile> Disks() {
  static const std::vector<HardwareProfile> profiles = MakeDisks();
  return profiles;
}
const HardwareProfile* FindAccelerator(std::string_view name) { return Find(Accelerators(), name); }
const HardwareProfile* FindDisk(std::string_view name) { return Find(Disks(), name); }

}  // namespace hotrow
