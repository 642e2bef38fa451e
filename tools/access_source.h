#ifndef HOTROW_TOOLS_ACCESS_SOURCE_H_
#define HOTROW_TOOLS_ACCESS_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "cache/access_trace.h"

namespace hotrow {

enum class AccessFormat {
  kAuto,     // detected by the first bytes; kInt64Be if nothing else fits
  kText,     // an id a line, decimal or 0x...; blank lines and lines that begin with # are skipped
  kInt64Be,  // 8 bytes an id
  kInt64Le,
  kNpy,    // an array of <i8, <u8, <i4 or <u4 of any shape, in its order
  kTrace,  // docs/formats/trace.md
};

// "auto", "text", "int64be", "int64le", "npy", "trace".
absl::StatusOr<AccessFormat> ParseAccessFormat(std::string_view name);
std::string_view AccessFormatName(AccessFormat format);

// Some accesses of one table.
struct AccessBlock {
  uint32_t table = 0;
  std::vector<uint64_t> keys;  // in order; in a trace, the distinct sampled keys of a step
  int64_t unsampled = 0;       // accesses to keys outside the sample
  bool ends_step = false;      // of a trace
};

// The accesses of a file. All formats but kTrace may be compressed with gzip or xz.
//
// Threads: one at a time.
// Errors:  InvalidArgument and DataLoss, which name the file, the line or offset, and the remedy;
//          Unimplemented (.xz without liblzma); those of the file system.
class AccessSource {
 public:
  static absl::StatusOr<std::unique_ptr<AccessSource>> Open(Env& env, const std::string& path,
                                                            AccessFormat format);
  virtual ~AccessSource() = default;

  // Replaces *block; false at the end.
  virtual absl::StatusOr<bool> Next(AccessBlock* block) = 0;

  AccessFormat format() const { return format_; }
  // Tables and sampling of a trace; otherwise one table, 0, without a name, and no sampling.
  const std::vector<AccessTraceTable>& tables() const { return tables_; }
  double sample_rate() const { return sample_rate_; }
  uint64_t seed() const { return seed_; }
  // Whether it is whole, after the end: false for a trace whose writer was killed.
  virtual bool complete() const { return true; }

 protected:
  AccessFormat format_ = AccessFormat::kText;
  std::vector<AccessTraceTable> tables_ = {{0, ""}};
  double sample_rate_ = 1;
  uint64_t seed_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_ACCESS_SOURCE_H_
