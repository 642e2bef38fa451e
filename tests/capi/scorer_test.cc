// Scoring through the C interface: the bits of the C++ Scorer in every form of a batch, from many
// threads, and what is refused.

#include "models/serving/scorer.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hotrow/hotrow.h"
#include "models/data/ctr_batch.h"
#include "tests/capi/drawn_calls.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A handle with its end.
struct Handle {
  explicit Handle(hotrow_scorer* scorer) : scorer(scorer) {}
  ~Handle() { hotrow_scorer_destroy(scorer); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  hotrow_scorer* const scorer;
};

hotrow_scorer_options OptionsFor(const std::string& model) {
  hotrow_scorer_options out;
  hotrow_scorer_options_default(&out, sizeof(out));
  out.model = model.c_str();
  out.max_batch_size = kBatchSize;
  out.max_concurrency = 2;
  return out;
}

hotrow_scorer* Open(const std::string& model) {
  const hotrow_scorer_options options = OptionsFor(model);
  hotrow_scorer* out = nullptr;
  EXPECT_EQ(hotrow_scorer_open(&options, &out), HOTROW_OK) << hotrow_error_message();
  return out;
}

hotrow_matrix Matrix(std::span<const float> data, int64_t rows, int64_t cols) {
  return {.data = const_cast<float*>(data.data()),
          .rows = rows,
          .cols = cols,
          .stride = cols,
          .type = HOTROW_FLOAT32};
}

// The ids of a batch in another width, its bags by lengths, each feature by itself.
template <typename Id>
struct Apart {
  Apart(const CtrBatch& batch, const std::vector<size_t>& features, int64_t samples)
      : values(features.size()), lengths(features.size()) {
    for (size_t i = 0; i < features.size(); ++i) {
      const int64_t* const offsets =
          batch.offsets.data() + static_cast<int64_t>(features[i]) * batch.batch_size;
      for (int64_t at = offsets[0]; at < offsets[samples]; ++at) {
        values[i].push_back(static_cast<Id>(batch.values[static_cast<size_t>(at)]));
      }
      for (int64_t b = 0; b < samples; ++b) {
        lengths[i].push_back(static_cast<int32_t>(offsets[b + 1] - offsets[b]));
      }
      bags.push_back({.values = values[i].data(),
                      .lengths = lengths[i].data(),
                      .num_values = std::ssize(values[i]),
                      .values_type = sizeof(Id) == 4 ? HOTROW_INT32 : HOTROW_INT64,
                      .bags_type = HOTROW_INT32});
    }
    c_batch = {.struct_size = sizeof(hotrow_batch),
               .batch_size = samples,
               .bags = bags.data(),
               .num_features = std::ssize(bags)};
  }
  std::vector<std::vector<Id>> values;
  std::vector<std::vector<int32_t>> lengths;
  std::vector<hotrow_bags> bags;
  hotrow_batch c_batch = {};
};

hotrow_bags Jagged(const CtrBatch& batch) {
  return {.values = batch.values.data(),
          .offsets = batch.offsets.data(),
          .num_values = std::ssize(batch.values),
          .values_type = HOTROW_UINT64,
          .bags_type = HOTROW_INT64};
}

// Scores a batch that has all features in one array.
hotrow_status ScoreJagged(hotrow_scorer* scorer, const CtrBatch& batch, std::span<float> logits) {
  const hotrow_bags bags = Jagged(batch);
  const hotrow_batch c_batch = {
      .struct_size = sizeof(c_batch), .batch_size = batch.batch_size, .bags = &bags};
  const int64_t n = batch.batch_size;
  const hotrow_matrix dense = Matrix(batch.dense, n, std::ssize(batch.dense) / n);
  const hotrow_matrix out = Matrix(logits, n, std::ssize(logits) / n);
  return hotrow_scorer_score(scorer, &c_batch, &dense, &out);
}

class CapiScorerTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const Kind kind = GetParam();
    const std::string data = absl::StrCat("table:", WriteLog(dir_, kind.two_labels()));
    TrainerOptions options = OptionsOf(kind);
    options.save_dir = model_;
    options.limit_train_batches = 6;
    HOTROW_ASSERT_OK(Train(kind, options, data));
    HOTROW_ASSERT_OK_AND_ASSIGN(
        scorer_,
        Scorer::Open({.model = model_, .max_concurrency = 1, .max_batch_size = kBatchSize}));
    HOTROW_ASSERT_OK_AND_ASSIGN(batches_, TestBatches(data));
  }

  const std::string dir_ = TempDir();
  const std::string model_ = dir_ + "/model";
  std::unique_ptr<Scorer> scorer_;
  std::vector<CtrBatch> batches_;
};

