#include "models/saving/portable_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "models/data/table_schema.h"  // QuoteForMessage
#include "models/json/json_members_impl.h"
#include "models/json/json_text.h"
#include "models/saving/checkpoint.h"
#include "models/saving/saved_model_impl.h"
#include "ops/dense_optimizer.h"
#include "ops/row_layout.h"
#include "store/host/host_store.h"
#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

constexpr char kDenseName[] = "dense.safetensors";
constexpr int64_t kVersion = 1;
constexpr char kPartialSuffix[] = ".hotrow-partial";
constexpr char kLockName[] = "hotrow-partial.lock";  // no name of a store
constexpr int64_t kDenseHeaderBytesMax = int64_t{2} << 20;
constexpr int64_t kDiskBytesMin = int64_t{1} << 30;
constexpr int64_t kDiskPerRowByte = 3;
// What a log writes beside a row, rounded up.
constexpr int64_t kRecordOverhead = 32;

constexpr std::array<std::pair<InitializerKind, const char*>, 4> kInitializerNames = {{
    {InitializerKind::kZeros, "zeros"},
    {InitializerKind::kConstant, "constant"},
    {InitializerKind::kUniform, "uniform"},
    {InitializerKind::kNormal, "normal"},
}};

Env& EnvOf(Env* env) { return env != nullptr ? *env : PosixEnv(); }

std::string CrcText(uint32_t crc) { return absl::StrFormat("%08x", crc); }

// --- Directories that are whole or not there ---

// Removes a file or a directory with all that is in it.
absl::Status RemoveTree(Env& env, const std::string& path) {
  const absl::Status removed = env.Remove(path);
  if (removed.ok()) return removed;
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(path);
  if (!names.ok()) return removed;  // a file after all
  for (const std::string& name : *names) {
    HOTROW_RETURN_IF_ERROR(RemoveTree(env, absl::StrCat(path, "/", name)));
  }
  return env.RemoveDir(path);
}

// OK when there is nothing of that name, or an empty directory.
absl::Status CheckIsFree(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(path);
  if (names.ok() && names->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": ",
      names.ok()
          ? "is there already and not empty"
          : absl::StrCat("is no directory that can be read (", names.status().message(), ")"),
      "; give the name of a directory that is not there yet"));
}

// A directory in the making, under a temporary name beside its own. Destroying it before Commit
// removes it.
class PartialDir {
 public:
  // Removes what a kill left behind of another one.
  static absl::StatusOr<std::unique_ptr<PartialDir>> Create(Env& env, const std::string& path) {
    std::unique_ptr<PartialDir> out(new PartialDir(env, path));
    HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, ParentDir(path)));
    HOTROW_RETURN_IF_ERROR(env.CreateDirs(out->path_));
    // Two that make the same directory would mix their files.
    const std::string lock = absl::StrCat(out->path_, "/", kLockName);
    HOTROW_ASSIGN_OR_RETURN(out->lock_, env.LockFile(lock, LockMode::kExclusive));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(out->path_));
    for (const std::string& name : names) {
      if (name == kLockName) continue;
      HOTROW_RETURN_IF_ERROR(RemoveTree(env, absl::StrCat(out->path_, "/", name)));
    }
    return out;
  }
  ~PartialDir() {
    if (lock_ != nullptr && !committed_) RemoveTree(env_, path_).IgnoreError();
  }
  PartialDir(const PartialDir&) = delete;
  PartialDir& operator=(const PartialDir&) = delete;

  const std::string& path() const { return path_; }

  // Everything in it is durable but its own entries.
  absl::Status Commit() {
    const std::string lock = absl::StrCat(path_, "/", kLockName);
    HOTROW_ASSIGN_OR_RETURN(const bool has_lock, env_.Exists(lock));
    if (has_lock) HOTROW_RETURN_IF_ERROR(env_.Remove(lock));
    HOTROW_RETURN_IF_ERROR(env_.SyncDir(path_));
    HOTROW_RETURN_IF_ERROR(env_.Rename(path_, final_path_));
    committed_ = true;
    return env_.SyncDir(ParentDir(final_path_));
  }
  bool committed() const { return committed_; }
  // Takes a Commit back, for one that must not be there alone.
  void Revoke() {
    if (committed_) RemoveTree(env_, final_path_).IgnoreError();
  }

 private:
  PartialDir(Env& env, const std::string& path)
      : env_(env), final_path_(path), path_(absl::StrCat(path, kPartialSuffix)) {}

  Env& env_;
  const std::string final_path_;
  const std::string path_;
  std::unique_ptr<FileLock> lock_;
  bool committed_ = false;
};

