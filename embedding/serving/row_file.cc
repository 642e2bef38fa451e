#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/serving/row_file_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kKeyBytes = sizeof(uint64_t);
constexpr int64_t kBlockHeaderBytes = sizeof(RowBlockHeader);
// What a header may say. One that passes it is damaged.
constexpr uint64_t kRowBytesMax = uint64_t{1} << 31;
constexpr uint64_t kRowsMax = uint64_t{1} << 48;

// The filter has blocks of eight words; a key sets a bit in each word of one block.
constexpr int64_t kFilterWords = 8;
constexpr int64_t kFilterBlockBytes = kFilterWords * 4;
constexpr int64_t kRowsPerFilterBlock = kFilterBlockBytes;  // a byte a row
// Odd numbers of Apache Parquet's specification (BloomFilter.md).
constexpr uint32_t kFilterSalts[kFilterWords] = {0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d,
                                                 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31};

int64_t FilterBlocks(int64_t rows) { return CeilDiv(rows, kRowsPerFilterBlock); }

// Which block of the filter: by the hash's upper half, so that bits are drawn from the other.
int64_t FilterBlockOf(uint64_t hash, int64_t blocks) {
  return static_cast<int64_t>(
      FastRange32(static_cast<uint32_t>(hash >> 32), static_cast<uint64_t>(blocks)));
}
uint32_t FilterBit(uint64_t hash, int64_t word) {
  return uint32_t{1} << (static_cast<uint32_t>(hash) * kFilterSalts[word] >> 27);
}

int64_t RowsPerBlock(int64_t row_bytes) {
  return (RowBlockBytes(row_bytes) - kBlockHeaderBytes) / (kKeyBytes + row_bytes);
}

template <typename T>
std::span<const std::byte> BytesOf(const HostBuffer<T>& buffer, int64_t size) {
  return std::as_bytes(buffer.span().first(static_cast<size_t>(size)));
}

uint32_t BlockCrc(const RowFileSpec& spec, int64_t block, std::span<const std::byte> bytes) {
  const uint64_t place[] = {spec.id.hi, spec.id.lo, spec.table, static_cast<uint64_t>(block)};
  return Crc32c(bytes.subspan(sizeof(uint32_t)), Crc32c(std::as_bytes(std::span(place))));
}

uint32_t HeaderCrc(const RowFileHeader& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).subspan(0, offsetof(RowFileHeader, crc)));
}

}  // namespace

int64_t RowBlockBytes(int64_t row_bytes) {
  return RoundUp(kBlockHeaderBytes + kKeyBytes + row_bytes, kRowFileSectorBytes);
}

// --- Writing

RowFileWriter::RowFileWriter(const RowFileSpec& spec, File* file, BudgetShare* share)
    : spec_(spec),
      file_(file),
      share_(share),
      block_bytes_(RowBlockBytes(spec.row_bytes)),
      rows_per_block_(RowsPerBlock(spec.row_bytes)) {}

RowFileWriter::~RowFileWriter() {
  if (!fences_.empty()) share_->Return(&fences_);
  if (!filter_.empty()) share_->Return(&filter_);
  if (!piece_.empty()) share_->Return(&piece_);
}

absl::StatusOr<std::unique_ptr<RowFileWriter>> RowFileWriter::Create(const RowFileSpec& spec,
                                                                     int64_t rows_max,
                                                                     int64_t piece_bytes,
                                                                     File* file, BudgetShare* share,
                                                                     int64_t filter_bytes) {
  std::unique_ptr<RowFileWriter> out(new RowFileWriter(spec, file, share));
  const std::string what =
      absl::StrCat("writing the ", rows_max, " rows of table \"", spec.table_name, "\" to a disk");
  if (rows_max > 0) {
    HOTROW_RETURN_IF_ERROR(
        share->Take(CeilDiv(rows_max, out->rows_per_block_), what, &out->fences_));
    HOTROW_RETURN_IF_ERROR(
        share->Take(FilterBlocks(rows_max * filter_bytes) * kFilterWords, what, &out->filter_));
  }
  const int64_t piece = std::max(piece_bytes / out->block_bytes_, int64_t{1}) * out->block_bytes_;
  HOTROW_RETURN_IF_ERROR(share->Take(piece, what, &out->piece_));
  return out;
}

