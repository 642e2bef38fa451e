#include "models/data/table_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
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

TableReader::TableReader(const TableSchema* schema, std::vector<std::string> paths, OpenText open,
                         const Vocabulary* vocabulary)
    : schema_(schema), paths_(std::move(paths)), open_(std::move(open)), vocabulary_(vocabulary) {}

std::string TableReader::place() const {
  return absl::StrCat(paths_[next_path_ - 1], ":", records_->line_number());
}

absl::Status TableReader::AtLine(const absl::Status& status, int64_t line_number) const {
  return {status.code(), absl::StrCat(paths_[next_path_ - 1], ":", line_number, ": ",
                                      std::string(status.message()))};
}

absl::Status TableReader::OpenNext() {
  const std::string& path = paths_[next_path_++];
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, open_(path));
  records_ = std::make_unique<RecordReader>(std::move(stream), SyntaxOf(*schema_));
  rows_ = 0;
  std::vector<std::string> columns = schema_->column_names;
  if (schema_->header) {
    std::string_view line;
    if (!records_->Next(&line)) {
      if (!records_->status().ok()) return ReadError();
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the file is empty, expected a header line"));
    }
    std::vector<std::string_view> names;
    FieldSplitter splitter(SyntaxOf(*schema_));
    const absl::Status split = splitter.Split(line, &names);
    if (!split.ok()) return AtLine(split, 1);
    columns.assign(names.begin(), names.end());
  }
  absl::StatusOr<RowParser> parser = RowParser::Create(*schema_, columns, vocabulary_);
  if (!parser.ok()) {
    return schema_->header ? AtLine(parser.status(), 1) : parser.status();
  }
  parser_.emplace(*std::move(parser));
  return absl::OkStatus();
}

// The stream names its file; what the record reader itself says has no place yet.
absl::Status TableReader::ReadError() const {
  return absl::IsInvalidArgument(records_->status())
             ? AtLine(records_->status(), records_->error_line())
             : records_->status();
}

absl::StatusOr<bool> TableReader::Next(Sample* sample) {
  while (true) {
    if (records_ == nullptr) {
      if (next_path_ == paths_.size()) return false;
      HOTROW_RETURN_IF_ERROR(OpenNext());
    }
    std::string_view line;
    while (records_->Next(&line)) {
      if (line.empty()) continue;
      ++rows_;
      bool dropped = false;
      const absl::Status status = parser_->Parse(line, sample, &dropped);
      if (!status.ok()) return AtLine(status, records_->line_number());
      if (!dropped) return true;
    }
    if (!records_->status().ok()) return ReadError();
    if (rows_ == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(paths_[next_path_ - 1], ": the file is empty, expected ",
                       schema_->header ? "samples after the header" : "samples"));
    }
    records_.reset();
  }
}

}  // namespace hotrow
