#ifndef HOTROW_MODELS_JSON_JSON_MEMBERS_IMPL_H_
#define HOTROW_MODELS_JSON_JSON_MEMBERS_IMPL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace hotrow {

// A value in an error: a text in quotes, anything else as JSON; the beginning of what is long.
std::string DescribeJson(const nlohmann::ordered_json& value);

// Members of a JSON object by name, type and range. The first that is wrong is remembered in
// *wrong as a sentence: its path, what was found, what was expected (`"tables[1].dim" is 0,
// expected a whole number from 1 to 67108864`). What is asked for after it is a default.
class JsonMembers {
 public:
  using Json = nlohmann::ordered_json;

  // path: of the object, empty for that of the file. object and wrong outlive this.
  JsonMembers(const Json& object, std::string path, std::string* wrong);

  bool Has(const char* name) const { return object_.is_object() && object_.contains(name); }
  std::string PathOf(const char* name) const;

  std::string String(const char* name);
  bool Bool(const char* name);
  // A whole number of at least 0, or within the bounds.
  int64_t Count(const char* name) { return Count(name, 0, INT64_MAX); }
  int64_t Count(const char* name, int64_t max) { return Count(name, 0, max); }
  int64_t Count(const char* name, int64_t min, int64_t max);  // 0 <= min
  int64_t Number(const char* name);                           // a whole number
  uint64_t Unsigned(const char* name);                        // in all 64 bits
  double Real(const char* name);                              // finite
  // JSON has no word for what is no number; null stands for it.
  double RealOrNan(const char* name);
  uint32_t Crc(const char* name);          // of 8 hexadecimal digits
  Hash128 Hash(const char* name);          // of 32
  std::string FileName(const char* name);  // no path that leads elsewhere
  const Json& Array(const char* name);
  const Json& Object(const char* name);
  // An object of strings.
  std::vector<std::pair<std::string, std::string>> Strings(const char* name);

  // Remembers that the member, or for "" the object itself, is wrong; `found` may be discarded,
  // for one that is missing.
  void Wrong(const char* name, const Json& found, std::string_view expected);

 private:
  const Json& Get(const char* name, std::string_view expected);

  const Json& object_;
  const std::string path_;
  std::string* const wrong_;
};

// What JsonMembers::Strings reads.
nlohmann::ordered_json StringsToJson(
    const std::vector<std::pair<std::string, std::string>>& strings);

}  // namespace hotrow

#endif  // HOTROW_MODELS_JSON_JSON_MEMBERS_IMPL_H_
