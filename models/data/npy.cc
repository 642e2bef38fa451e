#include "models/data/npy.h"

#include <charconv>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeaderBytes = 64 << 10;  // numpy itself refuses more than 10,000

absl::Status Invalid(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("npy header: ", std::string(what)));
}

// A cursor over the Python literal {'descr': '<f4', 'fortran_order': False, 'shape': (3, 13), }.
class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  void SkipBlanks() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
  }
  bool Take(std::string_view token) {
    SkipBlanks();
    if (text_.substr(0, token.size()) != token) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  bool TakeString(std::string* out) {
    SkipBlanks();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) return false;
    const size_t end = text_.find(text_[0], 1);
    if (end == std::string_view::npos) return false;
    *out = std::string(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return out->find('\\') == std::string::npos;
  }
  bool TakeCount(int64_t* out) {
    SkipBlanks();
    if (text_.empty() || text_[0] < '0' || text_[0] > '9') return false;
    const auto result = std::from_chars(text_.data(), text_.data() + text_.size(), *out);
    text_.remove_prefix(static_cast<size_t>(result.ptr - text_.data()));
    return result.ec == std::errc();
  }
  // (), (3,), (3, 13): a comma follows each number, but for the last of several.
  bool TakeShape(std::vector<int64_t>* shape) {
    if (!Take("(")) return false;
    bool comma = true;
    while (!Take(")")) {
      int64_t count = 0;
      if (!comma || !TakeCount(&count)) return false;
      shape->push_back(count);
      comma = Take(",");
    }
    return shape->size() != 1 || comma;
  }
  bool AtEnd() {
    SkipBlanks();
    return text_.empty();
  }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

absl::Status ParseDtype(const std::string& dtype, NpyHeader* header) {
  const bool known = dtype.size() == 3 && std::string_view("<|>=").find(dtype[0]) < 4 &&
                     std::string_view("fiub").find(dtype[1]) < 4 &&
                     std::string_view("1248").find(dtype[2]) < 4;
  if (!known) {
    return Invalid(absl::StrCat("dtype is ", QuoteForMessage(dtype),
                                ", expected one such as \"<f4\" or \"<i4\""));
  }
  header->item_bytes = dtype[2] - '0';
  if (dtype[0] == '>') {
    return Invalid(absl::StrCat("dtype ", dtype, " is big-endian, expected little-endian"));
  }
  if (dtype[0] != '<' && header->item_bytes > 1) {
    return Invalid(absl::StrCat("dtype ", dtype, " has no byte order, expected <"));
  }
  header->dtype = dtype;
  return absl::OkStatus();
}

absl::Status ParseDictionary(std::string_view text, NpyHeader* header) {
  Literal literal(text);
  bool seen[3] = {};
  const auto broken = [&] {
    return Invalid(absl::StrCat("cannot read ", QuoteForMessage(literal.rest()), " of ",
                                QuoteForMessage(text)));
  };
  if (!literal.Take("{")) return broken();
  bool comma = true;
  while (!literal.Take("}")) {
    std::string key;
    if (!comma || !literal.TakeString(&key) || !literal.Take(":")) return broken();
    int index = 0;
    if (key == "descr") {
      std::string dtype;
      if (!literal.TakeString(&dtype)) {
        return Invalid(absl::StrCat("dtype is ", QuoteForMessage(literal.rest()),
                                    ", expected one such as '<f4'"));
      }
      HOTROW_RETURN_IF_ERROR(ParseDtype(dtype, header));
    } else if (key == "fortran_order") {
      index = 1;
      if (literal.Take("True")) return Invalid("the array is in Fortran order, expected C order");
      if (!literal.Take("False")) return broken();
    } else if (key == "shape") {
      index = 2;
      if (!literal.TakeShape(&header->shape)) return broken();
    } else {
      return Invalid(absl::StrCat("unknown key ", QuoteForMessage(key)));
    }
    if (seen[index]) return Invalid(absl::StrCat("key ", key, " twice"));
    seen[index] = true;
    comma = literal.Take(",");
  }
  if (!literal.AtEnd()) return broken();
  if (!seen[0] || !seen[1] || !seen[2]) {
    return Invalid("expected the keys descr, fortran_order and shape");
  }
  return absl::OkStatus();
}

uint32_t LittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return value;
}

}  // namespace