TEST_P(CapiScorerTest, EveryFormOfABatchHasTheBitsOfTheCppScorer) {
  const Handle handle(Open(model_));
  ASSERT_NE(handle.scorer, nullptr);
  const int64_t tasks = scorer_->num_tasks();
  for (const CtrBatch& batch : batches_) {
    const int64_t n = batch.batch_size;
    std::vector<float> expected(static_cast<size_t>(n * tasks));
    HOTROW_ASSERT_OK(scorer_->Score({.sparse = batch.sparse(), .dense = batch.dense}, expected));
    std::vector<float> found(expected.size(), -7);
    ASSERT_EQ(ScoreJagged(handle.scorer, batch, found), HOTROW_OK) << hotrow_error_message();
    ExpectSameBits(found, expected);

    const std::vector<size_t> all = {0, 1, 2, 3, 4, 5};
    const hotrow_matrix dense = Matrix(batch.dense, n, 2);
    const hotrow_matrix out = Matrix(found, n, tasks);
    const Apart<int64_t> wide(batch, all, n);
    found.assign(expected.size(), -7);
    ASSERT_EQ(hotrow_scorer_score(handle.scorer, &wide.c_batch, &dense, &out), HOTROW_OK)
        << hotrow_error_message();
    ExpectSameBits(found, expected);
    // Keys of hashed texts do not fit: feature 2 (item) stays wide.
    Apart<int32_t> narrow(batch, all, n);
    narrow.bags[2] = wide.bags[2];
    found.assign(expected.size(), -7);
    ASSERT_EQ(hotrow_scorer_score(handle.scorer, &narrow.c_batch, &dense, &out), HOTROW_OK)
        << hotrow_error_message();
    ExpectSameBits(found, expected);
    narrow.values[0][0] = -5;
    EXPECT_EQ(hotrow_scorer_score(handle.scorer, &narrow.c_batch, &dense, &out),
              HOTROW_INVALID_ARGUMENT);
    EXPECT_THAT(hotrow_error_message(), HasSubstr("values[0] is -5: ids of 32 bits must not"));
  }
}

