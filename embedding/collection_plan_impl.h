#ifndef HOTROW_EMBEDDING_COLLECTION_PLAN_IMPL_H_
#define HOTROW_EMBEDDING_COLLECTION_PLAN_IMPL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "embedding/options.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/serving/serving_rows.h"
#include "embedding/tiers/cached_store.h"
#include "embedding/tiers/tiered_table.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"

// What follows from the options of an EmbeddingCollection alone, before any memory is taken.

namespace hotrow::internal {

struct PlannedFeature {
  std::string name;
  int32_t table = 0;  // position in Plan::tables
  int32_t dim = 0;
  Pooling pooling = Pooling::kSum;
  int64_t pooled_offset = 0;    // columns before it in EmbeddingOutput::pooled
  int32_t unpooled_index = -1;  // position in EmbeddingOutput::unpooled
  int64_t num_embeddings = 0;
  bool read_only = false;
};

struct PlannedTable {
  int32_t config = 0;  // position in options.tables: RowKey::table
  RowLayout layout;
  int64_t max_unique = 0;  // per step at most; 0: not known
  int64_t num_features = 0;
  bool frozen = false;  // all of its features are read only
  ScoreRule score = ScoreRule::kNone;
  ServingRows serve_rows = ServingRows::kAsTrained;
  // The precision of rows as lookups read them.
  WeightsPrecision read_precision = WeightsPrecision::kFp32;
};

// A run of tables with one row width, with any dims, optimizers and precisions.
struct WidthClass {
  int32_t first_table = 0;  // in Plan::tables
  int32_t last_table = 0;   // one past
  int64_t row_bytes = 0;
  int64_t max_unique = 0;  // per step at most; 0: not known
  int64_t cache_bytes = 0;
  int64_t index_bytes = 0;
};

// What follows from the options alone. Tables are put in order of width, so that the unique keys of
// one width class are one run of the unique keys of a batch.
struct Plan {
  std::vector<PlannedTable> tables;
  std::vector<WidthClass> classes;
  std::vector<PlannedFeature> features;
  int64_t pooled_dim = 0;
  int32_t num_unpooled = 0;
  bool rounds = false;     // some table has weights of 16 bits, which updates round
  bool read_only = false;  // some feature is
  bool scores = false;     // some table keeps them
  // The least cache budget: room for one step in the classes whose max_unique is known, for one row
  // in others.
  int64_t min_cache_bytes = 0;
};

Plan MakePlan(const EmbeddingCollectionOptions& options, CachePlace place);

// The tables as GradientResiduals takes them.
std::vector<GradientResiduals::Table> ResidualTables(const EmbeddingCollectionOptions& options);

int32_t WorldSize(const EmbeddingCollectionOptions& options);  // 1 without a communicator

// FailedPrecondition, InvalidArgument or Unimplemented where the collection cannot run on the
// device of ctx. RowRules has its own check.
absl::Status CheckDevice(const EmbeddingCollectionOptions& options, const ExecContext& ctx);

// Where the row caches lie, their budget, and what errors call it: cache.bytes, or
// cache.device_bytes where they are staged.
CachePlace PlaceOfCaches(const EmbeddingCollectionOptions& options, Device device);
int64_t CacheBudget(const EmbeddingCollectionOptions& options, CachePlace place);
std::string CacheBudgetName(const EmbeddingCollectionOptions& options, CachePlace place);

// The most rows of options.tables[config] that this rank keeps; 0: not known.
int64_t RowsOfRank(const EmbeddingCollectionOptions& options, int32_t config);

// Gives each width class what one step needs and shares the rest in proportion to what the classes
// could hold. The split moves speed, never values. CacheBudget() >= plan->min_cache_bytes.
void SplitCacheBytes(const EmbeddingCollectionOptions& options, CachePlace place, Plan* plan);

// The same for the device memory of indexes, by the rows that a class may have; nothing where the
// options ask for none. ResourceExhausted when the budget is too small.
absl::Status SplitIndexBytes(const EmbeddingCollectionOptions& options, Device device, Plan* plan);

// The same for the host memory between such caches and a disk, of which options.cache.bytes is the
// budget. ResourceExhausted when that is too small.
absl::StatusOr<std::vector<CachedStoreWidth>> SplitHostCacheBytes(
    const EmbeddingCollectionOptions& options, const Plan& plan);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_COLLECTION_PLAN_IMPL_H_
