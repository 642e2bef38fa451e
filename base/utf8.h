#ifndef HOTROW_BASE_UTF8_H_
#define HOTROW_BASE_UTF8_H_

#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// Whether the bytes are valid UTF-8 without overlong forms and surrogates, as JSON requires.
bool IsUtf8(std::string_view bytes);

// InvalidArgument when the path is not UTF-8, since a manifest cannot hold it. `what` names the
// path in the error: "--store_path".
absl::Status CheckUtf8Path(std::string_view what, std::string_view path);

}  // namespace hotrow

#endif  // HOTROW_BASE_UTF8_H_
