// Training on several ranks with error feedback: bits, and checkpoints that hold the residuals. The
// ranks are threads of this process.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "gtest/gtest.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/manifest.h"
#include "models/saving/saved_model.h"
#include "models/train/trainer.h"
#include "models/train/trainer_settings.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::EndOf;
using test::FaultyEnv;
using test::MemEnv;
using test::SmallRun;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDir[] = "/run/ckpt";
// Room for some two hundred residuals; a rank has up to 800 keys to send.
constexpr int64_t kTight = 16 << 10;

TrainerOptions Feedback(int64_t bytes) {
  TrainerOptions options = SmallRun();
  options.exchange_forward = options.exchange_backward = ExchangeType::kInt8;
  options.exchange_feedback_bytes = bytes;
  return options;
}

using OptionsOfRank = std::function<TrainerOptions(int rank)>;

std::vector<absl::StatusOr<TrainReport>> RunRanks(int world_size, const OptionsOfRank& options_of,
                                                  int threads = 1) {
  std::vector<absl::StatusOr<TrainReport>> reports(
      world_size, absl::StatusOr<TrainReport>(absl::UnknownError("did not run")));
  RunOnThreads(world_size, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    TrainerOptions options = options_of(rank);
    options.communicator = &communicator;
    ThreadPool pool(threads);
    reports[rank] = test::RunSmall(options, {.pool = &pool});
    return reports[rank].status();
  });
  return reports;
}

// The report of rank 0; all end alike.
TrainReport RunAlike(int world_size, const TrainerOptions& options, int threads = 1) {
  const auto reports = RunRanks(
      world_size, [&](int) { return options; }, threads);
  for (const auto& report : reports) {
    HOTROW_EXPECT_OK(report);
    if (!report.ok()) return {};
    EXPECT_EQ(EndOf(*report), EndOf(*reports[0]));
  }
  return *reports[0];
}

TEST(TrainerFeedbackTest, RunsRepeatBitForBitWhateverTheTiers) {
  const std::string without = EndOf(RunAlike(3, Feedback(0)));
  for (const int64_t bytes : {kTight, int64_t{1} << 20}) {
    const TrainReport first = RunAlike(3, Feedback(bytes));
    EXPECT_NE(EndOf(first), without);
    EXPECT_GT(first.tables.exchange_feedback_hits, 0);
    EXPECT_LE(first.tables.exchange_feedback_bytes, 3 * bytes);
    EXPECT_EQ(EndOf(RunAlike(3, Feedback(bytes))), EndOf(first)) << bytes;
    for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
      for (const int32_t depth : {0, 2}) {
        TrainerOptions options = Feedback(bytes);
        options.store = store;
        if (store == StoreKind::kSsd) {
          options.store_path = test::TempDir();
          options.store_bytes = 2 << 20;
          options.disk_bytes = 64 << 20;
        }
        options.cache_bytes = kSmallestCache;
        options.prefetch_depth = depth;
        const TrainReport other = RunAlike(3, options, /*threads=*/2);
        EXPECT_EQ(EndOf(other), EndOf(first))
            << bytes << " " << std::string(StoreKindName(store)) << " " << depth;
        EXPECT_EQ(other.tables.exchange_feedback_hits, first.tables.exchange_feedback_hits);
      }
    }
  }
}

// --- Checkpoints

TrainerOptions Saving(int64_t bytes, Env* env) {
  TrainerOptions options = Feedback(bytes);
  options.env = env;
  options.checkpoint_dir = kDir;
  options.checkpoint_every = 10;
  options.keep_checkpoints = 100;
  return options;
}

std::string PathOf(int64_t step) { return absl::StrCat(kDir, "/", CheckpointName(step)); }

// A whole run, of which the first checkpoint alone is left: it was written while training went on.
std::string TrainAndLoseAllButTheFirstCheckpoint(MemEnv& env, int64_t bytes) {
  const std::string end = EndOf(RunAlike(3, Saving(bytes, &env)));
  const auto checkpoints = ListCheckpoints(env, kDir);
  HOTROW_EXPECT_OK(checkpoints);
  EXPECT_GE(checkpoints->size(), 2u);
  EXPECT_EQ(checkpoints->front(), CheckpointName(10));
  for (size_t i = 1; i < checkpoints->size(); ++i) {
    const std::string path = absl::StrCat(kDir, "/", (*checkpoints)[i]);
    const auto names = env.ListDir(path);
    for (const std::string& name : *names) HOTROW_EXPECT_OK(env.Remove(path + "/" + name));
    HOTROW_EXPECT_OK(env.RemoveDir(path));
  }
  return end;
}

std::vector<std::string> Residuals(const CheckpointReport& report) {
  std::vector<std::string> out;
  for (const CheckpointReport::File& file : report.files) {
    if (absl::StrContains(file.path, "/residuals-") && file.bytes > 0) out.push_back(file.path);
  }
  return out;
}

