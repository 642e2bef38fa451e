#include "embedding/tiers/tiered_table.h"

#include "base/check.h"
#include "embedding/tiers/cache_buffers_impl.h"
#include "embedding/tiers/cached_table_impl.h"
#include "embedding/tiers/in_place_table_impl.h"

namespace hotrow {

using internal::CacheBuffers;

void StepRows::ForgetMisses() {
  miss_keys.clear();
  miss_rows.clear();
  miss_positions.clear();
  sent = 0;
  filled = 0;
}

int64_t TieredTable::MinCacheBytes(int64_t rows, int64_t row_bytes, CachePlace place) {
  return CacheBuffers::BudgetLeaving(RowCache::BudgetForRows(rows, row_bytes, place.device),
                                     row_bytes, place.staged);
}

int64_t TieredTable::BufferBytes(int64_t cache_bytes, int64_t row_bytes, CachePlace place) {
  return CacheBuffers(cache_bytes, row_bytes, place.staged).bytes;
}

absl::StatusOr<std::unique_ptr<TieredTable>> TieredTable::Create(const TieredTableOptions& options,
                                                                 RowStore* store,
                                                                 HostStore* in_place) {
  HOTROW_CHECK(!options.tables.empty());
  HOTROW_CHECK(store != nullptr);
  for (const TieredTableSpec& spec : options.tables) {
    HOTROW_CHECK(spec.layout.row_bytes == options.tables[0].layout.row_bytes);
  }
  if (options.cache_bytes > 0) return internal::CachedTable::Create(options, store, in_place);
  HOTROW_CHECK(in_place != nullptr && !options.place.staged);
  return std::make_unique<internal::InPlaceTable>(options, in_place);
}

}  // namespace hotrow
