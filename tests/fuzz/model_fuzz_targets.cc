#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/env.h"
#include "models/json_text.h"
#include "models/portable_model.h"
#include "models/saved_model.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/support/mem_env.h"
#include "tools/plan/plan_spec.h"

namespace hotrow::fuzz {
namespace {

constexpr char kDir[] = "/model";

std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

uint32_t CrcOf(std::string_view bytes) { return Crc32c(std::as_bytes(std::span(bytes))); }

// The manifest with the checksum that belongs to it, where there is a place for one.
std::string WithRightChecksum(std::string_view text) {
  constexpr std::string_view kMember = "\"manifest_crc32c\": \"";
  std::string out(text);
  const size_t at = out.rfind(kMember) + kMember.size();
  if (out.rfind(kMember) == std::string::npos || out.size() < at + 8) return out;
  out.replace(at, 8, "00000000");
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", CrcOf(out));
  return out.replace(at, 8, digits);
}

void Write(Env& env, const std::string& name, std::string_view text) {
  HOTROW_CHECK(env.CreateDirs(kDir).ok());
  HOTROW_CHECK(WriteFileAtomically(env, std::string(kDir) + "/" + name, text).ok());
}

}  // namespace

void SavedManifest(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::string_view text = Text(data + 1, size - 1);
  test::MemEnv env;
  Write(env, "manifest.json", data[0] % 2 == 1 ? WithRightChecksum(text) : std::string(text));
  const absl::StatusOr<SavedModel> model = ReadSavedModel(env, kDir);
  if (!model.ok()) {
    HOTROW_CHECK(!model.status().message().empty());
    return;
  }
  // What is read is written so that it is read again.
  Write(env, "manifest.json", SavedModelManifest(*model));
  const absl::StatusOr<SavedModel> again = ReadSavedModel(env, kDir);
  HOTROW_CHECK(again.ok());
  HOTROW_CHECK(again->parts == model->parts);
  HOTROW_CHECK(again->features == model->features);
  HOTROW_CHECK(again->num_parameters == model->num_parameters);
}

void DenseHeader(const uint8_t* data, size_t size) {
  const std::string_view text = Text(data, size);
  test::MemEnv env;
  Write(env, "dense", text);
  SavedModel model;
  model.dir = kDir;
  model.dense_file = "dense";
  model.dense_bytes = static_cast<int64_t>(size);
  model.dense_crc = CrcOf(text);
  model.num_parameters = 3;
  const absl::StatusOr<DenseVectors> dense = ReadSavedDense(env, model);
  if (!dense.ok()) return;
  HOTROW_CHECK(dense->parameters.size() == 3);
}

void PortableManifest(const uint8_t* data, size_t size) {
  if (size == 0) return;
  test::MemEnv env;
  Write(env, "manifest.json", Text(data + 1, size - 1));
  const absl::StatusOr<PortableModel> model =
      ReadPortableManifest(env, kDir, /*edited=*/data[0] % 2 == 1);
  if (!model.ok()) {
    HOTROW_CHECK(!model.status().message().empty());
    return;
  }
  HOTROW_CHECK(!model->tables.empty());
  for (const PortableTable& table : model->tables) HOTROW_CHECK(table.layout().row_bytes > 0);
}

void PlanSpec(const uint8_t* data, size_t size) {
  const std::string_view text = Text(data, size);
  const auto spec = ParsePlanSpec(text, "spec");
  HOTROW_CHECK(spec.ok() || !spec.status().message().empty());
  const auto curve = ParseCurve(text, "curve");
  HOTROW_CHECK(!curve.ok() || !curve->empty());
}

}  // namespace hotrow::fuzz
