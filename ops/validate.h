#ifndef HOTROW_OPS_VALIDATE_H_
#define HOTROW_OPS_VALIDATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/buffer.h"

namespace hotrow::internal {

// "Unique: num_values must lie in [0, 2^31 - 1], got -1": the wording of every Validate().
template <typename T>
absl::Status InvalidField(std::string_view op, std::string_view field, std::string_view limit,
                          const T& got) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": ", std::string(field), " ",
                                                 std::string(limit), ", got ", got));
}

inline absl::Status NullField(std::string_view op, std::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(op), ": ", std::string(field), " must not be null"));
}

inline absl::Status CheckWorkspace(std::string_view op, const std::byte* workspace, int64_t bytes,
                                   int64_t bytes_needed) {
  if (bytes < bytes_needed) {
    return InvalidField(op, "workspace_bytes", absl::StrCat("must be at least ", bytes_needed),
                        bytes);
  }
  if (bytes_needed == 0) return absl::OkStatus();
  if (workspace == nullptr) return NullField(op, "workspace");
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(workspace) %
                                               static_cast<uintptr_t>(kBufferAlignment));
  if (misaligned != 0) {
    return InvalidField(op, "workspace",
                        absl::StrCat("must be aligned to ", kBufferAlignment, " bytes"),
                        absl::StrCat("an address that is off by ", misaligned));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_VALIDATE_H_
