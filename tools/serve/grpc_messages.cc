#include <google/protobuf/map.h>
#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/json/quote.h"
#include "tools/serve/grpc_messages_impl.h"
#include "tools/serve/inference.pb.h"

namespace hotrow::internal {
namespace {

using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;
using inference::InferTensorContents;

constexpr char kRequest[] = "the request";

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckParameters(const Parameters& parameters, const std::string& place) {
  for (const auto& [name, value] : parameters) {
    HOTROW_RETURN_IF_ERROR(CheckParameter(name, place));
  }
  return absl::OkStatus();
}

// The parameter `timeout`, in microseconds; 0: none.
absl::StatusOr<int64_t> TimeoutOf(const Parameters& parameters) {
  using Parameter = inference::InferParameter;
  const auto at = parameters.find("timeout");
  if (at == parameters.end()) return int64_t{0};
  const Parameter& value = at->second;
  if (value.parameter_choice_case() == Parameter::kInt64Param && value.int64_param() >= 0) {
    return value.int64_param();
  }
  if (value.parameter_choice_case() == Parameter::kUint64Param) {
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return static_cast<int64_t>(std::min(value.uint64_param(), kMax));
  }
  return Wrong(kRequest,
               ": the parameter \"timeout\" is no number of microseconds from 0 on; give "
               "it as int64_param");
}

// The field of contents that is for a datatype; null: they come as bytes alone.
const char* ContentsFieldOf(TensorType type) {
  switch (type) {
    case TensorType::kInt32:
      return "int_contents";
    case TensorType::kInt64:
      return "int64_contents";
    case TensorType::kUint64:
      return "uint64_contents";
    case TensorType::kFp32:
      return "fp32_contents";
    case TensorType::kBytes:
      return "bytes_contents";
    case TensorType::kFp16:
      break;
  }
  return nullptr;
}

template <typename Number>
std::string_view BytesOf(const google::protobuf::RepeatedField<Number>& numbers) {
  if (numbers.empty()) return {};
  return {reinterpret_cast<const char*>(numbers.data()),
          static_cast<size_t>(numbers.size()) * sizeof(Number)};
}

absl::Status ReadContents(const InferTensorContents& contents, int64_t elements,
                          InputTensor* tensor) {
  const std::string place = absl::StrCat("tensor ", QuoteForMessage(tensor->name));
  const std::pair<std::string_view, int64_t> sizes[] = {
      {"bool_contents", contents.bool_contents_size()},
      {"int_contents", contents.int_contents_size()},
      {"int64_contents", contents.int64_contents_size()},
      {"uint_contents", contents.uint_contents_size()},
      {"uint64_contents", contents.uint64_contents_size()},
      {"fp32_contents", contents.fp32_contents_size()},
      {"fp64_contents", contents.fp64_contents_size()},
      {"bytes_contents", contents.bytes_contents_size()}};
  const char* const field = ContentsFieldOf(tensor->type);
  int64_t found = 0;
  for (const auto& [name, size] : sizes) {
    if (field != nullptr && name == field) {
      found = size;
    } else if (size > 0) {
      return Wrong(place, ": it has ", std::string(name), ", but ",
                   std::string(TensorTypeName(tensor->type)), " comes in ",
                   field == nullptr ? "raw_input_contents" : field);
    }
  }
  if (found != elements) {
    return Wrong(place, ": ", found, " elements in ", field == nullptr ? "contents" : field,
                 ", expected ", elements, " by the shape ", ShapeText(tensor->shape),
                 field == nullptr ? ", in raw_input_contents" : "");
  }
  switch (tensor->type) {
    case TensorType::kInt32:
      return ReadElements(BytesOf(contents.int_contents()), elements, tensor);
    case TensorType::kInt64:
      return ReadElements(BytesOf(contents.int64_contents()), elements, tensor);
    case TensorType::kUint64:
      return ReadElements(BytesOf(contents.uint64_contents()), elements, tensor);
    case TensorType::kFp32:
      return ReadElements(BytesOf(contents.fp32_contents()), elements, tensor);
    case TensorType::kBytes:
      tensor->texts.assign(contents.bytes_contents().begin(), contents.bytes_contents().end());
      break;
    case TensorType::kFp16:
      break;
  }
  return absl::OkStatus();
}

// raw: its elements; null: they are in its contents.
absl::Status ReadInput(const inference::ModelInferRequest::InferInputTensor& input,
                       const std::string* raw, InputTensor* tensor) {
  tensor->name = input.name();
  const std::string place = absl::StrCat("tensor ", QuoteForMessage(tensor->name));
  HOTROW_RETURN_IF_ERROR(CheckParameters(input.parameters(), place));
  if (input.shape_size() < 1 || input.shape_size() > kInferDimensionsMax) {
    return Wrong(place, ": its shape has ", input.shape_size(), " sizes, expected 1 to ",
                 kInferDimensionsMax);
  }
  for (const int64_t size : input.shape()) {
    if (size < 0) {
      return Wrong(place, ": shape[", tensor->shape.size(), "] is ", size,
                   ", expected a whole number from 0 to 2^63 - 1");
    }
    tensor->shape.push_back(size);
  }
  HOTROW_ASSIGN_OR_RETURN(const int64_t elements, TakeDatatype(input.datatype(), tensor));
  if (raw == nullptr) return ReadContents(input.contents(), elements, tensor);
  if (input.has_contents()) {
    return Wrong(place, ": it has contents beside raw_input_contents; give all tensors one way");
  }
  return ReadElements(*raw, elements, tensor);
}

}  // namespace

absl::StatusOr<InferRequest> ReadInferMessage(const inference::ModelInferRequest& message) {
  for (const auto& [name, size] :
       {std::pair("inputs", message.inputs_size()), std::pair("outputs", message.outputs_size())}) {
    if (size <= kInferTensorsMax) continue;
    return Wrong(kRequest, ": ", size, " ", name, ", expected at most ", kInferTensorsMax);
  }
  const bool raw = message.raw_input_contents_size() > 0;
  if (raw && message.raw_input_contents_size() != message.inputs_size()) {
    return Wrong(kRequest, ": ", message.raw_input_contents_size(), " raw_input_contents, but ",
                 message.inputs_size(), " inputs; give one for each, in their order");
  }
  InferRequest out = {.id = message.id(), .binary_outputs = raw};
  HOTROW_RETURN_IF_ERROR(CheckParameters(message.parameters(), kRequest));
  HOTROW_ASSIGN_OR_RETURN(out.timeout_us, TimeoutOf(message.parameters()));
  out.inputs.resize(static_cast<size_t>(message.inputs_size()));
  for (int i = 0; i < message.inputs_size(); ++i) {
    HOTROW_RETURN_IF_ERROR(ReadInput(message.inputs(i),
                                     raw ? &message.raw_input_contents(i) : nullptr,
                                     &out.inputs[static_cast<size_t>(i)]));
  }
  for (const auto& output : message.outputs()) {
    const std::string place = absl::StrCat("outputs[", out.outputs.size(), "]");
    HOTROW_RETURN_IF_ERROR(CheckParameters(output.parameters(), place));
    out.outputs.push_back({.name = output.name(), .binary = raw});
  }
  HOTROW_RETURN_IF_ERROR(CheckNames(out));
  return out;
}

inference::ModelInferResponse MakeInferMessage(const InferRequest& request,
                                               const ModelVersion& model, int32_t num_tasks,
                                               std::span<const float> logits) {
  inference::ModelInferResponse out;
  out.set_model_name(model.name);
  out.set_model_version(absl::StrCat(model.step));
  out.set_id(request.id);
  const auto put = [&](const OutputWish& wish, std::span<const float> numbers) -> absl::Status {
    auto* const output = out.add_outputs();
    output->set_name(wish.name);
    output->set_datatype("FP32");
    output->add_shape(std::ssize(numbers) / num_tasks);
    output->add_shape(num_tasks);
    if (wish.binary) {
      out.add_raw_output_contents(reinterpret_cast<const char*>(numbers.data()),
                                  numbers.size_bytes());
    } else {
      output->mutable_contents()->mutable_fp32_contents()->Add(numbers.begin(), numbers.end());
    }
    return absl::OkStatus();
  };
  EachOutput(request, logits, put).IgnoreError();  // it has none
  return out;
}

}  // namespace hotrow::internal