int64_t NpyHeader::row_bytes() const {
  int64_t bytes = item_bytes;
  for (size_t i = 1; i < shape.size(); ++i) bytes *= shape[i];
  return bytes;
}

std::string NpyHeader::ShapeText() const {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

// Layout: magic, major and minor version (1 byte each), length of what follows (2 bytes in version
// 1, 4 later, little-endian), the dictionary, padded with blanks.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes) {
  const std::string_view start = bytes.substr(0, kMagic.size());
  if (start != kMagic.substr(0, start.size())) {
    return Invalid(
        absl::StrCat("starts with ", QuoteForMessage(start), ", expected \"\\x93NUMPY\""));
  }
  if (bytes.size() < kMagic.size() + 4) return absl::OutOfRangeError("npy header: ends early");
  const auto major = static_cast<unsigned char>(bytes[6]);
  const auto minor = static_cast<unsigned char>(bytes[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return Invalid(absl::StrCat("version ", major, ".", minor, ", expected 1.0, 2.0 or 3.0"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t begin = kMagic.size() + 2 + length_bytes;
  if (bytes.size() < begin) return absl::OutOfRangeError("npy header: ends early");
  const size_t length = LittleEndian(bytes.substr(kMagic.size() + 2, length_bytes));
  if (length > kMaxHeaderBytes) {
    return Invalid(absl::StrCat("is ", length, " bytes long, at most ", kMaxHeaderBytes));
  }
  if (bytes.size() < begin + length) return absl::OutOfRangeError("npy header: ends early");

  NpyHeader header;
  header.header_bytes = static_cast<int64_t>(begin + length);
  HOTROW_RETURN_IF_ERROR(ParseDictionary(bytes.substr(begin, length), &header));
  // The product is checked without the zeros, so that row_bytes() fits as well.
  int64_t product = header.item_bytes;
  bool empty = false;
  for (const int64_t dimension : header.shape) {
    empty = empty || dimension == 0;
    if (dimension > 0 && __builtin_mul_overflow(product, dimension, &product)) {
      return Invalid(absl::StrCat("shape ", header.ShapeText(), " is too large"));
    }
  }
  header.data_bytes = empty ? 0 : product;
  return header;
}

std::string NpyHeaderText(std::string_view dtype, std::span<const int64_t> shape) {
  constexpr size_t kBegin = kMagic.size() + 2 + 2;
  constexpr size_t kLength = kNpyHeaderBytes - kBegin;
  std::string text =
      absl::StrCat("{'descr': '", std::string(dtype), "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  HOTROW_CHECK(text.size() < kLength);  // two numbers of 19 digits leave room
  text.resize(kLength - 1, ' ');
  std::string out(kMagic);
  out += {'\x01', '\x00', static_cast<char>(kLength), '\x00'};  // version, length
  return out + text + "\n";
}

absl::StatusOr<NpyHeader> ReadNpyHeader(ByteStream& stream, const std::string& name) {
  std::string bytes;
  size_t wanted = kMagic.size() + 2 + 2;
  while (true) {
    const size_t have = bytes.size();
    bytes.resize(wanted);
    const auto room = std::as_writable_bytes(std::span(bytes)).subspan(have);
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, ReadUpTo(stream, room));
    bytes.resize(have + static_cast<size_t>(got));
    absl::StatusOr<NpyHeader> header = ParseNpyHeader(bytes);
    if (header.ok()) return header;
    if (!absl::IsOutOfRange(header.status()) || bytes.size() < wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", std::string(header.status().message())));
    }
    // First the rest of the length, then exactly the dictionary.
    const bool long_length = bytes[6] != 1;
    const size_t begin = kMagic.size() + 2 + (long_length ? 4 : 2);
    if (bytes.size() < begin) {
      wanted = begin;
    } else {
      wanted = begin + LittleEndian(std::string_view(bytes).substr(8, long_length ? 4 : 2));
    }
  }
}

}  // namespace hotrow
