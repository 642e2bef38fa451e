#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow {
namespace {

constexpr int32_t kMaxPrefetchDepth = 32;

// How many of n distinct rows a rank has to keep or serve at most. Rows fall on ranks by their
// hash, so the number is near n / N with a standard deviation below sqrt(n / N); six of them are
// passed once in 10^9 times. A step that is beyond it may still find no room: its Lookup says so.
int64_t ShareOfRank(int64_t n, int32_t world_size) {
  if (world_size == 1) return n;
  const double mean = static_cast<double>(n) / world_size;
  return std::min(n, static_cast<int64_t>(std::ceil(mean + 6 * std::sqrt(mean) + 8)));
}

int32_t WorldSize(const EmbeddingCollectionOptions& options) {
  return options.communicator == nullptr ? 1 : options.communicator->world_size();
}

absl::Status TableError(const TableConfig& table, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": ", what));
}

}  // namespace

absl::Status EmbeddingCollectionOptions::Validate() const {
  if (tables.empty())
    return absl::InvalidArgumentError("EmbeddingCollectionOptions.tables: at least one table");
  if (max_batch_size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.max_batch_size: must be positive, is ", max_batch_size));
  }
  if (WorldSize(*this) > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("EmbeddingCollectionOptions.communicator has ",
                                                   WorldSize(*this), " ranks; a table has ",
                                                   kMaxRanks, " shards, and each rank needs one"));
  }
  if (prefetch_depth < 0 || prefetch_depth > kMaxPrefetchDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.prefetch_depth: must lie in [0, ",
                     kMaxPrefetchDepth, "], is ", prefetch_depth));
  }
  if (cache_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.cache_bytes: must not be negative, is ", cache_bytes));
  }
  if (device_cache_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.device_cache_bytes: must not be negative, is ",
                     device_cache_bytes));
  }
  if (store_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.store_bytes: must be positive, is ", store_bytes));
  }
  if (evaluation_staging_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.evaluation_staging_bytes: must be positive, is ",
                     evaluation_staging_bytes));
  }
  if (open_steps < 0 || open_steps > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.open_steps: must lie in [0, 2^32 - 1], is ", open_steps));
  }
  if (open_from.empty() && open_steps != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.open_steps is ", open_steps,
                     ", but open_from is empty: empty tables have seen no steps"));
  }
  const std::string kind(StoreKindName(store));
  if (store == StoreKind::kMemory) {
    if (!store_path.empty() || disk_bytes != 0) {
      return absl::InvalidArgumentError(
          "EmbeddingCollectionOptions: store_path and disk_bytes are for the stores ssd and "
          "rocksdb; "
          "the memory store has no files but its snapshots (snapshot_dir)");
    }
    if (device_cache_bytes > 0 && cache_bytes > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.cache_bytes is ", cache_bytes,
          ", but the device reads rows where the memory store keeps them; leave it 0, and give the "
          "memory to store_bytes"));
    }
  } else {
    if (store_path.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.store_path: the store ", kind, " needs a directory"));
    }
    if (disk_bytes <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.disk_bytes: the store ", kind,
                       " needs a positive budget, is ", disk_bytes));
    }
    if (cache_bytes == 0 && device_cache_bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.cache_bytes: the store ", kind,
                       " needs a row cache, rows are trained there; only the memory store goes "
                       "without"));
    }
    if (!snapshot_dir.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.snapshot_dir: the store ", kind,
                       " keeps its snapshots in store_path; leave this empty"));
    }
  }
  for (const SnapshotSource& source : open_from) {
    if (source.snapshot == 0) {
      return absl::InvalidArgumentError(
          "EmbeddingCollectionOptions.open_from: a snapshot's name must not be 0");
    }
    if (!source.dir.empty()) continue;
    if (open_from.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.open_from: each of the ", open_from.size(),
                       " snapshots needs the directory it lies in"));
    }
    if (source.store.value_or(store) != store) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.open_from: in which directory does snapshot ",
                       source.snapshot, " of the store ", std::string(StoreKindName(*source.store)),
                       " lie? This collection's own store is ", kind));
    }
    if (store == StoreKind::kMemory && snapshot_dir.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.open_from: snapshot ", source.snapshot,
                       " has no directory, and snapshot_dir is empty"));
    }
  }
  std::set<std::string> names;
  std::set<std::string> features;
  for (const TableConfig& table : tables) {
    if (table.name.empty()) return TableError(table, "the name is empty");
    if (!names.insert(table.name).second) return TableError(table, "the name occurs twice");
    if (table.embedding_dim <= 0) {
      return TableError(table,
                        absl::StrCat("embedding_dim must be positive, is ", table.embedding_dim));
    }
    if (table.num_embeddings < 0) {
      return TableError(
          table, absl::StrCat("num_embeddings must not be negative, is ", table.num_embeddings));
    }
    if (table.max_hotness < 0) {
      return TableError(table,
                        absl::StrCat("max_hotness must not be negative, is ", table.max_hotness));
    }
    if (table.feature_names.empty()) return TableError(table, "has no features");
    for (const std::string& feature : table.feature_names) {
      if (!features.insert(feature).second) {
        return TableError(table, absl::StrCat("feature \"", feature, "\" occurs twice"));
      }
    }
    if (const absl::Status status = table.optimizer.Validate(); !status.ok()) {
      return TableError(table, std::string(status.message()));
    }
    if (const absl::Status status = table.initializer.Validate(); !status.ok()) {
      return TableError(table, std::string(status.message()));
    }
  }
  if (exchange_feedback_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.exchange_feedback_bytes: must not be negative, is ",
        exchange_feedback_bytes));
  }
  if (exchange_feedback_bytes > 0) {
    if (exchange_backward == ExchangeType::kFp32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.exchange_feedback_bytes is ", exchange_feedback_bytes,
          ", but exchange_backward is fp32, which loses nothing; set that to fp16, bf16 or int8, "
          "or exchange_feedback_bytes to 0"));
    }
    const int64_t least = EmbeddingCollection::MinFeedbackBytes(*this);
    if (exchange_feedback_bytes < least) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.exchange_feedback_bytes: four residuals of each "
          "row width need ",
          least, " bytes, the budget is ", exchange_feedback_bytes, "; raise it, or set it to 0"));
    }
  }
  if (!feature_order.empty()) {
    const std::set<std::string> ordered(feature_order.begin(), feature_order.end());
    if (ordered != features || feature_order.size() != features.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.feature_order: must name each feature of the tables once; it "
          "has ",
          feature_order.size(), " names, the tables have ", features.size(), " features"));
    }
  }
  return absl::OkStatus();
}

