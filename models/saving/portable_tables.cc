#include "models/saving/portable_tables.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/buffer.h"
#include "base/crc32c.h"
#include "base/exec_context.h"
#include "base/status_macros.h"
#include "models/data/byte_stream.h"
#include "models/data/npy.h"
#include "ops/row_codec.h"
#include "ops/row_layout.h"

namespace hotrow {
namespace {

constexpr char kKeys[] = "keys";
constexpr char kLastStep[] = "last_step";
constexpr int64_t kFloatBytes = sizeof(float);
// Of files that are being written; those of more tables are synced, closed and opened again.
constexpr int64_t kOpenFilesMax = 256;
// Rows that go to the store at once: enough for it to work with, few enough for any budget.
constexpr int64_t kBatchRowsMax = 8192;
// What a row of a batch takes beside its bytes: key, two pointers, a flag, the key once more.
constexpr int64_t kBatchRowOverhead = 64;
constexpr size_t kTableNameBytesMax = 64;

Env& EnvOf(const PortableTablesOptions& options) {
  return options.env != nullptr ? *options.env : PosixEnv();
}

// --- CRC of two pieces ---
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

// --- What a table looks like ---

// A column and its place in a row.
struct Column {
  PortableArray array;
  int64_t row_offset = -1;  // -1: the key, which is no part of a row
  int64_t bytes = 0;        // of one row, in a file
  // As what a row has it; a file always has floats.
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

std::vector<Column> ColumnsOf(const RowLayout& layout, SparseOptimizerKind optimizer) {
  const int64_t dim = layout.dim;
  std::vector<Column> out;
  out.push_back({{kKeys, "<u8", 0, {}}, -1, sizeof(uint64_t)});
  out.push_back({{"weights", "<f4", dim, {}}, 0, dim * kFloatBytes, layout.precision});
  const auto add_floats = [&](const char* name, int64_t columns, int64_t float_offset) {
    out.push_back({{name, "<f4", columns, {}},
                   layout.state_offset + float_offset * kFloatBytes,
                   std::max<int64_t>(columns, 1) * kFloatBytes});
  };
  // The state lies behind the weights in the order of SparseOptimizerKind.
  switch (optimizer) {
    case SparseOptimizerKind::kSgd:
      break;
    case SparseOptimizerKind::kMomentum:
    case SparseOptimizerKind::kAdagrad:
      add_floats("momentum1", dim, 0);
      break;
    case SparseOptimizerKind::kRowWiseAdagrad:
      add_floats("momentum1", 0, 0);
      break;
    case SparseOptimizerKind::kAdam:
    case SparseOptimizerKind::kFtrl:
      add_floats("momentum1", dim, 0);
      add_floats("momentum2", dim, dim);
      break;
    case SparseOptimizerKind::kPartialRowWiseAdam:
      add_floats("momentum1", dim, 0);
      add_floats("momentum2", 0, dim);
      break;
  }
  out.push_back({{kLastStep, "<u4", 0, {}}, layout.step_offset, sizeof(uint32_t)});
  return out;
}

// How weights of 16 bits are converted is what the wire between ranks says of them.
ExchangeType WireTypeOf(WeightsPrecision precision) {
  return precision == WeightsPrecision::kFp16 ? ExchangeType::kFp16 : ExchangeType::kBf16;
}

// One row's part of a column, from the row to the file ...
absl::Status ToFile(const Column& column, const std::byte* in_row, std::byte* in_file) {
  if (column.precision == WeightsPrecision::kFp32) {
    std::memcpy(in_file, in_row, static_cast<size_t>(column.bytes));
    return absl::OkStatus();
  }
  const RowRun run = {.end = 1, .dim = static_cast<int32_t>(column.array.columns)};
  float* const to = reinterpret_cast<float*>(in_file);
  return DecodeRows(
      ExecContext(),
      {.type = WireTypeOf(column.precision), .runs = {&run, 1}, .in = in_row, .rows = &to});
}

// ... and back, to the nearest.
absl::Status ToRow(const Column& column, const std::byte* in_file, std::byte* in_row) {
  if (column.precision == WeightsPrecision::kFp32) {
    std::memcpy(in_row, in_file, static_cast<size_t>(column.bytes));
    return absl::OkStatus();
  }
  const RowRun run = {.end = 1, .dim = static_cast<int32_t>(column.array.columns)};
  const float* const from = reinterpret_cast<const float*>(in_file);
  return EncodeRows(
      ExecContext(),
      {.type = WireTypeOf(column.precision), .runs = {&run, 1}, .rows = &from, .out = in_row});
}

int64_t PackedBytes(const std::vector<Column>& columns) {
  int64_t bytes = 0;
  for (const Column& column : columns) bytes += column.bytes;
  return bytes;
}

std::vector<int64_t> ShapeOf(const PortableArray& array, int64_t rows) {
  if (array.columns == 0) return {rows};
  return {rows, array.columns};
}

std::string ShapeText(const PortableArray& array) {
  return array.columns == 0 ? "(rows,)" : absl::StrCat("(rows, ", array.columns, ")");
}

// A directory name that says which table it is; the number keeps names apart that look the same.
std::string TableDirName(size_t number, std::string_view table) {
  std::string name(table.substr(0, kTableNameBytesMax));
  for (char& c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (!absl::ascii_isalnum(u) && c != '_' && c != '-' && c != '.') c = '_';
  }
  return absl::StrFormat("%04d-%s", number, name);
}

// A path that stays below the directory.
bool IsInside(std::string_view name) {
  if (name.empty() || name[0] == '/') return false;
  while (!name.empty()) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
  return false;  // ends in a slash
}

}  // namespace

std::vector<PortableArray> PortableArraysOf(int32_t dim, SparseOptimizerKind optimizer) {
  std::vector<PortableArray> out;
  for (Column& column : ColumnsOf(RowLayout::For(dim, optimizer), optimizer)) {
    out.push_back(std::move(column.array));
  }
  return out;
}

// --- Writing ---

struct PortableTablesWriter::Impl {
  struct OpenColumn {
    Column column;
    std::byte* staging = nullptr;  // [capacity rows]
    std::unique_ptr<File> file;
    uint32_t crc = 0;  // of the array so far, in this file
  };
  struct Table {
    PortableTable out;
    RowLayout layout;
    std::string dir;  // relative
    std::vector<OpenColumn> columns;
    HostBuffer<std::byte> staging;
    int64_t capacity = 0;  // rows that are staged until they are written
    int64_t staged = 0;
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

// With room made by closing those of the table that has not been written for longest.
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

// A file is synced before it is closed: an error of writing back is told to those who have it open.
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
    const std::span bytes(column.staging, static_cast<size_t>(table->staged * width));
    HOTROW_RETURN_IF_ERROR(
        WriteFull(*column.file, kNpyHeaderBytes + table->rows_in_shard * width, bytes));
    column.crc = Crc32c(bytes, column.crc);
  }
  table->rows_in_shard += table->staged;
  table->staged = 0;
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
                 .rows = 0,
                 .hash = Hash128(),
                 .arrays = {}};
    table.layout = tables[i].layout();
    table.dir = absl::StrCat("tables/", TableDirName(i, tables[i].name));
    const std::vector<Column> columns = ColumnsOf(table.layout, tables[i].optimizer);
    int64_t widest = 1;
    for (const Column& column : columns) widest = std::max(widest, column.bytes);
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
    for (const Column& column : columns) table.columns.push_back({.column = column});
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
  if (static_cast<int64_t>(row.size()) != table.layout.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("portable tables: a row of ", row.size(),
                                                   " bytes in table \"", table.out.name,
                                                   "\", whose rows have ", table.layout.row_bytes));
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
    std::byte* const to = column.staging + table.staged * width;
    const int64_t offset = column.column.row_offset;
    if (offset < 0) {
      std::memcpy(to, &key.key, sizeof(key.key));
    } else {
      HOTROW_RETURN_IF_ERROR(ToFile(column.column, row.data() + offset, to));
    }
  }
  const auto payload = row.first(static_cast<size_t>(table.layout.payload_bytes));
  *table.out.hash += HashBytes(key.key, key.table, payload);
  *table.out.rows += 1;
  ++table.staged;
  if (table.rows_in_shard + table.staged == table.shard_rows) return impl_->EndShard(&table);
  if (table.staged == table.capacity) return impl_->WriteStaged(&table);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PortableTable>> PortableTablesWriter::Finish() {
  std::vector<PortableTable> out;
  for (Impl::Table& table : impl_->tables) {
    // An empty table has one file without rows for each array, so that its shape is seen.
    if (table.shards == 0 || table.rows_in_shard + table.staged > 0) {
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

// --- Reading ---

namespace {

// A file whose header was read.
struct ArrayFile {
  std::string path;
  std::optional<uint32_t> crc;
  int64_t header_bytes = 0;
  int64_t rows = 0;
};

struct ArrayPlan {
  Column column;
  std::vector<ArrayFile> files;
};

struct TablePlan {
  RowLayout layout;
  int64_t rows = 0;
  std::vector<ArrayPlan> arrays;
};

std::string QuotedTable(const PortableTable& table) {
  return absl::StrCat("table \"", table.name, "\"");
}

// Dtypes whose bytes are those of the array's own: keys are 64 bits, whatever their sign.
bool IsLikeDtype(const PortableArray& array, const std::string& dtype) {
  return dtype == array.dtype || (array.name == kKeys && dtype == "<i8");
}

absl::StatusOr<ArrayFile> PlanFile(const PortableTablesOptions& options, const PortableTable& table,
                                   const PortableArray& expected, const PortableFile& file) {
  const std::string place = absl::StrCat(QuotedTable(table), ", array ", expected.name);
  if (!IsInside(file.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": the file \"", file.name, "\" must be a path below ", options.dir));
  }
  ArrayFile out;
  out.path = absl::StrCat(options.dir, "/", file.name);
  out.crc = file.crc;
  Env& env = EnvOf(options);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(out.path));
  if (!exists) {
    return absl::DataLossError(absl::StrCat(out.path, ": there is no such file (", place, ")"));
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, env.Open(out.path, OpenMode::kRead));
  const std::shared_ptr<File> shared = std::move(opened);
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, shared->Size());
  const std::unique_ptr<ByteStream> stream = NewFileSection(shared, 0, size);
  HOTROW_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(*stream, out.path));
  if (!IsLikeDtype(expected, header.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(out.path, ": dtype is ", header.dtype, ", expected ", expected.dtype,
                     expected.name == kKeys ? " or <i8" : "", " (", place, "); numpy's a.astype('",
                     expected.dtype, "') converts"));
  }
  const bool fits = expected.columns == 0
                        ? header.shape.size() == 1
                        : header.shape.size() == 2 && header.shape[1] == expected.columns;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(out.path, ": shape is ", header.ShapeText(),
                                                   ", expected ", ShapeText(expected), " (", place,
                                                   ")"));
  }
  if (size != header.header_bytes + header.data_bytes) {
    return absl::DataLossError(absl::StrCat(out.path, ": has ", size, " bytes, its header says ",
                                            header.header_bytes + header.data_bytes, " (shape ",
                                            header.ShapeText(), " of ", header.dtype, ")"));
  }
  out.header_bytes = header.header_bytes;
  out.rows = header.rows();
  return out;
}

