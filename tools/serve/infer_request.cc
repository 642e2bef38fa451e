#include "tools/serve/infer_request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/enum_words.h"
#include "base/status_macros.h"
#include "models/json/json_text.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little);  // binary tensors are copied

constexpr EnumWord<TensorType> kTensorTypeWords[] = {
    {"INT32", TensorType::kInt32}, {"INT64", TensorType::kInt64}, {"UINT64", TensorType::kUint64},
    {"FP16", TensorType::kFp16},   {"FP32", TensorType::kFp32},   {"BYTES", TensorType::kBytes}};
constexpr float kFp16Max = 65504;
constexpr size_t kMessageBytesMax = 300;  // of JSON's own errors, which quote what they read last

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A value of the request in a message: never more than a line of it.
std::string Shown(const Json& value) {
  if (value.is_string()) return QuoteForMessage(value.get_ref<const std::string&>());
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  if (value.is_object()) return "an object";
  return value.dump();
}

std::string TensorText(const std::string& name) {
  return absl::StrCat("tensor ", QuoteForMessage(name));
}

absl::Status CheckMembers(const Json& object, std::string_view place,
                          std::initializer_list<const char*> known) {
  if (!object.is_object()) {
    return Wrong(std::string(place), ": ", Shown(object), ", expected an object");
  }
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), std::string_view(name)) == known.end()) {
      return Wrong(std::string(place), ": unknown member ", QuoteForMessage(name),
                   "; there are: ", absl::StrJoin(known, ", "));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StringOf(const Json& object, const char* name, std::string_view place) {
  const auto at = object.find(name);
  if (at == object.end()) return Wrong(std::string(place), ": \"", name, "\" is missing");
  if (!at->is_string()) {
    return Wrong(std::string(place), ": \"", name, "\" is ", Shown(*at), ", expected a text");
  }
  return at->get<std::string>();
}

// A whole number of at least 0, or `missing`.
absl::StatusOr<int64_t> CountOf(const Json& object, const char* name, std::string_view place,
                                int64_t missing) {
  const auto at = object.find(name);
  if (at == object.end()) return missing;
  const bool fits = at->is_number_unsigned() &&
                    at->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  if (!fits) {
    return Wrong(std::string(place), ": \"", name, "\" is ", Shown(*at),
                 ", expected a whole number from 0 to 2^63 - 1");
  }
  return static_cast<int64_t>(at->get<uint64_t>());
}

absl::StatusOr<bool> BoolOf(const Json& object, const char* name, std::string_view place) {
  const auto at = object.find(name);
  if (at == object.end()) return false;
  if (!at->is_boolean()) {
    return Wrong(std::string(place), ": \"", name, "\" is ", Shown(*at),
                 ", expected true or false");
  }
  return at->get<bool>();
}

// The member `parameters`, or an empty object. Those that ask for what is not there are refused.
absl::StatusOr<const Json*> ParametersOf(const Json& object, std::string_view place) {
  static const Json* const none = new Json(Json::object());
  const auto at = object.find("parameters");
  if (at == object.end()) return none;
  if (!at->is_object()) {
    return Wrong(std::string(place), ": \"parameters\" is ", Shown(*at), ", expected an object");
  }
  for (const auto& [name, value] : at->items()) {
    HOTROW_RETURN_IF_ERROR(CheckParameter(name, place));
  }
  return &*at;
}

absl::StatusOr<std::vector<int64_t>> ParseShape(const Json& input, const std::string& tensor) {
  const auto at = input.find("shape");
  if (at == input.end()) return Wrong(tensor, ": \"shape\" is missing");
  if (!at->is_array() || at->empty() || std::ssize(*at) > kInferDimensionsMax) {
    return Wrong(tensor, ": \"shape\" is ", Shown(*at), ", expected an array of 1 to ",
                 kInferDimensionsMax, " sizes");
  }
  std::vector<int64_t> shape;
  for (const Json& size : *at) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Wrong(tensor, ": shape[", shape.size(), "] is ", Shown(size),
                   ", expected a whole number from 0 to 2^63 - 1");
    }
    shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }
  return shape;
}

