#include "models/saved_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr char kManifestName[] = "manifest.json";
constexpr char kFormat[] = "hotrow.saved_model";
constexpr int64_t kVersion = 1;
// The manifest's own CRC is its last member. It covers the whole file with these digits as zeros.
constexpr std::string_view kCrcMember = "\"manifest_crc32c\": \"";
constexpr size_t kCrcDigits = 8;
constexpr char kDensePrefix[] = "dense-";
constexpr char kDenseSuffix[] = ".safetensors";
constexpr int64_t kMaxTensorHeaderBytes = 1 << 20;
constexpr std::array<const char*, 3> kTensorNames = {"parameters", "momentum1", "momentum2"};

std::string ManifestPath(const std::string& dir) { return absl::StrCat(dir, "/", kManifestName); }

std::string DenseFileName(SnapshotId id) {
  return absl::StrFormat("%s%016x%s", kDensePrefix, id, kDenseSuffix);
}
bool IsDenseFileName(const std::string& name) {
  return absl::StartsWith(name, kDensePrefix) && absl::EndsWith(name, kDenseSuffix);
}

uint32_t CrcOf(std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); }
std::string CrcText(uint32_t crc) { return absl::StrFormat("%08x", crc); }

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat("saved model: ", path, " is damaged (", std::string(what),
                                          "); use a copy of it, or start without --init_from"));
}

absl::Status Unfit(const std::string& dir, std::string_view what, std::string_view remedy) {
  return absl::FailedPreconditionError(
      absl::StrCat("--init_from=", dir, ": ", std::string(what), "; ", std::string(remedy)));
}

// --- The manifest ---

std::string ManifestText(const SavedModel& model) {
  Json shape = Json::object();
  for (const auto& [flag, value] : model.shape) shape[flag] = value;
  Json features = Json::array();
  for (const SavedModel::Feature& feature : model.features) {
    features.push_back({{"name", feature.name}, {"table", feature.table}});
  }
  Json tables = Json::array();
  Json table_names = Json::array();
  for (const SavedModel::Table& table : model.tables) {
    tables.push_back({{"name", table.name},
                      {"dim", table.dim},
                      {"optimizer", table.optimizer},
                      {"rows", table.rows},
                      {"hash", table.hash}});
    table_names.push_back(table.name);
  }
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["requires"] = Json::array();
  json["model"] = model.model;
  json["shape"] = std::move(shape);
  json["step"] = model.step;
  json["num_dense"] = model.num_dense;
  json["features"] = std::move(features);
  json["tables"] = std::move(tables);
  json["world_size"] = 1;
  json["stores"] = Json::array({{{"rank", 0},
                                 {"kind", model.store},
                                 {"dir", "tables"},
                                 {"snapshot", model.snapshot},
                                 {"tables", std::move(table_names)}}});
  json["dense"] = {{"file", model.dense_file},
                   {"bytes", model.dense_bytes},
                   {"crc32c", CrcText(model.dense_crc)},
                   {"parameters", model.num_parameters},
                   {"optimizer", model.dense_optimizer}};
  json["manifest_crc32c"] = std::string(kCrcDigits, '0');
  std::string text =
      json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  const std::string crc = CrcText(CrcOf(text));
  text.replace(text.rfind(kCrcMember) + kCrcMember.size(), kCrcDigits, crc);
  return text;
}

// Members of a JSON object by name and kind. The first one that is missing or of another kind is
// remembered; what is asked for after it is a default.
class Members {
 public:
  Members(const Json& object, std::string* wrong) : object_(object), wrong_(wrong) {
    if (!object.is_object()) Wrong("an object");
  }
  std::string String(const char* name) {
    const Json* const value = Find(name);
    if (value == nullptr || !value->is_string()) return Wrong(name), "";
    return value->get<std::string>();
  }
  int64_t Count(const char* name, int64_t max = INT64_MAX) {
    const Json* const value = Find(name);
    if (value == nullptr || !value->is_number_unsigned() ||
        value->get<uint64_t>() > static_cast<uint64_t>(max)) {
      return Wrong(name), 0;
    }
    return value->get<int64_t>();
  }
  const Json& Array(const char* name) {
    static const Json* const kEmpty = new Json(Json::array());
    const Json* const value = Find(name);
    if (value == nullptr || !value->is_array()) return Wrong(name), *kEmpty;
    return *value;
  }
  const Json& Object(const char* name) {
    static const Json* const kEmpty = new Json(Json::object());
    const Json* const value = Find(name);
    if (value == nullptr || !value->is_object()) return Wrong(name), *kEmpty;
    return *value;
  }