absl::StatusOr<TablePlan> PlanTable(const PortableTablesOptions& options,
                                    const PortableTable& table) {
  TablePlan plan;
  plan.layout = table.layout();
  for (Column& column : ColumnsOf(plan.layout, table.optimizer)) {
    const PortableArray& expected = column.array;
    const auto array =
        std::find_if(table.arrays.begin(), table.arrays.end(),
                     [&](const PortableArray& a) { return a.name == expected.name; });
    if (array == table.arrays.end() || array->files.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.dir, ": ", QuotedTable(table), " has no array \"", expected.name,
                       "\", expected one of ", expected.dtype, " and shape ", ShapeText(expected),
                       " for a table of ", table.dim, " columns trained with ",
                       std::string(SparseOptimizerName(table.optimizer))));
    }
    ArrayPlan out;
    int64_t rows = 0;
    for (const PortableFile& file : array->files) {
      HOTROW_ASSIGN_OR_RETURN(ArrayFile planned, PlanFile(options, table, expected, file));
      if (__builtin_add_overflow(rows, planned.rows, &rows)) {
        return absl::InvalidArgumentError(
            absl::StrCat(planned.path, ": ", planned.rows, " rows are more than can be counted"));
      }
      out.files.push_back(std::move(planned));
    }
    // The first array is that of the keys.
    if (plan.arrays.empty()) {
      plan.rows = rows;
      if (table.rows.has_value() && *table.rows != rows) {
        return absl::InvalidArgumentError(
            absl::StrCat(QuotedTable(table), ": its ", out.files.size(), " files of keys from ",
                         out.files[0].path, " on have ", rows, " rows, the manifest says ",
                         *table.rows, "; --edited does not compare them"));
      }
    } else if (rows != plan.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(QuotedTable(table), ": array ", expected.name, " (", out.files[0].path,
                       out.files.size() > 1 ? " ...) has " : ") has ", rows, " rows, expected ",
                       plan.rows, ", one for each key"));
    }
    out.column = std::move(column);
    plan.arrays.push_back(std::move(out));
  }
  return plan;
}

