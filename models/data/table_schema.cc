#include "models/data/table_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "models/data/sample_block.h"
#include "models/json/json_text.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

using nlohmann::json;

constexpr int64_t kMaxModulo = 1'000'000;
constexpr size_t kMaxLabels = 64;
constexpr const char* kSplitNames[] = {"train", "valid", "test"};

absl::Status Invalid(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(where), ": ", std::string(what)));
}

std::string Describe(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 40 ? text : absl::StrCat(text.substr(0, 40), "...");
}

// The fields of one JSON object. Each is asked for by name; Finish tells of those nobody asked for.
// The first error stays, and what is asked for after it is a default.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail(absl::StrCat("found ", Describe(object), ", expected an object"));
  }

  const json* Find(const char* key) {
    known_.push_back(key);
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  const json* Require(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) Fail(absl::StrCat("\"", key, "\" is missing"));
    return value;
  }

  std::string String(const char* key, std::string_view fallback) {
    const json* value = Find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) Wrong(key, *value, "a string");
    return value->is_string() ? value->get<std::string>() : std::string(fallback);
  }
  bool Bool(const char* key, bool fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Wrong(key, *value, "true or false");
    return value->is_boolean() ? value->get<bool>() : fallback;
  }
  // A whole number of at least min.
  std::optional<uint64_t> Number(const char* key, uint64_t min) {
    const json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned() || value->get<uint64_t>() < min) {
      Wrong(key, *value, absl::StrCat("a whole number of at least ", min));
      return std::nullopt;
    }
    return value->get<uint64_t>();
  }
  int64_t Count(const char* key, uint64_t min) {
    const uint64_t value = Number(key, min).value_or(0);
    if (value > INT64_MAX) Fail(absl::StrCat("\"", key, "\" is too large: ", value));
    return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
  }
  // A string of one byte; 0 where the field is absent.
  char Character(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) return 0;
    const std::string text = value->is_string() ? value->get<std::string>() : "";
    if (text.size() != 1 || text[0] == '\n' || text[0] == '\r' || text[0] == 0) {
      Wrong(key, *value, "one character that ends no line");
      return 0;
    }
    return text[0];
  }
  // A string of 1 to 8 bytes.
  std::string Delimiter(const char* key, std::string_view fallback) {
    const json* value = Find(key);
    if (value == nullptr) return std::string(fallback);
    const std::string text = value->is_string() ? value->get<std::string>() : "";
    const bool ends_line = text.find_first_of(std::string_view("\n\r\0", 3)) != std::string::npos;
    if (text.empty() || text.size() > 8 || ends_line) {
      Wrong(key, *value, "1 to 8 characters that end no line");
      return std::string(fallback);
    }
    return text;
  }
  // The value that the string stands for.
  template <typename T>
  T Choice(const char* key, const std::map<std::string, T>& choices, T fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    const auto found = value->is_string() ? choices.find(value->get<std::string>()) : choices.end();
    if (found != choices.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& choice : choices) names.push_back(absl::StrCat("\"", choice.first, "\""));
    Wrong(key, *value, absl::StrJoin(names, " or "));
    return fallback;
  }
  std::vector<std::string> Strings(const char* key, const json& value) {
    std::vector<std::string> out;
    bool good = value.is_array() && !value.empty();
    for (const json& item : value) {
      good = good && item.is_string() && !item.get_ref<const std::string&>().empty();
      if (good) out.push_back(item.get<std::string>());
    }
    if (!good) Wrong(key, value, "a list of strings, none empty");
    return out;
  }

  void Wrong(const char* key, const json& found, std::string_view expected) {
    Fail(absl::StrCat("\"", key, "\": found ", Describe(found), ", expected ",
                      std::string(expected)));
  }
  void Fail(std::string_view what) {
    if (status_.ok()) status_ = Invalid(where_, what);
  }
  void Fail(absl::Status status) { status_.Update(status); }

  // Unknown fields come first: what is missing may be there under a wrong name.
  absl::Status Finish() {
    if (object_.is_object()) {
      for (const auto& item : object_.items()) {
        if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
          return Invalid(where_, absl::StrCat("unknown key ", QuoteForMessage(item.key()),
                                              "; known: ", absl::StrJoin(known_, ", ")));
        }
      }
    }
    return status_;
  }
  const absl::Status& status() const { return status_; }
  const std::string& where() const { return where_; }

 private:
  const json& object_;
  const std::string where_;
  std::vector<std::string> known_;
  absl::Status status_;
};

