#ifndef HOTROW_EMBEDDING_TIERS_STORE_READS_H_
#define HOTROW_EMBEDDING_TIERS_STORE_READS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow {

// Looks keys up in `store`, over ctx.pool if the store leaves that to its callers.
absl::Status FindInStore(const ExecContext& ctx, RowStore* store, bool spread,
                         std::span<const RowKey> keys, std::span<std::byte* const> rows,
                         std::span<uint8_t> found);

// Keys that one thread asks of a store in one call.
inline constexpr int64_t kStoreGrain = 2048;

// HostStore::FindInPlace, spread over ctx.pool, `grain` keys to a call.
absl::Status FindInPlace(const ExecContext& ctx, HostStore* store, std::span<const RowKey> keys,
                         std::span<std::byte*> rows, int64_t grain = kStoreGrain);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_TIERS_STORE_READS_H_
