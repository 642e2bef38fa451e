#include "tests/tools/serve_fuzz_targets.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "models/data/table_schema.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tools/serve/infer_reply.h"
#include "tools/serve/infer_request.h"
#include "tools/serve/score_request.h"

namespace hotrow::fuzz {
namespace {

constexpr int64_t kSamplesMax = 64;
constexpr size_t kMessageBytesMax = 2000;
constexpr char kNoJson = 0, kWholeJson = 1;  // first byte of an input; else how much is JSON

const ModelSignature& Signature() {
  static const auto* const signature = [] {
    const auto schema = ParseTableSchema(
        R"json({"files": {"train": ["f"]}, "missing_values": ["-"], "columns": [
            {"name": "y", "role": "label"},
            {"name": "user", "role": "categorical", "key": "integer", "num_embeddings": 100},
            {"name": "item", "role": "categorical", "key": "hex", "missing": 1},
            {"name": "t", "role": "categorical", "separator": "|", "max_hotness": 3}]})json",
        "schema");
    HOTROW_CHECK(schema.ok());
    return new ModelSignature(*ModelSignature::Of({"user", "item", "t"}, 2, 2, &*schema));
  }();
  return *signature;
}

// What is refused has a message that fits into a reply.
void ExpectError(const absl::Status& status) {
  HOTROW_CHECK(absl::IsInvalidArgument(status));
  const std::string message(status.message());
  HOTROW_CHECK(!message.empty() && message.size() < kMessageBytesMax);
  HOTROW_CHECK(nlohmann::json::accept(ErrorJson(message)));
}

void ExpectBags(const KeyBags& bags, std::span<const std::string> names) {
  HOTROW_CHECK(bags.view().Validate(names).ok());
}

void ExpectFits(const ScoreRequest& request) {
  const ModelSignature& signature = Signature();
  HOTROW_CHECK(request.num_samples >= 0 && request.num_samples <= kSamplesMax);
  if (request.kind == ScoreKind::kLines) {
    HOTROW_CHECK(std::ssize(request.lines) == request.num_samples);
    return;
  }
  std::vector<std::string> user, others;
  for (int32_t f = 0; f < std::ssize(signature.features); ++f) {
    const bool of_user = std::find(request.user_features.begin(), request.user_features.end(), f) !=
                         request.user_features.end();
    (of_user ? user : others).push_back(signature.features[static_cast<size_t>(f)]);
  }
  HOTROW_CHECK(request.bags.batch_size == request.num_samples);
  ExpectBags(request.bags, others);
  const auto user_columns = std::ssize(request.user_dense_columns);
  HOTROW_CHECK(std::ssize(request.dense) ==
               request.num_samples * (signature.num_dense - user_columns));
  for (const float value : request.dense) HOTROW_CHECK(std::isfinite(value));
  if (request.kind == ScoreKind::kSamples) {
    HOTROW_CHECK(user.empty() && user_columns == 0);
    return;
  }
  ExpectBags(request.user_bags, user);
  HOTROW_CHECK(std::ssize(request.user_dense) == user_columns);
}

}  // namespace

void InferBody(const uint8_t* data, size_t size) {
  if (size < 1) return;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::optional<int64_t> json_bytes;
  if (data[0] == kNoJson) {
    json_bytes = 0;
  } else if (data[0] != kWholeJson) {
    // The end of the JSON as a client would know it.
    const size_t end = body.find("]}\n");
    json_bytes = end == std::string_view::npos ? data[0] : static_cast<int64_t>(end + 3);
  }
  absl::StatusOr<InferRequest> request = ParseInferRequest(body, json_bytes);
  if (!request.ok()) return ExpectError(request.status());
  if (const absl::Status status = CheckOutputs(*request); !status.ok()) return ExpectError(status);
  const absl::StatusOr<ScoreRequest> score = MakeScoreRequest(&*request, Signature(), kSamplesMax);
  if (!score.ok()) return ExpectError(score.status());
  ExpectFits(*score);
  const std::vector<float> logits(static_cast<size_t>(score->num_samples * 2), 0.25f);
  const absl::StatusOr<InferReply> reply = MakeInferReply(*request, {.name = "m"}, 2, logits);
  HOTROW_CHECK(reply.ok());
  const auto end = static_cast<size_t>(reply->json_bytes.value_or(std::ssize(reply->body)));
  HOTROW_CHECK(nlohmann::json::accept(reply->body.substr(0, end)));
}