std::string Resolve(const std::string& folder, const std::string& path) {
  return folder.empty() || path.front() == '/' ? path : absl::StrCat(folder, "/", path);
}

absl::Status ParseFiles(Fields& root, const std::string& folder, TableSchema* schema) {
  const json* files = root.Require("files");
  const json* split = root.Find("split");
  if (files == nullptr) return absl::OkStatus();
  if (files->is_array() != (split != nullptr)) {
    root.Fail(
        "\"files\" is a list and \"split\" says which samples go where, or \"files\" names the "
        "files of \"train\", \"valid\" and \"test\" and there is no \"split\"");
    return absl::OkStatus();
  }
  if (split != nullptr) {
    schema->files[0] = root.Strings("files", *files);
    Fields fields(*split, root.where() + ": split");
    schema->modulo = fields.Count("modulo", 1);
    if (schema->modulo == 0) fields.Fail("\"modulo\" is missing");
    if (schema->modulo > kMaxModulo) fields.Fail(absl::StrCat("\"modulo\" is above ", kMaxModulo));
    const int64_t modulo = std::clamp<int64_t>(schema->modulo, 1, kMaxModulo);
    schema->split_of.assign(static_cast<size_t>(modulo), Split::kTrain);
    std::set<uint64_t> seen;
    for (const Split part : {Split::kValid, Split::kTest}) {
      const char* key = kSplitNames[static_cast<int>(part)];
      const json* list = fields.Find(key);
      if (list == nullptr) continue;
      bool good = list->is_array();
      for (const json& item : *list) {
        good = good && item.is_number_unsigned() &&
               item.get<uint64_t>() < static_cast<uint64_t>(modulo) &&
               seen.insert(item.get<uint64_t>()).second;
        if (good) schema->split_of[item.get<size_t>()] = part;
      }
      if (!good) fields.Wrong(key, *list, "a list of remainders below modulo, each once");
    }
    HOTROW_RETURN_IF_ERROR(fields.Finish());
  } else {
    Fields fields(*files, root.where() + ": files");
    for (int i = 0; i < 3; ++i) {
      const json* list = i == 0 ? fields.Require("train") : fields.Find(kSplitNames[i]);
      if (list != nullptr) schema->files[i] = fields.Strings(kSplitNames[i], *list);
    }
    HOTROW_RETURN_IF_ERROR(fields.Finish());
  }
  for (auto& paths : schema->files) {
    for (std::string& path : paths) path = Resolve(folder, path);
  }
  return absl::OkStatus();
}

// "<= 2"
std::optional<Threshold> ParseThreshold(Fields& fields, const char* key) {
  const json* value = fields.Find(key);
  if (value == nullptr) return std::nullopt;
  using Op = Threshold::Op;
  constexpr std::pair<std::string_view, Op> kOps[] = {
      {"<=", Op::kLessEqual}, {">=", Op::kGreaterEqual}, {"==", Op::kEqual},
      {"!=", Op::kNotEqual},  {"<", Op::kLess},          {">", Op::kGreater}};
  const std::string given = value->is_string() ? value->get<std::string>() : "";
  std::string_view text = given;
  for (const auto& [name, op] : kOps) {
    if (text.substr(0, name.size()) != name) continue;
    text = TrimBlanks(text.substr(name.size()));
    Threshold out = {.op = op};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), out.bound);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) break;
    if (std::isfinite(out.bound)) return out;
    break;
  }
  fields.Wrong(key, *value, "a comparison such as \">= 4\", with one of < <= > >= == !=");
  return std::nullopt;
}

