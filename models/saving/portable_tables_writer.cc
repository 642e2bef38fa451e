#include "models/saving/portable_tables_writer.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/buffer.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "models/data/npy.h"
#include "models/saving/portable_tables_impl.h"

namespace hotrow {
namespace {

// Files open for writing. With more tables, files are synced, closed and opened again.
constexpr int64_t kOpenFilesMax = 256;
constexpr size_t kTableNameBytesMax = 64;

// The CRC of a text from those of its two pieces.
//
// Polynomials over GF(2) modulo Castagnoli's; bit 31 is x^0, bit 30 is x^1 ... A CRC is linear in
// its text, so crc(a then b) = crc(a) * x^(8 |b|) + crc(b). A header is known when its file is
// full.

uint32_t Times(uint32_t a, uint32_t b) {
  constexpr uint32_t kCastagnoli = 0x82f63b78;
  uint32_t product = 0;
  for (int power = 31; power >= 0; --power) {
    if ((a >> power & 1) != 0) product ^= b;
    b = b >> 1 ^ ((b & 1) != 0 ? kCastagnoli : 0);  // times x
  }
  return product;
}

uint32_t CrcOfBoth(uint32_t first, uint32_t second, int64_t second_bytes) {
  uint32_t power = 1u << (31 - 8);  // x^8, x^16, x^32 ...
  for (int64_t n = second_bytes; n > 0; n >>= 1) {
    if ((n & 1) != 0) first = Times(first, power);
    power = Times(power, power);
  }
  return first ^ second;
}

std::vector<int64_t> ShapeOf(const PortableArray& array, int64_t rows) {
  if (array.columns == 0) return {rows};
  return {rows, array.columns};
}

// A directory name that shows the table's name. The number keeps equal-looking names apart.
std::string TableDirName(size_t number, std::string_view table) {
  std::string name(table.substr(0, kTableNameBytesMax));
  for (char& c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (!absl::ascii_isalnum(u) && c != '_' && c != '-' && c != '.') c = '_';
  }
  return absl::StrFormat("%04d-%s", number, name);
}

}  // namespace

struct PortableTablesWriter::Impl {
  struct OpenColumn {
    PortableColumn column;
    std::byte* staging = nullptr;  // [capacity rows]
    std::unique_ptr<File> file;
    uint32_t crc = 0;  // of the array so far, in this file
  };
  struct Table {
    PortableTable out;
    int64_t row_bytes = 0;
    int64_t hashed_bytes = 0;
    std::string dir;  // relative
    std::vector<OpenColumn> columns;
    HostBuffer<std::byte> staging;
    int64_t capacity = 0;  // rows that wait until they are written
    int64_t waiting = 0;
    int64_t shard_rows = 0;     // of a full file
    int64_t rows_in_shard = 0;  // written
    int64_t shards = 0;         // finished
    uint64_t written_at = 0;    // Impl::clock
    bool is_open() const { return columns[0].file != nullptr; }
  };

  PortableTablesOptions options;
  std::vector<Table> tables;
  int64_t open_files = 0;
  uint64_t clock = 0;

  Env& env() const { return EnvOf(options); }
  std::string PathOf(const std::string& relative) const {
    return absl::StrCat(options.dir, "/", relative);
  }
  std::string PartName(const Table& table, const OpenColumn& column) const {
    return absl::StrFormat("%s/%s-%05d.part", table.dir, column.column.array.name, table.shards);
  }

