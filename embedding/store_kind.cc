#include "embedding/store_kind.h"

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::StatusOr<StoreKind> ParseStoreKind(std::string_view name) {
  if (name == "memory") return StoreKind::kMemory;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown store \"", std::string(name), "\"; this build has: memory"));
}

std::string_view StoreKindName(StoreKind kind) {
  switch (kind) {
    case StoreKind::kMemory:
      return "memory";
  }
  return "unknown";
}

}  // namespace hotrow
