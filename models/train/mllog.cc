#include "models/train/mllog.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const MlLogger::Value& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return nullptr;
}

int64_t UnixMillis() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void MlLogger::Print(std::string_view event_type, std::string_view key, const Value& value,
                     const Metadata& metadata) {
  Json fields = Json::object();
  for (const auto& [name, field] : metadata) fields[name] = ToJson(field);
  const Json json = {
      {"namespace", ""},         {"time_ms", UnixMillis()}, {"event_type", std::string(event_type)},
      {"key", std::string(key)}, {"value", ToJson(value)},  {"metadata", std::move(fields)}};
  // Line breaks in texts are escaped. Bytes that are not UTF-8 become U+FFFD.
  print_(absl::StrCat(":::MLLOG ",
                      json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace)));
}

void MlLogger::Point(std::string_view key, const Value& value, const Metadata& metadata) {
  Print("POINT_IN_TIME", key, value, metadata);
}

void MlLogger::Start(std::string_view key, const Metadata& metadata) {
  Print("INTERVAL_START", key, {}, metadata);
}

void MlLogger::End(std::string_view key, const Metadata& metadata) {
  Print("INTERVAL_END", key, {}, metadata);
}

}  // namespace hotrow
