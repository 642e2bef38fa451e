#ifndef HOTROW_BASE_READ_FILE_H_
#define HOTROW_BASE_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// Limits of files that are read whole, by kind, in bytes.
inline constexpr int64_t kManifestBytesMax = int64_t{64} << 20;  // also specs, schemas, reports
inline constexpr int64_t kSmallFileBytesMax = int64_t{4} << 10;  // a line or two, such as a name

// Reads a whole file of at most bytes_max bytes. The size that the file reports is not trusted: it
// may grow meanwhile, and files in /proc report 0. Errors: DataLoss (too large; names path, size,
// limit and remedy), ResourceExhausted (no memory), and those of Env::Open and File::ReadAt.
absl::StatusOr<std::string> ReadWholeFile(Env& env, const std::string& path, int64_t bytes_max);

}  // namespace hotrow

#endif  // HOTROW_BASE_READ_FILE_H_