namespace internal {

CachePlace PlaceOfCaches(const EmbeddingCollectionOptions& options, Device device) {
  return {device, device != Device::kCpu || options.device_cache_bytes > 0};
}

int64_t CacheBudget(const EmbeddingCollectionOptions& options, CachePlace place) {
  return place.staged ? options.device_cache_bytes : options.cache_bytes;
}

const char* CacheBudgetName(CachePlace place) {
  return place.staged ? "device_cache_bytes" : "cache_bytes";
}

Plan MakePlan(const EmbeddingCollectionOptions& options, CachePlace place) {
  Plan plan;
  for (size_t i = 0; i < options.tables.size(); ++i) {
    const TableConfig& config = options.tables[i];
    PlannedTable table;
    table.config = static_cast<int32_t>(i);
    table.layout =
        RowLayout::For(config.embedding_dim, config.optimizer.kind, config.weights_precision);
    plan.rounds = plan.rounds || config.weights_precision != WeightsPrecision::kFp32;
    table.num_features = static_cast<int64_t>(config.feature_names.size());
    if (config.max_hotness > 0) {
      table.max_unique = options.max_batch_size * config.max_hotness * table.num_features;
      if (config.num_embeddings > 0)
        table.max_unique = std::min(table.max_unique, config.num_embeddings);
      table.max_unique = ShareOfRank(table.max_unique, WorldSize(options));
    }
    plan.tables.push_back(table);
  }
  std::stable_sort(plan.tables.begin(), plan.tables.end(),
                   [](const PlannedTable& a, const PlannedTable& b) {
                     return a.layout.row_bytes < b.layout.row_bytes;
                   });

  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    if (plan.classes.empty() || plan.classes.back().row_bytes != table.layout.row_bytes) {
      WidthClass width;
      width.first_table = static_cast<int32_t>(t);
      width.row_bytes = table.layout.row_bytes;
      plan.classes.push_back(width);
    }
    plan.classes.back().last_table = static_cast<int32_t>(t) + 1;
  }
  for (WidthClass& width : plan.classes) {
    bool known = true;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      width.max_unique += plan.tables[t].max_unique;
      known = known && plan.tables[t].max_unique > 0;
    }
    if (!known) width.max_unique = 0;
    plan.min_cache_bytes +=
        TieredTable::MinCacheBytes(std::max<int64_t>(width.max_unique, 1), width.row_bytes, place);
  }

  std::vector<int32_t> position_of(options.tables.size());
  for (size_t t = 0; t < plan.tables.size(); ++t)
    position_of[plan.tables[t].config] = static_cast<int32_t>(t);
  std::map<std::string, PlannedFeature> by_name;
  std::vector<std::string> order = options.feature_order;
  for (size_t i = 0; i < options.tables.size(); ++i) {
    const TableConfig& config = options.tables[i];
    for (const std::string& name : config.feature_names) {
      PlannedFeature feature;
      feature.name = name;
      feature.table = position_of[i];
      feature.dim = config.embedding_dim;
      feature.pooling = config.pooling;
      feature.num_embeddings = config.num_embeddings;
      by_name[name] = feature;
      if (options.feature_order.empty()) order.push_back(name);
    }
  }
  for (const std::string& name : order) {
    PlannedFeature feature = by_name[name];
    if (feature.pooling == Pooling::kNone) {
      feature.unpooled_index = plan.num_unpooled++;
    } else {
      feature.pooled_offset = plan.pooled_dim;
      plan.pooled_dim += feature.dim;
    }
    plan.features.push_back(std::move(feature));
  }
  return plan;
}

