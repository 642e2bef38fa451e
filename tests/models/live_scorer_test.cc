// Scorers that follow a model while it is trained.

#include "models/serving/live_scorer.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_budget.h"
#include "embedding/serving/serving_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/ctr_batch.h"
#include "models/data/open_data_source.h"
#include "models/delta/apply_chain.h"
#include "models/delta/compact_chain.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_manifest.h"
#include "models/saving/checkpoint.h"
#include "models/train/trainer.h"
#include "models/zoo/model_kinds.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/models/scored_models.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

namespace fs = std::filesystem;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kData[] =
    "synthetic:tables=3,rows=200,dense=2,shared=2,hotness=0-3,samples=480,valid=48,test=192";

// How a run is trained and what its chain looks like.
struct RunKind {
  ExchangeType delta_rows = ExchangeType::kFp32;
  bool weights_only = false;
  uint64_t seed = 3;
  int32_t ttl_steps = 7;
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

// With batch norm and an average of the dense parameters, by which it is scored.
const test::Kind& TheKind() {
  static const auto* const kind = new test::Kind(test::Kinds()[3]);
  return *kind;
}

TrainerOptions OptionsOf(const RunKind& run, const std::string& dir) {
  TrainerOptions options = test::OptionsOf(TheKind());
  options.epochs = 5;
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.table_optimizer.weight_decay = 0.01f;
  options.weights_precision = run.precision;
  options.seed = run.seed;
  options.ttl_steps = run.ttl_steps;
  options.checkpoint_dir = dir + "/checkpoints";
  options.checkpoint_every = 2;
  options.keep_checkpoints = 100;
  options.resume = true;
  options.delta_dir = dir + "/chain";
  options.delta_every = 4;
  options.delta_rows = run.delta_rows;
  options.delta_weights_only = run.weights_only;
  return options;
}

// Whether something in a directory is being written.
bool HasUnfinished(const std::string& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".tmp") || name.ends_with(".hotrow-partial")) return true;
  }
  return fs::exists(dir + ".hotrow-partial");
}

// Reads no batch while a checkpoint or a link is being written, or for 50 ms where a killed run has
// left one unfinished: a run this small would be over before the second one.
absl::Status Train(const TrainerOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> data, OpenDataSource(kData, 5));
  const auto watch = [&](Split, int64_t, int64_t) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } while ((HasUnfinished(options.checkpoint_dir) || HasUnfinished(options.delta_dir)) &&
             std::chrono::steady_clock::now() < end);
    return absl::OkStatus();
  };
  test::WatchedData source(std::move(data), watch);
  const auto create = [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    return CreateModelOfKind(test::RecipeOf(TheKind(), options, schema));
  };
  return RunTraining(options, source, create, {}).status();
}

const std::vector<CtrBatch>& TestBatches() {
  static const auto* const batches = [] {
    absl::StatusOr<std::vector<CtrBatch>> read = test::TestBatches(kData);
    HOTROW_EXPECT_OK(read);
    return new std::vector<CtrBatch>(read.ok() ? *std::move(read) : std::vector<CtrBatch>());
  }();
  return *batches;
}

// The bits of all scores.
absl::StatusOr<std::string> ScoreAll(const Scorer& scorer) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<float> logits, test::ScoreAll(scorer, TestBatches()));
  return std::string(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
}

ScorerOptions Scoring(const std::string& model, ServingRows rows = ServingRows::kAsTrained) {
  return {.model = model, .rows = rows, .max_concurrency = 2, .max_batch_size = test::kBatchSize};
}

absl::StatusOr<std::unique_ptr<LiveScorer>> Follow(const ScorerOptions& options) {
  return LiveScorer::Open({.scorer = options, .poll_interval = std::chrono::milliseconds(0)});
}

// A whole chain, made once for each kind of run.
class FinishedRun {
 public:
  static const FinishedRun& Of(const RunKind& run) {
    static std::map<std::string, std::unique_ptr<FinishedRun>> all;
    const std::string name =
        absl::StrCat(static_cast<int>(run.delta_rows), run.weights_only, " ", run.seed, " ",
                     run.ttl_steps, " ", static_cast<int>(run.precision));
    std::unique_ptr<FinishedRun>& out = all[name];
    if (out == nullptr) out.reset(new FinishedRun(run));
    return *out;
  }
  ~FinishedRun() { fs::remove_all(dir_); }
  std::string chain() const { return dir_ + "/chain"; }
  std::string checkpoints() const { return dir_ + "/checkpoints"; }
  std::string link(int64_t sequence) const { return chain() + "/" + DeltaDirName(sequence); }
  int64_t links() const { return links_; }

