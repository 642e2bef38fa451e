#ifndef HOTROW_TESTS_COMM_DEVICE_RANKS_H_
#define HOTROW_TESTS_COMM_DEVICE_RANKS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

// Ranks that are threads of this process, each with its own GPU: on the emulated GPU up to
// eight, else as many as the machine has.
namespace hotrow::test {

inline constexpr int kDeviceRanksMax = 8;

// Empty, or why this machine cannot run so many.
std::string WhyNotOnDevices(int world_size);

// RunOnThreads with device r current in the thread of rank r. Returns what rank_main returned.
std::vector<absl::Status> RunOnDevices(int world_size, const CommunicatorOptions& options,
                                       const std::function<absl::Status(Communicator&)>& rank_main);

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_COMM_DEVICE_RANKS_H_
