#include "tools/serve/score_request.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/table_schema.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/serve/serve_model.h"

namespace hotrow {
namespace {

using test::ExpectSameBits;
using test::ServedSamples;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSamplesMax = 1000;

TableSchema Schema() {
  return *ParseTableSchema(R"json({"files": {"train": ["f"]}, "columns": [
      {"name": "y", "role": "label"}, {"name": "a", "role": "categorical", "key": "integer"},
      {"name": "b", "role": "categorical", "key": "hash", "separator": "|", "max_hotness": 4,
       "missing": 7}]})json",
                           "schema");
}

ModelSignature Signature() {
  const TableSchema schema = Schema();
  return *ModelSignature::Of({"a", "b"}, 2, 1, &schema);
}

absl::StatusOr<ScoreRequest> Make(const std::string& inputs,
                                  const ModelSignature& signature = Signature()) {
  HOTROW_ASSIGN_OR_RETURN(
      InferRequest request,
      ParseInferRequest(absl::StrCat("{\"inputs\":[", inputs, "]}"), std::nullopt));
  return MakeScoreRequest(&request, signature, kSamplesMax);
}

std::string Tensor(const char* name, const char* type, const char* shape, const char* data) {
  return absl::StrCat("{\"name\":\"", name, "\",\"datatype\":\"", type, "\",\"shape\":", shape,
                      ",\"data\":", data, "}");
}
std::string Join(const std::vector<std::string>& tensors) {
  std::string out;
  for (const std::string& tensor : tensors) absl::StrAppend(&out, out.empty() ? "" : ",", tensor);
  return out;
}

const std::string kA = Tensor("a", "INT64", "[2,1]", "[7,8]");
const std::string kB = Tensor("b", "INT64", "[3]", "[1,-1,3]");
const std::string kBLengths = Tensor("b:lengths", "INT64", "[2]", "[3,0]");
const std::string kDense = Tensor("dense", "FP32", "[2,2]", "[0.5,1,2,3]");

TEST(ScoreRequestTest, FeaturesAreLaidOutInTheModelsOrder) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request, Make(Join({kDense, kBLengths, kB, kA})));
  EXPECT_EQ(request.kind, ScoreKind::kSamples);
  EXPECT_EQ(request.num_samples, 2);
  EXPECT_EQ(request.bags.batch_size, 2);
  EXPECT_THAT(request.bags.keys, ElementsAre(7u, 8u, 1u, ~uint64_t{0}, 3u));
  EXPECT_THAT(request.bags.offsets, ElementsAre(0, 1, 2, 5, 5));
  EXPECT_THAT(request.dense, ElementsAre(0.5f, 1, 2, 3));
}

TEST(ScoreRequestTest, BagsMayHaveOneLength) {
  const std::string b = Tensor("b", "UINT64", "[2,3]", "[1,2,3,4,5,6]");
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request, Make(Join({kA, b, kDense})));
  EXPECT_THAT(request.bags.offsets, ElementsAre(0, 1, 2, 5, 8));
  const std::string none = Tensor("b", "UINT64", "[2,0]", "[]");
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest empty, Make(Join({kA, none, kDense})));
  EXPECT_THAT(empty.bags.offsets, ElementsAre(0, 1, 2, 2, 2));
}

TEST(ScoreRequestTest, OneSampleBesideOthersIsTheUsers) {
  const std::string a = Tensor("a", "INT64", "[1]", "[9]");
  const std::string b = Tensor("b", "INT64", "[3,1]", "[1,2,3]");
  const std::string dense = Tensor("dense", "FP32", "[1,2]", "[4,5]");
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request, Make(Join({a, b, dense})));
  EXPECT_EQ(request.kind, ScoreKind::kCandidates);
  EXPECT_EQ(request.num_samples, 3);
  EXPECT_THAT(request.user_features, ElementsAre(0));
  EXPECT_THAT(request.user_bags.keys, ElementsAre(9u));
  EXPECT_THAT(request.bags.keys, ElementsAre(1u, 2u, 3u));
  EXPECT_THAT(request.bags.offsets, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(request.user_dense_columns, ElementsAre(0, 1));
  EXPECT_THAT(request.user_dense, ElementsAre(4, 5));
  EXPECT_THAT(request.dense, IsEmpty());

  // Dense columns of both.
  const std::string user = Tensor("dense:user", "FP32", "[1,1]", "[4]");
  const std::string columns = Tensor("dense:user_columns", "INT32", "[1]", "[1]");
  const std::string others = Tensor("dense", "FP32", "[3,1]", "[6,7,8]");
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest split, Make(Join({a, b, user, columns, others})));
  EXPECT_THAT(split.user_dense_columns, ElementsAre(1));
  EXPECT_THAT(split.user_dense, ElementsAre(4));
  EXPECT_THAT(split.dense, ElementsAre(6, 7, 8));
}

