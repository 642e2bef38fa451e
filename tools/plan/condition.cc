#include <cctype>
#include <charconv>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

class Condition {
 public:
  Condition(const std::string& text, const std::map<std::string, double>& values)
      : text_(text), values_(values) {}

  absl::StatusOr<bool> Evaluate() {
    bool any = false;
    do {
      bool all = true;
      do {
        HOTROW_ASSIGN_OR_RETURN(const bool one, Comparison());
        all = all && one;
      } while (Take("&&"));
      any = any || all;
    } while (Take("||"));
    SkipBlanks();
    if (at_ != text_.size()) return Error("expected && or || or the end");
    return any;
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("condition \"", text_, "\", at character ",
                                                   at_ + 1, ": ", what,
                                                   "; an example: hbm_bytes>70e9 || fits==0"));
  }
  void SkipBlanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool Take(std::string_view token) {
    SkipBlanks();
    if (std::string_view(text_).substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  absl::StatusOr<double> Value() {
    SkipBlanks();
    const size_t begin = at_;
    const auto is_word = [&](size_t i) {
      return i < text_.size() &&
             (std::isalnum(static_cast<unsigned char>(text_[i])) != 0 || text_[i] == '_');
    };
    if (begin < text_.size() && std::isalpha(static_cast<unsigned char>(text_[begin])) != 0) {
      while (is_word(at_)) ++at_;
      const std::string name = text_.substr(begin, at_ - begin);
      const auto value = values_.find(name);
      if (value != values_.end()) return value->second;
      std::string names;
      for (const auto& [known, unused] : values_) {
        absl::StrAppend(&names, names.empty() ? "" : ", ", known);
      }
      at_ = begin;
      return Error(absl::StrCat("there is no value \"", name, "\"; there are: ", names));
    }
    double number = 0;
    const char* const end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(text_.data() + begin, end, number);
    if (error != std::errc()) return Error("expected a name or a number");
    at_ = static_cast<size_t>(stop - text_.data());
    return number;
  }
  absl::StatusOr<bool> Comparison() {
    HOTROW_ASSIGN_OR_RETURN(const double left, Value());
    // The longer ones first.
    for (const char* const op : {"<=", ">=", "==", "!=", "<", ">"}) {
      if (!Take(op)) continue;
      HOTROW_ASSIGN_OR_RETURN(const double right, Value());
      const std::string_view name = op;
      if (name == "<=") return left <= right;
      if (name == ">=") return left >= right;
      if (name == "==") return left == right;
      if (name == "!=") return left != right;
      return name == "<" ? left < right : left > right;
    }
    return Error("expected one of < <= > >= == !=");
  }

  const std::string& text_;
  const std::map<std::string, double>& values_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<bool> EvaluateCondition(const std::string& condition,
                                       const std::map<std::string, double>& values) {
  return Condition(condition, values).Evaluate();
}

}  // namespace hotrow
