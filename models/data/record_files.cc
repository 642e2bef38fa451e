#include "models/data/record_files.h"

#include <optional>
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

// Of a file without a header, whose labels are not read.
absl::Status RecordFiles::FindColumns(std::vector<std::string>* columns) {
  if (!records_->Next(&first_)) return absl::OkStatus();  // Next says why
  has_first_ = true;
  std::vector<std::string_view> fields;
  FieldSplitter splitter(SyntaxOf(*schema_));
  const absl::Status split = splitter.Split(first_, &fields);
  if (!split.ok()) return At(place(), split);
  std::vector<std::string> unlabelled = UnlabelledColumns(*schema_);
  if (fields.size() == unlabelled.size()) *columns = std::move(unlabelled);
  return absl::OkStatus();
}

absl::StatusOr<bool> RecordFiles::OpenNext() {
  if (next_path_ == paths_.size()) return false;
  const size_t file = next_path_++;
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, open_(paths_[file]));
  records_ = std::make_unique<RecordReader>(std::move(stream), SyntaxOf(*schema_));
  rows_ = 0;
  has_first_ = false;
  std::vector<std::string> columns = schema_->column_names;
  if (schema_->header) {
    std::string_view line;
    if (!records_->Next(&line)) {
      if (!records_->status().ok()) return ReadError();
      return absl::InvalidArgumentError(
          absl::StrCat(paths_[file], ": the file is empty, expected a header line"));
    }
    std::vector<std::string_view> names;
    FieldSplitter splitter(SyntaxOf(*schema_));
    const absl::Status split = splitter.Split(line, &names);
    if (!split.ok()) return At({file, 1}, split);
    columns.assign(names.begin(), names.end());
  } else if (!schema_->reads_labels) {
    HOTROW_RETURN_IF_ERROR(FindColumns(&columns));
  }
  num_columns_ = columns.size();
  absl::StatusOr<RowParser> parser = RowParser::Create(*schema_, columns, vocabulary_);
  if (!parser.ok()) {
    return schema_->header ? At({file, 1}, parser.status()) : parser.status();
  }
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
  std::optional<RecordPlace> blank;  // of the first line that would have had to be a sample
  while (has_first_ || records_->Next(record)) {
    if (std::exchange(has_first_, false)) *record = first_;
    if (record->empty() && (schema_->reads_labels || num_columns_ > 1)) {
      if (!schema_->reads_labels && !blank.has_value()) blank = place();
      continue;
    }
    if (blank.has_value()) {
      return At(*blank, absl::InvalidArgumentError(
                            "a blank line, and samples behind it: it can have no score, so that "
                            "scores would not be those of the lines; remove it"));
    }
    ++rows_;
    return true;
  }
  if (!records_->status().ok()) return ReadError();
  if (rows_ > 0) return false;
  return absl::InvalidArgumentError(
      absl::StrCat(paths_[next_path_ - 1], ": the file is empty, expected ",
                   schema_->header ? "samples after the header" : "samples"));
}

}  // namespace hotrow
