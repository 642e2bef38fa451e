#include "models/json/json_text.h"

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

constexpr size_t kPathBytesMax = 80;  // in messages

// Builds the value as Json::parse would, within limits, and keeps the message of an error instead
// of throwing. The parser itself keeps its state on the heap, so no depth harms it.
template <typename Json>
class Builder : public nlohmann::detail::json_sax_dom_parser<Json> {
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;

 public:
  explicit Builder(Json& root) : Base(root, /*allow_exceptions=*/false) {}

  bool null() { return Begin() && Base::null(); }
  bool boolean(bool value) { return Begin() && Base::boolean(value); }
  bool number_integer(typename Json::number_integer_t value) {
    return Begin() && Base::number_integer(value);
  }
  bool number_unsigned(typename Json::number_unsigned_t value) {
    return Begin() && Base::number_unsigned(value);
  }
  bool number_float(typename Json::number_float_t value, const std::string& text) {
    return Begin() && Base::number_float(value, text);
  }
  bool string(std::string& value) { return Begin() && Base::string(value); }
  bool start_object(size_t size) { return Enter(/*is_object=*/true) && Base::start_object(size); }
  bool start_array(size_t size) { return Enter(/*is_object=*/false) && Base::start_array(size); }
  bool key(std::string& name) {
    Level& level = levels_.back();
    level.name = name;
    if (!level.names.insert(name).second) {
      message_ = absl::StrCat("member \"", Path(), "\" occurs twice in its object");
      return false;
    }
    return Base::key(name);
  }
  bool end_object() {
    levels_.pop_back();
    return Base::end_object();
  }
  bool end_array() {
    levels_.pop_back();
    return Base::end_array();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    message_ = error.what();
    const size_t bracket = message_.find("] ");  // of "[json.exception.parse_error.101] "
    if (bracket != std::string::npos) message_.erase(0, bracket + 2);
    return false;
  }

  const std::string& message() const { return message_; }

 private:
  struct Level {
    bool is_object = false;
    std::string name;                       // of the present member
    int64_t index = -1;                     // of the present item
    std::unordered_set<std::string> names;  // of an object's members so far
  };

  // A value begins.
  bool Begin() {
    if (!levels_.empty()) ++levels_.back().index;
    return true;
  }
  bool Enter(bool is_object) {
    Begin();
    if (static_cast<int64_t>(levels_.size()) == kJsonDepthMax) {
      message_ = absl::StrCat("nested more than ", kJsonDepthMax, " deep at \"", Path(), "\"");
      return false;
    }
    levels_.push_back({.is_object = is_object});
    return true;
  }
  std::string Path() const {
    std::string path;
    for (const Level& level : levels_) {
      if (level.is_object) {
        absl::StrAppend(&path, path.empty() ? "" : ".", level.name);
      } else {
        absl::StrAppend(&path, "[", level.index, "]");
      }
      if (path.size() > kPathBytesMax) return path.substr(0, kPathBytesMax) + "...";
    }
    return path;
  }

  std::vector<Level> levels_;
  std::string message_ = "no JSON";
};

}  // namespace

template <typename Json>
absl::StatusOr<Json> ParseJson(std::string_view text) {
  Json root;
  Builder<Json> builder(root);
  if (!Json::sax_parse(text, &builder)) return absl::InvalidArgumentError(builder.message());
  return root;
}

template absl::StatusOr<nlohmann::json> ParseJson(std::string_view text);
template absl::StatusOr<nlohmann::ordered_json> ParseJson(std::string_view text);

}  // namespace hotrow
