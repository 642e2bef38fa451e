#ifndef HOTROW_EMBEDDING_OPEN_STORE_IMPL_H_
#define HOTROW_EMBEDDING_OPEN_STORE_IMPL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/thread_pool.h"
#include "embedding/options.h"
#include "store/disk_room.h"
#include "store/open.h"

namespace hotrow::internal {

// A store of any kind, also by its own type where more is asked of it.
struct OpenedStore {
  std::unique_ptr<RowStore> store;
  HostStore* host = nullptr;
  SsdStore* ssd = nullptr;
  DiskRoom* room = nullptr;  // of a store on a disk
};

// The tables of a collection, as its store sees them, and who reads the rows of a memory store
// where they lie: see HostStoreOptions.
struct StoreUse {
  std::vector<StoreTable> tables;
  std::vector<int64_t> rows_max;
  Device device = Device::kCpu;
  ThreadPool* pool = nullptr;
};

// Opens the store that the options name, with the rows that it is to start from; see StartOptions
// for what is refused.
absl::StatusOr<OpenedStore> OpenCollectionStore(const EmbeddingCollectionOptions& options,
                                                const StoreUse& use);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_OPEN_STORE_IMPL_H_
