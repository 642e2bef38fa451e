#ifndef HOTROW_MODELS_JSON_JSON_TEXT_H_
#define HOTROW_MODELS_JSON_JSON_TEXT_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// Limit of nested arrays and objects. hotrow writes fewer than 10 levels; a text with more than
// this is damaged, or made to exhaust the reader's stack.
inline constexpr int64_t kJsonDepthMax = 64;

// Parses JSON; all texts from outside are read here. Json is nlohmann::json or
// nlohmann::ordered_json. Skips a byte order mark. Errors: InvalidArgument, with line and column if
// the text is not JSON, or with the path of the member ("tables[2].dim") that nests too deeply or
// occurs twice. They do not name the file.
template <typename Json>
absl::StatusOr<Json> ParseJson(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_JSON_JSON_TEXT_H_
