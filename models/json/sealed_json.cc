#include "models/json/sealed_json.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "models/json/json_text.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMember[] = "manifest_crc32c";
constexpr std::string_view kBeforeDigits = "\"manifest_crc32c\": \"";
constexpr size_t kDigits = 8;

// Puts the checksum of the text with zeros for its digits, which stand at `at`, there.
void PutChecksum(size_t at, std::string* text) {
  text->replace(at, kDigits, kDigits, '0');
  text->replace(at, kDigits, absl::StrFormat("%08x", Crc32c(std::as_bytes(std::span(*text)))));
}

}  // namespace

std::string SealJson(Json object) {
  object[kMember] = std::string(kDigits, '0');
  std::string text =
      object.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  PutChecksum(text.rfind(kBeforeDigits) + kBeforeDigits.size(), &text);
  return text;
}

absl::StatusOr<Json> OpenSealedJson(std::string text) {
  const size_t member = text.rfind(kBeforeDigits);
  const size_t at = member + kBeforeDigits.size();
  if (member == std::string::npos || text.size() < at + kDigits) {
    return absl::DataLossError("it does not end in its checksum");
  }
  const std::string found = text.substr(at, kDigits);
  PutChecksum(at, &text);
  if (text.compare(at, kDigits, found) != 0) return absl::DataLossError("its checksum differs");
  absl::StatusOr<Json> json = ParseJson<Json>(text);
  if (!json.ok()) return absl::DataLossError(json.status().message());
  return json;
}

}  // namespace hotrow