TEST(ScoreRequestTest, OneSampleAloneIsASample) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const ScoreRequest request,
      Make(Join({Tensor("a", "INT64", "[1]", "[9]"), Tensor("b", "INT64", "[1,1]", "[1]"),
                 Tensor("dense", "FP32", "[1,2]", "[4,5]")})));
  EXPECT_EQ(request.kind, ScoreKind::kSamples);
  EXPECT_EQ(request.num_samples, 1);
}

TEST(ScoreRequestTest, LinesAreTakenAsTheyAre) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest request,
                              Make(Tensor("lines", "BYTES", "[2,1]", R"(["a,b",""])")));
  EXPECT_EQ(request.kind, ScoreKind::kLines);
  EXPECT_THAT(request.lines, ElementsAre("a,b", ""));
}

TEST(ScoreRequestTest, TextsBecomeTheKeysOfFields) {
  const std::string a = Tensor("a", "BYTES", "[2,1]", R"(["7","-1"])");
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const ScoreRequest request,
      Make(Join({a, Tensor("b", "BYTES", "[2]", R"(["x|y",""])"), kDense})));
  EXPECT_THAT(request.bags.keys, ElementsAre(7u, ~uint64_t{0}, HashText("x"), HashText("y"), 7u));
  EXPECT_THAT(request.bags.offsets, ElementsAre(0, 1, 2, 4, 5));

  // Texts of one sample are one bag, which a missing value leaves as it is.
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const ScoreRequest more,
      Make(Join({kA, Tensor("b", "BYTES", "[2,2]", R"(["x","y|z","","w"])"), kDense})));
  EXPECT_THAT(more.bags.keys,
              ElementsAre(7u, 8u, HashText("x"), HashText("y"), HashText("z"), HashText("w")));
  EXPECT_THAT(more.bags.offsets, ElementsAre(0, 1, 2, 5, 6));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const ScoreRequest jagged,
      Make(Join({kA, Tensor("b", "BYTES", "[3]", R"(["x","y","z"])"), kBLengths, kDense})));
  EXPECT_THAT(jagged.bags.offsets, ElementsAre(0, 1, 2, 5, 6));

  // A user's beside those of candidates.
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScoreRequest user,
                              Make(Join({kA, Tensor("b", "BYTES", "[1]", R"(["x|y"])"),
                                         Tensor("dense", "FP16", "[2,2]", "[0.5,1,2,65504]")})));
  EXPECT_EQ(user.kind, ScoreKind::kCandidates);
  EXPECT_THAT(user.user_bags.keys, ElementsAre(HashText("x"), HashText("y")));
  EXPECT_THAT(user.bags.keys, ElementsAre(7u, 8u));
  EXPECT_THAT(user.dense, ElementsAre(0.5f, 1, 2, 65504));
}

TEST(ScoreRequestTest, SignaturesDifferWhereTextsHaveOtherKeys) {
  const TableSchema schema = Schema();
  TableSchema renamed = schema;
  renamed.name = "data of another day";
  TableSchema other = schema;
  other.categorical[1].modulo = 10;
  EXPECT_EQ(*ModelSignature::Of({"a", "b"}, 2, 1, &renamed), Signature());
  EXPECT_NE(*ModelSignature::Of({"a", "b"}, 2, 1, &other), Signature());
  EXPECT_NE(*ModelSignature::Of({"a", "b"}, 2, 1, nullptr), Signature());
}

