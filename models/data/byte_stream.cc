#include "models/data/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "models/data/foreign_format.h"

namespace hotrow {
namespace {

constexpr int64_t kCompressedBlockBytes = 64 << 10;
constexpr int64_t kReadAheadBlockBytes = 1 << 20;
constexpr size_t kReadAheadBlocks = 4;
constexpr int64_t kSkipBlockBytes = 64 << 10;
constexpr int64_t kMagicBytes = 16;  // of a file's beginning, and of its end

class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(std::string_view bytes) : bytes_(bytes) {}
  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    const size_t n = std::min(bytes.size(), bytes_.size());
    if (n > 0) std::memcpy(bytes.data(), bytes_.data(), n);
    bytes_.remove_prefix(n);
    return static_cast<int64_t>(n);
  }

 private:
  std::string_view bytes_;
};

class FileSection : public ByteStream {
 public:
  FileSection(std::shared_ptr<File> file, int64_t begin, int64_t size)
      : file_(std::move(file)), position_(begin), end_(begin + size) {}

  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    const int64_t n = std::min(static_cast<int64_t>(bytes.size()), end_ - position_);
    if (n == 0) return 0;
    HOTROW_ASSIGN_OR_RETURN(const int64_t got,
                            file_->ReadAt(position_, bytes.first(static_cast<size_t>(n))));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(file_->path(), ": ends at byte ", position_,
                                              ", expected to go on to ", end_));
    }
    position_ += got;
    return got;
  }
  absl::Status Skip(int64_t n) override {
    if (n > end_ - position_) {
      return absl::OutOfRangeError(absl::StrCat(file_->path(), ": cannot skip ", n,
                                                " bytes from byte ", position_, ", the end is at ",
                                                end_));
    }
    position_ += n;
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<File> file_;
  int64_t position_;
  const int64_t end_;
};

class InflateStream : public ByteStream {
 public:
  InflateStream(std::unique_ptr<ByteStream> compressed, Compression kind, std::string name,
                int64_t begin)
      : compressed_(std::move(compressed)),
        kind_(kind),
        name_(std::move(name)),
        input_end_(begin),
        input_(kCompressedBlockBytes) {
    // 15 is zlib's largest window, 16 more asks for gzip's wrapper, a minus for none.
    HOTROW_CHECK(inflateInit2(&zlib_, kind == Compression::kGzip ? 15 + 16 : -15) == Z_OK);
  }
  ~InflateStream() override { inflateEnd(&zlib_); }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    zlib_.next_out = reinterpret_cast<Bytef*>(bytes.data());
    zlib_.avail_out = static_cast<uInt>(std::min<size_t>(bytes.size(), 1 << 30));
    const uInt wanted = zlib_.avail_out;
    while (zlib_.avail_out == wanted && !ended_) HOTROW_RETURN_IF_ERROR(Advance());
    return wanted - zlib_.avail_out;
  }

 private:
  // The place of the next byte that zlib would read.
  int64_t offset() const { return input_end_ - zlib_.avail_in; }

  absl::Status Damaged(std::string_view what) const {
    return absl::DataLossError(
        absl::StrCat(name_, ": compressed data ", std::string(what), " at byte ", offset()));
  }

  absl::Status Advance() {
    if (zlib_.avail_in == 0) HOTROW_RETURN_IF_ERROR(Refill());
    if (between_members_) {
      HOTROW_RETURN_IF_ERROR(StartMember());
      if (between_members_ || ended_) return absl::OkStatus();
    }
    // Even without input there may be output left from before, when there was no room for it.
    const int result = inflate(&zlib_, Z_NO_FLUSH);
    if (result == Z_BUF_ERROR && zlib_.avail_in == 0) {
      return Damaged("is truncated, it ends in the middle of a stream");
    }
    if (result == Z_STREAM_END) {
      between_members_ = kind_ == Compression::kGzip;
      ended_ = kind_ == Compression::kRaw;
      return absl::OkStatus();
    }
    if (result == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError(absl::StrCat(name_, ": no memory to decompress"));
    }
    if (result != Z_OK && result != Z_BUF_ERROR) {
      const std::string reason = zlib_.msg != nullptr ? zlib_.msg : "asks for a dictionary";
      return Damaged(absl::StrCat("is damaged (", reason, ")"));
    }
    return absl::OkStatus();
  }

  absl::Status Refill() {
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, compressed_->Read(input_));
    zlib_.next_in = reinterpret_cast<Bytef*>(input_.data());
    zlib_.avail_in = static_cast<uInt>(got);
    input_end_ += got;
    return absl::OkStatus();
  }

  // Between members come the end, the next member, or zeros up to the end (tapes pad with them).
  absl::Status StartMember() {
    if (zlib_.avail_in == 0) {
      ended_ = true;
      return absl::OkStatus();
    }
    for (; zlib_.avail_in > 0 && *zlib_.next_in == 0; --zlib_.avail_in) {
      ++zlib_.next_in;
      in_padding_ = true;
    }
    if (zlib_.avail_in == 0) return absl::OkStatus();
    if (in_padding_ || *zlib_.next_in != 0x1f) {
      return Damaged("is followed by what is neither gzip nor zeros");
    }
    between_members_ = false;
    HOTROW_CHECK(inflateReset(&zlib_) == Z_OK);
    return absl::OkStatus();
  }

  const std::unique_ptr<ByteStream> compressed_;
  const Compression kind_;
  const std::string name_;
  int64_t input_end_;  // place of the end of input_
  std::vector<std::byte> input_;
  z_stream zlib_ = {};
  bool between_members_ = false;
  bool in_padding_ = false;
  bool ended_ = false;
};

