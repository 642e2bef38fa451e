#include "tools/plan/spec_text.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr int kDepthMax = 64;
constexpr size_t kTextBytesMax = 64 << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
  } else if (code < 0x800) {
    *out += static_cast<char>(0xc0 | code >> 6);
    *out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    *out += static_cast<char>(0xe0 | code >> 12);
    *out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    *out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  absl::StatusOr<SpecNode> Document() {
    HOTROW_RETURN_IF_ERROR(SkipToContent());
    if (text_.substr(at_, 3) == "---" && Column() == 0) {
      at_ += 3;
      HOTROW_RETURN_IF_ERROR(SkipToContent());
    }
    HOTROW_ASSIGN_OR_RETURN(SpecNode node, Node(0, 0));
    HOTROW_RETURN_IF_ERROR(SkipToContent());
    if (!AtEnd()) {
      if (text_.substr(at_, 3) == "---") return Error("a second document; one is expected");
      return Error("this stands behind the end of the spec; is it indented wrongly?");
    }
    return node;
  }

 private:
  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  int Column() const { return static_cast<int>(at_ - line_begin_); }
  bool AtLineEnd() const { return AtEnd() || Peek() == '\n' || Peek() == '\r'; }

  absl::Status ErrorAt(int line, int column, std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name_), ":", line, ":", column + 1, ": ", std::string(what)));
  }
  absl::Status Error(std::string_view what) const { return ErrorAt(line_, Column(), what); }

  void SkipBlanks() {
    while (Peek() == ' ' || Peek() == '\t') ++at_;
  }
  void SkipComment() {
    while (!AtEnd() && Peek() != '\n') ++at_;
  }
  // Over blanks, line ends and comments.
  absl::Status SkipToContent() {
    bool indentation = Column() == 0;
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '\n') {
        ++at_;
        ++line_;
        line_begin_ = at_;
        indentation = true;
      } else if (c == ' ' || c == '\r') {
        ++at_;
      } else if (c == '\t') {
        if (indentation && flow_depth_ == 0) {
          return Error("a tab in the indentation; use blanks");
        }
        ++at_;
      } else if (c == '#') {
        SkipComment();
      } else {
        break;
      }
    }
    return absl::OkStatus();
  }

  SpecNode NewNode(SpecNode::Kind kind) const {
    SpecNode node;
    node.kind = kind;
    node.line = line_;
    node.column = Column();
    return node;
  }

  bool AtDash() const {
    return Peek() == '-' &&
           (Peek(1) == ' ' || Peek(1) == '\n' || Peek(1) == '\r' || at_ + 1 == text_.size());
  }
  bool AtColon() const {
    return Peek() == ':' && (Peek(1) == ' ' || Peek(1) == '\t' || Peek(1) == '\n' ||
                             Peek(1) == '\r' || at_ + 1 == text_.size());
  }

  // The value that begins here or on a later line, at `column_min` or right of it.
  absl::StatusOr<SpecNode> Node(int column_min, int depth) {
    if (depth > kDepthMax) return Error("nested too deeply");
    HOTROW_RETURN_IF_ERROR(SkipToContent());
    if (AtEnd() || Column() < column_min) return NewNode(SpecNode::Kind::kNull);
    if (AtDash()) return List(Column(), depth);
    if (Peek() == '{' || Peek() == '[') return Flow(depth);
    const size_t begin = at_;
    HOTROW_ASSIGN_OR_RETURN(SpecNode scalar, Scalar(/*flow=*/false));
    SkipBlanks();
    if (!AtColon()) {
      HOTROW_RETURN_IF_ERROR(ExpectLineEnd());
      return scalar;
    }
    at_ = begin;
    return Map(Column(), depth);
  }

  absl::Status ExpectLineEnd() {
    SkipBlanks();
    if (AtLineEnd() || Peek() == '#') return absl::OkStatus();
    return Error("this stands behind the end of a value");
  }

  absl::StatusOr<SpecNode> Map(int column, int depth) {
    SpecNode map = NewNode(SpecNode::Kind::kMap);
    while (true) {
      HOTROW_RETURN_IF_ERROR(SkipToContent());
      if (AtEnd() || Column() < column) return map;
      if (Column() > column) return Error("indented deeper than the field before it");
      if (AtDash()) return Error("a list item where a field is expected");
      const int key_line = line_;
      HOTROW_ASSIGN_OR_RETURN(const SpecNode key, Scalar(/*flow=*/false));
      SkipBlanks();
      if (!AtColon())
        return ErrorAt(key_line, column, "a field needs a colon and a blank: NAME: VALUE");
      ++at_;
      if (map.Find(key.text) != nullptr) {
        return ErrorAt(key_line, column, absl::StrCat("field \"", key.text, "\" occurs twice"));
      }
      SkipBlanks();
      SpecNode value;
      if (AtLineEnd() || Peek() == '#') {
        HOTROW_RETURN_IF_ERROR(SkipToContent());
        // A list may stand as far left as its name.
        const int least = !AtEnd() && AtDash() ? column : column + 1;
        HOTROW_ASSIGN_OR_RETURN(value, Node(least, depth + 1));
      } else if (Peek() == '{' || Peek() == '[') {
        HOTROW_ASSIGN_OR_RETURN(value, Flow(depth + 1));
        HOTROW_RETURN_IF_ERROR(ExpectLineEnd());
      } else {
        HOTROW_ASSIGN_OR_RETURN(value, Scalar(/*flow=*/false));
        HOTROW_RETURN_IF_ERROR(ExpectLineEnd());
      }
      map.fields.emplace_back(key.text, std::move(value));
    }
  }

  absl::StatusOr<SpecNode> List(int column, int depth) {
    SpecNode list = NewNode(SpecNode::Kind::kList);
    while (true) {
      HOTROW_RETURN_IF_ERROR(SkipToContent());
      if (AtEnd() || Column() < column) return list;
      if (Column() > column) return Error("indented deeper than the item before it");
      if (!AtDash()) return list;  // the next field of the map that the list belongs to
      ++at_;
      SkipBlanks();
      HOTROW_ASSIGN_OR_RETURN(SpecNode item, Node(column + 1, depth + 1));
      list.items.push_back(std::move(item));
    }
  }

  // { } and [ ], over any number of lines.
  absl::StatusOr<SpecNode> Flow(int depth) {
    if (depth > kDepthMax) return Error("nested too deeply");
    const bool is_map = Peek() == '{';
    const char close = is_map ? '}' : ']';
    SpecNode node = NewNode(is_map ? SpecNode::Kind::kMap : SpecNode::Kind::kList);
    const int line = line_;
    const int column = Column();
    ++at_;
    ++flow_depth_;
    for (bool first = true;; first = false) {
      HOTROW_RETURN_IF_ERROR(SkipToContent());
      if (AtEnd()) {
        return ErrorAt(line, column, absl::StrCat("this ", is_map ? "{" : "[", " is never closed"));
      }
      if (Peek() == close) break;
      if (!first) {
        if (Peek() != ',') return Error(absl::StrCat("expected , or ", std::string(1, close)));
        ++at_;
        HOTROW_RETURN_IF_ERROR(SkipToContent());
        if (Peek() == close) break;  // a comma may end the list
      }
      std::string key;
      if (is_map) {
        const int key_line = line_;
        const int key_column = Column();
        HOTROW_ASSIGN_OR_RETURN(const SpecNode scalar, Scalar(/*flow=*/true));
        key = scalar.text;
        HOTROW_RETURN_IF_ERROR(SkipToContent());
        if (Peek() != ':') return Error("expected a colon behind the name of a field");
        ++at_;
        if (node.Find(key) != nullptr) {
          return ErrorAt(key_line, key_column, absl::StrCat("field \"", key, "\" occurs twice"));
        }
        HOTROW_RETURN_IF_ERROR(SkipToContent());
      }
      SpecNode value;
      if (Peek() == '{' || Peek() == '[') {
        HOTROW_ASSIGN_OR_RETURN(value, Flow(depth + 1));
      } else {
        HOTROW_ASSIGN_OR_RETURN(value, Scalar(/*flow=*/true));
      }
      if (is_map) {
        node.fields.emplace_back(std::move(key), std::move(value));
      } else {
        node.items.push_back(std::move(value));
      }
    }
    ++at_;
    --flow_depth_;
    return node;
  }

  absl::StatusOr<SpecNode> Scalar(bool flow) {
    SpecNode node = NewNode(SpecNode::Kind::kScalar);
    const char first = Peek();
    if (first == '"' || first == '\'') {
      node.quoted = true;
      HOTROW_RETURN_IF_ERROR(Quoted(first, &node.text));
      return node;
    }
    if (first == '&' || first == '*') return Error("anchors and aliases are not read here");
    if (first == '!') return Error("tags are not read here");
    if (!flow && (first == '|' || first == '>')) return Error("block scalars are not read here");
    const size_t begin = at_;
    while (!AtLineEnd()) {
      const char c = Peek();
      if (AtColon()) break;
      if (c == '#' && at_ > begin && (text_[at_ - 1] == ' ' || text_[at_ - 1] == '\t')) break;
      if (flow && (c == ',' || c == '}' || c == ']' || c == '{' || c == '[' || c == ':')) break;
      ++at_;
    }
    std::string_view text = text_.substr(begin, at_ - begin);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    if (text.empty()) return Error("a value is expected here");
    node.text = std::string(text);
    if (text == "null" || text == "~") node.kind = SpecNode::Kind::kNull;
    return node;
  }

  absl::Status Quoted(char quote, std::string* out) {
    const int line = line_;
    const int column = Column();
    ++at_;
    while (true) {
      if (AtLineEnd()) return ErrorAt(line, column, "a quoted value that does not end on its line");
      const char c = Peek();
      ++at_;
      if (c == quote) {
        if (quote == '\'' && Peek() == '\'') {
          *out += '\'';
          ++at_;
          continue;
        }
        return absl::OkStatus();
      }
      if (quote == '\'' || c != '\\') {
        *out += c;
        continue;
      }
      const char escape = Peek();
      ++at_;
      switch (escape) {
        case '"':
        case '\\':
        case '/':
          *out += escape;
          break;
        case 'n':
          *out += '\n';
          break;
        case 't':
          *out += '\t';
          break;
        case 'r':
          *out += '\r';
          break;
        case 'b':
          *out += '\b';
          break;
        case 'f':
          *out += '\f';
          break;
        case 'u': {
          uint32_t code = 0;
          for (int i = 0; i < 4; ++i, ++at_) {
            const char h = Peek();
            const int digit = h >= '0' && h <= '9'   ? h - '0'
                              : h >= 'a' && h <= 'f' ? h - 'a' + 10
                              : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                                     : -1;
            if (digit < 0) return Error("\\u needs four hex digits");
            code = code * 16 + static_cast<uint32_t>(digit);
          }
          AppendUtf8(code, out);
          break;
        }
        default:
          return Error("an unknown escape behind a backslash");
      }
    }
  }

  const std::string_view text_;
  const std::string_view name_;
  size_t at_ = 0;
  size_t line_begin_ = 0;
  int line_ = 1;
  int flow_depth_ = 0;
};

}  // namespace

SpecNode::SpecNode() = default;
SpecNode::SpecNode(const SpecNode&) = default;
SpecNode::SpecNode(SpecNode&&) noexcept = default;
SpecNode& SpecNode::operator=(const SpecNode&) = default;
SpecNode& SpecNode::operator=(SpecNode&&) noexcept = default;
SpecNode::~SpecNode() = default;

const SpecNode* SpecNode::Find(std::string_view key) const {
  for (const auto& [name, value] : fields) {
    if (name == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<SpecNode> ParseSpecText(std::string_view text, std::string_view name) {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": is ", text.size(), " bytes long; is it a spec?"));
  }
  // Editors of some systems begin a file with a byte order mark.
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  return Parser(text, name).Document();
}

}  // namespace hotrow