TEST(ScoreRequestTest, WhatDoesNotFitTheModelIsNamed) {
  const auto expect = [](const std::vector<std::string>& tensors, const std::string& words) {
    EXPECT_THAT(Make(Join(tensors)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)))
        << Join(tensors);
  };
  expect({kA, kDense}, "tensor \"b\": it is missing");
  expect({kA, kBLengths, kDense}, "only its lengths");
  expect({kA, kB, kBLengths}, "tensor \"dense\": it is missing");
  expect({kA, kB, kBLengths, kDense, Tensor("c", "INT64", "[2]", "[1,2]")},
         "tensor \"c\": the model has no such input; it has dense, a, b, or lines");
  expect({Tensor("a", "FP32", "[2]", "[1,2]"), kB, kBLengths, kDense}, "datatype FP32");
  expect({Tensor("a", "BYTES", "[2]", R"(["7","x"])"), kB, kBLengths, kDense},
         "tensor \"a\", position [1]: column 1 (a): found \"x\"");
  expect({kA, Tensor("b", "BYTES", "[2,2]", R"(["","a|b","c|d","e|f|g"])"), kDense},
         "tensor \"b\", position [1,1]: column 2 (b): found \"e|f|g\", expected at most 4");
  expect({kA, Tensor("b:lengths", "BYTES", "[2]", R"(["3","0"])"), kB, kDense}, "datatype BYTES");
  expect({kA, kB, kBLengths, Tensor("dense", "BYTES", "[2,2]", R"(["1","1","1","1"])")},
         "expected FP32 or FP16");
  expect({Tensor("a", "INT64", "[2,1,1]", "[1,2]"), kB, kBLengths, kDense}, "[2,1,1]");
  expect({kA, Tensor("b", "INT64", "[3,1]", "[1,2,3]"), kBLengths, kDense}, "expected [keys]");
  expect({kA, kB, Tensor("b:lengths", "INT64", "[2,1]", "[3,0]"), kDense}, "expected [samples]");
  expect({kA, kB, Tensor("b:lengths", "INT64", "[2]", "[4,0]"), kDense},
         "position [0]: 4, but 3 keys are left");
  expect({kA, kB, Tensor("b:lengths", "INT64", "[2]", "[1,1]"), kDense}, "lengths with the sum 2");
  expect({kA, kB, Tensor("b:lengths", "INT64", "[2]", "[4,-1]"), kDense}, "position [0]: 4");
  expect({kA, kB, Tensor("b:lengths", "INT32", "[2]", "[2,-1]"), kDense}, "position [1]: -1");
  expect({kA, kB, Tensor("b:lengths", "UINT64", "[2]", "[2,18446744073709551615]"), kDense},
         "position [1]: 18446744073709551615");
  expect({kA, kB, Tensor("b:lengths", "INT64", "[3]", "[1,1,1]"), kDense},
         "tensor \"b:lengths\": 3 samples, but \"a\" has 2");
  expect({kA, kB, kBLengths, Tensor("dense", "FP32", "[2,3]", "[1,1,1,1,1,1]")}, "[samples, 2]");
  expect({kA, kB, kBLengths, Tensor("dense", "FP32", "[4]", "[1,1,1,1]")}, "[samples, 2]");
  expect({kA, kB, kBLengths, Tensor("dense", "INT64", "[2,2]", "[1,1,1,1]")}, "datatype INT64");
  expect({kA, kB, kBLengths, kDense, Tensor("dense:user", "FP32", "[1,1]", "[1]")}, "without");
  expect({kA, kB, kBLengths, kDense, Tensor("dense:user", "FP32", "[1,1]", "[1]"),
          Tensor("dense:user_columns", "INT64", "[1]", "[2]")},
         "position [0]: 2");
  expect({kA, kB, kBLengths, kDense, Tensor("dense:user", "FP32", "[1,2]", "[1,1]"),
          Tensor("dense:user_columns", "INT64", "[2]", "[1,1]")},
         "position [1]: 1");
  expect({kA, Tensor("lines", "BYTES", "[1]", "[\"x\"]")}, "lines hold all features");
  expect({Tensor("lines", "INT64", "[1]", "[1]")}, "datatype INT64");
  expect({Tensor("lines", "BYTES", "[1,2]", "[\"x\",\"y\"]")}, "[1,2]");
  // Not the keys of its value, nor of its 32 bits.
  expect({kA, Tensor("b", "INT32", "[3]", "[1,-1,3]"), kBLengths, kDense},
         "tensor \"b\", position [1]: -1: keys of INT32 must not be negative");
  const ModelSignature no_schema = *ModelSignature::Of({"a"}, 0, 1, nullptr);
  EXPECT_THAT(Make(Tensor("lines", "BYTES", "[1]", "[\"x\"]"), no_schema),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no schema of lines")));
  EXPECT_THAT(Make(Tensor("a", "BYTES", "[1]", "[\"1\"]"), no_schema),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor \"a\": datatype BYTES, expected INT64, UINT64 or INT32")));
}

