#ifndef HOTROW_MODELS_DATA_ROW_PARSER_H_
#define HOTROW_MODELS_DATA_ROW_PARSER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/sample_block.h"
#include "models/data/table_schema.h"

namespace hotrow {

// Turns lines of one file into samples. The schema must outlive it.
//
// Threads: one at a time.
class RowParser {
 public:
  // `columns` are those of the file, in its order. InvalidArgument: the schema names a column that
  // is not there, or is there twice.
  static absl::StatusOr<RowParser> Create(const TableSchema& schema,
                                          std::span<const std::string> columns);

  // Parses a line without its end. *dropped says that its label means to pass it over; the fields
  // are checked all the same. InvalidArgument names the column, what was found and what is
  // expected; *sample is then unspecified.
  absl::Status Parse(std::string_view line, Sample* sample, bool* dropped);

 private:
  enum class Role : uint8_t { kLabel, kDense, kCategorical };
  // What is made of one column; a column may have none, one or several.
  struct Use {
    int32_t column;  // position in the file
    Role role;
    int32_t index;  // in TableSchema::dense or ::categorical
  };

  RowParser(const TableSchema& schema, std::span<const std::string> columns)
      : schema_(&schema), columns_(columns.begin(), columns.end()) {}

  absl::Status AddUse(const std::string& column, Role role, int32_t index);
  absl::Status WrongColumnCount(std::string_view line) const;
  absl::Status Bad(const Use& use, std::string_view found, std::string_view expected) const;
  absl::Status Apply(const Use& use, std::string_view field, Sample* sample, bool* dropped);
  absl::Status ApplyLabel(const Use& use, std::string_view field, Sample* sample, bool* dropped);
  absl::Status ApplyDense(const Use& use, std::string_view field, Sample* sample);
  absl::Status ApplyCategorical(const Use& use, std::string_view field, Sample* sample);
  absl::Status AddBag(const Use& use, std::string_view field, Sample* sample);
  absl::Status AddKey(const Use& use, std::string_view text, Sample* sample);
  void OrderBags(Sample* sample);

  const TableSchema* schema_;
  std::vector<std::string> columns_;
  std::vector<Use> uses_;      // by column
  bool bags_in_order_ = true;  // the file has the categorical columns in the order of the schema
  std::vector<float> log_of_;  // ln(i + 1): most counts are small
  // Scratch of OrderBags.
  std::vector<int64_t> bag_begin_;  // [F], in Sample::values as parsed
  std::vector<uint64_t> ordered_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_ROW_PARSER_H_
