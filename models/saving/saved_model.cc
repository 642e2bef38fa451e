#include "models/saving/saved_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/store_kind.h"
#include "models/json/json_members_impl.h"
#include "models/json/json_text.h"
#include "models/saving/checkpoint.h"
#include "models/saving/saved_model_impl.h"
#include "models/train/rank_group_impl.h"
#include "ops/dense_optimizer.h"
#include "ops/row_layout.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr char kFormat[] = "hotrow.saved_model";
constexpr int64_t kVersion = 1;
// The manifest's own CRC is its last member. It covers the whole file with these digits as zeros.
constexpr std::string_view kCrcMember = "\"manifest_crc32c\": \"";
constexpr size_t kCrcDigits = 8;
constexpr char kDensePrefix[] = "dense-";
constexpr char kDenseSuffix[] = ".safetensors";
constexpr int64_t kMaxTensorHeaderBytes = 1 << 20;
constexpr std::array<const char*, 3> kTensorNames = {"parameters", "momentum1", "momentum2"};
constexpr char kSnapshotSuffix[] = ".snapshot";  // docs/formats/host_snapshot.md
constexpr int64_t kCopyBytes = 1 << 20;

// What a manifest may require and this program understands.
constexpr char kRequiresCheckpoint[] = "checkpoint";  // `training`; rows and hashes not known
constexpr char kRequiresStoreDir[] = "store_dir";     // stores[].dir other than "tables"
constexpr char kRequiresRanks[] = "ranks";            // several stores
constexpr char kOwnTables[] = "tables";
constexpr char kRankPrefix[] = "rank-";
constexpr char kLockName[] = "LOCK";  // empty; locked by the job that writes the directory

std::string DenseFileName(SnapshotId id) {
  return absl::StrFormat("%s%016x%s", kDensePrefix, id, kDenseSuffix);
}
bool IsDenseFileName(const std::string& name) {
  return absl::StartsWith(name, kDensePrefix) && absl::EndsWith(name, kDenseSuffix);
}
// "rank-00002-of-00004"
bool IsRankDirName(const std::string& name) {
  const std::string like = RankDir("", 0, 2).substr(1);
  return name.size() == like.size() &&
         std::equal(name.begin(), name.end(), like.begin(), [](char c, char model) {
           return absl::ascii_isdigit(static_cast<unsigned char>(model))
                      ? absl::ascii_isdigit(static_cast<unsigned char>(c))
                      : c == model;
         });
}

uint32_t CrcOf(std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); }
std::string CrcText(uint32_t crc) { return absl::StrFormat("%08x", crc); }

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat("saved model: ", path, " is damaged (", std::string(what),
                                          "); use a copy of it, or another checkpoint, or start "
                                          "without --init_from"));
}

// --- The manifest ---

std::string_view InitializerName(InitializerKind kind) {
  switch (kind) {
    case InitializerKind::kZeros:
      return "zeros";
    case InitializerKind::kConstant:
      return "constant";
    case InitializerKind::kUniform:
      return "uniform";
    case InitializerKind::kNormal:
      return "normal";
  }
  return "";
}

// --- Where training stands: every member once, for writing and for reading ---

