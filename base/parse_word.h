#ifndef HOTROW_BASE_PARSE_WORD_H_
#define HOTROW_BASE_PARSE_WORD_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/enum_words.h"

namespace hotrow {

// The value of a word. Errors: InvalidArgument: unknown WHAT "NAME"; expected one of A, B, C.
template <typename T, size_t N>
absl::StatusOr<T> ParseWord(const EnumWord<T> (&words)[N], std::string_view what,
                            std::string_view name) {
  std::string all;
  for (const EnumWord<T>& word : words) {
    if (word.name == name) return word.value;
    absl::StrAppend(&all, all.empty() ? "" : ", ", std::string(word.name));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown ", std::string(what), " \"",
                                                 std::string(name), "\"; expected one of ", all));
}

}  // namespace hotrow

#endif  // HOTROW_BASE_PARSE_WORD_H_