std::optional<LabelValue> LabelValueOf(const json& value) {
  if (value == 0) return LabelValue::kZero;
  if (value == 1) return LabelValue::kOne;
  if (value == "drop") return LabelValue::kDrop;
  return std::nullopt;
}

void ParseLabel(Fields& fields, const std::string& name, const std::string& column,
                TableSchema* schema) {
  LabelColumn label = {.name = name, .column = column};
  label.positive = ParseThreshold(fields, "positive");
  label.negative = ParseThreshold(fields, "negative");
  if (const json* values = fields.Find("values")) {
    bool good = values->is_object() && !values->empty();
    for (const auto& item : values->items()) {
      const std::optional<LabelValue> value = LabelValueOf(item.value());
      good = good && value.has_value();
      if (good) label.values.emplace_back(item.key(), *value);
    }
    if (!good) fields.Wrong("values", *values, "texts, each with 0, 1 or \"drop\"");
  }
  if (const json* otherwise = fields.Find("otherwise")) {
    label.otherwise = LabelValueOf(*otherwise);
    if (!label.otherwise.has_value()) fields.Wrong("otherwise", *otherwise, "0, 1 or \"drop\"");
    if (label.values.empty()) fields.Fail("\"otherwise\" needs \"values\" beside it");
    if (label.positive.has_value()) fields.Fail("\"otherwise\" does not go with \"positive\"");
  }
  if (label.negative.has_value() && !label.positive.has_value()) {
    fields.Fail("\"negative\" needs \"positive\" beside it");
  }
  schema->labels.push_back(std::move(label));
}

// The member that a column of times has, and no other.
TimeFormat ParseTimeFormat(Fields& fields, bool of_time) {
  TimeFormat out;
  const json* const format = fields.Find("time_format");
  if (format == nullptr) {
    if (of_time) {
      fields.Fail("\"time_format\" is missing, such as \"iso8601\", \"unix\" or \"%y%m%d%H\"");
    }
    return out;
  }
  if (!format->is_string()) fields.Wrong("time_format", *format, "a string");
  auto parsed = TimeFormat::Parse(format->is_string() ? format->get<std::string>() : "iso8601");
  if (parsed.ok()) {
    out = *std::move(parsed);
  } else {
    fields.Fail(absl::StrCat("\"time_format\": found ", Describe(*format), ": ",
                             std::string(parsed.status().message())));
  }
  if (!of_time) fields.Fail("\"time_format\" needs \"part\" beside it");
  return out;
}

void ParseCategorical(Fields& fields, const std::string& name, const std::string& column,
                      TableSchema* schema) {
  CategoricalColumn out;
  out.name = name;
  out.column = column;
  out.table = fields.String("table", name);
  const bool has_key = fields.Find("key") != nullptr;
  out.key = fields.Choice<KeyKind>("key",
                                   {{"integer", KeyKind::kInteger},
                                    {"hex", KeyKind::kHex},
                                    {"hash", KeyKind::kHash},
                                    {"bucket", KeyKind::kBucket}},
                                   KeyKind::kHash);
  if (fields.Find("part") != nullptr) {
    out.key = KeyKind::kTime;
    if (has_key) fields.Fail("\"part\" of a time is the key, and no \"key\" is given beside it");
  }
  out.part = fields.Choice<TimePart>("part",
                                     {{"hour", TimePart::kHour},
                                      {"weekday", TimePart::kWeekday},
                                      {"weekend", TimePart::kWeekend},
                                      {"day", TimePart::kDay},
                                      {"month", TimePart::kMonth}},
                                     TimePart::kHour);
  out.time_format = ParseTimeFormat(fields, /*of_time=*/out.key == KeyKind::kTime);
  out.min_count = fields.Number("min_count", 1).value_or(0);
  out.unknown = fields.Number("unknown", 0);
  out.modulo = fields.Number("modulo", 1).value_or(0);
  out.separator = fields.Character("separator");
  out.missing_key = fields.Number("missing", 0);
  out.num_embeddings = fields.Count("num_embeddings", 1);
  out.max_hotness = fields.Count("max_hotness", 1);
  if (const json* boundaries = fields.Find("boundaries")) {
    bool good = boundaries->is_array();
    for (const json& item : *boundaries) {
      good = good && item.is_number();
      if (good) out.boundaries.push_back(item.get<double>());
    }
    if (!good) fields.Wrong("boundaries", *boundaries, "a list of numbers");
  }
  schema->categorical.push_back(std::move(out));
}

