// Training with admission and ageing: bits over tiers, checkpoints that hold lines and counters,
// other numbers of ranks, exports without aged rows. The ranks are threads of this process.

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/saved_model.h"
#include "models/saving/training_state.h"
#include "models/train/trainer.h"
#include "tests/models/chain_test_util.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::EndOf;
using test::MemEnv;
using test::SmallRun;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDir[] = "/run/ckpt";

// Batches of 48 samples with up to three of 300 keys for each feature: many come again after a few
// steps, some after many.
TrainerOptions Living() {
  TrainerOptions options = SmallRun();
  options.admission = {.rule = Admission::Rule::kLookups, .lookups = 3, .forget_steps = 8};
  options.admission_bytes = 64 << 10;
  options.ttl_steps = 4;
  return options;
}

TrainerOptions Saving(Env* env) {
  TrainerOptions options = Living();
  options.env = env;
  options.checkpoint_dir = kDir;
  options.checkpoint_every = 10;
  options.keep_checkpoints = 100;
  return options;
}

std::vector<absl::StatusOr<TrainReport>> RunRanks(
    int world_size, const TrainerOptions& all,
    const test::WatchedData::Watch& watch = [](Split, int64_t, int64_t) {
      return absl::OkStatus();
    }) {
  std::vector<absl::StatusOr<TrainReport>> reports(
      static_cast<size_t>(world_size), absl::StatusOr<TrainReport>(absl::UnknownError("no run")));
  RunOnThreads(world_size, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    TrainerOptions options = all;
    options.communicator = &communicator;
    ThreadPool pool(2);
    auto& report = reports[static_cast<size_t>(communicator.rank())];
    report = test::RunSmall(options, watch, {.pool = &pool});
    return report.status();
  });
  return reports;
}

// The report of rank 0.
TrainReport TrainRun(int world_size, const TrainerOptions& options) {
  const auto reports = RunRanks(world_size, options);
  for (const auto& report : reports) {
    HOTROW_EXPECT_OK(report);
    if (!report.ok()) return {};
  }
  return *reports[0];
}

// They depend on keys and steps alone, with any order of sums.
std::vector<int64_t> RowsOf(const TrainReport& report) {
  std::vector<int64_t> rows;
  for (const TableDigest& table : report.digest.tables) rows.push_back(table.rows);
  return rows;
}

void LoseAllButTheFirstCheckpoint(MemEnv& env) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto checkpoints, ListCheckpoints(env, kDir));
  ASSERT_EQ(checkpoints.front(), CheckpointName(10));
  for (size_t i = 1; i < checkpoints.size(); ++i) {
    const std::string path = absl::StrCat(kDir, "/", checkpoints[i]);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir(path));
    for (const std::string& name : names) HOTROW_ASSERT_OK(env.Remove(path + "/" + name));
    HOTROW_ASSERT_OK(env.RemoveDir(path));
  }
}

TEST(TrainerRowLifeTest, BitsAreTheSameWhateverTheTiersAndRowsWhateverTheRanks) {
  const TrainReport first = TrainRun(1, Living());
  EXPECT_GT(first.tables.admission_rejected_keys, 0);
  EXPECT_GT(first.tables.aged_rows + first.tables.dropped_rows, 0);
  TrainerOptions plain = SmallRun();
  EXPECT_NE(RowsOf(TrainRun(1, plain)), RowsOf(first));
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int32_t depth : {0, 3}) {
      TrainerOptions options = Living();
      options.store = store;
      if (store == StoreKind::kSsd) {
        options.store_path = test::TempDir();
        options.store_bytes = 2 << 20;
        options.disk_bytes = 64 << 20;
      }
      options.cache_bytes = kSmallestCache;
      options.prefetch_depth = depth;
      EXPECT_EQ(EndOf(TrainRun(1, options)), EndOf(first)) << StoreKindName(store) << " " << depth;
    }
  }
  for (const int ranks : {2, 3}) {
    const TrainReport report = TrainRun(ranks, Living());
    EXPECT_EQ(RowsOf(report), RowsOf(first)) << ranks;
  }
}

// Those of Living, and floors and capacities.
TrainerOptions Limited(Env* env) {
  TrainerOptions options = Saving(env);
  options.min_rows = 20;
  options.max_rows = 60;
  options.row_limit_steps = 3;
  return options;
}

