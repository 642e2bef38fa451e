#include "embedding/options.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/path_list.h"
#include "base/status_macros.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/option_table.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/rows/lookup_counters_impl.h"
#include "embedding/storage_fields.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

using O = EmbeddingCollectionOptions;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <typename... Parts>
absl::Status TableError(const TableConfig& table, const Parts&... what) {
  return Invalid("table \"", table.name, "\": ", what...);
}

absl::Status InTable(const TableConfig& table, const absl::Status& status) {
  return status.ok() ? status : TableError(table, status.message());
}

absl::Status CheckRowLimits(const O& o, const TableConfig& table) {
  const std::string min_rows = o.NameInTable("min_rows");
  const std::string max_rows = o.NameInTable("max_rows");
  const std::string ttl_steps = o.NameInTable("ttl_steps");
  if (table.min_rows > 0 && table.ttl_steps == 0) {
    return TableError(table, min_rows, " is ", table.min_rows,
                      ", the rows below which none ages, but ", ttl_steps,
                      " is 0: none ages anyway; set ", ttl_steps, ", or leave it 0");
  }
  if (table.max_rows > 0 && table.min_rows > table.max_rows) {
    return TableError(table, min_rows, " is ", table.min_rows, ", more than ", max_rows, ", ",
                      table.max_rows);
  }
  if (table.max_rows_by == RowOrder::kAge) return absl::OkStatus();
  const bool scored = table.score != ScoreRule::kNone;
  if (!scored || table.max_rows == 0) {
    return TableError(table, "max_rows_by is score, but ",
                      scored ? absl::StrCat(max_rows, " is 0: set it")
                             : "score is none: set it to max, sum or last",
                      ", or leave max_rows_by age");
  }
  if (table.ttl_steps > 0 || table.min_rows > 0) {
    return TableError(table, "max_rows_by score goes with neither ", ttl_steps, ", ",
                      table.ttl_steps, ", nor ", min_rows, ", ", table.min_rows,
                      "; leave them 0, or max_rows_by age");
  }
  return absl::OkStatus();
}

// Admission, ageing and scores.
absl::Status CheckRowLife(const O& o, const TableConfig& table) {
  HOTROW_RETURN_IF_ERROR(CheckRowLimits(o, table));
  const std::string admission = o.NameInTable("admission");
  const std::string ages_by =
      absl::StrCat(o.NameInTable("ttl_steps"), " and ", o.NameInTable("max_rows"));
  const bool admits = !table.admission.always();
  const bool ages = table.ttl_steps > 0 || table.max_rows > 0;
  const bool scored = table.score != ScoreRule::kNone;
  if ((admits || ages || scored) && table.optimizer.weight_decay_mode == WeightDecayMode::kTable) {
    return TableError(table, admission, ", score, ", ages_by, " do not go with ",
                      o.NameInTable("optimizer.weight_decay_mode"),
                      " table, whose rows are all there; use l2 or decoupled, or leave them out");
  }
  if ((admits || scored) && !table.read_only_features.empty()) {
    return TableError(table, scored ? "score" : admission,
                      " does not go with read_only_features; leave one of them out");
  }
  const std::set<std::string> read_only(table.read_only_features.begin(),
                                        table.read_only_features.end());
  if (ages && read_only.size() == table.feature_names.size()) {
    return TableError(table, ages_by,
                      ": all of its features are read only, so no row is ever updated and all "
                      "would age; leave them 0");
  }
  return absl::OkStatus();
}