 private:
  explicit FinishedRun(const RunKind& run) : dir_(fs::temp_directory_path() / NewName()) {
    fs::create_directories(dir_);
    HOTROW_EXPECT_OK(Train(OptionsOf(run, dir_)));
    const absl::StatusOr<DeltaChain> read = ReadChain(PosixEnv(), chain());
    HOTROW_EXPECT_OK(read);
    if (read.ok()) links_ = std::min<int64_t>(std::ssize(read->deltas), 5);
    EXPECT_GE(links_, 4);
  }
  static std::string NewName() {
    static int made = 0;
    return absl::StrCat("hotrow-live-", ::getpid(), "-", ++made);
  }
  const std::string dir_;
  int64_t links_ = 0;
};

// A chain that grows as its writer goes on: links of a finished one.
class GrowingChain {
 public:
  explicit GrowingChain(const FinishedRun& run) : run_(run), dir_(test::TempDir() + "/chain") {
    fs::create_directories(dir_);
    fs::copy(run.chain() + "/base-00000000", dir_ + "/base-00000000", fs::copy_options::recursive);
    fs::copy(run.chain() + "/chain.json", dir_ + "/chain.json");
  }
  const std::string& dir() const { return dir_; }
  std::string link(int64_t sequence) const { return dir_ + "/" + DeltaDirName(sequence); }
  // As a writer makes it: under another name first.
  void Add(int64_t sequence) { Put(run_.link(sequence), sequence); }
  void Put(const std::string& from, int64_t sequence) {
    const std::string partial = link(sequence) + ".hotrow-partial";
    fs::copy(from, partial, fs::copy_options::recursive);
    fs::rename(partial, link(sequence));
  }

 private:
  const FinishedRun& run_;
  const std::string dir_;
};

// The scores of a model that `hotrow apply` has made of the chain up to a link.
absl::StatusOr<std::string> AppliedScores(const std::string& chain, int64_t until, ServingRows rows,
                                          Scorer** scorer = nullptr) {
  const std::string dir = test::TempDir() + "/applied";
  HOTROW_RETURN_IF_ERROR(ApplyChain({.chain = chain, .dir = dir, .until = until}).status());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Scorer> applied, Scorer::Open(Scoring(dir, rows)));
  HOTROW_ASSIGN_OR_RETURN(std::string out, ScoreAll(*applied));
  if (scorer != nullptr) *scorer = applied.release();
  return out;
}

class LiveScorerTest : public testing::TestWithParam<ServingRows> {};

// Each version of a scorer that follows, and a scorer that is opened on the chain, score as one
// that is opened on what the chain leads to.
TEST_P(LiveScorerTest, EachDeltaScoresAsTheModelThatItLeadsTo) {
  for (const RunKind& run :
       {RunKind(), RunKind{.delta_rows = ExchangeType::kFp16, .weights_only = true},
        RunKind{.precision = WeightsPrecision::kBf16}}) {
    SCOPED_TRACE(static_cast<int>(run.delta_rows));
    const FinishedRun& finished = FinishedRun::Of(run);
    GrowingChain chain(finished);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(chain.dir(), GetParam())));
    std::string before;
    int64_t erased = 0;
    for (int64_t sequence = 0; sequence <= finished.links(); ++sequence) {
      SCOPED_TRACE(sequence);
      if (sequence > 0) chain.Add(sequence);
      HOTROW_ASSERT_OK(live->Poll());
      Scorer* made = nullptr;
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                                  AppliedScores(finished.chain(), sequence, GetParam(), &made));
      const std::unique_ptr<Scorer> applied(made);
      const std::shared_ptr<const Scorer> scorer = live->Current();
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*scorer));
      EXPECT_TRUE(found == expected);
      EXPECT_FALSE(found == before);
      before = found;
      EXPECT_EQ(scorer->step(), applied->step());
      EXPECT_EQ(scorer->rows(), applied->rows());
      EXPECT_EQ(scorer->sequence(), sequence);
      EXPECT_EQ(scorer->labels(), applied->labels());
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto opened,
                                  Scorer::Open(Scoring(chain.dir(), GetParam())));
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::string at_once, ScoreAll(*opened));
      EXPECT_TRUE(at_once == expected);
      EXPECT_EQ(opened->rows(), applied->rows());
      EXPECT_EQ(opened->sequence(), sequence);
      const LiveScorerStatus status = live->status();
      HOTROW_EXPECT_OK(status.last);
      EXPECT_EQ(status.sequence, sequence);
      EXPECT_EQ(status.deltas_applied, sequence);
      EXPECT_EQ(status.newest_step, status.step);
      EXPECT_EQ(status.models_opened, 0);
      erased = status.rows_erased;
    }
    EXPECT_GT(erased, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, LiveScorerTest,
                         testing::Values(ServingRows::kAsTrained, ServingRows::kFp16,
                                         ServingRows::kBf16, ServingRows::kInt8,
                                         ServingRows::kInt4),
                         [](const testing::TestParamInfo<ServingRows>& info) {
                           return std::string(WordOf(kServingRowsWords, info.param));
                         });

