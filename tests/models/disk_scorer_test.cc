#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/serving/scorer.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Scorers whose rows lie on a disk.

namespace hotrow {
namespace {

namespace fs = std::filesystem;
using test::ExpectSameBits;
using test::kBatchSize;
using test::Kind;
using test::Kinds;
using test::OptionsOf;
using test::ScoreAll;
using test::StatusIs;
using test::TestBatches;
using test::TheLog;
using test::Train;
using test::Views;
using test::WriteLog;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;
// Index and buffers, and a cache of some of the rows.
constexpr int64_t kLittle = 200 * 1024;

// One user, that of sample 3, with the samples of a batch.
absl::StatusOr<std::vector<float>> ScoreCandidates(const Scorer& scorer, const CtrBatch& batch) {
  const int64_t n = batch.batch_size;
  const std::vector<int32_t> user_features = {0, 3};
  CtrBatch user, candidates;
  user.offsets = candidates.offsets = {0};
  user.batch_size = 1;
  candidates.batch_size = n;
  for (int32_t f = 0; f < 6; ++f) {
    const bool of_user = std::ranges::count(user_features, f) > 0;
    for (int64_t b = of_user ? 3 : 0; b < (of_user ? 4 : n); ++b) {
      CtrBatch& to = of_user ? user : candidates;
      const auto begin = batch.offsets[static_cast<size_t>(f * n + b)];
      const auto end = batch.offsets[static_cast<size_t>(f * n + b + 1)];
      to.values.insert(to.values.end(), batch.values.begin() + begin, batch.values.begin() + end);
      to.offsets.push_back(std::ssize(to.values));
    }
  }
  std::vector<float> out(static_cast<size_t>(n * scorer.num_tasks()));
  HOTROW_RETURN_IF_ERROR(scorer.ScoreCandidates({.num_candidates = n,
                                                 .user_features = user_features,
                                                 .user = user.sparse(),
                                                 .candidates = candidates.sparse(),
                                                 .candidate_dense = batch.dense},
                                                out));
  return out;
}

class DiskScorerTest : public testing::TestWithParam<Kind> {};

TEST_P(DiskScorerTest, ScoresAreTheBitsOfRowsInMemory) {
  const Kind kind = GetParam();
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, kind.two_labels()));
  TrainerOptions options = OptionsOf(kind);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 12;
  HOTROW_ASSERT_OK(Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  for (const auto& [word, rows] : kServingRowsWords) {
    SCOPED_TRACE(std::string(word));
    // All forms with pooled rows and with rows that are not; two with the others, for the time.
    const bool all = kind.name == "dlrm" || kind.name == "din";
    if (!all && rows != ServingRows::kAsTrained && rows != ServingRows::kInt8) continue;
    // Passes of 16 samples, so that a call asks the disk several times.
    ScorerOptions scoring = {
        .model = options.save_dir, .rows = rows, .max_concurrency = 1, .max_batch_size = 16};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto memory, Scorer::Open(scoring));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ScoreAll(*memory, batches));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> of_candidates,
                                ScoreCandidates(*memory, batches[0]));
    scoring.memory_bytes = kLittle;
    scoring.rows_dir = absl::StrCat(dir, "/rows-", std::string(word));
    // Written, then (once is enough) read again.
    for (int i = 0; i < (rows == ServingRows::kAsTrained ? 2 : 1); ++i) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(scoring));
      EXPECT_EQ(scorer->rows(), memory->rows());
      EXPECT_LE(scorer->table_bytes(), scoring.memory_bytes);
      EXPECT_THAT(scorer->notes(), IsEmpty());
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, ScoreAll(*scorer, batches));
      ExpectSameBits(found, expected);
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> candidates,
                                  ScoreCandidates(*scorer, batches[0]));
      ExpectSameBits(candidates, of_candidates);
      std::vector<float> of_lines(found.size()), lines_expected(found.size());
      const std::vector<std::string> lines = TheLog().TestLines(scorer->line_columns());
      HOTROW_ASSERT_OK(scorer->ScoreLines(Views(lines), of_lines));
      HOTROW_ASSERT_OK(memory->ScoreLines(Views(lines), lines_expected));
      ExpectSameBits(of_lines, lines_expected);
      EXPECT_GT(scorer->read_stats().reads, 0);
      EXPECT_GT(scorer->read_stats().hits, 0);
    }
    EXPECT_EQ(memory->read_stats().hits + memory->read_stats().misses, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DiskScorerTest, testing::ValuesIn(Kinds()),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return absl::StrCat(info.param.name, info.index);
                         });

