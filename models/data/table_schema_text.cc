#include "models/data/table_schema_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

Json LabelValueJson(LabelValue value) {
  switch (value) {
    case LabelValue::kZero:
      return 0;
    case LabelValue::kOne:
      return 1;
    case LabelValue::kDrop:
      break;
  }
  return "drop";
}

std::string ThresholdText(const Threshold& threshold) {
  const char* op = "!=";
  switch (threshold.op) {
    case Threshold::Op::kLess:
      op = "<";
      break;
    case Threshold::Op::kLessEqual:
      op = "<=";
      break;
    case Threshold::Op::kGreater:
      op = ">";
      break;
    case Threshold::Op::kGreaterEqual:
      op = ">=";
      break;
    case Threshold::Op::kEqual:
      op = "==";
      break;
    case Threshold::Op::kNotEqual:
      break;
  }
  // The shortest digits that bring the same number back.
  return absl::StrCat(op, " ", Json(threshold.bound).dump());
}

Json ColumnJson(const std::string& name, const std::string& column, const char* role) {
  Json out = {{"name", name}};
  if (column != name) out["column"] = column;
  out["role"] = role;
  return out;
}

Json LabelJson(const LabelColumn& label) {
  Json out = ColumnJson(label.name, label.column, "label");
  for (const auto& [text, value] : label.values) out["values"][text] = LabelValueJson(value);
  if (label.otherwise.has_value()) out["otherwise"] = LabelValueJson(*label.otherwise);
  if (label.positive.has_value()) out["positive"] = ThresholdText(*label.positive);
  if (label.negative.has_value()) out["negative"] = ThresholdText(*label.negative);
  return out;
}

Json DenseJson(const DenseColumn& column) {
  Json out = ColumnJson(column.name, column.column, "dense");
  switch (column.transform) {
    case DenseTransform::kNone:
      break;
    case DenseTransform::kLogPlus3:
      out["transform"] = "log(x+3)";
      break;
    case DenseTransform::kLogPlus1:
      out["transform"] = "log1p";
      break;
  }
  return out;
}

const char* PartName(TimePart part) {
  switch (part) {
    case TimePart::kHour:
      return "hour";
    case TimePart::kWeekday:
      return "weekday";
    case TimePart::kWeekend:
      return "weekend";
    case TimePart::kDay:
      return "day";
    case TimePart::kMonth:
      break;
  }
  return "month";
}

Json CategoricalJson(const CategoricalColumn& column) {
  Json out = ColumnJson(column.name, column.column, "categorical");
  if (column.table != column.name) out["table"] = column.table;
  switch (column.key) {
    case KeyKind::kInteger:
      out["key"] = "integer";
      break;
    case KeyKind::kHex:
      out["key"] = "hex";
      break;
    case KeyKind::kHash:
      out["key"] = "hash";
      break;
    case KeyKind::kBucket:
      out["key"] = "bucket";
      out["boundaries"] = column.boundaries;
      break;
    case KeyKind::kTime:
      out["part"] = PartName(column.part);
      out["time_format"] = column.time_format.text();
      break;
  }
  if (column.modulo > 0) out["modulo"] = column.modulo;
  if (column.separator != 0) out["separator"] = std::string(1, column.separator);
  if (column.missing_key.has_value()) out["missing"] = *column.missing_key;
  if (column.min_count > 0) out["min_count"] = column.min_count;
  if (column.unknown.has_value()) out["unknown"] = *column.unknown;
  if (column.num_embeddings > 0) out["num_embeddings"] = column.num_embeddings;
  if (column.max_hotness > 0) out["max_hotness"] = column.max_hotness;
  return out;
}

}  // namespace

std::string TableSchemaText(const TableSchema& schema) {
  Json out = {{"name", schema.name}, {"delimiter", schema.delimiter}};
  if (schema.quotes != Quotes::kNotSaid) out["quotes"] = schema.quotes == Quotes::kOn;
  if (schema.header) {
    out["header"] = true;
  } else {
    out["header"] = schema.column_names;
  }
  if (schema.trim) out["trim"] = true;
  if (!schema.missing_values.empty()) out["missing_values"] = schema.missing_values;
  Json& columns = out["columns"] = Json::array();
  for (const LabelColumn& label : schema.labels) columns.push_back(LabelJson(label));
  for (const DenseColumn& column : schema.dense) columns.push_back(DenseJson(column));
  for (const CategoricalColumn& column : schema.categorical) {
    columns.push_back(CategoricalJson(column));
  }
  if (schema.time.has_value()) {
    columns.push_back(ColumnJson(schema.time->name, schema.time->column, "time"));
    columns.back()["time_format"] = schema.time->format.text();
  }
  return out.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::vector<std::string> UnlabelledColumns(const TableSchema& schema) {
  std::vector<std::string> of_features;  // each once
  const auto add = [&of_features](const std::string& column) {
    if (std::ranges::count(of_features, column) == 0) of_features.push_back(column);
  };
  for (const DenseColumn& column : schema.dense) add(column.column);
  for (const CategoricalColumn& column : schema.categorical) add(column.column);
  if (schema.header) return of_features;
  std::set<std::string> of_training;
  for (const LabelColumn& label : schema.labels) of_training.insert(label.column);
  if (schema.time.has_value()) of_training.insert(schema.time->column);
  for (const std::string& column : of_features) of_training.erase(column);
  std::vector<std::string> out = schema.column_names;
  std::erase_if(out, [&](const std::string& column) { return of_training.contains(column); });
  return out;
}

}  // namespace hotrow
