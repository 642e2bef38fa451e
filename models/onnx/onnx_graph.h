#ifndef HOTROW_MODELS_ONNX_ONNX_GRAPH_H_
#define HOTROW_MODELS_ONNX_ONNX_GRAPH_H_

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "models/onnx/onnx_model.h"

namespace hotrow {

// What is written: what every onnxruntime from 1.12 on (2022) reads. ReduceMax and the like have
// their axes as an attribute in it, ReduceSum as an input.
inline constexpr int64_t kOnnxIrVersion = 8;
inline constexpr int64_t kOnnxOpset = 17;
inline constexpr int64_t kOnnxMlOpset = 2;
inline constexpr char kOnnxMlDomain[] = "ai.onnx.ml";
// The axis of samples.
inline constexpr char kOnnxBatchDim[] = "batch";

// Puts an OnnxModel together, one operation after the other. A value is known by its name; each
// function gives the name of the value that it adds, which is the one that was asked for, or, where
// that is taken, the same with ".1" and so on behind it. So equal calls give equal names. One
// thread.
class OnnxGraph {
 public:
  using Inputs = std::vector<std::string>;
  using Attributes = std::vector<OnnxAttribute>;

  // What a caller of the model gives and gets. The value of an output has its name.
  std::string Input(std::string_view name, OnnxType type, std::vector<OnnxDim> dims);
  void Output(std::string_view value, OnnxType type, std::vector<OnnxDim> dims);

  // An operation with one output.
  std::string Add(std::string_view op, std::string_view name, Inputs inputs,
                  Attributes attributes = {}, std::string_view domain = {});

  // Constants. Those of numbers are copies.
  std::string Floats(std::string_view name, std::vector<int64_t> dims, std::span<const float> data);
  std::string Ints(std::string_view name, std::vector<int64_t> dims, std::span<const int64_t> data);
  std::string Float(std::string_view name, float value) { return Floats(name, {}, {&value, 1}); }
  std::string Int(std::string_view name, int64_t value) { return Ints(name, {}, {&value, 1}); }
  std::string Floats(std::string_view name, std::vector<int64_t> dims, HostBuffer<float> data);

  // --- operations with their own constants, "name/..."

  // x with these sizes, where 0 is the size that x has there.
  std::string Reshape(std::string_view name, std::string_view x, const std::vector<int64_t>& sizes);
  // [.., begin:end, ..] of an axis.
  std::string Slice(std::string_view name, std::string_view x, int64_t axis, int64_t begin,
                    int64_t end);
  // x with an axis of size 1 more, before `axis`.
  std::string Unsqueeze(std::string_view name, std::string_view x, int64_t axis);
  // The sums along an axis, which goes, or stays with size 1.
  std::string ReduceSum(std::string_view name, std::string_view x, int64_t axis,
                        bool keep_axis = false);
  // The columns `indices` of the last axis of a matrix.
  std::string Columns(std::string_view name, std::string_view x,
                      const std::vector<int64_t>& indices);
  // The values side by side along an axis; of one: that value.
  std::string Concat(std::string_view name, const Inputs& values, int64_t axis);
  // The number of samples, INT64 [1], of the first input, which has them.
  std::string BatchSize();

  // The model so far, with its versions; the graph is of no use afterwards.
  OnnxModel Take();

 private:
  std::string Unique(std::string_view name);

  OnnxModel model_;
  std::set<std::string, std::less<>> names_;
  std::string batch_size_;
  bool uses_ml_ = false;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ONNX_ONNX_GRAPH_H_
