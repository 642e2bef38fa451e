#ifndef HOTROW_EMBEDDING_TIERS_HOST_CACHED_TABLE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_HOST_CACHED_TABLE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/tiers/cached_table_impl.h"
#include "embedding/tiers/row_outflow_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow::internal {

// A CachedTable whose cache is in the host's memory: the host finds keys and reads rows by itself,
// and nothing is left to a device.
class HostCachedTable final : public CachedTable {
 public:
  HostCachedTable(const TieredTableOptions& options, RowStore* store, HostStore* in_place)
      : CachedTable(options, store, in_place) {}

  absl::Status ResolveForRead(const ExecContext& ctx, StepRows* step,
                              std::span<std::byte*> rows) override;

 private:
  absl::Status TakeKeys(const ExecContext& ctx, std::span<const RowKey> keys,
                        std::span<const int32_t> counts, Placing* placing, StepRows* step) override;
  absl::Status EnqueueChunk(const ExecContext& ctx, int64_t size,
                            RowOutflow::Chunk* chunk) override;
  absl::Status EndPlacing(StepRows* /*step*/) override { return absl::OkStatus(); }
  std::span<const int64_t> SlotsOf(const StepRows& step) const override { return step.slots; }
  void Unpin(const ExecContext& ctx, StepRows* step, bool updated) override;
  bool LetAllGo() override { return false; }
  absl::Status ReadCached(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                          std::span<std::byte*> rows) override;
  absl::Status OverwriteCached(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<const std::byte* const> rows) override;

  // What Unpin uses.
  std::vector<int64_t> clean_slots_;
  std::vector<int64_t> dirty_slots_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_HOST_CACHED_TABLE_IMPL_H_
