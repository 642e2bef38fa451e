#include "models/data/record_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/table_schema_text.h"

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

RecordFiles::RecordFiles(const TableSchema* schema, std::vector<std::string> paths, OpenText open,
                         const Vocabulary* vocabulary)
    : schema_(schema), paths_(std::move(paths)), open_(std::move(open)), vocabulary_(vocabulary) {}

std::string RecordFiles::TextOf(RecordPlace place) const {
  return absl::StrCat(paths_[place.file], ":", place.line);
}

absl::Status RecordFiles::At(RecordPlace place, const absl::Status& status) const {
  return {status.code(), absl::StrCat(TextOf(place), ": ", std::string(status.message()))};
}

// Finds the columns of a file without a header, whose labels are not read.
absl::Status RecordFiles::FindColumns(std::vector<std::string>* columns) {
  std::vector<std::string> unlabelled = UnlabelledColumns(*schema_);
  for (;;) {
    if (!records_->Next(&first_)) return absl::OkStatus();  // Next says why
    if (!first_.empty() || unlabelled.size() == 1) break;
    if (blank_line_ == 0) blank_line_ = records_->line_number();
  }
  has_first_ = true;
  std::vector<std::string_view> fields;
  FieldSplitter splitter(SyntaxOf(*schema_));
  const absl::Status split = splitter.Split(first_, &fields);
  if (!split.ok()) return At(place(), split);
  if (fields.size() == unlabelled.size()) *columns = std::move(unlabelled);
  return absl::OkStatus();
}

absl::Status RecordFiles::Empty(std::string_view expected) const {
  return absl::InvalidArgumentError(absl::StrCat(
      paths_[next_path_ - 1],
      paths_.size() > 1 ? absl::StrCat(": all ", paths_.size(), " files of the split are empty")
                        : ": the file is empty",
      ", expected ", std::string(expected)));
}

absl::StatusOr<bool> RecordFiles::OpenNext() {
  // Some of many parts that a program writes may be empty.
  for (bool open = false; !open;) {
    if (next_path_ == paths_.size()) {
      if (any_rows_ || paths_.empty()) return false;
      return Empty("samples");
    }
    HOTROW_ASSIGN_OR_RETURN(open, Open(next_path_++));
  }
  return true;
}

absl::StatusOr<bool> RecordFiles::Open(size_t file) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, open_(paths_[file]));
  records_ = std::make_unique<RecordReader>(std::move(stream), SyntaxOf(*schema_));
  has_first_ = false;
  blank_line_ = 0;
  std::vector<std::string> columns = schema_->column_names;
  if (schema_->header) {
    std::string_view line;
    if (!records_->Next(&line)) {
      if (!records_->status().ok()) return ReadError();
      if (paths_.size() > 1) return false;
      return Empty("a header line");
    }
    std::vector<std::string_view> names;
    FieldSplitter splitter(SyntaxOf(*schema_));
    const absl::Status split = splitter.Split(line, &names);
    if (!split.ok()) return At({file, 1}, split);
    columns.assign(names.begin(), names.end());
  } else if (!schema_->reads_labels) {
    HOTROW_RETURN_IF_ERROR(FindColumns(&columns));
  }
  absl::StatusOr<RowParser> parser = RowParser::Create(*schema_, columns, vocabulary_);
  if (!parser.ok()) {
    return schema_->header ? At({file, 1}, parser.status()) : parser.status();
  }
  one_column_ = columns.size() == 1;
  parser_ = std::make_shared<const RowParser>(*std::move(parser));
  return true;
}

// The stream names its file; what the record reader itself says has no place yet.
absl::Status RecordFiles::ReadError() const {
  return absl::IsInvalidArgument(records_->status())
             ? At({next_path_ - 1, records_->error_line()}, records_->status())
             : records_->status();
}

absl::StatusOr<bool> RecordFiles::Next(std::string_view* record) {
  while (has_first_ || records_->Next(record)) {
    if (std::exchange(has_first_, false)) *record = first_;
    if (record->empty() && (schema_->reads_labels || !one_column_)) {
      if (blank_line_ == 0) blank_line_ = records_->line_number();
      continue;
    }
    if (blank_line_ > 0 && !schema_->reads_labels) {
      return At({next_path_ - 1, blank_line_},
                absl::InvalidArgumentError("the line is blank and has no score, so those of the "
                                           "lines behind it would be taken for others; remove it"));
    }
    any_rows_ = true;
    return true;
  }
  if (!records_->status().ok()) return ReadError();
  if (any_rows_ || paths_.size() > 1) return false;
  return Empty(schema_->header ? "samples after the header" : "samples");
}

}  // namespace hotrow
