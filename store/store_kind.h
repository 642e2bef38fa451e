#ifndef HOTROW_STORE_STORE_KIND_H_
#define HOTROW_STORE_STORE_KIND_H_

#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// The kinds of store, without the stores; store/open.h opens one.
enum class StoreKind {
  kMemory,   // "memory": HostStore
  kSsd,      // "ssd": SsdStore, a log on an SSD with an index in memory
  kRocksDb,  // "rocksdb": RocksDB, where the build has it
};

// The kind of a name above. The error of an unknown name, or of a kind that this build lacks, lists
// those it has.
absl::StatusOr<StoreKind> ParseStoreKind(std::string_view name);
std::string_view StoreKindName(StoreKind kind);

}  // namespace hotrow

#endif  // HOTROW_STORE_STORE_KIND_H_
