#ifndef HOTROW_TOOLS_XZ_STREAM_H_
#define HOTROW_TOOLS_XZ_STREAM_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/data/byte_stream.h"

namespace hotrow {

// What an .xz file decompresses to, one stream or several; checksums are checked. `name` is the
// place in errors. Errors: Unimplemented when this program was built without liblzma (says what to
// do); ResourceExhausted.
absl::StatusOr<std::unique_ptr<ByteStream>> NewXzStream(std::unique_ptr<ByteStream> compressed,
                                                        std::string name);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_XZ_STREAM_H_
