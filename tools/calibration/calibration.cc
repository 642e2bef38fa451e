#include "tools/calibration/calibration.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "models/train/report.h"
#include "tools/calibration/bench.h"
#include "tools/calibration/click_tables.h"
#include "tools/calibration/measure.h"

namespace hotrow {

std::string MachineName() {
  std::string cpu = "unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0 || line.find(": ") == std::string::npos) continue;
    cpu = line.substr(line.find(": ") + 2);
    break;
  }
  utsname system = {};
  uname(&system);
  return absl::StrFormat(
      "%s, %d processors, %s, %s %s", cpu, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
      FormatBytes(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)),
      system.sysname, system.machine);
}

absl::Status CalibrationOptions::Validate() const {
  if (threads < 1 || threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("threads must lie in [1, 1024], is ", threads));
  }
  if (!(effort > 0 && effort <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("effort must lie in (0, 1], is ", effort));
  }
  return absl::OkStatus();
}

absl::StatusOr<HardwareProfile> Calibrate(const CalibrationOptions& options,
                                          absl::FunctionRef<void(std::string_view)> progress) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(options.device));
  Env& env = PosixEnv();
  // Before anything is made: a directory that is not there is more likely a slip than a wish.
  HOTROW_ASSIGN_OR_RETURN(const int64_t free, env.FreeBytes(options.dir));
  const auto need = static_cast<int64_t>(options.effort * 2e9) + 300 * kMiB;
  if (free < need) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.dir, ": has ", FormatBytes(free), " free, measuring takes up to ",
                     FormatBytes(need), "; name a directory with more room"));
  }
  const std::string dir = absl::StrCat(options.dir, "/hotrow_calibrate.", getpid());
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
  struct Remover {
    const std::string& dir;
    ~Remover() {
      std::error_code error;
      std::filesystem::remove_all(dir, error);
    }
  } const remover{dir};
  CalibrationBench bench(options, dir, std::move(stream));
  HOTROW_RETURN_IF_ERROR(bench.pool.status());
  HardwareProfile profile = *FindAccelerator("cpu");
  profile.name = "this machine";
  profile.machine = MachineName();
  profile.threads = options.threads;
  progress("memory");
  HOTROW_RETURN_IF_ERROR(MeasureMemory(&bench, &profile));
  progress("the disk");
  HOTROW_RETURN_IF_ERROR(MeasureDisk(&bench, &profile));
  if (bench.on_gpu()) {
    progress("the GPU");
    HOTROW_RETURN_IF_ERROR(MeasureGpu(&bench, &profile));
  } else {
    progress("rows by key");
    HOTROW_RETURN_IF_ERROR(MeasureGather(&bench, &profile));
  }
  progress("dense layers");
  HOTROW_RETURN_IF_ERROR(bench.on_gpu() ? MeasureDenseOnGpu(&bench, &profile)
                                        : MeasureDense(&bench, &profile));
  progress("the table engine");
  const ClickTables tables(bench);
  HOTROW_RETURN_IF_ERROR(MeasureEngine(&bench, tables, &profile));
  if (bench.on_gpu()) return profile;
  progress("work beside work");
  HOTROW_RETURN_IF_ERROR(MeasureBeside(&bench, tables, &profile));
  return profile;
}

}  // namespace hotrow
