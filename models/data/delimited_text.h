#ifndef HOTROW_MODELS_DATA_DELIMITED_TEXT_H_
#define HOTROW_MODELS_DATA_DELIMITED_TEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/data/byte_stream.h"
#include "models/data/line_reader.h"

namespace hotrow {

// The text without blanks and tabs at both ends.
std::string_view TrimBlanks(std::string_view text);

// What a double quote at the beginning of a field means. Inside a field that does not begin with
// one, it is a character like any other.
enum class Quotes {
  kOff,      // it is a character like any other
  kOn,       // the field ends at the closing quote (RFC 4180): it may hold delimiters and line
             // breaks, and a quote is written twice
  kNotSaid,  // nobody knows, so it is an error
};

// How the fields of a record are written.
struct FieldSyntax {
  std::string delimiter = ",";  // one character or several
  Quotes quotes = Quotes::kOff;
  bool trim = false;  // blanks around fields and around their quotes do not count

  // Whether a quoted field is open where the line ends; open: whether one is where it begins.
  bool OpenAfter(std::string_view line, bool open) const;
};

// Cuts records into fields.
//
// Threads: one at a time.
class FieldSplitter {
 public:
  explicit FieldSplitter(FieldSyntax syntax) : syntax_(std::move(syntax)) {}

  // Views of the record and of this object, valid until the next call. InvalidArgument names the
  // column whose quotes are wrong, or not said to be quotes.
  absl::Status Split(std::string_view record, std::vector<std::string_view>* fields);

 private:
  size_t SkipBlanks(std::string_view record, size_t at) const;
  absl::Status TakeQuoted(std::string_view record, size_t column, size_t* at,
                          std::string_view* field);

  const FieldSyntax syntax_;
  std::string unquoted_;  // of fields that hold quotes
};

// Cuts a stream into records: lines, and where a quoted field goes over several lines, these
// together with LF between them.
//
// Threads: one at a time.
class RecordReader {
 public:
  RecordReader(std::unique_ptr<ByteStream> stream, FieldSyntax syntax)
      : lines_(std::move(stream)), syntax_(std::move(syntax)) {}

  // The next record without its end, valid until the next call. False at the end of the text and
  // after an error; status() tells which.
  bool Next(std::string_view* record) {
    if (!lines_.Next(record)) return false;
    line_number_ = lines_.line_number();
    if (syntax_.quotes != Quotes::kOn ||
        std::memchr(record->data(), '"', record->size()) == nullptr) {
      return true;
    }
    return Complete(record);
  }
  // The number of the first line of the record that Next gave last, counted from 1.
  int64_t line_number() const { return line_number_; }
  // As of LineReader; InvalidArgument too for a quote that is never closed. Such an error is about
  // line error_line().
  const absl::Status& status() const { return status_.ok() ? lines_.status() : status_; }
  int64_t error_line() const { return status_.ok() ? lines_.line_number() + 1 : line_number_; }

 private:
  // Adds lines to the record until its quotes are closed.
  bool Complete(std::string_view* record);

  LineReader lines_;
  const FieldSyntax syntax_;
  std::string record_;  // of several lines
  int64_t line_number_ = 0;
  absl::Status status_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_DELIMITED_TEXT_H_
