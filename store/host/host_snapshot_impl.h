#ifndef HOTROW_STORE_HOST_HOST_SNAPSHOT_IMPL_H_
#define HOTROW_STORE_HOST_HOST_SNAPSHOT_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/format_version.h"
#include "store/host/host_chunk_impl.h"
#include "store/host/host_memory_impl.h"
#include "store/row_store.h"

// The snapshot file of a HostStore, docs/formats/host_snapshot.md. All numbers are little-endian;
// every byte of the file is covered by one CRC-32C.
namespace hotrow::internal {

inline constexpr char kSnapshotMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'H', 'S'};
// Version 1 has neither identity nor rows of each table.
inline constexpr FormatVersions kSnapshotVersions = {.first = 1, .last = 2};
inline constexpr uint32_t kSnapshotVersion = kSnapshotVersions.last;  // what is written
inline constexpr uint32_t kSnapshotBlockMagic = 0x4b4c4248;           // "HBLK"
inline constexpr uint32_t kSnapshotFooterMagic = 0x444e4548;          // "HEND"

// Offset 0. The same in all versions, so that a newer version is told from a damaged file.
struct SnapshotPrefix {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // of the 12 bytes before
};
static_assert(sizeof(SnapshotPrefix) == 16 && offsetof(SnapshotPrefix, crc) == 12);

// Offset 16.
struct SnapshotHeader {
  uint64_t snapshot;
  uint64_t num_rows;
  uint64_t identity_high;  // SnapshotInfo::identity
  uint64_t identity_low;
  uint32_t num_tables;
  uint32_t tables_crc;  // of the table list
  uint32_t reserved;    // 0
  uint32_t crc;         // of the 44 bytes before
};
static_assert(sizeof(SnapshotHeader) == 48 && offsetof(SnapshotHeader, num_tables) == 32 &&
              offsetof(SnapshotHeader, crc) == 44);

// Offset 64, num_tables of them.
struct SnapshotTable {
  uint32_t table;
  uint32_t reserved;  // 0
  uint64_t row_bytes;
  uint64_t num_rows;
};
static_assert(sizeof(SnapshotTable) == 24 && offsetof(SnapshotTable, num_rows) == 16);

// Their places are taken by these in version 1, at offsets 16 and 48.
struct SnapshotHeaderV1 {
  uint64_t snapshot;
  uint64_t num_rows;
  uint32_t num_tables;
  uint32_t tables_crc;
  uint32_t reserved;
  uint32_t crc;  // of the 28 bytes before
};
static_assert(sizeof(SnapshotHeaderV1) == 32 && offsetof(SnapshotHeaderV1, crc) == 28);
struct SnapshotTableV1 {
  uint32_t table;
  uint32_t reserved;
  uint64_t row_bytes;
};
static_assert(sizeof(SnapshotTableV1) == 16);

// What lies before the rows of each block, which are num_rows times {uint64 key, row_bytes bytes},
// unpadded.
struct SnapshotBlock {
  uint32_t magic;
  uint32_t table;
  uint64_t block_index;  // counts from 0
  uint32_t num_rows;     // at least 1
  uint32_t rows_crc;     // of the rows
  uint32_t reserved;     // 0
  uint32_t crc;          // of the 28 bytes before
};
static_assert(sizeof(SnapshotBlock) == 32 && offsetof(SnapshotBlock, block_index) == 8 &&
              offsetof(SnapshotBlock, rows_crc) == 20 && offsetof(SnapshotBlock, crc) == 28);

// What lies after the last block; the file ends here. It is as long as a block header, so that a
// reader can read either without knowing which comes.
struct SnapshotFooter {
  uint32_t magic;
  uint32_t blocks_crc;  // of all block headers, in order
  uint64_t num_rows;
  uint64_t num_blocks;
  uint32_t reserved;  // 0
  uint32_t crc;       // of the 28 bytes before
};
static_assert(sizeof(SnapshotFooter) == sizeof(SnapshotBlock) &&
              offsetof(SnapshotFooter, num_rows) == 8 && offsetof(SnapshotFooter, crc) == 28);

// What was read from or written to the device.
struct SnapshotIo {
  int64_t ios = 0;
  int64_t bytes = 0;
};

// Writes one snapshot file from its start to its end. The caller renames it when Finish was OK.
class SnapshotWriter {
 public:
  // staging holds bytes until it is full, then goes to the file in one write; not owned. row_bytes
  // of the tables must be what AddBlock is given, and info.table_rows what is added of each.
  static absl::StatusOr<SnapshotWriter> Create(Env& env, const std::string& path,
                                               const SnapshotInfo& info,
                                               std::span<const StoreTable> tables,
                                               std::span<std::byte> staging);

  absl::Status AddBlock(const StoreTable& table, std::span<const HostRow> rows);
  // Writes the footer, syncs and closes. The rows added must be num_rows.
  absl::Status Finish();

  const SnapshotIo& io() const { return io_; }

 private:
  SnapshotWriter(std::unique_ptr<File> file, int64_t num_rows, std::span<std::byte> staging)
      : file_(std::move(file)), staging_(staging), num_rows_(num_rows) {}
  absl::Status Append(std::span<const std::byte> bytes);
  template <typename Struct>
  absl::Status AppendStruct(const Struct& value) {
    static_assert(std::is_trivially_copyable_v<Struct>);
    return Append(std::as_bytes(std::span<const Struct>(&value, 1)));
  }
  absl::Status WriteStaged();

  std::unique_ptr<File> file_;
  std::span<std::byte> staging_;
  size_t pending_ = 0;
  int64_t num_rows_;
  uint64_t rows_added_ = 0;
  uint64_t num_blocks_ = 0;
  uint32_t blocks_crc_ = 0;
  SnapshotIo io_;
};

// Where a row that was read belongs; asked once for each row. Errors end the reading.
using PlaceRow = absl::FunctionRef<absl::StatusOr<std::byte*>(const RowKey& key)>;

// Reads and verifies a whole snapshot file. Rows are placed before the CRC of their block has been
// compared: on error the caller throws away what it got.
// Errors: DataLoss (naming file and offset), InvalidArgument (tables disagree, naming the table),
//         FailedPrecondition (a version that this build does not read; another identity than
//         `identity`, if that is known), what `place` returns.
absl::Status ReadSnapshot(Env& env, const std::string& path, SnapshotId snapshot,
                          const UniqueId& identity, std::span<const StoreTable> tables,
                          std::span<std::byte> staging, PlaceRow place, SnapshotIo& io);

// A whole snapshot file without a store. Each row is given out once the CRC of its block fits.
// Errors: as ReadSnapshot, ResourceExhausted (a block does not fit the budget), those of `visit`.
struct SnapshotContents {
  SnapshotInfo info;  // table_rows in the order of `tables`
  std::vector<StoreTable> tables;
  int64_t num_rows = 0;
};
absl::StatusOr<SnapshotContents> ReadSnapshotContents(Env& env, const std::string& path,
                                                      SnapshotId snapshot,
                                                      std::span<std::byte> staging);
using VisitRow = absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)>;
absl::Status VisitSnapshot(Env& env, const std::string& path, SnapshotId snapshot,
                           std::span<std::byte> staging, MemoryBudget& budget, VisitRow visit);

// "00000000000004d2.snapshot", and back; 0 when the name is not one.
std::string SnapshotFileName(SnapshotId snapshot);
SnapshotId ParseSnapshotFileName(std::string_view name);
inline constexpr std::string_view kSnapshotTmpSuffix = ".tmp";

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_SNAPSHOT_IMPL_H_
