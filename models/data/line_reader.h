#ifndef HOTROW_MODELS_DATA_LINE_READER_H_
#define HOTROW_MODELS_DATA_LINE_READER_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/data/byte_stream.h"

namespace hotrow {

// Cuts a stream into lines, through one buffer of kBlockBytes, more only where a line is longer.
// Lines end in LF or CRLF; the last one may lack its end. A byte order mark before the first one is
// left out.
class LineReader {
 public:
  static constexpr int64_t kBlockBytes = 64 << 10;
  static constexpr int64_t kMaxLineBytes = 16 << 20;

  explicit LineReader(std::unique_ptr<ByteStream> stream);

  // The next line without its end, valid until the next call. False at the end of the text and
  // after an error; status() tells which.
  bool Next(std::string_view* line) {
    const auto left = static_cast<size_t>(end_ - begin_);
    const char* newline = static_cast<const char*>(std::memchr(begin_, '\n', left));
    if (newline == nullptr && !Refill(&newline)) return false;
    const char* line_end = newline;
    if (line_end > begin_ && line_end[-1] == '\r') --line_end;
    *line = {begin_, static_cast<size_t>(line_end - begin_)};
    begin_ = newline < end_ ? newline + 1 : end_;
    ++line_number_;
    return true;
  }
  // The number of the line that Next gave last, counted from 1.
  int64_t line_number() const { return line_number_; }
  // InvalidArgument: a line longer than kMaxLineBytes; and what the stream says.
  const absl::Status& status() const { return status_; }

 private:
  // Reads on until there is a newline, at *newline, or the last line, which then ends at *newline.
  bool Refill(const char** newline);
  void SkipByteOrderMark();

  std::unique_ptr<ByteStream> stream_;
  std::vector<char> buffer_;
  const char* begin_;  // what is read but not handed out
  const char* end_;
  int64_t line_number_ = 0;
  bool ended_ = false;
  absl::Status status_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_LINE_READER_H_