// The rows of one array, front to back, over all its files. Compares checksums as files end.
class ArrayReader {
 public:
  ArrayReader(Env& env, const ArrayPlan& plan) : env_(env), plan_(plan) {}

  absl::Status Read(std::byte* out, int64_t rows) {
    const int64_t width = plan_.column.bytes;
    while (rows > 0) {
      while (left_ == 0) HOTROW_RETURN_IF_ERROR(NextFile());
      const int64_t n = std::min(rows, left_);
      const std::span bytes(out, static_cast<size_t>(n * width));
      HOTROW_RETURN_IF_ERROR(Take(bytes));
      left_ -= n;
      rows -= n;
      out += n * width;
      if (left_ == 0) HOTROW_RETURN_IF_ERROR(EndFile());
    }
    return absl::OkStatus();
  }
  // Behind the last row there may be files without rows.
  absl::Status Finish() {
    while (next_ < plan_.files.size()) HOTROW_RETURN_IF_ERROR(NextFile());
    return absl::OkStatus();
  }

 private:
  absl::Status Take(std::span<std::byte> bytes) {
    HOTROW_RETURN_IF_ERROR(ReadFull(*file_, offset_, bytes));
    offset_ += static_cast<int64_t>(bytes.size());
    if (plan_.files[next_ - 1].crc.has_value()) crc_ = Crc32c(bytes, crc_);
    return absl::OkStatus();
  }
  absl::Status NextFile() {
    const ArrayFile& file = plan_.files[next_++];
    HOTROW_ASSIGN_OR_RETURN(file_, env_.Open(file.path, OpenMode::kRead));
    offset_ = 0;
    crc_ = 0;
    std::vector<std::byte> header(static_cast<size_t>(file.header_bytes));
    HOTROW_RETURN_IF_ERROR(Take(header));
    left_ = file.rows;
    return left_ == 0 ? EndFile() : absl::OkStatus();
  }
  absl::Status EndFile() {
    const ArrayFile& file = plan_.files[next_ - 1];
    file_ = nullptr;
    if (!file.crc.has_value() || *file.crc == crc_) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrFormat("%s: its checksum is %08x, the manifest says %08x; restore it from a copy, "
                        "or use --edited if it was changed on purpose",
                        file.path, crc_, *file.crc));
  }

  Env& env_;
  const ArrayPlan& plan_;
  size_t next_ = 0;  // file
  std::unique_ptr<File> file_;
  int64_t offset_ = 0;
  int64_t left_ = 0;  // rows of the present file
  uint32_t crc_ = 0;
};

