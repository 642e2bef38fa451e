#include "models/data/table_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

std::vector<std::string> HeaderNames(std::string_view line, const TableSchema& schema) {
  std::vector<std::string> names;
  while (true) {
    const size_t cut = std::min(line.find(schema.delimiter), line.size());
    std::string_view name = line.substr(0, cut);
    if (schema.trim) {
      while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
      while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    }
    names.emplace_back(name);
    if (cut == line.size()) return names;
    line.remove_prefix(cut + 1);
  }
}

}  // namespace

OpenText OpenTextFrom(Env& env) {
  return [&env](const std::string& path) -> absl::StatusOr<std::unique_ptr<ByteStream>> {
    const std::string compressed = path + ".gz";
    HOTROW_ASSIGN_OR_RETURN(const bool plain, env.Exists(path));
    if (plain) return OpenTextFile(env, path);
    HOTROW_ASSIGN_OR_RETURN(const bool gzip, env.Exists(compressed));
    if (gzip) return OpenTextFile(env, compressed);
    return absl::NotFoundError(absl::StrCat(path, ": no such file, nor ", compressed));
  };
}

TableReader::TableReader(const TableSchema* schema, std::vector<std::string> paths, OpenText open)
    : schema_(schema), paths_(std::move(paths)), open_(std::move(open)) {}

absl::Status TableReader::AtLine(const absl::Status& status, int64_t line_number) const {
  return {status.code(), absl::StrCat(paths_[next_path_ - 1], ":", line_number, ": ",
                                      std::string(status.message()))};
}

absl::Status TableReader::OpenNext() {
  const std::string& path = paths_[next_path_++];
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, open_(path));
  lines_ = std::make_unique<LineReader>(std::move(stream));
  rows_ = 0;
  std::vector<std::string> columns = schema_->column_names;
  if (schema_->header) {
    std::string_view line;
    if (!lines_->Next(&line)) {
      if (!lines_->status().ok()) return lines_->status();
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the file is empty, expected a header line"));
    }
    columns = HeaderNames(line, *schema_);
  }
  absl::StatusOr<RowParser> parser = RowParser::Create(*schema_, columns);
  if (!parser.ok()) {
    return schema_->header ? AtLine(parser.status(), 1) : parser.status();
  }
  parser_.emplace(*std::move(parser));
  return absl::OkStatus();
}

absl::StatusOr<bool> TableReader::Next(Sample* sample) {
  while (true) {
    if (lines_ == nullptr) {
      if (next_path_ == paths_.size()) return false;
      HOTROW_RETURN_IF_ERROR(OpenNext());
    }
    std::string_view line;
    while (lines_->Next(&line)) {
      if (line.empty()) continue;
      ++rows_;
      bool dropped = false;
      const absl::Status status = parser_->Parse(line, sample, &dropped);
      if (!status.ok()) return AtLine(status, lines_->line_number());
      if (!dropped) return true;
    }
    if (!lines_->status().ok()) {
      // The stream names its file; what the line reader itself says has no place yet.
      return absl::IsInvalidArgument(lines_->status())
                 ? AtLine(lines_->status(), lines_->line_number() + 1)
                 : lines_->status();
    }
    if (rows_ == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(paths_[next_path_ - 1], ": the file is empty, expected ",
                       schema_->header ? "samples after the header" : "samples"));
    }
    lines_.reset();
  }
}

}  // namespace hotrow