class JsonWriter {
 public:
  template <typename T>
  void operator()(const char* name, const T& value) {
    json_[name] = value;
  }
  void operator()(const char* name, const std::vector<std::pair<std::string, std::string>>& texts) {
    json_[name] = Json::object();
    for (const auto& [key, value] : texts) json_[name][key] = value;
  }
  void operator()(const char* name, double value) {
    json_[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  }
  // Empty: no such member.
  void Optional(const char* name, const std::string& text) {
    if (!text.empty()) json_[name] = text;
  }
  template <typename Visit>
  void Group(const char* name, Visit visit) {
    JsonWriter inner;
    visit(inner);
    json_[name] = std::move(inner.json_);
  }
  Json Take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

class JsonReader {
 public:
  JsonReader(const Json& json, std::string path, std::string* wrong)
      : members_(json, std::move(path), wrong), wrong_(wrong) {}
  void operator()(const char* name, int64_t& value) { value = members_.Number(name); }
  void operator()(const char* name, bool& value) { value = members_.Bool(name); }
  void operator()(const char* name, double& value) { value = members_.RealOrNan(name); }
  void operator()(const char* name, std::vector<std::pair<std::string, std::string>>& texts) {
    texts = members_.Strings(name);
  }
  void Optional(const char* name, std::string& text) {
    if (members_.Has(name)) text = members_.String(name);
  }
  template <typename Visit>
  void Group(const char* name, Visit visit) {
    JsonReader inner(members_.Object(name), members_.PathOf(name), wrong_);
    visit(inner);
  }

 private:
  JsonMembers members_;
  std::string* const wrong_;
};

template <typename Metrics, typename Visitor>
void VisitMetrics(Metrics& metrics, Visitor& visit) {
  visit("samples", metrics.samples);
  visit("auc", metrics.auc);
  visit("logloss", metrics.logloss);
  visit("ne", metrics.ne);
  visit("calibration", metrics.calibration);
}

template <typename State, typename Visitor>
void VisitTraining(State& state, Visitor& visit) {
  visit("settings", state.settings);
  visit.Optional("processor", state.processor);
  visit.Group("position", [&](auto& v) {
    v("epoch", state.epoch);
    v("sample", state.samples_in_epoch);
    v("batch", state.batches_in_epoch);
    v("validation_due", state.validation_due);
    v("validated_step", state.validated_step);
  });
  visit.Group("run", [&](auto& v) {
    v("first_step", state.first_step);
    v("steps", state.steps);
    v("samples", state.samples);
    v("epochs", state.epochs_done);
    v("last_epoch", state.last_epoch);
    v("last_epoch_steps", state.steps_in_last_epoch);
    v("last_epoch_samples", state.samples_in_last_epoch);
    v("last_epoch_loss_sum", state.loss_sum_in_last_epoch);
    v("recent_loss", state.recent_loss);
    v("stopped_early", state.stopped_early);
    v("best_epoch", state.best_epoch);
    v("best_step", state.best_step);
    v("best_auc", state.best_auc);
  });
  visit.Group("policy", [&](auto& v) {
    v("factor", state.policy.factor);
    v("observed", state.policy.observed);
    v("best_auc", state.policy.best_auc);
    v("plateau_validations", state.policy.plateau_validations);
    v("worse_validations", state.policy.worse_validations);
  });
  visit.Group("valid", [&](auto& v) { VisitMetrics(state.valid, v); });
  visit.Group("test", [&](auto& v) { VisitMetrics(state.test, v); });
}

// path: of the object, empty where it is a text of its own.
TrainingState ParseTraining(const Json& json, const std::string& path, std::string* wrong) {
  TrainingState state;
  JsonReader reader(json, path, wrong);
  VisitTraining(state, reader);
  const std::pair<const char*, int64_t> counts[] = {
      {"position.epoch", state.epoch},
      {"position.sample", state.samples_in_epoch},
      {"position.batch", state.batches_in_epoch},
      {"position.validated_step", state.validated_step + 1},  // -1: there was none
      {"run.first_step", state.first_step},
      {"run.steps", state.steps},
      {"run.samples", state.samples},
      {"run.epochs", state.epochs_done},
      {"run.last_epoch", state.last_epoch + 1},  // -1 likewise
      {"run.last_epoch_steps", state.steps_in_last_epoch},
      {"run.last_epoch_samples", state.samples_in_last_epoch},
      {"run.best_epoch", state.best_epoch},
      {"run.best_step", state.best_step},
      {"valid.samples", state.valid.samples},
      {"test.samples", state.test.samples}};
  for (const auto& [name, count] : counts) {
    if (count >= 0 || !wrong->empty()) continue;
    JsonMembers(json, path, wrong).Wrong(name, count, "no negative number");
  }
  return state;
}

// --- Reading the manifest ---

// Paths inside the manifest's directory, or the one that it lies in, are written relative, so that
// they may move together.
std::string TablesDirText(const SavedModel& model, const SavedModel::Part& part) {
  const std::string dir = AbsolutePath(model.dir);
  const std::string tables = AbsolutePath(part.tables_dir);
  if (absl::StartsWith(tables, dir + "/")) return tables.substr(dir.size() + 1);
  const std::string above = ParentDir(dir);
  if (model.is_checkpoint && absl::StartsWith(tables, above + "/")) {
    return absl::StrCat("../", tables.substr(above.size() + 1));
  }
  return tables;
}

Initializer ParseInitializer(const Json& json, const std::string& path, std::string* wrong) {
  JsonMembers members(json, path, wrong);
  Initializer out;
  const std::string name = members.String("kind");
  out.value = static_cast<float>(members.Real("value"));
  for (const InitializerKind kind : {InitializerKind::kZeros, InitializerKind::kConstant,
                                     InitializerKind::kUniform, InitializerKind::kNormal}) {
    if (name != InitializerName(kind)) continue;
    out.kind = kind;
    if (!out.Validate().ok()) members.Wrong("value", out.value, "a finite number that fits");
    return out;
  }
  members.Wrong("kind", name, "zeros, constant, uniform or normal");
  return out;
}

// The stores of the ranks, in their order.
std::vector<SavedModel::Part> ParseStores(const Json& stores, size_t num_tables, bool elsewhere,
                                          const std::string& dir, std::string* wrong) {
  std::vector<SavedModel::Part> parts;
  std::set<std::tuple<std::string, std::string, SnapshotId>> seen;
  int64_t total_rows = 0;  // a sum that readers may form
  for (const Json& entry : stores) {
    JsonMembers store(entry, absl::StrCat("stores[", parts.size(), "]"), wrong);
    SavedModel::Part part;
    store.Count("rank", std::ssize(parts), std::ssize(parts));
    part.store = store.String("kind");
    if (!ParseStoreKind(part.store).ok()) store.Wrong("kind", part.store, "a kind of store");
    part.snapshot = static_cast<SnapshotId>(store.Count("snapshot", 1, INT64_MAX));
    if (store.Has("identity")) {
      const Hash128 identity = store.Hash("identity");
      part.identity = {.high = identity.hi, .low = identity.lo};
      if (!part.identity.known()) store.Wrong("identity", "0...", "one that is not 0");
    }
    if (store.Has("rows")) {
      const Json& rows = store.Array("rows");
      if (rows.size() != num_tables) {
        store.Wrong("rows", rows.size(), absl::StrCat(num_tables, " of them, one for each table"));
      }
      for (const Json& entry : rows) {
        const int64_t most = std::numeric_limits<int64_t>::max() - total_rows;
        if (!entry.is_number_unsigned() || entry.get<uint64_t>() > static_cast<uint64_t>(most)) {
          store.Wrong("rows", entry, "numbers of rows");
          break;
        }
        part.table_rows.push_back(entry.get<int64_t>());
        total_rows += part.table_rows.back();
      }
    }
    const std::string tables = store.String("dir");
    const bool known = elsewhere ? !tables.empty() : tables == kOwnTables;
    if (!known) store.Wrong("dir", tables, elsewhere ? "a directory" : "\"tables\"");
    part.tables_dir = JoinPath(dir, tables);
    if (!seen.emplace(part.store, part.tables_dir, part.snapshot).second) {
      store.Wrong("snapshot", part.snapshot, "one that no other rank has");
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

SavedModel ParseManifest(const Json& json, const std::vector<std::string>& required,
                         const std::string& dir, std::string* wrong) {
  const auto requires_it = [&](const char* what) {
    return std::find(required.begin(), required.end(), what) != required.end();
  };
  SavedModel out;
  out.dir = dir;
  out.is_checkpoint = requires_it(kRequiresCheckpoint);
  JsonMembers top(json, "", wrong);
  out.model = top.String("model");
  out.shape = top.Strings("shape");
  if (top.Has("seed")) out.seed = top.Unsigned("seed");
  out.step = top.Count("step", UINT32_MAX);
  out.num_dense = static_cast<int32_t>(top.Count("num_dense", INT32_MAX));
  std::set<std::string> table_names;
  for (const Json& entry : top.Array("tables")) {
    JsonMembers member(entry, absl::StrCat("tables[", out.tables.size(), "]"), wrong);
    SavedModel::Table table;
    table.name = member.String("name");
    if (!table_names.insert(table.name).second) {
      member.Wrong("name", table.name, "a name of its own");
    }
    table.dim = static_cast<int32_t>(member.Count("dim", 1, kTableDimMax));
    table.optimizer = member.String("optimizer");
    if (!ParseSparseOptimizer(table.optimizer).ok()) {
      member.Wrong("optimizer", table.optimizer, "an optimizer of tables");
    }
    if (member.Has("weights_precision")) {
      const std::string name = member.String("weights_precision");
      const auto precision = ParseWeightsPrecision(name);
      if (precision.ok()) {
        table.weights_precision = *precision;
      } else {
        member.Wrong("weights_precision", name, "fp32, fp16 or bf16");
      }
    }
    if (member.Has("initializer")) {
      table.initializer =
          ParseInitializer(member.Object("initializer"), member.PathOf("initializer"), wrong);
    }
    if (!out.is_checkpoint || member.Has("rows")) table.rows = member.Count("rows");
    if (!out.is_checkpoint || member.Has("hash")) table.hash = member.Hash("hash").ToHex();
    out.tables.push_back(std::move(table));
  }
  for (const Json& entry : top.Array("features")) {
    JsonMembers feature(entry, absl::StrCat("features[", out.features.size(), "]"), wrong);
    out.features.push_back({feature.String("name"), feature.String("table")});
    if (!table_names.contains(out.features.back().table)) {
      feature.Wrong("table", out.features.back().table, "the name of a table");
    }
  }
  const Json& stores = top.Array("stores");
  if (stores.empty() || stores.size() > kMaxRanks) {
    top.Wrong("stores", stores.size(), absl::StrCat("1 to ", kMaxRanks, " of them"));
  }
  out.parts = ParseStores(stores, out.tables.size(), requires_it(kRequiresStoreDir), dir, wrong);
  const int64_t ranks = std::ssize(out.parts);
  top.Count("world_size", ranks, ranks);
  if (ranks > 1 && !requires_it(kRequiresRanks)) {
    top.Wrong("requires", required, "ranks among them");
  }
  JsonMembers dense(top.Object("dense"), "dense", wrong);
  out.dense_file = dense.FileName("file");
  out.dense_bytes = dense.Count("bytes");
  out.dense_crc = dense.Crc("crc32c");
  // The file has them all, and a header.
  out.num_parameters =
      dense.Count("parameters", out.dense_bytes / static_cast<int64_t>(sizeof(float)));
  out.dense_optimizer = dense.String("optimizer");
  if (!ParseDenseOptimizer(out.dense_optimizer).ok()) {
    dense.Wrong("optimizer", out.dense_optimizer, "sgd, adagrad or adam");
  }
  if (top.Has("residuals")) {
    const Json& entries = top.Array("residuals");
    if (std::ssize(entries) != ranks) {
      top.Wrong("residuals", entries.size(), absl::StrCat(ranks, " of them, one for each rank"));
    }
    for (const Json& entry : entries) {
      const int64_t rank = std::ssize(out.residuals);
      JsonMembers member(entry, absl::StrCat("residuals[", rank, "]"), wrong);
      member.Count("rank", rank, rank);
      SavedModel::Residuals residuals;
      residuals.file = member.FileName("file");
      residuals.bytes = member.Count("bytes");
      residuals.crc = member.Crc("crc32c");
      out.residuals.push_back(std::move(residuals));
    }
  }
  if (out.is_checkpoint && top.Has("training")) {
    out.training = ParseTraining(top.Object("training"), "training", wrong);
  }
  return out;
}

absl::Status NewerVersion(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("saved model: ", path, " ", what,
                                                    ", which this program does not know (it reads "
                                                    "version ",
                                                    kVersion, "); use a newer hotrow"));
}

absl::StatusOr<SavedModel> ReadManifest(Env& env, const std::string& dir) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  // Checksum, version and `requires` are where they are in every version, so that a newer one is
  // told from a damaged one.
  const size_t member = text.rfind(kCrcMember);
  if (member == std::string::npos || text.size() < member + kCrcMember.size() + kCrcDigits) {
    return Damaged(path, "it does not end in its checksum");
  }
  const std::string crc = text.substr(member + kCrcMember.size(), kCrcDigits);
  text.replace(member + kCrcMember.size(), kCrcDigits, std::string(kCrcDigits, '0'));
  if (crc != CrcText(CrcOf(text))) return Damaged(path, "its checksum differs");
  const absl::StatusOr<Json> parsed = ParseJson<Json>(text);
  if (!parsed.ok()) return Damaged(path, std::string(parsed.status().message()));
  const Json& json = *parsed;
  std::string wrong;
  JsonMembers top(json, "", &wrong);
  if (top.String("format") != kFormat) return Damaged(path, "it is no manifest of a saved model");
  const int64_t version = top.Count("version");
  if (version != kVersion) return NewerVersion(path, absl::StrCat("has version ", version));
  std::vector<std::string> required;
  for (const Json& feature : top.Array("requires")) {
    if (feature != kRequiresCheckpoint && feature != kRequiresStoreDir &&
        feature != kRequiresRanks && feature != kRequiresWeightsPrecision) {
      return NewerVersion(path, absl::StrCat("requires ", DescribeJson(feature)));
    }
    required.push_back(feature.get<std::string>());
  }
  SavedModel model = ParseManifest(json, required, dir, &wrong);
  if (!wrong.empty()) return Damaged(path, wrong);
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
  std::string wrong;
  JsonMembers tensor(JsonMembers(header, "", &wrong).Object(name), name, &wrong);
  if (const std::string dtype = tensor.String("dtype"); dtype != "F32") {
    tensor.Wrong("dtype", dtype, "\"F32\"");
  }
  const Json shape = {out.size()};
  if (tensor.Array("shape") != shape) tensor.Wrong("shape", tensor.Array("shape"), shape.dump());
  const size_t bytes = out.size() * sizeof(float);
  const Json& offsets = tensor.Array("data_offsets");
  if (offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      offsets[0].get<uint64_t>() > data.size() ||
      data.size() - offsets[0].get<uint64_t>() < bytes ||
      offsets[1] != offsets[0].get<uint64_t>() + bytes) {
    tensor.Wrong("data_offsets", offsets,
                 absl::StrCat("two of ", bytes, " bytes within ", data.size()));
  }
  if (!wrong.empty()) return Damaged(path, wrong);
  std::memcpy(out.data(), data.data() + offsets[0].get<uint64_t>(), bytes);
  return absl::OkStatus();
}

// A file that the manifest names, with the length and checksum that it says. The length is compared
// before anything is read.
absl::StatusOr<std::string> ReadNamed(Env& env, const std::string& path, int64_t bytes,
                                      uint32_t crc) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return Damaged(path, "there is no such file");
  const auto differs = [&](int64_t found) {
    return Damaged(path, absl::StrCat("it has ", found, " bytes, the manifest says ", bytes));
  };
  {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    if (size != bytes) return differs(size);
  }
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(env, path, bytes));
  if (std::ssize(text) != bytes) return differs(std::ssize(text));
  if (CrcOf(text) != crc) return Damaged(path, "its checksum differs");
  return text;
}

// The arrays of a dense file, of the lengths that its header says.
struct DenseFile {
  std::string path;
  std::string text;
  Json header;
  std::string_view data;  // of text
};

absl::Status OpenDense(Env& env, const SavedModel& saved, DenseFile* file) {
  const std::string path = file->path = absl::StrCat(saved.dir, "/", saved.dense_file);
  HOTROW_ASSIGN_OR_RETURN(file->text, ReadNamed(env, path, saved.dense_bytes, saved.dense_crc));
  const std::string& text = file->text;
  uint64_t length = 0;
  if (text.size() >= sizeof(length)) std::memcpy(&length, text.data(), sizeof(length));
  if (length == 0 || length > kMaxTensorHeaderBytes || length > text.size() - sizeof(length)) {
    return Damaged(path, "the length of its header is wrong");
  }
  const std::string_view header_text = std::string_view(text).substr(sizeof(length), length);
  file->data = std::string_view(text).substr(sizeof(length) + length);
  absl::StatusOr<Json> header = ParseJson<Json>(header_text);
  if (!header.ok()) {
    return Damaged(path, absl::StrCat("its header: ", std::string(header.status().message())));
  }
  file->header = *std::move(header);
  if (!file->header.is_object()) return Damaged(path, "its header is no JSON object");
  return absl::OkStatus();
}

// The copy has its name once it is whole.
absl::Status CopyFileDurably(Env& env, const std::string& from, const std::string& to) {
  const std::string temporary = absl::StrCat(to, ".tmp");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> source, env.Open(from, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> copy,
                          env.Open(temporary, OpenMode::kTruncate));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, source->Size());
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(size, kCopyBytes)));
  for (int64_t at = 0; at < size;) {
    const auto bytes =
        std::span(buffer).first(static_cast<size_t>(std::min(size - at, kCopyBytes)));
    HOTROW_RETURN_IF_ERROR(ReadFull(*source, at, bytes));
    HOTROW_RETURN_IF_ERROR(WriteFull(*copy, at, bytes));
    at += static_cast<int64_t>(bytes.size());
  }
  HOTROW_RETURN_IF_ERROR(copy->Sync());
  HOTROW_RETURN_IF_ERROR(copy->Close());
  HOTROW_RETURN_IF_ERROR(env.Rename(temporary, to));
  return env.SyncDir(ParentDir(to));
}

