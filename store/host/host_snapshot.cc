#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/host/host_snapshot_impl.h"

namespace hotrow::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

// The CRC of a struct whose last four bytes are that CRC.
template <typename Struct>
uint32_t CrcOf(const Struct& value) {
  static_assert(offsetof(Struct, crc) == sizeof(Struct) - 4);
  return Crc32c(std::as_bytes(std::span<const Struct>(&value, 1)).first(sizeof(Struct) - 4));
}

// Reads a file from start to end through the staging buffer.
class SequentialReader {
 public:
  SequentialReader(File& file, int64_t file_bytes, std::span<std::byte> staging, SnapshotIo& io)
      : file_(file), file_bytes_(file_bytes), staging_(staging), io_(io) {}

  absl::Status Read(std::span<std::byte> out) {
    while (!out.empty()) {
      if (taken_ == filled_) HOTROW_RETURN_IF_ERROR(Fill());
      const size_t count = std::min(out.size(), filled_ - taken_);
      std::memcpy(out.data(), staging_.data() + taken_, count);
      taken_ += count;
      offset_ += static_cast<int64_t>(count);
      out = out.subspan(count);
    }
    return absl::OkStatus();
  }

  template <typename Struct>
  absl::Status ReadStruct(Struct& value) {
    return Read(std::as_writable_bytes(std::span<Struct>(&value, 1)));
  }

  int64_t offset() const { return offset_; }
  int64_t bytes_left() const { return file_bytes_ - offset_; }

 private:
  absl::Status Fill() {
    const int64_t count = std::min<int64_t>(static_cast<int64_t>(staging_.size()), bytes_left());
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(file_.path(), ": the snapshot is cut off at offset ", offset_));
    }
    HOTROW_RETURN_IF_ERROR(ReadFull(file_, offset_, staging_.first(static_cast<size_t>(count))));
    taken_ = 0;
    filled_ = static_cast<size_t>(count);
    ++io_.ios;
    io_.bytes += count;
    return absl::OkStatus();
  }

  File& file_;
  const int64_t file_bytes_;
  std::span<std::byte> staging_;
  SnapshotIo& io_;
  size_t taken_ = 0;
  size_t filled_ = 0;
  int64_t offset_ = 0;  // of the next byte that Read gives
};

constexpr int64_t kSnapshotRowBytesMax = int64_t{1} << 30;  // as HostStore

class SnapshotReader {
 public:
  SnapshotReader(const std::string& path, SequentialReader reader)
      : path_(path), reader_(std::move(reader)) {}

  // What the file says of itself, tables included.
  absl::Status ReadHeader(SnapshotId snapshot) {
    SnapshotPrefix prefix;
    HOTROW_RETURN_IF_ERROR(reader_.ReadStruct(prefix));
    if (std::memcmp(prefix.magic, kSnapshotMagic, sizeof(kSnapshotMagic)) != 0) {
      return Damaged(0, "this is no snapshot of a host store");
    }
    if (prefix.crc != CrcOf(prefix)) return Damaged(0, "checksum mismatch in the file prefix");
    HOTROW_RETURN_IF_ERROR(CheckFormatVersion(path_, "host snapshot of format version",
                                              prefix.version, kSnapshotVersions));
    HOTROW_RETURN_IF_ERROR(prefix.version == 1 ? ReadHeaderV1() : ReadHeaderStruct(&header_));
    if (header_.snapshot != snapshot) {
      return Damaged(sizeof(prefix), absl::StrCat("the file holds snapshot ", header_.snapshot,
                                                  ", not snapshot ", snapshot));
    }
    return prefix.version == 1 ? ReadTables<SnapshotTableV1>() : ReadTables<SnapshotTable>();
  }

  SnapshotInfo info() const {
    return {.id = header_.snapshot,
            .committed = false,
            .identity = {.high = header_.identity_high, .low = header_.identity_low},
            .table_rows = table_rows_};
  }

