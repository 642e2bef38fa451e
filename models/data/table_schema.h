#ifndef HOTROW_MODELS_DATA_TABLE_SCHEMA_H_
#define HOTROW_MODELS_DATA_TABLE_SCHEMA_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/data_source.h"

namespace hotrow {

// What a delimited text file means. docs/formats/table_schema.md describes the JSON form and what
// each field does.

enum class LabelValue { kZero, kOne, kDrop };

struct LabelColumn {
  std::string column;
  // Texts and what they stand for; empty: "0" and "1".
  std::vector<std::pair<std::string, LabelValue>> values;
};

enum class DenseTransform {
  kNone,
  kLogPlus3,  // ln(x + 3), x below -2 counts as -2
  kLogPlus1,  // ln(x + 1), x below 0 counts as 0
};

struct DenseColumn {
  std::string name;
  std::string column;
  DenseTransform transform = DenseTransform::kNone;
};

enum class KeyKind {
  kInteger,  // decimal, 64 bits; a negative number is its two's complement
  kHex,      // 1 to 16 hexadecimal digits
  kHash,     // HashText of the text
  kBucket,   // the number of boundaries that are not above the number
};

struct CategoricalColumn {
  std::string name;
  std::string column;
  std::string table;  // features of one table share its rows
  KeyKind key = KeyKind::kHash;
  uint64_t modulo = 0;                  // 0: none; otherwise the key is taken modulo this
  std::vector<double> boundaries;       // of kBucket, ascending
  char separator = 0;                   // 0: one value; otherwise a bag of values
  std::optional<uint64_t> missing_key;  // of an empty field; none: an empty bag
  int64_t num_embeddings = 0;           // 0: any key
  int64_t max_hotness = 0;              // 0: not known; 1 without separator
};

struct TableSchema {
  std::string name;
  // Of the text that it was parsed from, which tells schemas of one name apart; 0: it was not.
  uint64_t text_hash = 0;
  char delimiter = ',';
  bool trim = false;  // blanks around fields do not count
  bool header = true;
  std::vector<std::string> column_names;  // of a file without header, in file order
  // The files of each split, by Split; or, where modulo > 0, files[0] holds all samples, and
  // split_of[i % modulo] is the split of the i-th of those that are not dropped.
  std::array<std::vector<std::string>, 3> files;
  int64_t modulo = 0;
  std::vector<Split> split_of;

  LabelColumn label;
  std::vector<DenseColumn> dense;
  std::vector<CategoricalColumn> categorical;

  // Names the field that is wrong.
  absl::Status Validate() const;
};

// Parses the JSON form; `where` names the file in errors, and its folder is what relative file
// names are relative to. Errors: InvalidArgument, with the line where the text is no JSON, or the
// field that is unknown, absent or wrong.
absl::StatusOr<TableSchema> ParseTableSchema(std::string_view json, const std::string& where);

// 8 parts of 10 to train, one to valid, one to test: by index modulo 10.
void SplitByTen(TableSchema* schema);

// The key of a text: the lower 64 bits of HashBytes(0, 0, text).
uint64_t HashText(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_SCHEMA_H_
