#include "models/json/quote.h"

#include "absl/strings/str_cat.h"

namespace hotrow {

std::string QuoteForMessage(std::string_view text) {
  constexpr size_t kMaxBytes = 40;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    if (c == '\t') {
      out += "\\t";
    } else if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return absl::StrCat(out, "\"", text.size() > kMaxBytes ? "..." : "");
}

}  // namespace hotrow
