#include "tools/access_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/byte_stream.h"
#include "models/data/line_reader.h"
#include "models/data/npy.h"
#include "tools/xz_stream.h"

namespace hotrow {
namespace {

constexpr size_t kBlockKeys = 8192;
// What the format is told by.
constexpr size_t kHeadBytes = 4096;
constexpr std::string_view kXzMagic(
    "\xfd"
    "7zXZ\0",
    6);
constexpr std::string_view kGzipMagic("\x1f\x8b", 2);
constexpr std::string_view kNpyMagic(
    "\x93"
    "NUMPY",
    6);
// So much is quoted of a line that is no id.
constexpr size_t kQuotedBytesMax = 40;

struct FormatName {
  AccessFormat format;
  std::string_view name;
};
constexpr std::array<FormatName, 6> kFormats = {{{AccessFormat::kAuto, "auto"},
                                                 {AccessFormat::kText, "text"},
                                                 {AccessFormat::kInt64Be, "int64be"},
                                                 {AccessFormat::kInt64Le, "int64le"},
                                                 {AccessFormat::kNpy, "npy"},
                                                 {AccessFormat::kTrace, "trace"}}};

// A stream whose first bytes have been read already.
class HeadedStream final : public ByteStream {
 public:
  HeadedStream(std::string head, std::unique_ptr<ByteStream> rest)
      : head_(std::move(head)), rest_(std::move(rest)) {}
  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    const size_t n = std::min(bytes.size(), head_.size() - at_);
    if (n == 0) return rest_->Read(bytes);
    std::memcpy(bytes.data(), head_.data() + at_, n);
    at_ += n;
    return static_cast<int64_t>(n);
  }

 private:
  const std::string head_;
  size_t at_ = 0;
  std::unique_ptr<ByteStream> rest_;
};

// Reads the head of a stream and puts it back.
absl::StatusOr<std::string> Peek(std::unique_ptr<ByteStream>* stream) {
  std::string head(kHeadBytes, '\0');
  HOTROW_ASSIGN_OR_RETURN(
      const int64_t got,
      ReadUpTo(**stream, {reinterpret_cast<std::byte*>(head.data()), head.size()}));
  head.resize(static_cast<size_t>(got));
  *stream = std::make_unique<HeadedStream>(head, std::move(*stream));
  return head;
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool LooksLikeText(std::string_view head) {
  return std::all_of(head.begin(), head.end(), [](char c) {
    return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~');
  });
}

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// -2^63 .. 2^64 - 1, decimal, or hex after 0x.
bool ParseId(std::string_view text, uint64_t* id) {
  const bool negative = StartsWith(text, "-");
  if (negative) text.remove_prefix(1);
  const bool hex = StartsWith(text, "0x") || StartsWith(text, "0X");
  if (hex) text.remove_prefix(2);
  if (negative && hex) return false;
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (negative && value > uint64_t{1} << 63) return false;
  *id = negative ? ~value + 1 : value;
  return true;
}

class TextSource final : public AccessSource {
 public:
  TextSource(std::unique_ptr<ByteStream> stream, std::string path)
      : lines_(std::move(stream)), path_(std::move(path)) {
    format_ = AccessFormat::kText;
  }
  absl::StatusOr<bool> Next(AccessBlock* block) override {
    *block = {};
    std::string_view line;
    while (block->keys.size() < kBlockKeys && lines_.Next(&line)) {
      const std::string_view text = Stripped(line);
      if (text.empty() || text.front() == '#') continue;
      uint64_t id = 0;
      if (!ParseId(text, &id)) {
        return absl::InvalidArgumentError(absl::StrCat(
            path_, ": line ", lines_.line_number(), ": \"",
            std::string(text.substr(0, kQuotedBytesMax)),
            text.size() > kQuotedBytesMax ? "..." : "",
            "\" is no id; a line holds one 64-bit integer (give --format for binary files)"));
      }
      block->keys.push_back(id);
    }
    HOTROW_RETURN_IF_ERROR(lines_.status());
    return !block->keys.empty();
  }

 private:
  LineReader lines_;
  const std::string path_;
};

class BinarySource final : public AccessSource {
 public:
  // Ids of `item_bytes` bytes; ids_max of them, or -1: up to the end.
  BinarySource(std::unique_ptr<ByteStream> stream, std::string path, AccessFormat format,
               int64_t item_bytes, bool is_signed, int64_t offset, int64_t ids_max)
      : stream_(std::move(stream)),
        path_(std::move(path)),
        item_bytes_(item_bytes),
        is_signed_(is_signed),
        offset_(offset),
        ids_left_(ids_max) {
    format_ = format;
  }

  absl::StatusOr<bool> Next(AccessBlock* block) override {
    *block = {};
    int64_t ids = kBlockKeys;
    if (ids_left_ >= 0) ids = std::min(ids, ids_left_);
    if (ids == 0) return false;
    bytes_.resize(static_cast<size_t>(ids * item_bytes_));
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, ReadUpTo(*stream_, bytes_));
    if (got % item_bytes_ != 0) {
      return absl::DataLossError(
          absl::StrCat(path_, ": offset ", offset_ + got / item_bytes_ * item_bytes_, ": the last ",
                       got % item_bytes_, " bytes are no whole id of ", item_bytes_,
                       " bytes; is it another format (--format), or cut off?"));
    }
    if (ids_left_ >= 0 && got < std::ssize(bytes_)) {
      return absl::DataLossError(absl::StrCat(path_, ": offset ", offset_ + got,
                                              ": the file ends, and its header promises ",
                                              ids_left_ - got / item_bytes_, " more ids"));
    }
    const int64_t n = got / item_bytes_;
    offset_ += got;
    if (ids_left_ >= 0) ids_left_ -= n;
    block->keys.resize(static_cast<size_t>(n));
    for (size_t i = 0; i < block->keys.size(); ++i) block->keys[i] = IdAt(i);
    return n > 0;
  }

 private:
  uint64_t IdAt(size_t i) const {
    if (item_bytes_ == 4) {
      int32_t value = 0;
      std::memcpy(&value, bytes_.data() + i * 4, 4);
      return is_signed_ ? static_cast<uint64_t>(int64_t{value}) : static_cast<uint32_t>(value);
    }
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + i * 8, 8);
    return format_ == AccessFormat::kInt64Be ? __builtin_bswap64(value) : value;
  }