TEST(TrainerRowLifeTest, LimitsLeaveTheSameRowsOnAllRanksAndBehindAResume) {
  MemEnv env;
  const TrainReport first = TrainRun(1, Limited(&env));
  EXPECT_NE(RowsOf(first), RowsOf(TrainRun(1, Living())));
  for (const int64_t rows : RowsOf(first)) EXPECT_GT(rows, 0);
  ASSERT_NO_FATAL_FAILURE(LoseAllButTheFirstCheckpoint(env));
  TrainerOptions again = Limited(&env);
  again.resume = true;
  EXPECT_EQ(EndOf(TrainRun(1, again)), EndOf(first));
  for (const int ranks : {2, 3}) {
    MemEnv other;
    EXPECT_EQ(RowsOf(TrainRun(ranks, Limited(&other))), RowsOf(first)) << ranks;
    ASSERT_NO_FATAL_FAILURE(LoseAllButTheFirstCheckpoint(other));
    again = Limited(&other);
    again.resume = true;
    EXPECT_EQ(RowsOf(TrainRun(5 - ranks, again)), RowsOf(first)) << ranks;
  }
}

// Keys with the last step of their rows, of the newest checkpoint.
std::map<std::pair<uint32_t, uint64_t>, uint32_t> LastSteps(const std::string& checkpoints) {
  const std::string exported = test::TempDir() + "/exported";
  HOTROW_EXPECT_OK(ExportPortable({.checkpoint = checkpoints, .dir = exported}));
  const absl::StatusOr<test::Rows> rows = test::ReadRows(exported);
  HOTROW_EXPECT_OK(rows);
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> out;
  for (const auto& [key, bytes] : rows.ok() ? *rows : test::Rows()) {
    std::memcpy(&out[key], bytes.data() + bytes.size() - sizeof(uint32_t), sizeof(uint32_t));
  }
  return out;
}

// One run, on other ranks after each stop: counters, lines, floors and capacities go with it.
TEST(TrainerRowLifeTest, RunsOnOneTwoFourAndOneRanksKeepTheRowsOfOneThatWasNotStopped) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    SCOPED_TRACE(std::string(StoreKindName(store)));
    const std::string dir = test::TempDir();
    const auto options_of = [&](const std::string& run, int leg) {
      TrainerOptions options = Limited(nullptr);
      options.checkpoint_dir = dir + "/" + run;
      options.checkpoint_every = 2;
      options.keep_checkpoints = 1;
      options.checkpoint_in_background = false;
      options.resume = true;
      if (store == StoreKind::kSsd) {
        options.store = store;
        options.store_path = absl::StrCat(dir, "/rows-", run, leg);
        options.store_bytes = 4 << 20;
        options.disk_bytes = 64 << 20;
        options.cache_bytes = kSmallestCache;
      }
      return options;
    };
    const TrainReport whole = TrainRun(1, options_of("whole", 0));
    EXPECT_GT(whole.tables.admission_rejected_keys, 0);
    EXPECT_GT(whole.tables.admission_counters, 0);
    int64_t resumed_step = 0;
    TrainReport end;
    constexpr std::array kRanks = {1, 2, 4, 1};
    for (size_t leg = 0; leg < kRanks.size(); ++leg) {
      SCOPED_TRACE(absl::StrCat("leg ", leg));
      const TrainerOptions options = options_of("relay", static_cast<int>(leg));
      if (leg + 1 == kRanks.size()) {
        end = TrainRun(kRanks[leg], options);
        EXPECT_EQ(end.resumed_step, resumed_step);
        break;
      }
      // Behind some more steps, which takes two epochs in all.
      const auto stop_at = static_cast<int64_t>(7 * (leg + 1));
      const auto reports =
          RunRanks(kRanks[leg], options, [&](Split split, int64_t epoch, int64_t sample) {
            return split == Split::kTrain && epoch * 10 + sample / 48 >= stop_at
                       ? absl::AbortedError("pulled out")
                       : absl::OkStatus();
          });
      EXPECT_THAT(reports[0].status().message(), HasSubstr("pulled out"));
      HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved,
                                  ReadCheckpoint(PosixEnv(), options.checkpoint_dir));
      EXPECT_GT(saved.training->steps, resumed_step);
      EXPECT_EQ(saved.counters.size(), static_cast<size_t>(kRanks[leg]));
      resumed_step = saved.training->steps;
    }
    EXPECT_EQ(RowsOf(end), RowsOf(whole));
    EXPECT_TRUE(LastSteps(dir + "/relay") == LastSteps(dir + "/whole"));
  }
}