std::optional<SnapshotId> SnapshotOfFileName(const std::string& name) {
  SnapshotId id = 0;
  if (absl::SimpleHexAtoi(name.substr(0, name.find('.')), &id) && name == SnapshotFileName(id)) {
    return id;
  }
  return std::nullopt;
}

}  // namespace

std::string SnapshotFileName(SnapshotId id) {
  return absl::StrFormat("%016x%s", id, kSnapshotSuffix);
}

absl::StatusOr<std::vector<SnapshotId>> ListSnapshotFiles(Env& env, const std::string& dir) {
  std::vector<SnapshotId> out;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    if (const std::optional<SnapshotId> id = SnapshotOfFileName(name)) out.push_back(*id);
  }
  return out;
}

absl::Status CheckManifestBytes(int64_t bytes) {
  if (bytes <= kManifestBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("saved model: its manifest has ", bytes, " bytes, at most ", kManifestBytesMax,
                   " are read back; train on fewer ranks, or with fewer tables"));
}

std::string ManifestPath(const std::string& dir) { return absl::StrCat(dir, "/", kManifestName); }

std::string ParentDir(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string WithoutEndingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return WithoutEndingSlashes(
      (error ? std::filesystem::path(path) : absolute).lexically_normal().string());
}

std::string JobLockPath(const std::string& dir) { return absl::StrCat(dir, "/", kLockName); }