absl::Status RowFileWriter::Add(uint64_t key, const std::byte* row) {
  const uint64_t hash = Mix64(key);
  HOTROW_CHECK(rows_ == 0 || hash > last_hash_);
  last_hash_ = hash;
  // Keys stand where they will be if the block gets full; EndBlock moves the rows of one that does
  // not.
  std::byte* const block = piece_.data() + in_piece_;
  if (in_block_ == 0) {
    HOTROW_CHECK(blocks_ < fences_.size());
    std::memset(block, 0, static_cast<size_t>(block_bytes_));
    fences_[blocks_] = hash;
  }
  std::memcpy(block + kBlockHeaderBytes + in_block_ * kKeyBytes, &key, sizeof(key));
  std::memcpy(block + kBlockHeaderBytes + rows_per_block_ * kKeyBytes + in_block_ * spec_.row_bytes,
              row, static_cast<size_t>(spec_.row_bytes));
  const int64_t filter = FilterBlockOf(hash, filter_.size() / kFilterWords) * kFilterWords;
  for (int64_t word = 0; word < kFilterWords; ++word) {
    filter_[filter + word] |= FilterBit(hash, word);
  }
  ++rows_;
  return ++in_block_ == rows_per_block_ ? EndBlock() : absl::OkStatus();
}

absl::Status RowFileWriter::EndBlock() {
  std::byte* const block = piece_.data() + in_piece_;
  if (in_block_ < rows_per_block_) {
    std::byte* const keys = block + kBlockHeaderBytes;
    const auto rows_bytes = static_cast<size_t>(in_block_ * spec_.row_bytes);
    std::memmove(keys + in_block_ * kKeyBytes, keys + rows_per_block_ * kKeyBytes, rows_bytes);
    std::byte* const end = keys + in_block_ * kKeyBytes + rows_bytes;
    std::memset(end, 0, static_cast<size_t>(block + block_bytes_ - end));
  }
  RowBlockHeader header = {.crc = 0, .rows = static_cast<uint32_t>(in_block_)};
  std::memcpy(block, &header, sizeof(header));
  header.crc = BlockCrc(spec_, blocks_, {block, static_cast<size_t>(block_bytes_)});
  std::memcpy(block, &header, sizeof(header));
  in_block_ = 0;
  ++blocks_;
  in_piece_ += block_bytes_;
  return in_piece_ == piece_.size() ? WritePiece() : absl::OkStatus();
}

absl::Status RowFileWriter::WritePiece() {
  HOTROW_RETURN_IF_ERROR(WriteFull(*file_, offset_, BytesOf(piece_, in_piece_)));
  offset_ += in_piece_;
  in_piece_ = 0;
  return absl::OkStatus();
}

absl::Status RowFileWriter::Finish() {
  if (in_block_ > 0) HOTROW_RETURN_IF_ERROR(EndBlock());
  HOTROW_RETURN_IF_ERROR(WritePiece());
  const std::span<const std::byte> fences = BytesOf(fences_, blocks_);
  const std::span<const std::byte> filter = BytesOf(filter_, filter_.size());
  HOTROW_RETURN_IF_ERROR(WriteFull(*file_, offset_, fences));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file_, offset_ + std::ssize(fences), filter));
  RowFileHeader header = {.version = kRowFileVersions.last,
                          .table = spec_.table,
                          .id = {spec_.id.hi, spec_.id.lo},
                          .row_bytes = static_cast<uint64_t>(spec_.row_bytes),
                          .rows = static_cast<uint64_t>(rows_),
                          .block_bytes = static_cast<uint64_t>(block_bytes_),
                          .blocks = static_cast<uint64_t>(blocks_),
                          .filter_bytes = filter.size(),
                          .fences_crc = Crc32c(fences),
                          .filter_crc = Crc32c(filter)};
  std::memcpy(header.magic, kRowFileMagic, sizeof(header.magic));
  header.crc = HeaderCrc(header);
  std::array<std::byte, kRowFileHeaderBytes> head = {};
  std::memcpy(head.data(), &header, sizeof(header));
  return WriteFull(*file_, 0, head);
}

