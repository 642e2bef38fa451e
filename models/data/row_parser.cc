#include "models/data/row_parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

constexpr size_t kLogTableSize = 4096;
constexpr size_t kColumnsShown = 300;  // characters of their names in an error

// Decimal digits, at most 19 of them so that they fit; false otherwise.
bool ParseDigits(std::string_view text, uint64_t* value) {
  if (text.empty() || text.size() > 19) return false;
  uint64_t sum = 0;
  for (const char c : text) {
    const auto digit = static_cast<unsigned>(c) - '0';
    if (digit > 9) return false;
    sum = 10 * sum + digit;
  }
  *value = sum;
  return true;
}

// pandas writes whole numbers of a column with gaps as 3.0.
std::string_view WithoutZeroFraction(std::string_view text) {
  const size_t point = text.find('.');
  if (point == std::string_view::npos || point == 0 || point + 1 == text.size()) return text;
  if (text.find_first_not_of('0', point + 1) != std::string_view::npos) return text;
  return text.substr(0, point);
}

// [-2^63, 2^64), as 64 bits.
bool ParseInteger(std::string_view text, uint64_t* value) {
  if (ParseDigits(text, value)) return true;
  text = WithoutZeroFraction(text);
  const char* const end = text.data() + text.size();
  if (!text.empty() && text.front() == '-') {
    int64_t negative = 0;
    const auto result = std::from_chars(text.data(), end, negative);
    *value = static_cast<uint64_t>(negative);
    return result.ec == std::errc() && result.ptr == end;
  }
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

struct HexDigits {
  int8_t value[256];
};
constexpr HexDigits MakeHexDigits() {
  HexDigits table = {};
  for (int c = 0; c < 256; ++c) {
    table.value[c] = static_cast<int8_t>(c >= '0' && c <= '9'   ? c - '0'
                                         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                                : -1);
  }
  return table;
}
constexpr HexDigits kHexDigits = MakeHexDigits();

// The lower 64 bits of a number of hexadecimal digits; false where one is none.
bool ParseHexDigits(std::string_view text, uint64_t* value) {
  uint64_t sum = 0;
  int32_t bad = 0;  // negative once a digit was
  for (const char c : text) {
    const int32_t digit = kHexDigits.value[static_cast<unsigned char>(c)];
    bad |= digit;
    sum = sum << 4 | static_cast<uint64_t>(digit & 15);
  }
  *value = sum;
  return bad >= 0;
}

bool ParseHex(std::string_view text, uint64_t* value) {
  if (text.empty() || text.size() > 18) return false;
  if (ParseHexDigits(text, value)) return text.size() <= 16;
  const bool prefixed = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  return prefixed && ParseHexDigits(text.substr(2), value);
}

bool ParseFinite(std::string_view text, double* value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end && std::isfinite(*value);
}

// A number that no float of 32 bits holds.
bool IsTooLarge(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return false;
  return result.ec == std::errc::result_out_of_range ||
         std::abs(value) > static_cast<double>(std::numeric_limits<float>::max());
}

// What a key may look like, for messages.
std::string ExpectedKey(const CategoricalColumn& column, std::string_view text) {
  switch (column.key) {
    case KeyKind::kInteger:
      if (double value = 0;
          text.find_first_of(".eE") != std::string_view::npos && ParseFinite(text, &value)) {
        return "a whole number of 64 bits; it was written as a float, which may have lost digits: "
               "write the column as whole numbers";
      }
      return "a whole number of 64 bits; \"key\": \"hex\" in the schema reads hexadecimal digits, "
             "\"hash\" any text";
    case KeyKind::kHex:
      return "1 to 16 hexadecimal digits; \"key\": \"hash\" in the schema reads any text";
    case KeyKind::kBucket:
      return "a number";
    case KeyKind::kTime:
      return absl::StrCat(column.time_format.Expected(),
                          "; \"time_format\" in the schema says how");
    case KeyKind::kHash:
      break;
  }
  return "text";
}

// What programs write where there is no value.
bool LooksMissing(std::string_view text) {
  constexpr std::string_view kTexts[] = {"nan",  "NaN",  "NAN", "-nan", "null", "NULL",
                                         "None", "none", "NA",  "N/A",  "\\N",  "<NA>"};
  return std::find(std::begin(kTexts), std::end(kTexts), text) != std::end(kTexts);
}

absl::Status CheckIsText(std::string_view text) {
  const size_t zero = text.find('\0');
  if (zero == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a byte of value zero at position ", zero + 1, "; is this a text file?"));
}

}  // namespace

absl::Status RowParser::AddUse(const std::string& column, Role role, int32_t index,
                               const KeptKeys* kept) {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) {
    const bool has_blanks = std::any_of(columns_.begin(), columns_.end(), [&](const auto& name) {
      return TrimBlanks(name) == column;
    });
    // Where it has no name of the schema at all, the first line is a sample.
    const auto is_there = [&](const auto& used) {
      return std::find(columns_.begin(), columns_.end(), used.column) != columns_.end();
    };
    const bool no_header = schema_->header && std::ranges::none_of(schema_->labels, is_there) &&
                           std::ranges::none_of(schema_->dense, is_there) &&
                           std::ranges::none_of(schema_->categorical, is_there);
    const std::string hint =
        has_blanks ? "; \"trim\": true in the schema leaves out the blanks around names and fields"
        : columns_.size() > 1
            ? (no_header
                   ? "; the first line must name the columns, unless \"header\" in the schema "
                     "does"
                   : "")
            : absl::StrCat("; is ", QuoteForMessage(schema_->delimiter), " the delimiter?");
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no column ", QuoteForMessage(column), ", which the schema names; there are: ",
        absl::StrJoin(columns_, ", ").substr(0, 1000), hint));
  }
  if (std::find(found + 1, columns_.end(), column) != columns_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are two columns ", QuoteForMessage(column)));
  }
  uses_.push_back({static_cast<int32_t>(found - columns_.begin()), role, index, kept});
  return absl::OkStatus();
}

