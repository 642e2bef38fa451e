#include "models/onnx/onnx_graph.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace hotrow {
namespace {

// A copy that lives as long as the tensor.
template <typename T>
OnnxTensor Copied(std::string name, OnnxType type, std::vector<int64_t> dims,
                  std::span<const T> data) {
  const auto copy = std::make_shared<std::vector<T>>(data.begin(), data.end());
  return {.name = std::move(name),
          .type = type,
          .dims = std::move(dims),
          .data = std::as_bytes(std::span(*copy)),
          .owner = copy};
}

std::string Part(std::string_view name, std::string_view part) {
  return absl::StrCat(std::string(name), "/", std::string(part));
}

}  // namespace

std::string OnnxGraph::Unique(std::string_view name) {
  std::string unique(name);
  for (int32_t i = 1; !names_.insert(unique).second; ++i) {
    unique = absl::StrCat(std::string(name), ".", i);
  }
  return unique;
}

std::string OnnxGraph::Input(std::string_view name, OnnxType type, std::vector<OnnxDim> dims) {
  std::string unique = Unique(name);
  model_.inputs.push_back({.name = unique, .type = type, .dims = std::move(dims)});
  return unique;
}

void OnnxGraph::Output(std::string_view value, OnnxType type, std::vector<OnnxDim> dims) {
  HOTROW_CHECK(names_.contains(value));
  model_.outputs.push_back({.name = std::string(value), .type = type, .dims = std::move(dims)});
}

std::string OnnxGraph::Add(std::string_view op, std::string_view name, Inputs inputs,
                           Attributes attributes, std::string_view domain) {
  for (const std::string& input : inputs) HOTROW_CHECK(names_.contains(input));
  std::string unique = Unique(name);
  model_.nodes.push_back({.op = std::string(op),
                          .domain = std::string(domain),
                          .name = unique,
                          .inputs = std::move(inputs),
                          .attributes = std::move(attributes)});
  uses_ml_ = uses_ml_ || domain == kOnnxMlDomain;
  return unique;
}

std::string OnnxGraph::Floats(std::string_view name, std::vector<int64_t> dims,
                              std::span<const float> data) {
  std::string unique = Unique(name);
  model_.initializers.push_back(Copied(unique, OnnxType::kFloat, std::move(dims), data));
  return unique;
}

std::string OnnxGraph::Ints(std::string_view name, std::vector<int64_t> dims,
                            std::span<const int64_t> data) {
  std::string unique = Unique(name);
  model_.initializers.push_back(Copied(unique, OnnxType::kInt64, std::move(dims), data));
  return unique;
}

std::string OnnxGraph::Floats(std::string_view name, std::vector<int64_t> dims,
                              HostBuffer<float> data) {
  std::string unique = Unique(name);
  const auto owner = std::make_shared<HostBuffer<float>>(std::move(data));
  model_.initializers.push_back({.name = unique,
                                 .type = OnnxType::kFloat,
                                 .dims = std::move(dims),
                                 .data = std::as_bytes(owner->span()),
                                 .owner = owner});
  return unique;
}

std::string OnnxGraph::Reshape(std::string_view name, std::string_view x,
                               const std::vector<int64_t>& sizes) {
  const std::string shape = Ints(Part(name, "shape"), {std::ssize(sizes)}, sizes);
  return Add("Reshape", name, {std::string(x), shape});
}

std::string OnnxGraph::Slice(std::string_view name, std::string_view x, int64_t axis, int64_t begin,
                             int64_t end) {
  const std::string from = Ints(Part(name, "begin"), {1}, {&begin, 1});
  const std::string to = Ints(Part(name, "end"), {1}, {&end, 1});
  const std::string axes = Ints(Part(name, "axis"), {1}, {&axis, 1});
  return Add("Slice", name, {std::string(x), from, to, axes});
}

std::string OnnxGraph::Unsqueeze(std::string_view name, std::string_view x, int64_t axis) {
  const std::string axes = Ints(Part(name, "axis"), {1}, {&axis, 1});
  return Add("Unsqueeze", name, {std::string(x), axes});
}

std::string OnnxGraph::ReduceSum(std::string_view name, std::string_view x, int64_t axis,
                                 bool keep_axis) {
  const std::string axes = Ints(Part(name, "axis"), {1}, {&axis, 1});
  return Add("ReduceSum", name, {std::string(x), axes}, {{"keepdims", int64_t{keep_axis}}});
}

std::string OnnxGraph::Columns(std::string_view name, std::string_view x,
                               const std::vector<int64_t>& indices) {
  const std::string columns = Ints(Part(name, "columns"), {std::ssize(indices)}, indices);
  return Add("Gather", name, {std::string(x), columns}, {{"axis", int64_t{1}}});
}

std::string OnnxGraph::Concat(std::string_view name, const Inputs& values, int64_t axis) {
  if (values.size() == 1) return values.front();
  return Add("Concat", name, values, {{"axis", axis}});
}

std::string OnnxGraph::BatchSize() {
  HOTROW_CHECK(!model_.inputs.empty());
  if (batch_size_.empty()) {
    batch_size_ = Add("Shape", "batch_size", {model_.inputs.front().name},
                      {{"start", int64_t{0}}, {"end", int64_t{1}}});
  }
  return batch_size_;
}

OnnxModel OnnxGraph::Take() {
  model_.ir_version = kOnnxIrVersion;
  model_.opsets = {{"", kOnnxOpset}};
  if (uses_ml_) model_.opsets.emplace_back(kOnnxMlDomain, kOnnxMlOpset);
  return std::move(model_);
}

}  // namespace hotrow
