#include <algorithm>
#include <atomic>

#include "ops/keys/tell_host_impl.h"

namespace hotrow::internal {

absl::Status TellHostCpu(const TellHostArgs& args) {
  std::copy_n(args.from, args.num_numbers, args.to);
  std::atomic_ref<uint64_t>(*args.flag).store(args.flag_value, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