// The number of elements.
absl::StatusOr<int64_t> ElementsOf(const std::vector<int64_t>& shape, const std::string& tensor) {
  // A size of 0 makes all of it nothing, with any others.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return int64_t{0};
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(elements, size, &elements)) {
      return Wrong(tensor, ": shape ", ShapeText(shape), " has more than 2^63 - 1 elements");
    }
  }
  return elements;
}

// --- Numbers of FP16: 11 bits, multiples of 2^-24

float FromHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float magnitude = exponent == 31  ? (fraction == 0 ? HUGE_VALF : NAN)
                          : exponent == 0 ? std::ldexp(fraction, -24)
                                          : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Ties to even. Above kFp16Max where FP16 has none.
float NearestHalf(double number) {
  int exponent = 0;
  std::frexp(number, &exponent);
  const int step = std::max(exponent - 11, -24);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(number, -step)), step));
}

// --- Elements from JSON

class JsonElements {
 public:
  JsonElements(const std::string& tensor_text, InputTensor* tensor)
      : text_(tensor_text), tensor_(*tensor) {}

  absl::Status Read(const Json& data, int64_t elements) {
    if (!data.is_array()) {
      return Wrong(text_, ": \"data\" is ", Shown(data), ", expected an array");
    }
    // Nested as the shape says, or flat.
    if (!data.empty() && data[0].is_array() && tensor_.shape.size() > 1) {
      HOTROW_RETURN_IF_ERROR(Nested(data, 0));
    } else {
      if (std::ssize(data) != elements) {
        return Wrong(text_, ": \"data\" has ", data.size(), " elements, expected ", elements,
                     " by the shape ", ShapeText(tensor_.shape));
      }
      HOTROW_RETURN_IF_ERROR(Flat(data));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Nested(const Json& data, size_t level) {
    const int64_t size = tensor_.shape[level];
    if (std::ssize(data) != size) {
      return Wrong(text_, ": an array at depth ", level, " of \"data\" has ", data.size(),
                   " elements, expected ", size, " by the shape ", ShapeText(tensor_.shape));
    }
    if (level + 1 == tensor_.shape.size()) return Flat(data);
    for (const Json& inner : data) {
      if (!inner.is_array()) {
        return Wrong(text_, ": ", Shown(inner), " at depth ", level + 1,
                     " of \"data\", expected an array by the shape ", ShapeText(tensor_.shape));
      }
      HOTROW_RETURN_IF_ERROR(Nested(inner, level + 1));
    }
    return absl::OkStatus();
  }

  absl::Status Flat(const Json& data) {
    for (const Json& value : data) {
      HOTROW_RETURN_IF_ERROR(Element(value));
      ++read_;
    }
    return absl::OkStatus();
  }

  absl::Status Element(const Json& value) {
    switch (tensor_.type) {
      case TensorType::kInt32:
        return Integer<int32_t>(value);
      case TensorType::kInt64:
        return Integer<int64_t>(value);
      case TensorType::kUint64:
        return Integer<uint64_t>(value);
      case TensorType::kFp16:
      case TensorType::kFp32: {
        if (!value.is_number()) return Refused(value, "a number");
        const bool half = tensor_.type == TensorType::kFp16;
        const auto number =
            half ? NearestHalf(value.get<double>()) : static_cast<float>(value.get<double>());
        if (!std::isfinite(number) || (half && std::abs(number) > kFp16Max)) {
          return Refused(value, "a number within the range of the type");
        }
        tensor_.floats.push_back(number);
        return absl::OkStatus();
      }
      case TensorType::kBytes:
        if (!value.is_string()) return Refused(value, "a text");
        tensor_.texts.push_back(value.get<std::string>());
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  template <typename Int>
  absl::Status Integer(const Json& value) {
    using Limits = std::numeric_limits<Int>;
    // Numbers of at least 0 are unsigned to the parser, others signed.
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= static_cast<uint64_t>(Limits::max())
                          : value.is_number_integer() && Limits::min() < 0 &&
                                value.get<int64_t>() >= static_cast<int64_t>(Limits::min());
    if (!fits) {
      return Refused(value,
                     absl::StrCat("a whole number from ", Limits::min(), " to ", Limits::max()));
    }
    tensor_.integers.push_back(value.is_number_unsigned()
                                   ? value.get<uint64_t>()
                                   : static_cast<uint64_t>(value.get<int64_t>()));
    return absl::OkStatus();
  }

  absl::Status Refused(const Json& value, std::string_view expected) const {
    return Wrong(text_, ", position ", PositionText(read_, tensor_.shape), ": ", Shown(value),
                 ", expected ", std::string(expected), " (",
                 std::string(TensorTypeName(tensor_.type)), ")");
  }

  const std::string& text_;
  InputTensor& tensor_;
  int64_t read_ = 0;  // elements
};

// --- Elements from bytes

template <typename Int>
void AppendIntegers(std::string_view bytes, std::vector<uint64_t>* out) {
  out->resize(bytes.size() / sizeof(Int));
  for (size_t i = 0; i < out->size(); ++i) {
    Int value;
    std::memcpy(&value, bytes.data() + i * sizeof(Int), sizeof(Int));
    if constexpr (sizeof(Int) < sizeof(uint64_t)) {
      (*out)[i] = static_cast<uint64_t>(static_cast<int64_t>(value));
    } else {
      (*out)[i] = static_cast<uint64_t>(value);
    }
  }
}

absl::Status ReadTexts(std::string_view bytes, int64_t elements, const std::string& text,
                       InputTensor* tensor) {
  constexpr auto kLengthBytes = static_cast<int64_t>(sizeof(uint32_t));
  if (elements > std::ssize(bytes) / kLengthBytes) {
    return Wrong(text, ": ", bytes.size(), " binary bytes, expected ", elements,
                 " texts, each with a length of 4 bytes, by the shape ", ShapeText(tensor->shape));
  }
  tensor->texts.reserve(static_cast<size_t>(elements));
  const auto place = [&] {
    return absl::StrCat(text, ", position ",
                        PositionText(std::ssize(tensor->texts), tensor->shape));
  };
  while (std::ssize(tensor->texts) < elements) {
    uint32_t length = 0;
    if (bytes.size() < sizeof(length)) {
      return Wrong(place(), ": ", bytes.size(), " bytes left, expected a length of 4 bytes");
    }
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes.remove_prefix(sizeof(length));
    if (length > bytes.size()) {
      return Wrong(place(), ": a text of ", length, " bytes, but ", bytes.size(), " are left");
    }
    tensor->texts.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  if (bytes.empty()) return absl::OkStatus();
  return Wrong(text, ": ", bytes.size(), " bytes behind the last of ", elements, " texts");
}

}  // namespace

absl::Status ReadElements(std::string_view bytes, int64_t elements, InputTensor* tensor) {
  const std::string text = TensorText(tensor->name);
  if (tensor->type == TensorType::kBytes) return ReadTexts(bytes, elements, text, tensor);
  const int64_t element_bytes =
      tensor->type == TensorType::kFp16                                         ? 2
      : tensor->type == TensorType::kInt32 || tensor->type == TensorType::kFp32 ? 4
                                                                                : 8;
  // Divided, since the product might overflow.
  if (std::ssize(bytes) % element_bytes != 0 || std::ssize(bytes) / element_bytes != elements) {
    return Wrong(text, ": ", bytes.size(), " binary bytes, expected ", elements, " elements of ",
                 element_bytes, " bytes by the shape ", ShapeText(tensor->shape));
  }
  switch (tensor->type) {
    case TensorType::kInt32:
      AppendIntegers<int32_t>(bytes, &tensor->integers);
      break;
    case TensorType::kInt64:
    case TensorType::kUint64:
      AppendIntegers<uint64_t>(bytes, &tensor->integers);
      break;
    default: {
      tensor->floats.resize(static_cast<size_t>(elements));
      if (tensor->type == TensorType::kFp16) {
        for (size_t i = 0; i < tensor->floats.size(); ++i) {
          uint16_t half = 0;
          std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
          tensor->floats[i] = FromHalf(half);
        }
      } else if (!bytes.empty()) {
        std::memcpy(tensor->floats.data(), bytes.data(), bytes.size());
      }
      for (int64_t i = 0; i < elements; ++i) {
        const float value = tensor->floats[static_cast<size_t>(i)];
        if (std::isfinite(value)) continue;
        return Wrong(text, ", position ", PositionText(i, tensor->shape), ": ", value,
                     ", expected a finite number (", std::string(TensorTypeName(tensor->type)),
                     ")");
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TakeDatatype(std::string_view datatype, InputTensor* tensor) {
  const std::string text = TensorText(tensor->name);
  const auto* const word =
      std::find_if(std::begin(kTensorTypeWords), std::end(kTensorTypeWords),
                   [&](const EnumWord<TensorType>& w) { return w.name == datatype; });
  if (word == std::end(kTensorTypeWords)) {
    const bool is_float = datatype == "BF16" || datatype == "FP64";
    const bool is_integer = datatype.starts_with("UINT") || datatype.starts_with("INT");
    return Wrong(text, ": datatype ", QuoteForMessage(datatype),
                 ", expected INT32, INT64, UINT64, FP16, FP32 or BYTES",
                 is_float     ? "; send its numbers as FP32"
                 : is_integer ? "; send its numbers as INT64"
                              : "");
  }
  tensor->type = word->value;
  return ElementsOf(tensor->shape, text);
}

absl::Status CheckParameter(std::string_view name, std::string_view place) {
  if (name != "shared_memory_region" && name != "classification") return absl::OkStatus();
  return Wrong(std::string(place), ": the parameter \"", std::string(name),
               "\" is not supported; send and take tensors as they are");
}

absl::Status CheckNames(const InferRequest& request) {
  if (std::ssize(request.id) > kInferIdBytesMax) {
    return Wrong("the request: \"id\" has ", request.id.size(), " bytes, expected at most ",
                 kInferIdBytesMax);
  }
  std::unordered_set<std::string_view> names;
  for (const InputTensor& tensor : request.inputs) {
    if (!names.insert(tensor.name).second) {
      return Wrong(TensorText(tensor.name), ": it is there twice");
    }
  }
  names.clear();
  for (const OutputWish& wish : request.outputs) {
    if (!names.insert(wish.name).second) {
      return Wrong("outputs[", &wish - request.outputs.data(), "]: ", QuoteForMessage(wish.name),
                   " is there twice");
    }
  }
  return absl::OkStatus();
}

namespace {

// Takes what it needs off the front of *binary.
absl::Status ReadInput(const Json& json, int64_t position, std::string_view* binary,
                       InputTensor* tensor) {
  const std::string place = absl::StrCat("inputs[", position, "]");
  HOTROW_RETURN_IF_ERROR(
      CheckMembers(json, place, {"name", "shape", "datatype", "parameters", "data"}));
  HOTROW_ASSIGN_OR_RETURN(tensor->name, StringOf(json, "name", place));
  const std::string text = TensorText(tensor->name);
  HOTROW_ASSIGN_OR_RETURN(const std::string datatype, StringOf(json, "datatype", text));
  HOTROW_ASSIGN_OR_RETURN(tensor->shape, ParseShape(json, text));
  HOTROW_ASSIGN_OR_RETURN(const int64_t elements, TakeDatatype(datatype, tensor));
  HOTROW_ASSIGN_OR_RETURN(const Json* const parameters, ParametersOf(json, text));
  const auto data = json.find("data");
  if (!parameters->contains("binary_data_size")) {
    if (data == json.end()) {
      return Wrong(text, ": it has neither \"data\" nor the parameter \"binary_data_size\"");
    }
    return JsonElements(text, tensor).Read(*data, elements);
  }
  if (data != json.end()) {
    return Wrong(text, ": it has both \"data\" and the parameter \"binary_data_size\"");
  }
  HOTROW_ASSIGN_OR_RETURN(const int64_t bytes, CountOf(*parameters, "binary_data_size", text, 0));
  if (bytes > std::ssize(*binary)) {
    return Wrong(text, ": binary_data_size is ", bytes, ", but ", binary->size(),
                 " bytes are left behind the JSON; is Inference-Header-Content-Length right?");
  }
  HOTROW_RETURN_IF_ERROR(
      ReadElements(binary->substr(0, static_cast<size_t>(bytes)), elements, tensor));
  binary->remove_prefix(static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::StatusOr<const Json*> ArrayOf(const Json& root, const char* name, bool required) {
  static const Json* const none = new Json(Json::array());
  const auto at = root.find(name);
  if (at == root.end()) {
    if (!required) return none;
    return Wrong("the request: \"", name, "\" is missing");
  }
  if (!at->is_array() || std::ssize(*at) > kInferTensorsMax) {
    return Wrong("the request: \"", name, "\" is ", Shown(*at), ", expected an array of at most ",
                 kInferTensorsMax, " tensors");
  }
  return &*at;
}

}  // namespace

std::string_view TensorTypeName(TensorType type) { return WordOf(kTensorTypeWords, type); }

std::string PositionText(int64_t element, const std::vector<int64_t>& shape) {
  std::vector<int64_t> position(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t size = std::max<int64_t>(shape[i], 1);
    position[i] = element % size;
    element /= size;
  }
  return ShapeText(position);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

absl::StatusOr<InferRequest> ParseInferRequest(std::string_view body,
                                               std::optional<int64_t> json_bytes) {
  const int64_t json_size = json_bytes.value_or(std::ssize(body));
  if (json_size < 0 || json_size > std::ssize(body)) {
    return Wrong("Inference-Header-Content-Length is ", json_size, ", but the body has ",
                 body.size(), " bytes");
  }
  std::string_view binary = body.substr(static_cast<size_t>(json_size));
  const absl::StatusOr<Json> root = ParseJson<Json>(body.substr(0, static_cast<size_t>(json_size)));
  if (!root.ok()) {
    std::string message(root.status().message().substr(0, kMessageBytesMax));
    return Wrong("the JSON of the request: ", message);
  }
  HOTROW_RETURN_IF_ERROR(
      CheckMembers(*root, "the request", {"id", "parameters", "inputs", "outputs"}));
  InferRequest out;
  if (root->contains("id")) {
    HOTROW_ASSIGN_OR_RETURN(out.id, StringOf(*root, "id", "the request"));
  }
  HOTROW_ASSIGN_OR_RETURN(const Json* const parameters, ParametersOf(*root, "the request"));
  HOTROW_ASSIGN_OR_RETURN(out.timeout_us, CountOf(*parameters, "timeout", "the request", 0));
  HOTROW_ASSIGN_OR_RETURN(out.binary_outputs,
                          BoolOf(*parameters, "binary_data_output", "the request"));

  HOTROW_ASSIGN_OR_RETURN(const Json* const inputs, ArrayOf(*root, "inputs", true));
  out.inputs.resize(inputs->size());
  for (size_t i = 0; i < inputs->size(); ++i) {
    HOTROW_RETURN_IF_ERROR(
        ReadInput((*inputs)[i], static_cast<int64_t>(i), &binary, &out.inputs[i]));
  }
  if (!binary.empty()) {
    return Wrong("the request: ", binary.size(),
                 " bytes behind the JSON belong to no tensor; is binary_data_size of each there?");
  }

  HOTROW_ASSIGN_OR_RETURN(const Json* const outputs, ArrayOf(*root, "outputs", false));
  for (const Json& json : *outputs) {
    const std::string place = absl::StrCat("outputs[", out.outputs.size(), "]");
    HOTROW_RETURN_IF_ERROR(CheckMembers(json, place, {"name", "parameters"}));
    OutputWish& wish = out.outputs.emplace_back();
    HOTROW_ASSIGN_OR_RETURN(wish.name, StringOf(json, "name", place));
    HOTROW_ASSIGN_OR_RETURN(const Json* const own, ParametersOf(json, place));
    if (own->contains("binary_data")) {
      HOTROW_ASSIGN_OR_RETURN(wish.binary, BoolOf(*own, "binary_data", place));
    } else {
      wish.binary = out.binary_outputs;
    }
  }
  HOTROW_RETURN_IF_ERROR(CheckNames(out));
  return out;
}

}  // namespace hotrow