absl::StatusOr<std::unique_ptr<FileLock>> LockJobDir(Env& env, std::string_view flag,
                                                     const std::string& dir) {
  const std::string path = JobLockPath(dir);
  absl::StatusOr<std::unique_ptr<FileLock>> lock = env.LockFile(path, LockMode::kExclusive);
  if (absl::IsUnimplemented(lock.status())) return std::unique_ptr<FileLock>();
  if (!absl::IsFailedPrecondition(lock.status())) return lock;
  return absl::FailedPreconditionError(
      absl::StrCat("--", std::string(flag), "=", dir,
                   ": another job, in this process or another, writes to it (it holds the lock ",
                   path, "); wait until that one has ended, or give a directory of its own"));
}

std::string JoinPath(const std::string& dir, const std::string& path) {
  const std::filesystem::path joined = std::filesystem::path(dir) / path;
  return WithoutEndingSlashes(joined.lexically_normal().string());
}

std::string SnapshotInfoText(const SnapshotInfo& info) {
  return absl::StrCat(info.identity.ToHex(), " ", absl::StrJoin(info.table_rows, " "));
}

absl::Status TakeSnapshotInfo(std::string_view text, SavedModel::Part* part) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ' ', absl::SkipEmpty());
  const auto damaged = [&] {
    return absl::InternalError(
        absl::StrCat("a rank says of its snapshot \"", std::string(text), "\""));
  };
  const auto identity = UniqueId::FromHex(words.empty() ? std::string() : words[0]);
  if (!identity.has_value()) return damaged();
  part->identity = *identity;
  part->table_rows.clear();
  for (size_t i = 1; i < words.size(); ++i) {
    int64_t rows = 0;
    if (!absl::SimpleAtoi(words[i], &rows) || rows < 0) return damaged();
    part->table_rows.push_back(rows);
  }
  return absl::OkStatus();
}

