#ifndef HOTROW_MODELS_DATA_TABLE_READER_H_
#define HOTROW_MODELS_DATA_TABLE_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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

// Reads the samples of text files, one file after the other, and leaves out those that their labels
// drop. Lines without any character are passed over.
//
// Threads: one at a time.
// Errors:  as the files and the parser say, with file and line; InvalidArgument for a file without
//          a line.
class TableReader {
 public:
  // schema and vocabulary (RowParser::Create) must outlive the reader.
  TableReader(const TableSchema* schema, std::vector<std::string> paths, OpenText open,
              const Vocabulary* vocabulary = nullptr);

  // False at the end.
  absl::StatusOr<bool> Next(Sample* sample);
  // File and line of the sample that Next gave last.
  std::string place() const;

 private:
  absl::Status OpenNext();
  absl::Status ReadError() const;
  // Adds file and line to what a line's status says.
  absl::Status AtLine(const absl::Status& status, int64_t line_number) const;

  const TableSchema* schema_;
  const std::vector<std::string> paths_;
  const OpenText open_;
  const Vocabulary* const vocabulary_;
  size_t next_path_ = 0;
  std::unique_ptr<RecordReader> records_;  // of the open file
  std::optional<RowParser> parser_;
  int64_t rows_ = 0;  // of the open file
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_READER_H_
