#ifndef HOTROW_TESTS_MODELS_ONNX_READER_H_
#define HOTROW_TESTS_MODELS_ONNX_READER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// ONNX files as a reader of onnx.proto sees them, written apart from models/onnx.
namespace hotrow::test {

// A field of a message of protobuf.
struct WireField {
  uint32_t number = 0;
  uint64_t value = 0;      // of a number
  std::string_view bytes;  // of anything longer
  std::string text() const { return std::string(bytes); }
};

// The fields of a message; a failure of the test where it is none.
inline std::vector<WireField> WireFields(std::string_view bytes) {
  std::vector<WireField> out;
  bool good = true;
  const auto varint = [&]() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes.front());
      bytes.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    good = false;
    return value;
  };
  while (good && !bytes.empty()) {
    const uint64_t tag = varint();
    WireField field = {.number = static_cast<uint32_t>(tag >> 3)};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        break;
      case 2: {
        const uint64_t size = varint();
        good = good && size <= bytes.size();
        if (!good) break;
        field.bytes = bytes.substr(0, size);
        bytes.remove_prefix(size);
        break;
      }
      case 5:
        good = bytes.size() >= 4;
        if (!good) break;
        field.bytes = bytes.substr(0, 4);
        bytes.remove_prefix(4);
        break;
      default:
        good = false;
    }
    out.push_back(field);
  }
  EXPECT_TRUE(good) << "no message of protobuf";
  return out;
}

struct ReadOnnxNode {
  std::string op, domain, name;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, std::vector<int64_t>> ints;  // attributes that are numbers
};
struct ReadOnnxTensor {
  int64_t type = 0;
  std::vector<int64_t> dims;
  std::string data;
  int64_t size() const {
    int64_t out = 1;
    for (const int64_t dim : dims) out *= dim;
    return out;
  }
};
struct ReadOnnxModel {
  int64_t ir_version = 0;
  std::string producer, graph_name;
  std::map<std::string, int64_t> opsets;
  std::map<std::string, std::string> metadata;
  std::vector<ReadOnnxNode> nodes;
  std::map<std::string, ReadOnnxTensor> initializers;
  // In their order, as text: "FLOAT [batch, 3]".
  std::vector<std::pair<std::string, std::string>> inputs, outputs;

  const ReadOnnxNode* Find(std::string_view name) const {
    for (const ReadOnnxNode& node : nodes) {
      if (node.name == name) return &node;
    }
    return nullptr;
  }
};

inline ReadOnnxNode ReadNode(std::string_view bytes) {
  ReadOnnxNode out;
  for (const WireField& field : WireFields(bytes)) {
    if (field.number == 1) out.inputs.push_back(field.text());
    if (field.number == 2) out.outputs.push_back(field.text());
    if (field.number == 3) out.name = field.text();
    if (field.number == 4) out.op = field.text();
    if (field.number == 7) out.domain = field.text();
    if (field.number != 5) continue;
    std::string name;
    std::vector<int64_t> ints;
    for (const WireField& of : WireFields(field.bytes)) {
      if (of.number == 1) name = of.text();
      if (of.number == 3 || of.number == 8) ints.push_back(static_cast<int64_t>(of.value));
    }
    out.ints[name] = std::move(ints);
  }
  return out;
}

inline std::pair<std::string, ReadOnnxTensor> ReadTensor(std::string_view bytes) {
  std::string name;
  ReadOnnxTensor out;
  for (const WireField& field : WireFields(bytes)) {
    if (field.number == 1) out.dims.push_back(static_cast<int64_t>(field.value));
    if (field.number == 2) out.type = static_cast<int64_t>(field.value);
    if (field.number == 8) name = field.text();
    if (field.number == 9) out.data = field.text();
  }
  return {name, out};
}

inline std::pair<std::string, std::string> ReadValueInfo(std::string_view bytes) {
  std::pair<std::string, std::string> out;
  for (const WireField& field : WireFields(bytes)) {
    if (field.number == 1) out.first = field.text();
    if (field.number != 2) continue;
    for (const WireField& tensor : WireFields(WireFields(field.bytes).at(0).bytes)) {
      if (tensor.number == 1) {
        out.second = tensor.value == 1 ? "FLOAT [" : tensor.value == 7 ? "INT64 [" : "? [";
      }
      if (tensor.number != 2) continue;
      for (const WireField& dim : WireFields(tensor.bytes)) {
        const WireField of = WireFields(dim.bytes).at(0);
        absl::StrAppend(&out.second, out.second.back() == '[' ? "" : ", ",
                        of.number == 1 ? absl::StrCat(of.value) : of.text());
      }
    }
  }
  out.second += "]";
  return out;
}

inline ReadOnnxModel ReadOnnx(std::string_view bytes) {
  ReadOnnxModel out;
  for (const WireField& field : WireFields(bytes)) {
    if (field.number == 1) out.ir_version = static_cast<int64_t>(field.value);
    if (field.number == 2) out.producer = field.text();
    if (field.number == 8) {
      const std::vector<WireField> opset = WireFields(field.bytes);
      out.opsets[opset.at(0).text()] = static_cast<int64_t>(opset.at(1).value);
    }
    if (field.number == 14) {
      const std::vector<WireField> entry = WireFields(field.bytes);
      out.metadata[entry.at(0).text()] = entry.at(1).text();
    }
    if (field.number != 7) continue;
    for (const WireField& of : WireFields(field.bytes)) {
      if (of.number == 1) out.nodes.push_back(ReadNode(of.bytes));
      if (of.number == 2) out.graph_name = of.text();
      if (of.number == 5) {
        const auto [name, tensor] = ReadTensor(of.bytes);
        EXPECT_TRUE(out.initializers.emplace(name, tensor).second) << name << " twice";
      }
      if (of.number == 11) out.inputs.push_back(ReadValueInfo(of.bytes));
      if (of.number == 12) out.outputs.push_back(ReadValueInfo(of.bytes));
    }
  }
  return out;
}

// What must hold of every graph: each value has one name and is made before it is read, constants
// are as long as their shapes say and are read, and so is what nodes make.
inline void ExpectSoundOnnx(const ReadOnnxModel& model) {
  std::set<std::string> known, read;
  for (const auto& [name, type] : model.inputs) EXPECT_TRUE(known.insert(name).second) << name;
  for (const auto& [name, tensor] : model.initializers) {
    EXPECT_TRUE(known.insert(name).second) << name;
    ASSERT_TRUE(tensor.type == 1 || tensor.type == 7) << name << ": type " << tensor.type;
    EXPECT_EQ(static_cast<int64_t>(tensor.data.size()), tensor.size() * (tensor.type == 1 ? 4 : 8))
        << name;
  }
  for (const ReadOnnxNode& node : model.nodes) {
    for (const std::string& input : node.inputs) {
      EXPECT_TRUE(known.contains(input)) << node.name << " reads " << input;
      read.insert(input);
    }
    ASSERT_EQ(node.outputs.size(), 1u) << node.name;
    EXPECT_EQ(node.outputs[0], node.name);
    EXPECT_TRUE(known.insert(node.name).second) << node.name;
    EXPECT_TRUE(model.opsets.contains(node.domain)) << node.name << ": " << node.domain;
  }
  for (const auto& [name, type] : model.outputs) {
    EXPECT_TRUE(known.contains(name)) << name;
    read.insert(name);
  }
  for (const std::string& name : known)
    EXPECT_TRUE(read.contains(name)) << "nothing reads " << name;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_ONNX_READER_H_
