#ifndef HOTROW_TESTS_COMM_COLLECTIVES_H_
#define HOTROW_TESTS_COMM_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace hotrow::test {

enum class Collective {
  kAllToAllV,
  kAllReduceSmall,
  kAllReduceSlices,
  kAllGather,
  kAllGatherV,
  kBroadcast,
  kBroadcastSlices,
  kBarrier,
  kDuplicate,
};

std::vector<Collective> AllCollectives();
// As errors name it: "AllReduceSum".
std::string CollectiveName(Collective collective);

// One call of about that many bytes from each rank to each (fewer or more where the size decides
// about the way it goes). Its result is not looked at.
absl::Status Call(Communicator& c, Collective collective, int64_t bytes);

// `count` calls that the seed draws, the same on all ranks, up to max_bytes from rank to rank. The
// results are compared with what the seed says; Internal when they differ.
absl::Status RandomCalls(Communicator& c, uint64_t seed, int count, int64_t max_bytes);

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_COMM_COLLECTIVES_H_
