#include "models/data/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

// Sizes and signatures of the records of APPNOTE.TXT (PKWARE), all little-endian.
constexpr int64_t kLocalHeaderBytes = 30;
constexpr size_t kEntryBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
constexpr uint64_t kLocalHeaderSignature = 0x04034b50;
constexpr uint64_t kEntrySignature = 0x02014b50;
constexpr uint64_t kEndSignature = 0x06054b50;
constexpr uint64_t kEnd64Signature = 0x06064b50;
constexpr uint64_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kSeeZip64 = 0xffffffff;
constexpr uint64_t kZip64ExtraId = 1;
constexpr int64_t kMaxCommentBytes = 65'535;
constexpr int64_t kMaxDirectoryBytes = 16 << 20;

// Little-endian number of n bytes at `offset`, which must lie in bytes.
uint64_t Number(std::string_view bytes, size_t offset, size_t n) {
  uint64_t value = 0;
  for (size_t i = n; i > 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[offset + i - 1]);
  }
  return value;
}

absl::StatusOr<std::string> ReadBytes(File& file, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  HOTROW_RETURN_IF_ERROR(ReadFull(file, offset, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

absl::Status Damaged(const File& file, std::string_view what) {
  return absl::DataLossError(
      absl::StrCat(file.path(), ": the zip file is damaged: ", std::string(what)));
}

struct Directory {
  int64_t offset = 0;
  int64_t size = 0;
};

// Finds the directory by the record at the end of the file, which a comment may follow.
absl::StatusOr<Directory> FindDirectory(File& file) {
  HOTROW_ASSIGN_OR_RETURN(const int64_t file_bytes, file.Size());
  const int64_t tail_bytes = std::min(file_bytes, kEndBytes + kMaxCommentBytes);
  const int64_t tail_offset = file_bytes - tail_bytes;
  HOTROW_ASSIGN_OR_RETURN(const std::string tail, ReadBytes(file, tail_offset, tail_bytes));
  int64_t at = tail_bytes - kEndBytes;
  for (; at >= 0; --at) {
    const auto place = static_cast<size_t>(at);
    if (Number(tail, place, 4) == kEndSignature &&
        at + kEndBytes + static_cast<int64_t>(Number(tail, place + 20, 2)) == tail_bytes) {
      break;
    }
  }
  if (at < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": no zip file, or a truncated one: its end is missing"));
  }
  const auto place = static_cast<size_t>(at);
  uint64_t size = Number(tail, place + 12, 4);
  uint64_t offset = Number(tail, place + 16, 4);
  int64_t directory_end = tail_offset + at;
  const bool see_zip64 =
      size == kSeeZip64 || offset == kSeeZip64 || Number(tail, place + 10, 2) == 0xffff;
  if (see_zip64 && directory_end >= kLocator64Bytes + kEnd64Bytes) {
    HOTROW_ASSIGN_OR_RETURN(const std::string locator,
                            ReadBytes(file, directory_end - kLocator64Bytes, kLocator64Bytes));
    const uint64_t end64 = Number(locator, 8, 8);
    if (Number(locator, 0, 4) != kLocator64Signature ||
        end64 > static_cast<uint64_t>(directory_end - kLocator64Bytes - kEnd64Bytes)) {
      return Damaged(file, "the zip64 locator is wrong");
    }
    HOTROW_ASSIGN_OR_RETURN(const std::string record,
                            ReadBytes(file, static_cast<int64_t>(end64), kEnd64Bytes));
    if (Number(record, 0, 4) != kEnd64Signature) {
      return Damaged(file, "the zip64 end record is wrong");
    }
    size = Number(record, 40, 8);
    offset = Number(record, 48, 8);
    directory_end = static_cast<int64_t>(end64);
  }
  if (offset > static_cast<uint64_t>(directory_end) ||
      size > static_cast<uint64_t>(directory_end) - offset) {
    return Damaged(file, "the directory lies outside of the file");
  }
  if (size > kMaxDirectoryBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": the zip directory has ", size,
                                                   " bytes, at most ", kMaxDirectoryBytes));
  }
  return Directory{static_cast<int64_t>(offset), static_cast<int64_t>(size)};
}

// Replaces the sizes that did not fit in 32 bits by those of the zip64 extra field, which holds
// just these, in the order of the arguments. False where it is missing or too short.
bool ReadZip64(std::string_view extra, uint64_t* bytes, uint64_t* compressed, uint64_t* offset) {
  uint64_t* const values[] = {bytes, compressed, offset};
  if (std::none_of(std::begin(values), std::end(values),
                   [](const uint64_t* value) { return *value == kSeeZip64; })) {
    return true;
  }
  while (extra.size() >= 4) {
    const uint64_t id = Number(extra, 0, 2);
    const size_t size = Number(extra, 2, 2);
    extra.remove_prefix(4);
    if (size > extra.size()) return false;
    std::string_view field = extra.substr(0, size);
    extra.remove_prefix(size);
    if (id != kZip64ExtraId) continue;
    for (uint64_t* value : values) {
      if (*value != kSeeZip64) continue;
      if (field.size() < 8) return false;
      *value = Number(field, 0, 8);
      field.remove_prefix(8);
    }
    return true;
  }
  return false;
}