RowParser::RowParser(const TableSchema& schema, std::span<const std::string> columns)
    : schema_(&schema),
      columns_(columns.begin(), columns.end()),
      plain_(schema.delimiter.size() == 1 && schema.quotes == Quotes::kOff),
      has_missing_values_(!schema.missing_values.empty()),
      splitter_(SyntaxOf(schema)) {}

absl::StatusOr<RowParser> RowParser::Create(const TableSchema& schema,
                                            std::span<const std::string> columns,
                                            const Vocabulary* vocabulary) {
  RowParser parser(schema, columns);
  for (size_t i = 0; schema.reads_labels && i < schema.labels.size(); ++i) {
    HOTROW_RETURN_IF_ERROR(
        parser.AddUse(schema.labels[i].column, Role::kLabel, static_cast<int32_t>(i)));
  }
  if (schema.reads_labels && schema.time.has_value()) {
    HOTROW_RETURN_IF_ERROR(parser.AddUse(schema.time->column, Role::kTime, 0));
  }
  for (size_t i = 0; i < schema.dense.size(); ++i) {
    HOTROW_RETURN_IF_ERROR(
        parser.AddUse(schema.dense[i].column, Role::kDense, static_cast<int32_t>(i)));
    if (schema.dense[i].transform != DenseTransform::kNone && parser.log_of_.empty()) {
      for (size_t j = 1; j <= kLogTableSize; ++j) {
        parser.log_of_.push_back(static_cast<float>(std::log(static_cast<double>(j))));
      }
    }
  }
  for (size_t i = 0; i < schema.categorical.size(); ++i) {
    const CategoricalColumn& column = schema.categorical[i];
    const KeptKeys* const kept = vocabulary != nullptr ? vocabulary->Find(column.table) : nullptr;
    HOTROW_RETURN_IF_ERROR(
        parser.AddUse(column.column, Role::kCategorical, static_cast<int32_t>(i), kept));
  }
  std::stable_sort(parser.uses_.begin(), parser.uses_.end(),
                   [](const Use& a, const Use& b) { return a.column < b.column; });
  int32_t last = -1;
  for (const Use& use : parser.uses_) {
    if (use.role != Role::kCategorical) continue;
    parser.bags_in_order_ = parser.bags_in_order_ && use.index > last;
    last = use.index;
  }
  parser.bag_begin_.resize(schema.categorical.size());
  return parser;
}