TEST_P(CapiScorerTest, LinesHaveTheBitsOfTheCppScorer) {
  const Handle handle(Open(model_));
  const std::vector<std::string> lines = TheLog().TestLines(scorer_->line_columns());
  std::vector<float> expected(lines.size() * static_cast<size_t>(scorer_->num_tasks()));
  HOTROW_ASSERT_OK(scorer_->ScoreLines(Views(lines), expected));
  // As they end in NUL, and as they lie in one text without ends.
  const std::string joined = absl::StrJoin(lines, "");
  std::vector<const char*> ended, begun;
  std::vector<int64_t> lengths;
  int64_t at = 0;
  for (const std::string& line : lines) {
    ended.push_back(line.c_str());
    begun.push_back(joined.data() + at);
    lengths.push_back(std::ssize(line));
    at += std::ssize(line);
  }
  std::vector<float> found(expected.size(), -7);
  const hotrow_matrix out = Matrix(found, std::ssize(lines), scorer_->num_tasks());
  ASSERT_EQ(
      hotrow_scorer_score_lines(handle.scorer, ended.data(), nullptr, std::ssize(lines), &out),
      HOTROW_OK)
      << hotrow_error_message();
  ExpectSameBits(found, expected);
  found.assign(expected.size(), -7);
  ASSERT_EQ(hotrow_scorer_score_lines(handle.scorer, begun.data(), lengths.data(),
                                      std::ssize(lines), &out),
            HOTROW_OK)
      << hotrow_error_message();
  ExpectSameBits(found, expected);
  // With the ends that a file's lines have.
  std::vector<std::string> of_file = lines;
  for (size_t i = 0; i < lines.size(); ++i) {
    of_file[i] += "\r\n";
    ended[i] = of_file[i].c_str();
  }
  found.assign(expected.size(), -7);
  ASSERT_EQ(
      hotrow_scorer_score_lines(handle.scorer, ended.data(), nullptr, std::ssize(lines), &out),
      HOTROW_OK)
      << hotrow_error_message();
  ExpectSameBits(found, expected);
}