// --- Reading

RowFile::~RowFile() {
  if (!fences_.empty()) share_->Return(&fences_);
  if (!filter_.empty()) share_->Return(&filter_);
}

absl::Status RowFile::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(spec_.path, ": ", what,
                                          "; remove the file, so that the "
                                          "next open writes the rows anew"));
}

absl::StatusOr<std::unique_ptr<RowFile>> RowFile::Open(Env& env, const RowFileSpec& spec,
                                                       BudgetShare* share) {
  std::unique_ptr<RowFile> out(new RowFile(spec, share));
  HOTROW_RETURN_IF_ERROR(out->ReadHead(env));
  // Not through the page cache, which no budget counts.
  HOTROW_ASSIGN_OR_RETURN(out->file_, env.OpenDirect(spec.path, OpenMode::kRead));
  if (out->file_->block_bytes() > kRowFileSectorBytes) {
    HOTROW_ASSIGN_OR_RETURN(out->file_, env.Open(spec.path, OpenMode::kRead));
  }
  return out;
}

absl::Status RowFile::ReadHead(Env& env) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(spec_.path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size < kRowFileHeaderBytes) {
    return Damaged(absl::StrCat("has ", size, " bytes, fewer than its header"));
  }
  RowFileHeader header;
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, 0, std::as_writable_bytes(std::span(&header, 1))));
  if (std::memcmp(header.magic, kRowFileMagic, sizeof(header.magic)) != 0 ||
      header.crc != HeaderCrc(header)) {
    return Damaged("its header is damaged");
  }
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion(spec_.path, "file of rows", header.version, kRowFileVersions));
  const Hash128 id = {header.id[0], header.id[1]};
  if (!(id == spec_.id) || header.table != spec_.table) {
    return Damaged(absl::StrCat("has table ", header.table, " of ", id.ToHex(), ", expected table ",
                                spec_.table, " of ", spec_.id.ToHex()));
  }
  if (header.row_bytes != static_cast<uint64_t>(spec_.row_bytes) ||
      header.row_bytes > kRowBytesMax || header.rows > kRowsMax ||
      header.block_bytes != static_cast<uint64_t>(RowBlockBytes(spec_.row_bytes)) ||
      header.blocks != static_cast<uint64_t>(CeilDiv(static_cast<int64_t>(header.rows),
                                                     RowsPerBlock(spec_.row_bytes))) ||
      header.filter_bytes % kFilterBlockBytes != 0 || header.filter_bytes > kRowsMax ||
      (header.filter_bytes == 0 && header.rows > 0)) {
    return Damaged(absl::StrCat("its header says ", header.rows, " rows of ", header.row_bytes,
                                " bytes in ", header.blocks, " blocks of ", header.block_bytes,
                                ", which does not agree; expected rows of ", spec_.row_bytes));
  }
  rows_ = static_cast<int64_t>(header.rows);
  block_bytes_ = static_cast<int64_t>(header.block_bytes);
  const auto blocks = static_cast<int64_t>(header.blocks);
  const auto filter_bytes = static_cast<int64_t>(header.filter_bytes);
  const int64_t fences_at = kRowFileHeaderBytes + blocks * block_bytes_;
  const int64_t expected = fences_at + blocks * kKeyBytes + filter_bytes;
  if (size != expected) {
    return Damaged(absl::StrCat("has ", size, " bytes, its header says ", expected));
  }
  if (rows_ == 0) return absl::OkStatus();
  const std::string what =
      absl::StrCat("the index of ", rows_, " rows of table \"", spec_.table_name, "\" on a disk");
  HOTROW_RETURN_IF_ERROR(share_->Take(blocks, what, &fences_));
  HOTROW_RETURN_IF_ERROR(
      share_->Take(filter_bytes / static_cast<int64_t>(sizeof(uint32_t)), what, &filter_));
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, fences_at, std::as_writable_bytes(fences_.span())));
  HOTROW_RETURN_IF_ERROR(
      ReadFull(*file, fences_at + fences_.bytes(), std::as_writable_bytes(filter_.span())));
  if (Crc32c(BytesOf(fences_, blocks)) != header.fences_crc) {
    return Damaged("the index of its blocks is damaged");
  }
  if (Crc32c(BytesOf(filter_, filter_.size())) != header.filter_crc) {
    return Damaged("its filter is damaged");
  }
  return absl::OkStatus();
}

