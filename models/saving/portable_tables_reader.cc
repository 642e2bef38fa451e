#include "models/saving/portable_tables_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/buffer.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "models/data/byte_stream.h"
#include "models/data/npy.h"
#include "models/saving/portable_tables_impl.h"

namespace hotrow {
namespace {

// Rows that go to the store at once: enough to be efficient, few enough for any budget.
constexpr int64_t kBatchRowsMax = 8192;
// Memory per row of a batch beside its bytes: key, two pointers, a flag, a copy of the key.
constexpr int64_t kBatchRowOverhead = 64;

std::string ShapeText(const PortableArray& array) {
  return array.columns == 0 ? "(rows,)" : absl::StrCat("(rows, ", array.columns, ")");
}

// Whether the path stays below the directory.
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

// A file whose header was read.
struct ArrayFile {
  std::string path;
  std::optional<uint32_t> crc;
  int64_t header_bytes = 0;
  int64_t rows = 0;
};

struct ArrayPlan {
  PortableColumn column;
  std::vector<ArrayFile> files;
};

struct TablePlan {
  int64_t row_bytes = 0;
  int64_t hashed_bytes = 0;
  int64_t rows = 0;
  std::vector<ArrayPlan> arrays;
};

std::string QuotedTable(const PortableTable& table) {
  return absl::StrCat("table \"", table.name, "\"");
}

// Whether the bytes of this dtype mean the same: keys are 64 bits, signed or not.
bool IsLikeDtype(const PortableArray& array, const std::string& dtype) {
  return dtype == array.dtype || (array.name == kPortableKeys && dtype == "<i8");
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
                     expected.name == kPortableKeys ? " or <i8" : "", " (", place,
                     "); numpy's a.astype('", expected.dtype, "') converts"));
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
  plan.row_bytes = table.row_bytes();
  plan.hashed_bytes = HashedBytesOf(table);
  for (PortableColumn& column : PortableColumnsOf(table)) {
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
    // The first array holds the keys.
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
  // Files without rows may follow the last row.
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
  // Two rows: the one read, and the one that the store may find under its key.
  const int64_t row_bytes = plan.row_bytes;
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
      const PortableColumn& part = plan.arrays[a].column;
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
      hash += HashBytes(keys[i].key, number, {pointers[i], static_cast<size_t>(plan.hashed_bytes)});
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

// The last position of a key that occurs twice in the batch; -1: there is none.
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
  const int64_t row_bytes = plan.row_bytes;
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
    // If the file is damaged, that is the error to report.
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
