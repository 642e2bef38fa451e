#include "base/thread_pool.h"
#include "ops/keys/owner_parts_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kGrain = 4096;

}  // namespace

absl::Status OwnerPartsCpu(const ExecContext& ctx, const OwnerPartsArgs& args) {
  const auto num_tables = static_cast<int32_t>(args.tables.size());
  for (int32_t t = 0; t < num_tables; ++t) {
    const int64_t first = args.table_offsets[t];
    ParallelFor(
        ctx.pool, args.table_offsets[t + 1] - first, kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = first + begin; i < first + end; ++i) {
            args.parts[i] =
                OwnerOfKey(args.values[i], args.tables[t], args.world_size) * num_tables + t;
          }
        });
  }
  return absl::OkStatus();
}

absl::Status PickWordsCpu(const ExecContext& ctx, const PickWordsArgs& args) {
  ParallelFor(ctx.pool, args.num_words, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) args.to[i] = args.from[args.positions[i]];
  });
  return absl::OkStatus();
}

absl::Status PutWordsCpu(const ExecContext& ctx, const PutWordsArgs& args) {
  ParallelFor(ctx.pool, args.num_words, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) args.to[args.positions[i]] = args.from[i];
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