absl::Status CheckTable(const O& o, const TableConfig& table) {
  HOTROW_RETURN_IF_ERROR(InTable(
      table, CheckOptions(table, [&o](std::string_view path) { return o.NameInTable(path); })));
  if (table.feature_names.empty()) return TableError(table, "has no features");
  for (const std::string& feature : table.read_only_features) {
    if (std::find(table.feature_names.begin(), table.feature_names.end(), feature) ==
        table.feature_names.end()) {
      return TableError(table, "read_only_features names \"", feature,
                        "\", which is no feature of it");
    }
  }
  HOTROW_RETURN_IF_ERROR(InTable(table, table.optimizer.Validate()));
  HOTROW_RETURN_IF_ERROR(InTable(table, table.initializer.Validate()));
  if (table.admission.counts() && o.admission_bytes < internal::LookupCounters::kMinBytes) {
    return TableError(table, "its admission counts lookups, and ", o.NameOf("admission_bytes"),
                      ", the memory of the counters, must be at least ",
                      internal::LookupCounters::kMinBytes, ", is ", o.admission_bytes);
  }
  return CheckRowLife(o, table);
}

absl::Status CheckTables(const O& o) {
  if (o.tables.empty()) return Invalid(o.NameOf("tables"), ": at least one table");
  std::set<std::string> names;
  std::set<std::string> features;
  for (const TableConfig& table : o.tables) {
    if (table.name.empty()) return TableError(table, "the name is empty");
    if (!names.insert(table.name).second) return TableError(table, "the name occurs twice");
    HOTROW_RETURN_IF_ERROR(CheckTable(o, table));
    for (const std::string& feature : table.feature_names) {
      if (!features.insert(feature).second) {
        return TableError(table, "feature \"", feature, "\" occurs twice");
      }
    }
  }
  const std::set<std::string> ordered(o.feature_order.begin(), o.feature_order.end());
  if (!ordered.empty() && (ordered != features || o.feature_order.size() != features.size())) {
    return Invalid(o.NameOf("feature_order"),
                   ": must name each feature of the tables once; it has ", o.feature_order.size(),
                   " names, the tables have ", features.size(), " features");
  }
  return absl::OkStatus();
}

