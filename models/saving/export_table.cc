#include "models/saving/export_table.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/row_key.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "models/data/npy.h"
#include "models/saving/model_rows.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/portable_tables_impl.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

constexpr char kSafetensorsName[] = "table.safetensors";

// Calls visit for each row of a table that has not aged, in any order.
absl::Status VisitTable(Env& env, const ModelRows& source, uint32_t table,
                        const ExportTableOptions& options,
                        absl::FunctionRef<absl::Status(uint64_t key, const std::byte* row)> visit) {
  return VisitRows(env, source,
                   {.memory_bytes = options.memory_bytes, .store_bytes = options.store_bytes},
                   [&](const RowKey& key, std::span<const std::byte> row) {
                     return key.table == table ? visit(key.key, row.data()) : absl::OkStatus();
                   });
}

struct Kept {
  uint64_t key = 0;
  uint32_t last_step = 0;
  float score = 0;  // 0 where the order is that of ages
};
static_assert(sizeof(Kept) == 16);

absl::StatusOr<std::vector<Kept>> ChooseRows(Env& env, const ModelRows& source, uint32_t table,
                                             const ExportTableOptions& options, int64_t* found) {
  const RowLineFields fields = source.tables[table].layout().line_fields();
  std::vector<Kept> out;
  HOTROW_RETURN_IF_ERROR(
      VisitTable(env, source, table, options, [&](uint64_t key, const std::byte* row) {
        const RowMark mark = fields.Mark(row);
        out.push_back({.key = key,
                       .last_step = mark.last_step,
                       .score = options.by == RowOrder::kScore ? mark.score : 0});
        return absl::OkStatus();
      }));
  *found = std::ssize(out);
  if (options.max_rows > 0 && *found > options.max_rows) {
    const auto end = out.begin() + options.max_rows;
    std::nth_element(out.begin(), end, out.end(), [](const Kept& a, const Kept& b) {
      if (a.score != b.score) return a.score > b.score;
      return a.last_step != b.last_step ? a.last_step > b.last_step : a.key < b.key;
    });
    out.erase(end, out.end());
  }
  std::sort(out.begin(), out.end(), [](const Kept& a, const Kept& b) { return a.key < b.key; });
  return out;
}

// An array, and where its rows go.
struct Output {
  PortableColumn column;
  File* file = nullptr;
  int64_t offset = 0;  // of row 0
  std::vector<std::byte> buffer;
};

std::vector<int64_t> ShapeOf(const PortableArray& array, int64_t rows) {
  if (array.columns == 0) return {rows};
  return {rows, array.columns};
}

