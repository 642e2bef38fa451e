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
#include "models/data/delimited_text.h"
#include "models/data/time_parts.h"

namespace hotrow {

// What a delimited text file means. docs/formats/table_schema.md describes the JSON form and what
// each field does.

enum class LabelValue { kZero, kOne, kDrop };

// "positive": ">= 4"
struct Threshold {
  enum class Op { kLess, kLessEqual, kGreater, kGreaterEqual, kEqual, kNotEqual };
  Op op = Op::kGreaterEqual;
  double bound = 0;

  bool Holds(double x) const;
};

struct LabelColumn {
  std::string name;
  std::string column;
  // Texts and what they stand for; empty: "0" and "1", or what follows.
  std::vector<std::pair<std::string, LabelValue>> values;
  std::optional<LabelValue> otherwise;  // of texts that are not in values, but for the empty one
  // Numbers: 1 where `positive` holds; otherwise 0, or, with `negative`, 0 where that holds, and
  // the sample is dropped where neither does.
  std::optional<Threshold> positive;
  std::optional<Threshold> negative;
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
  kTime,     // a part of a point in time
};

struct CategoricalColumn {
  std::string name;
  std::string column;
  std::string table;  // features of one table share its rows
  KeyKind key = KeyKind::kHash;
  uint64_t modulo = 0;              // 0: none; otherwise the key is taken modulo this
  std::vector<double> boundaries;   // of kBucket, ascending
  TimePart part = TimePart::kHour;  // of kTime, as is time_format
  TimeFormat time_format;
  char separator = 0;                   // 0: one value; otherwise a bag of values
  std::optional<uint64_t> missing_key;  // of an empty field; none: an empty bag
  // Above 0: keys that the training samples have in fewer lookups of the table count as one key,
  // UnknownKey.
  uint64_t min_count = 0;
  std::optional<uint64_t> unknown;  // none: UnknownKey chooses
  int64_t num_embeddings = 0;       // 0: any key
  int64_t max_hotness = 0;          // 0: not known; 1 without separator
};

// When a sample happened, which puts samples in order. Lines to score need none.
struct TimeColumn {
  std::string name;
  std::string column;
  TimeFormat format;
};

struct TableSchema {
  std::string name;
  // The hash of the text that it was parsed from, which tells schemas of one name apart; 0: it was
  // not.
  uint64_t text_hash = 0;
  std::string delimiter = ",";
  Quotes quotes = Quotes::kOff;
  bool trim = false;  // blanks around fields do not count
  bool header = true;
  std::vector<std::string> column_names;    // of a file without header, in file order
  std::vector<std::string> missing_values;  // texts that count as an empty field, but for labels
  // The files of each split, by Split; a name may be a pattern (models/data/file_pattern.h); or,
  // where modulo > 0, files[0] holds all samples, and split_of[i % modulo] is the split of the i-th
  // of those that are not dropped.
  std::array<std::vector<std::string>, 3> files;
  int64_t modulo = 0;
  std::vector<Split> split_of;

  std::vector<LabelColumn> labels;  // one for each task
  // False: lines are to be scored. Labels are not read, and files need not have the columns that
  // only they use.
  bool reads_labels = true;
  std::vector<DenseColumn> dense;
  std::vector<CategoricalColumn> categorical;
  std::optional<TimeColumn> time;  // read beside labels

  // Names the field that is wrong.
  absl::Status Validate() const;
};

// Parses the JSON form; `where` names the file in errors, and its folder is what relative file
// names are relative to. Errors: InvalidArgument, with the line where the text is no JSON, or the
// field that is unknown, absent or wrong.
absl::StatusOr<TableSchema> ParseTableSchema(std::string_view json, const std::string& where);
// The same of what TableSchemaText (models/data/table_schema_text.h) writes, which names no files.
absl::StatusOr<TableSchema> ParseTableSchemaText(std::string_view json, const std::string& where);

// Keys lie in [0, NumEmbeddings), that of missing values included, or 0: any key.
int64_t NumEmbeddings(const CategoricalColumn& column);

// The key of rare values, with a min_count: `unknown`, or NumEmbeddings, or else 2^63.
uint64_t UnknownKey(const CategoricalColumn& column);

// How records of the files are written.
FieldSyntax SyntaxOf(const TableSchema& schema);

// 8 parts of 10 to train, one to valid, one to test: by index modulo 10.
void SplitByTen(TableSchema* schema);

// The key of a text: the lower 64 bits of HashBytes(0, 0, text).
uint64_t HashText(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_SCHEMA_H_
