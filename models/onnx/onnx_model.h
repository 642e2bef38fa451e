#ifndef HOTROW_MODELS_ONNX_ONNX_MODEL_H_
#define HOTROW_MODELS_ONNX_ONNX_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"

// A model in the words of onnx.proto (github.com/onnx/onnx), as much of it as hotrow writes.
namespace hotrow {

// TensorProto.DataType.
enum class OnnxType : int32_t { kFloat = 1, kInt64 = 7, kBool = 9 };

// An axis of an input or output: a size, or the name of one that a caller chooses.
using OnnxDim = std::variant<int64_t, std::string>;

struct OnnxValueInfo {
  std::string name;
  OnnxType type = OnnxType::kFloat;
  std::vector<OnnxDim> dims;
};

struct OnnxAttribute {
  std::string name;
  // FLOAT, INT, INTS
  std::variant<float, int64_t, std::vector<int64_t>> value;
};

struct OnnxNode {
  std::string op;
  std::string domain;  // empty: ONNX's own
  std::string name;    // also of its only output
  std::vector<std::string> inputs;
  std::vector<OnnxAttribute> attributes;
};

// A constant. Its elements are as they lie in memory, which on the machines that hotrow knows is
// the little-endian order that raw_data has.
struct OnnxTensor {
  std::string name;
  OnnxType type = OnnxType::kFloat;
  std::vector<int64_t> dims;
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner;  // of data
};

struct OnnxModel {
  int64_t ir_version = 0;
  std::vector<std::pair<std::string, int64_t>> opsets;  // domain and version
  std::string producer_name;
  std::string producer_version;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string graph_name;
  std::vector<OnnxNode> nodes;  // each behind those whose outputs it reads
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValueInfo> inputs;
  std::vector<OnnxValueInfo> outputs;
};

// A message of protobuf has at most 2^31 - 1 bytes, and an ONNX file is one.
inline constexpr int64_t kOnnxBytesMax = (int64_t{1} << 31) - 1;

// The bytes of a file, for small models.
std::string EncodeOnnx(const OnnxModel& model);

// Writes the file, whole or not at all (WriteFileAtomically). Constants go into it from where they
// lie. Returns how many bytes it has.
//
// Errors: ResourceExhausted (more than kOnnxBytesMax; nothing is written), those of the Env.
absl::StatusOr<int64_t> WriteOnnx(Env& env, const std::string& path, const OnnxModel& model);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ONNX_ONNX_MODEL_H_
