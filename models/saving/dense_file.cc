#include "models/saving/dense_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/json/json_members_impl.h"
#include "models/json/json_text.h"
#include "models/saving/saved_model_impl.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr int64_t kMaxTensorHeaderBytes = 1 << 20;
constexpr std::array<const char*, 4> kTensorNames = {"parameters", "momentum1", "momentum2",
                                                     "average"};

// In the order of their names.
template <typename Float>
std::array<std::span<Float>, 4> Tensors(const DenseArrays<Float>& dense) {
  return {dense.parameters, dense.momentum1, dense.momentum2, dense.average};
}

// A dense file is the length of its header in 8 bytes, the header, then the arrays.
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

// Copies one array out of a file whose checksum is right.
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
  if (!wrong.empty()) return SavedModelDamaged(path, wrong);
  // A model without parameters has no array to copy to.
  if (bytes > 0) std::memcpy(out.data(), data.data() + offsets[0].get<uint64_t>(), bytes);
  return absl::OkStatus();
}

// Reads a file that the manifest names and checks its length, before reading anything, and its
// checksum.
absl::StatusOr<std::string> ReadNamed(Env& env, const std::string& path, int64_t bytes,
                                      uint32_t crc) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return SavedModelDamaged(path, "there is no such file");
  const auto differs = [&](int64_t found) {
    return SavedModelDamaged(path,
                             absl::StrCat("it has ", found, " bytes, the manifest says ", bytes));
  };
  {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    if (size != bytes) return differs(size);
  }
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(env, path, bytes));
  if (std::ssize(text) != bytes) return differs(std::ssize(text));
  if (Crc32c(std::as_bytes(std::span(text))) != crc)
    return SavedModelDamaged(path, "its checksum differs");
  return text;
}

// An open dense file. Its arrays are checked when they are copied.
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
    return SavedModelDamaged(path, "the length of its header is wrong");
  }
  const std::string_view header_text = std::string_view(text).substr(sizeof(length), length);
  file->data = std::string_view(text).substr(sizeof(length) + length);
  absl::StatusOr<Json> header = ParseJson<Json>(header_text);
  if (!header.ok()) {
    return SavedModelDamaged(path,
                             absl::StrCat("its header: ", std::string(header.status().message())));
  }
  file->header = *std::move(header);
  if (!file->header.is_object()) return SavedModelDamaged(path, "its header is no JSON object");
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSavedDense(Env& env, const SavedModel& saved, const DenseArrays<float>& dense) {
  DenseFile file;
  HOTROW_RETURN_IF_ERROR(OpenDense(env, saved, &file));
  const auto arrays = Tensors(dense);
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
  std::vector<float>* const arrays[] = {&out.parameters, &out.momentum1, &out.momentum2,
                                        &out.average};
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

absl::StatusOr<std::string> ReadSavedCounters(Env& env, const SavedModel& saved, int32_t rank) {
  const SavedModel::Counters& counters = saved.counters[static_cast<size_t>(rank)];
  return ReadNamed(env, absl::StrCat(saved.dir, "/", counters.file), counters.bytes, counters.crc);
}

absl::Status WriteSavedDense(Env& env, const std::string& name,
                             const DenseArrays<const float>& dense, SavedModel* model) {
  model->dense_file = name;
  model->dense_bytes = 0;
  model->dense_crc = 0;
  model->num_parameters = static_cast<int64_t>(dense.parameters.size());
  model->dense_average = !dense.average.empty();
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

}  // namespace hotrow