absl::Status RowParser::WrongColumnCount(int64_t found, std::string_view line) const {
  const std::string& delimiter = schema_->delimiter;
  const bool quoted = schema_->quotes == Quotes::kOff && line.find('"') != std::string_view::npos;
  return absl::InvalidArgumentError(
      absl::StrCat(found, found == 1 ? " column" : " columns", ", expected ", columns_.size(),
                   " separated by ", delimiter == "\t" ? "TAB" : QuoteForMessage(delimiter),
                   quoted ? "; fields in quotes need \"quotes\": true in the schema" : ": ",
                   quoted ? "" : absl::StrJoin(columns_, ", ").substr(0, kColumnsShown)));
}

absl::Status RowParser::Bad(const Use& use, std::string_view found,
                            std::string_view expected) const {
  const std::string& name = columns_[static_cast<size_t>(use.column)];
  std::string text = absl::StrCat("column ", use.column + 1, " (", name, "): found ",
                                  QuoteForMessage(found), ", expected ");
  // What explains the field better than what its column takes.
  const std::string_view what = expected.substr(0, expected.find(';'));
  const auto because = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, std::string(what), "; ", std::string(why)));
  };
  const bool may_miss = use.role == Role::kDense || use.role == Role::kCategorical;
  if (may_miss && LooksMissing(found)) {
    return because("\"missing_values\" in the schema lists what counts as nothing");
  }
  if (!schema_->trim && TrimBlanks(found) != found) {
    return because("\"trim\": true in the schema leaves out the blanks around fields");
  }
  if (found == name) return because("it is the name of the column: is this line a second header?");
  return absl::InvalidArgumentError(absl::StrCat(text, std::string(expected)));
}

absl::Status RowParser::Parse(std::string_view line, Sample* sample, bool* dropped) {
  HOTROW_RETURN_IF_ERROR(CheckIsText(line));
  sample->dense.resize(schema_->dense.size());
  sample->more_labels.resize(schema_->labels.size() - 1);
  sample->lengths.resize(schema_->categorical.size());
  sample->values.clear();
  sample->time.reset();
  *dropped = false;
  if (!plain_ && (schema_->delimiter.size() > 1 || line.find('"') != std::string_view::npos)) {
    return ParseSplit(line, sample, dropped);
  }

  const char delimiter = schema_->delimiter.front();
  const char* field = line.data();
  const char* const end = field + line.size();
  const auto num_columns = static_cast<int32_t>(columns_.size());
  const Use* use = uses_.data();
  const Use* const uses_end = use + uses_.size();
  int32_t column = 0;
  absl::Status status;
  for (;; ++column) {
    const char* field_end = field;
    while (field_end != end && *field_end != delimiter) ++field_end;
    if (column < num_columns) {
      for (; use != uses_end && use->column == column; ++use) {
        const std::string_view text(field, static_cast<size_t>(field_end - field));
        // A wrong number of columns explains a wrong field better than the other way round.
        if (!status.ok()) continue;
        status = Apply(*use, schema_->trim ? TrimBlanks(text) : text, sample, dropped);
      }
    }
    if (field_end == end) break;
    field = field_end + 1;
  }
  if (column + 1 != num_columns) return WrongColumnCount(column + 1, line);
  HOTROW_RETURN_IF_ERROR(status);
  if (!bags_in_order_) OrderBags(sample);
  return absl::OkStatus();
}

// Records with quotes or a longer delimiter.
absl::Status RowParser::ParseSplit(std::string_view line, Sample* sample, bool* dropped) {
  HOTROW_RETURN_IF_ERROR(splitter_.Split(line, &fields_));
  if (fields_.size() != columns_.size()) return WrongColumnCount(std::ssize(fields_), line);
  for (const Use& use : uses_) {
    HOTROW_RETURN_IF_ERROR(Apply(use, fields_[static_cast<size_t>(use.column)], sample, dropped));
  }
  if (!bags_in_order_) OrderBags(sample);
  return absl::OkStatus();
}

bool RowParser::IsMissingValue(std::string_view field) const {
  const auto& texts = schema_->missing_values;
  return std::find(texts.begin(), texts.end(), field) != texts.end();
}

absl::Status RowParser::Apply(const Use& use, std::string_view field, Sample* sample,
                              bool* dropped) {
  switch (use.role) {
    case Role::kCategorical:
      return ApplyCategorical(use, field, sample);
    case Role::kDense:
      return ApplyDense(use, field, sample);
    case Role::kTime:
      return ApplyTime(use, field, sample);
    case Role::kLabel:
      break;
  }
  return ApplyLabel(use, field, sample, dropped);
}