absl::Status ParseColumn(const json& value, std::string where, TableSchema* schema) {
  enum class Role { kNone, kLabel, kDense, kCategorical, kTime };
  Fields fields(value, std::move(where));
  const std::string name = fields.String("name", "");
  const std::string column = fields.String("column", name);
  if (name.empty()) fields.Fail("\"name\" is missing");
  const Role role = fields.Choice<Role>("role",
                                        {{"label", Role::kLabel},
                                         {"dense", Role::kDense},
                                         {"categorical", Role::kCategorical},
                                         {"time", Role::kTime}},
                                        Role::kNone);
  // Which keys are known depends on the role.
  if (role == Role::kNone) {
    fields.Fail("\"role\" is missing");
    return fields.status();
  }
  if (role == Role::kLabel) ParseLabel(fields, name, column, schema);
  if (role == Role::kDense) {
    schema->dense.push_back(
        {.name = name,
         .column = column,
         .transform = fields.Choice<DenseTransform>("transform",
                                                    {{"none", DenseTransform::kNone},
                                                     {"log(x+3)", DenseTransform::kLogPlus3},
                                                     {"log1p", DenseTransform::kLogPlus1}},
                                                    DenseTransform::kNone)});
  }
  if (role == Role::kCategorical) ParseCategorical(fields, name, column, schema);
  if (role == Role::kTime) {
    if (schema->time.has_value()) fields.Fail("a second column with the role \"time\"");
    schema->time = TimeColumn{
        .name = name, .column = column, .format = ParseTimeFormat(fields, /*of_time=*/true)};
  }
  return fields.Finish();
}

absl::Status ValidateCategorical(const CategoricalColumn& column) {
  const auto fail = [&](std::string_view what) {
    return Invalid(absl::StrCat("column ", QuoteForMessage(column.name)), what);
  };
  if (column.table.empty()) return fail("\"table\" is empty");
  if (column.modulo > INT64_MAX) return fail("\"modulo\" is above 2^63 - 1");
  if ((column.key == KeyKind::kBucket) != !column.boundaries.empty()) {
    return fail("\"boundaries\" and \"key\": \"bucket\" belong together");
  }
  if (column.key == KeyKind::kBucket && column.modulo > 0) {
    return fail("\"modulo\" does not go with \"bucket\"");
  }
  for (size_t i = 0; i < column.boundaries.size(); ++i) {
    if (!std::isfinite(column.boundaries[i]) ||
        (i > 0 && !(column.boundaries[i - 1] < column.boundaries[i]))) {
      return fail("\"boundaries\" must be finite and ascend");
    }
  }
  if (column.key == KeyKind::kTime) {
    if (column.modulo > 0 || column.num_embeddings > 0) {
      return fail(
          "the number of keys follows from \"part\"; \"modulo\" and \"num_embeddings\" are "
          "not given");
    }
    if (column.part == TimePart::kHour && !column.time_format.has_hour()) {
      return fail("\"time_format\" has no hour (%H), which \"part\" asks for");
    }
  }
  if (column.unknown.has_value() && column.min_count == 0) {
    return fail("\"unknown\" is the key of rare values and needs \"min_count\" beside it");
  }
  if (column.min_count > UINT32_MAX) return fail("\"min_count\" is above 2^32 - 1");
  if (column.max_hotness > Sample::kMaxHotness) {
    return fail(absl::StrCat("\"max_hotness\" is above ", Sample::kMaxHotness));
  }
  if (column.separator == 0 && column.max_hotness > 1) {
    return fail("\"max_hotness\" above 1 needs a \"separator\"");
  }
  if (column.num_embeddings > 0) {
    if (column.key == KeyKind::kBucket || column.modulo > 0) {
      return fail("\"num_embeddings\" follows from \"modulo\" or \"boundaries\" and is not given");
    }
    if (column.missing_key.value_or(0) >= static_cast<uint64_t>(column.num_embeddings)) {
      return fail("\"missing\" is not below \"num_embeddings\"");
    }
  }
  return absl::OkStatus();
}

