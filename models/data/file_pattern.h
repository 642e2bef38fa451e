#ifndef HOTROW_MODELS_DATA_FILE_PATTERN_H_
#define HOTROW_MODELS_DATA_FILE_PATTERN_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// Ends the name of a directory that hotrow is still writing, or was when it was killed.
inline constexpr char kPartialSuffix[] = ".hotrow-partial";

// Whether a name matches a pattern as a shell has them: * (any characters), ? (one), [a-z] (one of
// these), [!a-z] (one other). A name that begins with a dot matches only where the pattern does.
bool MatchesPattern(std::string_view pattern, std::string_view name);

// The files that a path stands for, sorted by name. One without *, ? and [, and one that is there
// under this very name or with .gz after it, stands for itself. Any folder of the path may be a
// pattern. What ends in kPartialSuffix is passed over: day7 of `day*` may be under way. Where
// nothing matches, the pattern with .gz after it is tried. Errors: NotFound (nothing matches),
// InvalidArgument (a file matches with and without .gz), and those of a folder that is there and
// cannot be read, all naming the pattern.
absl::StatusOr<std::vector<std::string>> ExpandFilePattern(Env& env, const std::string& path);

// The files of all paths, in their order. InvalidArgument where two of them stand for one file,
// with or without .gz, whose samples would count twice.
absl::StatusOr<std::vector<std::string>> ExpandFilePatterns(Env& env,
                                                            const std::vector<std::string>& paths);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_FILE_PATTERN_H_
