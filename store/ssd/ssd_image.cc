#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_image_impl.h"

namespace hotrow::internal {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr int64_t kBucketBytes = 128;  // of SsdIndex

template <typename Struct>
std::span<const std::byte> Bytes(const Struct& value) {
  return std::as_bytes(std::span<const Struct>(&value, 1));
}

uint32_t HeaderCrc(const SsdImageHeader& header) {
  return Crc32c(Bytes(header).first(offsetof(SsdImageHeader, crc)));
}

bool HasId(const SsdImageHeader& header, const UniqueId& id) {
  return header.id_high == id.high && header.id_low == id.low;
}

// Whether this is the header of an image of version 2, which was 32 bytes long.
bool IsVersion2(const SsdImageHeader& header) {
  constexpr size_t kCrcAt = 28;
  uint32_t crc = 0;
  std::memcpy(&crc, reinterpret_cast<const std::byte*>(&header) + kCrcAt, sizeof(crc));
  return header.version == 2 && crc == Crc32c(Bytes(header).first(kCrcAt));
}

// Collects what is written until it is worth a call.
class Writer {
 public:
  explicit Writer(File& file) : file_(file) { buffer_.reserve(kBufferBytes); }

  absl::Status Append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBufferBytes) HOTROW_RETURN_IF_ERROR(Empty());
    if (bytes.size() >= kBufferBytes) {
      HOTROW_RETURN_IF_ERROR(WriteFull(file_, offset_, bytes));
      offset_ += static_cast<int64_t>(bytes.size());
      return absl::OkStatus();
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }
  absl::Status Empty() {
    HOTROW_RETURN_IF_ERROR(WriteFull(file_, offset_, buffer_));
    offset_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
    return absl::OkStatus();
  }

 private:
  File& file_;
  int64_t offset_ = 0;
  std::vector<std::byte> buffer_;
};

// Reads ahead, never behind the end of the file.
class Reader {
 public:
  Reader(File& file, int64_t size) : file_(file), size_(size), buffer_(kBufferBytes) {}

  absl::Status Read(std::span<std::byte> out) {
    while (!out.empty()) {
      if (at_ == filled_) {
        const auto n =
            static_cast<size_t>(std::min(static_cast<int64_t>(kBufferBytes), size_ - offset_));
        if (n == 0) {
          return absl::DataLossError(absl::StrCat(file_.path(), ": ends at offset ", size_));
        }
        HOTROW_RETURN_IF_ERROR(ReadFull(file_, offset_, std::span(buffer_).first(n)));
        offset_ += static_cast<int64_t>(n);
        at_ = 0;
        filled_ = n;
      }
      const size_t n = std::min(out.size(), filled_ - at_);
      std::memcpy(out.data(), buffer_.data() + at_, n);
      at_ += n;
      out = out.subspan(n);
    }
    return absl::OkStatus();
  }
  int64_t position() const { return offset_ - static_cast<int64_t>(filled_ - at_); }

 private:
  File& file_;
  const int64_t size_;
  int64_t offset_ = 0;
  std::vector<std::byte> buffer_;
  size_t at_ = 0;
  size_t filled_ = 0;
};

}  // namespace

int64_t SsdIndexImageBytes(const SsdIndex& index) {
  return static_cast<int64_t>(sizeof(SsdImageHeader)) + index.bytes() +
         index.num_partitions() *
             static_cast<int64_t>(sizeof(SsdIndexImageHeader) + sizeof(SsdImageCrc));
}