TEST_P(CapiScorerTest, ACallEndsAtItsDeadline) {
  hotrow_scorer_options options = OptionsFor(model_);
  options.deadline_ms = -1;
  hotrow_scorer* opened = nullptr;
  EXPECT_EQ(hotrow_scorer_open(&options, &opened), HOTROW_INVALID_ARGUMENT);
  EXPECT_THAT(hotrow_error_message(), HasSubstr("deadline_ms: must lie in [0, "));
  const std::vector<std::string> lines = TheLog().TestLines(scorer_->line_columns());
  for (const auto& [deadline_ms, expected] :
       {std::pair<int64_t, hotrow_status>{1, HOTROW_DEADLINE_EXCEEDED}, {600'000, HOTROW_OK}}) {
    options.deadline_ms = deadline_ms;
    ASSERT_EQ(hotrow_scorer_open(&options, &opened), HOTROW_OK) << hotrow_error_message();
    const Handle handle(opened);
    std::vector<const char*> many;
    for (size_t i = 0; i < 10'000; ++i) many.push_back(lines[i % lines.size()].c_str());
    std::vector<float> found(many.size() * static_cast<size_t>(scorer_->num_tasks()));
    const hotrow_matrix out = Matrix(found, std::ssize(many), scorer_->num_tasks());
    EXPECT_EQ(
        hotrow_scorer_score_lines(handle.scorer, many.data(), nullptr, std::ssize(many), &out),
        expected)
        << hotrow_error_message();
  }
}

// One user with all samples of a batch as candidates, against the C++ scorer with the same arrays.
TEST_P(CapiScorerTest, CandidatesHaveTheBitsOfTheCppScorer) {
  const Handle handle(Open(model_));
  const CtrBatch& batch = batches_[0];
  const int64_t n = batch.batch_size;
  for (const std::vector<int32_t>& users :
       {std::vector<int32_t>{}, {0, 1, 5}, {0, 3}, {0, 1, 2, 3, 4, 5}}) {
    SCOPED_TRACE(absl::StrJoin(users, ","));
    std::vector<size_t> own, others;
    for (int32_t f = 0; f < 6; ++f) {
      (std::ranges::count(users, f) > 0 ? own : others).push_back(static_cast<size_t>(f));
    }
    const Apart<int64_t> user(batch, own, 1);
    const Apart<int64_t> candidates(batch, others, n);
    const std::vector<int32_t> user_columns = {1};
    const std::vector<float> user_dense = {0.75f};
    std::vector<float> dense;
    for (int64_t b = 0; b < n; ++b) dense.push_back(batch.dense[static_cast<size_t>(2 * b)]);
    const auto bags_of = [](const Apart<int64_t>& part) {
      std::vector<FeatureBags> out;
      for (size_t f = 0; f < part.bags.size(); ++f) {
        out.push_back({.values = std::span(part.values[f]), .lengths = std::span(part.lengths[f])});
      }
      return out;
    };
    const std::vector<FeatureBags> user_bags = bags_of(user);
    const std::vector<FeatureBags> candidate_bags = bags_of(candidates);
    std::vector<float> expected(static_cast<size_t>(n * scorer_->num_tasks()));
    HOTROW_ASSERT_OK(scorer_->ScoreCandidates({.num_candidates = n,
                                               .user_features = users,
                                               .user = {.batch_size = 1},
                                               .candidates = {.batch_size = n},
                                               .user_dense_columns = user_columns,
                                               .user_dense = user_dense,
                                               .candidate_dense = dense,
                                               .user_bags = user_bags,
                                               .candidate_bags = candidate_bags},
                                              expected));
    std::vector<float> found(expected.size(), -7);
    const hotrow_matrix c_dense = Matrix(dense, n, 1);
    const hotrow_matrix out = Matrix(found, n, scorer_->num_tasks());
    const hotrow_candidates asked = {.struct_size = sizeof(asked),
                                     .num_candidates = n,
                                     .user_features = users.data(),
                                     .num_user_features = std::ssize(users),
                                     .user = own.empty() ? nullptr : &user.c_batch,
                                     .candidates = others.empty() ? nullptr : &candidates.c_batch,
                                     .user_dense_columns = user_columns.data(),
                                     .num_user_dense_columns = 1,
                                     .user_dense = user_dense.data(),
                                     .candidate_dense = &c_dense};
    ASSERT_EQ(hotrow_scorer_score_candidates(handle.scorer, &asked, &out), HOTROW_OK)
        << hotrow_error_message();
    ExpectSameBits(found, expected);
  }
}

TEST_P(CapiScorerTest, ItIsDescribed) {
  const Handle handle(Open(model_));
  uint64_t needed = 0;
  EXPECT_EQ(hotrow_scorer_describe(handle.scorer, nullptr, 0, &needed), HOTROW_OUT_OF_RANGE);
  std::string text(needed, '\0');
  ASSERT_EQ(hotrow_scorer_describe(handle.scorer, text.data(), text.size(), nullptr), HOTROW_OK);
  text.pop_back();
  const nlohmann::json told = nlohmann::json::parse(text);
  EXPECT_EQ(told["model"], GetParam().name);
  EXPECT_EQ(told["step"], 6);
  std::vector<std::string> features;
  for (const auto& feature : told["features"]) features.push_back(feature["name"]);
  EXPECT_EQ(features, scorer_->feature_names());
  EXPECT_EQ(told["num_dense"], 2);
  EXPECT_THAT(told["dense"], ElementsAre("log_price", "age"));
  EXPECT_EQ(told["num_tasks"], scorer_->num_tasks());
  EXPECT_EQ(told["labels"], nlohmann::json(scorer_->labels()));
  EXPECT_EQ(told["rows"], scorer_->rows());
  EXPECT_EQ(told["table_bytes"], scorer_->table_bytes());
  EXPECT_EQ(told["max_batch_size"], kBatchSize);
  EXPECT_EQ(told["line_columns"], nlohmann::json(scorer_->line_columns()));
  EXPECT_TRUE(told["notes"].empty());
}

// More threads than sessions; one closes the scorer while the others are at work.
TEST_P(CapiScorerTest, ThreadsScoreAtOnceUntilItIsClosed) {
  const Handle handle(Open(model_));
  std::vector<std::vector<float>> expected;
  for (const CtrBatch& batch : batches_) {
    expected.emplace_back(static_cast<size_t>(batch.batch_size * scorer_->num_tasks()));
    HOTROW_ASSERT_OK(
        scorer_->Score({.sparse = batch.sparse(), .dense = batch.dense}, expected.back()));
  }
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t;; ++i) {
        const size_t b = i % batches_.size();
        std::vector<float> found(expected[b].size());
        const hotrow_status status = ScoreJagged(handle.scorer, batches_[b], found);
        if (status == HOTROW_FAILED_PRECONDITION) {
          EXPECT_STREQ(hotrow_error_message(), "the scorer has been closed");
          return;
        }
        ASSERT_EQ(status, HOTROW_OK) << hotrow_error_message();
        ExpectSameBits(found, expected[b]);
        ++good;
      }
    });
  }
  while (good < 50 && !HasFailure()) std::this_thread::yield();
  EXPECT_EQ(hotrow_scorer_close(handle.scorer), HOTROW_OK);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hotrow_scorer_close(handle.scorer), HOTROW_OK);
  char text[1000];
  EXPECT_EQ(hotrow_scorer_describe(handle.scorer, text, sizeof(text), nullptr),
            HOTROW_FAILED_PRECONDITION);
}