// Passes bytes on and checks their number and checksum.
class CheckedStream : public ByteStream {
 public:
  CheckedStream(std::unique_ptr<ByteStream> stream, std::string name, const ZipMember& member)
      : stream_(std::move(stream)), name_(std::move(name)), member_(member) {}

  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    const int64_t left = member_.bytes - position_;
    if (left == 0) {
      HOTROW_RETURN_IF_ERROR(CheckEnd());
      return 0;
    }
    const auto wanted = static_cast<size_t>(std::min<int64_t>(left, 1 << 30));
    HOTROW_ASSIGN_OR_RETURN(const int64_t got,
                            stream_->Read(bytes.first(std::min(bytes.size(), wanted))));
    if (got == 0) return Wrong(absl::StrCat("ends after ", position_, " bytes of ", member_.bytes));
    crc32_ = static_cast<uint32_t>(
        ::crc32(crc32_, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(got)));
    position_ += got;
    return got;
  }
  absl::Status Skip(int64_t n) override {
    if (n == 0) return absl::OkStatus();
    if (n > member_.bytes - position_) {
      return absl::OutOfRangeError(absl::StrCat(name_, ": cannot skip ", n, " bytes from byte ",
                                                position_, " of ", member_.bytes));
    }
    if (member_.deflated) return ByteStream::Skip(n);  // reads all bytes anyway
    whole_ = false;
    position_ += n;
    return stream_->Skip(n);
  }

 private:
  absl::Status Wrong(std::string_view what) const {
    return absl::DataLossError(absl::StrCat(name_, ": the zip member ", std::string(what)));
  }
  absl::Status CheckEnd() {
    std::byte more[1];
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, stream_->Read(more));
    if (got > 0) return Wrong(absl::StrCat("has more than its ", member_.bytes, " bytes"));
    if (whole_ && crc32_ != member_.crc32) return Wrong("does not match its checksum");
    return absl::OkStatus();
  }

  const std::unique_ptr<ByteStream> stream_;
  const std::string name_;
  const ZipMember member_;
  int64_t position_ = 0;
  uint32_t crc32_ = 0;
  bool whole_ = true;  // nothing was skipped
};

}  // namespace

absl::StatusOr<ZipArchive> ZipArchive::Open(std::shared_ptr<File> file) {
  HOTROW_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(*file));
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadBytes(*file, directory.offset, directory.size));
  ZipArchive archive(file);
  archive.directory_offset_ = directory.offset;
  std::set<std::string> names;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    if (rest.size() < kEntryBytes || Number(rest, 0, 4) != kEntrySignature) {
      return Damaged(*file, "the directory is cut short or overwritten");
    }
    const uint64_t flags = Number(rest, 8, 2);
    const uint64_t method = Number(rest, 10, 2);
    const size_t name_bytes = Number(rest, 28, 2);
    const size_t extra_bytes = Number(rest, 30, 2);
    const size_t comment_bytes = Number(rest, 32, 2);
    uint64_t compressed = Number(rest, 20, 4);
    uint64_t size = Number(rest, 24, 4);
    uint64_t offset = Number(rest, 42, 4);
    ZipMember member;
    member.crc32 = static_cast<uint32_t>(Number(rest, 16, 4));
    rest.remove_prefix(kEntryBytes);
    if (rest.size() < name_bytes + extra_bytes + comment_bytes) {
      return Damaged(*file, "the directory is cut short");
    }
    member.name = std::string(rest.substr(0, name_bytes));
    const std::string quoted = QuoteForMessage(member.name);
    if (!ReadZip64(rest.substr(name_bytes, extra_bytes), &size, &compressed, &offset)) {
      return Damaged(*file, absl::StrCat("member ", quoted, " lacks its zip64 sizes"));
    }
    rest.remove_prefix(name_bytes + extra_bytes + comment_bytes);
    if ((flags & 1) != 0 || (method != 0 && method != 8)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file->path(), ": member ", quoted, " is ",
          (flags & 1) != 0 ? std::string("encrypted") : absl::StrCat("packed by method ", method),
          ", expected stored or deflated"));
    }
    const auto limit = static_cast<uint64_t>(directory.offset);
    if (offset > limit || compressed > limit - offset || size > INT64_MAX ||
        (method == 0 && compressed != size)) {
      return Damaged(*file, absl::StrCat("member ", quoted, " has impossible sizes"));
    }
    if (!names.insert(member.name).second) {
      return Damaged(*file, absl::StrCat("two members have the name ", quoted));
    }
    member.header_offset = static_cast<int64_t>(offset);
    member.compressed_bytes = static_cast<int64_t>(compressed);
    member.bytes = static_cast<int64_t>(size);
    member.deflated = method == 8;
    archive.members_.push_back(std::move(member));
  }
  return archive;
}

const ZipMember* ZipArchive::Find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const ZipMember& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &*found;
}

absl::StatusOr<std::unique_ptr<ByteStream>> ZipArchive::OpenMember(const ZipMember& member) const {
  const std::string name = absl::StrCat(file_->path(), "(", member.name, ")");
  if (directory_offset_ - member.header_offset < kLocalHeaderBytes) {
    return Damaged(*file_, absl::StrCat("member ", QuoteForMessage(member.name), " has no header"));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string header,
                          ReadBytes(*file_, member.header_offset, kLocalHeaderBytes));
  const int64_t begin = member.header_offset + kLocalHeaderBytes +
                        static_cast<int64_t>(Number(header, 26, 2) + Number(header, 28, 2));
  if (Number(header, 0, 4) != kLocalHeaderSignature ||
      begin > directory_offset_ - member.compressed_bytes) {
    return Damaged(
        *file_, absl::StrCat("the header of member ", QuoteForMessage(member.name), " is wrong"));
  }
  std::unique_ptr<ByteStream> stream = NewFileSection(file_, begin, member.compressed_bytes);
  if (member.deflated) {
    stream = NewInflateStream(std::move(stream), Compression::kRaw, name, begin);
  }
  return std::make_unique<CheckedStream>(std::move(stream), name, member);
}

}  // namespace hotrow
