#include "models/onnx/onnx_model.h"

#include <bit>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

static_assert(std::endian::native == std::endian::little, "raw_data is little-endian");

// Field numbers of onnx.proto.
enum AttributeField { kAttributeName = 1, kAttributeF = 2, kAttributeI = 3, kAttributeInts = 8 };
constexpr int kAttributeType = 20;
enum AttributeType { kTypeFloat = 1, kTypeInt = 2, kTypeInts = 7 };
enum NodeField {
  kNodeInput = 1,
  kNodeOutput = 2,
  kNodeName = 3,
  kNodeOp = 4,
  kNodeAttribute = 5,
  kNodeDomain = 7
};
enum TensorField { kTensorDims = 1, kTensorType = 2, kTensorName = 8, kTensorRaw = 9 };
enum ValueField { kValueName = 1, kValueType = 2 };
enum TypeField { kTypeTensor = 1 };
enum TensorTypeField { kTensorTypeElem = 1, kTensorTypeShape = 2 };
enum ShapeField { kShapeDim = 1 };
enum DimField { kDimValue = 1, kDimParam = 2 };
enum GraphField {
  kGraphNode = 1,
  kGraphName = 2,
  kGraphInitializer = 5,
  kGraphInput = 11,
  kGraphOutput = 12
};
enum OpsetField { kOpsetDomain = 1, kOpsetVersion = 2 };
enum EntryField { kEntryKey = 1, kEntryValue = 2 };
enum ModelField {
  kModelIrVersion = 1,
  kModelProducerName = 2,
  kModelProducerVersion = 3,
  kModelGraph = 7,
  kModelOpset = 8,
  kModelMetadata = 14
};