std::vector<Kind> SomeKinds() {
  const std::vector<Kind> all = Kinds();
  return {all[0], all[3], all[7], all[8]};  // dlrm, deepfm with batch norm, din, mmoe
}
INSTANTIATE_TEST_SUITE_P(Models, CapiScorerTest, testing::ValuesIn(SomeKinds()),
                         [](const auto& info) { return info.param.name; });

// A model of generated data: two features of 50 keys, one dense.
const std::string& SmallModel() {
  static const std::string* const dir = [] {
    TrainerOptions options = OptionsOf(Kinds()[0]);
    options.save_dir = TempDir() + "/model";
    HOTROW_EXPECT_OK(Train(Kinds()[0], options,
                           "synthetic:tables=2,rows=50,dense=1,samples=100,valid=9,test=9"));
    return new std::string(options.save_dir);
  }();
  return *dir;
}

TEST(CapiScorerErrorsTest, WhatIsWrongIsNamed) {
  const auto expect = [](hotrow_status found, hotrow_status status, const char* text) {
    EXPECT_EQ(found, status);
    EXPECT_THAT(hotrow_error_message(), HasSubstr(text));
  };
  const auto invalid = [&](hotrow_status found, const char* text) {
    expect(found, HOTROW_INVALID_ARGUMENT, text);
  };
  hotrow_scorer* none = nullptr;
  const auto open = [&](auto change) {
    hotrow_scorer_options options = OptionsFor(SmallModel());
    change(options);
    return hotrow_scorer_open(&options, &none);
  };
  invalid(hotrow_scorer_open(nullptr, &none), "options: is null");
  invalid(open([](auto& o) { o.model = nullptr; }), "options.model: is null");
  invalid(open([](auto& o) { o.rows = "int3"; }),
          "options.rows: is \"int3\", must be one of as_tr");
  invalid(open([](auto& o) { o.precision = "fp64"; }), "options.precision");
  invalid(open([](auto& o) { o.max_batch_size = 0; }), "options.max_batch_size must lie in");
  invalid(open([](auto& o) { o.store_memory_bytes = -1; }), "options.store_memory_bytes must");
  invalid(open([](auto& o) { o.reserved = 1; }), "options.reserved");
  expect(open([](auto& o) { o.memory_bytes = 1; }), HOTROW_RESOURCE_EXHAUSTED, "the budget is 1");
  expect(open([](auto& o) { o.model = "/nowhere"; }), HOTROW_FAILED_PRECONDITION, "/nowhere");
  EXPECT_EQ(none, nullptr);
  hotrow_scorer_destroy(nullptr);
  invalid(hotrow_scorer_close(nullptr), "scorer: is null");

  const Handle handle(Open(SmallModel()));
  hotrow_scorer* const scorer = handle.scorer;
  std::vector<uint64_t> keys = {1, 2, 3, 4};
  const std::vector<int64_t> offsets = {0, 1, 2, 3, 4};
  hotrow_bags bags = {.values = keys.data(),
                      .offsets = offsets.data(),
                      .num_values = 4,
                      .values_type = HOTROW_UINT64,
                      .bags_type = HOTROW_INT64};
  const hotrow_batch batch = {.struct_size = sizeof(batch), .batch_size = 2, .bags = &bags};
  std::vector<float> room(8), numbers(8);
  hotrow_matrix dense = Matrix(numbers, 2, 1), logits = Matrix(room, 2, 1);
  const auto score = [&] { return hotrow_scorer_score(scorer, &batch, &dense, &logits); };
  ASSERT_EQ(score(), HOTROW_OK) << hotrow_error_message();
  invalid(hotrow_scorer_score(nullptr, &batch, &dense, &logits), "scorer: is null");
  invalid(hotrow_scorer_score(scorer, nullptr, &dense, &logits), "batch: is null");
  invalid(hotrow_scorer_score(scorer, &batch, nullptr, &logits), "dense: is null");
  invalid(hotrow_scorer_score(scorer, &batch, &dense, nullptr), "logits: is null");
  logits = Matrix(room, 1, 2);
  invalid(score(), "logits: is [1, 2], expected [2, 1]");
  logits = Matrix(room, 2, 1);
  logits.stride = 2;
  invalid(score(), "logits: has a stride of 2, must be contiguous");
  logits = Matrix(room, 2, 1);
  dense = Matrix(numbers, 2, 2);
  invalid(score(), "dense: is [2, 2], expected [2, 1]");
  dense = Matrix(numbers, 2, 1);
  dense.type = HOTROW_INT64;
  invalid(score(), "dense.type");
  dense = Matrix(numbers, 2, 1);
  keys[3] = 50;
  invalid(score(), "feature \"cat_1\", sample 1: key 50 is not in [0, 50)");
  keys[3] = 4;
  bags.num_values = 3;
  invalid(score(), "the last offset must be the number of values");
  bags.num_values = 4;
  const hotrow_batch both = {
      .struct_size = sizeof(both), .batch_size = 2, .bags = &bags, .num_features = 3};
  invalid(hotrow_scorer_score(scorer, &both, &dense, &logits),
          "batch.num_features: is 3, expected 2");

  const char* const line = "1,2";
  logits = Matrix(room, 1, 1);
  expect(hotrow_scorer_score_lines(scorer, &line, nullptr, 1, &logits), HOTROW_FAILED_PRECONDITION,
         "it has no schema of lines");
  invalid(hotrow_scorer_score_lines(scorer, &line, nullptr, -1, &logits), "num_lines: is -1");
  const int64_t negative = -1;
  invalid(hotrow_scorer_score_lines(scorer, &line, &negative, 1, &logits), "lengths[0]: is -1");

  std::vector<int32_t> users = {1, 0};
  const hotrow_batch one = {.struct_size = sizeof(one), .batch_size = 1, .bags = &bags};
  hotrow_candidates asked = {.struct_size = sizeof(asked),
                             .num_candidates = 2,
                             .user_features = users.data(),
                             .num_user_features = 2,
                             .user = &one,
                             .candidate_dense = &dense};
  logits = Matrix(room, 2, 1);
  const auto ask = [&] { return hotrow_scorer_score_candidates(scorer, &asked, &logits); };
  bags.num_values = 2;
  invalid(ask(), "user_features: 0 behind 1");
  users = {0, 2};
  invalid(ask(), "user_features: 2: must lie in [0, 2)");
  users = {0, 1};
  ASSERT_EQ(ask(), HOTROW_OK) << hotrow_error_message();
  asked.candidates = &one;
  invalid(ask(), "candidates: has no features; must be null");
  asked.candidates = nullptr;
  asked.num_user_features = 1;
  invalid(ask(), "candidates: is null");
  asked.num_user_dense_columns = 2;
  asked.user_dense_columns = users.data();
  asked.user_dense = numbers.data();
  invalid(ask(), "num_user_dense_columns: is 2, the model has 1");

  float probabilities[2] = {0, 3};
  EXPECT_EQ(hotrow_probabilities(probabilities, 2, probabilities), HOTROW_OK);
  EXPECT_EQ(probabilities[0], 0.5f);
  EXPECT_EQ(probabilities[1], ScoreProbability(3));
  invalid(hotrow_probabilities(nullptr, 1, probabilities), "logits: is null");
  invalid(hotrow_probabilities(probabilities, -1, probabilities), "count: is -1");
}

