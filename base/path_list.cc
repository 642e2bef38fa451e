#include "base/path_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::StatusOr<std::vector<std::string>> SplitPathList(std::string_view text) {
  std::vector<std::string> paths;
  if (text.empty()) return paths;
  paths.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      paths.back().push_back(text[i]);
    } else if (text.substr(i + 1, 1) == ",") {
      paths.back().push_back(text[i++]);
    } else {
      paths.emplace_back();
    }
  }
  if (std::count(paths.begin(), paths.end(), "") > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text),
                     "\" has an empty path: a comma stands between two directories, and one that "
                     "is part of a name is written twice"));
  }
  return paths;
}

std::string JoinPathList(std::span<const std::string> paths) {
  std::string text;
  for (const std::string& path : paths) {
    if (!text.empty()) text.push_back(',');
    // Behind the comma between two paths it would be taken for the second of a pair.
    if (path.substr(0, 1) == ",") text.append("./");
    for (const char c : path) text.append(c == ',' ? 2 : 1, c);
  }
  return text;
}

}  // namespace hotrow