absl::StatusOr<PortableDigest> ReadTable(
    const PortableTablesOptions& options, const PortableTable& table, uint32_t number,
    const TablePlan& plan, absl::FunctionRef<absl::Status(const PortableRows&)> visit) {
  int64_t packed = 0;
  int64_t widest = 0;
  std::vector<ArrayReader> readers;
  for (const ArrayPlan& array : plan.arrays) {
    packed += array.column.bytes;
    widest = std::max(widest, array.column.bytes);
    readers.emplace_back(EnvOf(options), array);
  }
  // Two rows: this one, and that which a store finds in its place.
  const int64_t row_bytes = plan.layout.row_bytes;
  const int64_t need = widest + 2 * row_bytes + kBatchRowOverhead;
  const int64_t batch_rows =
      std::min({options.memory_bytes / need, kBatchRowsMax, std::max<int64_t>(plan.rows, 1)});
  if (batch_rows == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("portable tables: ", options.memory_bytes, " bytes of buffers hold no row of ",
                     QuotedTable(table), ", which takes ", need, "; raise memory_bytes"));
  }
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<std::byte> column,
                          HostBuffer<std::byte>::Create(batch_rows * widest, HugePages::kNever));
  HOTROW_ASSIGN_OR_RETURN(HostBuffer<std::byte> rows,
                          HostBuffer<std::byte>::Create(batch_rows * row_bytes, HugePages::kNever));
  std::vector<RowKey> keys(static_cast<size_t>(batch_rows));
  std::vector<const std::byte*> pointers(keys.size());
  for (int64_t i = 0; i < batch_rows; ++i) pointers[i] = rows.data() + i * row_bytes;

  Hash128 hash;
  for (int64_t first = 0; first < plan.rows; first += batch_rows) {
    const int64_t n = std::min(batch_rows, plan.rows - first);
    std::memset(rows.data(), 0, static_cast<size_t>(n * row_bytes));  // padding
    for (size_t a = 0; a < readers.size(); ++a) {
      const Column& part = plan.arrays[a].column;
      HOTROW_RETURN_IF_ERROR(readers[a].Read(column.data(), n));
      for (int64_t i = 0; i < n; ++i) {
        const std::byte* const from = column.data() + i * part.bytes;
        if (part.row_offset < 0) {
          keys[i].table = number;
          std::memcpy(&keys[i].key, from, sizeof(keys[i].key));
        } else {
          HOTROW_RETURN_IF_ERROR(ToRow(part, from, rows.data() + i * row_bytes + part.row_offset));
        }
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      hash += HashBytes(keys[i].key, number,
                        {pointers[i], static_cast<size_t>(plan.layout.payload_bytes)});
    }
    const auto count = static_cast<size_t>(n);
    HOTROW_RETURN_IF_ERROR(visit({.keys = std::span(keys).first(count),
                                  .rows = std::span(pointers).first(count),
                                  .first_row = first}));
  }
  for (ArrayReader& reader : readers) HOTROW_RETURN_IF_ERROR(reader.Finish());
  if (table.hash.has_value() && !(*table.hash == hash)) {
    return absl::DataLossError(
        absl::StrCat(options.dir, ": ", QuotedTable(table), " has ", plan.rows, " rows of hash ",
                     hash.ToHex(), ", the manifest says ", table.hash->ToHex(),
                     "; restore it from a copy, or use --edited if it was changed on purpose"));
  }
  return PortableDigest{plan.rows, hash};
}