// What is made of the dense parameters once, such as W^T for larger batches and codes, is made
// again of those of a delta.
TEST(LiveScorerChainTest, CopiesOfTheDensePartFollowIt) {
  const FinishedRun& finished = FinishedRun::Of(RunKind());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DataSource> source, OpenDataSource(kData, 5));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(Split::kTest, 0, 0));
  CtrBatch batch;
  HOTROW_ASSERT_OK(reader->Next(192, &batch));
  ASSERT_EQ(batch.batch_size, 192);
  const auto scores = [&](const Scorer& scorer) {
    std::vector<float> logits(static_cast<size_t>(batch.batch_size));
    HOTROW_EXPECT_OK(scorer.Score({.sparse = batch.sparse(), .dense = batch.dense}, logits));
    return logits;
  };
  for (const DensePrecision precision :
       {DensePrecision::kFp32, DensePrecision::kBf16, DensePrecision::kInt8}) {
    SCOPED_TRACE(std::string(DensePrecisionName(precision)));
    if (!CheckDensePrecision(precision).ok()) continue;
    GrowingChain chain(finished);
    ScorerOptions options = Scoring(chain.dir());
    options.max_concurrency = 1;
    options.max_batch_size = batch.batch_size;
    options.precision = precision;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(options));
    std::vector<float> before;
    for (int64_t sequence = 0; sequence <= finished.links(); ++sequence) {
      if (sequence > 0) chain.Add(sequence);
      HOTROW_ASSERT_OK(live->Poll());
      const std::vector<float> found = scores(*live->Current());
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto opened, Scorer::Open(options));
      EXPECT_EQ(found, scores(*opened)) << sequence;
      EXPECT_NE(found, before) << sequence;
      before = found;
    }
  }
}

void FlipByte(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 0x40);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path;
}

std::string FileStartingWith(const std::string& dir, const std::string& prefix) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().starts_with(prefix)) return entry.path();
  }
  return "";
}

// Anything may be wrong with the next delta: the error names it, nothing of it is visible, and once
// it is right it is applied.
TEST(LiveScorerChainTest, ABadDeltaIsNamedAndTheOldStateServes) {
  const FinishedRun& finished = FinishedRun::Of({});
  const FinishedRun& other = FinishedRun::Of({.seed = 8});
  GrowingChain chain(finished);
  chain.Add(1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(chain.dir())));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string before, ScoreAll(*live->Current()));
  const int64_t level = live->status().table_bytes;
  struct Case {
    const char* what;
    std::function<void()> make;
    absl::StatusCode code;
    const char* message;
  };
  const auto rows_file = [&] { return FileStartingWith(chain.link(2), "rows-"); };
  const auto damaged = [&](const std::function<void()>& damage) {
    return [&, damage] {
      chain.Add(2);
      damage();
    };
  };
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  const std::vector<Case> cases = {
      {"the first rows", damaged([&] { FlipByte(rows_file(), 200); }), kDataLoss, "rows-00000"},
      {"the last byte of the rows", damaged([&] {
         FlipByte(rows_file(), static_cast<int64_t>(fs::file_size(rows_file())) - 1);
       }),
       kDataLoss, "rows-00000"},
      {"rows cut off",
       damaged([&] { fs::resize_file(rows_file(), fs::file_size(rows_file()) / 2); }), kDataLoss,
       "rows-00000"},
      {"no rows", damaged([&] { fs::remove(rows_file()); }), kDataLoss, "rows-00000"},
      {"dense parameters", damaged([&] { FlipByte(chain.link(2) + "/dense.safetensors", 700); }),
       kDataLoss, "dense.safetensors"},
      {"the manifest", damaged([&] { FlipByte(chain.link(2) + "/manifest.json", 300); }), kDataLoss,
       "manifest.json"},
      {"no manifest", damaged([&] { fs::remove(chain.link(2) + "/manifest.json"); }), kDataLoss,
       "manifest.json"},
      {"left out", [&] { chain.Add(3); }, kDataLoss, "there is no such delta, and the next is"},
      {"doubled", [&] { chain.Put(finished.link(1), 2); }, kDataLoss,
       "it is delta 1 in the place of delta 2"},
      {"a later one in its place", [&] { chain.Put(finished.link(3), 2); }, kDataLoss,
       "it is delta 3 in the place of delta 2"},
      {"of another chain", [&] { chain.Put(other.link(2), 2); },
       absl::StatusCode::kFailedPrecondition, "it is of the chain"},
      {"not a name", [&] { fs::copy(finished.link(2), chain.dir() + "/delta-2"); },
       absl::StatusCode::kInvalidArgument, "delta-2: is no name of a delta"},
  };
  int64_t failed = 0;
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.what);
    bad.make();
    EXPECT_THAT(live->Poll(), StatusIs(bad.code, HasSubstr(bad.message)));
    const LiveScorerStatus status = live->status();
    EXPECT_THAT(status.last, StatusIs(bad.code, HasSubstr(chain.dir())));
    EXPECT_EQ(status.polls_failed, ++failed);
    EXPECT_EQ(status.sequence, 1);
    EXPECT_EQ(status.deltas_applied, 0);
    EXPECT_EQ(status.table_bytes, level);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
    EXPECT_TRUE(found == before);
    for (const char* name : {"delta-00000002", "delta-00000003", "delta-2"}) {
      fs::remove_all(chain.dir() + "/" + name);
    }
  }
  for (const int64_t sequence : {2, 3}) chain.Add(sequence);
  HOTROW_ASSERT_OK(live->Poll());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                              AppliedScores(finished.chain(), 3, ServingRows::kAsTrained));
  EXPECT_TRUE(found == expected);
}

