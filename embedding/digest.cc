#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "embedding/digest_impl.h"
#include "ops/pooled_lookup.h"
#include "ops/row_layout.h"

namespace hotrow::internal {

absl::StatusOr<std::vector<TableDigest>> DigestRows(const EmbeddingCollectionOptions& options,
                                                    const Plan& plan, const TableDecay& decay,
                                                    RowStore* store) {
  std::vector<TableDigest> tables(options.tables.size());
  std::vector<int64_t> payload_bytes(options.tables.size());
  for (const PlannedTable& table : plan.tables) {
    const TableConfig& config = options.tables[table.config];
    TableDigest& out = tables[table.config];
    out.name = config.name;
    out.dim = config.embedding_dim;
    out.row_bytes = table.layout.row_bytes;
    payload_bytes[table.config] = table.layout.payload_bytes;
  }
  HostBuffer<std::byte> copy;
  if (decay.any()) {
    // The classes are in order of width.
    HOTROW_ASSIGN_OR_RETURN(copy, HostBuffer<std::byte>::Create(plan.classes.back().row_bytes));
  }
  HOTROW_RETURN_IF_ERROR(
      store->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        TableDigest& out = tables[key.table];
        if (decay.any()) {
          std::memcpy(copy.data(), row.data(), row.size());
          HOTROW_RETURN_IF_ERROR(decay.CatchUpCopy(key, copy.data()));
          row = {copy.data(), row.size()};
        }
        out.rows += 1;
        out.hash += HashBytes(key.key, key.table, row.first(payload_bytes[key.table]));
        return absl::OkStatus();
      }));
  return tables;
}

absl::Status ForEachRowOf(const PlannedTable& table, const TableDecay& decay, RowStore* store,
                          const RowFunction& fn) {
  const RowLayout& layout = table.layout;
  std::vector<float> weights(static_cast<size_t>(layout.dim));
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<std::byte> aligned,
                          HostBuffer<std::byte>::Create(layout.row_bytes));
  const std::byte* const here = aligned.data();
  constexpr int64_t kOffsets[] = {0, 1};
  constexpr int32_t kLookups[] = {0};
  const JaggedFeature feature = {.dim = layout.dim,
                                 .pooling = Pooling::kNone,
                                 .data = weights.data(),
                                 .stride = layout.dim,
                                 .precision = layout.precision};
  return store->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
    if (key.table != static_cast<uint32_t>(table.config)) return absl::OkStatus();
    std::memcpy(aligned.data(), row.data(), row.size());
    HOTROW_RETURN_IF_ERROR(decay.CatchUpCopy(key, aligned.data()));
    HOTROW_RETURN_IF_ERROR(PooledLookup(ExecContext(), {.features = {&feature, 1},
                                                        .batch_size = 1,
                                                        .offsets = kOffsets,
                                                        .inverse = kLookups,
                                                        .rows = &here}));
    return fn(key.key, weights);
  });
}

absl::Status SumOverRanks(RowShuffle* shuffle, std::vector<TableDigest>* tables) {
  // Rows and both halves of the hash of each table.
  std::vector<int64_t> mine;
  for (const TableDigest& table : *tables) {
    mine.insert(mine.end(), {table.rows, static_cast<int64_t>(table.hash.hi),
                             static_cast<int64_t>(table.hash.lo)});
  }
  std::vector<int64_t> all(mine.size() * shuffle->world_size());
  HOTROW_RETURN_IF_ERROR(shuffle->AllGather(mine, all));
  for (size_t i = 0; i < all.size(); i += 3) {
    TableDigest& table = (*tables)[i % mine.size() / 3];
    if (i < mine.size()) table.rows = 0, table.hash = {};
    table.rows += all[i];
    table.hash += {static_cast<uint64_t>(all[i + 1]), static_cast<uint64_t>(all[i + 2])};
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
