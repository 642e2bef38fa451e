#ifndef HOTROW_EMBEDDING_OPEN_STORE_IMPL_H_
#define HOTROW_EMBEDDING_OPEN_STORE_IMPL_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "embedding/options.h"
#include "store/open.h"

namespace hotrow::internal {

// A store of whatever kind, also by its own type where more is asked of it.
struct OpenedStore {
  std::unique_ptr<RowStore> store;
  HostStore* host = nullptr;
  SsdStore* ssd = nullptr;
};

// Opens the store that the options name, with the rows that it is to start from; see StartOptions
// for what is refused. `tables` are those of the collection. kCuda: a GPU reads
// the rows of a memory store where they lie.
absl::StatusOr<OpenedStore> OpenCollectionStore(const EmbeddingCollectionOptions& options,
                                                const std::vector<StoreTable>& tables,
                                                Device device);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_OPEN_STORE_IMPL_H_