// --- The manifest ---

std::string ManifestText(const PortableModel& portable) {
  const SavedModel& model = portable.model;
  Json json;
  json["format"] = kPortableFormat;
  json["version"] = kVersion;
  json["requires"] = Json::array();
  if (std::any_of(portable.tables.begin(), portable.tables.end(), [](const PortableTable& table) {
        return table.weights_precision != WeightsPrecision::kFp32;
      })) {
    json["requires"].push_back(kRequiresWeightsPrecision);
  }
  json["model"] = model.model;
  json["shape"] = Json::object();
  for (const auto& [flag, value] : model.shape) json["shape"][flag] = value;
  if (model.seed.has_value()) json["seed"] = *model.seed;
  json["step"] = model.step;
  json["num_dense"] = model.num_dense;
  json["features"] = Json::array();
  for (const SavedModel::Feature& feature : model.features) {
    json["features"].push_back({{"name", feature.name}, {"table", feature.table}});
  }
  json["tables"] = Json::array();
  for (size_t i = 0; i < portable.tables.size(); ++i) {
    const PortableTable& table = portable.tables[i];
    Json entry;
    entry["name"] = table.name;
    entry["dim"] = table.dim;
    entry["dtype"] = "float32";
    entry["optimizer"] = SparseOptimizerName(table.optimizer);
    if (table.weights_precision != WeightsPrecision::kFp32) {
      entry["weights_precision"] = WeightsPrecisionName(table.weights_precision);
    }
    if (const std::optional<Initializer>& initializer = model.tables[i].initializer) {
      for (const auto& [kind, name] : kInitializerNames) {
        if (kind != initializer->kind) continue;
        entry["initializer"] = {{"kind", name}, {"value", static_cast<double>(initializer->value)}};
      }
    }
    if (table.rows.has_value()) entry["rows"] = *table.rows;
    if (table.hash.has_value()) entry["hash"] = table.hash->ToHex();
    entry["arrays"] = Json::array();
    for (const PortableArray& array : table.arrays) {
      Json shape = Json::array({table.rows.value_or(0)});
      if (array.columns > 0) shape.push_back(array.columns);
      Json files = Json::array();
      for (const PortableFile& file : array.files) {
        Json part = {{"file", file.name}};
        if (file.crc.has_value()) part["crc32c"] = CrcText(*file.crc);
        files.push_back(std::move(part));
      }
      entry["arrays"].push_back({{"name", array.name},
                                 {"dtype", array.dtype},
                                 {"shape", std::move(shape)},
                                 {"files", std::move(files)}});
    }
    json["tables"].push_back(std::move(entry));
  }
  json["dense"] = {{"file", portable.dense_file},
                   {"parameters", model.num_parameters},
                   {"optimizer", model.dense_optimizer}};
  if (portable.dense_crc.has_value()) json["dense"]["crc32c"] = CrcText(*portable.dense_crc);
  if (model.training.has_value()) {
    const absl::StatusOr<Json> training = ParseJson<Json>(TrainingStateToJson(*model.training));
    HOTROW_CHECK(training.ok());  // we have just written it
    json["training"] = *training;
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

PortableTable ParseTable(const Json& json, const std::string& path, bool edited,
                         SavedModel::Table* saved, std::string* wrong) {
  PortableTable out;
  JsonMembers table(json, path, wrong);
  out.name = table.String("name");
  out.dim = static_cast<int32_t>(table.Count("dim", 1, kTableDimMax));
  const std::string optimizer = table.String("optimizer");
  if (const auto kind = ParseSparseOptimizer(optimizer); kind.ok()) {
    out.optimizer = *kind;
  } else {
    table.Wrong("optimizer", optimizer, "an optimizer of tables");
  }
  if (table.Has("weights_precision")) {
    const std::string name = table.String("weights_precision");
    if (const auto precision = ParseWeightsPrecision(name); precision.ok()) {
      out.weights_precision = *precision;
    } else {
      table.Wrong("weights_precision", name, "fp32, fp16 or bf16");
    }
  }
  if (const std::string dtype = table.String("dtype"); dtype != "float32") {
    table.Wrong("dtype", dtype, "\"float32\"");
  }
  if (table.Has("initializer")) {
    JsonMembers initializer(table.Object("initializer"), table.PathOf("initializer"), wrong);
    const std::string kind_name = initializer.String("kind");
    Initializer value;
    bool known = false;
    for (const auto& [kind, name] : kInitializerNames) {
      if (kind_name != name) continue;
      value.kind = kind;
      known = true;
    }
    if (!known) initializer.Wrong("kind", kind_name, "zeros, constant, uniform or normal");
    value.value = static_cast<float>(initializer.Real("value"));
    if (!value.Validate().ok()) initializer.Wrong("value", value.value, "a finite number >= 0");
    saved->initializer = value;
  }
  if (table.Has("rows") && !edited) out.rows = table.Count("rows", 0, INT64_MAX);
  if (table.Has("hash") && !edited) out.hash = table.Hash("hash");
  const Json& arrays = table.Array("arrays");
  for (size_t a = 0; a < arrays.size(); ++a) {
    JsonMembers array(arrays[a], absl::StrCat(table.PathOf("arrays"), "[", a, "]"), wrong);
    PortableArray parsed;
    parsed.name = array.String("name");
    const Json& files = array.Array("files");
    for (size_t f = 0; f < files.size(); ++f) {
      JsonMembers file(files[f], absl::StrCat(array.PathOf("files"), "[", f, "]"), wrong);
      PortableFile part;
      part.name = file.String("file");
      if (file.Has("crc32c") && !edited) part.crc = file.Crc("crc32c");
      parsed.files.push_back(std::move(part));
    }
    for (const PortableArray& other : out.arrays) {
      if (other.name == parsed.name) array.Wrong("name", parsed.name, "each array once");
    }
    out.arrays.push_back(std::move(parsed));
  }
  saved->name = out.name;
  saved->dim = out.dim;
  saved->optimizer = optimizer;
  saved->weights_precision = out.weights_precision;
  return out;
}

PortableModel ParseManifest(const Json& json, bool edited, std::string* wrong) {
  PortableModel out;
  SavedModel& model = out.model;
  JsonMembers top(json, "", wrong);
  model.model = top.String("model");
  const Json& shape = top.Object("shape");
  for (const auto& [flag, value] : shape.items()) {
    JsonMembers flags(shape, "shape", wrong);
    model.shape.emplace_back(flag, flags.String(flag.c_str()));
  }
  if (top.Has("seed")) {  // as --seed takes it
    model.seed = static_cast<uint64_t>(top.Count("seed", 0, INT64_MAX));
  }
  model.step = top.Count("step", 0, UINT32_MAX);
  model.num_dense = static_cast<int32_t>(top.Count("num_dense", 0, INT32_MAX));
  const Json& tables = top.Array("tables");
  if (tables.empty()) top.Wrong("tables", tables, "one table at least");
  std::set<std::string> names;
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string path = absl::StrCat("tables[", i, "]");
    SavedModel::Table saved;
    out.tables.push_back(ParseTable(tables[i], path, edited, &saved, wrong));
    if (!names.insert(saved.name).second) {
      JsonMembers(tables[i], path, wrong).Wrong("name", saved.name, "a name of its own");
    }
    model.tables.push_back(std::move(saved));
  }
  const Json& features = top.Array("features");
  for (size_t i = 0; i < features.size(); ++i) {
    JsonMembers feature(features[i], absl::StrCat("features[", i, "]"), wrong);
    model.features.push_back({feature.String("name"), feature.String("table")});
    if (!names.contains(model.features.back().table)) {
      feature.Wrong("table", model.features.back().table, "the name of a table");
    }
  }
  JsonMembers dense(top.Object("dense"), "dense", wrong);
  out.dense_file = dense.String("file");
  model.num_parameters = dense.Count("parameters", 0, INT64_MAX / 16);
  model.dense_optimizer = dense.String("optimizer");
  if (!ParseDenseOptimizer(model.dense_optimizer).ok()) {
    dense.Wrong("optimizer", model.dense_optimizer, "sgd, adagrad or adam");
  }
  if (dense.Has("crc32c") && !edited) out.dense_crc = dense.Crc("crc32c");
  if (out.dense_file.empty() || absl::StrContains(out.dense_file, "/")) {
    dense.Wrong("file", out.dense_file, "the name of a file in this directory");
  }
  if (top.Has("training")) {
    absl::StatusOr<TrainingState> training = TrainingStateFromJson(top.Object("training").dump());
    if (training.ok()) {
      model.training = *std::move(training);
    } else if (wrong->empty()) {
      *wrong = absl::StrCat("\"training\": ", std::string(training.status().message()));
    }
  }
  return out;
}

// --- Stores ---

// In the order in which a collection gives its tables to a store: narrow rows first.
std::vector<StoreTable> StoreTablesOf(const std::vector<PortableTable>& tables) {
  std::vector<StoreTable> out;
  for (size_t i = 0; i < tables.size(); ++i) {
    out.push_back({static_cast<uint32_t>(i), tables[i].layout().row_bytes});
  }
  std::stable_sort(out.begin(), out.end(), [](const StoreTable& a, const StoreTable& b) {
    return a.row_bytes < b.row_bytes;
  });
  return out;
}

absl::StatusOr<std::vector<PortableTable>> TablesOf(const SavedModel& model) {
  std::vector<PortableTable> out;
  for (const SavedModel::Table& table : model.tables) {
    PortableTable entry;
    entry.name = table.name;
    entry.dim = table.dim;
    HOTROW_ASSIGN_OR_RETURN(entry.optimizer, ParseSparseOptimizer(table.optimizer));
    entry.weights_precision = table.weights_precision;
    out.push_back(std::move(entry));
  }
  return out;
}

// Writes all rows into a new store in `dir`, as one committed snapshot, and tells of it.
absl::StatusOr<std::vector<PortableDigest>> FillStore(const ImportOptions& options,
                                                      const PortableTablesOptions& arrays,
                                                      const std::vector<PortableTable>& tables,
                                                      int64_t row_bytes, const std::string& dir,
                                                      SnapshotId snapshot, SnapshotInfo* info) {
  std::unique_ptr<RowStore> store;
  SsdStore* ssd = nullptr;
  const int64_t disk_bytes = options.disk_bytes > 0
                                 ? options.disk_bytes
                                 : std::max(kDiskBytesMin, kDiskPerRowByte * row_bytes);
  switch (options.store) {
    case StoreKind::kMemory: {
      HOTROW_ASSIGN_OR_RETURN(store, HostStore::Open({.tables = StoreTablesOf(tables),
                                                      .budget_bytes = options.store_bytes,
                                                      .snapshot_dir = dir,
                                                      .env = options.env}));
      break;
    }
    case StoreKind::kSsd: {
      SsdStoreOptions ssd_options;
      ssd_options.path = dir;
      ssd_options.tables = StoreTablesOf(tables);
      ssd_options.memory_budget_bytes = options.store_bytes;
      ssd_options.disk_budget_bytes = disk_bytes;
      ssd_options.background = options.env == nullptr;  // one order of calls where they are tested
      ssd_options.env = options.env;
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SsdStore> opened, SsdStore::Open(ssd_options));
      ssd = opened.get();
      store = std::move(opened);
      break;
    }
    case StoreKind::kRocksDb: {
      RocksStoreOptions rocks;
      rocks.path = dir;
      rocks.tables = StoreTablesOf(tables);
      rocks.memory_budget_bytes = options.store_bytes;
      rocks.disk_budget_bytes = disk_bytes;
      rocks.exact_counts = false;
      HOTROW_ASSIGN_OR_RETURN(store, OpenRocksStore(rocks));
      break;
    }
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PortableDigest> digests,
                          LoadPortableTables(arrays, tables, *store));
  HOTROW_RETURN_IF_ERROR(store->PrepareSnapshot(snapshot));
  HOTROW_ASSIGN_OR_RETURN(*info, store->DescribeSnapshot(snapshot));
  HOTROW_RETURN_IF_ERROR(store->CommitSnapshot(snapshot));
  if (ssd != nullptr) HOTROW_RETURN_IF_ERROR(ssd->Close());
  return digests;
}

