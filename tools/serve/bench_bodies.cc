#include "tools/serve/bench_bodies.h"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "models/data/zipf.h"
#include "models/json/json_text.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

// Writes tensors into a request, as JSON or behind it.
class BodyWriter {
 public:
  explicit BodyWriter(bool json) : json_(json) {}

  template <typename T>
  void Put(const std::string& name, const char* datatype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    Json tensor = {{"name", name}, {"shape", std::move(shape)}, {"datatype", datatype}};
    if (json_) {
      tensor["data"] = values;
    } else {
      const std::span<const T> span(values);
      tensor["parameters"] = {{"binary_data_size", span.size_bytes()}};
      binary_.append(reinterpret_cast<const char*>(span.data()), span.size_bytes());
    }
    inputs_.push_back(std::move(tensor));
  }

  BenchBody Take() {
    Json wish = {{"name", "scores"}};
    if (!json_) wish["parameters"] = {{"binary_data", true}};
    BenchBody out;
    out.bytes =
        Json{{"inputs", std::move(inputs_)}, {"outputs", Json::array({std::move(wish)})}}.dump();
    out.json_bytes = std::ssize(out.bytes);
    out.bytes += binary_;
    return out;
  }

 private:
  const bool json_;
  Json inputs_ = Json::array();
  std::string binary_;
};

struct ModelInputs {
  std::vector<std::string> features;
  std::string dense_name;
  int64_t num_dense = 0;
};

absl::StatusOr<ModelInputs> ReadMetadata(std::string_view metadata) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("these are no metadata of a model that hotrow serves: ",
                     std::string(metadata.substr(0, 200))));
  };
  HOTROW_ASSIGN_OR_RETURN(const Json json, ParseJson<Json>(metadata));
  if (!json.is_object() || !json.contains("inputs") || !json["inputs"].is_array()) return wrong();
  ModelInputs out;
  for (const Json& input : json["inputs"]) {
    if (!input.is_object() || !input.contains("name") || !input["name"].is_string()) return wrong();
    const std::string name = input["name"];
    if (input.value("datatype", Json()) == "INT64") {
      out.features.push_back(name);
      continue;
    }
    const Json shape = input.value("shape", Json());
    if (!shape.is_array() || shape.size() != 2 || !shape[1].is_number_unsigned()) return wrong();
    out.dense_name = name;
    out.num_dense = shape[1].get<int64_t>();
  }
  return out;
}

}  // namespace

absl::Status BenchBodiesOptions::Validate() const {
  const auto check = [](const char* field, int64_t value, int64_t min,
                        int64_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("BenchBodiesOptions.", field, " must lie in [",
                                                   min, ", ", max, "], is ", value));
  };
  HOTROW_RETURN_IF_ERROR(check("samples", samples, 1, 1 << 20));
  HOTROW_RETURN_IF_ERROR(check("user_features", user_features, 0, 1 << 20));
  HOTROW_RETURN_IF_ERROR(check("hotness", hotness, 0, 1 << 16));
  HOTROW_RETURN_IF_ERROR(check("keys", keys, 1, int64_t{1} << 48));
  if (zipf >= 0 && zipf <= 32) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("BenchBodiesOptions.zipf must lie in [0, 32], is ", zipf));
}

absl::StatusOr<std::vector<BenchBody>> DrawBenchBodies(std::string_view metadata,
                                                       const BenchBodiesOptions& options,
                                                       int64_t count) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_ASSIGN_OR_RETURN(const ModelInputs model, ReadMetadata(metadata));
  if (options.user_features > std::ssize(model.features)) {
    return absl::InvalidArgumentError(absl::StrCat("BenchBodiesOptions.user_features is ",
                                                   options.user_features, ", but the model has ",
                                                   model.features.size(), " features"));
  }
  const ZipfSampler sampler(static_cast<uint64_t>(options.keys), options.zipf);
  RandomStream random(options.seed, RandomPurpose::kData);
  const auto block = [&] {
    PhiloxBlock out;
    for (uint32_t& word : out.v) word = random.Next32();
    return out;
  };
  std::vector<BenchBody> out;
  for (int64_t i = 0; i < count; ++i) {
    BodyWriter writer(options.json);
    for (int64_t f = 0; f < std::ssize(model.features); ++f) {
      const int64_t samples = f < options.user_features ? 1 : options.samples;
      std::vector<int64_t> keys(static_cast<size_t>(samples * options.hotness));
      for (int64_t& key : keys) {
        key = static_cast<int64_t>(sampler.Rank(block(), [&](uint32_t) { return block(); }));
      }
      writer.Put(model.features[static_cast<size_t>(f)], "INT64", {samples, options.hotness}, keys);
    }
    if (model.num_dense > 0) {
      const int64_t samples = options.user_features > 0 ? 1 : options.samples;
      std::vector<float> dense(static_cast<size_t>(samples * model.num_dense));
      for (float& value : dense) value = static_cast<float>(random.Uniform());
      writer.Put(model.dense_name, "FP32", {samples, model.num_dense}, dense);
    }
    out.push_back(writer.Take());
  }
  return out;
}

std::vector<BenchBody> LineBenchBodies(const std::vector<std::string>& lines, int64_t samples,
                                       int64_t count) {
  std::vector<BenchBody> out;
  size_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<std::string> own;
    for (int64_t s = 0; s < samples; ++s) own.push_back(lines[next++ % lines.size()]);
    BodyWriter writer(/*json=*/true);
    writer.Put("lines", "BYTES", {samples}, own);
    out.push_back(writer.Take());
  }
  return out;
}

}  // namespace hotrow
