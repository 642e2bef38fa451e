#ifndef HOTROW_MODELS_DATA_BYTE_STREAM_H_
#define HOTROW_MODELS_DATA_BYTE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// Bytes that are read once, front to back: a file, a part of one, or what it decompresses to.
//
// Threads: one at a time.
// Errors:  DataLoss (the file ends early or its compressed data is damaged), naming file and
//          offset; what the Env says. After an error nothing more is read.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Reads up to bytes.size() bytes, bytes.size() > 0; returns how many, 0 only at the end.
  virtual absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) = 0;
  // Passes over n bytes; OutOfRange when fewer are left. Reads them unless it can do better.
  virtual absl::Status Skip(int64_t n);
};

// Reads until bytes is full; returns fewer only at the end of the stream.
absl::StatusOr<int64_t> ReadUpTo(ByteStream& stream, std::span<std::byte> bytes);

// A view of bytes that must outlive the stream.
std::unique_ptr<ByteStream> NewMemoryStream(std::string_view bytes);

// size bytes of the file from offset begin on. The file is shared: the members of an archive are
// streams over one file.
std::unique_ptr<ByteStream> NewFileSection(std::shared_ptr<File> file, int64_t begin, int64_t size);

enum class Compression {
  kGzip,  // one member or several, then zeros if any; checksums are checked
  kRaw,   // one deflate stream without header, as in a zip member
};

// What `compressed` decompresses to. In errors the place is `name` and begin + the position in
// `compressed`.
std::unique_ptr<ByteStream> NewInflateStream(std::unique_ptr<ByteStream> compressed,
                                             Compression kind, std::string name, int64_t begin = 0);

// The same bytes, read by its own thread up to 4 MiB ahead.
std::unique_ptr<ByteStream> NewReadAheadStream(std::unique_ptr<ByteStream> stream);

// The text of a file; one that starts with gzip's magic number is decompressed, on another
// thread. InvalidArgument: it is a file of another format (models/data/foreign_format.h), which is
// named.
absl::StatusOr<std::unique_ptr<ByteStream>> OpenTextFile(Env& env, const std::string& path);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_BYTE_STREAM_H_