  absl::Status CompareTables(std::span<const StoreTable> tables) const {
    std::map<uint32_t, int64_t> wanted;
    for (const StoreTable& table : tables) wanted[table.table] = table.row_bytes;
    for (const StoreTable& table : tables_) {
      const auto found = wanted.find(table.table);
      if (found == wanted.end()) {
        return Disagrees(table.table, "is in the snapshot, the store has no such table");
      }
      if (found->second != table.row_bytes) {
        return Disagrees(table.table,
                         absl::StrCat("row_bytes is ", table.row_bytes, " in the snapshot and ",
                                      found->second, " in the store's options"));
      }
      wanted.erase(found);
    }
    if (!wanted.empty()) {
      return Disagrees(wanted.begin()->first, "is not in the snapshot, the store has such a table");
    }
    return absl::OkStatus();
  }

  const std::vector<StoreTable>& tables() const { return tables_; }
  int64_t num_rows() const { return static_cast<int64_t>(header_.num_rows); }

  // read_block(offset, block, row_bytes) takes the rows of a block from reader().
  template <typename ReadRowsOfBlock>
  absl::Status ReadBlocks(const ReadRowsOfBlock& read_block) {
    uint32_t blocks_crc = 0;
    uint64_t num_rows = 0;
    uint64_t num_blocks = 0;
    std::map<uint32_t, int64_t> rows_of;
    for (;;) {
      const int64_t offset = reader_.offset();
      SnapshotBlock block;
      HOTROW_RETURN_IF_ERROR(reader_.ReadStruct(block));
      if (block.crc != CrcOf(block)) return Damaged(offset, "checksum mismatch in a block header");
      if (block.magic == kSnapshotFooterMagic) {
        const auto footer = std::bit_cast<SnapshotFooter>(block);
        if (footer.blocks_crc != blocks_crc || footer.num_blocks != num_blocks ||
            footer.num_rows != num_rows || header_.num_rows != num_rows || footer.reserved != 0) {
          return Damaged(offset, absl::StrCat("the footer counts ", footer.num_rows, " rows in ",
                                              footer.num_blocks, " blocks, the file has ", num_rows,
                                              " in ", num_blocks, " or other blocks"));
        }
        if (reader_.bytes_left() != 0) {
          return Damaged(reader_.offset(), "bytes after the footer");
        }
        for (size_t t = 0; t < table_rows_.size(); ++t) {
          const int64_t found = rows_of[tables_[t].table];
          if (found == table_rows_[t]) continue;
          return Damaged(offset, absl::StrCat("table ", tables_[t].table, " has ", found,
                                              " rows here, the table list says ", table_rows_[t]));
        }
        return absl::OkStatus();
      }
      if (block.magic != kSnapshotBlockMagic || block.block_index != num_blocks ||
          block.num_rows == 0 || block.reserved != 0) {
        return Damaged(offset, "no block or footer where one must begin");
      }
      const auto table = row_bytes_.find(block.table);
      if (table == row_bytes_.end()) {
        return Damaged(offset, "a block of a table that is not listed");
      }
      HOTROW_RETURN_IF_ERROR(read_block(offset, block, table->second));
      blocks_crc = Crc32c(std::as_bytes(std::span<const SnapshotBlock>(&block, 1)), blocks_crc);
      num_rows += block.num_rows;
      rows_of[block.table] += block.num_rows;
      ++num_blocks;
    }
  }

  // Rows go where `place` says, before the CRC of their block has been compared.
  absl::Status ReadRows(PlaceRow place) {
    return ReadBlocks([&](int64_t offset, const SnapshotBlock& block, int64_t row_bytes) {
      return PlaceBlock(offset, block, row_bytes, place);
    });
  }

