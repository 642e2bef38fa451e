#include "tools/serve/infer_reply.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "models/json/quote.h"
#include "models/serving/scorer.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kScores[] = "scores";
constexpr char kLogits[] = "logits";
constexpr char kPlatform[] = "hotrow";
constexpr int kFloatDigits = 9;  // bring any float back

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status AppendNumbers(std::string_view name, int32_t num_tasks, std::span<const float> numbers,
                           std::string* out) {
  char text[32];
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!std::isfinite(numbers[i])) {
      const auto tasks = static_cast<size_t>(num_tasks);
      return absl::OutOfRangeError(absl::StrCat(
          "output \"", std::string(name), "\", position [", i / tasks, ",", i % tasks,
          "]: ", numbers[i],
          ", which JSON cannot say; are the dense features in the range that the model "
          "was trained with? (Binary outputs would show the number.)"));
    }
    if (i > 0) *out += ',';
    // As a double: the text that is nearest to it is far nearer than half a float's step, so that
    // readers who round twice get the same float.
    const std::to_chars_result end =
        std::to_chars(text, text + sizeof(text), static_cast<double>(numbers[i]),
                      std::chars_format::general, kFloatDigits);
    out->append(text, end.ptr);
  }
  return absl::OkStatus();
}

Json TensorJson(const std::string& name, const char* datatype, std::vector<int64_t> shape) {
  return {{"name", name}, {"datatype", datatype}, {"shape", std::move(shape)}};
}

}  // namespace

