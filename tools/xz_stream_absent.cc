// In the place of xz_stream.cc where liblzma is not there.

#include "absl/strings/str_cat.h"
#include "tools/xz_stream.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<ByteStream>> NewXzStream(std::unique_ptr<ByteStream> compressed,
                                                        std::string name) {
  return absl::UnimplementedError(
      absl::StrCat(name,
                   ": is .xz, and this program was built without liblzma; decompress it "
                   "first (xz -d), or install liblzma-dev and build again"));
}

}  // namespace hotrow