 private:
  const Json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  void Wrong(const char* name) {
    if (wrong_->empty()) *wrong_ = name;
  }

  const Json& object_;
  std::string* const wrong_;
};

// A name in the model's directory, not a path that leads elsewhere.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

SavedModel ParseManifest(const Json& json, std::string* wrong) {
  SavedModel out;
  Members top(json, wrong);
  out.model = top.String("model");
  for (const auto& [flag, value] : top.Object("shape").items()) {
    if (!value.is_string()) {
      *wrong = "shape";
      break;
    }
    out.shape.emplace_back(flag, value.get<std::string>());
  }
  out.step = top.Count("step", UINT32_MAX);
  out.num_dense = static_cast<int32_t>(top.Count("num_dense", INT32_MAX));
  for (const Json& entry : top.Array("features")) {
    Members feature(entry, wrong);
    out.features.push_back({feature.String("name"), feature.String("table")});
  }
  for (const Json& entry : top.Array("tables")) {
    Members table(entry, wrong);
    out.tables.push_back({.name = table.String("name"),
                          .dim = static_cast<int32_t>(table.Count("dim", INT32_MAX)),
                          .optimizer = table.String("optimizer"),
                          .rows = table.Count("rows"),
                          .hash = table.String("hash")});
  }
  const Json& stores = top.Array("stores");
  if (stores.size() == 1) {
    Members store(stores[0], wrong);
    out.store = store.String("kind");
    out.snapshot = static_cast<SnapshotId>(store.Count("snapshot"));
    if ((store.String("dir") != "tables" || out.snapshot == 0) && wrong->empty()) *wrong = "stores";
  } else if (wrong->empty()) {
    *wrong = "stores";
  }
  Members dense(top.Object("dense"), wrong);
  out.dense_file = dense.String("file");
  out.dense_bytes = dense.Count("bytes");
  const std::string crc = dense.String("crc32c");
  if (!absl::SimpleHexAtoi(crc, &out.dense_crc) && wrong->empty()) *wrong = "dense.crc32c";
  out.num_parameters = dense.Count("parameters");
  out.dense_optimizer = dense.String("optimizer");
  if (!IsPlainName(out.dense_file) && wrong->empty()) *wrong = "dense.file";
  return out;
}

absl::Status NewerVersion(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("saved model: ", path, " ", what,
                                                    ", which this program does not know (it reads "
                                                    "version ",
                                                    kVersion, "); use a newer hotrow"));
}

absl::StatusOr<SavedModel> ReadManifest(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadFileToString(env, path));
  // Checksum, version and `requires` are where they are in every version, so that a newer one is
  // told from a damaged one.
  const size_t member = text.rfind(kCrcMember);
  if (member == std::string::npos || text.size() < member + kCrcMember.size() + kCrcDigits) {
    return Damaged(path, "it does not end in its checksum");
  }
  const std::string crc = text.substr(member + kCrcMember.size(), kCrcDigits);
  text.replace(member + kCrcMember.size(), kCrcDigits, std::string(kCrcDigits, '0'));
  if (crc != CrcText(CrcOf(text))) return Damaged(path, "its checksum differs");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::string wrong;
  Members top(json, &wrong);
  if (top.String("format") != kFormat) return Damaged(path, "it is no manifest of a saved model");
  const int64_t version = top.Count("version");
  if (version != kVersion) return NewerVersion(path, absl::StrCat("has version ", version));
  for (const Json& feature : top.Array("requires")) {
    return NewerVersion(path, absl::StrCat("requires ", feature.dump()));
  }
  SavedModel model = ParseManifest(json, &wrong);
  if (!wrong.empty()) return Damaged(path, absl::StrCat("\"", wrong, "\" is missing or wrong"));
  return model;
}

// --- The dense file: safetensors ---

std::array<std::span<const float>, 3> Tensors(const DenseArrays<const float>& dense) {
  return {dense.parameters, dense.momentum1, dense.momentum2};
}

