#ifndef HOTROW_MODELS_JSON_SEALED_JSON_H_
#define HOTROW_MODELS_JSON_SEALED_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace hotrow {

// The text of a manifest: an object whose last member, manifest_crc32c, is the CRC-32C of the whole
// text with its own eight digits as zeros. So any version of a reader tells damage from what it
// does not know.
std::string SealJson(nlohmann::ordered_json object);

// What such a text says. Errors: DataLoss, a sentence about the text that does not name the file.
absl::StatusOr<nlohmann::ordered_json> OpenSealedJson(std::string text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_JSON_SEALED_JSON_H_