// What works without a device cache only so far.
absl::Status CheckCpuOnly(const O& o) {
  if (!std::all_of(o.start.age_lines.begin(), o.start.age_lines.end(),
                   [](const RowLines& lines) { return lines.none(); })) {
    return absl::UnimplementedError(absl::StrCat(
        o.NameOf("start.age_lines"),
        ": some of the rows have aged, which a device cache does not know so far; start on the CPU "
        "without one, or from an export, which leaves those rows out"));
  }
  for (const TableConfig& table : o.tables) {
    const std::pair<bool, std::string> given[] = {
        {o.max_gradient_norm > 0, o.NameOf("max_gradient_norm")},
        {table.max_row_gradient_norm > 0, o.NameInTable("max_row_gradient_norm")},
        {!table.admission.always(), o.NameInTable("admission")},
        {table.ttl_steps > 0, o.NameInTable("ttl_steps")},
        {table.max_rows > 0, o.NameInTable("max_rows")},
        {table.score != ScoreRule::kNone, "score"},
        {table.serve_rows != ServingRows::kAsTrained,
         absl::StrCat(o.NameInTable("serve_rows"), " ",
                      std::string(WordOf(kServingRowsWords, table.serve_rows)))},
        {table.optimizer.weight_decay_mode == WeightDecayMode::kTable,
         o.NameInTable("optimizer.weight_decay_mode") + " table"}};
    for (const auto& [is_given, name] : given) {
      if (!is_given) continue;
      return absl::UnimplementedError(
          absl::StrCat("table \"", table.name, "\": ", name,
                       " works without a device cache only so far; leave it out, or ",
                       o.NameOf("cache.device_bytes"), " 0 on the CPU"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStore(const O& o) {
  const StorageFields storage = FieldsOf(o.store);
  const StoreFacts& facts = FactsOf(storage.kind);
  const std::string kind(facts.word);
  if (storage.memory_bytes <= 0) {
    return Invalid(o.NameOf("store.memory_bytes"), ": the memory of the store ", kind,
                   " must be positive, is ", storage.memory_bytes);
  }
  if (facts.on_disk && storage.dir.empty()) {
    return Invalid(o.NameOf("store.path"), ": the store ", kind,
                   " needs a directory, and its path is empty");
  }
  if (facts.on_disk && storage.disk_bytes <= 0) {
    return Invalid(o.NameOf("store.disk_bytes"), ": the disk space of the store ", kind,
                   " must be positive, is ", storage.disk_bytes);
  }
  if (!facts.in_place && o.cache.bytes == 0 && o.cache.device_bytes == 0) {
    return Invalid(o.NameOf("cache.bytes"), ": the store ", kind,
                   " needs a row cache, rows are trained there; only the memory store goes "
                   "without");
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceCache(const O& o) {
  const StoreFacts& facts = FactsOf(FieldsOf(o.store).kind);
  if (o.cache.device_index_bytes > 0 && (o.cache.device_bytes == 0 || !facts.in_place)) {
    return Invalid(o.NameOf("cache.device_index_bytes"), " is ", o.cache.device_index_bytes,
                   ": it is for a device cache (", o.NameOf("cache.device_bytes"), ", which is ",
                   o.cache.device_bytes, ") over a memory store, not ", std::string(facts.word),
                   "; leave it 0");
  }
  if (o.cache.device_bytes == 0) return absl::OkStatus();
  if (facts.in_place && o.cache.bytes > 0) {
    return Invalid(o.NameOf("cache.bytes"), " is ", o.cache.bytes,
                   ", but the device reads rows where the memory store keeps them; leave it 0, and "
                   "give the memory to the store");
  }
  return CheckCpuOnly(o);
}

absl::Status CheckRanks(const O& o) {
  if (internal::WorldSize(o) > kMaxRanks) {
    return Invalid(o.NameOf("ranks.communicator"), " has ", internal::WorldSize(o),
                   " ranks; a table has ", kMaxRanks, " shards, and each rank needs one");
  }
  if (o.ranks.feedback_bytes == 0) return absl::OkStatus();
  const std::string name = o.NameOf("ranks.feedback_bytes");
  if (o.ranks.backward == ExchangeType::kFp32) {
    return Invalid(name, " is ", o.ranks.feedback_bytes, ", but ", o.NameOf("ranks.backward"),
                   " is fp32, which loses nothing; set that to fp16, bf16 or int8, or ", name,
                   " to 0");
  }
  const int64_t least = internal::GradientResiduals::MinBytes(internal::ResidualTables(o));
  if (o.ranks.feedback_bytes < least) {
    return Invalid(name, ": four residuals of each row width need ", least,
                   " bytes, the budget is ", o.ranks.feedback_bytes, "; raise it, or set it to 0");
  }
  return absl::OkStatus();
}

absl::Status CheckAgeLines(const O& o) {
  const StartOptions& start = o.start;
  const std::string name = o.NameOf("start.age_lines");
  const auto above = std::find_if(start.age_lines.begin(), start.age_lines.end(),
                                  [&](const RowLines& lines) { return lines.age > start.steps; });
  if (start.age_lines.size() != o.tables.size() || above != start.age_lines.end()) {
    return Invalid(
        name, ": one for each of the ", o.tables.size(), " tables, none above start.steps, ",
        start.steps, "; there are ", start.age_lines.size(),
        above == start.age_lines.end() ? "" : absl::StrCat(", one of them ", above->age));
  }
  for (size_t t = 0; t < o.tables.size(); ++t) {
    const std::vector<ScoreLine>& scores = start.age_lines[t].scores;
    if (scores.empty()) continue;
    if (o.tables[t].score == ScoreRule::kNone) {
      return TableError(o.tables[t], name,
                        " has lines of scores, but its score is none; set it as it was, or start "
                        "from an export, which leaves aged rows out");
    }
    if (!RowLines::AreLines(scores, start.steps)) {
      return TableError(o.tables[t], name,
                        ": of lines of scores the steps must rise and the ranges fall, none may "
                        "lie above start.steps, ",
                        start.steps, "; give them as age_lines() did");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLearningRates(const O& o) {
  int64_t before = o.start.settled_steps;
  bool ordered = true;
  for (const LearningRateRun& run : o.start.learning_rates) {
    ordered = ordered && run.last_step > before;
    before = run.last_step;
  }
  if (ordered && before == o.start.steps) return absl::OkStatus();
  return Invalid(o.NameOf("start.learning_rates"), ": the steps of its ",
                 o.start.learning_rates.size(), " runs must rise from start.settled_steps, ",
                 o.start.settled_steps, ", and end at start.steps, ", o.start.steps,
                 "; they end at ", before);
}

absl::Status CheckSource(const O& o, const SnapshotSource& source) {
  const std::string name = o.NameOf("start.from");
  const StorageFields storage = FieldsOf(o.store);
  if (source.snapshot == 0) return Invalid(name, ": a snapshot's name must not be 0");
  if (!source.dir.empty()) return absl::OkStatus();
  if (o.start.from.size() > 1) {
    return Invalid(name, ": each of the ", o.start.from.size(),
                   " snapshots needs the directory it lies in");
  }
  if (source.store.value_or(storage.kind) != storage.kind) {
    return Invalid(name, ": in which directory does snapshot ", source.snapshot, " of the store ",
                   std::string(StoreKindName(*source.store)),
                   " lie? This collection's own store is ",
                   std::string(StoreKindName(storage.kind)));
  }
  if (!storage.dir.empty()) return absl::OkStatus();
  return Invalid(name, ": snapshot ", source.snapshot,
                 " has no directory, and snapshot_dir is empty");
}

absl::Status CheckStart(const O& o) {
  if (o.start.from.empty() && o.start.steps != 0) {
    return Invalid(o.NameOf("start.steps"), " is ", o.start.steps,
                   ", but start.from is empty: empty tables have seen no steps");
  }
  if (!o.start.age_lines.empty()) HOTROW_RETURN_IF_ERROR(CheckAgeLines(o));
  if (!o.start.learning_rates.empty()) HOTROW_RETURN_IF_ERROR(CheckLearningRates(o));
  for (const SnapshotSource& source : o.start.from) HOTROW_RETURN_IF_ERROR(CheckSource(o, source));
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
        if constexpr (requires { storage.more_paths; }) storage.more_paths = fields.more_dirs;
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
        if constexpr (requires { of_kind.more_paths; }) fields.more_dirs = of_kind.more_paths;
      },
      storage);
  return fields;
}

absl::Status SetDirs(std::string_view text, StorageFields* fields) {
  const StoreFacts& facts = FactsOf(fields->kind);
  fields->more_dirs.clear();
  fields->dir = std::string(text);
  if (!facts.on_disk) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> dirs, SplitPathList(text));
  if (dirs.size() > 1 && !facts.striped) {
    return Invalid("is a list of ", dirs.size(), " directories, but the store ",
                   std::string(facts.word),
                   " has one; a comma that is part of a name is written twice");
  }
  fields->dir = dirs.empty() ? "" : dirs.front();
  if (!dirs.empty()) fields->more_dirs.assign(dirs.begin() + 1, dirs.end());
  return absl::OkStatus();
}

std::string EmbeddingCollectionOptions::NameOf(std::string_view path) const {
  if (name_option != nullptr) return name_option(path);
  return absl::StrCat("EmbeddingCollectionOptions.", std::string(path));
}

std::string EmbeddingCollectionOptions::NameInTable(std::string_view path) const {
  return name_option == nullptr ? std::string(path) : name_option(path);
}

absl::Status EmbeddingCollectionOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(
      CheckOptions(*this, [this](std::string_view path) { return NameOf(path); }));
  HOTROW_RETURN_IF_ERROR(CheckTables(*this));
  HOTROW_RETURN_IF_ERROR(CheckStore(*this));
  HOTROW_RETURN_IF_ERROR(CheckDeviceCache(*this));
  HOTROW_RETURN_IF_ERROR(CheckRanks(*this));
  return CheckStart(*this);
}

}  // namespace hotrow
