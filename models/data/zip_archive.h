#ifndef HOTROW_MODELS_DATA_ZIP_ARCHIVE_H_
#define HOTROW_MODELS_DATA_ZIP_ARCHIVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/byte_stream.h"

namespace hotrow {

struct ZipMember {
  std::string name;
  int64_t header_offset = 0;
  int64_t compressed_bytes = 0;
  int64_t bytes = 0;  // uncompressed
  uint32_t crc32 = 0;
  bool deflated = false;  // otherwise stored
};

// The members of a zip file, as numpy.savez (stored) and savez_compressed (deflated) write it, with
// zip64 for what is larger than 4 GiB.
//
// Threads: immutable; each stream is its reader's.
// Errors:  InvalidArgument (no zip file, or a kind of one we do not read), DataLoss (damaged),
//          naming the file.
class ZipArchive {
 public:
  static absl::StatusOr<ZipArchive> Open(std::shared_ptr<File> file);

  const std::vector<ZipMember>& members() const { return members_; }
  // Null where there is none of this name.
  const ZipMember* Find(std::string_view name) const;
  // The member's bytes. When the end is reached its checksum is checked, unless bytes of a stored
  // member were skipped: then nothing has read them.
  absl::StatusOr<std::unique_ptr<ByteStream>> OpenMember(const ZipMember& member) const;

 private:
  explicit ZipArchive(std::shared_ptr<File> file) : file_(std::move(file)) {}

  std::shared_ptr<File> file_;
  std::vector<ZipMember> members_;
  int64_t directory_offset_ = 0;  // members lie before it
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_ZIP_ARCHIVE_H_