// Shapes that name many samples and hold no element.
TEST(ScoreRequestTest, SamplesAreLimitedBeforeMemoryIsTaken) {
  for (const char* const shape : {"[1001,0]", "[9223372036854775807,0]"}) {
    for (const char* const type : {"INT64", "BYTES"}) {
      EXPECT_THAT(Make(Join({Tensor("a", type, shape, "[]"), kB, kBLengths, kDense})),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 1000")));
    }
  }
  const ModelSignature no_dense = *ModelSignature::Of({"a", "b"}, 0, 1, nullptr);
  EXPECT_THAT(Make(Join({kA, kB, kBLengths, Tensor("dense", "FP32", "[9000,0]", "[]")}), no_dense),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 1000")));
}

TEST(ScoreRequestTest, NamesOfFeaturesMakeWay) {
  const ModelSignature moved = *ModelSignature::Of({"dense", "lines"}, 1, 1, nullptr);
  EXPECT_EQ(moved.dense_name, ":dense");
  EXPECT_EQ(moved.lines_name, ":lines");
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"a", "a:lengths"}, {"dense:user"}, {"dense", ":dense"}}) {
    EXPECT_THAT(ModelSignature::Of(names, 1, 1, nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another name")));
  }
}

// --- With a Scorer

std::shared_ptr<ScoreJob> JobOf(const std::string& json,
                                const std::shared_ptr<const ModelSignature>& signature) {
  auto job = std::make_shared<ScoreJob>();
  auto infer = ParseInferRequest(json, std::nullopt);
  HOTROW_EXPECT_OK(infer);
  auto request = MakeScoreRequest(&*infer, *signature, kSamplesMax);
  HOTROW_EXPECT_OK(request);
  job->request = *std::move(request);
  job->signature = signature;
  return job;
}

ServedSamples Joined(const std::vector<ServedSamples>& parts) {
  ServedSamples out = {.bags = {{}, {}, {}}};
  for (const ServedSamples& part : parts) {
    out.batch_size += part.batch_size;
    for (size_t f = 0; f < 3; ++f) {
      out.bags[f].insert(out.bags[f].end(), part.bags[f].begin(), part.bags[f].end());
    }
    out.dense.insert(out.dense.end(), part.dense.begin(), part.dense.end());
    out.lines.insert(out.lines.end(), part.lines.begin(), part.lines.end());
  }
  return out;
}

TEST(ScoreJobsTest, ABatchHasTheBitsOfItsSamplesTogether) {
  const auto scorer = test::OpenServedModel();
  const auto signature = std::make_shared<const ModelSignature>(*ModelSignature::Of(*scorer));
  const std::vector<ServedSamples> parts = {ServedSamples::Draw(1, 5), ServedSamples::Draw(2, 1),
                                            ServedSamples::Draw(3, 0), ServedSamples::Draw(4, 9)};
  for (const bool lines : {false, true}) {
    std::vector<std::shared_ptr<ScoreJob>> jobs;
    std::vector<ScoreJob*> views;
    for (const ServedSamples& part : parts) {
      jobs.push_back(JobOf(lines ? part.LinesJson() : part.Json(), signature));
      views.push_back(jobs.back().get());
    }
    ScoreJobs(*scorer, *signature, views);
    std::vector<float> found;
    for (const auto& job : jobs) {
      HOTROW_EXPECT_OK(job->status);
      EXPECT_EQ(job->batch_samples, 15);
      EXPECT_EQ(job->step, scorer->step());
      found.insert(found.end(), job->logits.begin(), job->logits.end());
    }
    const ServedSamples whole = Joined(parts);
    ExpectSameBits(found, lines ? whole.LineLogits(*scorer) : whole.Logits(*scorer));
  }
}

TEST(ScoreJobsTest, ARequestFailsByItsOwnFaultOnly) {
  const auto scorer = test::OpenServedModel();
  const auto signature = std::make_shared<const ModelSignature>(*ModelSignature::Of(*scorer));
  const ServedSamples good = ServedSamples::Draw(1, 5);
  ServedSamples bad = ServedSamples::Draw(2, 3);
  bad.bags[0][1] = {100};  // of a table with num_embeddings 100
  const auto good_job = JobOf(good.Json(), signature);
  const auto bad_job = JobOf(bad.Json(), signature);
  std::vector<ScoreJob*> jobs = {good_job.get(), bad_job.get()};
  ScoreJobs(*scorer, *signature, jobs);
  HOTROW_ASSERT_OK(good_job->status);
  EXPECT_EQ(good_job->batch_samples, 5);
  ExpectSameBits(good_job->logits, good.Logits(*scorer));
  EXPECT_THAT(bad_job->status, StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("feature \"user\", sample 1: key 100")));
}