std::string TablesPlace(const SavedModel& model) {
  return model.parts.size() == 1 ? model.parts[0].tables_dir : model.dir;
}

absl::Status RemoveUnnamedSnapshots(Env& env, const std::string& dir,
                                    const std::vector<SavedModel::Part>& named,
                                    const std::set<std::string>& in_use) {
  const std::string root = SavedTablesDir(dir);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(root));
  std::vector<std::string> places = {root};
  for (const std::string& name : entries) {
    if (IsRankDirName(name)) places.push_back(absl::StrCat(root, "/", name));
  }
  for (const std::string& place : places) {
    const std::string absolute = AbsolutePath(place);
    if (in_use.contains(absolute)) continue;
    HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> files, ListSnapshotFiles(env, place));
    for (const SnapshotId id : files) {
      const bool is_named = std::any_of(named.begin(), named.end(), [&](const auto& part) {
        return part.snapshot == id && part.store == kMemory &&
               AbsolutePath(part.tables_dir) == absolute;
      });
      if (is_named) continue;
      HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(place, "/", SnapshotFileName(id))));
    }
    if (place == root) continue;
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> left, env.ListDir(place));
    if (left.empty()) HOTROW_RETURN_IF_ERROR(env.RemoveDir(place));
  }
  return absl::OkStatus();
}

std::string RankDir(const std::string& path, int32_t rank, int32_t world_size) {
  if (world_size == 1) return path;
  return absl::StrFormat("%s/%s%05d-of-%05d", path, kRankPrefix, rank, world_size);
}

std::string SavedTablesDir(const std::string& dir, int32_t rank, int32_t world_size) {
  return RankDir(absl::StrCat(dir, "/", kOwnTables), rank, world_size);
}

std::string SavedModelManifest(const SavedModel& model) {
  JsonWriter shape;
  shape("shape", model.shape);
  Json features = Json::array();
  for (const SavedModel::Feature& feature : model.features) {
    features.push_back({{"name", feature.name}, {"table", feature.table}});
  }
  Json tables = Json::array();
  Json table_names = Json::array();
  bool narrow = false;
  for (const SavedModel::Table& table : model.tables) {
    Json entry = {{"name", table.name}, {"dim", table.dim}, {"optimizer", table.optimizer}};
    if (table.weights_precision != WeightsPrecision::kFp32) {
      entry["weights_precision"] = std::string(WeightsPrecisionName(table.weights_precision));
      narrow = true;
    }
    if (table.initializer.has_value()) {
      entry["initializer"] = {{"kind", InitializerName(table.initializer->kind)},
                              {"value", table.initializer->value}};
    }
    if (table.rows >= 0) entry["rows"] = table.rows;
    if (!table.hash.empty()) entry["hash"] = table.hash;
    tables.push_back(std::move(entry));
    table_names.push_back(table.name);
  }
  Json stores = Json::array();
  bool elsewhere = false;
  for (const SavedModel::Part& part : model.parts) {
    const std::string tables_dir = TablesDirText(model, part);
    elsewhere = elsewhere || tables_dir != kOwnTables;
    Json entry = {{"rank", stores.size()},
                  {"kind", part.store},
                  {"dir", tables_dir},
                  {"snapshot", part.snapshot},
                  {"tables", table_names}};
    if (part.identity.known()) entry["identity"] = part.identity.ToHex();
    if (!part.table_rows.empty()) entry["rows"] = part.table_rows;
    stores.push_back(std::move(entry));
  }
  Json required = Json::array();
  if (model.is_checkpoint) required.push_back(kRequiresCheckpoint);
  if (elsewhere) required.push_back(kRequiresStoreDir);
  if (model.parts.size() > 1) required.push_back(kRequiresRanks);
  if (narrow) required.push_back(kRequiresWeightsPrecision);
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["requires"] = std::move(required);
  json["model"] = model.model;
  json["shape"] = shape.Take()["shape"];
  if (model.seed.has_value()) json["seed"] = *model.seed;
  json["step"] = model.step;
  json["num_dense"] = model.num_dense;
  json["features"] = std::move(features);
  json["tables"] = std::move(tables);
  json["world_size"] = model.parts.size();
  json["stores"] = std::move(stores);
  json["dense"] = {{"file", model.dense_file},
                   {"bytes", model.dense_bytes},
                   {"crc32c", CrcText(model.dense_crc)},
                   {"parameters", model.num_parameters},
                   {"optimizer", model.dense_optimizer}};
  for (const SavedModel::Residuals& residuals : model.residuals) {
    Json& entries = json["residuals"];
    entries.push_back({{"rank", entries.size()},
                       {"file", residuals.file},
                       {"bytes", residuals.bytes},
                       {"crc32c", CrcText(residuals.crc)}});
  }
  if (model.training.has_value()) {
    JsonWriter training;
    VisitTraining(*model.training, training);
    json["training"] = training.Take();
  }
  json["manifest_crc32c"] = std::string(kCrcDigits, '0');
  std::string text =
      json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  const std::string crc = CrcText(CrcOf(text));
  text.replace(text.rfind(kCrcMember) + kCrcMember.size(), kCrcDigits, crc);
  return text;
}

std::string TrainingStateToJson(const TrainingState& state) {
  JsonWriter writer;
  VisitTraining(state, writer);
  return writer.Take().dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::StatusOr<TrainingState> TrainingStateFromJson(std::string_view json) {
  HOTROW_ASSIGN_OR_RETURN(const Json parsed, ParseJson<Json>(json));
  std::string wrong;
  TrainingState state = ParseTraining(parsed, "", &wrong);
  if (wrong.empty()) return state;
  return absl::InvalidArgumentError(absl::StrCat("state of training: ", wrong));
}

SnapshotNames::SnapshotNames(const std::string& owner, bool exclusive) : exclusive_(exclusive) {
  const std::string path = AbsolutePath(owner);
  // 31 bits, not 0: a manifest's numbers are signed to some readers, and 0 names no snapshot.
  const uint64_t hash = HashBytes(0, 0, std::as_bytes(std::span(path))).lo >> 33;
  base_ = std::max<uint64_t>(hash, 1) << 32;
  last_ = base_;
}

bool SnapshotNames::owns(SnapshotId id) const { return exclusive_ || id >> 32 == base_ >> 32; }

SnapshotId SnapshotNames::Next(const std::vector<SnapshotId>& existing) {
  for (const SnapshotId id : existing) {
    if (id >> 32 == base_ >> 32) last_ = std::max(last_, id);
  }
  return ++last_;
}

absl::StatusOr<SavedModel> ReadSavedModel(Env& env, const std::string& dir) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::FailedPreconditionError(absl::StrCat(
        "saved model: there is no ", path, ": give a directory that --save_dir has written"));
  }
  return ReadManifest(env, dir);
}

absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const SavedModelUse& use) {
  const auto unfit = [&](std::string_view what, std::string_view remedy) {
    return absl::FailedPreconditionError(
        absl::StrCat(use.flag, ": ", std::string(what), "; ", std::string(remedy)));
  };
  if (saved.model != wanted.model) {
    return unfit(absl::StrCat("it holds a model \"", saved.model, "\", this is ", wanted.model),
                 absl::StrCat("use the program ", saved.model));
  }
  // Features before tables: the message about a feature says more.
  for (const SavedModel::Feature& feature : wanted.features) {
    if (std::find(saved.features.begin(), saved.features.end(), feature) == saved.features.end()) {
      return unfit(absl::StrCat("feature \"", feature.name, "\" of table \"", feature.table,
                                "\" is not in the saved model"),
                   absl::StrCat("new features cannot join a trained model; ", use.train_anew));
    }
  }
  for (const SavedModel::Feature& feature : saved.features) {
    if (std::find(wanted.features.begin(), wanted.features.end(), feature) ==
        wanted.features.end()) {
      return unfit(absl::StrCat("feature \"", feature.name, "\" of table \"", feature.table,
                                "\" of the saved model is not in the data"),
                   absl::StrCat("use data with the same features, or ", use.train_anew));
    }
  }
  if (saved.features != wanted.features) {
    const auto differs = std::mismatch(saved.features.begin(), saved.features.end(),
                                       wanted.features.begin(), wanted.features.end());
    return unfit(absl::StrCat("feature \"", differs.second->name,
                              "\" of the data stands where the "
                              "saved model has \"",
                              differs.first->name, "\""),
                 "put the features of the data into the order of the saved model");
  }
  if (saved.num_dense != wanted.num_dense) {
    return unfit(absl::StrCat("the saved model has ", saved.num_dense,
                              " dense features, the data have ", wanted.num_dense),
                 absl::StrCat("use data with the same features, or ", use.train_anew));
  }
  for (size_t i = 0; i < std::max(saved.tables.size(), wanted.tables.size()); ++i) {
    if (i >= saved.tables.size() || i >= wanted.tables.size() ||
        saved.tables[i].name != wanted.tables[i].name) {
      const bool in_data = i < wanted.tables.size();
      return unfit(
          absl::StrCat("table \"", in_data ? wanted.tables[i].name : saved.tables[i].name,
                       in_data ? "\" is not at its place in the saved model"
                               : "\" of the saved model is not in the data"),
          absl::StrCat("use data with the same tables in the same order, or ", use.train_anew));
    }
    const SavedModel::Table& table = saved.tables[i];
    if (table.dim != wanted.tables[i].dim) {
      return unfit(absl::StrCat("table \"", table.name, "\" has ", table.dim,
                                " columns in the saved model and ", wanted.tables[i].dim, " here"),
                   "use the --embedding_dim that it was trained with");
    }
    if (table.optimizer != wanted.tables[i].optimizer) {
      return unfit(absl::StrCat("table \"", table.name, "\" was trained with ", table.optimizer,
                                ", this is ", wanted.tables[i].optimizer),
                   absl::StrCat("use --optimizer=", table.optimizer));
    }
    if (table.weights_precision != wanted.tables[i].weights_precision) {
      const std::string was(WeightsPrecisionName(table.weights_precision));
      return unfit(
          absl::StrCat("table \"", table.name, "\" has weights of ", was, ", this is ",
                       std::string(WeightsPrecisionName(wanted.tables[i].weights_precision))),
          absl::StrCat("use --weights_precision=", was));
    }
  }
  for (const auto& [flag, value] : wanted.shape) {
    for (const auto& [saved_flag, saved_value] : saved.shape) {
      if (flag == saved_flag && value != saved_value) {
        return unfit(absl::StrCat("--", flag, " is ", value, " here and ", saved_value,
                                  " in the saved model"),
                     absl::StrCat("use --", flag, "=", saved_value));
      }
    }
  }
  if (saved.num_parameters != wanted.num_parameters) {
    return unfit(absl::StrCat("the saved model has ", saved.num_parameters,
                              " dense parameters, this one ", wanted.num_parameters),
                 "use the model flags that it was trained with");
  }
  return absl::OkStatus();
}