// Reads the dense file and compares it with what the manifest says.
absl::StatusOr<DenseVectors> ReadDense(Env& env, const std::string& dir,
                                       const PortableModel& portable) {
  const std::string path = absl::StrCat(dir, "/", portable.dense_file);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::DataLossError(absl::StrCat(path, ": there is no such file (dense parameters)"));
  }
  // Three arrays at most, and a header of a MiB.
  const int64_t bytes_max =
      3 * static_cast<int64_t>(sizeof(float)) * portable.model.num_parameters +
      kDenseHeaderBytesMax;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, bytes_max));
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  if (portable.dense_crc.has_value() && *portable.dense_crc != crc) {
    return absl::DataLossError(
        absl::StrCat(path, ": its checksum is ", CrcText(crc), ", the manifest says ",
                     CrcText(*portable.dense_crc),
                     "; restore it from a copy, or use --edited if it was changed on purpose"));
  }
  SavedModel model = portable.model;
  model.dir = dir;
  model.dense_file = portable.dense_file;
  model.dense_bytes = static_cast<int64_t>(text.size());
  model.dense_crc = crc;
  HOTROW_ASSIGN_OR_RETURN(DenseVectors dense, ReadSavedDense(env, model));
  HOTROW_ASSIGN_OR_RETURN(const DenseOptimizerKind kind,
                          ParseDenseOptimizer(model.dense_optimizer));
  const int32_t arrays = (dense.momentum1.empty() ? 0 : 1) + (dense.momentum2.empty() ? 0 : 1);
  if (model.num_parameters > 0 && arrays != DenseStateArrays(kind)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", arrays, " arrays of optimizer state, expected ", DenseStateArrays(kind),
        " for ", model.dense_optimizer, " (momentum1, momentum2)"));
  }
  return dense;
}