// A model with rows that have missed steps, in all its forms; the next one is written in its place,
// and begins with the rows that were wanted of the one before.
TEST(DiskScorerFormsTest, EachFormIsReadAndTheNextModelBeginsWarm) {
  const Kind kind = Kinds()[0];
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, false));
  TrainerOptions options = OptionsOf(kind);
  options.limit_train_batches = 12;
  HOTROW_ASSERT_OK(test::TrainInAllForms(kind, options, data, dir));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  bool first = true;
  for (const char* form : {"/checkpoints", "/saved", "/exported"}) {
    SCOPED_TRACE(form);
    ScorerOptions scoring = {.model = dir + form, .max_concurrency = 1};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto memory, Scorer::Open(scoring));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ScoreAll(*memory, batches));
    scoring.memory_bytes = 4 * kMiB;
    scoring.rows_dir = dir + "/rows";
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(scoring));
    EXPECT_THAT(scorer->notes(), IsEmpty());
    const ServingReadStats opened = scorer->read_stats();
    EXPECT_EQ(opened.reads > 0, !first);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, ScoreAll(*scorer, batches));
    ExpectSameBits(found, expected);
    if (!first) {
      EXPECT_LT(scorer->read_stats().misses - opened.misses, scorer->read_stats().hits / 10);
    }
    first = false;
  }
  // Closed, it has left what it held; files of other models are gone.
  int files = 0;
  for (const auto& entry : fs::directory_iterator(dir + "/rows")) {
    files += entry.path().extension() == ".rows" ? 1 : 0;
  }
  EXPECT_EQ(files, 5);
  EXPECT_TRUE(fs::exists(dir + "/rows/hot_keys"));
  std::ofstream(dir + "/rows/hot_keys") << "no such thing";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto cold, Scorer::Open({.model = dir + "/exported",
                                                             .memory_bytes = 4 * kMiB,
                                                             .rows_dir = dir + "/rows",
                                                             .max_concurrency = 1}));
  EXPECT_THAT(cold->notes(), ElementsAre(HasSubstr("hot_keys: is damaged")));
}

TEST(DiskScorerFormsTest, ManyThreadsScoreAndDamageIsNamed) {
  const Kind kind = Kinds()[7];
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, false));
  TrainerOptions options = OptionsOf(kind);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 12;
  HOTROW_ASSERT_OK(Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  ScorerOptions scoring = {.model = options.save_dir,
                           .memory_bytes = 2 * kLittle,
                           .rows_dir = dir + "/rows",
                           .max_concurrency = 3,
                           .max_batch_size = kBatchSize};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto memory, Scorer::Open({.model = options.save_dir}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ScoreAll(*memory, batches));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(scoring));
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 5; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 10; ++i) {
          const auto found = ScoreAll(*scorer, batches);
          if (!found.ok() || *found != expected) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
  fs::remove(dir + "/rows/hot_keys");
  std::string path;
  uintmax_t largest = 0;
  for (const auto& entry : fs::directory_iterator(dir + "/rows")) {
    if (entry.path().extension() != ".rows" || entry.file_size() < largest) continue;
    path = entry.path();
    largest = entry.file_size();
  }
  // A byte of each block.
  for (int64_t at = 4096; at + 4096 < static_cast<int64_t>(largest); at += 4096) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at + 100);
    file.put('\x5a');
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(scoring));
  EXPECT_THAT(ScoreAll(*scorer, batches),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path), HasSubstr("block"))));
}

TEST(DiskScorerFormsTest, OptionsThatDoNotFitAreNamed) {
  EXPECT_THAT(Scorer::Open({.model = "/m", .rows_dir = "/r"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ScorerOptions.memory_bytes must be given with rows_dir")));
}

}  // namespace
}  // namespace hotrow
