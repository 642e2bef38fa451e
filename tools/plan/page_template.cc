#include "tools/plan/page_template.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

class Filler {
 public:
  explicit Filler(const Json& values) : scopes_{&values} {}

  void Fill(std::string_view page) {
    while (!page.empty()) {
      const size_t open = page.find("{{");
      if (open == page.npos) break;
      const size_t close = page.find("}}", open);
      HOTROW_CHECK(close != page.npos);
      const std::string tag(page.substr(open + 2, close - open - 2));
      const bool section = tag[0] == '#' || tag[0] == '^';
      std::string_view before = page.substr(0, open);
      std::string_view rest = page.substr(close + 2);
      if (!section) {
        absl::StrAppend(&out_, std::string(before), Escaped(Text(Find(tag))));
        page = rest;
        continue;
      }
      const std::string_view inner = Inner(tag.substr(1), &rest);
      absl::StrAppend(&out_, std::string(before));
      FillSection(tag, inner);
      page = rest;
    }
    absl::StrAppend(&out_, std::string(page));
  }

  std::string Take() { return std::move(out_); }

 private:
  // What lies between a section's tags, each without the end of its own line. `rest` begins
  // behind the first tag and then behind the last one. Sections of one name do not nest.
  static std::string_view Inner(const std::string& name, std::string_view* rest) {
    const std::string end_tag = absl::StrCat("{{/", name, "}}");
    const size_t end = rest->find(end_tag);
    HOTROW_CHECK(end != rest->npos);
    std::string_view inner = rest->substr(0, end);
    rest->remove_prefix(end + end_tag.size());
    if (inner.starts_with('\n')) {
      inner.remove_prefix(1);
      HOTROW_CHECK(rest->starts_with('\n'));
      rest->remove_prefix(1);
    }
    return inner;
  }

  void FillSection(const std::string& tag, std::string_view inner) {
    const Json* const value = Find(tag.substr(1));
    const bool nothing = value == nullptr || *value == false || value->is_null() ||
                         (value->is_array() && value->empty());
    if (tag[0] == '^') {
      if (nothing) Fill(inner);
    } else if (!nothing) {
      const Json one = Json::array({*value});
      for (const Json& element : value->is_array() ? *value : one) {
        scopes_.push_back(&element);
        Fill(inner);
        scopes_.pop_back();
      }
    }
  }

  const Json* Find(const std::string& name) const {
    if (name == ".") return scopes_.back();
    for (size_t i = scopes_.size(); i-- > 0;) {
      if (scopes_[i]->is_object() && scopes_[i]->contains(name)) return &scopes_[i]->at(name);
    }
    return nullptr;
  }

  static const std::string& Text(const Json* value) {
    HOTROW_CHECK(value != nullptr && value->is_string());
    return value->get_ref<const std::string&>();
  }

  std::vector<const Json*> scopes_;  // the innermost last
  std::string out_;
};

}  // namespace

std::string FillPage(std::string_view page, const nlohmann::ordered_json& values) {
  Filler filler(values);
  filler.Fill(page);
  return filler.Take();
}

}  // namespace hotrow
