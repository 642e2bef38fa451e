#ifndef HOTROW_BASE_UTF8_H_
#define HOTROW_BASE_UTF8_H_

#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// Whether the bytes are UTF-8, as texts in JSON are: none overlong, no surrogates.
bool IsUtf8(std::string_view bytes);

// OK, or InvalidArgument, where the path is not UTF-8 and so cannot stand in a manifest. what:
// names it, as "--store_path".
absl::Status CheckUtf8Path(std::string_view what, std::string_view path);

}  // namespace hotrow

#endif  // HOTROW_BASE_UTF8_H_