void Summarise(const std::vector<PortableTable>& tables, const std::vector<PortableDigest>& digests,
               PortableSummary* summary) {
  summary->tables = digests;
  for (size_t i = 0; i < tables.size(); ++i) {
    for (const PortableArray& array : tables[i].arrays) {
      summary->files += static_cast<int64_t>(array.files.size());
    }
    // Weights are floats in files, whatever they are in rows.
    const RowLayout layout = RowLayout::For(tables[i].dim, tables[i].optimizer);
    const auto packed = static_cast<int64_t>(sizeof(uint64_t) + sizeof(uint32_t));
    summary->bytes += digests[i].rows * (layout.payload_bytes + packed);
    summary->model.tables[i].rows = digests[i].rows;
    summary->model.tables[i].hash = digests[i].hash.ToHex();
  }
}

}  // namespace

absl::StatusOr<bool> IsPortableModel(Env& env, const std::string& dir) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return false;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  return absl::StrContains(text, absl::StrCat("\"", kPortableFormat, "\""));
}

absl::StatusOr<PortableModel> ReadPortableManifest(Env& env, const std::string& dir, bool edited) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no ", path, ": give a directory that hotrow export has written"));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  const absl::StatusOr<Json> parsed = ParseJson<Json>(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no JSON: ", std::string(parsed.status().message())));
  }
  const Json& json = *parsed;
  std::string wrong;
  JsonMembers top(json, "", &wrong);
  const std::string format = top.String("format");
  if (wrong.empty() && format != kPortableFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": \"format\" is ", QuoteForMessage(format), ", expected \"",
                     kPortableFormat, "\"; give a directory that hotrow export has written"));
  }
  const int64_t version = top.Count("version", 1, INT64_MAX);
  const Json& required = top.Array("requires");
  const auto unknown = std::find_if(required.begin(), required.end(), [](const Json& name) {
    return name != kRequiresWeightsPrecision;
  });
  if (wrong.empty() && (version != kVersion || unknown != required.end())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     version != kVersion ? absl::StrCat(": has version ", version)
                                         : absl::StrCat(": requires ", DescribeJson(*unknown)),
                     ", which this program does not know (it reads version ", kVersion,
                     "); use a newer hotrow"));
  }
  PortableModel out;
  if (wrong.empty()) out = ParseManifest(json, edited, &wrong);
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", wrong));
  return out;
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSavedPart(Env& env, const SavedModel& saved,
                                                              int32_t rank, int64_t memory_bytes) {
  const SavedModel::Part& part = saved.parts[static_cast<size_t>(rank)];
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PortableTable> tables, TablesOf(saved));
  const SnapshotReaderOptions options = {.path = part.tables_dir,
                                         .snapshot = part.snapshot,
                                         .identity = part.identity,
                                         .memory_budget_bytes = memory_bytes,
                                         .env = &env};
  std::unique_ptr<SnapshotReader> reader;
  switch (kind) {
    case StoreKind::kMemory: {
      HOTROW_ASSIGN_OR_RETURN(reader, OpenHostSnapshot(options));
      break;
    }
    case StoreKind::kSsd: {
      HOTROW_ASSIGN_OR_RETURN(reader, OpenSsdSnapshot(options));
      break;
    }
    case StoreKind::kRocksDb: {
      HOTROW_ASSIGN_OR_RETURN(reader, OpenRocksSnapshot(options));
      break;
    }
  }
  const std::span<const StoreTable> found = reader->tables();
  const auto differs = [&](std::string_view what) {
    return absl::DataLossError(absl::StrCat(options.path, ": snapshot ", part.snapshot,
                                            " is not that of ", saved.dir, ": ", std::string(what),
                                            "; restore both from one copy"));
  };
  if (found.size() != tables.size()) {
    return differs(
        absl::StrCat("it has ", found.size(), " tables, the manifest has ", tables.size()));
  }
  for (const StoreTable& table : found) {
    if (table.table >= tables.size()) {
      return differs(absl::StrCat("it has a table ", table.table));
    }
    const PortableTable& expected = tables[table.table];
    const int64_t row_bytes = expected.layout().row_bytes;
    if (table.row_bytes != row_bytes) {
      return differs(absl::StrCat("rows of table \"", expected.name, "\" have ", table.row_bytes,
                                  " bytes, the manifest says ", row_bytes));
    }
  }
  return reader;
}

