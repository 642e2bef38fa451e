#include "embedding/store_kind.h"

#include "absl/strings/str_cat.h"
#include "store/rocks/rocks_store.h"

namespace hotrow {
namespace {

constexpr StoreKind kKinds[] = {StoreKind::kMemory, StoreKind::kSsd, StoreKind::kRocksDb};

// Only a build without RocksDB answers Unimplemented.
bool BuildHas(StoreKind kind) {
  return kind != StoreKind::kRocksDb || !absl::IsUnimplemented(RocksStoreOptions().Validate());
}

}  // namespace

absl::StatusOr<StoreKind> ParseStoreKind(std::string_view name) {
  std::string has;
  for (const StoreKind kind : kKinds) {
    if (!BuildHas(kind)) continue;
    if (StoreKindName(kind) == name) return kind;
    absl::StrAppend(&has, has.empty() ? "" : ", ", std::string(StoreKindName(kind)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown store \"", std::string(name), "\"; this build has: ", has));
}

std::string_view StoreKindName(StoreKind kind) {
  switch (kind) {
    case StoreKind::kMemory:
      return "memory";
    case StoreKind::kSsd:
      return "ssd";
    case StoreKind::kRocksDb:
      return "rocksdb";
  }
  return "unknown";
}

}  // namespace hotrow
