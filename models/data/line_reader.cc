#include "models/data/line_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {

LineReader::LineReader(std::unique_ptr<ByteStream> stream)
    : stream_(std::move(stream)),
      buffer_(kBlockBytes),
      begin_(buffer_.data()),
      end_(buffer_.data()) {}

bool LineReader::Refill(const char** newline) {
  while (status_.ok() && !ended_) {
    const int64_t kept = end_ - begin_;
    if (kept > kMaxLineBytes) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("the line is longer than ", kMaxLineBytes, " bytes; is this a text file?"));
      return false;
    }
    if (kept > 0) std::memmove(buffer_.data(), begin_, static_cast<size_t>(kept));
    if (kept == static_cast<int64_t>(buffer_.size())) buffer_.resize(2 * buffer_.size());
    begin_ = buffer_.data();
    end_ = begin_ + kept;
    char* const room = buffer_.data() + kept;
    const absl::StatusOr<int64_t> got = stream_->Read(
        std::as_writable_bytes(std::span(room, buffer_.size() - static_cast<size_t>(kept))));
    if (!got.ok()) {
      status_ = got.status();
      return false;
    }
    ended_ = *got == 0;
    end_ += *got;
    *newline = static_cast<const char*>(std::memchr(room, '\n', static_cast<size_t>(*got)));
    if (*newline == nullptr) continue;
    SkipByteOrderMark();
    return true;
  }
  *newline = end_;
  SkipByteOrderMark();
  return status_.ok() && begin_ < end_;
}

void LineReader::SkipByteOrderMark() {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  const std::string_view text(begin_, static_cast<size_t>(end_ - begin_));
  if (line_number_ == 0 && text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    begin_ += kByteOrderMark.size();
  }
}

}  // namespace hotrow