  absl::Status OpenFiles(Table* table);
  absl::Status CloseFiles(Table* table);
  absl::Status WriteStaged(Table* table);
  absl::Status EndShard(Table* table);
};

// Makes room by closing the files of the table that was written least recently.
absl::Status PortableTablesWriter::Impl::OpenFiles(Table* table) {
  table->written_at = ++clock;
  if (table->is_open()) return absl::OkStatus();
  const auto wanted = static_cast<int64_t>(table->columns.size());
  while (open_files > 0 && open_files + wanted > kOpenFilesMax) {
    Table* oldest = nullptr;
    for (Table& other : tables) {
      if (other.is_open() && (oldest == nullptr || other.written_at < oldest->written_at)) {
        oldest = &other;
      }
    }
    HOTROW_RETURN_IF_ERROR(CloseFiles(oldest));
  }
  for (OpenColumn& column : table->columns) {
    const OpenMode mode = table->rows_in_shard == 0 ? OpenMode::kTruncate : OpenMode::kReadWrite;
    HOTROW_ASSIGN_OR_RETURN(column.file, env().Open(PathOf(PartName(*table, column)), mode));
    ++open_files;
  }
  return absl::OkStatus();
}

// Syncs before closing: only those who have the file open learn of write-back errors.
absl::Status PortableTablesWriter::Impl::CloseFiles(Table* table) {
  for (OpenColumn& column : table->columns) {
    HOTROW_RETURN_IF_ERROR(column.file->Sync());
    HOTROW_RETURN_IF_ERROR(column.file->Close());
    column.file = nullptr;
    --open_files;
  }
  return absl::OkStatus();
}

absl::Status PortableTablesWriter::Impl::WriteStaged(Table* table) {
  HOTROW_RETURN_IF_ERROR(OpenFiles(table));
  for (OpenColumn& column : table->columns) {
    const int64_t width = column.column.bytes;
    const std::span bytes(column.staging, static_cast<size_t>(table->waiting * width));
    HOTROW_RETURN_IF_ERROR(
        WriteFull(*column.file, kNpyHeaderBytes + table->rows_in_shard * width, bytes));
    column.crc = Crc32c(bytes, column.crc);
  }
  table->rows_in_shard += table->waiting;
  table->waiting = 0;
  return absl::OkStatus();
}

absl::Status PortableTablesWriter::Impl::EndShard(Table* table) {
  HOTROW_RETURN_IF_ERROR(WriteStaged(table));
  for (OpenColumn& column : table->columns) {
    PortableArray& array = column.column.array;
    const std::string header = NpyHeaderText(array.dtype, ShapeOf(array, table->rows_in_shard));
    const auto bytes = std::as_bytes(std::span(header));
    HOTROW_RETURN_IF_ERROR(WriteFull(*column.file, 0, bytes));
    const int64_t array_bytes = table->rows_in_shard * column.column.bytes;
    array.files.push_back(
        {PartName(*table, column), CrcOfBoth(Crc32c(bytes), column.crc, array_bytes)});
    column.crc = 0;
  }
  HOTROW_RETURN_IF_ERROR(CloseFiles(table));
  table->rows_in_shard = 0;
  ++table->shards;
  return absl::OkStatus();
}

PortableTablesWriter::PortableTablesWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PortableTablesWriter::~PortableTablesWriter() = default;

absl::StatusOr<std::unique_ptr<PortableTablesWriter>> PortableTablesWriter::Create(
    const PortableTablesOptions& options, int64_t shard_bytes,
    const std::vector<PortableTable>& tables) {
  if (tables.empty()) return absl::InvalidArgumentError("portable tables: there is no table");
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  for (size_t i = 0; i < tables.size(); ++i) {
    Impl::Table table;
    table.out = {.name = tables[i].name,
                 .dim = tables[i].dim,
                 .optimizer = tables[i].optimizer,
                 .weights_precision = tables[i].weights_precision,
                 .scored = tables[i].scored,
                 .rows = 0,
                 .hash = Hash128(),
                 .arrays = {},
                 .codes = tables[i].codes};
    table.row_bytes = tables[i].row_bytes();
    table.hashed_bytes = HashedBytesOf(tables[i]);
    table.dir = absl::StrCat("tables/", TableDirName(i, tables[i].name));
    const std::vector<PortableColumn> columns = PortableColumnsOf(tables[i]);
    int64_t widest = 1;
    for (const PortableColumn& column : columns) widest = std::max(widest, column.bytes);
    table.shard_rows = std::max<int64_t>(1, shard_bytes / widest);
    const int64_t share = options.memory_bytes / static_cast<int64_t>(tables.size());
    const int64_t row_bytes = PackedBytes(columns);
    table.capacity = std::min(share / row_bytes, table.shard_rows);
    if (table.capacity == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("portable tables: ", options.memory_bytes, " bytes of buffers for ",
                       tables.size(), " tables hold no row of table \"", tables[i].name,
                       "\", which has ", row_bytes, " bytes; raise memory_bytes"));
    }
    for (const PortableColumn& column : columns) table.columns.push_back({.column = column});
    HOTROW_RETURN_IF_ERROR(impl->env().CreateDirs(impl->PathOf(table.dir)));
    impl->tables.push_back(std::move(table));
  }
  return std::unique_ptr<PortableTablesWriter>(new PortableTablesWriter(std::move(impl)));
}