TEST(TrainerRowLifeTest, AResumedRunEndsWithTheSameBitsOrOnOtherRanksWithTheSameRows) {
  for (const int ranks : {1, 3}) {
    for (const int then : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, then ", then));
      MemEnv env;
      const TrainReport whole = TrainRun(ranks, Saving(&env));
      ASSERT_NO_FATAL_FAILURE(LoseAllButTheFirstCheckpoint(env));
      TrainerOptions again = Saving(&env);
      again.resume = true;
      const TrainReport report = TrainRun(then, again);
      EXPECT_EQ(report.resumed_step, 10);
      EXPECT_EQ(RowsOf(report), RowsOf(whole));
      if (then == ranks) {
        EXPECT_EQ(EndOf(report), EndOf(whole));
      }
    }
  }
}

TEST(TrainerRowLifeTest, ACheckpointSaysWhatHasAgedAndAnExportLeavesItOut) {
  MemEnv env;
  const TrainReport whole = TrainRun(2, Saving(&env));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kDir));
  for (const SavedModel::Table& table : saved.tables) {
    EXPECT_EQ(table.lines.age, saved.step + 1 - Living().ttl_steps);
  }
  ASSERT_EQ(saved.counters.size(), 2u);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(env, kDir, 0));
  EXPECT_THAT(report.damage, IsEmpty());
  ASSERT_EQ(report.tables.size(), saved.tables.size());
  for (size_t i = 0; i < report.tables.size(); ++i) {
    EXPECT_EQ(report.tables[i].rows, whole.digest.tables[i].rows);
    EXPECT_EQ(report.tables[i].hash, whole.digest.tables[i].hash);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const PortableSummary exported,
      ExportPortable({.checkpoint = kDir, .dir = "/run/export", .env = &env}));
  for (size_t i = 0; i < exported.tables.size(); ++i) {
    EXPECT_EQ(exported.tables[i].rows, whole.digest.tables[i].rows);
  }
  // A file of counters that is not what the manifest says.
  const std::string path = absl::StrCat(saved.dir, "/", saved.counters[1].file);
  EXPECT_TRUE(absl::EndsWith(path, "/counters-00001"));
  HOTROW_ASSERT_OK(env.Remove(path));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport damaged, VerifyCheckpoint(env, kDir, 0));
  EXPECT_THAT(damaged.damage, testing::Contains(HasSubstr("counters-00001")));
  TrainerOptions again = Saving(&env);
  again.resume = true;
  again.epochs = 4;
  EXPECT_THAT(RunRanks(2, again)[0].status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("counters-00001")));
}

TEST(TrainerRowLifeTest, ARunResumesWithItsPoliciesOnly) {
  MemEnv env;
  TrainRun(1, Saving(&env));
  const auto resumed = [&](auto&& change) {
    TrainerOptions again = Saving(&env);
    again.resume = true;
    change(&again);
    return RunRanks(1, again)[0].status();
  };
  EXPECT_THAT(resumed([](TrainerOptions* o) { o->ttl_steps = 100; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--ttl_steps was 4 and is 100"))));
  EXPECT_THAT(resumed([](TrainerOptions* o) { o->admission = {}; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--admission was lookups:3:8 and is always")));
  EXPECT_THAT(
      resumed([](TrainerOptions* o) { o->max_rows = 1000; }),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--max_rows was 0 and is 1000")));
  // Another budget is none of them.
  HOTROW_EXPECT_OK(resumed([](TrainerOptions* o) { o->admission_bytes = 128 << 10; }));
}

TEST(TrainerRowLifeTest, FlagsAreNamed) {
  TrainerOptions options = Living();
  options.admission_bytes = 0;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("each table: its admission counts "),
                                                 HasSubstr("--admission_bytes"))));
  options.admission_bytes = 400;
  EXPECT_THAT(RunRanks(1, options)[0].status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("--admission_bytes"), HasSubstr("lookups:N:STEPS"))));
  options = Living();
  options.device_cache_bytes = 1 << 20;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kUnimplemented,
                                           HasSubstr("--admission works without a device cache")));
}

}  // namespace
}  // namespace hotrow