// ---- Drawn calls, as in fuzz_test.cc ----

class ScorerFuzzer : public DrawnCalls {
 public:
  explicit ScorerFuzzer(uint64_t seed) : DrawnCalls(seed) {}
  ~ScorerFuzzer() {
    for (hotrow_scorer* const scorer : scorers_) hotrow_scorer_destroy(scorer);
  }

  void Run(int calls) {
    for (int call = 0; call < calls && !testing::Test::HasFailure(); ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      switch (Below(9)) {
        case 0:
          OpenOrEnd();
          break;
        case 1:
        case 2:
          Lines();
          break;
        case 3:
        case 4:
        case 5:
          Candidates();
          break;
        default:
          Score();
      }
    }
    // After any refusal a good call works.
    for (hotrow_scorer* const scorer : scorers_) {
      const auto batch = MakeBatch(2, true);
      Matrices memory;
      const hotrow_matrix dense = Matrix(&memory, batch->batch.batch_size, 1, true);
      const hotrow_matrix logits = Packed(Matrix(&memory, batch->batch.batch_size, 1, true));
      const hotrow_matrix packed = Packed(dense);
      const hotrow_status status = hotrow_scorer_score(scorer, &batch->batch, &packed, &logits);
      if (status != HOTROW_OK) {
        EXPECT_STREQ(hotrow_error_message(), "the scorer has been closed");
      }
    }
  }

