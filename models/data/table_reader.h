#ifndef HOTROW_MODELS_DATA_TABLE_READER_H_
#define HOTROW_MODELS_DATA_TABLE_READER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/data/record_files.h"
#include "models/data/row_parser.h"
#include "models/data/table_schema.h"

namespace hotrow {

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
              const Vocabulary* vocabulary = nullptr)
      : files_(schema, std::move(paths), std::move(open), vocabulary) {}

  // False at the end.
  absl::StatusOr<bool> Next(Sample* sample);
  // The place of the sample that Next gave last.
  RecordPlace place() const { return files_.place(); }
  std::string TextOf(RecordPlace place) const { return files_.TextOf(place); }

 private:
  RecordFiles files_;
  std::optional<RowParser> parser_;  // of the open file; none: no file is open
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_READER_H_