  // Rows are visited once the CRC of their block fits.
  absl::Status VisitRows(MemoryBudget& budget, VisitRow visit) {
    BudgetedBuffer<std::byte> rows;
    return ReadBlocks(
        [&](int64_t offset, const SnapshotBlock& block, int64_t row_bytes) -> absl::Status {
          const int64_t entry_bytes = int64_t{sizeof(uint64_t)} + row_bytes;
          if (block.num_rows > reader_.bytes_left() / entry_bytes) {
            return Damaged(offset, absl::StrCat("the file ends before the ", block.num_rows,
                                                " rows of the block here"));
          }
          const int64_t bytes = block.num_rows * entry_bytes;
          if (rows.size() < bytes) {
            rows = {};
            HOTROW_ASSIGN_OR_RETURN(rows, BudgetedBuffer<std::byte>::Create(bytes, budget));
          }
          const std::span<std::byte> block_rows(rows.data(), static_cast<size_t>(bytes));
          HOTROW_RETURN_IF_ERROR(reader_.Read(block_rows));
          if (Crc32c(block_rows) != block.rows_crc) return BadRows(offset, block);
          for (int64_t at = 0; at < bytes; at += entry_bytes) {
            RowKey key{.key = 0, .table = block.table};
            std::memcpy(&key.key, rows.data() + at, sizeof(key.key));
            HOTROW_RETURN_IF_ERROR(
                visit(key, {rows.data() + at + sizeof(key.key), static_cast<size_t>(row_bytes)}));
          }
          return absl::OkStatus();
        });
  }