absl::Status ReadSavedDense(Env& env, const SavedModel& saved, const DenseArrays<float>& dense) {
  DenseFile file;
  HOTROW_RETURN_IF_ERROR(OpenDense(env, saved, &file));
  const std::array<std::span<float>, 3> arrays = {dense.parameters, dense.momentum1,
                                                  dense.momentum2};
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].empty() && i > 0) continue;
    HOTROW_RETURN_IF_ERROR(
        CopyTensor(file.path, file.header, file.data, kTensorNames[i], arrays[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<DenseVectors> ReadSavedDense(Env& env, const SavedModel& saved) {
  DenseFile file;
  HOTROW_RETURN_IF_ERROR(OpenDense(env, saved, &file));
  DenseVectors out;
  std::vector<float>* const arrays[] = {&out.parameters, &out.momentum1, &out.momentum2};
  for (size_t i = 0; i < kTensorNames.size(); ++i) {
    if (i > 0 && !file.header.contains(kTensorNames[i])) continue;
    arrays[i]->resize(static_cast<size_t>(saved.num_parameters));
    HOTROW_RETURN_IF_ERROR(
        CopyTensor(file.path, file.header, file.data, kTensorNames[i], *arrays[i]));
  }
  return out;
}

absl::StatusOr<std::string> ReadSavedResiduals(Env& env, const SavedModel& saved, int32_t rank) {
  const SavedModel::Residuals& residuals = saved.residuals[static_cast<size_t>(rank)];
  return ReadNamed(env, absl::StrCat(saved.dir, "/", residuals.file), residuals.bytes,
                   residuals.crc);
}

absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest) {
  for (size_t i = 0; i < saved.tables.size(); ++i) {
    const SavedModel::Table& expected = saved.tables[i];
    const TableDigest& found = digest.tables[i];
    if ((expected.rows >= 0 && found.rows != expected.rows) ||
        (!expected.hash.empty() && found.hash.ToHex() != expected.hash)) {
      return Damaged(TablesPlace(saved),
                     absl::StrCat("table \"", expected.name, "\" has ", found.rows,
                                  " rows of hash ", found.hash.ToHex(), ", the manifest says ",
                                  expected.rows, " of ", expected.hash));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteSavedDense(Env& env, const std::string& name,
                             const DenseArrays<const float>& dense, SavedModel* model) {
  model->dense_file = name;
  model->dense_bytes = 0;
  model->dense_crc = 0;
  model->num_parameters = static_cast<int64_t>(dense.parameters.size());
  const std::string header = TensorHeader(dense);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          env.Open(absl::StrCat(model->dir, "/", name), OpenMode::kTruncate));
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
  return file->Close();
}

struct SavedModelWriter::Impl {
  Impl(Env* e, std::string d, RankGroup g) : env(*e), dir(std::move(d)), group(std::move(g)) {}

  std::string tables_dir() const { return SavedTablesDir(dir, group.rank(), group.world_size()); }
  absl::Status Clean(EmbeddingCollection& tables, const SavedModel& keep);
  absl::Status PrepareTables(EmbeddingCollection& tables, const SavedModel& before,
                             SavedModel::Part* mine);
  absl::StatusOr<std::vector<SavedModel::Part>> GatherParts(const SavedModel::Part& mine) const;
  absl::Status Commit(SavedModel* model, const DenseArrays<const float>& dense);

  Env& env;
  const std::string dir;
  const RankGroup group;
  std::unique_ptr<FileLock> lock;  // of rank 0, for all ranks
  std::optional<SnapshotNames> names;
  // Of this save: where the collection keeps its snapshots, and whether they are copied from there.
  SavedModel::Part own;
  bool copied = false;
  std::set<std::string> in_use;  // directories of all ranks' snapshots of memory stores, absolute
};

SavedModelWriter::SavedModelWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SavedModelWriter::~SavedModelWriter() = default;

std::string SavedModelWriter::tables_dir() const { return impl_->tables_dir(); }

absl::StatusOr<std::unique_ptr<SavedModelWriter>> SavedModelWriter::Open(
    Env* env, const std::string& dir, Communicator* communicator) {
  const std::string path = WithoutEndingSlashes(dir);
  auto impl = std::make_unique<Impl>(env, path, RankGroup(communicator));
  const absl::StatusOr<std::vector<std::string>> checkpoints = ListCheckpoints(*env, path);
  const auto refused = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--save_dir=", dir, ": ", std::string(what), "; give a directory of its own to save into"));
  };
  // Their tables have names like ours.
  if (checkpoints.ok() && !checkpoints->empty()) return refused("it holds checkpoints");
  if (const absl::Status status = CreateDirsDurably(*env, impl->tables_dir()); !status.ok()) {
    return refused(std::string(status.message()));
  }
  if (impl->group.leads()) {
    HOTROW_ASSIGN_OR_RETURN(impl->lock, LockJobDir(*env, "save_dir", path));
  }
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env->Exists(ManifestPath(path)));
  if (exists) {
    if (const absl::Status status = ReadSavedModel(*env, path).status(); !status.ok()) {
      return refused(std::string(status.message()));
    }
  }
  // What Save will open first, opened now: of the ranks that do not lead a file of their own.
  const std::string probe = absl::StrCat(
      impl->group.leads() ? ManifestPath(path) : impl->tables_dir() + "/probe", ".tmp");
  absl::StatusOr<std::unique_ptr<File>> file = env->Open(probe, OpenMode::kTruncate);
  if (!file.ok()) return refused(std::string(file.status().message()));
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  HOTROW_RETURN_IF_ERROR(env->Remove(probe));
  return std::unique_ptr<SavedModelWriter>(new SavedModelWriter(std::move(impl)));
}

// Removes what no manifest names: parts of saves that a crash or an error cut off, and models of
// other numbers of ranks.
absl::Status SavedModelWriter::Impl::Clean(EmbeddingCollection& tables, const SavedModel& keep) {
  const auto keeps = [&](const std::string& store, const std::string& place, SnapshotId id) {
    return std::any_of(keep.parts.begin(), keep.parts.end(), [&](const SavedModel::Part& part) {
      return part.snapshot == id && part.store == store &&
             AbsolutePath(part.tables_dir) == AbsolutePath(place);
    });
  };
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables.ListSnapshots());
  for (const SnapshotId id : snapshots) {
    const bool kept = keeps(own.store, own.tables_dir, id);
    if (names->owns(id) && !kept) HOTROW_RETURN_IF_ERROR(tables.DropSnapshot(id));
  }
  if (copied) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> files, env.ListDir(tables_dir()));
    for (const std::string& name : files) {
      const bool ours = absl::EndsWith(name, kSnapshotSuffix) || absl::EndsWith(name, ".tmp");
      const std::optional<SnapshotId> id = SnapshotOfFileName(name);
      const bool kept = id.has_value() && keeps(kMemory, tables_dir(), *id);
      if (!ours || kept) continue;
      HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(tables_dir(), "/", name)));
    }
  }
  if (!group.leads()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(RemoveUnnamedSnapshots(env, dir, keep.parts, in_use));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(dir));
  for (const std::string& name : entries) {
    if (IsDenseFileName(name) && name != keep.dense_file) {
      HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(dir, "/", name)));
    }
  }
  return absl::OkStatus();
}