absl::Status CheckRankOfRow(const SavedModel& saved, int32_t rank, const RowKey& key) {
  const auto world_size = static_cast<int32_t>(saved.parts.size());
  const int32_t owner = OwnerRank(key, world_size);
  if (owner == rank) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      saved.parts[static_cast<size_t>(rank)].tables_dir, ": key ", key.key, " of table \"",
      saved.tables[key.table].name, "\" lies in the part of rank ", rank, " of ", world_size,
      " and belongs to rank ", owner, "; use a copy of the checkpoint"));
}

absl::StatusOr<PortableSummary> ExportPortable(const ExportOptions& options) {
  Env& env = EnvOf(options.env);
  const std::string dir = WithoutEndingSlashes(options.dir);
  if (options.shard_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard_bytes must be at least 1, is ", options.shard_bytes));
  }
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(env, options.checkpoint));
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadSavedDense(env, saved));
  // The first of them before anything is made.
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotReader> reader,
                          OpenSavedPart(env, saved, 0, options.store_bytes));
  PortableModel portable;
  portable.model = saved;
  HOTROW_ASSIGN_OR_RETURN(portable.tables, TablesOf(saved));

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial, PartialDir::Create(env, dir));
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<PortableTablesWriter> writer,
      PortableTablesWriter::Create(
          {.dir = partial->path(), .memory_bytes = options.memory_bytes, .env = &env},
          options.shard_bytes, portable.tables));
  const auto world_size = static_cast<int32_t>(saved.parts.size());
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (rank > 0) {
      reader.reset();  // its index before the next one's
      HOTROW_ASSIGN_OR_RETURN(reader, OpenSavedPart(env, saved, rank, options.store_bytes));
    }
    HOTROW_RETURN_IF_ERROR(
        reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(CheckRankOfRow(saved, rank, key));
          return writer->Add(key, row);
        }));
  }
  HOTROW_ASSIGN_OR_RETURN(portable.tables, writer->Finish());
  std::vector<PortableDigest> digests;
  for (size_t i = 0; i < portable.tables.size(); ++i) {
    const PortableTable& table = portable.tables[i];
    const SavedModel::Table& expected = saved.tables[i];
    digests.push_back({*table.rows, *table.hash});
    if ((expected.rows >= 0 && expected.rows != *table.rows) ||
        (!expected.hash.empty() && expected.hash != table.hash->ToHex())) {
      return absl::DataLossError(
          absl::StrCat(TablesPlace(saved), ": table \"", table.name, "\" has ", *table.rows,
                       " rows of hash ", table.hash->ToHex(), ", the manifest says ", expected.rows,
                       " of ", expected.hash, "; use a copy of the checkpoint"));
    }
  }
  portable.model.dir = partial->path();
  HOTROW_RETURN_IF_ERROR(WriteSavedDense(env, kDenseName, dense.arrays(), &portable.model));
  portable.dense_file = kDenseName;
  portable.dense_crc = portable.model.dense_crc;
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(env, ManifestPath(partial->path()), ManifestText(portable)));
  HOTROW_RETURN_IF_ERROR(partial->Commit());

  PortableSummary summary;
  summary.from = saved.dir;
  summary.to = dir;
  summary.model = saved;
  Summarise(portable.tables, digests, &summary);
  return summary;
}

