#ifndef HOTROW_EMBEDDING_DIGEST_IMPL_H_
#define HOTROW_EMBEDDING_DIGEST_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/stored_rows.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

// Counts and hashes all rows but those that have aged, table by table, as they would be if they
// were settled. ctx: for what they have missed.
absl::StatusOr<std::vector<TableDigest>> DigestRows(const ExecContext& ctx,
                                                    const EmbeddingCollectionOptions& options,
                                                    const Plan& plan, const RowRules& rules,
                                                    Tiers* tiers);
// Calls fn with the weights of each row of one table, a position in the plan, in the same way.
using RowFunction = std::function<absl::Status(uint64_t key, std::span<const float> weights)>;
absl::Status ForEachRowOf(const ExecContext& ctx, const Plan& plan, size_t position,
                          const RowRules& rules, Tiers* tiers, const RowFunction& fn);
// Makes them those of all ranks. Collective.
absl::Status SumOverRanks(RowShuffle* shuffle, std::vector<TableDigest>* tables);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_DIGEST_IMPL_H_