// Handed one by one.
TEST(LiveScorerChainTest, DeltasMayLieAnywhere) {
  const FinishedRun& finished = FinishedRun::Of({});
  GrowingChain chain(finished);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(Scoring(chain.dir())));
  EXPECT_THAT(scorer->ApplyDelta(finished.link(2)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("in the place of delta 1")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const AppliedDelta applied, scorer->ApplyDelta(finished.link(1)));
  EXPECT_EQ(applied.sequence, 1);
  EXPECT_EQ(applied.step, scorer->step());
  EXPECT_GT(applied.rows, 0);
  EXPECT_THAT(scorer->ApplyDelta(finished.link(1)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("delta 1")));
  HOTROW_ASSERT_OK(scorer->ApplyDelta(finished.link(2)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*scorer));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                              AppliedScores(finished.chain(), 2, ServingRows::kAsTrained));
  EXPECT_TRUE(found == expected);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto of_none, Scorer::Open(Scoring(finished.checkpoints())));
  EXPECT_EQ(of_none->sequence(), -1);
  EXPECT_THAT(of_none->ApplyDelta(finished.link(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no chain of deltas")));
}

// A budget with room for the model and not for an update of it; then with room.
TEST(LiveScorerChainTest, AnUpdateBeyondTheBudgetIsTriedAgain) {
  const FinishedRun& finished = FinishedRun::Of({});
  GrowingChain chain(finished);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto roomy, Follow(Scoring(chain.dir())));
  const int64_t level = roomy->status().table_bytes;
  ScorerOptions options = Scoring(chain.dir());
  options.memory_bytes = level;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string before, ScoreAll(*live->Current()));
  chain.Add(1);
  for (int i = 1; i <= 2; ++i) {
    EXPECT_THAT(live->Poll(), StatusIs(absl::StatusCode::kResourceExhausted,
                                       AllOf(HasSubstr(chain.link(1)),
                                             HasSubstr(absl::StrCat("the budget is ", level)))));
    EXPECT_EQ(live->status().polls_failed, i);
    EXPECT_EQ(live->status().table_bytes, level);
    EXPECT_GT(live->status().newest_step, live->status().step);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
    EXPECT_TRUE(found == before);
  }
  // Others that share a budget make room.
  options.budget = std::make_shared<ServingBudget>(4 * level);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto shared, Follow(options));
  const int64_t rest = options.budget->bytes() - options.budget->used();
  ASSERT_TRUE(options.budget->Take(rest));
  chain.Add(2);
  EXPECT_THAT(shared->Poll(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("00002")));
  options.budget->Return(rest);
  HOTROW_EXPECT_OK(shared->Poll());
  EXPECT_EQ(shared->status().sequence, 2);
}

