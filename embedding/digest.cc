#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "embedding/digest_impl.h"
#include "ops/rows/pooled_lookup.h"
#include "ops/rows/row_layout.h"

namespace hotrow::internal {
namespace {

// Bytes of copies that are made at a time: some tasks for each of many threads, and little beside
// the budgets, which are used up when a run ends.
constexpr int64_t kCopiedBytes = int64_t{1} << 20;
constexpr int64_t kRowsPerTask = 64;

// Copies of rows.
struct RowCopies {
  std::vector<RowKey> keys;
  std::vector<std::byte*> rows;  // aligned
  std::vector<size_t> sizes;

  std::span<const std::byte> row(size_t i) const { return {rows[i], sizes[i]}; }
};

// Calls fn(copies) with all rows that `wanted` says, many at a time, after they have made up for
// what they have missed.
template <typename Wanted, typename Function>  // bool(key, row), absl::Status(const RowCopies&)
absl::Status ForEachCaughtUp(const ExecContext& ctx, int64_t row_bytes_max, const RowRules& rules,
                             Tiers* tiers, const Wanted& wanted, const Function& fn) {
  const int64_t stride = RoundUp(row_bytes_max, kBufferAlignment);
  const int64_t rows_max = std::max<int64_t>(kCopiedBytes / stride, 1);
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<std::byte> memory,
                          HostBuffer<std::byte>::Create(rows_max * stride, HugePages::kTry));
  RowCopies copies;
  const auto pass_on = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(rules.CatchUp(ctx, copies.keys, copies.rows));
    HOTROW_RETURN_IF_ERROR(fn(copies));
    copies.keys.clear();
    copies.rows.clear();
    copies.sizes.clear();
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(
      tiers->ForEachRow([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        if (!wanted(key, row)) return absl::OkStatus();
        copies.rows.push_back(memory.data() + std::ssize(copies.rows) * stride);
        std::memcpy(copies.rows.back(), row.data(), row.size());
        copies.keys.push_back(key);
        copies.sizes.push_back(row.size());
        return std::ssize(copies.rows) < rows_max ? absl::OkStatus() : pass_on();
      }));
  return pass_on();
}

}  // namespace

absl::StatusOr<std::vector<TableDigest>> DigestRows(const ExecContext& ctx,
                                                    const EmbeddingCollectionOptions& options,
                                                    const Plan& plan, const RowRules& rules,
                                                    Tiers* tiers) {
  std::vector<TableDigest> tables(options.tables.size());
  std::vector<int64_t> payload_bytes(options.tables.size());
  std::vector<size_t> position_of(options.tables.size());
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    position_of[table.config] = t;
    const TableConfig& config = options.tables[table.config];
    TableDigest& out = tables[table.config];
    out.name = config.name;
    out.dim = config.embedding_dim;
    out.row_bytes = table.layout.row_bytes;
    payload_bytes[table.config] = table.layout.payload_bytes;
  }
  const auto lives = [&](const RowKey& key, std::span<const std::byte> row) {
    return !rules.IsAged(position_of[key.table], row.data());
  };
  // Sums, so they do not depend on the order in which threads come.
  struct Sum {
    int64_t rows = 0;
    Hash128 hash = {};
  };
  const auto add_row = [&](const RowKey& key, std::span<const std::byte> row, Sum* sums) {
    sums[key.table].rows += 1;
    sums[key.table].hash +=
        HashBytes(key.key, key.table, row.first(static_cast<size_t>(payload_bytes[key.table])));
  };
  const auto add_sums = [&](const Sum* sums) {
    for (size_t t = 0; t < tables.size(); ++t) {
      tables[t].rows += sums[t].rows;
      tables[t].hash += sums[t].hash;
    }
  };
  HostStore* const host = tiers->host_store();
  if (host != nullptr && rules.stands() && tiers->Flush().ok()) {
    // Where they lie.
    std::vector<std::vector<Sum>> parts(HostStore::kParts, std::vector<Sum>(tables.size()));
    host->IterateParts(ctx.pool,
                       [&](int64_t part, const RowKey& key, std::span<const std::byte> row) {
                         if (lives(key, row)) {
                           add_row(key, row, parts[static_cast<size_t>(part)].data());
                         }
                       });
    for (const std::vector<Sum>& sums : parts) add_sums(sums.data());
    return tables;
  }
  std::mutex mutex;
  const auto add = [&](const RowCopies& copies) -> absl::Status {
    ParallelFor(ctx.pool, std::ssize(copies.keys), kRowsPerTask, [&](int64_t begin, int64_t end) {
      std::vector<Sum> sums(tables.size());
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        add_row(copies.keys[i], copies.row(i), sums.data());
      }
      const std::lock_guard<std::mutex> lock(mutex);
      add_sums(sums.data());
    });
    return absl::OkStatus();
  };
  // The classes are in order of width.
  HOTROW_RETURN_IF_ERROR(
      ForEachCaughtUp(ctx, plan.classes.back().row_bytes, rules, tiers, lives, add));
  return tables;
}

absl::Status ForEachRowOf(const ExecContext& ctx, const Plan& plan, size_t position,
                          const RowRules& rules, Tiers* tiers, const RowFunction& fn) {
  const PlannedTable& table = plan.tables[position];
  const RowLayout& layout = table.layout;
  std::vector<float> weights(static_cast<size_t>(layout.dim));
  constexpr int64_t kOffsets[] = {0, 1};
  constexpr int32_t kLookups[] = {0};
  const JaggedFeature feature = {.dim = layout.dim,
                                 .pooling = Pooling::kNone,
                                 .data = weights.data(),
                                 .stride = layout.dim,
                                 .precision = layout.precision};
  return ForEachCaughtUp(
      ctx, layout.row_bytes, rules, tiers,
      [&](const RowKey& key, std::span<const std::byte> row) {
        return key.table == static_cast<uint32_t>(table.config) &&
               !rules.IsAged(position, row.data());
      },
      [&](const RowCopies& copies) -> absl::Status {
        for (size_t i = 0; i < copies.keys.size(); ++i) {
          const std::byte* const here = copies.rows[i];
          HOTROW_RETURN_IF_ERROR(PooledLookup(ExecContext(), {.features = {&feature, 1},
                                                              .batch_size = 1,
                                                              .offsets = kOffsets,
                                                              .inverse = kLookups,
                                                              .rows = &here}));
          HOTROW_RETURN_IF_ERROR(fn(copies.keys[i].key, weights));
        }
        return absl::OkStatus();
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
