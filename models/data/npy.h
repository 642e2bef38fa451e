#ifndef HOTROW_MODELS_DATA_NPY_H_
#define HOTROW_MODELS_DATA_NPY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/byte_stream.h"

namespace hotrow {

// The header of an array file (numpy's format, versions 1.0 to 3.0), little-endian and in C order.
struct NpyHeader {
  std::string dtype;  // "<f4"
  int64_t item_bytes = 0;
  std::vector<int64_t> shape;
  int64_t header_bytes = 0;  // the data begins here
  int64_t data_bytes = 0;    // of the whole array

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  // Bytes of one row, all dimensions but the first.
  int64_t row_bytes() const;
  std::string ShapeText() const;  // "(3, 13)"
};

// Parses the header at the start of `bytes`, which need not hold the data. InvalidArgument names
// what is wrong; OutOfRange: bytes ends before the header does.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes);

// Bytes of what NpyHeaderText gives, for any shape: the number of rows can be written when it is
// known.
inline constexpr int64_t kNpyHeaderBytes = 128;

// The header of an array in C order, version 1.0, of kNpyHeaderBytes bytes. At most two dimensions.
std::string NpyHeaderText(std::string_view dtype, std::span<const int64_t> shape);

// Reads the header off the stream and nothing more. `name` is the place in errors.
absl::StatusOr<NpyHeader> ReadNpyHeader(ByteStream& stream, const std::string& name);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_NPY_H_