// Rows on a disk: a delta writes what it changes, one process at a time; the next start finds the
// rows of the link before it, and makes those of the newest of them.
TEST(LiveScorerChainTest, RowsOnADiskTakeWhatADeltaChanges) {
  const FinishedRun& finished = FinishedRun::Of({});
  GrowingChain chain(finished);
  ScorerOptions options = Scoring(chain.dir());
  options.rows_dir = test::TempDir();
  options.memory_bytes = int64_t{2} << 20;
  const auto expect_link = [&](const LiveScorer& live, int64_t sequence) {
    SCOPED_TRACE(sequence);
    const std::shared_ptr<const Scorer> scorer = live.Current();
    Scorer* made = nullptr;
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::string expected,
        AppliedScores(finished.chain(), sequence, ServingRows::kAsTrained, &made));
    const std::unique_ptr<Scorer> applied(made);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*scorer));
    EXPECT_TRUE(found == expected);
    EXPECT_EQ(scorer->sequence(), sequence);
    EXPECT_EQ(scorer->step(), applied->step());
    EXPECT_EQ(scorer->rows(), applied->rows());
    EXPECT_LE(live.status().table_bytes, options.memory_bytes);
  };
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(options));
    const std::shared_ptr<const Scorer> first = live->Current();
    for (int64_t sequence = 0; sequence <= 2; ++sequence) {
      if (sequence > 0) chain.Add(sequence);
      HOTROW_ASSERT_OK(live->Poll());
      expect_link(*live, sequence);
      EXPECT_EQ(live->status().models_opened, 0);
      EXPECT_EQ(live->status().deltas_applied, sequence);
      EXPECT_EQ(first->read_stats().written_bytes > 0, sequence > 0);
    }
    EXPECT_EQ(live->Current(), first);
    // Others read the same rows. They cannot change them, and open what the first has made of them.
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto other, Follow(options));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(options));
    expect_link(*other, 2);
    chain.Add(3);
    EXPECT_THAT(scorer->ApplyDelta(chain.link(3)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(chain.link(3)), HasSubstr("rows.lock"))));
    HOTROW_ASSERT_OK(live->Poll());
    expect_link(*live, 3);
    HOTROW_ASSERT_OK(other->Poll());
    expect_link(*other, 3);
    EXPECT_EQ(live->status().models_opened, 0);
    EXPECT_EQ(other->status().models_opened, 1);
  }
  chain.Add(4);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto again, Follow(options));
    expect_link(*again, 4);
    EXPECT_EQ(again->status().deltas_applied, 0);
    EXPECT_GT(again->Current()->read_stats().written_bytes, 0);  // the rows of a delta, not all
  }
  // The base that stands for a link has its rows.
  HOTROW_ASSERT_OK(CompactChain({.chain = chain.dir()}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto compacted, Follow(options));
  expect_link(*compacted, 4);
  EXPECT_TRUE(fs::exists(options.rows_dir + "/levels"));  // they were not written again
}

// What cannot be applied where the scorer is: opened beside it, and swapped.
TEST(LiveScorerChainTest, AnotherBaseIsOpenedBesideTheOldOne) {
  const FinishedRun& finished = FinishedRun::Of({});
  GrowingChain chain(finished);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(chain.dir())));
  const std::shared_ptr<const Scorer> first = live->Current();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string of_first, ScoreAll(*first));
  const int64_t level = live->status().table_bytes;
  ScorerOptions tight = Scoring(chain.dir());
  tight.memory_bytes = level + level / 4;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto small, Follow(tight));
  for (const int64_t sequence : {1, 2, 3}) chain.Add(sequence);
  HOTROW_ASSERT_OK(CompactChain({.chain = chain.dir(), .keep = 1}));
  // Its links are gone.
  HOTROW_ASSERT_OK(live->Poll());
  EXPECT_EQ(live->status().models_opened, 1);
  EXPECT_EQ(live->status().sequence, 3);
  EXPECT_NE(live->Current(), first);
  EXPECT_GT(live->status().table_bytes, level);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string still, ScoreAll(*first));
  EXPECT_TRUE(still == of_first);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                              AppliedScores(finished.chain(), 3, ServingRows::kAsTrained));
  EXPECT_TRUE(found == expected);
  EXPECT_THAT(small->Poll(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("it begins at link 3 now"), HasSubstr("beside the old one"),
                             HasSubstr("give memory_bytes room for both"))));
  EXPECT_EQ(small->status().sequence, 0);
  // It goes on, and a follower whose links are kept goes on with it.
  chain.Add(4);
  HOTROW_ASSERT_OK(live->Poll());
  HOTROW_ASSERT_OK(CompactChain({.chain = chain.dir(), .keep = 4}));
  HOTROW_ASSERT_OK(live->Poll());
  EXPECT_EQ(live->status().models_opened, 1);
  EXPECT_EQ(live->status().deltas_applied, 1);
  EXPECT_EQ(live->status().sequence, 4);

  // Another chain in its place.
  const FinishedRun& other = FinishedRun::Of({.seed = 8});
  GrowingChain new_chain(other);
  fs::remove_all(chain.dir());
  fs::copy(new_chain.dir(), chain.dir(), fs::copy_options::recursive);
  HOTROW_ASSERT_OK(live->Poll());
  EXPECT_EQ(live->status().models_opened, 2);
  EXPECT_EQ(live->status().sequence, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string of_other, ScoreAll(*live->Current()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string of_base,
                              AppliedScores(other.chain(), 0, ServingRows::kAsTrained));
  EXPECT_TRUE(of_other == of_base);
}