 private:
  static hotrow_matrix Packed(hotrow_matrix matrix) {
    matrix.stride = matrix.cols;
    return matrix;
  }
  hotrow_matrix Room(Matrices* memory, int64_t rows, int64_t cols) {
    const hotrow_matrix out = Matrix(memory, std::clamp<int64_t>(rows, 0, 9), cols, Below(3) > 0);
    return Rarely() ? out : Packed(out);
  }
  hotrow_scorer* Any() {
    if (scorers_.empty()) return nullptr;
    return scorers_[static_cast<size_t>(Below(std::ssize(scorers_)))];
  }

  void OpenOrEnd() {
    if (scorers_.size() >= 3) {
      if (Below(2) == 0) {
        Check(hotrow_scorer_close(Null(scorers_[0])));
      } else {
        hotrow_scorer_destroy(scorers_[0]);
        scorers_.erase(scorers_.begin());
      }
      return;
    }
    static constexpr std::array<const char*, 4> kRows = {nullptr, "fp16", "int8", "int5"};
    hotrow_scorer_options options = OptionsFor(SmallModel());
    options.model = Rarely() ? "/nowhere" : Null(options.model);
    options.rows = kRows[static_cast<size_t>(Below(Rarely() ? 4 : 3))];
    options.precision = Rarely() ? "fp64" : nullptr;
    options.memory_bytes = Rarely() ? Odd() : 0;
    options.store_memory_bytes = Rarely() ? Odd() : 0;
    options.max_batch_size = Rarely() ? -Below(2) : 1 + Below(5);
    options.max_concurrency = Rarely() ? -1 : 1;
    options.struct_size = Rarely() ? static_cast<uint64_t>(Below(64)) : sizeof(options);
    hotrow_scorer* made = nullptr;
    if (Check(hotrow_scorer_open(Null(&options), Null(&made))) != HOTROW_OK) {
      EXPECT_EQ(made, nullptr);
    } else {
      scorers_.push_back(made);
    }
  }

