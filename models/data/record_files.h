#ifndef HOTROW_MODELS_DATA_RECORD_FILES_H_
#define HOTROW_MODELS_DATA_RECORD_FILES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/byte_stream.h"
#include "models/data/delimited_text.h"
#include "models/data/row_parser.h"
#include "models/data/table_schema.h"

namespace hotrow {

using OpenText =
    std::function<absl::StatusOr<std::unique_ptr<ByteStream>>(const std::string& path)>;

// OpenTextFile of the path, or of path.gz where only that is there.
OpenText OpenTextFrom(Env& env);

// Where a record begins.
struct RecordPlace {
  size_t file = 0;   // position in the list of paths
  int64_t line = 0;  // counted from 1
};

// Cuts text files into records, one file after the other, and finds out which column is where in
// each. Lines without any character are passed over; where labels are not read, each line is to
// have a score, so they are records of a file of one column, and otherwise an error unless nothing
// follows. Where labels are not read
// (TableSchema::reads_labels) and there is no header, the first record of a file says by the number
// of its columns whether those of labels are there.
//
// Threads: one at a time.
// Errors:  as the files say, with file and line; InvalidArgument for a header that lacks a column,
//          and where no file has a sample. Some of several files may be empty.
class RecordFiles {
 public:
  // schema and vocabulary (RowParser::Create) must outlive the parsers.
  RecordFiles(const TableSchema* schema, std::vector<std::string> paths, OpenText open,
              const Vocabulary* vocabulary);

  // Goes on to the next file that is not empty; false: there is none.
  absl::StatusOr<bool> OpenNext();
  // The next record of the file without its end, valid until the next call; false at its end.
  absl::StatusOr<bool> Next(std::string_view* record);
  // The place of the record that Next gave last.
  RecordPlace place() const { return {next_path_ - 1, records_->line_number()}; }
  // Parses records of the open file. To be copied, by each thread that parses.
  const std::shared_ptr<const RowParser>& parser() const { return parser_; }

  // "path:line".
  std::string TextOf(RecordPlace place) const;
  // Adds file and line to what is wrong with a record.
  absl::Status At(RecordPlace place, const absl::Status& status) const;

 private:
  absl::StatusOr<bool> Open(size_t file);
  absl::Status Empty(std::string_view expected) const;
  absl::Status ReadError() const;
  absl::Status FindColumns(std::vector<std::string>* columns);

  const TableSchema* schema_;
  const std::vector<std::string> paths_;
  const OpenText open_;
  const Vocabulary* const vocabulary_;
  size_t next_path_ = 0;
  std::unique_ptr<RecordReader> records_;    // of the open file
  std::shared_ptr<const RowParser> parser_;  // of the open file
  bool any_rows_ = false;                    // of any file
  bool one_column_ = false;                  // the open file has
  int64_t blank_line_ = 0;                   // the first of the open file; 0: there was none
  bool has_first_ = false;                   // its first record was read, and not handed out
  std::string_view first_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_RECORD_FILES_H_