// Compacted to the next link while that is kept: applied, not opened again.
TEST(LiveScorerChainTest, LinksBeforeTheBaseAreApplied) {
  const FinishedRun& finished = FinishedRun::Of({});
  GrowingChain chain(finished);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(chain.dir())));
  for (const int64_t sequence : {1, 2, 3}) chain.Add(sequence);
  HOTROW_ASSERT_OK(CompactChain({.chain = chain.dir(), .keep = 3}));
  HOTROW_ASSERT_OK(live->Poll());
  EXPECT_EQ(live->status().models_opened, 0);
  EXPECT_EQ(live->status().deltas_applied, 3);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                              AppliedScores(finished.chain(), 3, ServingRows::kAsTrained));
  EXPECT_TRUE(found == expected);
}

// Writes the manifest of a delta again.
DeltaManifest Rewrite(const std::string& dir, const std::function<void(DeltaManifest&)>& change) {
  absl::StatusOr<DeltaManifest> delta = ReadDeltaManifest(PosixEnv(), dir);
  HOTROW_EXPECT_OK(delta);
  if (!delta.ok()) return {};
  change(*delta);
  std::ofstream(dir + "/manifest.json") << SealDeltaManifest(&*delta);
  return *std::move(delta);
}

// A delta that changes what unseen keys read, and a link that is another one than it was.
TEST(LiveScorerChainTest, WhatRowsCannotBringIsOpenedAnew) {
  const FinishedRun& finished = FinishedRun::Of({});
  GrowingChain chain(finished);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(chain.dir())));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto fixed, Scorer::Open(Scoring(chain.dir())));
  chain.Add(1);
  DeltaManifest first = Rewrite(chain.link(1), [](DeltaManifest& delta) { delta.model.seed = 77; });
  EXPECT_THAT(fixed->ApplyDelta(chain.link(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(chain.link(1)), HasSubstr("its seed is another one"),
                             HasSubstr("open the model anew"))));
  const auto expect_served = [&](int64_t models, int64_t sequence) {
    HOTROW_ASSERT_OK(live->Poll());
    EXPECT_EQ(live->status().models_opened, models);
    EXPECT_EQ(live->status().sequence, sequence);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                                AppliedScores(chain.dir(), sequence, ServingRows::kAsTrained));
    EXPECT_TRUE(found == expected);
  };
  expect_served(1, 1);
  // Its link again, with another digest; a link behind it shows that.
  first = Rewrite(chain.link(1), [](DeltaManifest& delta) {
    delta.model.seed = 77;
    delta.source.clear();
  });
  chain.Add(2);
  Rewrite(chain.link(2), [&](DeltaManifest& delta) {
    delta.model.seed = 77;
    delta.parent = first.digest;
  });
  expect_served(2, 2);
}

