#ifndef HOTROW_BASE_WHOLE_NAME_H_
#define HOTROW_BASE_WHOLE_NAME_H_

#include <cstddef>
#include <string_view>

namespace hotrow {

// Whether a name of an option at text[begin, end) of a message stands for itself. As part of a
// path, of a longer name or of a quoted one it is somebody's own, and stays as it is where messages
// get the names that a caller knows.

inline bool ContinuesName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '/' || c == '"' || c == '\'';
}

inline bool NameBegins(std::string_view text, size_t begin) {
  return begin == 0 || !(ContinuesName(text[begin - 1]) || text[begin - 1] == '.');
}

inline bool NameEnds(std::string_view text, size_t end) {
  if (end == text.size()) return true;
  if (text[end] == '.') return end + 1 == text.size() || !ContinuesName(text[end + 1]);
  return !ContinuesName(text[end]);
}

}  // namespace hotrow

#endif  // HOTROW_BASE_WHOLE_NAME_H_