absl::Status RowParser::ApplyLabel(const Use& use, std::string_view field, Sample* sample,
                                   bool* dropped) {
  const LabelColumn& label = schema_->labels[static_cast<size_t>(use.index)];
  const auto is = [&](LabelValue value) {
    *dropped = *dropped || value == LabelValue::kDrop;
    const float number = value == LabelValue::kOne ? 1 : 0;
    if (use.index == 0) {
      sample->label = number;
    } else {
      sample->more_labels[static_cast<size_t>(use.index) - 1] = number;
    }
    return absl::OkStatus();
  };
  if (label.values.empty() && !label.positive.has_value() && (field == "0" || field == "1")) {
    return is(field == "1" ? LabelValue::kOne : LabelValue::kZero);
  }
  for (const auto& [text, value] : label.values) {
    if (field == text) return is(value);
  }
  const std::string_view whole = WithoutZeroFraction(field);
  if (label.positive.has_value()) {
    double x = 0;
    if (!ParseFinite(field, &x)) return Bad(use, field, "a number, which decides the label");
    if (label.positive->Holds(x)) return is(LabelValue::kOne);
    const bool negative = !label.negative.has_value() || label.negative->Holds(x);
    return is(negative ? LabelValue::kZero : LabelValue::kDrop);
  }
  if (label.values.empty()) {
    if (whole == "0") return is(LabelValue::kZero);
    if (whole == "1") return is(LabelValue::kOne);
    return Bad(use, field,
               "the label, 0 or 1; \"values\" or \"positive\" in the schema say what else means "
               "which of them");
  }
  for (const auto& [text, value] : label.values) {
    if (whole == text) return is(value);
  }
  if (label.otherwise.has_value() && !field.empty()) return is(*label.otherwise);
  std::vector<std::string> known;
  for (const auto& value : label.values) known.push_back(QuoteForMessage(value.first));
  return Bad(use, field, absl::StrCat("a label: ", absl::StrJoin(known, " or ")));
}

absl::Status RowParser::ApplyTime(const Use& use, std::string_view field, Sample* sample) {
  const TimeFormat& format = schema_->time->format;
  if (format.Seconds(field, &sample->time.emplace())) return absl::OkStatus();
  return Bad(use, field,
             absl::StrCat(format.Expected(), "; \"time_format\" in the schema says how"));
}

absl::Status RowParser::ApplyDense(const Use& use, std::string_view field, Sample* sample) {
  const DenseTransform transform = schema_->dense[static_cast<size_t>(use.index)].transform;
  float* const out = &sample->dense[static_cast<size_t>(use.index)];
  if (IsMissing(field)) {
    *out = 0;
    return absl::OkStatus();
  }
  const int shift = transform == DenseTransform::kLogPlus3 ? 3 : 1;
  uint64_t digits = 0;
  double x = 0;
  if (ParseDigits(field, &digits)) {
    const uint64_t place = digits + static_cast<uint64_t>(shift) - 1;
    if (transform != DenseTransform::kNone && place < kLogTableSize) {
      *out = log_of_[place];
      return absl::OkStatus();
    }
    x = static_cast<double>(digits);
  } else if (!ParseFinite(field, &x) || std::abs(x) > std::numeric_limits<float>::max()) {
    return Bad(use, field,
               IsTooLarge(field) ? "a number that 32 bits hold, up to 3.4e38"
                                 : "a number, or nothing where it is missing");
  }
  if (transform != DenseTransform::kNone) x = std::log(std::max(x, 1.0 - shift) + shift);
  *out = static_cast<float>(x);
  return absl::OkStatus();
}

// Small, to become a part of what calls it.
absl::Status RowParser::AddKeys(const Use& use, std::string_view field, size_t begin,
                                std::vector<uint64_t>* values) const {
  if (schema_->categorical[static_cast<size_t>(use.index)].separator != 0) {
    return AddBag(use, field, begin, values);
  }
  return IsMissing(field) ? absl::OkStatus() : AddKey(use, field, values);
}

