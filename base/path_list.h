#ifndef HOTROW_BASE_PATH_LIST_H_
#define HOTROW_BASE_PATH_LIST_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hotrow {

// Paths in one text, as in --store_path=/a,/b. A comma stands between two of them; a comma that is
// part of a name is written twice. An empty text has none. Errors: InvalidArgument (an empty path
// among several).
absl::StatusOr<std::vector<std::string>> SplitPathList(std::string_view text);
std::string JoinPathList(std::span<const std::string> paths);

}  // namespace hotrow

#endif  // HOTROW_BASE_PATH_LIST_H_