  void Score() {
    const auto batch = MakeBatch(2, Below(2) == 0);
    Matrices memory;
    const hotrow_matrix dense = Room(&memory, batch->batch.batch_size, 1);
    const hotrow_matrix logits = Room(&memory, batch->batch.batch_size, 1);
    Check(hotrow_scorer_score(Null(Any()), Null(&batch->batch), Null(&dense), Null(&logits)));
    Text([scorer = Any()](char* text, uint64_t size, uint64_t* needed) {
      return hotrow_scorer_describe(scorer, text, size, needed);
    });
  }

  void Candidates() {
    const std::vector<std::vector<int32_t>> kUsers = {{}, {0}, {1}, {0, 1}};
    std::vector<int32_t> users = kUsers[static_cast<size_t>(Below(4))];
    const auto own = std::ssize(users);
    if (Rarely()) users.push_back(static_cast<int32_t>(Below(4)) - 1);
    const bool good = Below(2) == 0;
    const auto user = MakeBatch(std::max<int64_t>(own, 1), good);
    const auto candidates = MakeBatch(std::max<int64_t>(2 - own, 1), good);
    // One sample: the first bags of each feature, which are too many values more often than not.
    if (user->batch.batch_size > 1 && !Rarely() && user->batch.num_features > 0) {
      user->batch.batch_size = 1;
    }
    Matrices memory;
    const int64_t n = candidates->batch.batch_size;
    const hotrow_matrix dense = Room(&memory, n, 1);
    const hotrow_matrix logits = Room(&memory, n, 1);
    const int32_t column = static_cast<int32_t>(OddOr(0));
    const float number = 0.5f;
    hotrow_candidates asked = {};
    asked.struct_size = Rarely() ? static_cast<uint64_t>(Below(80)) : sizeof(asked);
    asked.num_candidates = OddOr(n);
    asked.user_features = Null(users.data());
    asked.num_user_features = Rarely() ? -1 : std::ssize(users);
    asked.user = own == 0 && !Rarely() ? nullptr : &user->batch;
    asked.candidates = own == 2 && !Rarely() ? nullptr : &candidates->batch;
    if (Below(3) == 0) {
      asked.user_dense_columns = Null(&column);
      asked.num_user_dense_columns = 1;
      asked.user_dense = Null(&number);
    }
    asked.candidate_dense = asked.num_user_dense_columns == 1 ? nullptr : Null(&dense);
    Check(hotrow_scorer_score_candidates(Null(Any()), Null(&asked), Null(&logits)));
  }

  void Lines() {
    const std::array<const char*, 2> lines = {Null("1,2"), Null("3,4")};
    const std::array<int64_t, 2> lengths = {3, Rarely() ? -1 : Below(4)};
    const int64_t n = Rarely() ? -1 : Below(3);
    Matrices memory;
    const hotrow_matrix logits = Room(&memory, n, 1);
    Check(hotrow_scorer_score_lines(Null(Any()), Null(lines.data()),
                                    Below(2) == 0 ? nullptr : lengths.data(), n, Null(&logits)));
    const auto numbers = std::make_unique<float[]>(2);
    Check(hotrow_probabilities(Null(numbers.get()), Rarely() ? -1 : Below(3), Null(numbers.get())));
  }

  std::vector<hotrow_scorer*> scorers_;
};

TEST(CapiScorerFuzzTest, DrawnCallsEndInAStatus) {
  int64_t good = 0;
  for (const uint64_t seed : Seeds(SlowRuns(100, ForSanitizer(6, 2)))) {
    SCOPED_TRACE("HOTROW_TEST_SEED=" + std::to_string(seed));
    ScorerFuzzer fuzzer(seed);
    fuzzer.Run(300);
    good += fuzzer.good();
    if (HasFailure()) return;
  }
  EXPECT_GT(good, 50);  // not all of it is refused
}

}  // namespace
}  // namespace hotrow::test