absl::Status RowParser::ApplyCategorical(const Use& use, std::string_view field, Sample* sample) {
  const auto index = static_cast<size_t>(use.index);
  const CategoricalColumn& column = schema_->categorical[index];
  const size_t begin = sample->values.size();
  bag_begin_[index] = static_cast<int64_t>(begin);
  HOTROW_RETURN_IF_ERROR(AddKeys(use, field, begin, &sample->values));
  if (sample->values.size() == begin && column.missing_key.has_value()) {
    sample->values.push_back(*column.missing_key);
  }
  sample->lengths[index] = static_cast<uint16_t>(sample->values.size() - begin);
  return absl::OkStatus();
}

absl::Status RowParser::ParseKeys(int32_t feature, std::span<const std::string> fields,
                                  std::vector<uint64_t>* keys, size_t* read) const {
  const auto use = std::find_if(uses_.begin(), uses_.end(), [&](const Use& u) {
    return u.role == Role::kCategorical && u.index == feature;
  });
  HOTROW_CHECK(use != uses_.end());
  const size_t begin = keys->size();
  for (*read = 0; *read < fields.size(); ++*read) {
    const std::string_view field = fields[*read];
    HOTROW_RETURN_IF_ERROR(CheckIsText(field));
    HOTROW_RETURN_IF_ERROR(AddKeys(*use, schema_->trim ? TrimBlanks(field) : field, begin, keys));
  }
  const CategoricalColumn& column = schema_->categorical[static_cast<size_t>(feature)];
  if (keys->size() == begin && column.missing_key.has_value()) {
    keys->push_back(*column.missing_key);
  }
  return absl::OkStatus();
}

absl::Status RowParser::AddBag(const Use& use, std::string_view field, size_t begin,
                               std::vector<uint64_t>* values) const {
  const CategoricalColumn& column = schema_->categorical[static_cast<size_t>(use.index)];
  const int64_t most = column.max_hotness > 0 ? column.max_hotness : Sample::kMaxHotness;
  std::string_view rest = field;
  while (!rest.empty()) {
    const size_t cut = std::min(rest.find(column.separator), rest.size());
    const std::string_view piece = rest.substr(0, cut);
    const std::string_view text = schema_->trim ? TrimBlanks(piece) : piece;
    rest.remove_prefix(std::min(cut + 1, rest.size()));
    if (IsMissing(text)) continue;
    if (static_cast<int64_t>(values->size() - begin) == most) {
      return Bad(use, field, absl::StrCat("at most ", most, " values"));
    }
    HOTROW_RETURN_IF_ERROR(AddKey(use, text, values));
  }
  return absl::OkStatus();
}

absl::Status RowParser::AddKey(const Use& use, std::string_view text,
                               std::vector<uint64_t>* values) const {
  const CategoricalColumn& column = schema_->categorical[static_cast<size_t>(use.index)];
  uint64_t key = 0;
  bool good = true;
  switch (column.key) {
    case KeyKind::kInteger:
      good = ParseInteger(text, &key);
      break;
    case KeyKind::kHex:
      good = ParseHex(text, &key);
      break;
    case KeyKind::kHash:
      key = HashText(text);
      break;
    case KeyKind::kBucket: {
      double x = 0;
      good = ParseFinite(text, &x);
      key = static_cast<uint64_t>(
          std::upper_bound(column.boundaries.begin(), column.boundaries.end(), x) -
          column.boundaries.begin());
      break;
    }
    case KeyKind::kTime:
      good = column.time_format.Key(text, column.part, &key);
      break;
  }
  if (!good) return Bad(use, text, ExpectedKey(column, text));
  if (column.modulo > 0) key %= column.modulo;
  if (column.num_embeddings > 0 && key >= static_cast<uint64_t>(column.num_embeddings)) {
    return Bad(use, text, absl::StrCat("a key below ", column.num_embeddings));
  }
  if (use.kept != nullptr && !use.kept->Contains(key)) key = use.kept->unknown_key();
  values->push_back(key);
  return absl::OkStatus();
}

void RowParser::OrderBags(Sample* sample) {
  ordered_.clear();
  for (size_t f = 0; f < bag_begin_.size(); ++f) {
    const auto begin = sample->values.begin() + bag_begin_[f];
    ordered_.insert(ordered_.end(), begin, begin + sample->lengths[f]);
  }
  sample->values.swap(ordered_);
}

}  // namespace hotrow
