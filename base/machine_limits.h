#ifndef HOTROW_BASE_MACHINE_LIMITS_H_
#define HOTROW_BASE_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

namespace hotrow {

// Where the system tells of control groups, of version 2 and of version 1; tests put their own
// here.
struct ControlGroups {
  std::string root = "/sys/fs/cgroup";
  std::string self = "/proc/self/cgroup";
};

// What this process may use of the machine's memory and of its processors: all of them, or less
// where its control group, or one above that, has a limit or a quota. Processors are at least one,
// and those that the process may run on (taskset).
int64_t UsableMemoryBytes(const ControlGroups& groups = {});
int32_t UsableProcessors(const ControlGroups& groups = {});

}  // namespace hotrow

#endif  // HOTROW_BASE_MACHINE_LIMITS_H_
