#include "base/read_file.h"

#include <algorithm>
#include <memory>
#include <new>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// What is read at first of a file that says it is empty.
constexpr int64_t kFirstReadBytes = 4 << 10;

absl::Status TooLarge(const std::string& path, const std::string& size, int64_t bytes_max) {
  return absl::DataLossError(
      absl::StrCat("read ", path, ": it has ", size, " bytes, at most ", bytes_max,
                   " are expected; it is damaged or another kind of file: restore it from a copy, "
                   "or give the right one"));
}

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(Env& env, const std::string& path, int64_t bytes_max) {
  HOTROW_CHECK(bytes_max >= 0);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size > bytes_max) return TooLarge(path, absl::StrCat(size), bytes_max);
  std::string text;
  int64_t have = 0;
  // One byte more than the size finds the end in the same call; one more than the limit tells a
  // file that is longer.
  int64_t room = size > 0 ? size + 1 : std::min(kFirstReadBytes, bytes_max + 1);
  while (true) {
    try {
      text.resize(static_cast<size_t>(room));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("read ", path, ": there is no memory for its ", size, " bytes"));
    }
    while (have < room) {
      HOTROW_ASSIGN_OR_RETURN(
          const int64_t got,
          file->ReadAt(have,
                       std::as_writable_bytes(std::span(text)).subspan(static_cast<size_t>(have))));
      if (got == 0 && have < size) {
        return absl::DataLossError(
            absl::StrCat("read ", path, ": the file ends at byte ", have, ", its size was ", size));
      }
      if (got == 0) {
        text.resize(static_cast<size_t>(have));
        return text;
      }
      have += got;
    }
    if (have > bytes_max) return TooLarge(path, absl::StrCat("more than ", bytes_max), bytes_max);
    room = std::min(2 * have, bytes_max + 1);
  }
}

}  // namespace hotrow
