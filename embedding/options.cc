#include "embedding/options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/rows/lookup_counters_impl.h"
#include "embedding/storage_fields.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

constexpr int32_t kMaxPrefetchDepth = 32;

absl::Status TableError(const TableConfig& table, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": ", what));
}

// Admission and ageing.
absl::Status CheckRowLife(const TableConfig& table) {
  if (const absl::Status status = table.admission.Validate(); !status.ok()) {
    return TableError(table, std::string(status.message()));
  }
  if (table.ttl_steps < 0 || table.ttl_steps > UINT32_MAX) {
    return TableError(table,
                      absl::StrCat("ttl_steps must lie in [0, 2^32 - 1], is ", table.ttl_steps));
  }
  const auto limit = [&](const char* name, int64_t value) -> absl::Status {
    if (value >= 0) return absl::OkStatus();
    return TableError(table, absl::StrCat(name, " must not be negative, is ", value));
  };
  HOTROW_RETURN_IF_ERROR(limit("min_rows", table.min_rows));
  HOTROW_RETURN_IF_ERROR(limit("max_rows", table.max_rows));
  if (table.min_rows > 0 && table.ttl_steps == 0) {
    return TableError(table, absl::StrCat("min_rows is ", table.min_rows,
                                          ", the rows below which none ages, but ttl_steps is 0: "
                                          "none ages anyway; set ttl_steps, or leave it 0"));
  }
  if (table.max_rows > 0 && table.min_rows > table.max_rows) {
    return TableError(table, absl::StrCat("min_rows is ", table.min_rows, ", more than max_rows, ",
                                          table.max_rows));
  }
  const bool scored = table.score != ScoreRule::kNone;
  const bool lives =
      !table.admission.always() || table.ttl_steps > 0 || table.max_rows > 0 || scored;
  if (lives && table.optimizer.weight_decay_mode == WeightDecayMode::kTable) {
    return TableError(table,
                      "admission, ttl_steps, max_rows and score do not go with weight_decay_mode "
                      "table, whose rows are all there; use l2 or decoupled, or leave them out");
  }
  if (scored && !table.read_only_features.empty()) {
    return TableError(table, "score does not go with read_only_features; leave one of them out");
  }
  if (table.max_rows_by == RowOrder::kScore) {
    if (!scored || table.max_rows == 0) {
      return TableError(table, absl::StrCat("max_rows_by is score, but ",
                                            scored ? "max_rows is 0: set it"
                                                   : "score is none: set it to max, sum or last",
                                            ", or leave max_rows_by age"));
    }
    if (table.ttl_steps > 0 || table.min_rows > 0) {
      return TableError(table, absl::StrCat("max_rows_by score goes with neither ttl_steps, ",
                                            table.ttl_steps, ", nor min_rows, ", table.min_rows,
                                            "; leave them 0, or max_rows_by age"));
    }
  }
  if (!table.admission.always() && !table.read_only_features.empty()) {
    return TableError(table,
                      "admission does not go with read_only_features; leave one of them out");
  }
  const std::set<std::string> read_only(table.read_only_features.begin(),
                                        table.read_only_features.end());
  if ((table.ttl_steps > 0 || table.max_rows > 0) &&
      read_only.size() == table.feature_names.size()) {
    return TableError(table,
                      "ttl_steps and max_rows: all of its features are read only, so no row is "
                      "ever updated and all would age; leave them 0");
  }
  return absl::OkStatus();
}

absl::Status CheckAgeLines(std::span<const TableConfig> tables, const StartOptions& start) {
  if (start.age_lines.empty()) return absl::OkStatus();
  const auto above = std::find_if(start.age_lines.begin(), start.age_lines.end(),
                                  [&](const RowLines& lines) { return lines.age > start.steps; });
  if (start.age_lines.size() != tables.size() || above != start.age_lines.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.start.age_lines: one for each of the ", tables.size(),
        " tables, none above start.steps, ", start.steps, "; there are ", start.age_lines.size(),
        above == start.age_lines.end() ? "" : absl::StrCat(", one of them ", above->age)));
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    const std::vector<ScoreLine>& scores = start.age_lines[t].scores;
    if (scores.empty()) continue;
    if (tables[t].score == ScoreRule::kNone) {
      return TableError(tables[t],
                        "start.age_lines has lines of scores, but its score is none; set it as it "
                        "was, or start from an export, which leaves aged rows out");
    }
    if (!RowLines::AreLines(scores, start.steps)) {
      return TableError(tables[t],
                        absl::StrCat("start.age_lines: of lines of scores the steps must rise "
                                     "and the ranges fall, none may lie above start.steps, ",
                                     start.steps, "; give them as age_lines() did"));
    }
  }
  return absl::OkStatus();
}

