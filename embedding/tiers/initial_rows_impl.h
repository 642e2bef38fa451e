#ifndef HOTROW_EMBEDDING_TIERS_INITIAL_ROWS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_INITIAL_ROWS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow::internal {

// The rows of keys that no store has, for the tables of one row width. Any thread.
class InitialRows {
 public:
  explicit InitialRows(const TieredTableOptions& options);

  // Writes the initial row of keys[i] to rows[i], host memory. Keys are grouped by table.
  absl::Status Write(const ExecContext& ctx, std::span<const RowKey> keys,
                     std::span<std::byte* const> rows) const;
  // Whether a device writes the same bits: not those of InitializerKind::kNormal, see InitRows.
  bool DeviceWrites(uint32_t table) const {
    return SpecOf(table).initializer.kind != InitializerKind::kNormal;
  }
  // Enqueues on `here` the same for keys of `table`; memory that the device reaches.
  absl::Status Enqueue(const ExecContext& here, uint32_t table, const uint64_t* keys, int64_t n,
                       std::byte* const* rows) const;
  // Whether no step has changed this row of host memory since Write.
  bool IsInitial(const RowKey& key, const std::byte* row) const;

 private:
  const TieredTableSpec& SpecOf(uint32_t table) const;

  const std::vector<TieredTableSpec> tables_;
  const uint64_t seed_;
  std::vector<int64_t> step_offsets_;  // [tables by number]
};

// The tables of a plan, for their initial rows.
TieredTableOptions RowsOf(const EmbeddingCollectionOptions& options, const Plan& plan);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_INITIAL_ROWS_IMPL_H_
