// hotrow calibrate: what this machine gives, as a profile for hotrow plan.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/atomic_file.h"
#include "base/device.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/machine_limits.h"
#include "base/status_macros.h"
#include "models/train/report.h"
#include "tools/calibration/calibration.h"
#include "tools/command.h"

namespace hotrow {
namespace {

constexpr double kLoadMax = 1;  // processes that run or wait, of a machine that is otherwise idle

void WarnIfBusy() {
  double load = 0;
  if (getloadavg(&load, 1) == 1 && load > kLoadMax) {
    std::fprintf(
        stderr,
        "hotrow calibrate: the machine was busy in the last minute (load %.1f): if it still is, "
        "this takes long, and what it measures is too slow\n",
        load);
  }
}

std::string Summary(const HardwareProfile& p) {
  std::string out = absl::StrCat(p.machine, ", ", p.threads, " threads used\n");
  const bool on_gpu = p.hbm_bytes > 0;
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&out, "  %-34s %s\n", name, value);
  };
  line("memory, read in order", absl::StrFormat("%.1f GB/s", p.dram_bytes_per_second / 1e9));
  if (on_gpu) {
    line("GPU memory, copied", absl::StrFormat("%.0f GB/s", p.hbm_bytes_per_second / 1e9));
    line("bus", absl::StrFormat("%.1f GB/s", p.host_link_bytes_per_second / 1e9));
    line("products, TF32, bf16",
         absl::StrFormat("%.1f, %.1f TFLOP/s", p.dense_flops / 1e12, p.dense_flops_16 / 1e12));
  } else {
    line("memory, copied", absl::StrFormat("%.1f GB/s", p.gpu_link_bytes_per_second / 1e9));
    line("rows of 512 bytes by random key",
         absl::StrFormat("%.1f M/s", p.gather_rows_per_second / 1e6));
    line("dense layers of a click model", absl::StrFormat("%.0f GFLOP/s", p.dense_flops / 1e9));
    line("  64, 256, 1024 wide",
         absl::StrFormat("%.0f, %.0f, %.0f GFLOP/s", p.dense_flops_narrow / 1e9,
                         p.dense_flops_middle / 1e9, p.dense_flops_wide / 1e9));
    line("  the same at 64 samples",
         absl::StrFormat("%.0f, %.0f, %.0f GFLOP/s", p.dense_small.narrow / 1e9,
                         p.dense_small.middle / 1e9, p.dense_small.wide / 1e9));
  }
  line("disk, random 4 KiB reads",
       FormatCount(static_cast<int64_t>(p.ssd_read_ios_per_second)) + " /s");
  line("disk, written in order", absl::StrFormat("%.0f MB/s", p.ssd_write_bytes_per_second / 1e6));
  const EngineCosts& e = p.engine;
  line("distinct keys, a lookup", absl::StrFormat("%.3g ns", 1e9 * e.unique_seconds_per_lookup));
  // Rows of dim 32.
  constexpr double kRowBytes = 144;
  constexpr double kWeightBytes = 128;
  const auto nanos = [](const EngineCost& cost, double bytes) {
    return absl::StrFormat("%.3g ns", 1e9 * cost.Of(1, bytes));
  };
  line("a row of dim 32: found in the cache", nanos(e.hit, kRowBytes));
  line("  missed, read from memory", nanos(e.miss, kRowBytes));
  line("  written back to memory", nanos(e.evict, kRowBytes));
  line("  pooled, summed, a lookup",
       absl::StrCat(nanos(e.pool, kWeightBytes), ", ", nanos(e.sum, kWeightBytes)));
  line("  updated", nanos(e.update, kRowBytes));
  if (on_gpu) return out;
  line("  found in place", nanos(e.in_place, kRowBytes));
  line("  missed and written back, SSD", nanos(e.ssd_miss, kRowBytes));
  line("  waited for, SSD, beside reads", nanos(e.ssd_wait, kRowBytes));
  line("a second of other work beside it:", "");
  line("  a step takes longer", absl::StrFormat("%.2f s", e.step_beside));
  line("  reading from the SSD takes longer", absl::StrFormat("%.2f s", e.disk_beside));
  return out;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  CalibrationOptions options;
  std::string output;
  int64_t threads = 0;
  FlagSet flags("hotrow calibrate");
  flags.AddString("path", "DIR", &options.dir,
                  "directory on the disk to measure; the command removes its files");
  flags.AddString("output", "FILE", &output, "write the profile there instead of printing it");
  flags.AddInt("threads", 0, 1024, &threads, "threads of tables and layers; 0: all");
  flags.Add("device", WordFlag("WORD", &options.device, AllWords(kDeviceWords)),
            "what trains the rows; cuda: the GPU");
  flags.AddReal("effort", 0.01, 1, &options.effort, "share of the full time and sizes");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (flags.help_requested()) return kExitGood;
  options.threads =
      static_cast<int>(threads > 0 ? threads : std::clamp<int64_t>(UsableProcessors(), 1, 1024));
  if (const absl::Status usable = DeviceStream::Create(options.device).status(); !usable.ok()) {
    return absl::Status(usable.code(),
                        absl::StrCat("--device=", std::string(DeviceName(options.device)), ": ",
                                     std::string(usable.message())));
  }
  if (!output.empty()) {
    // Said before that time is spent.
    if (const absl::Status found = FindOutput(output).status(); !found.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--output=", output, ": ", std::string(found.message())));
    }
    const size_t slash = output.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : output.substr(0, slash + 1);
    const absl::StatusOr<int64_t> free = PosixEnv().FreeBytes(folder);
    if (!free.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--output=", output, ": ", std::string(free.status().message())));
    }
  }
  bool began = false;
  const absl::StatusOr<HardwareProfile> profile = Calibrate(options, [&](std::string_view part) {
    if (!std::exchange(began, true)) WarnIfBusy();
    std::fprintf(stderr, "measuring %s\n", std::string(part).c_str());
  });
  if (!profile.ok()) {
    return absl::Status(
        profile.status().code(),
        absl::StrCat("--path=", options.dir, ": ", std::string(profile.status().message())));
  }
  const std::string text = HardwareProfileText(*profile);
  if (output.empty()) {
    std::fputs(text.c_str(), stdout);
    return kExitGood;
  }
  const absl::Status written = WriteFileAtomically(PosixEnv(), output, text);
  if (!written.ok()) {
    return absl::Status(written.code(),
                        absl::StrCat("--output=", output, ": ", std::string(written.message())));
  }
  std::fputs(Summary(*profile).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kCalibrateCommand = {
    .name = "calibrate",
    .operands = "",
    .summary = "measures this machine, or its GPU, for hotrow plan, in about 45 seconds",
    .details =
        "Measures memory, a disk, dense layers, each part of the table engine, and how much parts\n"
        "slow each other down. With --device=cuda: memory, a disk, and of the GPU its memory and "
        "bus,\n"
        "dense layers and the table engine. Prints a profile for `hotrow plan`, as hardware: FILE\n"
        "in a spec or as --hardware=FILE. Run it on an otherwise idle machine.\n",
    .run = Run};

}  // namespace hotrow