// A storage of that kind, its fields as in one that nobody has set.
template <size_t... kIndexes>
Storage NewStorage(size_t kind, std::index_sequence<kIndexes...>) {
  Storage out;
  ((kIndexes == kind ? void(out.emplace<kIndexes>()) : void()), ...);
  return out;
}

template <StoreKind kKind, typename T>
constexpr bool kIsStorageOf =
    std::is_same_v<std::variant_alternative_t<static_cast<size_t>(kKind), Storage>, T>;
static_assert(kIsStorageOf<StoreKind::kMemory, MemoryStorage> &&
              kIsStorageOf<StoreKind::kSsd, SsdStorage> &&
              kIsStorageOf<StoreKind::kRocksDb, RocksDbStorage>);

}  // namespace

Storage MakeStorage(const StorageFields& fields) {
  Storage out = NewStorage(static_cast<size_t>(fields.kind),
                           std::make_index_sequence<std::variant_size_v<Storage>>());
  std::visit(
      [&fields](auto& storage) {
        storage.memory_bytes = fields.memory_bytes;
        if constexpr (requires { storage.snapshot_dir; }) {
          storage.snapshot_dir = fields.dir;
        } else {
          storage.path = fields.dir;
          storage.disk_bytes = fields.disk_bytes;
        }
      },
      out);
  return out;
}

StorageFields FieldsOf(const Storage& storage) {
  StorageFields fields = {.kind = static_cast<StoreKind>(storage.index())};
  std::visit(
      [&fields](const auto& of_kind) {
        fields.memory_bytes = of_kind.memory_bytes;
        if constexpr (requires { of_kind.snapshot_dir; }) {
          fields.dir = of_kind.snapshot_dir;
        } else {
          fields.dir = of_kind.path;
          fields.disk_bytes = of_kind.disk_bytes;
        }
      },
      storage);
  return fields;
}