class ReadAheadStream : public ByteStream {
 public:
  explicit ReadAheadStream(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {
    absl::StatusOr<std::thread> thread = StartThread("reading a file ahead", [this] { Run(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
      return;
    }
    status_ = thread.status();
    ended_ = true;
  }
  ~ReadAheadStream() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  ReadAheadStream(const ReadAheadStream&) = delete;
  ReadAheadStream& operator=(const ReadAheadStream&) = delete;

  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    if (used_ == static_cast<int64_t>(block_.size())) HOTROW_RETURN_IF_ERROR(TakeBlock());
    const int64_t n =
        std::min(static_cast<int64_t>(block_.size()) - used_, static_cast<int64_t>(bytes.size()));
    if (n > 0) std::memcpy(bytes.data(), block_.data() + used_, static_cast<size_t>(n));
    used_ += n;
    return n;
  }

 private:
  using Block = std::vector<std::byte>;

  // block_ is empty afterwards only at the end.
  absl::Status TakeBlock() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (block_.capacity() > 0) free_.push_back(std::move(block_));
    block_ = Block();
    used_ = 0;
    changed_.wait(lock, [this] { return ended_ || !ready_.empty(); });
    if (ready_.empty()) return status_;
    block_ = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return absl::OkStatus();
  }

  void Run() {
    absl::Status status = Caught("reading a file ahead", [this] { return ReadBlocks(); });
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = std::move(status);
    ended_ = true;
    changed_.notify_all();
  }

  absl::Status ReadBlocks() {
    while (true) {
      Block block;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || ready_.size() < kReadAheadBlocks; });
        if (stop_) return absl::OkStatus();
        if (!free_.empty()) {
          block = std::move(free_.back());
          free_.pop_back();
        }
      }
      block.resize(kReadAheadBlockBytes);
      HOTROW_ASSIGN_OR_RETURN(const int64_t got, ReadUpTo(*stream_, block));
      if (got > 0) {
        block.resize(static_cast<size_t>(got));
        const std::lock_guard<std::mutex> lock(mutex_);
        ready_.push_back(std::move(block));
        changed_.notify_all();
      }
      if (got < kReadAheadBlockBytes) return absl::OkStatus();
    }
  }

  const std::unique_ptr<ByteStream> stream_;  // used by the thread alone
  Block block_;                               // these two by the reader alone
  int64_t used_ = 0;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Block> ready_;
  std::vector<Block> free_;
  bool ended_ = false;
  bool stop_ = false;
  absl::Status status_;  // told once ready_ is empty

  std::thread thread_;
};

}  // namespace

absl::Status ByteStream::Skip(int64_t n) {
  std::vector<std::byte> scratch(static_cast<size_t>(std::min(n, kSkipBlockBytes)));
  while (n > 0) {
    const int64_t part = std::min(n, kSkipBlockBytes);
    HOTROW_ASSIGN_OR_RETURN(const int64_t got,
                            Read(std::span(scratch).first(static_cast<size_t>(part))));
    if (got == 0) {
      return absl::OutOfRangeError(absl::StrCat("the data ends ", n, " bytes before the place"));
    }
    n -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReadUpTo(ByteStream& stream, std::span<std::byte> bytes) {
  int64_t total = 0;
  while (!bytes.empty()) {
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, stream.Read(bytes));
    if (got == 0) break;
    total += got;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return total;
}

std::unique_ptr<ByteStream> NewMemoryStream(std::string_view bytes) {
  return std::make_unique<MemoryStream>(bytes);
}

std::unique_ptr<ByteStream> NewFileSection(std::shared_ptr<File> file, int64_t begin,
                                           int64_t size) {
  return std::make_unique<FileSection>(std::move(file), begin, size);
}

std::unique_ptr<ByteStream> NewInflateStream(std::unique_ptr<ByteStream> compressed,
                                             Compression kind, std::string name, int64_t begin) {
  return std::make_unique<InflateStream>(std::move(compressed), kind, std::move(name), begin);
}

std::unique_ptr<ByteStream> NewReadAheadStream(std::unique_ptr<ByteStream> stream) {
  return std::make_unique<ReadAheadStream>(std::move(stream));
}

absl::StatusOr<std::unique_ptr<ByteStream>> OpenTextFile(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, env.Open(path, OpenMode::kRead));
  const std::shared_ptr<File> file = std::move(opened);
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  std::string head(static_cast<size_t>(std::min(size, kMagicBytes)), 0);
  std::string tail = head;
  const auto bytes = [](std::string& text) { return std::as_writable_bytes(std::span(text)); };
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, 0, bytes(head)));
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, size - std::ssize(tail), bytes(tail)));
  const ForeignFormat foreign = FindForeignFormat(head, tail);
  if (!foreign.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is ", std::string(foreign.name),
                                                   ", expected text, plain or gzip; ",
                                                   std::string(foreign.remedy)));
  }
  std::unique_ptr<ByteStream> stream = NewFileSection(file, 0, size);
  if (head.substr(0, 2) != "\x1f\x8b") return stream;
  return NewReadAheadStream(NewInflateStream(std::move(stream), Compression::kGzip, path));
}

}  // namespace hotrow