absl::Status PortableTablesWriter::Add(const RowKey& key, std::span<const std::byte> row) {
  if (key.table >= impl_->tables.size()) {
    return absl::InvalidArgumentError(absl::StrCat("portable tables: a row of table ", key.table,
                                                   ", there are ", impl_->tables.size()));
  }
  Impl::Table& table = impl_->tables[key.table];
  if (static_cast<int64_t>(row.size()) != table.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("portable tables: a row of ", row.size(),
                                                   " bytes in table \"", table.out.name,
                                                   "\", whose rows have ", table.row_bytes));
  }
  if (table.staging.size() == 0) {
    int64_t bytes = 0;
    for (const Impl::OpenColumn& column : table.columns) bytes += column.column.bytes;
    HOTROW_ASSIGN_OR_RETURN(
        table.staging, HostBuffer<std::byte>::Create(table.capacity * bytes, HugePages::kNever));
    std::byte* at = table.staging.data();
    for (Impl::OpenColumn& column : table.columns) {
      column.staging = at;
      at += table.capacity * column.column.bytes;
    }
  }
  for (const Impl::OpenColumn& column : table.columns) {
    const int64_t width = column.column.bytes;
    std::byte* const to = column.staging + table.waiting * width;
    const int64_t offset = column.column.row_offset;
    if (offset < 0) {
      std::memcpy(to, &key.key, sizeof(key.key));
    } else {
      HOTROW_RETURN_IF_ERROR(ToFile(column.column, row.data() + offset, to));
    }
  }
  const auto payload = row.first(static_cast<size_t>(table.hashed_bytes));
  *table.out.hash += HashBytes(key.key, key.table, payload);
  *table.out.rows += 1;
  ++table.waiting;
  if (table.rows_in_shard + table.waiting == table.shard_rows) return impl_->EndShard(&table);
  if (table.waiting == table.capacity) return impl_->WriteStaged(&table);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PortableTable>> PortableTablesWriter::Finish() {
  std::vector<PortableTable> out;
  for (Impl::Table& table : impl_->tables) {
    // An empty table has one file without rows for each array, which shows its shape.
    if (table.shards == 0 || table.rows_in_shard + table.waiting > 0) {
      HOTROW_RETURN_IF_ERROR(impl_->EndShard(&table));
    }
    for (Impl::OpenColumn& column : table.columns) {
      PortableArray& array = column.column.array;
      for (size_t i = 0; i < array.files.size(); ++i) {
        const std::string name =
            absl::StrFormat("%s/%s-%05d-of-%05d.npy", table.dir, array.name, i, table.shards);
        HOTROW_RETURN_IF_ERROR(
            impl_->env().Rename(impl_->PathOf(array.files[i].name), impl_->PathOf(name)));
        array.files[i].name = name;
      }
      table.out.arrays.push_back(std::move(array));
    }
    HOTROW_RETURN_IF_ERROR(impl_->env().SyncDir(impl_->PathOf(table.dir)));
    out.push_back(std::move(table.out));
  }
  HOTROW_RETURN_IF_ERROR(impl_->env().SyncDir(impl_->PathOf("tables")));
  return out;
}

}  // namespace hotrow
