#ifndef HOTROW_BASE_ENUM_WORDS_H_
#define HOTROW_BASE_ENUM_WORDS_H_

#include <cstddef>
#include <string_view>
#include <vector>

namespace hotrow {

// What a value of an enum is called in flags, files and reports. The header of the enum has the
// table of its words, and everybody who reads or prints one asks that table.
template <typename T>
struct EnumWord {
  std::string_view name;
  T value;
};

template <typename T, size_t N>
constexpr std::string_view WordOf(const EnumWord<T> (&words)[N], T value) {
  for (const EnumWord<T>& word : words) {
    if (word.value == value) return word.name;
  }
  return "unknown";
}

template <typename T, size_t N>
std::vector<EnumWord<T>> AllWords(const EnumWord<T> (&words)[N]) {
  return {words, words + N};
}
// The same without one value.
template <typename T, size_t N>
std::vector<EnumWord<T>> WordsBut(const EnumWord<T> (&words)[N], T left_out) {
  std::vector<EnumWord<T>> out;
  for (const EnumWord<T>& word : words) {
    if (word.value != left_out) out.push_back(word);
  }
  return out;
}

}  // namespace hotrow

#endif  // HOTROW_BASE_ENUM_WORDS_H_