// Checkpoints, and a model that is replaced.
TEST(LiveScorerFormsTest, NewerModelsTakeThePlaceOfTheOneBefore) {
  const FinishedRun& finished = FinishedRun::Of({});
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(PosixEnv(), finished.chain()));
  const std::string dir = test::TempDir() + "/checkpoints";
  fs::create_directories(dir);
  fs::create_directory_symlink(finished.checkpoints() + "/tables", dir + "/tables");
  const auto add = [&](int64_t step) {
    const std::string name = CheckpointName(step);
    fs::copy(finished.checkpoints() + "/" + name, dir + "/" + name, fs::copy_options::recursive);
  };
  add(chain.manifest.base_step);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(dir)));
  for (int64_t sequence = 0; sequence <= 2; ++sequence) {
    if (sequence > 0) add(chain.deltas[static_cast<size_t>(sequence - 1)].model.step);
    HOTROW_ASSERT_OK(live->Poll());
    EXPECT_EQ(live->status().models_opened, sequence);
    EXPECT_EQ(live->status().sequence, -1);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected,
                                AppliedScores(finished.chain(), sequence, ServingRows::kAsTrained));
    EXPECT_TRUE(found == expected);
  }
  // The same again.
  HOTROW_ASSERT_OK(live->Poll());
  EXPECT_EQ(live->status().models_opened, 2);
  // A newer one that is damaged.
  const int64_t step = chain.deltas[2].model.step;
  add(step);
  FlipByte(dir + "/" + CheckpointName(step) + "/manifest.json", 200);
  EXPECT_THAT(live->Poll(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest.json")));
  EXPECT_EQ(live->Current()->step(), chain.deltas[1].model.step);
}

// One with other inputs is refused, without its rows being read, and the old one goes on.
TEST(LiveScorerFormsTest, AModelWithOtherInputsIsRefused) {
  const FinishedRun& finished = FinishedRun::Of({});
  const std::string dir = test::TempDir();
  const std::string log = absl::StrCat("table:", test::WriteLog(dir, false));
  TrainerOptions other = test::OptionsOf(test::Kinds()[0]);
  other.save_dir = dir + "/other";
  other.limit_train_batches = 1;
  HOTROW_ASSERT_OK(test::Train(test::Kinds()[0], other, log));
  HOTROW_ASSERT_OK(ApplyChain({.chain = finished.chain(), .dir = dir + "/model"}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(Scoring(dir + "/model")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string before, ScoreAll(*live->Current()));
  fs::remove_all(dir + "/model");
  fs::copy(other.save_dir, dir + "/model", fs::copy_options::recursive);
  for (int i = 1; i <= 2; ++i) {
    EXPECT_THAT(live->Poll(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("with other features"),
                                             HasSubstr("the model that is served, which stays"))));
    EXPECT_EQ(live->status().polls_failed, i);
    EXPECT_EQ(live->status().models_opened, 0);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string after, ScoreAll(*live->Current()));
  EXPECT_TRUE(after == before);
}

// Puts another model there when a manifest is opened for the `at`-th time, counted from 0.
class ReplacingEnv : public test::FaultyEnv {
 public:
  ReplacingEnv(int at, std::function<void()> replace)
      : FaultyEnv(&PosixEnv()), left_(at), replace_(std::move(replace)) {}
  void Begin() { counts_ = true; }
  bool replaced() const { return left_ < 0; }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (counts_ && path.ends_with("/manifest.json") && left_-- == 0) replace_();
    return FaultyEnv::Open(path, mode);
  }

 private:
  bool counts_ = false;
  int left_;
  const std::function<void()> replace_;
};

// Also where it comes while a newer model with the same inputs is opened.
TEST(LiveScorerFormsTest, AModelWithOtherInputsThatComesMeanwhileIsRefused) {
  const FinishedRun& finished = FinishedRun::Of({});
  const std::string top = test::TempDir();
  const std::string log = absl::StrCat("table:", test::WriteLog(top, false));
  TrainerOptions other = test::OptionsOf(test::Kinds()[0]);
  other.save_dir = top + "/other";
  other.limit_train_batches = 1;
  HOTROW_ASSERT_OK(test::Train(test::Kinds()[0], other, log));
  HOTROW_ASSERT_OK(ApplyChain({.chain = finished.chain(), .dir = top + "/first", .until = 0}));
  HOTROW_ASSERT_OK(ApplyChain({.chain = finished.chain(), .dir = top + "/newer"}));
  bool replaced = true;
  for (int at = 0; replaced; ++at) {
    SCOPED_TRACE(at);
    const std::string dir = absl::StrCat(top, "/", at);
    const auto put = [&](const std::string& name) {
      fs::remove_all(dir);
      fs::copy(top + "/" + name, dir, fs::copy_options::recursive);
    };
    put("first");
    ReplacingEnv env(at, [&] { put("other"); });
    ScorerOptions options = Scoring(dir);
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto live, Follow(options));
    const std::vector<std::string> names = live->Current()->feature_names();
    put("newer");
    env.Begin();
    const absl::Status status = live->Poll();
    replaced = env.replaced();
    EXPECT_EQ(live->Current()->feature_names(), names);
    EXPECT_TRUE(replaced || status.ok()) << status;
  }
}