TEST(ScoreJobsTest, AUsersCandidatesScoreAsWholeSamples) {
  const auto scorer = test::OpenServedModel();
  const auto signature = std::make_shared<const ModelSignature>(*ModelSignature::Of(*scorer));
  ServedSamples samples = ServedSamples::Draw(6, 7);
  for (int64_t b = 1; b < samples.batch_size; ++b) {
    samples.bags[0][static_cast<size_t>(b)] = samples.bags[0][0];
    samples.bags[2][static_cast<size_t>(b)] = samples.bags[2][0];
    samples.dense[static_cast<size_t>(2 * b + 1)] = samples.dense[1];
  }
  auto job = std::make_shared<ScoreJob>();
  job->signature = signature;
  ServedSamples user = ServedSamples::Draw(6, 1);
  std::string json = samples.Json();
  HOTROW_ASSERT_OK_AND_ASSIGN(InferRequest infer, ParseInferRequest(json, std::nullopt));
  HOTROW_ASSERT_OK_AND_ASSIGN(InferRequest one, ParseInferRequest(user.Json(), std::nullopt));
  // inputs: user, user:lengths, item, item:lengths, tags, tags:lengths, dense.
  for (const size_t at : {0, 1, 4, 5}) infer.inputs[at] = one.inputs[at];
  InputTensor columns = {.name = "dense:user_columns", .shape = {1}, .integers = {1}};
  InputTensor user_dense = {.name = "dense:user",
                            .type = TensorType::kFp32,
                            .shape = {1, 1},
                            .floats = {samples.dense[1]}};
  std::vector<float> own;
  for (size_t b = 0; b < 7; ++b) own.push_back(samples.dense[2 * b]);
  infer.inputs[6].shape = {7, 1};
  infer.inputs[6].floats = own;
  infer.inputs.push_back(columns);
  infer.inputs.push_back(user_dense);
  HOTROW_ASSERT_OK_AND_ASSIGN(job->request, MakeScoreRequest(&infer, *signature, kSamplesMax));
  EXPECT_EQ(job->request.kind, ScoreKind::kCandidates);
  ScoreJob* const view = job.get();
  ScoreJobs(*scorer, *signature, std::span(&view, 1));
  HOTROW_ASSERT_OK(job->status);
  ExpectSameBits(job->logits, samples.Logits(*scorer));
}

TEST(ScoreJobsTest, AnotherModelIsNotScoredWith) {
  const auto scorer = test::OpenServedModel();
  const auto signature = std::make_shared<const ModelSignature>(*ModelSignature::Of(*scorer));
  ModelSignature other = *signature;
  other.num_dense = 5;
  const auto job = JobOf(ServedSamples::Draw(1, 2).Json(), signature);
  ScoreJob* const view = job.get();
  ScoreJobs(*scorer, other, std::span(&view, 1));
  EXPECT_THAT(job->status, StatusIs(absl::StatusCode::kAborted, HasSubstr("replaced")));
}

}  // namespace
}  // namespace hotrow