 private:
  absl::Status Damaged(int64_t offset, absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(path_, ": offset ", offset, ": ", what));
  }

  absl::Status BadRows(int64_t offset, const SnapshotBlock& block) const {
    return Damaged(offset, absl::StrCat("checksum mismatch in the ", block.num_rows,
                                        " rows of table ", block.table, " in the block here"));
  }

  absl::Status Disagrees(uint32_t table, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": table ", table, ": ", what));
  }

  template <typename Header>
  absl::Status ReadHeaderStruct(Header* header) {
    const int64_t offset = reader_.offset();
    HOTROW_RETURN_IF_ERROR(reader_.ReadStruct(*header));
    if (header->crc != CrcOf(*header) || header->reserved != 0) {
      return Damaged(offset, "checksum mismatch in the header");
    }
    return absl::OkStatus();
  }

  absl::Status ReadHeaderV1() {
    SnapshotHeaderV1 header;
    HOTROW_RETURN_IF_ERROR(ReadHeaderStruct(&header));
    header_.snapshot = header.snapshot;
    header_.num_rows = header.num_rows;
    header_.num_tables = header.num_tables;
    header_.tables_crc = header.tables_crc;
    return absl::OkStatus();
  }

  template <typename Entry>
  absl::Status ReadTables() {
    const int64_t offset = reader_.offset();
    // The count is covered by the header's CRC, yet memory is only spent on what the file can hold.
    if (reader_.bytes_left() / static_cast<int64_t>(sizeof(Entry)) < header_.num_tables) {
      return Damaged(offset, "the table list is cut off");
    }
    uint32_t crc = 0;
    for (uint32_t i = 0; i < header_.num_tables; ++i) {
      Entry entry;
      HOTROW_RETURN_IF_ERROR(reader_.ReadStruct(entry));
      crc = Crc32c(std::as_bytes(std::span<const Entry>(&entry, 1)), crc);
      tables_.push_back({entry.table, static_cast<int64_t>(entry.row_bytes)});
      if constexpr (requires { entry.num_rows; }) {
        table_rows_.push_back(static_cast<int64_t>(entry.num_rows));
      }
    }
    if (crc != header_.tables_crc) return Damaged(offset, "checksum mismatch in the table list");
    for (const StoreTable& table : tables_) {
      if (table.row_bytes < 1 || table.row_bytes > kSnapshotRowBytesMax) {
        return Damaged(offset, absl::StrCat("table ", table.table, " has rows of ",
                                            static_cast<uint64_t>(table.row_bytes), " bytes"));
      }
      if (!row_bytes_.emplace(table.table, table.row_bytes).second) {
        return Damaged(offset, absl::StrCat("table ", table.table, " is there twice"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status PlaceBlock(int64_t offset, const SnapshotBlock& block, int64_t row_bytes,
                          PlaceRow place) {
    const auto bytes = static_cast<size_t>(row_bytes);
    uint32_t crc = 0;
    for (uint32_t i = 0; i < block.num_rows; ++i) {
      RowKey key{.key = 0, .table = block.table};
      HOTROW_RETURN_IF_ERROR(reader_.ReadStruct(key.key));
      crc = Crc32c(std::as_bytes(std::span<const uint64_t>(&key.key, 1)), crc);
      auto row = place(key);
      if (!row.ok()) {
        // A key that was damaged may collide with another one.
        if (!absl::IsDataLoss(row.status())) return std::move(row).status();
        return Damaged(offset, absl::StrCat("in the block here: ", row.status().message()));
      }
      HOTROW_RETURN_IF_ERROR(reader_.Read({*row, bytes}));
      crc = Crc32c(std::span<const std::byte>(*row, bytes), crc);
    }
    return crc == block.rows_crc ? absl::OkStatus() : BadRows(offset, block);
  }

  const std::string& path_;
  SequentialReader reader_;
  SnapshotHeader header_{};
  std::vector<StoreTable> tables_;   // as the file lists them
  std::vector<int64_t> table_rows_;  // of each; empty in version 1
  std::map<uint32_t, int64_t> row_bytes_;
};

}  // namespace

absl::StatusOr<SnapshotWriter> SnapshotWriter::Create(Env& env, const std::string& path,
                                                      const SnapshotInfo& info,
                                                      std::span<const StoreTable> tables,
                                                      std::span<std::byte> staging) {
  HOTROW_CHECK(info.table_rows.size() == tables.size());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, env.Open(path, OpenMode::kTruncate));
  const int64_t num_rows =
      std::accumulate(info.table_rows.begin(), info.table_rows.end(), int64_t{0});
  SnapshotWriter writer(std::move(file), num_rows, staging);

  SnapshotPrefix prefix{.magic = {}, .version = kSnapshotVersion, .crc = 0};
  std::memcpy(prefix.magic, kSnapshotMagic, sizeof(prefix.magic));
  prefix.crc = CrcOf(prefix);
  SnapshotHeader header{.snapshot = info.id,
                        .num_rows = static_cast<uint64_t>(num_rows),
                        .identity_high = info.identity.high,
                        .identity_low = info.identity.low,
                        .num_tables = static_cast<uint32_t>(tables.size()),
                        .tables_crc = 0,
                        .reserved = 0,
                        .crc = 0};
  std::vector<SnapshotTable> entries;
  for (size_t t = 0; t < tables.size(); ++t) {
    const SnapshotTable entry{.table = tables[t].table,
                              .reserved = 0,
                              .row_bytes = static_cast<uint64_t>(tables[t].row_bytes),
                              .num_rows = static_cast<uint64_t>(info.table_rows[t])};
    entries.push_back(entry);
    header.tables_crc =
        Crc32c(std::as_bytes(std::span<const SnapshotTable>(&entry, 1)), header.tables_crc);
  }
  header.crc = CrcOf(header);
  HOTROW_RETURN_IF_ERROR(writer.AppendStruct(prefix));
  HOTROW_RETURN_IF_ERROR(writer.AppendStruct(header));
  for (const SnapshotTable& entry : entries) HOTROW_RETURN_IF_ERROR(writer.AppendStruct(entry));
  return writer;
}

absl::Status SnapshotWriter::AddBlock(const StoreTable& table, std::span<const HostRow> rows) {
  const auto row_bytes = static_cast<size_t>(table.row_bytes);
  SnapshotBlock block{.magic = kSnapshotBlockMagic,
                      .table = table.table,
                      .block_index = num_blocks_,
                      .num_rows = static_cast<uint32_t>(rows.size()),
                      .rows_crc = 0,
                      .reserved = 0,
                      .crc = 0};
  for (const HostRow& row : rows) {
    block.rows_crc = Crc32c(std::as_bytes(std::span<const uint64_t>(&row.key, 1)), block.rows_crc);
    block.rows_crc = Crc32c({row.row, row_bytes}, block.rows_crc);
  }
  block.crc = CrcOf(block);
  blocks_crc_ = Crc32c(std::as_bytes(std::span<const SnapshotBlock>(&block, 1)), blocks_crc_);
  ++num_blocks_;
  rows_added_ += rows.size();
  HOTROW_RETURN_IF_ERROR(AppendStruct(block));
  for (const HostRow& row : rows) {
    HOTROW_RETURN_IF_ERROR(AppendStruct(row.key));
    HOTROW_RETURN_IF_ERROR(Append({row.row, row_bytes}));
  }
  return absl::OkStatus();
}

absl::Status SnapshotWriter::Finish() {
  HOTROW_CHECK(rows_added_ == static_cast<uint64_t>(num_rows_));
  SnapshotFooter footer{.magic = kSnapshotFooterMagic,
                        .blocks_crc = blocks_crc_,
                        .num_rows = rows_added_,
                        .num_blocks = num_blocks_,
                        .reserved = 0,
                        .crc = 0};
  footer.crc = CrcOf(footer);
  HOTROW_RETURN_IF_ERROR(AppendStruct(footer));
  HOTROW_RETURN_IF_ERROR(WriteStaged());
  HOTROW_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

absl::Status SnapshotWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), staging_.size() - pending_);
    std::memcpy(staging_.data() + pending_, bytes.data(), count);
    pending_ += count;
    bytes = bytes.subspan(count);
    if (pending_ == staging_.size()) HOTROW_RETURN_IF_ERROR(WriteStaged());
  }
  return absl::OkStatus();
}

