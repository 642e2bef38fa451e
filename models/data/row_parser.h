#ifndef HOTROW_MODELS_DATA_ROW_PARSER_H_
#define HOTROW_MODELS_DATA_ROW_PARSER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/delimited_text.h"
#include "models/data/sample_block.h"
#include "models/data/table_schema.h"
#include "models/data/vocabulary.h"

namespace hotrow {

// Turns records of one file into samples. Schema and vocabulary must outlive it.
//
// Threads: Parse by one at a time; const methods may run concurrently.
class RowParser {
 public:
  // `columns` are those of the file, in its order. InvalidArgument: the schema names a column that
  // is not there, or is there twice. Keys of tables that `vocabulary` has are those that it keeps,
  // or unknown; null: all are kept.
  static absl::StatusOr<RowParser> Create(const TableSchema& schema,
                                          std::span<const std::string> columns,
                                          const Vocabulary* vocabulary = nullptr);

  // Parses a record without its end. *dropped says that a label means to pass it over; the fields
  // are checked all the same. InvalidArgument names the column, what was found and what is
  // expected; *sample is then unspecified.
  absl::Status Parse(std::string_view line, Sample* sample, bool* dropped);

  // Appends the keys of one sample in a categorical column, TableSchema::categorical[feature]: what
  // Parse makes of these fields, whose values are one bag. The fields are cut out and unquoted.
  // InvalidArgument as of Parse; *read is then the position of the field that is wrong.
  absl::Status ParseKeys(int32_t feature, std::span<const std::string> fields,
                         std::vector<uint64_t>* keys, size_t* read) const;

 private:
  enum class Role : uint8_t { kLabel, kDense, kCategorical, kTime };
  // What is made of one column; a column may have none, one or several.
  struct Use {
    int32_t column;  // position in the file
    Role role;
    int32_t index;                   // in TableSchema::labels, ::dense or ::categorical; 0: ::time
    const KeptKeys* kept = nullptr;  // of a categorical column; null: all keys are
  };

  RowParser(const TableSchema& schema, std::span<const std::string> columns);

  absl::Status AddUse(const std::string& column, Role role, int32_t index,
                      const KeptKeys* kept = nullptr);
  absl::Status WrongColumnCount(int64_t found, std::string_view line) const;
  absl::Status Bad(const Use& use, std::string_view found, std::string_view expected) const;
  bool IsMissing(std::string_view field) const {
    return field.empty() || (has_missing_values_ && IsMissingValue(field));
  }
  bool IsMissingValue(std::string_view field) const;
  absl::Status ParseSplit(std::string_view line, Sample* sample, bool* dropped);
  absl::Status Apply(const Use& use, std::string_view field, Sample* sample, bool* dropped);
  absl::Status ApplyLabel(const Use& use, std::string_view field, Sample* sample, bool* dropped);
  absl::Status ApplyTime(const Use& use, std::string_view field, Sample* sample);
  absl::Status ApplyDense(const Use& use, std::string_view field, Sample* sample);
  absl::Status ApplyCategorical(const Use& use, std::string_view field, Sample* sample);
  // Appends the keys of a field to a bag, which begins at values[begin].
  absl::Status AddKeys(const Use& use, std::string_view field, size_t begin,
                       std::vector<uint64_t>* values) const;
  absl::Status AddBag(const Use& use, std::string_view field, size_t begin,
                      std::vector<uint64_t>* values) const;
  absl::Status AddKey(const Use& use, std::string_view text, std::vector<uint64_t>* values) const;
  void OrderBags(Sample* sample);

  const TableSchema* schema_;
  std::vector<std::string> columns_;
  std::vector<Use> uses_;  // by column
  bool plain_;             // fields are cut at one character, and quotes mean nothing
  bool has_missing_values_;
  FieldSplitter splitter_;
  std::vector<std::string_view> fields_;  // of ParseSplit
  bool bags_in_order_ = true;  // the file has the categorical columns in the order of the schema
  std::vector<float> log_of_;  // ln(i + 1): most counts are small
  // Scratch of OrderBags.
  std::vector<int64_t> bag_begin_;  // [F], in Sample::values as parsed
  std::vector<uint64_t> ordered_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_ROW_PARSER_H_
