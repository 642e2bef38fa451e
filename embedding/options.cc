#include "embedding/options.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/ranks/gradient_residuals.h"
#include "embedding/ranks/shard_map.h"

namespace hotrow {
namespace {

constexpr int32_t kMaxPrefetchDepth = 32;

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
  if (internal::WorldSize(*this) > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.communicator has ", internal::WorldSize(*this),
                     " ranks; a table has ", kMaxRanks, " shards, and each rank needs one"));
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
    const int64_t least = internal::GradientResiduals::MinBytes(internal::ResidualTables(*this));
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

}  // namespace hotrow