std::string PlaceIn(const ArrayPlan& plan, int64_t row) {
  for (const ArrayFile& file : plan.files) {
    if (row < file.rows) return absl::StrCat(file.path, ", row ", row);
    row -= file.rows;
  }
  return plan.files.back().path;
}

// The position of a key that the batch has before; -1 when there is none.
int64_t FindRepeated(std::span<const RowKey> keys, std::vector<uint64_t>* sorted) {
  sorted->clear();
  for (const RowKey& key : keys) sorted->push_back(key.key);
  std::sort(sorted->begin(), sorted->end());
  const auto repeated = std::adjacent_find(sorted->begin(), sorted->end());
  if (repeated == sorted->end()) return -1;
  int64_t found = -1;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].key == *repeated) found = static_cast<int64_t>(i);
  }
  return found;
}

absl::StatusOr<PortableDigest> LoadTable(const PortableTablesOptions& options,
                                         const PortableTable& table, uint32_t number,
                                         const TablePlan& plan, RowStore& store) {
  HostBuffer<std::byte> scratch;
  std::vector<std::byte*> scratch_rows;
  std::vector<uint8_t> found;
  std::vector<uint64_t> sorted;
  const int64_t row_bytes = plan.layout.row_bytes;
  return ReadTable(options, table, number, plan, [&](const PortableRows& batch) -> absl::Status {
    if (found.empty()) {  // the first batch is the largest
      const auto n = static_cast<int64_t>(batch.keys.size());
      HOTROW_ASSIGN_OR_RETURN(scratch,
                              HostBuffer<std::byte>::Create(n * row_bytes, HugePages::kNever));
      for (int64_t i = 0; i < n; ++i) scratch_rows.push_back(scratch.data() + i * row_bytes);
      found.resize(batch.keys.size());
    }
    int64_t repeated = FindRepeated(batch.keys, &sorted);
    if (repeated < 0) {
      const size_t n = batch.keys.size();
      HOTROW_RETURN_IF_ERROR(
          store.Find(batch.keys, std::span(scratch_rows).first(n), std::span(found).first(n)));
      const auto there = std::find(found.begin(), found.begin() + static_cast<int64_t>(n), 1);
      if (there != found.begin() + static_cast<int64_t>(n)) repeated = there - found.begin();
    }
    if (repeated < 0) return store.InsertOrAssign(batch.keys, batch.rows);
    // A file that was damaged is told as that.
    ArrayReader keys(EnvOf(options), plan.arrays[0]);
    std::vector<std::byte> buffer(sizeof(uint64_t) * static_cast<size_t>(kBatchRowsMax));
    for (int64_t row = 0; row < plan.rows; row += kBatchRowsMax) {
      HOTROW_RETURN_IF_ERROR(keys.Read(buffer.data(), std::min(kBatchRowsMax, plan.rows - row)));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        PlaceIn(plan.arrays[0], batch.first_row + repeated), ": key ", batch.keys[repeated].key,
        " of ", QuotedTable(table), " occurs a second time; a table has one row for each key"));
  });
}

