#include "tests/tools/serve/serve_model.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/philox.h"
#include "tests/models/scored_models.h"

namespace hotrow::test {
namespace {

constexpr int kTrainedLines = 240;
const std::vector<std::string>& Features() {
  static const auto* const names = new std::vector<std::string>{"user", "item", "tags"};
  return *names;
}

std::string LineOf(RandomStream* random) {
  std::vector<std::string> tags;
  for (uint32_t t = random->Below(5); t > 0; --t)
    tags.push_back(absl::StrCat("t", random->Below(30)));
  return absl::StrCat(random->Below(50), ".5,", random->Below(80), ",", random->Below(100), ",item",
                      random->Below(60), ",", absl::StrJoin(tags, "|"));
}

absl::Status TrainIn(const std::string& dir) {
  RandomStream random(7, RandomPurpose::kTest);
  std::ofstream file(dir + "/log.csv");
  file << "click,price,age,user,item,tags\n";
  for (int i = 0; i < kTrainedLines; ++i) file << random.Below(2) << "," << LineOf(&random) << "\n";
  file.close();
  const std::string schema = dir + "/schema.json";
  std::ofstream(schema) << R"json({
    "name": "served", "files": ["log.csv"], "split": {"modulo": 10, "valid": [8], "test": [9]},
    "columns": [
      {"name": "click", "role": "label"},
      {"name": "price", "role": "dense", "transform": "log1p"},
      {"name": "age", "role": "dense"},
      {"name": "user", "role": "categorical", "key": "integer", "num_embeddings": 100},
      {"name": "item", "role": "categorical", "key": "hash"},
      {"name": "tags", "role": "categorical", "key": "hash", "separator": "|", "max_hotness": 4}
    ]})json";
  const Kind kind = {.name = "dlrm",
                     .shape = {{"over_arch_layer_sizes", "8-1"},
                               {"batch_norm", "false"},
                               {"interaction", "dot"},
                               {"dense_arch_layer_sizes", "6-4"},
                               {"pooling", "sum"}},
                     .columns = 4};
  TrainerOptions options = OptionsOf(kind);
  options.save_dir = dir + "/model";
  return Train(kind, options, "table:" + schema).status();
}

// Removed at exit.
struct ModelDir {
  std::string dir;
  ModelDir() {
    std::string name = std::filesystem::temp_directory_path() / "hotrow_served_XXXXXX";
    HOTROW_CHECK(::mkdtemp(name.data()) != nullptr);
    dir = name;
    const absl::Status status = TrainIn(dir);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    HOTROW_CHECK(status.ok());
  }
  ~ModelDir() { std::filesystem::remove_all(dir); }
};

template <typename T>
void AppendBytes(std::span<const T> values, std::string* out) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

const std::string& ServedModelDir() {
  static const ModelDir model;
  static const auto* const dir = new std::string(model.dir + "/model");
  return *dir;
}

std::shared_ptr<const Scorer> OpenServedModel() {
  auto scorer =
      Scorer::Open({.model = ServedModelDir(), .max_concurrency = 2, .max_batch_size = 64});
  if (!scorer.ok()) std::fprintf(stderr, "%s\n", scorer.status().ToString().c_str());
  HOTROW_CHECK(scorer.ok());
  return *std::move(scorer);
}

ServedSamples ServedSamples::Draw(uint64_t seed, int64_t batch_size) {
  RandomStream random(seed, RandomPurpose::kTest);
  ServedSamples out = {.batch_size = batch_size, .bags = {{}, {}, {}}};
  for (int64_t b = 0; b < batch_size; ++b) {
    out.bags[0].push_back({random.Below(100)});
    out.bags[1].push_back({uint64_t{random.Next32()} << 32 | random.Next32()});
    std::vector<uint64_t> tags(random.Below(5));
    for (uint64_t& tag : tags) tag = random.Below(1000);
    out.bags[2].push_back(tags);
    out.dense.push_back(static_cast<float>(random.Uniform() * 9));
    out.dense.push_back(static_cast<float>(random.Uniform() * 80));
    out.lines.push_back(LineOf(&random));
  }
  return out;
}

std::vector<float> ServedSamples::Logits(const Scorer& scorer) const {
  std::vector<uint64_t> keys;
  std::vector<int64_t> offsets = {0};
  for (const auto& feature : bags) {
    for (const auto& bag : feature) {
      keys.insert(keys.end(), bag.begin(), bag.end());
      offsets.push_back(std::ssize(keys));
    }
  }
  std::vector<float> logits(static_cast<size_t>(batch_size));
  const absl::Status status = scorer.Score(
      {.sparse = {batch_size, std::span<const uint64_t>(keys), std::span<const int64_t>(offsets)},
       .dense = dense},
      logits);
  HOTROW_CHECK(status.ok());
  return logits;
}

std::vector<float> ServedSamples::LineLogits(const Scorer& scorer) const {
  std::vector<float> logits(static_cast<size_t>(batch_size));
  const std::vector<std::string_view> views(lines.begin(), lines.end());
  HOTROW_CHECK(scorer.ScoreLines(views, logits).ok());
  return logits;
}

std::string ServedSamples::Json() const {
  using Json = nlohmann::json;
  Json inputs = Json::array();
  for (size_t f = 0; f < bags.size(); ++f) {
    Json keys = Json::array(), lengths = Json::array();
    for (const auto& bag : bags[f]) {
      for (const uint64_t key : bag) keys.push_back(key);
      lengths.push_back(bag.size());
    }
    const size_t n = keys.size();
    inputs.push_back({{"name", Features()[f]},
                      {"datatype", "UINT64"},
                      {"shape", {n}},
                      {"data", std::move(keys)}});
    inputs.push_back({{"name", Features()[f] + ":lengths"},
                      {"datatype", "INT32"},
                      {"shape", {batch_size}},
                      {"data", std::move(lengths)}});
  }
  inputs.push_back(
      {{"name", "dense"}, {"datatype", "FP32"}, {"shape", {batch_size, 2}}, {"data", dense}});
  return Json{{"inputs", std::move(inputs)}}.dump();
}

std::string ServedSamples::LinesJson() const {
  return nlohmann::json{
      {"inputs",
       {{{"name", "lines"}, {"datatype", "BYTES"}, {"shape", {batch_size}}, {"data", lines}}}}}
      .dump();
}

std::string ServedSamples::Binary(int64_t* json_bytes) const {
  using Json = nlohmann::json;
  std::string binary;
  Json inputs = Json::array();
  const auto put = [&](const std::string& name, const char* type, std::vector<int64_t> shape,
                       const auto& values) {
    const size_t before = binary.size();
    AppendBytes(std::span(values), &binary);
    inputs.push_back({{"name", name},
                      {"datatype", type},
                      {"shape", std::move(shape)},
                      {"parameters", {{"binary_data_size", binary.size() - before}}}});
  };
  for (size_t f = 0; f < bags.size(); ++f) {
    std::vector<uint64_t> keys;
    std::vector<int64_t> lengths;
    for (const auto& bag : bags[f]) {
      keys.insert(keys.end(), bag.begin(), bag.end());
      lengths.push_back(std::ssize(bag));
    }
    put(Features()[f], "INT64", {std::ssize(keys)}, keys);
    put(Features()[f] + ":lengths", "INT64", {batch_size}, lengths);
  }
  put("dense", "FP32", {batch_size, 2}, dense);
  const std::string json =
      Json{{"id", "b"}, {"parameters", {{"binary_data_output", true}}}, {"inputs", inputs}}.dump();
  *json_bytes = std::ssize(json);
  return json + binary;
}

}  // namespace hotrow::test
