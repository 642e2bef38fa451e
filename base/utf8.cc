#include "base/utf8.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace hotrow {

bool IsUtf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i++]);
    const int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (more < 0 || lead > 0xf4) return false;
    // What follows is 10xxxxxx; the first is bounded where the code would be one that is written
    // shorter, a surrogate, or above U+10FFFF (table 3-7 of the Unicode standard).
    unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (int k = 0; k < more; ++k, ++i) {
      if (i == bytes.size()) return false;
      const auto next = static_cast<unsigned char>(bytes[i]);
      if (next < least || next > most) return false;
      least = 0x80;
      most = 0xbf;
    }
  }
  return true;
}

absl::Status CheckUtf8Path(std::string_view what, std::string_view path) {
  if (IsUtf8(path)) return absl::OkStatus();
  // With its end: that is where names differ.
  std::string quoted;
  for (const char c : path) {
    if (c >= ' ' && c <= '~') {
      quoted += c;
    } else {
      absl::StrAppend(&quoted, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(what), "=", quoted,
                   ": is not UTF-8, and manifests and reports are; give a path that is"));
}

}  // namespace hotrow
