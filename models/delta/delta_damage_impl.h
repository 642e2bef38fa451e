#ifndef HOTROW_MODELS_DELTA_DELTA_DAMAGE_IMPL_H_
#define HOTROW_MODELS_DELTA_DELTA_DAMAGE_IMPL_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// DataLoss, with a remedy: a file or directory of a chain of deltas is damaged.
absl::Status DeltaDamaged(const std::string& path, std::string_view what);

// FailedPrecondition: something is whole, but of another chain.
absl::Status DeltaOfAnotherChain(const std::string& path, std::string_view what);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_DELTA_DAMAGE_IMPL_H_