TEST(TrainerFeedbackTest, AResumedRunEndsWithTheSameBits) {
  for (const int64_t bytes : {kTight, int64_t{1} << 20}) {
    for (const bool background : {true, false}) {
      MemEnv env;
      const std::string whole = EndOf(RunAlike(3, Feedback(bytes)));
      ASSERT_EQ(TrainAndLoseAllButTheFirstCheckpoint(env, bytes), whole);
      TrainerOptions again = Saving(bytes, &env);
      again.resume = true;
      again.checkpoint_in_background = background;
      test::Output output;
      const auto reports = RunRanks(3, [&](int rank) {
        TrainerOptions mine = again;
        if (rank == 0) mine.out = output.file();
        return mine;
      });
      HOTROW_ASSERT_OK(reports[0]);
      EXPECT_EQ(reports[0]->resumed_step, 10);
      EXPECT_EQ(EndOf(*reports[0]), whole) << bytes;
      const std::string text = output.Text();
      EXPECT_THAT(text, HasSubstr("what gradients lose is kept"));
      EXPECT_THAT(text, testing::Not(HasSubstr("from zero on")));
    }
  }
}

TEST(TrainerFeedbackTest, ResidualsBeginAtZeroWhereTheyDoNotFit) {
  struct Case {
    int64_t before;
    int64_t after;
    int ranks;
    std::string why;
  };
  for (const Case& c :
       {Case{1 << 20, 1 << 20, 2, "those of 3 ranks"},
        Case{1 << 20, 1 << 20, 5, "those of 3 ranks"},
        Case{1 << 20, 2 << 20, 3, "those of another budget"}, Case{0, 1 << 20, 3, "has none"},
        Case{1 << 20, 0, 3, ""}, Case{1 << 20, 1 << 20, 1, ""}}) {
    SCOPED_TRACE(absl::StrCat(c.before, " to ", c.after, " on ", c.ranks));
    MemEnv env;
    const std::string whole = TrainAndLoseAllButTheFirstCheckpoint(env, c.before);
    TrainerOptions again = Saving(c.after, &env);
    again.resume = true;
    test::Output output;
    const auto reports = RunRanks(c.ranks, [&](int rank) {
      TrainerOptions mine = again;
      if (rank == 0) mine.out = output.file();
      return mine;
    });
    HOTROW_ASSERT_OK(reports[0]);
    EXPECT_EQ(reports[0]->resumed_step, 10);
    EXPECT_EQ(reports[0]->steps, test::kSmallSteps);
    EXPECT_NE(EndOf(*reports[0]), whole);
    const std::string text = output.Text();
    if (c.why.empty()) {
      EXPECT_THAT(text, testing::Not(HasSubstr("from zero on")));
    } else {
      EXPECT_THAT(text, AllOf(HasSubstr("from zero on"), HasSubstr(c.why)));
    }
    // The newest one is of the run that went on.
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kDir, 0));
    EXPECT_THAT(report.damage, IsEmpty());
    EXPECT_EQ(Residuals(report).size(), c.after > 0 && c.ranks > 1 ? c.ranks : 0);
  }
}

TEST(TrainerFeedbackTest, VerifyKnowsTheirFilesAndWhatIsDamaged) {
  MemEnv env;
  TrainAndLoseAllButTheFirstCheckpoint(env, 1 << 20);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport whole, InspectCheckpoint(env, kDir, 0));
  EXPECT_THAT(whole.damage, IsEmpty());
  const std::vector<std::string> files = Residuals(whole);
  EXPECT_EQ(files, (std::vector<std::string>{PathOf(10) + "/residuals-00000",
                                             PathOf(10) + "/residuals-00001",
                                             PathOf(10) + "/residuals-00002"}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string good, ReadFileToString(env, files[1]));
  ASSERT_GT(good.size(), 1000u);
  const auto expect_found = [&](const std::string& what) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kDir, 0));
    ASSERT_EQ(report.damage.size(), 1u) << what;
    EXPECT_THAT(report.damage[0], HasSubstr(files[1])) << what;
    TrainerOptions again = Saving(1 << 20, &env);
    again.resume = true;
    const auto reports = RunRanks(3, [&](int) { return again; });
    EXPECT_THAT(reports[1], StatusIs(absl::StatusCode::kDataLoss, HasSubstr(files[1]))) << what;
    EXPECT_THAT(reports[0].status().message(), AllOf(HasSubstr("rank 1"), HasSubstr(files[1])));
  };
  for (const size_t at : {size_t{0}, size_t{9}, size_t{50}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    HOTROW_ASSERT_OK(WriteFileAtomically(env, files[1], bad));
    expect_found(absl::StrCat("byte ", at));
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(env, files[1], good.substr(0, good.size() - 1)));
  expect_found("cut off");
  HOTROW_ASSERT_OK(env.Remove(files[1]));
  expect_found("gone");
}