int64_t RowFile::BlockOf(uint64_t key) const {
  if (rows_ == 0) return -1;
  const uint64_t hash = Mix64(key);
  const uint32_t* const filter =
      filter_.data() + FilterBlockOf(hash, filter_.size() / kFilterWords) * kFilterWords;
  for (int64_t word = 0; word < kFilterWords; ++word) {
    if ((filter[word] & FilterBit(hash, word)) == 0) return -1;
  }
  return std::upper_bound(fences_.begin(), fences_.end(), hash) - fences_.begin() - 1;
}

IoRequest RowFile::Request(int64_t block, std::byte* data) const {
  return {.file = file_.get(),
          .offset = kRowFileHeaderBytes + block * block_bytes_,
          .data = data,
          .bytes = block_bytes_};
}

absl::Status RowFile::Check(int64_t block, const IoRequest& request) const {
  if (absl::IsOutOfRange(request.status)) {
    return Damaged(
        absl::StrCat("ends in block ", block, ", at offset ", request.offset + request.done));
  }
  HOTROW_RETURN_IF_ERROR(request.status);
  RowBlockHeader header;
  std::memcpy(&header, request.data, sizeof(header));
  const uint32_t crc = BlockCrc(spec_, block, {request.data, static_cast<size_t>(request.bytes)});
  if (crc == header.crc && header.rows <= RowsPerBlock(spec_.row_bytes)) return absl::OkStatus();
  return Damaged(absl::StrCat("block ", block, ", at offset ", request.offset,
                              ": its checksum does not match"));
}

int64_t RowFile::RowsOf(const std::byte* block) {
  RowBlockHeader header;
  std::memcpy(&header, block, sizeof(header));
  return header.rows;
}

uint64_t RowFile::KeyAt(const std::byte* block, int64_t i) const {
  uint64_t key;
  std::memcpy(&key, block + kBlockHeaderBytes + i * kKeyBytes, sizeof(key));
  return key;
}

const std::byte* RowFile::RowAt(const std::byte* block, int64_t i) const {
  return block + kBlockHeaderBytes + RowsOf(block) * kKeyBytes + i * spec_.row_bytes;
}

const std::byte* RowFile::Find(const std::byte* block, uint64_t key) const {
  const int64_t rows = RowsOf(block);
  for (int64_t i = 0; i < rows; ++i) {
    if (KeyAt(block, i) == key) return RowAt(block, i);
  }
  return nullptr;
}

absl::StatusOr<int64_t> RowFile::ReadBlocks(int64_t first, std::span<std::byte> data) const {
  const int64_t count = std::min(std::ssize(data) / block_bytes_, blocks() - first);
  IoRequest request = Request(first, data.data());
  request.status =
      ReadFull(*file_, request.offset, data.first(static_cast<size_t>(count * block_bytes_)));
  for (int64_t i = 0; i < count; ++i) {
    HOTROW_RETURN_IF_ERROR(Check(first + i, request));
    request.data += block_bytes_;
    request.offset += block_bytes_;
  }
  return count;
}

}  // namespace hotrow::internal
