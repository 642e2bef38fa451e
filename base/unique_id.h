#ifndef HOTROW_BASE_UNIQUE_ID_H_
#define HOTROW_BASE_UNIQUE_ID_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hotrow {

// 128 random bits that tell one thing from all others that were ever made, on any machine. Two that
// are equal name the same thing or a copy of it.
struct UniqueId {
  uint64_t high = 0;
  uint64_t low = 0;

  // Drawn from the operating system; never the unknown one. Not for secrets.
  static UniqueId Random();
  // Reads what ToHex writes, 32 hexadecimal digits; nothing when the text is anything else.
  static std::optional<UniqueId> FromHex(std::string_view text);

  // Whether there is an id; false: made by a version that drew none.
  bool known() const { return (high | low) != 0; }
  std::string ToHex() const;  // 32 lower-case digits, high first

  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_UNIQUE_ID_H_
