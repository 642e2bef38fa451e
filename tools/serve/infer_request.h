#ifndef HOTROW_TOOLS_SERVE_INFER_REQUEST_H_
#define HOTROW_TOOLS_SERVE_INFER_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// An infer request of the Open Inference Protocol v2, and its body as JSON with or without binary
// tensors behind it. Nothing here knows of models; nothing here reads sockets.

namespace hotrow {

// The datatypes that a scorer has use for.
enum class TensorType { kInt32, kInt64, kUint64, kFp16, kFp32, kBytes };
std::string_view TensorTypeName(TensorType type);  // "INT32"

// A tensor that came with a request: row-major elements, in the one array that fits its type.
struct InputTensor {
  std::string name;
  TensorType type = TensorType::kInt64;
  std::vector<int64_t> shape;
  std::vector<uint64_t> integers;  // INT32, INT64, UINT64: the value as 64 bits, -1 as 2^64 - 1
  std::vector<float> floats;       // FP16, FP32, all finite
  std::vector<std::string> texts;  // BYTES
};

struct OutputWish {
  std::string name;
  bool binary = false;
};

struct InferRequest {
  std::string id;                   // comes back with the answer
  int64_t timeout_us = 0;           // the parameter `timeout`; 0: none
  bool binary_outputs = false;      // the parameter `binary_data_output`
  std::vector<InputTensor> inputs;  // names differ
  std::vector<OutputWish> outputs;  // empty: all there are; names differ
};

// What a request may have. More is refused before memory is taken for it.
inline constexpr int64_t kInferTensorsMax = 4096;
inline constexpr int64_t kInferDimensionsMax = 8;
inline constexpr int64_t kInferIdBytesMax = 1024;

// Reads a body. json_bytes: of the header Inference-Header-Content-Length, how much of the body is
// JSON; none: all of it. Binary tensors follow in the order of `inputs`, little-endian, texts with
// their lengths as 32 bits in front.
//
// JSON data may be flat or nested as the shape says. Memory: some 24 bytes for each byte of JSON
// while this runs, then that of the elements; texts have 8 bytes at most for each byte behind it.
//
// Errors: InvalidArgument, which names the tensor, the position and the value, or line and column.
//         Members that the protocol does not know are refused, unknown parameters are passed over.
absl::StatusOr<InferRequest> ParseInferRequest(std::string_view body,
                                               std::optional<int64_t> json_bytes);

// --- The parts of a request that does not come as JSON. Errors: as above.

// Sets the type of a tensor that has its name and shape. Returns the number of its elements.
absl::StatusOr<int64_t> TakeDatatype(std::string_view datatype, InputTensor* tensor);

// Elements from bytes, as they are behind JSON.
absl::Status ReadElements(std::string_view bytes, int64_t elements, InputTensor* tensor);

// Whether a parameter asks for what is not there. place: what has it, for the message.
absl::Status CheckParameter(std::string_view name, std::string_view place);

// Whether names of inputs and of outputs differ, and the id is short enough.
absl::Status CheckNames(const InferRequest& request);

// The position of an element in a tensor, for messages: "[3,0]".
std::string PositionText(int64_t element, const std::vector<int64_t>& shape);

// "[2,3]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_INFER_REQUEST_H_