absl::StatusOr<PortableSummary> ImportPortable(const ImportOptions& options) {
  Env& env = EnvOf(options.env);
  const std::string dir = WithoutEndingSlashes(options.dir);
  const std::string checkpoint = WithoutEndingSlashes(options.checkpoint);
  std::string store_path = WithoutEndingSlashes(options.store_path);
  if (options.store == StoreKind::kMemory && !store_path.empty()) {
    return absl::InvalidArgumentError(
        "--store_path: tables in memory have no directory of their own; leave it out, or choose "
        "another store");
  }
  const PortableTablesOptions arrays = {
      .dir = dir, .memory_bytes = options.memory_bytes, .env = &env};
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable,
                          ReadPortableManifest(env, dir, options.edited));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> rows,
                          CheckPortableTables(arrays, portable.tables));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadDense(env, dir, portable));
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, checkpoint));
  const bool in_memory = options.store == StoreKind::kMemory;
  std::string inside = in_memory ? "tables" : "store";
  if (!store_path.empty()) {
    HOTROW_RETURN_IF_ERROR(CheckIsFree(env, store_path));
    store_path = AbsolutePath(store_path);
    const std::string above = AbsolutePath(checkpoint) + "/";
    if (absl::StartsWith(above, store_path + "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint, ": must not lie in the directory of the store, ", store_path));
    }
    if (absl::StartsWith(store_path, above)) {
      inside = store_path.substr(above.size());
      store_path.clear();
    }
  }
  int64_t row_bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PortableTable& table = portable.tables[i];
    const int64_t record = table.layout().row_bytes + kRecordOverhead;
    int64_t bytes = 0;
    if (__builtin_mul_overflow(rows[i], record * kDiskPerRowByte, &bytes) ||
        __builtin_add_overflow(row_bytes, rows[i] * record, &row_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(dir, ": ", rows[i], " rows of table \"",
                                                     table.name, "\" are more than any disk has"));
    }
  }

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial,
                          PartialDir::Create(env, checkpoint));
  std::unique_ptr<PartialDir> store_dir;
  if (!store_path.empty()) {
    HOTROW_ASSIGN_OR_RETURN(store_dir, PartialDir::Create(env, store_path));
  }
  SavedModel model = portable.model;
  const std::string store_home =
      store_dir != nullptr ? store_dir->path() : absl::StrCat(partial->path(), "/", inside);
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, ParentDir(store_home)));
  // The snapshot's name must be one that the checkpoint's directory owns under its last name.
  SavedModel::Part part = {.store = std::string(StoreKindName(options.store))};
  part.snapshot = SnapshotNames(checkpoint, /*exclusive=*/in_memory).Next({});
  SnapshotInfo info;
  HOTROW_ASSIGN_OR_RETURN(
      const std::vector<PortableDigest> digests,
      FillStore(options, arrays, portable.tables, row_bytes, store_home, part.snapshot, &info));
  part.identity = info.identity;
  part.table_rows = std::move(info.table_rows);
  model.is_checkpoint = true;
  // Written relative where it lies in the checkpoint, so that it is right under the last name too.
  part.tables_dir = store_dir != nullptr ? store_path : store_home;
  model.parts = {std::move(part)};
  PortableSummary summary;
  summary.from = dir;
  summary.model = model;
  Summarise(portable.tables, digests, &summary);
  HOTROW_RETURN_IF_ERROR(
      WriteCheckpoint(env, partial->path(), summary.model, dense.arrays()).status());
  summary.to = checkpoint;

  absl::Status committed = store_dir != nullptr ? store_dir->Commit() : absl::OkStatus();
  if (committed.ok()) committed = partial->Commit();
  // The checkpoint may be there although the last sync failed; then it needs its store.
  if (!committed.ok() && store_dir != nullptr && !partial->committed()) store_dir->Revoke();
  HOTROW_RETURN_IF_ERROR(committed);
  return summary;
}

absl::StatusOr<PortableSummary> VerifyPortable(Env& env, const std::string& dir,
                                               int64_t memory_bytes) {
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable,
                          ReadPortableManifest(env, dir, /*edited=*/false));
  HOTROW_RETURN_IF_ERROR(ReadDense(env, dir, portable).status());
  HOTROW_ASSIGN_OR_RETURN(
      const std::vector<PortableDigest> digests,
      ReadPortableTables({.dir = dir, .memory_bytes = memory_bytes, .env = &env}, portable.tables,
                         [](const PortableRows&) { return absl::OkStatus(); }));
  PortableSummary summary;
  summary.from = dir;
  summary.model = portable.model;
  Summarise(portable.tables, digests, &summary);
  return summary;
}

}  // namespace hotrow
