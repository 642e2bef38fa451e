#ifndef HOTROW_BASE_UNIQUE_ID_H_
#define HOTROW_BASE_UNIQUE_ID_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hotrow {

// 128 random bits that identify one thing among all that were ever made, on any machine. Equal ids
// name the same thing or copies of it.
struct UniqueId {
  uint64_t high = 0;
  uint64_t low = 0;

  // A new id from the operating system's generator; never the unknown one. Not for secrets.
  static UniqueId Random();
  // Parses the 32 hexadecimal digits that ToHex writes; nullopt for any other text.
  static std::optional<UniqueId> FromHex(std::string_view text);

  // False: the thing was made by a version that drew no ids.
  bool known() const { return (high | low) != 0; }
  std::string ToHex() const;  // 32 lower-case digits, high first

  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_UNIQUE_ID_H_