// Features of a table share its rows, so a value has to be rare in all of them alike.
absl::Status ValidateMinCounts(const TableSchema& schema) {
  std::map<std::string_view, const CategoricalColumn*> first_of;
  for (const CategoricalColumn& column : schema.categorical) {
    const CategoricalColumn& first = *first_of.try_emplace(column.table, &column).first->second;
    const bool same = first.min_count == column.min_count &&
                      (column.min_count == 0 || UnknownKey(first) == UnknownKey(column));
    if (same) continue;
    return Invalid(
        schema.name,
        absl::StrCat("columns ", QuoteForMessage(first.name), " and ", QuoteForMessage(column.name),
                     " share table ", QuoteForMessage(column.table),
                     " and must have the same \"min_count\" and the same \"unknown\" key"));
  }
  return absl::OkStatus();
}

std::string Folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

bool Threshold::Holds(double x) const {
  switch (op) {
    case Op::kLess:
      return x < bound;
    case Op::kLessEqual:
      return x <= bound;
    case Op::kGreater:
      return x > bound;
    case Op::kGreaterEqual:
      return x >= bound;
    case Op::kEqual:
      return x == bound;
    case Op::kNotEqual:
      break;
  }
  return x != bound;
}

int64_t NumEmbeddings(const CategoricalColumn& column) {
  int64_t size = column.num_embeddings;
  if (column.modulo > 0) size = static_cast<int64_t>(column.modulo);
  if (column.key == KeyKind::kBucket) size = static_cast<int64_t>(column.boundaries.size()) + 1;
  if (column.key == KeyKind::kTime) size = TimePartSize(column.part);
  // The key of missing fields may lie behind the others; up there it leaves no bound at all.
  const uint64_t missing = column.missing_key.value_or(0);
  if (size > 0 && missing >= static_cast<uint64_t>(size)) {
    size = missing < INT64_MAX ? static_cast<int64_t>(missing) + 1 : 0;
  }
  return size;
}

uint64_t UnknownKey(const CategoricalColumn& column) {
  const int64_t size = NumEmbeddings(column);
  return column.unknown.value_or(size > 0 ? static_cast<uint64_t>(size) : uint64_t{1} << 63);
}

FieldSyntax SyntaxOf(const TableSchema& schema) {
  return {.delimiter = schema.delimiter, .quotes = schema.quotes, .trim = schema.trim};
}

uint64_t HashText(std::string_view text) {
  return HashBytes(0, 0, std::as_bytes(std::span(text.data(), text.size()))).lo;
}

void SplitByTen(TableSchema* schema) {
  schema->modulo = 10;
  schema->split_of.assign(10, Split::kTrain);
  schema->split_of[8] = Split::kValid;
  schema->split_of[9] = Split::kTest;
}

