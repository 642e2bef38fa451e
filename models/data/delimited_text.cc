#include "models/data/delimited_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// The place of the quote that closes a field whose text begins at `at`; npos: there is none.
size_t ClosingQuote(std::string_view text, size_t at) {
  while (true) {
    at = text.find('"', at);
    if (at == std::string_view::npos || at + 1 == text.size() || text[at + 1] != '"') return at;
    at += 2;
  }
}

absl::Status QuotesNotSaid(size_t column) {
  return absl::InvalidArgumentError(absl::StrCat(
      "column ", column,
      " begins with a double quote, and the schema does not say what that means; give \"quotes\": "
      "true where fields stand in quotes, or \"quotes\": false where a quote is a character like "
      "any other, as it was for models of builds before 2026-11-23"));
}

// A delimiter may be a blank.
size_t SkipBlanksBefore(std::string_view text, size_t at, const std::string& delimiter) {
  while (at < text.size() && IsBlank(text[at]) && !text.substr(at).starts_with(delimiter)) {
    ++at;
  }
  return at;
}

}  // namespace

std::string_view TrimBlanks(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

bool FieldSyntax::OpenAfter(std::string_view line, bool open) const {
  for (size_t at = 0;;) {
    if (!open) {
      if (trim) at = SkipBlanksBefore(line, at, delimiter);
      open = quotes == Quotes::kOn && at < line.size() && line[at] == '"';
      if (open) ++at;
    }
    if (open) {
      at = ClosingQuote(line, at);
      if (at == std::string_view::npos) return true;
      open = false;
      ++at;
    }
    at = line.find(delimiter, at);
    if (at == std::string_view::npos) return false;
    at += delimiter.size();
  }
}

size_t FieldSplitter::SkipBlanks(std::string_view record, size_t at) const {
  return syntax_.trim ? SkipBlanksBefore(record, at, syntax_.delimiter) : at;
}

absl::Status FieldSplitter::TakeQuoted(std::string_view record, size_t column, size_t* at,
                                       std::string_view* field) {
  const auto wrong = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "column ", column, ": ", std::string(what),
        "; inside quotes a quote is written twice; \"quotes\": false in the schema makes quotes "
        "characters like any other"));
  };
  const size_t begin = *at + 1;
  const size_t end = ClosingQuote(record, begin);
  if (end == std::string_view::npos) return wrong("its quote is not closed");
  *field = record.substr(begin, end - begin);
  *at = SkipBlanks(record, end + 1);
  if (*at < record.size() && !record.substr(*at).starts_with(syntax_.delimiter)) {
    return wrong("there is text after its closing quote");
  }
  if (field->find('"') == std::string_view::npos) return absl::OkStatus();
  const size_t from = unquoted_.size();
  for (size_t i = 0; i < field->size(); ++i) {
    unquoted_ += (*field)[i];
    if ((*field)[i] == '"') ++i;  // the second of two
  }
  *field = std::string_view(unquoted_).substr(from);
  return absl::OkStatus();
}

absl::Status FieldSplitter::Split(std::string_view record, std::vector<std::string_view>* fields) {
  fields->clear();
  unquoted_.clear();
  unquoted_.reserve(record.size());  // fields are views of it: it must not move
  for (size_t at = 0;; at += syntax_.delimiter.size()) {
    std::string_view field;
    const size_t begin = SkipBlanks(record, at);
    if (syntax_.quotes != Quotes::kOff && begin < record.size() && record[begin] == '"') {
      // Up to this field the record means the same either way.
      if (syntax_.quotes == Quotes::kNotSaid) return QuotesNotSaid(fields->size() + 1);
      at = begin;
      HOTROW_RETURN_IF_ERROR(TakeQuoted(record, fields->size() + 1, &at, &field));
    } else {
      const size_t end = std::min(record.find(syntax_.delimiter, at), record.size());
      field = record.substr(at, end - at);
      if (syntax_.trim) field = TrimBlanks(field);
      at = end;
    }
    fields->push_back(field);
    if (at == record.size()) return absl::OkStatus();
  }
}

bool RecordReader::Complete(std::string_view* record) {
  bool open = syntax_.OpenAfter(*record, /*open=*/false);
  if (!open) return true;
  record_.assign(*record);
  while (open) {
    std::string_view line;
    const bool more = lines_.Next(&line);
    if (!more && !lines_.status().ok()) return false;
    if (!more || static_cast<int64_t>(record_.size() + line.size()) > LineReader::kMaxLineBytes) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "a quote is opened and not closed ",
          more ? absl::StrCat("within ", LineReader::kMaxLineBytes, " bytes") : "in this file",
          "; inside quotes a quote is written twice; \"quotes\": false in the schema makes quotes "
          "characters like any other"));
      return false;
    }
    absl::StrAppend(&record_, "\n", std::string(line));
    open = syntax_.OpenAfter(line, open);
  }
  *record = record_;
  return true;
}

}  // namespace hotrow
