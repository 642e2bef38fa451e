#ifndef HOTROW_BASE_FLAG_TEXT_H_
#define HOTROW_BASE_FLAG_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flag_set.h"

namespace hotrow {

// "4096", "64MiB", "1.5G": plain bytes, KiB MiB GiB TiB PiB (powers of 1024), k M G T P or KB MB GB
// TB PB (powers of 1000); case does not matter. At most kFlagBytesMax.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Breaks text at spaces into lines of at most `width` characters. Keeps its line breaks.
std::vector<std::string> WrapText(std::string_view text, size_t width);

}  // namespace hotrow

#endif  // HOTROW_BASE_FLAG_TEXT_H_