absl::Status TableSchema::Validate() const {
  const std::string where = name;
  if (labels.empty()) return Invalid(where, "no column has the role \"label\"");
  if (labels.size() > kMaxLabels) {
    return Invalid(where, absl::StrCat(labels.size(), " labels, at most ", kMaxLabels));
  }
  std::set<std::string> label_names;
  for (const LabelColumn& label : labels) {
    if (!label_names.insert(label.name).second) {
      return Invalid(where, absl::StrCat("two labels have the name ", QuoteForMessage(label.name)));
    }
  }
  if (delimiter.empty()) return Invalid(where, "\"delimiter\" is empty");
  if (quotes != Quotes::kOff && delimiter.find('"') != std::string::npos) {
    return Invalid(where, "\"delimiter\" holds a quote; give \"quotes\": false");
  }
  if (dense.empty() && categorical.empty()) return Invalid(where, "there is no feature");
  if (static_cast<int64_t>(split_of.size()) != modulo) {
    return Invalid(where, "split_of must have modulo entries");
  }
  std::set<std::string> names;
  for (const DenseColumn& column : dense) {
    if (!names.insert(column.name).second) {
      return Invalid(where,
                     absl::StrCat("two features have the name ", QuoteForMessage(column.name)));
    }
  }
  for (const CategoricalColumn& column : categorical) {
    if (!names.insert(column.name).second) {
      return Invalid(where,
                     absl::StrCat("two features have the name ", QuoteForMessage(column.name)));
    }
    if (column.separator != 0 && delimiter == std::string_view(&column.separator, 1)) {
      return Invalid(where, absl::StrCat("column ", QuoteForMessage(column.name),
                                         ": \"separator\" is the delimiter"));
    }
    const absl::Status status = ValidateCategorical(column);
    if (!status.ok()) return Invalid(where, std::string(status.message()));
  }
  HOTROW_RETURN_IF_ERROR(ValidateMinCounts(*this));
  std::set<std::string> file_columns;
  for (const std::string& column : column_names) {
    if (!file_columns.insert(column).second) {
      return Invalid(where, absl::StrCat("\"header\" names ", QuoteForMessage(column), " twice"));
    }
  }
  if (header != column_names.empty()) {
    return Invalid(where, "a file has a header, or its columns are named");
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<TableSchema> Parse(std::string_view text, const std::string& where, bool has_files) {
  const absl::StatusOr<json> parsed = ParseJson<json>(text);
  if (!parsed.ok()) {
    return Invalid(where, absl::StrCat("is no schema in JSON (docs/formats/table_schema.md): ",
                                       std::string(parsed.status().message())));
  }
  const json& root = *parsed;

  TableSchema schema;
  Fields fields(root, where);
  schema.name = fields.String("name", where);
  schema.trim = fields.Bool("trim", false);
  schema.delimiter = fields.Delimiter("delimiter", ",");
  const json* header = fields.Find("header");
  if (header != nullptr && header->is_array()) {
    schema.header = false;
    schema.column_names = fields.Strings("header", *header);
  } else if (header != nullptr && *header != true) {
    fields.Wrong("header", *header, "true, or the names of the columns");
  }
  if (has_files) HOTROW_RETURN_IF_ERROR(ParseFiles(fields, Folder(where), &schema));
  if (const json* columns = fields.Require("columns")) {
    if (!columns->is_array()) fields.Wrong("columns", *columns, "a list of columns");
    for (size_t i = 0; columns->is_array() && i < columns->size(); ++i) {
      fields.Fail(ParseColumn((*columns)[i], absl::StrCat(where, ": columns[", i, "]"), &schema));
    }
  }
  schema.quotes = Quotes::kNotSaid;
  if (fields.Find("quotes") != nullptr) {
    schema.quotes = fields.Bool("quotes", false) ? Quotes::kOn : Quotes::kOff;
  }
  if (const json* missing = fields.Find("missing_values")) {
    schema.missing_values = fields.Strings("missing_values", *missing);
  }
  HOTROW_RETURN_IF_ERROR(fields.Finish());
  const absl::Status status = schema.Validate();
  if (!status.ok()) {
    return schema.name == where ? status : Invalid(where, std::string(status.message()));
  }
  return schema;
}

}  // namespace

absl::StatusOr<TableSchema> ParseTableSchema(std::string_view json, const std::string& where) {
  return Parse(json, where, /*has_files=*/true);
}

absl::StatusOr<TableSchema> ParseTableSchemaText(std::string_view json, const std::string& where) {
  return Parse(json, where, /*has_files=*/false);
}

}  // namespace hotrow
