#include "models/data/file_pattern.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

bool IsPattern(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

// Whether c is in the set that begins with '[' at pattern[0]; *length: of the set. None: it is not
// closed, so '[' stands for itself.
std::optional<bool> InSet(std::string_view pattern, char c, size_t* length) {
  const bool inverse = pattern.size() > 1 && (pattern[1] == '!' || pattern[1] == '^');
  const size_t begin = inverse ? 2 : 1;
  // A bracket that comes first is a member.
  const size_t end = pattern.find(']', begin + 1);
  if (end == std::string_view::npos) return std::nullopt;
  *length = end + 1;
  bool found = false;
  for (size_t i = begin; i < end; ++i) {
    const bool range = i + 2 < end && pattern[i + 1] == '-';
    const char last = range ? pattern[i + 2] : pattern[i];
    found = found || (pattern[i] <= c && c <= last);
    if (range) i += 2;
  }
  return found != inverse;
}

// Whether one character of the pattern matches c; *length: of that part of the pattern.
bool MatchesOne(std::string_view pattern, char c, size_t* length) {
  *length = 1;
  if (pattern.front() == '?') return true;
  if (pattern.front() == '[') {
    const std::optional<bool> in_set = InSet(pattern, c, length);
    if (in_set.has_value()) return *in_set;
  }
  return pattern.front() == c;
}

std::string Join(const std::string& folder, const std::string& name) {
  if (folder.empty() || folder.back() == '/') return folder + name;
  return absl::StrCat(folder, "/", name);
}

// The names in a folder; none where there is no folder of this name.
absl::StatusOr<std::vector<std::string>> NamesIn(Env& env, const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = env.ListDir(folder);
  // ENOENT and ENOTDIR: what a folder's pattern matched may be a file, or gone.
  if (absl::IsNotFound(names.status()) || absl::IsFailedPrecondition(names.status())) {
    return std::vector<std::string>();
  }
  return names;
}

// Equal for names of one file: a file with .gz after its name stands for the one without.
std::string FileOf(const std::string& path) {
  std::string name = std::filesystem::path(path).lexically_normal().string();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return name;
}

absl::StatusOr<std::vector<std::string>> Matches(Env& env, const std::string& path) {
  std::string_view pattern = path;
  std::vector<std::string> found = {pattern.substr(0, 1) == "/" ? "/" : ""};
  while (!pattern.empty()) {
    const size_t cut = std::min(pattern.find('/'), pattern.size());
    const std::string part(pattern.substr(0, cut));
    pattern.remove_prefix(std::min(cut + 1, pattern.size()));
    if (part.empty()) continue;
    std::vector<std::string> next;
    for (const std::string& folder : found) {
      if (!IsPattern(part)) {
        next.push_back(Join(folder, part));
        continue;
      }
      const auto names = NamesIn(env, folder.empty() ? "." : folder);
      if (!names.ok()) {
        return absl::Status(
            names.status().code(),
            absl::StrCat(path, ": ", std::string(names.status().message()),
                         "; make the folder readable, or give a pattern that passes it over"));
      }
      for (const std::string& name : *names) {
        if (name.ends_with(kPartialSuffix)) continue;
        if (MatchesPattern(part, name)) next.push_back(Join(folder, name));
      }
    }
    found = std::move(next);
  }
  std::vector<std::string> there;
  for (std::string& path : found) {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
    if (exists) there.push_back(std::move(path));
  }
  std::sort(there.begin(), there.end());
  return there;
}

}  // namespace

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  if (name.substr(0, 1) == "." && pattern.substr(0, 1) != ".") return false;
  size_t p = 0;
  size_t n = 0;
  // Where to go on after a mismatch: behind the last star, which takes one character more.
  size_t star = std::string_view::npos;
  size_t star_name = 0;
  while (n < name.size()) {
    size_t length = 0;
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
    } else if (p < pattern.size() && MatchesOne(pattern.substr(p), name[n], &length)) {
      p += length;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star;
      n = ++star_name;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

absl::StatusOr<std::vector<std::string>> ExpandFilePattern(Env& env, const std::string& path) {
  if (!IsPattern(path)) return std::vector<std::string>{path};
  const std::string compressed = path + ".gz";
  HOTROW_ASSIGN_OR_RETURN(const bool plain, env.Exists(path));
  HOTROW_ASSIGN_OR_RETURN(const bool gzip, env.Exists(compressed));
  if (plain || gzip) return std::vector<std::string>{path};
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> found, Matches(env, path));
  if (found.empty()) {
    HOTROW_ASSIGN_OR_RETURN(found, Matches(env, compressed));
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(path, ": no file matches this pattern, nor ",
                                            compressed, "; give the names of the files"));
  }
  for (const std::string& name : found) {
    if (std::binary_search(found.begin(), found.end(), name + ".gz")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": both ", name, " and ", name,
                       ".gz match this pattern, which would count samples twice; give another "
                       "pattern, or remove one of the two"));
    }
  }
  return found;
}

absl::StatusOr<std::vector<std::string>> ExpandFilePatterns(Env& env,
                                                            const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  std::map<std::string, std::string> path_of;  // by FileOf
  for (const std::string& path : paths) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> found, ExpandFilePattern(env, path));
    for (const std::string& file : found) {
      const auto [other, first] = path_of.emplace(FileOf(file), path);
      if (!first) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ": ", QuoteForMessage(other->second), " and ", QuoteForMessage(path),
                         " both stand for this file, which would count its samples twice; name "
                         "each file once"));
      }
      files.push_back(file);
    }
  }
  return files;
}

}  // namespace hotrow