absl::StatusOr<std::vector<TablePlan>> PlanTables(const PortableTablesOptions& options,
                                                  const std::vector<PortableTable>& tables) {
  std::vector<TablePlan> plans;
  for (const PortableTable& table : tables) {
    HOTROW_ASSIGN_OR_RETURN(TablePlan plan, PlanTable(options, table));
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> CheckPortableTables(const PortableTablesOptions& options,
                                                         const std::vector<PortableTable>& tables) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<TablePlan> plans, PlanTables(options, tables));
  std::vector<int64_t> rows;
  for (const TablePlan& plan : plans) rows.push_back(plan.rows);
  return rows;
}

absl::StatusOr<std::vector<PortableDigest>> ReadPortableTables(
    const PortableTablesOptions& options, const std::vector<PortableTable>& tables,
    absl::FunctionRef<absl::Status(const PortableRows&)> visit) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<TablePlan> plans, PlanTables(options, tables));
  std::vector<PortableDigest> out;
  for (size_t i = 0; i < tables.size(); ++i) {
    HOTROW_ASSIGN_OR_RETURN(
        const PortableDigest digest,
        ReadTable(options, tables[i], static_cast<uint32_t>(i), plans[i], visit));
    out.push_back(digest);
  }
  return out;
}

absl::StatusOr<std::vector<PortableDigest>> LoadPortableTables(
    const PortableTablesOptions& options, const std::vector<PortableTable>& tables,
    RowStore& store) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<TablePlan> plans, PlanTables(options, tables));
  std::vector<PortableDigest> out;
  for (size_t i = 0; i < tables.size(); ++i) {
    HOTROW_ASSIGN_OR_RETURN(
        const PortableDigest digest,
        LoadTable(options, tables[i], static_cast<uint32_t>(i), plans[i], store));
    out.push_back(digest);
  }
  return out;
}

}  // namespace hotrow
