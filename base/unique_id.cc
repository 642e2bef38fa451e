#include "base/unique_id.h"

#include <charconv>

#include "absl/strings/str_format.h"
#include "base/entropy.h"

namespace hotrow {
UniqueId UniqueId::Random() {
  UniqueId id;
  while (!id.known()) id = {.high = EntropyBits(), .low = EntropyBits()};
  return id;
}

std::optional<UniqueId> UniqueId::FromHex(std::string_view text) {
  constexpr size_t kDigits = 16;
  if (text.size() != 2 * kDigits ||
      text.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  UniqueId id;
  std::from_chars(text.data(), text.data() + kDigits, id.high, 16);
  std::from_chars(text.data() + kDigits, text.data() + 2 * kDigits, id.low, 16);
  return id;
}

std::string UniqueId::ToHex() const { return absl::StrFormat("%016x%016x", high, low); }

}  // namespace hotrow
