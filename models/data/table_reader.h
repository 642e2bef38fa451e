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
#include "models/data/line_reader.h"
#include "models/data/row_parser.h"
#include "models/data/table_schema.h"

namespace hotrow {

using OpenText =
    std::function<absl::StatusOr<std::unique_ptr<ByteStream>>(const std::string& path)>;

// OpenTextFile of the path, or of path.gz where only that is there.
OpenText OpenTextFrom(Env& env);

// Reads the samples of text files, one file after the other, and leaves out those that their label
// drops. Lines without any character are passed over.
//
// Threads: one at a time.
// Errors:  as the files and the parser say, with file and line; InvalidArgument for a file without
//          a line.
class TableReader {
 public:
  // schema must outlive the reader.
  TableReader(const TableSchema* schema, std::vector<std::string> paths, OpenText open);

  // False at the end.
  absl::StatusOr<bool> Next(Sample* sample);

 private:
  absl::Status OpenNext();
  // Adds file and line to what a line's status says.
  absl::Status AtLine(const absl::Status& status, int64_t line_number) const;

  const TableSchema* schema_;
  const std::vector<std::string> paths_;
  const OpenText open_;
  size_t next_path_ = 0;
  std::unique_ptr<LineReader> lines_;  // of the open file
  std::optional<RowParser> parser_;
  int64_t rows_ = 0;  // of the open file
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_READER_H_