// Length of the header as 8 bytes, the header, then the arrays one after the other.
std::string TensorHeader(const DenseArrays<const float>& dense) {
  Json json = Json::object();
  int64_t offset = 0;
  for (size_t i = 0; i < kTensorNames.size(); ++i) {
    const auto size = static_cast<int64_t>(Tensors(dense)[i].size());
    if (size == 0 && i > 0) continue;
    const int64_t end = offset + size * static_cast<int64_t>(sizeof(float));
    json[kTensorNames[i]] = {{"dtype", "F32"}, {"shape", {size}}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the arrays are aligned
  const uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + header;
}

// Copies one array out of a file whose checksum was right.
absl::Status CopyTensor(const std::string& path, const Json& header, std::string_view data,
                        const char* name, std::span<float> out) {
  const auto found = header.find(name);
  const Json expected = {out.size()};
  const size_t bytes = out.size() * sizeof(float);
  if (found == header.end() || !found->is_object() || found->value("dtype", "") != "F32" ||
      found->value("shape", Json()) != expected) {
    return Damaged(path, absl::StrCat("no array \"", name, "\" of ", out.size(), " floats"));
  }
  const Json offsets = found->value("data_offsets", Json());
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      offsets[0].get<uint64_t>() > data.size() ||
      data.size() - offsets[0].get<uint64_t>() < bytes) {
    return Damaged(path, absl::StrCat("data_offsets of \"", name, "\" lie outside"));
  }
  std::memcpy(out.data(), data.data() + offsets[0].get<uint64_t>(), bytes);
  return absl::OkStatus();
}

// The directories of the path that are not there yet, from the top down.
absl::StatusOr<std::vector<std::string>> MissingDirs(Env& env, const std::string& path) {
  std::vector<std::string> missing;
  for (std::string at = path; !at.empty();) {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(at));
    if (exists) break;
    missing.insert(missing.begin(), at);
    const size_t slash = at.rfind('/');
    at.resize(slash == std::string::npos ? 0 : slash);
  }
  return missing;
}

std::string ParentDir(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string WithoutEndingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

std::string SavedTablesDir(const std::string& dir) { return absl::StrCat(dir, "/tables"); }

absl::StatusOr<SavedModel> ReadSavedModel(Env& env, const std::string& dir) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::FailedPreconditionError(absl::StrCat(
        "saved model: there is no ", path, ": give a directory that --save_dir has written"));
  }
  return ReadManifest(env, path);
}

absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const std::string& dir) {
  if (saved.model != wanted.model) {
    return Unfit(dir,
                 absl::StrCat("it holds a model \"", saved.model, "\", this is ", wanted.model),
                 absl::StrCat("use the program ", saved.model));
  }
  // Features before tables: the message about a feature says more.
  for (const SavedModel::Feature& feature : wanted.features) {
    if (std::find(saved.features.begin(), saved.features.end(), feature) == saved.features.end()) {
      return Unfit(dir,
                   absl::StrCat("feature \"", feature.name, "\" of table \"", feature.table,
                                "\" is not in the saved model"),
                   "new features cannot join a trained model; train anew without --init_from");
    }
  }
  for (const SavedModel::Feature& feature : saved.features) {
    if (std::find(wanted.features.begin(), wanted.features.end(), feature) ==
        wanted.features.end()) {
      return Unfit(dir,
                   absl::StrCat("feature \"", feature.name, "\" of table \"", feature.table,
                                "\" of the saved model is not in the data"),
                   "use data with the same features, or train anew without --init_from");
    }
  }
  if (saved.features != wanted.features) {
    const auto differs = std::mismatch(saved.features.begin(), saved.features.end(),
                                       wanted.features.begin(), wanted.features.end());
    return Unfit(dir,
                 absl::StrCat("feature \"", differs.second->name,
                              "\" of the data stands where the "
                              "saved model has \"",
                              differs.first->name, "\""),
                 "put the features of the data into the order of the saved model");
  }
  if (saved.num_dense != wanted.num_dense) {
    return Unfit(dir,
                 absl::StrCat("the saved model has ", saved.num_dense,
                              " dense features, the data have ", wanted.num_dense),
                 "use data with the same features, or train anew without --init_from");
  }
  for (size_t i = 0; i < std::max(saved.tables.size(), wanted.tables.size()); ++i) {
    if (i >= saved.tables.size() || i >= wanted.tables.size() ||
        saved.tables[i].name != wanted.tables[i].name) {
      const bool in_data = i < wanted.tables.size();
      return Unfit(dir,
                   absl::StrCat("table \"", in_data ? wanted.tables[i].name : saved.tables[i].name,
                                in_data ? "\" is not at its place in the saved model"
                                        : "\" of the saved model is not in the data"),
                   "use data with the same tables in the same order, or train anew without "
                   "--init_from");
    }
    const SavedModel::Table& table = saved.tables[i];
    if (table.dim != wanted.tables[i].dim) {
      return Unfit(dir,
                   absl::StrCat("table \"", table.name, "\" has ", table.dim,
                                " columns in the saved model and ", wanted.tables[i].dim, " here"),
                   "use the --embedding_dim that it was trained with");
    }
    if (table.optimizer != wanted.tables[i].optimizer) {
      return Unfit(dir,
                   absl::StrCat("table \"", table.name, "\" was trained with ", table.optimizer,
                                ", this is ", wanted.tables[i].optimizer),
                   absl::StrCat("use --optimizer=", table.optimizer));
    }
  }
  for (const auto& [flag, value] : wanted.shape) {
    for (const auto& [saved_flag, saved_value] : saved.shape) {
      if (flag == saved_flag && value != saved_value) {
        return Unfit(dir,
                     absl::StrCat("--", flag, " is ", value, " here and ", saved_value,
                                  " in the saved model"),
                     absl::StrCat("use --", flag, "=", saved_value));
      }
    }
  }
  if (saved.num_parameters != wanted.num_parameters) {
    return Unfit(dir,
                 absl::StrCat("the saved model has ", saved.num_parameters,
                              " dense parameters, this one ", wanted.num_parameters),
                 "use the model flags that it was trained with");
  }
  if (saved.store != wanted.store) {
    return Unfit(
        dir,
        absl::StrCat("its tables are of a store of kind ", saved.store, ", this is ", wanted.store),
        absl::StrCat("use --store=", saved.store));
  }
  return absl::OkStatus();
}

absl::Status ReadSavedDense(Env& env, const std::string& dir, const SavedModel& saved,
                            const DenseArrays<float>& dense) {
  const std::string path = absl::StrCat(dir, "/", saved.dense_file);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return Damaged(path, "there is no such file");
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(env, path));
  if (static_cast<int64_t>(text.size()) != saved.dense_bytes) {
    return Damaged(path, absl::StrCat("it has ", text.size(), " bytes, the manifest says ",
                                      saved.dense_bytes));
  }
  if (CrcOf(text) != saved.dense_crc) return Damaged(path, "its checksum differs");
  uint64_t length = 0;
  if (text.size() >= sizeof(length)) std::memcpy(&length, text.data(), sizeof(length));
  if (length == 0 || length > kMaxTensorHeaderBytes || length > text.size() - sizeof(length)) {
    return Damaged(path, "the length of its header is wrong");
  }
  const std::string_view header_text = std::string_view(text).substr(sizeof(length), length);
  const std::string_view data = std::string_view(text).substr(sizeof(length) + length);
  const Json header = Json::parse(header_text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged(path, "its header is no JSON");
  const std::array<std::span<float>, 3> arrays = {dense.parameters, dense.momentum1,
                                                  dense.momentum2};
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].empty() && i > 0) continue;
    HOTROW_RETURN_IF_ERROR(CopyTensor(path, header, data, kTensorNames[i], arrays[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest,
                              const std::string& dir) {
  for (size_t i = 0; i < saved.tables.size(); ++i) {
    const SavedModel::Table& expected = saved.tables[i];
    const TableDigest& found = digest.tables[i];
    if (found.rows != expected.rows || found.hash.ToHex() != expected.hash) {
      return Damaged(SavedTablesDir(dir),
                     absl::StrCat("table \"", expected.name, "\" has ", found.rows,
                                  " rows of hash ", found.hash.ToHex(), ", the manifest says ",
                                  expected.rows, " of ", expected.hash));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SavedModelWriter>> SavedModelWriter::Open(Env* env,
                                                                         const std::string& dir) {
  const std::string path = WithoutEndingSlashes(dir);
  const auto refused = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--save_dir=", dir, ": ", std::string(what), "; give a directory of its own to save into"));
  };
  const std::string tables = SavedTablesDir(path);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> missing, MissingDirs(*env, tables));
  if (const absl::Status status = env->CreateDirs(tables); !status.ok()) {
    return refused(std::string(status.message()));
  }
  // A directory survives power loss once the one above it is synced.
  for (const std::string& made : missing) HOTROW_RETURN_IF_ERROR(env->SyncDir(ParentDir(made)));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env->Exists(ManifestPath(path)));
  if (exists) {
    if (const absl::Status status = ReadSavedModel(*env, path).status(); !status.ok()) {
      return refused(std::string(status.message()));
    }
  }
  // What Save will open first, opened now.
  const std::string probe = absl::StrCat(ManifestPath(path), ".tmp");
  absl::StatusOr<std::unique_ptr<File>> file = env->Open(probe, OpenMode::kTruncate);
  if (!file.ok()) return refused(std::string(file.status().message()));
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  HOTROW_RETURN_IF_ERROR(env->Remove(probe));
  return std::unique_ptr<SavedModelWriter>(new SavedModelWriter(env, path));
}

// Removes what no manifest names: parts of saves that a crash or an error cut off.
absl::Status SavedModelWriter::Clean(EmbeddingCollection& tables, const SavedModel& keep) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables.ListSnapshots());
  for (const SnapshotId snapshot : snapshots) {
    last_ = std::max(last_, snapshot);
    if (snapshot != keep.snapshot) HOTROW_RETURN_IF_ERROR(tables.DropSnapshot(snapshot));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.ListDir(dir_));
  for (const std::string& name : names) {
    if (IsDenseFileName(name) && name != keep.dense_file) {
      HOTROW_RETURN_IF_ERROR(env_.Remove(absl::StrCat(dir_, "/", name)));
    }
  }
  return absl::OkStatus();
}