// Makes this rank's tables durable under a new name.
absl::Status SavedModelWriter::Impl::PrepareTables(EmbeddingCollection& tables,
                                                   const SavedModel& before,
                                                   SavedModel::Part* mine) {
  HOTROW_ASSIGN_OR_RETURN(std::vector<SnapshotId> existing, tables.ListSnapshots());
  if (own.store == kMemory) {
    HOTROW_ASSIGN_OR_RETURN(const auto files, ListSnapshotFiles(env, tables_dir()));
    existing.insert(existing.end(), files.begin(), files.end());
  }
  // Of other stores: the dense file has the name of a snapshot, too.
  for (const SavedModel::Part& part : before.parts) existing.push_back(part.snapshot);
  mine->snapshot = names->Next(existing);
  HOTROW_RETURN_IF_ERROR(tables.PrepareSnapshot(mine->snapshot));
  HOTROW_ASSIGN_OR_RETURN(SnapshotInfo info, tables.DescribeSnapshot(mine->snapshot));
  mine->identity = info.identity;
  mine->table_rows = std::move(info.table_rows);
  if (!copied) return absl::OkStatus();
  const std::string name = SnapshotFileName(mine->snapshot);
  HOTROW_RETURN_IF_ERROR(CopyFileDurably(env, absl::StrCat(own.tables_dir, "/", name),
                                         absl::StrCat(tables_dir(), "/", name)));
  HOTROW_RETURN_IF_ERROR(tables.DropSnapshot(mine->snapshot));
  mine->tables_dir = tables_dir();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SavedModel::Part>> SavedModelWriter::Impl::GatherParts(
    const SavedModel::Part& mine) const {
  HOTROW_ASSIGN_OR_RETURN(const auto snapshots, group.Gather(static_cast<int64_t>(mine.snapshot)));
  HOTROW_ASSIGN_OR_RETURN(const auto stores, group.GatherTexts(mine.store));
  HOTROW_ASSIGN_OR_RETURN(const auto dirs, group.GatherTexts(AbsolutePath(mine.tables_dir)));
  HOTROW_ASSIGN_OR_RETURN(const auto infos,
                          group.GatherTexts(SnapshotInfoText({.id = mine.snapshot,
                                                              .committed = false,
                                                              .identity = mine.identity,
                                                              .table_rows = mine.table_rows})));
  std::vector<SavedModel::Part> parts(dirs.size());
  for (size_t r = 0; r < dirs.size(); ++r) {
    parts[r].store = stores[r];
    parts[r].tables_dir = dirs[r];
    parts[r].snapshot = static_cast<SnapshotId>(snapshots[r]);
    HOTROW_RETURN_IF_ERROR(TakeSnapshotInfo(infos[r], &parts[r]));
  }
  return parts;
}

absl::Status SavedModelWriter::Impl::Commit(SavedModel* model,
                                            const DenseArrays<const float>& dense) {
  HOTROW_RETURN_IF_ERROR(
      WriteSavedDense(env, DenseFileName(model->parts[0].snapshot), dense, model));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(dir));
  const std::string manifest = SavedModelManifest(*model);
  HOTROW_RETURN_IF_ERROR(CheckManifestBytes(std::ssize(manifest)));
  return WriteFileAtomically(env, ManifestPath(dir), manifest);
}

absl::Status SavedModelWriter::Save(SavedModel model, EmbeddingCollection& tables,
                                    const DenseArrays<const float>& dense) {
  Impl& impl = *impl_;
  Env& env = impl.env;
  HOTROW_CHECK(model.parts.size() == 1);
  impl.own = model.parts[0];
  HOTROW_RETURN_IF_ERROR(impl.group.Agree(
      CheckUtf8Path("the directory of the tables", AbsolutePath(impl.own.tables_dir))));
  const bool in_memory = impl.own.store == kMemory;
  const bool own_tables = AbsolutePath(impl.own.tables_dir) == AbsolutePath(tables_dir());
  impl.copied = in_memory && !own_tables;
  impl.in_use.clear();
  for (int32_t r = 0; in_memory && r < impl.group.world_size(); ++r) {
    impl.in_use.insert(AbsolutePath(SavedTablesDir(impl.dir, r, impl.group.world_size())));
  }
  if (!impl.names.has_value()) impl.names.emplace(impl.dir, /*exclusive=*/own_tables);
  // A manifest that a failed sync left in doubt is made durable before what an older one names is
  // removed.
  HOTROW_RETURN_IF_ERROR(impl.group.TogetherOnLeader([&] { return env.SyncDir(impl.dir); }));
  SavedModel before;
  HOTROW_RETURN_IF_ERROR(impl.group.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(ManifestPath(impl.dir)));
    if (exists) {
      HOTROW_ASSIGN_OR_RETURN(before, ReadManifest(env, impl.dir));
    }
    return impl.Clean(tables, before);
  }));

  const bool counted = std::all_of(
      model.tables.begin(), model.tables.end(),
      [](const SavedModel::Table& table) { return table.rows >= 0 && !table.hash.empty(); });
  if (!counted) {
    const absl::StatusOr<CollectionDigest> digest = tables.Digest();
    HOTROW_RETURN_IF_ERROR(impl.group.Agree(digest.status()));
    model.tables.resize(digest->tables.size());
    for (size_t i = 0; i < digest->tables.size(); ++i) {
      model.tables[i].rows = digest->tables[i].rows;
      model.tables[i].hash = digest->tables[i].hash.ToHex();
    }
  }
  model.dir = impl.dir;
  model.step = tables.steps();
  HOTROW_RETURN_IF_ERROR(
      impl.group.Together([&] { return impl.PrepareTables(tables, before, &model.parts[0]); }));
  const SnapshotId snapshot = model.parts[0].snapshot;
  HOTROW_ASSIGN_OR_RETURN(model.parts, impl.GatherParts(model.parts[0]));
  HOTROW_RETURN_IF_ERROR(impl.group.TogetherOnLeader([&] { return impl.Commit(&model, dense); }));

  // The model is saved. What cannot be removed now is removed by the next Save.
  impl.group
      .Together([&] {
        if (!impl.copied) tables.CommitSnapshot(snapshot).IgnoreError();
        impl.Clean(tables, model).IgnoreError();
        return absl::OkStatus();
      })
      .IgnoreError();
  return absl::OkStatus();
}

}  // namespace hotrow