absl::Status SnapshotWriter::WriteStaged() {
  if (pending_ == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(WriteFull(*file_, io_.bytes, staging_.first(pending_)));
  ++io_.ios;
  io_.bytes += static_cast<int64_t>(pending_);
  pending_ = 0;
  return absl::OkStatus();
}

absl::Status ReadSnapshot(Env& env, const std::string& path, SnapshotId snapshot,
                          const UniqueId& identity, std::span<const StoreTable> tables,
                          std::span<std::byte> staging, PlaceRow place, SnapshotIo& io) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t file_bytes, file->Size());
  SnapshotReader reader(path, SequentialReader(*file, file_bytes, staging, io));
  HOTROW_RETURN_IF_ERROR(reader.ReadHeader(snapshot));
  HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(path, reader.info(), identity));
  HOTROW_RETURN_IF_ERROR(reader.CompareTables(tables));
  HOTROW_RETURN_IF_ERROR(reader.ReadRows(place));
  return file->Close();
}

absl::StatusOr<SnapshotContents> ReadSnapshotContents(Env& env, const std::string& path,
                                                      SnapshotId snapshot,
                                                      std::span<std::byte> staging) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t file_bytes, file->Size());
  SnapshotIo io;
  SnapshotReader reader(path, SequentialReader(*file, file_bytes, staging, io));
  HOTROW_RETURN_IF_ERROR(reader.ReadHeader(snapshot));
  return SnapshotContents{
      .info = reader.info(), .tables = reader.tables(), .num_rows = reader.num_rows()};
}

absl::Status VisitSnapshot(Env& env, const std::string& path, SnapshotId snapshot,
                           std::span<std::byte> staging, MemoryBudget& budget, VisitRow visit) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t file_bytes, file->Size());
  SnapshotIo io;
  SnapshotReader reader(path, SequentialReader(*file, file_bytes, staging, io));
  HOTROW_RETURN_IF_ERROR(reader.ReadHeader(snapshot));
  HOTROW_RETURN_IF_ERROR(reader.VisitRows(budget, visit));
  return file->Close();
}

namespace {
constexpr std::string_view kSnapshotSuffix = ".snapshot";
constexpr size_t kSnapshotDigits = 16;
}  // namespace

std::string SnapshotFileName(SnapshotId snapshot) {
  char digits[kSnapshotDigits + 1];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, snapshot);
  return std::string(digits) + std::string(kSnapshotSuffix);
}

SnapshotId ParseSnapshotFileName(std::string_view name) {
  if (name.size() != kSnapshotDigits + kSnapshotSuffix.size() ||
      name.substr(kSnapshotDigits) != kSnapshotSuffix) {
    return 0;
  }
  SnapshotId snapshot = 0;
  for (const char c : name.substr(0, kSnapshotDigits)) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && !(c >= 'a' && c <= 'f')) return 0;
    snapshot = snapshot * 16 + static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return snapshot;
}

}  // namespace hotrow::internal
