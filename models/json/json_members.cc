#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/json/json_members_impl.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

using Json = JsonMembers::Json;

// What stands for a member that is missing.
const Json& Missing() {
  static const Json* const kMissing = new Json(Json::value_t::discarded);
  return *kMissing;
}

// Whether the text is `digits` hexadecimal digits; a sign or 0x is none.
bool IsHex(const std::string& text, size_t digits) {
  if (text.size() != digits) return false;
  for (const char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

}  // namespace

std::string DescribeJson(const Json& value) {
  constexpr size_t kBytesMax = 40;
  if (value.is_string()) return QuoteForMessage(value.get<std::string>());
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kBytesMax ? text : absl::StrCat(text.substr(0, kBytesMax), "...");
}

JsonMembers::JsonMembers(const Json& object, std::string path, std::string* wrong)
    : object_(object), path_(std::move(path)), wrong_(wrong) {
  if (!object.is_object()) Wrong("", object, "an object");
}

std::string JsonMembers::PathOf(const char* name) const {
  return path_.empty() ? name : absl::StrCat(path_, ".", name);
}

std::string JsonMembers::String(const char* name) {
  const Json& value = Get(name, "a text");
  if (value.is_string()) return value.get<std::string>();
  return Wrong(name, value, "a text"), "";
}

bool JsonMembers::Bool(const char* name) {
  const Json& value = Get(name, "true or false");
  if (value.is_boolean()) return value.get<bool>();
  return Wrong(name, value, "true or false"), false;
}

int64_t JsonMembers::Count(const char* name, int64_t min, int64_t max) {
  const std::string expected = absl::StrCat("a whole number from ", min, " to ", max);
  const Json& value = Get(name, expected);
  if (value.is_number_unsigned() && value.get<uint64_t>() >= static_cast<uint64_t>(min) &&
      value.get<uint64_t>() <= static_cast<uint64_t>(max)) {
    return value.get<int64_t>();
  }
  return Wrong(name, value, expected), min;
}

int64_t JsonMembers::Number(const char* name) {
  constexpr std::string_view kExpected = "a whole number of 64 bits";
  const Json& value = Get(name, kExpected);
  if (value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    return value.get<int64_t>();
  }
  return Wrong(name, value, kExpected), 0;
}

uint64_t JsonMembers::Unsigned(const char* name) {
  constexpr std::string_view kExpected = "a whole number from 0 to 2^64 - 1";
  const Json& value = Get(name, kExpected);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return Wrong(name, value, kExpected), 0;
}

double JsonMembers::Real(const char* name) {
  const Json& value = Get(name, "a number");
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return Wrong(name, value, "a number"), 0;
}

double JsonMembers::RealOrNan(const char* name) {
  if (Has(name) && object_[name].is_null()) return std::numeric_limits<double>::quiet_NaN();
  return Real(name);
}

uint32_t JsonMembers::Crc(const char* name) {
  const std::string text = String(name);
  uint32_t crc = 0;
  if (IsHex(text, 8) && absl::SimpleHexAtoi(text, &crc)) return crc;
  return Wrong(name, text, "8 hexadecimal digits"), 0;
}

Hash128 JsonMembers::Hash(const char* name) {
  const std::string text = String(name);
  Hash128 hash;
  if (IsHex(text, 32) && absl::SimpleHexAtoi(text.substr(0, 16), &hash.hi) &&
      absl::SimpleHexAtoi(text.substr(16), &hash.lo)) {
    return hash;
  }
  return Wrong(name, text, "32 hexadecimal digits"), hash;
}

std::string JsonMembers::FileName(const char* name) {
  const std::string text = String(name);
  if (!text.empty() && text != "." && text != ".." && text.find('/') == std::string::npos &&
      text.find('\0') == std::string::npos) {
    return text;
  }
  return Wrong(name, text, "the name of a file in this directory"), "";
}

const Json& JsonMembers::Array(const char* name) {
  static const Json* const kEmpty = new Json(Json::array());
  const Json& value = Get(name, "a list");
  if (value.is_array()) return value;
  return Wrong(name, value, "a list"), *kEmpty;
}

const Json& JsonMembers::Object(const char* name) {
  static const Json* const kEmpty = new Json(Json::object());
  const Json& value = Get(name, "an object");
  if (value.is_object()) return value;
  return Wrong(name, value, "an object"), *kEmpty;
}

std::vector<std::pair<std::string, std::string>> JsonMembers::Strings(const char* name) {
  std::vector<std::pair<std::string, std::string>> out;
  const Json& texts = Object(name);
  JsonMembers members(texts, PathOf(name), wrong_);
  for (const auto& [key, value] : texts.items()) {
    out.emplace_back(key, members.String(key.c_str()));
  }
  return out;
}

void JsonMembers::Wrong(const char* name, const Json& found, std::string_view expected) {
  if (!wrong_->empty()) return;
  const std::string place = *name == '\0' ? path_ : PathOf(name);
  const std::string quoted = place.empty() ? "it" : absl::StrCat("\"", place, "\"");
  *wrong_ =
      found.is_discarded()
          ? absl::StrCat(quoted, " is missing, expected ", std::string(expected))
          : absl::StrCat(quoted, " is ", DescribeJson(found), ", expected ", std::string(expected));
}

const Json& JsonMembers::Get(const char* name, std::string_view expected) {
  if (!Has(name)) return Wrong(name, Missing(), expected), Missing();
  return object_[name];
}

Json StringsToJson(const std::vector<std::pair<std::string, std::string>>& strings) {
  Json json = Json::object();
  for (const auto& [name, value] : strings) json[name] = value;
  return json;
}

}  // namespace hotrow