// A message in protobuf's wire format, field by field. They are written in the order of their
// numbers, and numbers one by one, as onnx.proto has them: these are the bytes that protobuf makes.
class Message {
 public:
  void Int(int field, int64_t value) {
    Tag(field, kVarint);
    Varint(static_cast<uint64_t>(value));
  }
  void Float(int field, float value) {
    Tag(field, kFixed32);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
  }
  void Bytes(int field, std::string_view value) {
    BytesHead(field, static_cast<int64_t>(value.size()));
    bytes_ += value;
  }
  // What stands before so many bytes of a field.
  void BytesHead(int field, int64_t size) {
    Tag(field, kLengthDelimited);
    Varint(static_cast<uint64_t>(size));
  }
  void Ints(int field, const std::vector<int64_t>& values) {
    for (const int64_t value : values) Int(field, value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  enum WireType { kVarint = 0, kLengthDelimited = 2, kFixed32 = 5 };
  void Tag(int field, WireType type) { Varint(static_cast<uint64_t>(field) << 3 | type); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

std::string AttributeBytes(const OnnxAttribute& attribute) {
  Message out;
  out.Bytes(kAttributeName, attribute.name);
  if (const auto* const f = std::get_if<float>(&attribute.value)) {
    out.Float(kAttributeF, *f);
    out.Int(kAttributeType, kTypeFloat);
  } else if (const auto* const i = std::get_if<int64_t>(&attribute.value)) {
    out.Int(kAttributeI, *i);
    out.Int(kAttributeType, kTypeInt);
  } else {
    out.Ints(kAttributeInts, std::get<std::vector<int64_t>>(attribute.value));
    out.Int(kAttributeType, kTypeInts);
  }
  return out.bytes();
}

std::string NodeBytes(const OnnxNode& node) {
  Message out;
  for (const std::string& input : node.inputs) out.Bytes(kNodeInput, input);
  out.Bytes(kNodeOutput, node.name);
  out.Bytes(kNodeName, node.name);
  out.Bytes(kNodeOp, node.op);
  for (const OnnxAttribute& attribute : node.attributes) {
    out.Bytes(kNodeAttribute, AttributeBytes(attribute));
  }
  if (!node.domain.empty()) out.Bytes(kNodeDomain, node.domain);
  return out.bytes();
}

std::string ValueBytes(const OnnxValueInfo& value) {
  Message shape;
  for (const OnnxDim& dim : value.dims) {
    Message axis;
    if (const auto* const size = std::get_if<int64_t>(&dim)) {
      axis.Int(kDimValue, *size);
    } else {
      axis.Bytes(kDimParam, std::get<std::string>(dim));
    }
    shape.Bytes(kShapeDim, axis.bytes());
  }
  Message tensor;
  tensor.Int(kTensorTypeElem, static_cast<int64_t>(value.type));
  tensor.Bytes(kTensorTypeShape, shape.bytes());
  Message type;
  type.Bytes(kTypeTensor, tensor.bytes());
  Message out;
  out.Bytes(kValueName, value.name);
  out.Bytes(kValueType, type.bytes());
  return out.bytes();
}

// A tensor up to its data.
std::string TensorHead(const OnnxTensor& tensor) {
  Message out;
  out.Ints(kTensorDims, tensor.dims);
  out.Int(kTensorType, static_cast<int64_t>(tensor.type));
  out.Bytes(kTensorName, tensor.name);
  out.BytesHead(kTensorRaw, std::ssize(tensor.data));
  return out.bytes();
}

// A file as pieces, one behind the other: bytes, then the data of a constant.
struct Piece {
  std::string bytes;
  std::span<const std::byte> data;
  int64_t size() const { return static_cast<int64_t>(bytes.size()) + std::ssize(data); }
};

std::vector<Piece> Pieces(const OnnxModel& model) {
  std::vector<Piece> pieces(1);  // the first one is the model up to its graph
  for (const OnnxNode& node : model.nodes) {
    Message out;
    out.Bytes(kGraphNode, NodeBytes(node));
    pieces.push_back({out.bytes(), {}});
  }
  Message name;
  name.Bytes(kGraphName, model.graph_name);
  pieces.push_back({name.bytes(), {}});
  for (const OnnxTensor& tensor : model.initializers) {
    const std::string head = TensorHead(tensor);
    Message out;
    out.BytesHead(kGraphInitializer, static_cast<int64_t>(head.size()) + std::ssize(tensor.data));
    pieces.push_back({out.bytes() + head, tensor.data});
  }
  Message values;
  for (const OnnxValueInfo& value : model.inputs) values.Bytes(kGraphInput, ValueBytes(value));
  for (const OnnxValueInfo& value : model.outputs) values.Bytes(kGraphOutput, ValueBytes(value));
  pieces.push_back({values.bytes(), {}});
  int64_t graph_bytes = 0;
  for (const Piece& piece : pieces) graph_bytes += piece.size();

  Message head;
  head.Int(kModelIrVersion, model.ir_version);
  head.Bytes(kModelProducerName, model.producer_name);
  head.Bytes(kModelProducerVersion, model.producer_version);
  head.BytesHead(kModelGraph, graph_bytes);
  pieces.front().bytes = head.bytes();
  Message rest;
  for (const auto& [domain, version] : model.opsets) {
    Message opset;
    opset.Bytes(kOpsetDomain, domain);
    opset.Int(kOpsetVersion, version);
    rest.Bytes(kModelOpset, opset.bytes());
  }
  for (const auto& [key, value] : model.metadata) {
    Message entry;
    entry.Bytes(kEntryKey, key);
    entry.Bytes(kEntryValue, value);
    rest.Bytes(kModelMetadata, entry.bytes());
  }
  pieces.push_back({rest.bytes(), {}});
  return pieces;
}

absl::Status WritePieces(const std::vector<Piece>& pieces, File& file) {
  int64_t at = 0;
  std::string small;  // pieces without data, gathered
  const auto flush = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(WriteFull(file, at, std::as_bytes(std::span(small))));
    at += static_cast<int64_t>(small.size());
    small.clear();
    return absl::OkStatus();
  };
  for (const Piece& piece : pieces) {
    small += piece.bytes;
    if (piece.data.empty()) continue;
    HOTROW_RETURN_IF_ERROR(flush());
    HOTROW_RETURN_IF_ERROR(WriteFull(file, at, piece.data));
    at += std::ssize(piece.data);
  }
  return flush();
}

}  // namespace

std::string EncodeOnnx(const OnnxModel& model) {
  std::string out;
  for (const Piece& piece : Pieces(model)) {
    out += piece.bytes;
    out.append(reinterpret_cast<const char*>(piece.data.data()), piece.data.size());
  }
  return out;
}

absl::StatusOr<int64_t> WriteOnnx(Env& env, const std::string& path, const OnnxModel& model) {
  const std::vector<Piece> pieces = Pieces(model);
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.size();
  if (bytes > kOnnxBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        path, ": the file would have ", bytes, " bytes; an ONNX file has at most ", kOnnxBytesMax));
  }
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomicallyWith(env, path, [&](File& file) { return WritePieces(pieces, file); }));
  return bytes;
}

}  // namespace hotrow
