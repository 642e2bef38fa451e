#ifndef HOTROW_OPS_KEYS_TELL_HOST_IMPL_H_
#define HOTROW_OPS_KEYS_TELL_HOST_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/keys/tell_host.h"

namespace hotrow::internal {

absl::Status TellHostCpu(const TellHostArgs& args);
absl::Status TellHostCuda(const TellHostArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_TELL_HOST_IMPL_H_