// The length of the header in 8 bytes, and the header, a multiple of 8 bytes.
std::string SafetensorsHeader(const std::vector<Output>& outputs, int64_t rows) {
  std::vector<std::string> entries;
  int64_t at = 0;
  for (const Output& output : outputs) {
    const PortableArray& array = output.column.array;
    const char* const dtype = array.dtype == "<u8" ? "U64" : array.dtype == "<u4" ? "U32" : "F32";
    const int64_t end = at + rows * output.column.bytes;
    entries.push_back(absl::StrCat("\"", array.name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[",
                                   absl::StrJoin(ShapeOf(array, rows), ","), "],\"data_offsets\":[",
                                   at, ",", end, "]}"));
    at = end;
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + header;
}

absl::Status WriteText(File& file, const std::string& text) {
  return WriteFull(file, 0, std::as_bytes(std::span(text)));
}

// Opens the files and writes their headers.
absl::StatusOr<std::vector<std::unique_ptr<File>>> OpenFiles(Env& env, const std::string& dir,
                                                             TableFormat format, int64_t rows,
                                                             std::vector<Output>* outputs) {
  std::vector<std::unique_ptr<File>> files;
  const auto open = [&](const std::string& name) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(files.emplace_back(),
                            env.Open(absl::StrCat(dir, "/", name), OpenMode::kTruncate));
    return absl::OkStatus();
  };
  if (format == TableFormat::kNpy) {
    for (Output& output : *outputs) {
      const PortableArray& array = output.column.array;
      HOTROW_RETURN_IF_ERROR(open(absl::StrCat(array.name, ".npy")));
      output.file = files.back().get();
      output.offset = kNpyHeaderBytes;
      HOTROW_RETURN_IF_ERROR(
          WriteText(*output.file, NpyHeaderText(array.dtype, ShapeOf(array, rows))));
    }
    return files;
  }
  HOTROW_RETURN_IF_ERROR(open(kSafetensorsName));
  const std::string header = SafetensorsHeader(*outputs, rows);
  HOTROW_RETURN_IF_ERROR(WriteText(*files[0], header));
  auto offset = static_cast<int64_t>(header.size());
  for (Output& output : *outputs) {
    output.file = files[0].get();
    output.offset = offset;
    offset += rows * output.column.bytes;
  }
  return files;
}

absl::Status WriteRows(Env& env, const ModelRows& source, uint32_t table,
                       const ExportTableOptions& options, const std::vector<Kept>& kept,
                       std::vector<Output>& outputs) {
  int64_t row_bytes = 0;
  for (const Output& output : outputs) row_bytes += output.column.bytes;
  const int64_t rows = std::ssize(kept);
  const int64_t at_once = std::max<int64_t>(options.memory_bytes / row_bytes, 1);
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    const int64_t count = std::min(at_once, rows - begin);
    const std::span<const Kept> part =
        std::span(kept).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    for (Output& output : outputs) {
      output.buffer.resize(static_cast<size_t>(count * output.column.bytes));
    }
    HOTROW_RETURN_IF_ERROR(VisitTable(
        env, source, table, options, [&](uint64_t key, const std::byte* row) -> absl::Status {
          const auto at =
              std::lower_bound(part.begin(), part.end(), key,
                               [](const Kept& a, uint64_t wanted) { return a.key < wanted; });
          if (at == part.end() || at->key != key) return absl::OkStatus();
          for (Output& output : outputs) {
            std::byte* const out = output.buffer.data() + (at - part.begin()) * output.column.bytes;
            if (output.column.row_offset < 0) {
              std::memcpy(out, &key, sizeof(key));
            } else {
              HOTROW_RETURN_IF_ERROR(ToFile(output.column, row + output.column.row_offset, out));
            }
          }
          return absl::OkStatus();
        }));
    for (Output& output : outputs) {
      HOTROW_RETURN_IF_ERROR(WriteFull(*output.file, output.offset + begin * output.column.bytes,
                                       std::span(output.buffer)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TableFormat> ParseTableFormat(std::string_view name) {
  if (name == "npy") return TableFormat::kNpy;
  if (name == "safetensors") return TableFormat::kSafetensors;
  return absl::InvalidArgumentError("takes npy or safetensors");
}

absl::StatusOr<ExportTableSummary> ExportTable(const ExportTableOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  if (options.max_rows < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows must be at least 0, is ", options.max_rows));
  }
  const std::string dir = WithoutEndingSlashes(options.dir);
  HOTROW_ASSIGN_OR_RETURN(const ModelRows source,
                          OpenModelRows(env, WithoutEndingSlashes(options.model)));
  const auto at = std::find_if(source.tables.begin(), source.tables.end(),
                               [&](const PortableTable& t) { return t.name == options.table; });
  if (at == source.tables.end()) {
    return absl::NotFoundError(absl::StrCat(
        source.dir, ": it has no table \"", options.table, "\"; its tables are ",
        absl::StrJoin(source.tables, ", ", [](std::string* text, const PortableTable& t) {
          absl::StrAppend(text, t.name);
        })));
  }
  if (options.by == RowOrder::kScore && !at->scored) {
    return absl::FailedPreconditionError(absl::StrCat(source.dir, ": the rows of table \"",
                                                      options.table,
                                                      "\" keep no scores; take those that "
                                                      "were trained last, by age"));
  }
  const auto table = static_cast<uint32_t>(at - source.tables.begin());
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  ExportTableSummary summary = {.from = source.dir, .to = dir};
  HOTROW_ASSIGN_OR_RETURN(const std::vector<Kept> kept,
                          ChooseRows(env, source, table, options, &summary.rows_found));
  summary.rows = std::ssize(kept);
  std::vector<Output> outputs;
  for (PortableColumn& column : PortableColumnsOf(at->layout(), at->optimizer)) {
    const std::string& name = column.array.name;
    if (options.state || name == kPortableKeys || name == "weights") {
      outputs.push_back({.column = std::move(column)});
    }
  }
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial, PartialDir::Create(env, dir));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<File>> files,
                          OpenFiles(env, partial->path(), options.format, summary.rows, &outputs));
  HOTROW_RETURN_IF_ERROR(WriteRows(env, source, table, options, kept, outputs));
  for (const std::unique_ptr<File>& file : files) {
    HOTROW_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
    summary.bytes += bytes;
    HOTROW_RETURN_IF_ERROR(file->Sync());
    HOTROW_RETURN_IF_ERROR(file->Close());
  }
  HOTROW_RETURN_IF_ERROR(partial->Commit());
  return summary;
}

}  // namespace hotrow