// If any call of a rank fails, the run that comes next ends with the bits of one that was never
// interrupted. True when a call failed.
bool EndsAlikeAfterAFault(int faulty_rank, int64_t k, bool all_from_k, const std::string& whole) {
  SCOPED_TRACE(absl::StrCat("rank ", faulty_rank, ", call ", k, all_from_k ? " on" : ""));
  MemEnv env;
  FaultyEnv faulty(&env);
  Env* const faulty_env = &faulty;
  Env* const plain_env = &env;
  const absl::Status error = absl::DataLossError("injected");
  if (all_from_k) {
    faulty.FailFrom(k, error);
  } else {
    faulty.FailCall(k, error);
  }
  const auto options_of = [&](int rank, bool with_faults) {
    TrainerOptions options =
        Saving(kTight, with_faults && rank == faulty_rank ? faulty_env : plain_env);
    options.epochs = 2;
    options.keep_checkpoints = 1;
    options.resume = true;
    options.checkpoint_in_background = false;
    return options;
  };
  const auto first = RunRanks(3, [&](int rank) { return options_of(rank, true); });
  const bool hit = faulty.faults() > 0;
  EXPECT_TRUE(hit || first[0].ok());
  env.DropUnsyncedData();
  const auto next = RunRanks(3, [&](int rank) { return options_of(rank, false); });
  for (const auto& report : next) {
    HOTROW_EXPECT_OK(report);
    if (!report.ok()) return false;
    EXPECT_EQ(EndOf(*report), whole);
  }
  const absl::StatusOr<CheckpointReport> report = VerifyCheckpoint(env, kDir, 0);
  HOTROW_EXPECT_OK(report);
  if (report.ok()) {
    EXPECT_THAT(report->damage, IsEmpty());
    EXPECT_EQ(Residuals(*report).size(), 3u);
  }
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(kDir);
  EXPECT_TRUE(names.ok() && names->size() == 2) << testing::PrintToString(*names);
  return hit;
}

TEST(TrainerFeedbackTest, AFaultAtAnyCallOfARankLosesNothingCommitted) {
  TrainerOptions options = Feedback(kTight);
  options.epochs = 2;
  const std::string whole = EndOf(RunAlike(3, options));
  constexpr int64_t kStride = test::ForSanitizer(17, 29);
  int64_t turn = 0;
  for (const int rank : {0, 2}) {
    for (const bool all_from_k : {false, true}) {
      int64_t k = turn++ % kStride;
      while (EndsAlikeAfterAFault(rank, k, all_from_k, whole) && !HasFailure()) k += kStride;
      EXPECT_GT(k, 20);
      if (HasFailure()) return;
    }
  }
}

TEST(TrainerFeedbackTest, ManifestsThatNameThemWronglyAreRefused) {
  MemEnv env;
  SavedModel model;
  model.dir = kDir;
  model.dense_file = "dense";
  model.dense_optimizer = "sgd";
  model.is_checkpoint = true;
  for (int rank = 0; rank < 2; ++rank) {
    model.parts.push_back(
        {.store = "memory", .tables_dir = absl::StrCat(kDir, "/", rank), .snapshot = 1});
    model.residuals.push_back(
        {.file = absl::StrCat("residuals-", rank), .bytes = 5 + rank, .crc = 0x80000000u + rank});
  }
  HOTROW_ASSERT_OK(CreateDirsDurably(env, kDir));
  const auto read = [&](const SavedModel& written) {
    HOTROW_EXPECT_OK(WriteFileAtomically(env, absl::StrCat(kDir, "/manifest.json"),
                                         SavedModelManifest(written)));
    return ReadSavedModel(env, kDir);
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel good, read(model));
  ASSERT_EQ(good.residuals.size(), 2u);
  EXPECT_EQ(good.residuals[1].file, "residuals-1");
  EXPECT_EQ(good.residuals[1].bytes, 6);
  EXPECT_EQ(good.residuals[1].crc, 0x80000001u);
  SavedModel bad = model;
  bad.residuals.pop_back();
  EXPECT_THAT(read(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"residuals\"")));
  bad = model;
  bad.residuals[1].file = "../residuals";
  EXPECT_THAT(read(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("residuals[1].file")));
  bad = model;
  bad.residuals[0].bytes = -1;
  EXPECT_THAT(read(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("residuals[0].bytes")));
  bad.residuals.clear();
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel none, read(bad));
  EXPECT_THAT(none.residuals, IsEmpty());
}

TEST(TrainerFeedbackTest, WrongOptionsAreNamedAsFlags) {
  TrainerOptions options = Feedback(1 << 20);
  options.exchange_backward = ExchangeType::kFp32;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("--exchange_feedback is 1048576"),
                                                 HasSubstr("--exchange_backward is fp32"))));
  EXPECT_THAT(CheckLowerBounds(Feedback(-1)), StatusIs(absl::StatusCode::kInvalidArgument,
                                                       HasSubstr("--exchange_feedback must be")));
  for (const int ranks : {1, 3}) {
    const auto reports = RunRanks(ranks, [](int) { return Feedback(100); });
    for (const auto& report : reports) {
      EXPECT_THAT(report.status().message(),
                  AllOf(HasSubstr("--exchange_feedback: four residuals"), HasSubstr("8192")));
    }
  }
}

}  // namespace
}  // namespace hotrow