std::vector<std::string> InferBodyCorpus() {
  const auto whole = [](std::string_view json) {
    return absl::StrCat(std::string(1, kWholeJson), std::string(json));
  };
  const std::string user = R"({"name":"user","datatype":"INT64","shape":[2],"data":[1,-1]})";
  const std::string item =
      R"({"name":"item","datatype":"UINT64","shape":[2,2],"data":[[1,2],[3,4]]})";
  const std::string t = R"({"name":"t","datatype":"INT32","shape":[3],"data":[1,2,3]})"
                        R"(,{"name":"t:lengths","datatype":"INT64","shape":[2],"data":[0,3]})";
  const std::string dense =
      R"({"name":"dense","datatype":"FP32","shape":[2,2],"data":[0.5,1,2,3e9]})";
  const std::string one = R"({"name":"user","datatype":"INT64","shape":[1,1],"data":[7]})";
  std::string binary = "\x02";
  binary +=
      R"({"id":"b","parameters":{"binary_data_output":true,"timeout":5},"inputs":[)"
      R"({"name":"user","datatype":"INT64","shape":[1,1],"parameters":{"binary_data_size":8}},)"
      R"({"name":"item","datatype":"INT32","shape":[1,1],"parameters":{"binary_data_size":4}},)"
      R"({"name":"t","datatype":"INT64","shape":[1,0],"parameters":{"binary_data_size":0}},)"
      R"({"name":"dense","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}],)"
      R"("outputs":[{"name":"logits"},{"name":"scores","parameters":{"binary_data":false}}]})";
  const auto prefixed = [](const std::string& text) {
    return std::string{static_cast<char>(text.size()), 0, 0, 0} + text;
  };
  std::string texts = "\x02";
  texts +=
      R"({"inputs":[)"
      R"({"name":"user","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}},)"
      R"({"name":"item","datatype":"BYTES","shape":[2,1],"parameters":{"binary_data_size":11}},)"
      R"({"name":"t","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":11}},)"
      R"({"name":"dense","datatype":"FP16","shape":[2,2],"parameters":{"binary_data_size":8}}]})";
  std::string lines = "\x02";
  lines += R"({"inputs":[{"name":"lines","datatype":"BYTES","shape":[2],)"
           R"("parameters":{"binary_data_size":13}}]})";
  return {
      "",
      std::string(1, kNoJson),
      whole("{\"inputs\":[" + user + "," + item + "," + t + "," + dense + "]}"),
      whole("{\"inputs\":[" + one + "," + item + "," + t + "," + dense +
            "],\"outputs\":[{\"name\":\"scores\"}]}"),
      whole("{\"inputs\":[" + one + "," + item + "," + t +
            R"(,{"name":"dense:user","datatype":"FP32","shape":[1,1],"data":[1]},)"
            R"({"name":"dense:user_columns","datatype":"INT32","shape":[1],"data":[1]},)"
            R"({"name":"dense","datatype":"FP32","shape":[2,1],"data":[1,2]}]})"),
      whole(
          R"({"inputs":[{"name":"lines","datatype":"BYTES","shape":[2],"data":["a,b","\u00fc"]}]})"),
      whole(R"({"inputs":[{"name":"user","datatype":"BYTES","shape":[2],"data":["17","-"]},)"
            R"({"name":"item","datatype":"BYTES","shape":[2,2],"data":[["a",""],["-","0x7F"]]},)"
            R"({"name":"t","datatype":"BYTES","shape":[3],"data":["a|b","","c"]},)"
            R"({"name":"t:lengths","datatype":"INT64","shape":[2],"data":[3,0]},)"
            R"({"name":"dense","datatype":"FP16","shape":[2,2],"data":[0.1,-1e-7,65504,0]}]})"),
      whole(
          R"({"inputs":[{"name":"user","datatype":"INT64","shape":[9223372036854775807,0],"data":[]}]})"),
      whole(
          R"({"inputs":[{"name":"user","datatype":"INT64","shape":[4294967296,4294967296],"data":[]}]})"),
      whole("[[[[[[[[[[[[[[[[1e999"),
      whole("{\"inputs\":[],\"inputs\":[]}"),
      binary + "\n" + std::string("\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\x3f\0\0\x80\x3f", 20),
      texts + "\n" + prefixed("17") + prefixed("7f") + prefixed("-") + prefixed("a|b") +
          prefixed("") + std::string("\0\x3c\0\xbc\1\0\xff\x7b", 8),
      lines + "\n" + std::string("\3\0\0\0a,b\2\0\0\0xy", 13)};
}

}  // namespace hotrow::fuzz