absl::Status EmbeddingCollectionOptions::Validate() const {
  if (tables.empty())
    return absl::InvalidArgumentError("EmbeddingCollectionOptions.tables: at least one table");
  if (max_batch_size <= 0 || max_batch_size > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.max_batch_size: must lie in [1, ", INT32_MAX,
                     "], is ", max_batch_size));
  }
  if (internal::WorldSize(*this) > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.ranks.communicator has ", internal::WorldSize(*this),
        " ranks; a table has ", kMaxRanks, " shards, and each rank needs one"));
  }
  if (!(max_gradient_norm >= 0) || !std::isfinite(max_gradient_norm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.max_gradient_norm: must be finite and >= 0, is ",
                     max_gradient_norm));
  }
  if (prefetch_depth < 0 || prefetch_depth > kMaxPrefetchDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.prefetch_depth: must lie in [0, ",
                     kMaxPrefetchDepth, "], is ", prefetch_depth));
  }
  const StorageFields storage = FieldsOf(store);
  const StoreFacts& facts = FactsOf(storage.kind);
  const std::string kind(facts.word);
  if (cache.bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.cache.bytes: must not be negative, is ", cache.bytes));
  }
  if (cache.device_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.cache.device_bytes: must not be negative, is ",
                     cache.device_bytes));
  }
  if (cache.device_index_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.cache.device_index_bytes: must not be negative, is ",
        cache.device_index_bytes));
  }
  if (cache.device_index_bytes > 0 && (cache.device_bytes == 0 || !facts.in_place)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.cache.device_index_bytes is ", cache.device_index_bytes,
        ": it is for a device cache (cache.device_bytes, which is ", cache.device_bytes,
        ") over a memory store, not ", kind, "; leave it 0"));
  }
  if (storage.memory_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.store: the memory_bytes of the store ", kind,
                     " must be positive, is ", storage.memory_bytes));
  }
  if (evaluation_staging_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.evaluation_staging_bytes: must be positive, is ",
                     evaluation_staging_bytes));
  }
  if (start.steps < 0 || start.steps > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.start.steps: must lie in [0, 2^32 - 1], is ", start.steps));
  }
  if (start.from.empty() && start.steps != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.start.steps is ", start.steps,
                     ", but start.from is empty: empty tables have seen no steps"));
  }
  HOTROW_RETURN_IF_ERROR(CheckAgeLines(tables, start));
  if (!start.learning_rates.empty()) {
    int64_t before = start.settled_steps;
    bool ordered = before >= 0;
    for (const LearningRateRun& run : start.learning_rates) {
      ordered = ordered && run.last_step > before;
      before = run.last_step;
    }
    if (!ordered || before != start.steps) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.start.learning_rates: the steps of its ",
                       start.learning_rates.size(), " runs must rise from start.settled_steps, ",
                       start.settled_steps, ", and end at start.steps, ", start.steps,
                       "; they end at ", before));
    }
  }
  if (facts.in_place && cache.device_bytes > 0 && cache.bytes > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EmbeddingCollectionOptions.cache.bytes is ", cache.bytes,
        ", but the device reads rows where the memory store keeps them; leave it 0, and give the "
        "memory to the store"));
  }
  if (facts.on_disk) {
    if (storage.dir.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("EmbeddingCollectionOptions.store: the store ",
                                                     kind,
                                                     " needs a directory, and its path is empty"));
    }
    if (storage.disk_bytes <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.store: the disk_bytes of the store ", kind,
                       " must be positive, is ", storage.disk_bytes));
    }
  }
  if (!facts.in_place && cache.bytes == 0 && cache.device_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.cache.bytes: the store ", kind,
                     " needs a row cache, rows are trained there; only the memory store goes "
                     "without"));
  }
  for (const SnapshotSource& source : start.from) {
    if (source.snapshot == 0) {
      return absl::InvalidArgumentError(
          "EmbeddingCollectionOptions.start.from: a snapshot's name must not be 0");
    }
    if (!source.dir.empty()) continue;
    if (start.from.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.start.from: each of the ", start.from.size(),
                       " snapshots needs the directory it lies in"));
    }
    if (source.store.value_or(storage.kind) != storage.kind) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.start.from: in which directory does snapshot ",
                       source.snapshot, " of the store ", std::string(StoreKindName(*source.store)),
                       " lie? This collection's own store is ", kind));
    }
    if (storage.dir.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("EmbeddingCollectionOptions.start.from: snapshot ", source.snapshot,
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
    if (!(table.max_row_gradient_norm >= 0) || !std::isfinite(table.max_row_gradient_norm)) {
      return TableError(table, absl::StrCat("max_row_gradient_norm must be finite and >= 0, is ",
                                            table.max_row_gradient_norm));
    }
    for (const std::string& feature : table.read_only_features) {
      if (std::find(table.feature_names.begin(), table.feature_names.end(), feature) ==
          table.feature_names.end()) {
        return TableError(table, absl::StrCat("read_only_features names \"", feature,
                                              "\", which is no feature of it"));
      }
    }
    if (const absl::Status status = table.optimizer.Validate(); !status.ok()) {
      return TableError(table, std::string(status.message()));
    }
    if (const absl::Status status = table.initializer.Validate(); !status.ok()) {
      return TableError(table, std::string(status.message()));
    }
    if (const absl::Status status = CheckRowLife(table); !status.ok()) return status;
    if (table.admission.counts() && admission_bytes < internal::LookupCounters::kMinBytes) {
      return TableError(
          table, absl::StrCat("its admission counts lookups, and "
                              "EmbeddingCollectionOptions.admission_bytes, the memory of the "
                              "counters, must be at least ",
                              internal::LookupCounters::kMinBytes, ", is ", admission_bytes));
    }
  }
  constexpr int64_t kMaxRowLimitSteps = int64_t{1} << 20;
  if (row_limit_steps < 1 || row_limit_steps > kMaxRowLimitSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.row_limit_steps: must lie in [1, ",
                     kMaxRowLimitSteps, "], is ", row_limit_steps));
  }
  if (ranks.feedback_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("EmbeddingCollectionOptions.ranks.feedback_bytes: must not be negative, is ",
                     ranks.feedback_bytes));
  }
  if (ranks.feedback_bytes > 0) {
    if (ranks.backward == ExchangeType::kFp32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.ranks.feedback_bytes is ", ranks.feedback_bytes,
          ", but ranks.backward is fp32, which loses nothing; set that to fp16, bf16 or int8, "
          "or ranks.feedback_bytes to 0"));
    }
    const int64_t least = internal::GradientResiduals::MinBytes(internal::ResidualTables(*this));
    if (ranks.feedback_bytes < least) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EmbeddingCollectionOptions.ranks.feedback_bytes: four residuals of each "
          "row width need ",
          least, " bytes, the budget is ", ranks.feedback_bytes, "; raise it, or set it to 0"));
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