// Threads score while a thread of the scorer's own brings delta after delta. All scores of a call
// are those of the version that it names.
// rows_dir: empty: rows are in memory.
void ExpectOneVersionACall(const std::string& rows_dir) {
  const FinishedRun& finished = FinishedRun::Of({});
  std::map<int64_t, std::string> expected;  // by step
  for (int64_t sequence = 0; sequence <= finished.links(); ++sequence) {
    Scorer* made = nullptr;
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::string scores,
        AppliedScores(finished.chain(), sequence, ServingRows::kAsTrained, &made));
    const std::unique_ptr<Scorer> applied(made);
    expected[applied->step()] = scores;
  }
  GrowingChain chain(finished);
  ScorerOptions options = Scoring(chain.dir());
  options.rows_dir = rows_dir;
  if (!rows_dir.empty()) options.memory_bytes = int64_t{2} << 20;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto live,
      LiveScorer::Open({.scorer = options, .poll_interval = std::chrono::milliseconds(1)}));
  std::atomic<bool> done = false;
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> mixed = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      int64_t last = 0;
      while (!done) {
        const std::shared_ptr<const Scorer> scorer = live->Current();
        size_t at = 0;
        for (const CtrBatch& batch : TestBatches()) {
          std::vector<float> logits(static_cast<size_t>(batch.batch_size));
          int64_t step = 0;
          HOTROW_ASSERT_OK(
              scorer->Score({.sparse = batch.sparse(), .dense = batch.dense}, logits, &step));
          const size_t bytes = logits.size() * sizeof(float);
          mixed +=
              expected.at(step).compare(
                  at, bytes, std::string(reinterpret_cast<const char*>(logits.data()), bytes)) != 0;
          EXPECT_GE(step, last);
          last = step;
          at += bytes;
          ++calls;
        }
      }
    });
  }
  for (int64_t sequence = 1; sequence <= finished.links(); ++sequence) {
    chain.Add(sequence);
    while (live->status().deltas_applied < sequence) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_GT(calls, 10);
  EXPECT_EQ(live->status().deltas_applied, finished.links());
  EXPECT_EQ(live->status().models_opened, 0);
}

TEST(LiveScorerChainTest, ACallScoresWithOneVersion) { ExpectOneVersionACall(""); }
TEST(LiveScorerChainTest, ACallScoresWithOneVersionOfADisk) {
  ExpectOneVersionACall(test::TempDir());
}

// A scorer follows a run that is killed at random and resumed: no look finds half a delta, and in
// the end it scores as the run's last checkpoint.
void FollowKilledRuns(int64_t kills, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  int64_t killed = 0;
  int64_t applied = 0;
  while (killed < kills) {
    SCOPED_TRACE(absl::StrCat("HOTROW_TEST_SEED=", seed));
    const std::string dir = test::TempDir();
    const TrainerOptions options = OptionsOf({}, dir);
    std::unique_ptr<LiveScorer> live;
    for (int64_t life = 0;; ++life) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) ::_exit(Train(options).ok() ? 0 : 3);
      const auto end =
          std::chrono::steady_clock::now() + std::chrono::microseconds(random.Below(150'000));
      int how = 0;
      bool ended = false;
      while (!ended && (life == 5 || std::chrono::steady_clock::now() < end)) {
        if (live != nullptr) {
          HOTROW_ASSERT_OK(live->Poll());
        } else if (fs::exists(options.delta_dir)) {
          HOTROW_ASSERT_OK_AND_ASSIGN(live, Follow(Scoring(options.delta_dir)));
        }
        ended = ::waitpid(child, &how, WNOHANG) == child;
        ::usleep(500);
      }
      if (!ended) {
        ::kill(child, SIGKILL);
        ASSERT_EQ(::waitpid(child, &how, 0), child);
      }
      if (WIFSIGNALED(how)) {
        ++killed;
        continue;
      }
      ASSERT_EQ(WEXITSTATUS(how), 0);
      break;
    }
    if (live == nullptr) {
      HOTROW_ASSERT_OK_AND_ASSIGN(live, Follow(Scoring(options.delta_dir)));
    }
    HOTROW_ASSERT_OK(live->Poll());
    applied += live->status().deltas_applied;
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string found, ScoreAll(*live->Current()));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto end, Scorer::Open(Scoring(options.checkpoint_dir)));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string expected, ScoreAll(*end));
    EXPECT_TRUE(found == expected);
    EXPECT_EQ(live->status().step, end->step());
  }
  std::printf("%lld kills, %lld deltas applied\n", static_cast<long long>(killed),
              static_cast<long long>(applied));
}

TEST(LiveScorerKillTest, AKilledWriterNeverShowsHalfADelta) {
  for (const uint64_t seed : test::Seeds(1)) {
    FollowKilledRuns(test::SlowRuns(60, 3), seed);
  }
}

TEST(LiveScorerFormsTest, BadOptionsAreNamed) {
  EXPECT_THAT(LiveScorer::Open({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model")));
  EXPECT_THAT(
      LiveScorer::Open({.scorer = {.model = "/m"}, .poll_interval = std::chrono::milliseconds(-1)}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("poll_interval")));
  EXPECT_THAT(LiveScorer::Open({.scorer = {.model = test::TempDir()}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("there is no")));
}

}  // namespace
}  // namespace hotrow