std::vector<GradientResiduals::Table> ResidualTables(const EmbeddingCollectionOptions& options) {
  std::vector<GradientResiduals::Table> tables;
  for (const TableConfig& table : options.tables) {
    tables.push_back({static_cast<uint32_t>(tables.size()), table.embedding_dim});
  }
  return tables;
}

// Shares `bytes` among the width classes in proportion to what they could hold.
static std::vector<int64_t> Share(const EmbeddingCollectionOptions& options, const Plan& plan,
                                  int64_t bytes) {
  // A table of unknown size is taken to want some hundred batches' worth of rows.
  constexpr int64_t kAssumedBatches = 100;
  double total_weight = 0;
  std::vector<double> weights;
  for (const WidthClass& width : plan.classes) {
    double rows = 0;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const TableConfig& config = options.tables[plan.tables[t].config];
      rows += config.num_embeddings > 0
                  ? static_cast<double>(config.num_embeddings)
                  : static_cast<double>(kAssumedBatches * options.max_batch_size) *
                        static_cast<double>(config.feature_names.size());
    }
    weights.push_back(rows * static_cast<double>(width.row_bytes));
    total_weight += weights.back();
  }
  std::vector<int64_t> shares;
  for (const double weight : weights) {
    shares.push_back(static_cast<int64_t>(static_cast<double>(bytes) * (weight / total_weight)));
  }
  return shares;
}

void SplitCacheBytes(const EmbeddingCollectionOptions& options, CachePlace place, Plan* plan) {
  int64_t rest = CacheBudget(options, place);
  for (WidthClass& width : plan->classes) {
    width.cache_bytes =
        TieredTable::MinCacheBytes(std::max<int64_t>(width.max_unique, 1), width.row_bytes, place);
    rest -= width.cache_bytes;
  }
  const std::vector<int64_t> shares = Share(options, *plan, rest);
  for (size_t c = 0; c < plan->classes.size(); ++c) {
    WidthClass& width = plan->classes[c];
    width.cache_bytes += shares[c];
    // No more than all rows of the class, where that is known: empty ways would only be aged and
    // paged in.
    int64_t all_rows = 0;
    bool known = true;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const int64_t rows =
          ShareOfRank(options.tables[plan->tables[t].config].num_embeddings, WorldSize(options));
      all_rows += rows;
      known = known && options.tables[plan->tables[t].config].num_embeddings > 0;
    }
    if (known) {
      width.cache_bytes =
          std::min(width.cache_bytes, TieredTable::MinCacheBytes(all_rows, width.row_bytes, place));
    }
  }
}

absl::StatusOr<std::vector<CachedStoreWidth>> SplitHostCacheBytes(
    const EmbeddingCollectionOptions& options, const Plan& plan) {
  std::vector<CachedStoreWidth> widths;
  int64_t rest = options.cache_bytes;
  for (const WidthClass& width : plan.classes) {
    widths.push_back({width.row_bytes, CachedStore::MinCacheBytes(width.row_bytes)});
    rest -= widths.back().cache_bytes;
  }
  if (rest < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cache_bytes: the host cache between the device's and a disk has ",
                     options.cache_bytes, " bytes, the least is ", options.cache_bytes - rest,
                     "; raise it, or set it to 0 for none"));
  }
  const std::vector<int64_t> shares = Share(options, plan, rest);
  for (size_t c = 0; c < widths.size(); ++c) widths[c].cache_bytes += shares[c];
  return widths;
}

}  // namespace internal
}  // namespace hotrow
