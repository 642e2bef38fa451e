#include <mutex>

#include "base/thread_pool.h"
#include "embedding/tiers/store_reads.h"

namespace hotrow {
namespace {

// Calls read(begin, end) for parts of [0, n), side by side; the first error of any.
template <typename Read>
absl::Status Spread(ThreadPool* pool, size_t n, int64_t grain, const Read& read) {
  std::mutex mutex;
  absl::Status first_error;
  ParallelFor(pool, static_cast<int64_t>(n), grain, [&](int64_t begin, int64_t end) {
    const absl::Status status = read(begin, end);
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    first_error.Update(status);
  });
  return first_error;
}

}  // namespace

absl::Status FindInStore(const ExecContext& ctx, RowStore* store, bool spread,
                         std::span<const RowKey> keys, std::span<std::byte* const> rows,
                         std::span<uint8_t> found) {
  if (keys.empty()) return absl::OkStatus();
  if (!spread) return store->Find(keys, rows, found);
  return Spread(ctx.pool, keys.size(), kStoreGrain, [&](int64_t begin, int64_t end) {
    return store->Find(keys.subspan(begin, end - begin), rows.subspan(begin, end - begin),
                       found.subspan(begin, end - begin));
  });
}

absl::Status FindInPlace(const ExecContext& ctx, HostStore* store, std::span<const RowKey> keys,
                         std::span<std::byte*> rows, int64_t grain) {
  return Spread(ctx.pool, keys.size(), grain, [&](int64_t begin, int64_t end) {
    return store->FindInPlace(keys.subspan(begin, end - begin), rows.subspan(begin, end - begin));
  });
}

}  // namespace hotrow