absl::Status WriteSsdIndexImage(Env& env, const std::string& path, const UniqueId& id,
                                const SsdIndex& index) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kTruncate));
  Writer writer(*file);
  SsdImageHeader header = {};
  std::memcpy(header.magic, kSsdImageMagic, sizeof(header.magic));
  header.version = kSsdImageVersions.last;
  header.num_partitions = static_cast<uint32_t>(index.num_partitions());
  header.rows = static_cast<uint64_t>(index.rows());
  header.id_high = id.high;
  header.id_low = id.low;
  header.crc = HeaderCrc(header);
  HOTROW_RETURN_IF_ERROR(writer.Append(Bytes(header)));
  for (int64_t p = 0; p < index.num_partitions(); ++p) {
    SsdImageCrc crc = {.partition = static_cast<uint32_t>(p), .crc = 0};
    HOTROW_RETURN_IF_ERROR(index.Save(p, [&](std::span<const std::byte> bytes) {
      crc.crc = Crc32c(bytes, crc.crc);
      return writer.Append(bytes);
    }));
    HOTROW_RETURN_IF_ERROR(writer.Append(Bytes(crc)));
  }
  HOTROW_RETURN_IF_ERROR(writer.Empty());
  HOTROW_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status ReadSsdIndexImage(Env& env, const std::string& path, const UniqueId& id,
                               SsdIndex& index) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  Reader reader(*file, size);
  const auto damaged = [&](std::string_view what) {
    return absl::DataLossError(
        absl::StrCat(path, ": before offset ", reader.position(), ": ", std::string(what)));
  };
  SsdImageHeader header = {};
  HOTROW_RETURN_IF_ERROR(
      reader.Read(std::as_writable_bytes(std::span<SsdImageHeader>(&header, 1))));
  if (std::memcmp(header.magic, kSsdImageMagic, sizeof(header.magic)) != 0 ||
      header.crc != HeaderCrc(header)) {
    return damaged("not the header of an index image, or a damaged one");
  }
  HOTROW_RETURN_IF_ERROR(CheckFormatVersion(absl::StrCat(path, ": offset 8"),
                                            "index image of version", header.version,
                                            kSsdImageVersions));
  if (header.num_partitions != static_cast<uint32_t>(index.num_partitions())) {
    return damaged("the image is of another shape");
  }
  if (!HasId(header, id)) return damaged("the image is of another store or state");
  for (int64_t p = 0; p < index.num_partitions(); ++p) {
    uint32_t crc = 0;
    HOTROW_RETURN_IF_ERROR(index.Load(p, [&](std::span<std::byte> bytes) {
      HOTROW_RETURN_IF_ERROR(reader.Read(bytes));
      crc = Crc32c(bytes, crc);
      return absl::OkStatus();
    }));
    SsdImageCrc expected = {};
    HOTROW_RETURN_IF_ERROR(
        reader.Read(std::as_writable_bytes(std::span<SsdImageCrc>(&expected, 1))));
    if (expected.partition != static_cast<uint32_t>(p) || expected.crc != crc) {
      return damaged("the checksum of a partition does not match");
    }
  }
  if (reader.position() != size || static_cast<uint64_t>(index.rows()) != header.rows) {
    return damaged("the image contradicts its header");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckSsdIndexImage(Env& env, const std::string& path, const UniqueId& id) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  Reader reader(*file, size);
  const auto damaged = [](int64_t offset, const auto&... what) {
    return absl::DataLossError(absl::StrCat("offset ", offset, ": ", what...));
  };
  // Whether so much is left; what a cut file says is not an error of reading it.
  const auto has = [&](int64_t bytes) { return size - reader.position() >= bytes; };
  const auto ends_in = [&](std::string_view part) {
    return damaged(size, "the file ends in ", std::string(part));
  };

  SsdImageHeader header = {};
  if (!has(sizeof(header))) return ends_in("its header");
  HOTROW_RETURN_IF_ERROR(
      reader.Read(std::as_writable_bytes(std::span<SsdImageHeader>(&header, 1))));
  if (std::memcmp(header.magic, kSsdImageMagic, sizeof(header.magic)) != 0) {
    return damaged(0, "not the header of an index image");
  }
  if (IsVersion2(header)) return kSsdImageOld;
  if (header.crc != HeaderCrc(header)) return damaged(0, "the header's checksum does not match");
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion("offset 8", "index image of version", header.version, kSsdImageVersions));
  if (!HasId(header, id)) {
    return damaged(24, "the image is of another store or state: its id is ",
                   UniqueId{header.id_high, header.id_low}.ToHex(), ", the manifest's ",
                   id.ToHex());
  }
  uint64_t rows = 0;
  std::vector<std::byte> buffer(kBufferBytes);
  for (uint32_t p = 0; p < header.num_partitions; ++p) {
    const int64_t begin = reader.position();
    SsdIndexImageHeader partition;
    if (!has(sizeof(partition))) return ends_in(absl::StrCat("partition ", p));
    HOTROW_RETURN_IF_ERROR(
        reader.Read(std::as_writable_bytes(std::span<SsdIndexImageHeader>(&partition, 1))));
    uint32_t crc = Crc32c(Bytes(partition));
    if (partition.magic != SsdIndexImageHeader::kMagic || partition.partition != p) {
      return damaged(begin, "not the header of partition ", p);
    }
    const int64_t left = size - reader.position();
    if (partition.num_buckets > static_cast<uint64_t>(left / kBucketBytes)) {
      return damaged(begin, "partition ", p, " says it has ", partition.num_buckets,
                     " buckets, more than the file has room for");
    }
    auto bytes = static_cast<size_t>(partition.num_buckets) * kBucketBytes;
    while (bytes > 0) {
      const std::span<std::byte> piece = std::span(buffer).first(std::min(bytes, buffer.size()));
      HOTROW_RETURN_IF_ERROR(reader.Read(piece));
      crc = Crc32c(piece, crc);
      bytes -= piece.size();
    }
    SsdImageCrc expected = {};
    if (!has(sizeof(expected))) return ends_in(absl::StrCat("partition ", p));
    HOTROW_RETURN_IF_ERROR(
        reader.Read(std::as_writable_bytes(std::span<SsdImageCrc>(&expected, 1))));
    if (expected.partition != p || expected.crc != crc) {
      return damaged(begin, "the checksum of partition ", p, " does not match");
    }
    rows += partition.rows;
  }
  if (has(1)) return damaged(reader.position(), "bytes behind the last partition");
  if (rows != header.rows) {
    return damaged(0, "the header says ", header.rows, " rows, the partitions hold ", rows);
  }
  return static_cast<int64_t>(rows);
}

}  // namespace hotrow::internal