absl::Status SavedModelWriter::WriteDense(SavedModel* model,
                                          const DenseArrays<const float>& dense) {
  model->dense_file = DenseFileName(model->snapshot);
  model->dense_bytes = 0;
  model->dense_crc = 0;
  const std::string path = absl::StrCat(dir_, "/", model->dense_file);
  const std::string header = TensorHeader(dense);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env_.Open(path, OpenMode::kTruncate));
  const auto append = [&](std::span<const std::byte> bytes) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, model->dense_bytes, bytes));
    model->dense_bytes += static_cast<int64_t>(bytes.size());
    model->dense_crc = Crc32c(bytes, model->dense_crc);
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(append(std::as_bytes(std::span(header))));
  for (const std::span<const float> tensor : Tensors(dense)) {
    HOTROW_RETURN_IF_ERROR(append(std::as_bytes(tensor)));
  }
  HOTROW_RETURN_IF_ERROR(file->Sync());
  HOTROW_RETURN_IF_ERROR(file->Close());
  return env_.SyncDir(dir_);
}

absl::Status SavedModelWriter::Save(SavedModel model, EmbeddingCollection& tables,
                                    const DenseArrays<const float>& dense) {
  // A manifest that a failed sync left in doubt is made durable before what an older one names is
  // removed.
  HOTROW_RETURN_IF_ERROR(env_.SyncDir(dir_));
  SavedModel before;
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(ManifestPath(dir_)));
  if (exists) {
    HOTROW_ASSIGN_OR_RETURN(before, ReadManifest(env_, ManifestPath(dir_)));
  }
  HOTROW_RETURN_IF_ERROR(Clean(tables, before));

  HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
  model.tables.resize(digest.tables.size());
  for (size_t i = 0; i < digest.tables.size(); ++i) {
    model.tables[i].rows = digest.tables[i].rows;
    model.tables[i].hash = digest.tables[i].hash.ToHex();
  }
  model.step = tables.steps();
  model.num_parameters = static_cast<int64_t>(dense.parameters.size());
  model.snapshot = ++last_;
  HOTROW_RETURN_IF_ERROR(tables.PrepareSnapshot(model.snapshot));
  HOTROW_RETURN_IF_ERROR(WriteDense(&model, dense));
  HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env_, ManifestPath(dir_), ManifestText(model)));

  // The model is saved. What cannot be removed now is removed by the next Save.
  tables.CommitSnapshot(model.snapshot).IgnoreError();
  Clean(tables, model).IgnoreError();
  return absl::OkStatus();
}

}  // namespace hotrow