absl::Status CheckOutputs(const InferRequest& request) {
  for (const OutputWish& wish : request.outputs) {
    if (wish.name == kScores || wish.name == kLogits) continue;
    return absl::InvalidArgumentError(absl::StrCat("output ", QuoteForMessage(wish.name),
                                                   ": the model has none; it has \"", kScores,
                                                   "\" and \"", kLogits, "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const ModelVersion& model, std::string_view name,
                        std::optional<std::string_view> version) {
  if (name != model.name) {
    return absl::NotFoundError(absl::StrCat("no model ", QuoteForMessage(name), "; there is ",
                                            QuoteForMessage(model.name)));
  }
  if (version.has_value() && *version != absl::StrCat(model.step)) {
    return absl::NotFoundError(absl::StrCat("no version ", QuoteForMessage(*version),
                                            " of the model; it is at ", model.step));
  }
  return absl::OkStatus();
}

absl::Status EachOutput(
    const InferRequest& request, std::span<const float> logits,
    absl::FunctionRef<absl::Status(const OutputWish& wish, std::span<const float> numbers)> put) {
  std::vector<OutputWish> wishes = request.outputs;
  if (wishes.empty()) {
    wishes = {{kScores, request.binary_outputs}, {kLogits, request.binary_outputs}};
  }
  std::vector<float> scores;
  for (const OutputWish& wish : wishes) {
    std::span<const float> numbers = logits;
    if (wish.name == kScores) {
      scores.resize(logits.size());
      for (size_t i = 0; i < logits.size(); ++i) scores[i] = ScoreProbability(logits[i]);
      numbers = scores;
    }
    HOTROW_RETURN_IF_ERROR(put(wish, numbers));
  }
  return absl::OkStatus();
}

absl::StatusOr<InferReply> MakeInferReply(const InferRequest& request, const ModelVersion& model,
                                          int32_t num_tasks, std::span<const float> logits) {
  const int64_t samples = std::ssize(logits) / num_tasks;
  // By hand, since the numbers are most of it.
  InferReply out;
  std::string& json = out.body;
  json =
      absl::StrCat("{\"model_name\":", Text(model.name), ",\"model_version\":\"", model.step, "\"");
  if (!request.id.empty()) absl::StrAppend(&json, ",\"id\":", Text(request.id));
  json += ",\"outputs\":[";
  std::string binary;
  bool any_binary = false;
  const char* before = "";
  const auto put = [&](const OutputWish& wish, std::span<const float> numbers) -> absl::Status {
    absl::StrAppend(&json, std::exchange(before, ","), "{\"name\":\"", wish.name,
                    "\",\"datatype\":\"FP32\",\"shape\":[", samples, ",", num_tasks, "],");
    if (wish.binary) {
      any_binary = true;
      absl::StrAppend(&json, "\"parameters\":{\"binary_data_size\":", numbers.size_bytes(), "}}");
      binary.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
      return absl::OkStatus();
    }
    json += "\"data\":[";
    HOTROW_RETURN_IF_ERROR(AppendNumbers(wish.name, num_tasks, numbers, &json));
    json += "]}";
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(EachOutput(request, logits, put));
  json += "]}";
  if (any_binary) {
    out.json_bytes = std::ssize(json);
    json += binary;
  }
  return out;
}

std::string ErrorJson(std::string_view message) {
  return Text(Json{{"error", std::string(message)}});
}

std::string ServerJson(const ModelVersion& model, std::span<const char* const> endpoints) {
  Json paths = Json::array();
  for (const char* const endpoint : endpoints) {
    paths.push_back(absl::StrReplaceAll(endpoint, {{"NAME", model.name}}));
  }
  return Text(Json{{"name", kPlatform},
                   {"version", Version()},
                   {"model", model.name},
                   {"model_version", absl::StrCat(model.step)},
                   {"endpoints", std::move(paths)}});
}

std::string ServerMetadataJson() {
  return Text(
      Json{{"name", kPlatform},
           {"version", Version()},
           {"extensions",
            {"binary_tensor_data", "model_configuration", "model_repository", "statistics"}}});
}

std::string ModelMetadataJson(const ModelVersion& model, const ModelSignature& signature,
                              const std::vector<std::string>& labels,
                              const std::vector<std::string>& line_columns) {
  Json inputs = Json::array();
  for (const std::string& feature : signature.features) {
    inputs.push_back(TensorJson(feature, "INT64", {-1, -1}));
  }
  if (signature.num_dense > 0) {
    inputs.push_back(TensorJson(signature.dense_name, "FP32", {-1, signature.num_dense}));
  }
  Json json = {{"name", model.name},
               {"versions", Json::array({absl::StrCat(model.step)})},
               {"platform", kPlatform},
               {"inputs", std::move(inputs)},
               {"outputs",
                {TensorJson(kScores, "FP32", {-1, signature.num_tasks}),
                 TensorJson(kLogits, "FP32", {-1, signature.num_tasks})}}};
  Json parameters = {{"tasks", labels}};
  if (signature.texts.has_value()) {
    parameters["lines_input"] = signature.lines_name;
    parameters["line_columns"] = line_columns;
  }
  json["parameters"] = std::move(parameters);
  return Text(json);
}

std::string ModelReadyJson(const ModelVersion& model, bool ready) {
  return Text(Json{{"name", model.name}, {"ready", ready}});
}

std::string RepositoryIndexJson(const ModelVersion& model, bool ready) {
  return Text(Json::array({{{"name", model.name},
                            {"version", absl::StrCat(model.step)},
                            {"state", ready ? "READY" : "UNAVAILABLE"}}}));
}

std::string StatisticsJson(const ModelVersion& model, const InferStatistics& statistics) {
  using Duration = InferStatistics::Duration;
  const auto of = [](const Duration& d) { return Json{{"count", d.count}, {"ns", d.ns}}; };
  // perf_analyzer reads the cache's numbers, too.
  Json model_stats = {{"name", model.name},
                      {"version", absl::StrCat(model.step)},
                      {"last_inference", statistics.last_inference},
                      {"inference_count", statistics.inference_count},
                      {"execution_count", statistics.execution_count},
                      {"inference_stats",
                       {{"success", of(statistics.success)},
                        {"fail", of(statistics.fail)},
                        {"queue", of(statistics.queue)},
                        {"compute_input", of(statistics.compute_input)},
                        {"compute_infer", of(statistics.compute_infer)},
                        {"compute_output", of(statistics.compute_output)},
                        {"cache_hit", of(Duration())},
                        {"cache_miss", of(Duration())}}},
                      {"batch_stats", Json::array()}};
  return Text(Json{{"model_stats", Json::array({std::move(model_stats)})}});
}

std::string ModelConfigJson(const ModelVersion& model, const ModelSignature& signature) {
  const auto tensor = [](const std::string& name, const char* type, std::vector<int64_t> dims) {
    return Json{{"name", name}, {"data_type", type}, {"dims", std::move(dims)}};
  };
  Json inputs = Json::array();
  for (const std::string& feature : signature.features) {
    inputs.push_back(tensor(feature, "TYPE_INT64", {-1, -1}));
  }
  if (signature.num_dense > 0) {
    inputs.push_back(tensor(signature.dense_name, "TYPE_FP32", {-1, signature.num_dense}));
  }
  // max_batch_size 0: the first dimension is a tensor's own.
  return Text(Json{{"name", model.name},
                   {"platform", kPlatform},
                   {"backend", kPlatform},
                   {"max_batch_size", 0},
                   {"input", std::move(inputs)},
                   {"output",
                    {tensor(kScores, "TYPE_FP32", {-1, signature.num_tasks}),
                     tensor(kLogits, "TYPE_FP32", {-1, signature.num_tasks})}}});
}

}  // namespace hotrow
