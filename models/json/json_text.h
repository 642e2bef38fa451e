#ifndef HOTROW_MODELS_JSON_JSON_TEXT_H_
#define HOTROW_MODELS_JSON_JSON_TEXT_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// Arrays and objects inside one another, at most. What we write nests less than 10 deep; above this
// a text is damaged, or made to exhaust the stack of who walks over it.
inline constexpr int64_t kJsonDepthMax = 64;

// The one reader of JSON texts. Json is nlohmann::json or nlohmann::ordered_json. A byte order mark
// at the beginning is skipped. Errors: InvalidArgument, with line and column where the text is no
// JSON, and with the path of the member ("tables[2].dim") that nests too deeply or that an object
// has twice. They do not name the file.
template <typename Json>
absl::StatusOr<Json> ParseJson(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_JSON_JSON_TEXT_H_