  std::unique_ptr<ByteStream> stream_;
  const std::string path_;
  const int64_t item_bytes_;
  const bool is_signed_;
  int64_t offset_;
  int64_t ids_left_;
  std::vector<std::byte> bytes_;
};

class TraceSource final : public AccessSource {
 public:
  explicit TraceSource(std::unique_ptr<AccessTraceReader> reader) : reader_(std::move(reader)) {
    format_ = AccessFormat::kTrace;
    tables_ = reader_->tables();
    sample_rate_ = reader_->sample_rate();
    seed_ = reader_->seed();
  }
  absl::StatusOr<bool> Next(AccessBlock* block) override {
    *block = {};
    while (next_table_ == step_.tables.size()) {
      HOTROW_ASSIGN_OR_RETURN(const bool more, reader_->Next(&step_));
      if (!more) return false;
      next_table_ = 0;
    }
    AccessTraceStep::Table& table = step_.tables[next_table_++];
    block->table = table.table;
    block->keys = std::move(table.keys);
    block->unsampled = table.unique_keys - std::ssize(block->keys);
    block->ends_step = next_table_ == step_.tables.size();
    return true;
  }
  bool complete() const override { return reader_->complete(); }

 private:
  std::unique_ptr<AccessTraceReader> reader_;
  AccessTraceStep step_;
  size_t next_table_ = 0;
};

absl::StatusOr<std::unique_ptr<AccessSource>> OpenNpy(std::unique_ptr<ByteStream> stream,
                                                      const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(*stream, path));
  const std::string& dtype = header.dtype;
  if (dtype != "<i8" && dtype != "<u8" && dtype != "<i4" && dtype != "<u4") {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is an array of ", dtype,
                                                   ", ids are int64, uint64, int32 or uint32; ",
                                                   "save it with .astype('int64')"));
  }
  return std::unique_ptr<AccessSource>(std::make_unique<BinarySource>(
      std::move(stream), path, AccessFormat::kNpy, header.item_bytes, dtype[1] == 'i',
      header.header_bytes, header.data_bytes / header.item_bytes));
}

}  // namespace

absl::StatusOr<AccessFormat> ParseAccessFormat(std::string_view name) {
  std::string names;
  for (const FormatName& format : kFormats) {
    if (format.name == name) return format.format;
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(format.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--format: there is no \"", std::string(name), "\"; there are: ", names));
}

std::string_view AccessFormatName(AccessFormat format) {
  for (const FormatName& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "";
}

absl::StatusOr<std::unique_ptr<AccessSource>> AccessSource::Open(Env& env, const std::string& path,
                                                                 AccessFormat format) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  std::unique_ptr<ByteStream> stream = NewFileSection(std::move(file), 0, size);
  HOTROW_ASSIGN_OR_RETURN(std::string head, Peek(&stream));
  if (format == AccessFormat::kTrace ||
      (format == AccessFormat::kAuto && StartsWith(head, AccessTraceReader::kMagic))) {
    HOTROW_ASSIGN_OR_RETURN(auto reader, AccessTraceReader::Open(env, path));
    return std::unique_ptr<AccessSource>(std::make_unique<TraceSource>(std::move(reader)));
  }
  if (StartsWith(head, kXzMagic)) {
    HOTROW_ASSIGN_OR_RETURN(stream, NewXzStream(std::move(stream), path));
    HOTROW_ASSIGN_OR_RETURN(head, Peek(&stream));
  } else if (StartsWith(head, kGzipMagic)) {
    stream = NewInflateStream(std::move(stream), Compression::kGzip, path);
    HOTROW_ASSIGN_OR_RETURN(head, Peek(&stream));
  }
  if (head.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is empty: there are no accesses in it"));
  }
  if (format == AccessFormat::kAuto) {
    format = StartsWith(head, kNpyMagic) ? AccessFormat::kNpy
             : LooksLikeText(head)       ? AccessFormat::kText
                                         : AccessFormat::kInt64Be;
  }
  switch (format) {
    case AccessFormat::kNpy:
      return OpenNpy(std::move(stream), path);
    case AccessFormat::kText:
      return std::unique_ptr<AccessSource>(std::make_unique<TextSource>(std::move(stream), path));
    default:
      return std::unique_ptr<AccessSource>(
          std::make_unique<BinarySource>(std::move(stream), path, format, 8, true, 0, -1));
  }
}

}  // namespace hotrow
