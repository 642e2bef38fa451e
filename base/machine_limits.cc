#include "base/machine_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace hotrow {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The first two numbers of a file of a control group. "max", -1 and what is not there: no limit.
struct Numbers {
  int64_t first = kNoLimit;
  int64_t second = kNoLimit;
};
Numbers ReadNumbers(const std::string& path) {
  Numbers out;
  std::ifstream file(path);
  if (!(file >> out.first) || out.first <= 0) out.first = kNoLimit;
  if (!(file >> out.second) || out.second <= 0) out.second = kNoLimit;
  return out;
}

// Calls visit with the directory of this process's group, and of each above it, whose limits hold
// for it too. controller: of version 1; empty: of version 2.
void VisitGroups(const ControlGroups& groups, absl::string_view controller,
                 absl::FunctionRef<void(const std::string& dir)> visit) {
  // Lines are "0::PATH" in version 2 and "NUMBER:CONTROLLER,...:PATH" in version 1.
  std::string path = "/";
  std::ifstream file(groups.self);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const std::vector<absl::string_view> names = absl::StrSplit(parts[1], ',');
    if (std::find(names.begin(), names.end(), controller) != names.end()) path = parts[2];
  }
  const std::string top =
      controller.empty() ? groups.root : absl::StrCat(groups.root, "/", controller);
  // In a container the path may be that of the host; then the top is the container's own group.
  while (!path.empty()) {
    visit(absl::StrCat(top, path == "/" ? "" : path));
    const size_t slash = path == "/" ? std::string::npos : path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : std::max<size_t>(slash, 1));
  }
}

}  // namespace

int64_t UsableMemoryBytes(const ControlGroups& groups) {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const auto limit = [&](const std::string& file) {
    bytes = std::min(bytes, ReadNumbers(file).first);
  };
  VisitGroups(groups, "", [&](const std::string& dir) { limit(dir + "/memory.max"); });
  VisitGroups(groups, "memory",
              [&](const std::string& dir) { limit(dir + "/memory.limit_in_bytes"); });
  return bytes;
}

int32_t UsableProcessors(const ControlGroups& groups) {
  cpu_set_t set;
  int64_t processors = ::sched_getaffinity(0, sizeof(set), &set) == 0
                           ? CPU_COUNT(&set)
                           : static_cast<int64_t>(std::thread::hardware_concurrency());
  const auto limit = [&](int64_t quota, int64_t period) {
    if (quota == kNoLimit || period == kNoLimit) return;
    processors = std::min(processors, (quota + period - 1) / period);
  };
  VisitGroups(groups, "", [&](const std::string& dir) {
    const Numbers quota = ReadNumbers(dir + "/cpu.max");
    limit(quota.first, quota.second);
  });
  VisitGroups(groups, "cpu", [&](const std::string& dir) {
    limit(ReadNumbers(dir + "/cpu.cfs_quota_us").first,
          ReadNumbers(dir + "/cpu.cfs_period_us").first);
  });
  return static_cast<int32_t>(std::max<int64_t>(processors, 1));
}

}  // namespace hotrow
