#include "models/data/row_parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

constexpr size_t kLogTableSize = 4096;

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

std::string_view Trim(std::string_view field) {
  while (!field.empty() && IsBlank(field.front())) field.remove_prefix(1);
  while (!field.empty() && IsBlank(field.back())) field.remove_suffix(1);
  return field;
}

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

// [-2^63, 2^64), as 64 bits.
bool ParseInteger(std::string_view text, uint64_t* value) {
  if (ParseDigits(text, value)) return true;
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

bool ParseHex(std::string_view text, uint64_t* value) {
  if (text.empty() || text.size() > 16) return false;
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

bool ParseFinite(std::string_view text, double* value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end && std::isfinite(*value);
}

// What a key may look like, for messages.
const char* ExpectedKey(KeyKind kind) {
  switch (kind) {
    case KeyKind::kInteger:
      return "a whole number of 64 bits";
    case KeyKind::kHex:
      return "1 to 16 hexadecimal digits";
    case KeyKind::kBucket:
      return "a number";
    case KeyKind::kHash:
      break;
  }
  return "text";
}

}  // namespace

absl::Status RowParser::AddUse(const std::string& column, Role role, int32_t index) {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no column ", QuoteForMessage(column),
        ", which the schema names; there are: ", absl::StrJoin(columns_, ", ").substr(0, 1000)));
  }
  if (std::find(found + 1, columns_.end(), column) != columns_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are two columns ", QuoteForMessage(column)));
  }
  uses_.push_back({static_cast<int32_t>(found - columns_.begin()), role, index});
  return absl::OkStatus();
}

absl::StatusOr<RowParser> RowParser::Create(const TableSchema& schema,
                                            std::span<const std::string> columns) {
  RowParser parser(schema, columns);
  HOTROW_RETURN_IF_ERROR(parser.AddUse(schema.label.column, Role::kLabel, 0));
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
    HOTROW_RETURN_IF_ERROR(
        parser.AddUse(schema.categorical[i].column, Role::kCategorical, static_cast<int32_t>(i)));
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

absl::Status RowParser::WrongColumnCount(std::string_view line) const {
  const auto found = 1 + std::count(line.begin(), line.end(), schema_->delimiter);
  const char delimiter[] = {schema_->delimiter, 0};
  return absl::InvalidArgumentError(absl::StrCat(
      found, found == 1 ? " column" : " columns", ", expected ", columns_.size(), " separated by ",
      schema_->delimiter == '\t' ? "TAB" : QuoteForMessage(delimiter)));
}

absl::Status RowParser::Bad(const Use& use, std::string_view found,
                            std::string_view expected) const {
  return absl::InvalidArgumentError(
      absl::StrCat("column ", use.column + 1, " (", columns_[static_cast<size_t>(use.column)],
                   "): found ", QuoteForMessage(found), ", expected ", std::string(expected)));
}

absl::Status RowParser::Parse(std::string_view line, Sample* sample, bool* dropped) {
  const size_t zero = line.find('\0');
  if (zero != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("a byte of value zero at position ", zero + 1, "; is this a text file?"));
  }
  sample->dense.resize(schema_->dense.size());
  sample->lengths.resize(schema_->categorical.size());
  sample->values.clear();
  *dropped = false;

  const char delimiter = schema_->delimiter;
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
        if (status.ok()) status = Apply(*use, schema_->trim ? Trim(text) : text, sample, dropped);
      }
    }
    if (field_end == end) break;
    field = field_end + 1;
  }
  if (column + 1 != num_columns) return WrongColumnCount(line);
  HOTROW_RETURN_IF_ERROR(status);
  if (!bags_in_order_) OrderBags(sample);
  return absl::OkStatus();
}

absl::Status RowParser::Apply(const Use& use, std::string_view field, Sample* sample,
                              bool* dropped) {
  switch (use.role) {
    case Role::kCategorical:
      return ApplyCategorical(use, field, sample);
    case Role::kDense:
      return ApplyDense(use, field, sample);
    case Role::kLabel:
      break;
  }
  return ApplyLabel(use, field, sample, dropped);
}

absl::Status RowParser::ApplyLabel(const Use& use, std::string_view field, Sample* sample,
                                   bool* dropped) {
  const auto& values = schema_->label.values;
  if (values.empty()) {
    if (field != "0" && field != "1") return Bad(use, field, "the label, 0 or 1");
    sample->label = field == "1" ? 1 : 0;
    return absl::OkStatus();
  }
  for (const auto& [text, value] : values) {
    if (field != text) continue;
    *dropped = value == LabelValue::kDrop;
    sample->label = value == LabelValue::kOne ? 1 : 0;
    return absl::OkStatus();
  }
  std::vector<std::string> known;
  for (const auto& value : values) known.push_back(QuoteForMessage(value.first));
  return Bad(use, field, absl::StrCat("a label: ", absl::StrJoin(known, " or ")));
}

absl::Status RowParser::ApplyDense(const Use& use, std::string_view field, Sample* sample) {
  const DenseTransform transform = schema_->dense[static_cast<size_t>(use.index)].transform;
  float* const out = &sample->dense[static_cast<size_t>(use.index)];
  if (field.empty()) {
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
    return Bad(use, field, "a number, or nothing where it is missing");
  }
  if (transform != DenseTransform::kNone) x = std::log(std::max(x, 1.0 - shift) + shift);
  *out = static_cast<float>(x);
  return absl::OkStatus();
}

absl::Status RowParser::ApplyCategorical(const Use& use, std::string_view field, Sample* sample) {
  const auto index = static_cast<size_t>(use.index);
  const CategoricalColumn& column = schema_->categorical[index];
  const size_t begin = sample->values.size();
  bag_begin_[index] = static_cast<int64_t>(begin);
  if (column.separator != 0) {
    HOTROW_RETURN_IF_ERROR(AddBag(use, field, sample));
  } else if (!field.empty()) {
    HOTROW_RETURN_IF_ERROR(AddKey(use, field, sample));
  }
  if (sample->values.size() == begin && column.missing_key.has_value()) {
    sample->values.push_back(*column.missing_key);
  }
  sample->lengths[index] = static_cast<uint16_t>(sample->values.size() - begin);
  return absl::OkStatus();
}

absl::Status RowParser::AddBag(const Use& use, std::string_view field, Sample* sample) {
  const CategoricalColumn& column = schema_->categorical[static_cast<size_t>(use.index)];
  const int64_t most = column.max_hotness > 0 ? column.max_hotness : Sample::kMaxHotness;
  const size_t begin = sample->values.size();
  std::string_view rest = field;
  while (!rest.empty()) {
    const size_t cut = std::min(rest.find(column.separator), rest.size());
    const std::string_view piece = rest.substr(0, cut);
    const std::string_view text = schema_->trim ? Trim(piece) : piece;
    rest.remove_prefix(std::min(cut + 1, rest.size()));
    if (text.empty()) continue;
    if (static_cast<int64_t>(sample->values.size() - begin) == most) {
      return Bad(use, field, absl::StrCat("at most ", most, " values"));
    }
    HOTROW_RETURN_IF_ERROR(AddKey(use, text, sample));
  }
  return absl::OkStatus();
}

absl::Status RowParser::AddKey(const Use& use, std::string_view text, Sample* sample) {
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
  }
  if (!good) return Bad(use, text, ExpectedKey(column.key));
  if (column.modulo > 0) key %= column.modulo;
  if (column.num_embeddings > 0 && key >= static_cast<uint64_t>(column.num_embeddings)) {
    return Bad(use, text, absl::StrCat("a key below ", column.num_embeddings));
  }
  sample->values.push_back(key);
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
