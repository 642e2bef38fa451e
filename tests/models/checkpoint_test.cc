#include "models/saving/checkpoint.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/out_of_room.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/checkpoint_writer.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_part.h"
#include "models/saving/training_state.h"
#include "ops/products/processor_kind.h"
#include "store/ssd/ssd_store.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// ctest's label slow runs the same cases with every file call.
const bool kSlow = test::RunsSlowTests();

using test::EndOf;
using test::FaultyEnv;
using test::kSmallSteps;
using test::MemEnv;
using test::RunSmall;
using test::SmallRun;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDir[] = "/run/checkpoints";

// A kind of tier to run on.
struct Tier {
  std::string name;
  StoreKind store = StoreKind::kMemory;
  int64_t cache_bytes = 0;
  int32_t prefetch_depth = 0;
};

const std::vector<Tier>& Tiers() {
  static const auto* const kTiers = new std::vector<Tier>{
      {"memory alone", StoreKind::kMemory, 0, 0},
      {"memory below a cache", StoreKind::kMemory, kSmallestCache, 2},
      {"ssd", StoreKind::kSsd, kSmallestCache, 2},
      {"ssd, all in the cache", StoreKind::kSsd, int64_t{4} << 20, 1},
  };
  return *kTiers;
}

TrainerOptions On(const Tier& tier, TrainerOptions options, Env* env) {
  options.store = tier.store;
  options.cache_bytes = tier.cache_bytes;
  options.prefetch_depth = tier.prefetch_depth;
  if (tier.store != StoreKind::kMemory) {
    options.store_path = "/run/rows";
    options.disk_bytes = int64_t{16} << 20;
  }
  options.env = env;
  return options;
}

TrainerOptions WithCheckpoints(TrainerOptions options, int64_t every) {
  options.checkpoint_dir = kDir;
  options.checkpoint_every = every;
  options.resume = true;
  // So that it is certain which of them are there.
  options.checkpoint_in_background = false;
  return options;
}

// The data end with an error when the batch of this number (over all epochs) is read, so that the
// run is given up there, without a word to anybody.
test::WatchedData::Watch DieAt(int64_t batch) {
  return [batch](Split split, int64_t epoch, int64_t sample) {
    if (split != Split::kTrain || epoch * 10 + sample / 48 != batch) return absl::OkStatus();
    return absl::AbortedError("killed");
  };
}

// Runs until it dies at each of the batches in turn, then to the end.
absl::StatusOr<TrainReport> RunWithDeaths(const TrainerOptions& options,
                                          const std::vector<int64_t>& batches) {
  for (const int64_t batch : batches) {
    const absl::Status status = RunSmall(options, DieAt(batch)).status();
    if (!absl::IsAborted(status)) return status.ok() ? absl::InternalError("survived") : status;
  }
  return RunSmall(options);
}

std::string Reference(TrainerOptions options) {
  const absl::StatusOr<TrainReport> report = RunSmall(options);
  HOTROW_EXPECT_OK(report);
  return report.ok() ? EndOf(*report) : "";
}

// All rows of the newest checkpoint with all that they have: the digest leaves out last steps.
std::map<std::pair<uint32_t, uint64_t>, std::string> RowsAtTheEnd(Env& env) {
  std::map<std::pair<uint32_t, uint64_t>, std::string> out;
  const auto read = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(env, kDir));
    HOTROW_ASSIGN_OR_RETURN(const auto reader, OpenSavedPart(env, saved, 0, 0));
    return reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
      out[{key.table, key.key}].assign(reinterpret_cast<const char*>(row.data()), row.size());
      return absl::OkStatus();
    });
  };
  HOTROW_EXPECT_OK(read());
  return out;
}

TEST(CheckpointTest, ARunThatDiesAnywhereEndsWithTheSameBits) {
  const std::string expected = Reference(SmallRun());
  MemEnv whole_env;
  HOTROW_ASSERT_OK(RunSmall(WithCheckpoints(On(Tiers()[0], SmallRun(), &whole_env), 10)).status());
  const auto expected_rows = RowsAtTheEnd(whole_env);
  const auto step_of = [](int64_t every) -> int64_t {
    return kSlow ? 1 : test::ForSanitizer<int64_t>(every == 3 ? 5 : 11, every == 3 ? 14 : 29);
  };
  int64_t turn = 0;
  for (const Tier& tier : Tiers()) {
    for (const int64_t every : {1, 3, 10}) {
      // Each begins at another batch, so that together they meet all.
      int64_t batch = kSlow ? 0 : 3 * turn++ % step_of(every);
      for (; batch < kSmallSteps; batch += step_of(every)) {
        SCOPED_TRACE(absl::StrCat(tier.name, ", every ", every, ", killed at batch ", batch));
        MemEnv env;
        TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), &env), every);
        options.checkpoint_in_background = every != 1;
        // Twice at once where the first life ended, then again later.
        const int64_t later = std::min<int64_t>(batch + 7, kSmallSteps - 1);
        HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                                    RunWithDeaths(options, {batch, batch, later}));
        ASSERT_EQ(EndOf(report), expected);
        ASSERT_TRUE(RowsAtTheEnd(env) == expected_rows);
        if (every == 1 && batch > 8) {
          EXPECT_GT(report.resumed_step, batch - 4);
        }
      }
    }
  }
}

TEST(CheckpointTest, RowsOf16BitsGoOnWithTheSameBits) {
  const std::string whole = Reference(SmallRun());
  for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    TrainerOptions run = SmallRun();
    run.weights_precision = precision;
    const std::string expected = Reference(run);
    EXPECT_NE(expected, whole);
    for (const Tier& tier : Tiers()) {
      SCOPED_TRACE(absl::StrCat(std::string(WeightsPrecisionName(precision)), ", ", tier.name));
      MemEnv env;
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const TrainReport report,
          RunWithDeaths(WithCheckpoints(On(tier, run, &env), 3), {8, 17, 25}));
      EXPECT_EQ(EndOf(report), expected);
      EXPECT_GT(report.resumed_step, 18);
    }
  }
}

TrainerOptions DecayingRun() {
  TrainerOptions run = SmallRun();
  run.table_optimizer.weight_decay = 0.05f;
  run.table_optimizer.weight_decay_mode = WeightDecayMode::kTable;
  return run;
}

TEST(CheckpointTest, TablesThatDecayAsAWholeGoOnWithTheSameBits) {
  const TrainerOptions run = DecayingRun();
  const std::string expected = Reference(run);
  TrainerOptions lazy = run;
  lazy.table_optimizer.weight_decay_mode = WeightDecayMode::kL2;
  EXPECT_NE(expected, Reference(lazy));
  for (const Tier& tier : Tiers()) {
    SCOPED_TRACE(tier.name);
    MemEnv env;
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const TrainReport report,
        RunWithDeaths(WithCheckpoints(On(tier, run, &env), 3), {8, 17, 25}));
    EXPECT_EQ(EndOf(report), expected);
    EXPECT_GT(report.resumed_step, 18);
  }
}

TEST(CheckpointTest, ASavedModelOfTablesThatDecayIsSettledAndACheckpointSaysThatItIsNot) {
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], DecayingRun(), &env), 6);
  options.save_dir = "/run/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
  EXPECT_EQ(EndOf(report), Reference(DecayingRun()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, "/run/saved"));
  for (size_t t = 0; t < saved.tables.size(); ++t) {
    EXPECT_EQ(saved.tables[t].hash, report.digest.tables[t].hash.ToHex());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel checkpoint, ReadCheckpoint(env, kDir));
  ASSERT_FALSE(checkpoint.training->learning_rates.empty());
  EXPECT_EQ(checkpoint.training->learning_rates.back().last_step, report.steps);
  EXPECT_THAT(SavedModelManifest(checkpoint), HasSubstr("\"learning_rates\""));
  EXPECT_THAT(
      ExportPortable({.checkpoint = kDir, .dir = "/run/out", .env = &env}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--table_weight_decay_mode")));
  TrainerOptions next = On(Tiers()[0], DecayingRun(), &env);
  next.init_from = kDir;
  EXPECT_THAT(RunSmall(next), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("--init_from"), HasSubstr("--save_dir"))));
  next.init_from = "/run/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport continued, RunSmall(next));
  EXPECT_EQ(continued.steps, kSmallSteps);
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = "/run/saved", .dir = "/run/out", .env = &env}));
}

// A checkpoint of a version that kept fewer settings stands for what runs had then.
TEST(CheckpointTest, OneThatSaysLessGoesOn) {
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 6);
  const std::string expected = Reference(SmallRun());
  ASSERT_THAT(RunSmall(options, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel saved, ReadCheckpoint(env, kDir));
  TrainingState training = *saved.training;
  const size_t erased = std::erase_if(training.settings, [](const auto& setting) {
    const std::string& name = setting.first;
    return name.find('.') != std::string::npos || name == "initializer" || name == "device" ||
           name == "weights_precision";
  });
  EXPECT_EQ(erased, 15u);
  training.processor.clear();
  saved.training = std::make_shared<const TrainingState>(training);
  const std::string manifest = SavedModelManifest(saved);
  ASSERT_THAT(manifest, Not(HasSubstr("weights_precision")));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, absl::StrCat(saved.dir, "/manifest.json"), manifest));
  const auto expect_refused = [&](const std::function<void(TrainerOptions*)>& change,
                                  const char* text) {
    TrainerOptions other = options;
    change(&other);
    EXPECT_THAT(RunSmall(other), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text)));
  };
  expect_refused([](TrainerOptions* o) { o->table_optimizer.beta1 = 0.8f; },
                 "table_optimizer.beta1 was 0.9 and is 0.8");
  expect_refused([](TrainerOptions* o) { o->dense_optimizer.eps = 0.5f; },
                 "dense_optimizer.eps was 1e-08 and is 0.5");
  expect_refused([](TrainerOptions* o) { o->weights_precision = WeightsPrecision::kFp16; },
                 "--weights_precision was fp32 and is fp16; use --weights_precision=fp32");
  expect_refused(
      [](TrainerOptions* o) {
        o->initializer = Initializer{InitializerKind::kZeros, 0};
      },
      "--initializer was uniform_rows and is zeros");
  test::Output notices;
  options.notices = notices.file();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
  EXPECT_EQ(EndOf(report), expected);
  EXPECT_EQ(notices.Text(), "");  // nobody knows on what processor it was made
}

// Matrix products of another kind of processor have other bits: that is said, and nothing refused.
TEST(CheckpointTest, AnotherKindOfProcessorIsSaidInOneLine) {
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 6);
  ASSERT_THAT(RunSmall(options, DieAt(14)), StatusIs(absl::StatusCode::kAborted, "killed"));
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel saved, ReadCheckpoint(env, kDir));
  EXPECT_EQ(saved.training->processor, ProcessorKind());
  EXPECT_THAT(ProcessorKind(), HasSubstr("oneDNN "));
  // On the same nothing is said.
  test::Output same;
  options.notices = same.file();
  ASSERT_THAT(RunSmall(options, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
  EXPECT_EQ(same.Text(), "");
  HOTROW_ASSERT_OK_AND_ASSIGN(saved, ReadCheckpoint(env, kDir));
  TrainingState training = *saved.training;
  training.processor = "oneDNN 1.0.0 abacus";
  saved.training = std::make_shared<const TrainingState>(training);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, absl::StrCat(saved.dir, "/manifest.json"),
                                       SavedModelManifest(saved)));
  test::Output notices;
  options.notices = notices.file();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
  EXPECT_EQ(EndOf(report), Reference(SmallRun()));
  const std::string text = notices.Text();
  EXPECT_THAT(text, AllOf(HasSubstr("--resume from " + saved.dir),
                          HasSubstr("(oneDNN 1.0.0 abacus)"), HasSubstr(ProcessorKind())));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

// Without validation, with early stopping, with a limit on the batches of an epoch.
TEST(CheckpointTest, PoliciesGoOnWhereTheyStood) {
  TrainerOptions early = SmallRun();
  early.schedule.early_stop_patience = 2;
  early.epochs = 50;
  TrainerOptions limited = SmallRun();
  limited.limit_train_batches = 7;
  limited.epochs = 4;
  TrainerOptions plain = SmallRun();
  plain.validation_freq_within_epoch = 0;
  plain.schedule = {};
  int64_t stopped_early = 0;
  for (const TrainerOptions& kind : {early, limited, plain}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, RunSmall(kind));
    stopped_early += whole.stopped_early;
    const int64_t step = kSlow ? 1 : test::ForSanitizer<int64_t>(3, 8);
    for (int64_t batch = 0; batch < std::min<int64_t>(whole.steps, 30); batch += step) {
      SCOPED_TRACE(batch);
      if (kind.limit_train_batches > 0 && batch % 10 > 6) continue;
      MemEnv env;
      const TrainerOptions options = WithCheckpoints(On(Tiers()[1], kind, &env), 2);
      const absl::Status died = RunSmall(options, DieAt(batch)).status();
      ASSERT_TRUE(died.ok() || absl::IsAborted(died)) << died;
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
      ASSERT_EQ(EndOf(report), EndOf(whole));
    }
  }
  EXPECT_EQ(stopped_early, 1) << "nothing was tested";
}

// The signal comes while the batch is read that is not trained on any more, or in the midst of a
// validation.
TEST(CheckpointTest, ASignalTakesACheckpointWhereverTheRunStands) {
  const std::string expected = Reference(SmallRun());
  std::set<int64_t> steps;
  int64_t in_validation = 0;
  for (const Tier& tier : Tiers()) {
    for (int64_t call = 0;;
         call += kSlow || tier.cache_bytes == 0 ? 1 : test::ForSanitizer(4, 16)) {
      SCOPED_TRACE(absl::StrCat(tier.name, ", signal at read ", call));
      MemEnv env;
      std::atomic<int> signal{0};
      TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), &env), 0);
      options.stop_signal = &signal;
      test::Output out;
      options.out = out.file();
      int64_t calls = 0;
      bool validating = false;
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport stopped,
                                  RunSmall(options, [&](Split split, int64_t, int64_t) {
                                    if (calls++ == call) {
                                      signal = 15;
                                      validating = split != Split::kTrain;
                                    }
                                    return absl::OkStatus();
                                  }));
      const bool at_the_end = calls <= call;
      if (!at_the_end) {
        EXPECT_EQ(stopped.stopped_by_signal, 15);
        EXPECT_EQ(stopped.checkpoint, absl::StrCat(kDir, "/", CheckpointName(stopped.steps)));
        EXPECT_THAT(out.Text(), HasSubstr(stopped.checkpoint + ": training paused"));
        steps.insert(stopped.steps);
        in_validation += validating;
      }
      signal = 0;
      options.out = nullptr;
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
      ASSERT_EQ(EndOf(report), expected);
      EXPECT_EQ(report.resumed_step, stopped.steps);
      if (at_the_end) break;
    }
  }
  // The first batch of an epoch is read before the end of the one before is worked off.
  EXPECT_EQ(steps.size(), static_cast<size_t>(kSmallSteps - 2)) << testing::PrintToString(steps);
  EXPECT_GT(in_validation, 10);
}

TEST(CheckpointTest, GoesOnOnAnotherTier) {
  const std::string expected = Reference(SmallRun());
  ThreadPool pool(3);
  for (const Tier& first : Tiers()) {
    for (const Tier& second : Tiers()) {
      SCOPED_TRACE(absl::StrCat("from ", first.name, " to ", second.name));
      MemEnv env;
      TrainerOptions options = WithCheckpoints(On(first, SmallRun(), &env), 4);
      ASSERT_THAT(RunSmall(options, DieAt(14)), StatusIs(absl::StatusCode::kAborted, "killed"));
      options = WithCheckpoints(On(second, SmallRun(), &env), 5);
      if (first.store != second.store)
        options.store_path += second.store == StoreKind::kMemory ? "" : "/elsewhere";
      options.keep_checkpoints = 3;
      // It dies once more before it has its own checkpoint.
      ASSERT_THAT(RunSmall(options, DieAt(14), {.pool = &pool}),
                  StatusIs(absl::StatusCode::kAborted, "killed"));
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const TrainReport report,
          RunSmall(options, [](Split, int64_t, int64_t) { return absl::OkStatus(); },
                   {.pool = &pool}));
      ASSERT_EQ(EndOf(report), expected);
      EXPECT_EQ(report.resumed_step, 12);
      // And back.
      options = WithCheckpoints(On(first, SmallRun(), &env), 4);
      options.epochs = 4;
      if (first.store != second.store && first.store != StoreKind::kMemory) {
        options.store_path += "/again";
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport longer, RunSmall(options));
      EXPECT_EQ(longer.resumed_step, kSmallSteps);
      TrainerOptions whole = SmallRun();
      whole.epochs = 4;
      EXPECT_EQ(EndOf(longer), Reference(whole));
    }
  }
}

TEST(CheckpointTest, KeepsAsManyAsItIsTold) {
  for (const Tier& tier : Tiers()) {
    for (const int64_t keep : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat(tier.name, ", keep ", keep));
      MemEnv env;
      TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), &env), 5);
      options.keep_checkpoints = keep;
      test::Output out;
      options.out = out.file();
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir(kDir));
      ASSERT_EQ(names.size(), static_cast<size_t>(keep) + 1) << testing::PrintToString(names);
      EXPECT_EQ(names[static_cast<size_t>(keep) - 1], CheckpointName(kSmallSteps));
      EXPECT_EQ(names.back(), "tables");
      EXPECT_GE(report.checkpoints.count, keep);
      EXPECT_GT(report.checkpoints.bytes, 10'000);
      EXPECT_GT(report.checkpoints.pause_ns_max, 0);
      EXPECT_GE(report.checkpoints.commit_ns_max, report.checkpoints.pause_ns_last);
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, env.ListDir(absl::StrCat(kDir, "/tables")));
      const bool in_memory = tier.store == StoreKind::kMemory;
      EXPECT_EQ(tables.size(), in_memory ? static_cast<size_t>(keep) : 0u);
      if (tier.store == StoreKind::kSsd) {
        HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport store, InspectSsdStore(env, "/run/rows"));
        EXPECT_EQ(store.snapshots.size(), static_cast<size_t>(keep));
        for (const auto& snapshot : store.snapshots) EXPECT_TRUE(snapshot.committed);
      }
      // Each of them is whole.
      for (int64_t i = 0; i < keep; ++i) {
        HOTROW_ASSERT_OK_AND_ASSIGN(
            const SavedModel saved,
            ReadCheckpoint(env, absl::StrCat(kDir, "/", names[static_cast<size_t>(i)])));
        HOTROW_ASSERT_OK(ReadSavedDense(env, saved).status());
        EXPECT_EQ(CheckpointName(saved.step), names[static_cast<size_t>(i)]);
      }
      EXPECT_THAT(out.Text(), HasSubstr("saving   checkpoints in /run/checkpoints, every 5 steps"));
    }
  }
}

TEST(CheckpointTest, LeftoversOfACrashAreRemoved) {
  for (const Tier& tier : Tiers()) {
    SCOPED_TRACE(tier.name);
    MemEnv env;
    const TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), &env), 6);
    ASSERT_THAT(RunSmall(options, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
    const std::string dir(kDir);
    for (const char* const name : {"step-000000000021.tmp", "step-000000000003.old"}) {
      HOTROW_ASSERT_OK(env.CreateDirs(absl::StrCat(dir, "/", name)));
      HOTROW_ASSERT_OK(
          WriteFileAtomically(env, absl::StrCat(dir, "/", name, "/dense.safetensors"), "half"));
    }
    // Somebody else's.
    HOTROW_ASSERT_OK(WriteFileAtomically(env, dir + "/notes.txt", "mine"));
    HOTROW_ASSERT_OK(env.CreateDirs(dir + "/step-1.tmp"));
    // A snapshot that was prepared and never named.
    if (tier.store == StoreKind::kMemory) {
      HOTROW_ASSERT_OK(WriteFileAtomically(env, dir + "/tables/00000000000000ff.snapshot", "half"));
    }
    HOTROW_ASSERT_OK(RunSmall(options).status());
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir(dir));
    EXPECT_THAT(names, ElementsAre("notes.txt", "step-000000000024", "step-000000000030",
                                   "step-1.tmp", "tables"));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, env.ListDir(dir + "/tables"));
    EXPECT_EQ(tables.size(), tier.store == StoreKind::kMemory ? 2u : 0u);
  }
}

TEST(CheckpointTest, WithoutResumeWhatIsThereIsRefused) {
  for (const Tier& tier : Tiers()) {
    SCOPED_TRACE(tier.name);
    MemEnv env;
    TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), &env), 6);
    HOTROW_ASSERT_OK(RunSmall(options).status());
    options.resume = false;
    EXPECT_THAT(RunSmall(options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("--checkpoint_dir=/run/checkpoints"),
                               HasSubstr("step-000000000030"), HasSubstr("add --resume"))));
    if (tier.store == StoreKind::kMemory) continue;
    options.checkpoint_dir = "/run/others";
    EXPECT_THAT(RunSmall(options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("/run/rows"), HasSubstr("(checkpoint_dir, resume)"),
                               HasSubstr("remove"))));
    options.checkpoint_dir.clear();
    EXPECT_THAT(RunSmall(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            AllOf(HasSubstr("/run/rows"), HasSubstr("remove"))));
  }
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 6);
  options.checkpoint_dir.clear();
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--checkpoint_dir")));
  options.checkpoint_dir = options.save_dir = "/both";
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--save_dir")));
  // A file, and a directory that --save_dir has written.
  options.save_dir.clear();
  HOTROW_ASSERT_OK(env.CreateDirs("/run"));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/run/file", "x"));
  options.checkpoint_dir = "/run/file";
  EXPECT_THAT(RunSmall(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("--checkpoint_dir=/run/file")));
  options = On(Tiers()[0], SmallRun(), &env);
  options.save_dir = "/run/saved";
  HOTROW_ASSERT_OK(RunSmall(options).status());
  options.save_dir.clear();
  options.checkpoint_dir = "/run/saved";
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it holds a saved model")));
}

TEST(CheckpointTest, EveryMismatchIsNamed) {
  MemEnv env;
  const TrainerOptions good = WithCheckpoints(On(Tiers()[1], SmallRun(), &env), 6);
  ASSERT_THAT(RunSmall(good, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
  struct Case {
    std::function<void(TrainerOptions*)> change;
    std::string was;
  };
  using O = TrainerOptions;
  const std::vector<Case> cases = {
      {[](O* o) { o->seed = 4; }, "--seed=3"},
      {[](O* o) { o->embedding_dim = 4; }, "--embedding_dim=8"},
      {[](O* o) { o->weights_precision = WeightsPrecision::kBf16; }, "--weights_precision=fp32"},
      {[](O* o) { o->pooling = Pooling::kMean; }, "--pooling=sum"},
      {[](O* o) { o->batch_size = 47; }, "--batch_size=48"},
      {[](O* o) { o->limit_train_batches = 9; }, "--limit_train_batches=0"},
      {[](O* o) { o->validation_freq_within_epoch = 5; }, "--validation_freq_within_epoch=4"},
      {[](O* o) { o->table_optimizer.kind = SparseOptimizerKind::kSgd; }, "--optimizer=adam"},
      {[](O* o) { o->table_optimizer.learning_rate = 0.02f; }, "--learning_rate=0.01"},
      {[](O* o) { o->table_optimizer.eps = 0.5f; }, "--eps="},
      {[](O* o) { o->table_optimizer.weight_decay = 0.5f; }, "--table_weight_decay=0"},
      {[](O* o) { o->dense_optimizer.kind = DenseOptimizerKind::kSgd; }, "--dense_optimizer=adam"},
      {[](O* o) { o->dense_optimizer.learning_rate = 0.02f; }, "--dense_learning_rate=0.01"},
      {[](O* o) { o->precision = DensePrecision::kBf16; }, "--precision=fp32"},
      {[](O* o) { o->dense_optimizer.weight_decay = 0.5f; }, "--weight_decay=0"},
      {[](O* o) { o->max_gradient_norm = 1; }, "--max_gradient_norm=0"},
      {[](O* o) { o->schedule.lr_warmup_steps = 6; }, "--lr_warmup_steps=5"},
      {[](O* o) { o->schedule.lr_decay_start = 21; }, "--lr_decay_start=20"},
      {[](O* o) { o->schedule.lr_decay_steps = 21; }, "--lr_decay_steps=20"},
      {[](O* o) { o->schedule.lr_plateau_factor = 0.1; }, "--lr_plateau_factor=0.5"},
      {[](O* o) { o->schedule.lr_plateau_patience = 2; }, "--lr_plateau_patience=1"},
      {[](O* o) { o->schedule.early_stop_patience = 2; }, "--early_stop_patience=0"},
      {[](O* o) { o->keep_best = true; }, "--keep_best=false"},
      {[](O* o) {
         o->settings = {{"data", "other"}};
       },
       std::string("--data=") + test::kSmallData},
      {[](O* o) {
         o->initializer = Initializer{InitializerKind::kZeros, 0};
       },
       "--initializer was uniform_rows and is zeros"},
      {[](O* o) {
         o->initializer = Initializer{InitializerKind::kNormal, 0.25f};
       },
       "--initializer was uniform_rows and is normal:0.25"},
      {[](O* o) { o->table_optimizer.beta1 = 0.8f; },
       "table_optimizer.beta1 was 0.9 and is 0.8; use table_optimizer.beta1=0.9"},
      {[](O* o) { o->table_optimizer.beta2 = 0.99f; }, "table_optimizer.beta2=0.999"},
      {[](O* o) { o->table_optimizer.weight_decay_mode = WeightDecayMode::kDecoupled; },
       "--table_weight_decay_mode=l2"},
      {[](O* o) { o->table_optimizer.initial_accumulator = 0.1f; },
       "table_optimizer.initial_accumulator=0"},
      {[](O* o) { o->table_optimizer.lr_power = -0.4f; }, "table_optimizer.lr_power=-0.5"},
      {[](O* o) { o->table_optimizer.l1 = 0.5f; }, "table_optimizer.l1=0"},
      {[](O* o) { o->table_optimizer.l2 = 0.5f; }, "table_optimizer.l2=0"},
      {[](O* o) { o->table_optimizer.ftrl_beta = 0.5f; }, "--ftrl_beta=0"},
      {[](O* o) { o->dense_optimizer.eps = 0.5f; }, "dense_optimizer.eps=1e-08"},
      {[](O* o) { o->dense_optimizer.beta1 = 0.8f; }, "dense_optimizer.beta1=0.9"},
      {[](O* o) { o->dense_optimizer.beta2 = 0.99f; }, "dense_optimizer.beta2=0.999"},
      {[](O* o) { o->schedule.validation_min_delta = 0.5; }, "schedule.validation_min_delta=1e-06"},
      {[](O* o) { o->device = Device::kCuda; }, "--device=cpu"},
  };
  for (const Case& c : cases) {
    TrainerOptions options = good;
    c.change(&options);
    const absl::Status status = RunSmall(options).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("--resume from /run/checkpoints/step-000000000018"),
                               HasSubstr(c.was))));
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
  }
  // Two at once, in one line.
  TrainerOptions options = good;
  options.seed = 4;
  options.batch_size = 50;
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--seed was 3 and is 4"), HasSubstr("--batch_size was 48"),
                             HasSubstr("use --seed=3 --batch_size=48"))));
  // What may differ.
  options = good;
  options.epochs = 4;
  options.checkpoint_every = 3;
  options.keep_checkpoints = 5;
  options.cache_policy = CachePolicy::kLfu;
  options.store_bytes *= 2;
  HOTROW_EXPECT_OK(RunSmall(options).status());
}

TEST(CheckpointTest, AModelCanStartFromACheckpoint) {
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[2], SmallRun(), &env), 10);
  options.keep_checkpoints = 3;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, RunSmall(options));
  TrainerOptions next = On(Tiers()[1], SmallRun(), &env);
  next.epochs = 1;
  next.init_from = std::string(kDir) + "/step-000000000020";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport from_old, RunSmall(next));
  EXPECT_EQ(from_old.resumed_from_step, 20);
  EXPECT_EQ(from_old.steps, 10);
  next.init_from = kDir;
  next.save_dir = "/run/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport from_newest, RunSmall(next));
  EXPECT_EQ(from_newest.resumed_from_step, 30);
  // The same from the saved model of a run that ended there, with its own checkpoints.
  next.init_from = "/run/saved";
  next.save_dir.clear();
  next = WithCheckpoints(next, 3);
  next.checkpoint_dir = "/run/second";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport third, RunSmall(next));
  MemEnv fresh;
  HOTROW_ASSERT_OK(RunSmall(next, DieAt(7))) << "it is at its end already";
  EXPECT_EQ(third.resumed_from_step, 40);
  // Killed on its way, it goes on as a run that started from the model.
  next.checkpoint_dir = "/run/third";
  ASSERT_THAT(RunSmall(next, DieAt(7)), StatusIs(absl::StatusCode::kAborted, "killed"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport resumed, RunSmall(next));
  EXPECT_EQ(EndOf(resumed), EndOf(third));
  EXPECT_EQ(resumed.resumed_from_step, 40);
  EXPECT_EQ(resumed.resumed_step, 43);  // two batches were prefetched
  next.init_from = kDir;
  EXPECT_THAT(RunSmall(next), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("--init_from was /run/saved")));
}

TEST(CheckpointTest, DamageAndMissingPartsAreNamed) {
  MemEnv env;
  const TrainerOptions options = WithCheckpoints(On(Tiers()[1], SmallRun(), &env), 10);
  HOTROW_ASSERT_OK(RunSmall(options).status());
  const std::string newest = std::string(kDir) + "/step-000000000030";
  HOTROW_ASSERT_OK(env.FlipBit(newest + "/manifest.json", 1234));
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(newest + "/manifest.json is damaged"), HasSubstr("without"),
                             HasSubstr("step-000000000020"))));
  HOTROW_ASSERT_OK(env.FlipBit(newest + "/manifest.json", 1234));
  HOTROW_ASSERT_OK(env.FlipBit(newest + "/dense.safetensors", 4321));
  EXPECT_THAT(RunSmall(options), StatusIs(absl::StatusCode::kDataLoss,
                                          HasSubstr(newest + "/dense.safetensors is damaged")));
  HOTROW_ASSERT_OK(env.Remove(newest + "/dense.safetensors"));
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(newest + "/dense.safetensors"),
                                                          HasSubstr("there is no such file"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, env.ListDir(std::string(kDir) + "/tables"));
  HOTROW_ASSERT_OK(env.Remove(absl::StrCat(kDir, "/tables/", tables.back())));
  EXPECT_THAT(RunSmall(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("/run/checkpoints/tables")));
  EXPECT_THAT(ReadCheckpoint(env, "/run/nothing/"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/run/nothing/manifest.json"),
                             HasSubstr("--checkpoint_dir or --save_dir"))));
}

void CopyFlatDir(Env& from, Env& to, const std::string& dir) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> old, to.ListDir(dir));
  for (const std::string& name : old) HOTROW_ASSERT_OK(to.Remove(dir + "/" + name));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, from.ListDir(dir));
  for (const std::string& name : names) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                                ReadFileToString(from, absl::StrCat(dir, "/", name)));
    HOTROW_ASSERT_OK(WriteFileAtomically(to, absl::StrCat(dir, "/", name), text));
  }
}

// Two runs in directories of the same names give their snapshots the same names.
TEST(CheckpointTest, RowsOfAnotherRunAreRefusedAndLeftAsTheyAre) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    const bool in_memory = store == StoreKind::kMemory;
    const std::string rows = in_memory ? std::string(kDir) + "/tables" : "/run/rows";
    SCOPED_TRACE(rows);
    MemEnv mine;
    MemEnv other;
    TrainerOptions options = SmallRun();
    options.store = store;
    options.cache_bytes = kSmallestCache;
    if (!in_memory) {
      options.store_path = rows;
      options.disk_bytes = int64_t{16} << 20;
    }
    options = WithCheckpoints(options, 10);
    options.epochs = 2;
    options.env = &other;
    options.seed = 4;
    HOTROW_ASSERT_OK(RunSmall(options).status());
    options.env = &mine;
    options.seed = 3;
    HOTROW_ASSERT_OK(RunSmall(options).status());
    MemEnv kept;
    HOTROW_ASSERT_OK(CreateDirsDurably(kept, rows));
    CopyFlatDir(mine, kept, rows);

    CopyFlatDir(other, mine, rows);
    options.epochs = 3;
    const absl::Status refused = RunSmall(options).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr(rows), HasSubstr("identity"))));
    EXPECT_THAT(VerifyCheckpoint(mine, kDir, 0).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("identity")));
    // The other run, whose rows these are, still goes on from them.
    CopyFlatDir(mine, other, rows);
    options.env = &other;
    options.seed = 4;
    HOTROW_EXPECT_OK(RunSmall(options).status());
    // And so does this one from its own.
    CopyFlatDir(kept, mine, rows);
    options.env = &mine;
    options.seed = 3;
    HOTROW_EXPECT_OK(RunSmall(options).status());
  }
}

// The older one of two checkpoints is damaged. What is good goes on, and what is not is kept.
TEST(CheckpointTest, ADamagedOlderOneIsLeftAloneAndNamed) {
  const std::string expected = Reference(SmallRun());
  for (const Tier& tier : {Tiers()[0], Tiers()[2]}) {
    for (const bool missing : {false, true}) {
      SCOPED_TRACE(absl::StrCat(tier.name, missing ? ", no manifest" : ""));
      MemEnv env;
      test::Output output;
      TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), &env), 3);
      ASSERT_THAT(RunSmall(options, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto before, ListCheckpoints(env, kDir));
      ASSERT_EQ(before.size(), 2u);
      const std::string older = absl::StrCat(kDir, "/", before[0]);
      const std::string manifest = older + "/manifest.json";
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env, manifest));
      if (missing) {
        HOTROW_ASSERT_OK(env.Remove(manifest));
      } else {
        HOTROW_ASSERT_OK(env.FlipBit(manifest, 1234));
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto reports, VerifyCheckpoints(env, kDir, 0));
      ASSERT_EQ(reports.size(), 2u);
      EXPECT_EQ(reports[0].model.dir, older);
      EXPECT_THAT(reports[0].damage, ElementsAre(HasSubstr(manifest)));
      EXPECT_THAT(reports[1].damage, ElementsAre());
      options.out = output.file();
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
      EXPECT_EQ(EndOf(report), expected);
      EXPECT_THAT(output.Text(), AllOf(HasSubstr(older + " cannot be read and is left alone"),
                                       HasSubstr("remove " + older)));
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, ListCheckpoints(env, kDir));
      EXPECT_THAT(names, ElementsAre(before[0], "step-000000000027", "step-000000000030"));
      // Somebody finds a copy of the manifest: the rows are there still.
      HOTROW_ASSERT_OK(WriteFileAtomically(env, manifest, text));
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto again, VerifyCheckpoints(env, kDir, 0));
      ASSERT_EQ(again.size(), 3u);
      for (const CheckpointReport& one : again) EXPECT_THAT(one.damage, ElementsAre());
    }
  }
}

// The message about a damaged newest one names what is good, not merely what is older.
TEST(CheckpointTest, TheNewestGoodOneIsNamed) {
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 3);
  options.keep_checkpoints = 3;
  ASSERT_THAT(RunSmall(options, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
  const std::string dir(kDir);
  HOTROW_ASSERT_OK(env.FlipBit(dir + "/step-000000000018/manifest.json", 1234));
  HOTROW_ASSERT_OK(env.FlipBit(dir + "/step-000000000015/manifest.json", 1234));
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("step-000000000018/manifest.json is damaged"),
                             HasSubstr("it would be " + dir + "/step-000000000012"))));
  HOTROW_ASSERT_OK(env.FlipBit(dir + "/step-000000000012/manifest.json", 1234));
  EXPECT_THAT(RunSmall(options),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no other checkpoint there")));
}

// The rows of an old checkpoint are gone when it is to go, too.
TEST(CheckpointTest, AMissingOlderSnapshotDoesNotEndTraining) {
  const std::string expected = Reference(SmallRun());
  MemEnv env;
  const TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 3);
  ASSERT_THAT(RunSmall(options, DieAt(20)), StatusIs(absl::StatusCode::kAborted, "killed"));
  const std::string tables = std::string(kDir) + "/tables";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, env.ListDir(tables));
  ASSERT_EQ(files.size(), 2u);
  HOTROW_ASSERT_OK(env.Remove(absl::StrCat(tables, "/", files[0])));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reports, VerifyCheckpoints(env, kDir, 0));
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_THAT(reports[0].damage, ElementsAre(HasSubstr(files[0])));
  EXPECT_THAT(reports[1].damage, ElementsAre());
  // And once more, while the run goes on.
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const TrainReport report, RunSmall(options, [&](Split split, int64_t epoch, int64_t sample) {
        if (split != Split::kTrain || epoch * 10 + sample / 48 != 22) return absl::OkStatus();
        const auto names = env.ListDir(tables);
        return names.ok() ? env.Remove(absl::StrCat(tables, "/", (*names)[0])) : names.status();
      }));
  EXPECT_EQ(EndOf(report), expected);
}

// One job at a time; who reads does not ask.
TEST(CheckpointTest, ASecondJobIsRefusedByName) {
  const std::string dir = test::TempDir() + "/checkpoints";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto writer,
                                CheckpointWriter::Open({.dir = dir, .env = &PosixEnv()}));
    TrainerOptions options = SmallRun();
    options.checkpoint_dir = dir + "/";
    options.resume = true;
    EXPECT_THAT(RunSmall(options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("--checkpoint_dir=" + dir), HasSubstr("another job"),
                               HasSubstr(dir + "/LOCK"))));
    HOTROW_EXPECT_OK(ListCheckpoints(PosixEnv(), dir));
  }
  HOTROW_EXPECT_OK(CheckpointWriter::Open({.dir = dir, .env = &PosixEnv()}).status());
}

TEST(CheckpointTest, ADirectoryInPlaceOfTheLockIsNamed) {
  const std::string dir = test::TempDir() + "/checkpoints";
  TrainerOptions options = SmallRun();
  options.epochs = 1;
  options.checkpoint_dir = dir;
  HOTROW_ASSERT_OK(RunSmall(options).status());
  std::filesystem::remove(dir + "/LOCK");
  std::filesystem::create_directory(dir + "/LOCK");
  EXPECT_THAT(CheckpointWriter::Open({.dir = dir, .env = &PosixEnv()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(dir + "/LOCK"), HasSubstr("is a directory"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, VerifyCheckpoint(PosixEnv(), dir, 0));
  EXPECT_THAT(report.damage, ElementsAre(HasSubstr(dir + "/LOCK")));
}

// The parts of a checkpoint, written by hand.
TEST(CheckpointTest, OneCanBeMadeOutOfParts) {
  MemEnv env;
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 10);
  ASSERT_THAT(RunSmall(options, DieAt(14)), StatusIs(absl::StatusCode::kAborted, "killed"));
  HOTROW_ASSERT_OK_AND_ASSIGN(SavedModel saved, ReadCheckpoint(env, std::string(kDir) + "/"));
  EXPECT_EQ(saved.step, 10);
  EXPECT_TRUE(saved.is_checkpoint);
  ASSERT_EQ(saved.parts.size(), 1u);
  EXPECT_EQ(saved.parts[0].tables_dir, "/run/checkpoints/tables");
  EXPECT_EQ(saved.tables[0].rows, -1);
  EXPECT_EQ(saved.seed, 3u);
  ASSERT_TRUE(saved.tables[0].initializer.has_value());
  EXPECT_EQ(saved.tables[0].initializer->kind, InitializerKind::kUniform);
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors dense, ReadSavedDense(env, saved));
  EXPECT_EQ(dense.parameters.size(), static_cast<size_t>(saved.num_parameters));
  EXPECT_EQ(dense.momentum2.size(), dense.parameters.size());

  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string dir,
                              WriteCheckpoint(env, "/run/imported/", saved, dense.arrays()));
  EXPECT_EQ(dir, "/run/imported/step-000000000010");
  EXPECT_THAT(WriteCheckpoint(env, "/run/imported", saved, dense.arrays()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(dir)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel again, ReadCheckpoint(env, dir));
  EXPECT_EQ(again.parts, saved.parts);
  EXPECT_EQ(again.dense_crc, saved.dense_crc);
  EXPECT_EQ(TrainingStateToJson(*again.training), TrainingStateToJson(*saved.training));
  // Training goes on from it, and leaves the tables where they are.
  options.checkpoint_dir = "/run/imported";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
  EXPECT_EQ(EndOf(report), Reference(SmallRun()));
  HOTROW_ASSERT_OK(
      env.Open(absl::StrFormat("/run/checkpoints/tables/%016x.snapshot", saved.parts[0].snapshot),
               OpenMode::kRead)
          .status());
  // One that does not know where its training stood.
  saved.training.reset();
  HOTROW_ASSERT_OK(WriteCheckpoint(env, "/run/bare", saved, dense.arrays()).status());
  options.checkpoint_dir = "/run/bare";
  EXPECT_THAT(RunSmall(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("--init_from=/run/bare/step-000000000010")));
  options.init_from = "/run/bare";
  options.checkpoint_dir = "/run/new";
  HOTROW_EXPECT_OK(RunSmall(options).status());
}

// A directory with everything in it may move.
TEST(CheckpointTest, MayBeMovedAsAWhole) {
  const std::string root = test::TempDir();
  TrainerOptions options = WithCheckpoints(On(Tiers()[0], SmallRun(), nullptr), 10);
  options.checkpoint_dir = root + "/here";
  ASSERT_THAT(RunSmall(options, DieAt(14)), StatusIs(absl::StatusCode::kAborted, "killed"));
  std::filesystem::rename(root + "/here", root + "/there");
  options.checkpoint_dir = root + "/there";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
  EXPECT_EQ(report.resumed_step, 10);
  EXPECT_EQ(EndOf(report), Reference(SmallRun()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, PosixEnv().ListDir(root + "/there/tables"));
  EXPECT_EQ(tables.size(), 2u);
}

// The store is open, and locked; verifying reads every row.
TEST(CheckpointTest, OthersReadThemWhileTheRunGoesOn) {
  for (const StoreKind kind : {StoreKind::kSsd, StoreKind::kRocksDb}) {
    if (!ParseStoreKind(StoreKindName(kind)).ok()) continue;
    SCOPED_TRACE(StoreKindName(kind));
    const std::string root = test::TempDir();
    TrainerOptions options = WithCheckpoints(SmallRun(), 5);
    options.store = kind;
    options.disk_bytes = int64_t{64} << 20;
    options.cache_bytes = kSmallestCache;
    options.checkpoint_dir = root + "/checkpoints";
    options.store_path = root + "/rows";
    options.env = nullptr;
    size_t verified = 0;
    const auto watch = [&](Split split, int64_t epoch, int64_t sample) -> absl::Status {
      if (split != Split::kTrain || epoch * 10 + sample / 48 != 14) return absl::OkStatus();
      HOTROW_ASSIGN_OR_RETURN(const auto reports,
                              VerifyCheckpoints(PosixEnv(), options.checkpoint_dir, 0));
      for (const CheckpointReport& report : reports) {
        EXPECT_THAT(report.damage, ElementsAre());
        EXPECT_GT(report.rows, 0);
        ++verified;
      }
      return absl::OkStatus();
    };
    HOTROW_ASSERT_OK(RunSmall(options, watch).status());
    EXPECT_GT(verified, 0u);
  }
}

// Its run removes a checkpoint that somebody verifies by its name: that is no damage.
TEST(CheckpointTest, OneThatIsRemovedWhileItIsVerifiedIsSaidToBeGone) {
  class Remover : public MemEnv {
   public:
    absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
      if (path == at) {
        const auto names = ListDir(dir);
        for (const std::string& name : *names) {
          HOTROW_EXPECT_OK(Remove(absl::StrCat(dir, "/", name)));
        }
      }
      return MemEnv::Open(path, mode);
    }
    std::string at, dir;
  } env;
  HOTROW_ASSERT_OK(RunSmall(WithCheckpoints(On(Tiers()[0], SmallRun(), &env), 10)).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, ListCheckpoints(env, kDir));
  const std::string dir = absl::StrCat(kDir, "/", names[0]);
  HOTROW_ASSERT_OK(VerifyCheckpoint(env, dir, 0).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report, InspectCheckpoint(env, dir, 0));
  env.dir = dir;
  env.at = report.files[1].path;  // the dense parameters
  EXPECT_THAT(VerifyCheckpoint(env, dir, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(dir), HasSubstr("removed while it was verified"))));
}

// A store outside of the directory moves with it. The identity of a snapshot decides which store is
// meant, not where it was written.
TEST(CheckpointTest, AndTheStoreBesideItMovesWithIt) {
  namespace fs = std::filesystem;
  for (const StoreKind kind : {StoreKind::kSsd, StoreKind::kRocksDb}) {
    if (!ParseStoreKind(StoreKindName(kind)).ok()) continue;
#ifdef __SANITIZE_THREAD__
    if (kind == StoreKind::kRocksDb) continue;  // it is not built for ThreadSanitizer
#endif
    SCOPED_TRACE(StoreKindName(kind));
    const std::string root = test::TempDir();
    const auto in = [&](const std::string& dir, const std::string& rows) {
      TrainerOptions options = WithCheckpoints(SmallRun(), 5);
      options.store = kind;
      options.disk_bytes = int64_t{64} << 20;
      options.cache_bytes = kSmallestCache;
      options.prefetch_depth = 2;
      options.keep_checkpoints = 2;
      options.checkpoint_dir = absl::StrCat(root, "/", dir, "/checkpoints");
      options.store_path = absl::StrCat(root, "/", dir, "/", rows);
      return options;
    };
    const auto damage = [&](const std::string& dir) {
      std::vector<std::string> lines;
      const auto reports =
          VerifyCheckpoints(PosixEnv(), absl::StrCat(root, "/", dir, "/checkpoints"), 0);
      if (!reports.ok()) lines.emplace_back(reports.status().message());
      for (const CheckpointReport& report : reports.value_or(std::vector<CheckpointReport>())) {
        lines.insert(lines.end(), report.damage.begin(), report.damage.end());
      }
      return lines;
    };
    const auto dies = StatusIs(absl::StatusCode::kAborted, "killed");
    const std::string expected = Reference(SmallRun());
    ASSERT_THAT(RunSmall(in("a", "rows"), DieAt(14)), dies);
    fs::create_directory(root + "/backup");
    fs::copy(root + "/a", root + "/copy", fs::copy_options::recursive);
    fs::copy(root + "/a/checkpoints", root + "/backup/checkpoints", fs::copy_options::recursive);
    // Two checkpoints whose rows are not in the backup.
    EXPECT_THAT(damage("backup"), ElementsAre(HasSubstr(root + "/backup/rows: the"),
                                              HasSubstr("no part of this copy")));
    EXPECT_THAT(damage("copy"), ElementsAre());
    HOTROW_ASSERT_OK_AND_ASSIGN(TrainReport report, RunSmall(in("copy", "rows"), DieAt(40)));
    EXPECT_EQ(EndOf(report), expected);
    EXPECT_EQ(report.resumed_step, 10);
    EXPECT_THAT(damage("copy"), ElementsAre());

    // A kill left the rows of one that had lost its name.
    fs::remove_all(root + "/a/checkpoints/step-000000000005");
    fs::rename(root + "/a", root + "/b");
    EXPECT_THAT(damage("b"), ElementsAre());
    ASSERT_THAT(RunSmall(in("b", "rows"), DieAt(14)), dies);
    if (kind == StoreKind::kSsd) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport store,
                                  InspectSsdStore(PosixEnv(), root + "/b/rows"));
      EXPECT_EQ(store.snapshots.size(), 1u);
    }
    ASSERT_THAT(RunSmall(in("b", "rows"), DieAt(18)), dies);
    // The store alone: the flag names it.
    fs::rename(root + "/b/rows", root + "/b/other");
    ASSERT_THAT(RunSmall(in("b", "other"), DieAt(18)), dies);
    fs::rename(root + "/b/other", root + "/b/rows");
    EXPECT_THAT(damage("b"), ElementsAre());  // none was dropped
    HOTROW_ASSERT_OK_AND_ASSIGN(report, RunSmall(in("b", "rows")));
    EXPECT_EQ(EndOf(report), expected);
    EXPECT_EQ(report.resumed_step, 15);
  }
}

// Old versions of rows that only checkpoints hold would fill the disk.
TEST(CheckpointTest, AShortDiskTakesThemEarly) {
  const std::string data =
      "synthetic:tables=3,rows=4000,dense=2,shared=2,hotness=0-3,zipf=0.8,samples=7680,valid=200,"
      "test=200";
  TrainerOptions large = SmallRun();
  large.batch_size = 256;
  large.epochs = 6;
  large.settings = {{"data", data}};
  large.validation_freq_within_epoch = 0;
  const auto run = [&](const TrainerOptions& options) {
    return RunSmall(
        options, [](Split, int64_t, int64_t) { return absl::OkStatus(); }, {}, data);
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, run(large));
  for (const int64_t every : {3, 9}) {
    for (const int64_t disk_bytes : {int64_t{10} << 20, int64_t{14} << 20}) {
      if (!kSlow && (every == 3) != (disk_bytes == int64_t{10} << 20)) continue;
      SCOPED_TRACE(absl::StrCat("every ", every, ", disk ", disk_bytes));
      MemEnv env;
      TrainerOptions options = WithCheckpoints(On(Tiers()[2], large, &env), every);
      options.store_bytes = int64_t{24} << 20;
      options.disk_bytes = disk_bytes;
      options.keep_checkpoints = 100;
      test::Output out;
      options.out = out.file();
      const absl::StatusOr<TrainReport> report = run(options);
      const std::string text = out.Text();
      ASSERT_TRUE(report.ok()) << report.status() << "\n" << text;
      EXPECT_EQ(EndOf(*report), EndOf(whole));
      EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("taking one early, which replaces them"),
                                         HasSubstr("removed all")));
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, ListCheckpoints(env, kDir));
      EXPECT_EQ(names.back(), CheckpointName(180));
      if (every == 3) {
        EXPECT_LT(names.size(), 55u);
      }
    }
  }
}

// --- Faults and power loss -----------------------------------------------------------------------

enum class Crash { kNone, kWorst, kCoin };

// The step of the newest checkpoint that the run said was committed; 0: none.
int64_t NewestSaid(const std::string& text) {
  int64_t step = 0;
  for (const auto line : absl::StrSplit(text, '\n')) {
    const size_t at = line.find("/step-");
    if (absl::StartsWith(line, "checkpoint ") && at != absl::string_view::npos) {
      step = std::stoll(std::string(line.substr(at + 6, 12)));
    }
  }
  return step;
}

TrainerOptions FaultRun(const Tier& tier, Env* env) {
  TrainerOptions options = WithCheckpoints(On(tier, SmallRun(), env), 2);
  options.epochs = 1;
  options.keep_checkpoints = 2;
  return options;
}

// Call k of a run fails, or all from k on; then power is lost or not. What is there then is what
// the run said, or newer, and the next run ends as if nothing had been. False when the run makes
// fewer calls.
bool RunWithFault(const Tier& tier, int64_t k, bool all_from_k, Crash crash, uint64_t seed,
                  const std::string& expected) {
  SCOPED_TRACE(testing::Message() << tier.name << ", call " << k
                                  << (all_from_k ? " and all after it" : "") << ", crash "
                                  << static_cast<int>(crash) << ", seed " << seed);
  FaultyEnv env;
  // The directory above belongs to whoever made it.
  HOTROW_EXPECT_OK(CreateDirsDurably(env, "/run"));
  const absl::Status error = absl::DataLossError("injected");
  const int64_t call = env.calls() + k;
  if (all_from_k) {
    env.FailFrom(call, error);
  } else {
    env.FailCall(call, error);
  }
  TrainerOptions options = FaultRun(tier, &env);
  test::Output out;
  options.out = out.file();
  const absl::StatusOr<TrainReport> first = RunSmall(options);
  const bool done = env.faults() == 0;
  const int64_t said = NewestSaid(out.Text());
  env.FailFrom(INT64_MAX, absl::OkStatus());
  env.FailCall(call, absl::OkStatus());
  if (first.ok()) {
    EXPECT_EQ(EndOf(*first), expected);
  }
  if (crash == Crash::kWorst) env.DropUnsyncedData();
  if (crash == Crash::kCoin) env.LosePower(seed);
  options = FaultRun(tier, &env);
  const absl::StatusOr<TrainReport> second = RunSmall(options);
  HOTROW_EXPECT_OK(second);
  if (!second.ok()) return false;
  EXPECT_EQ(EndOf(*second), expected);
  EXPECT_GE(second->resumed_step, said == 0 ? -1 : said);
  const auto names = env.ListDir(kDir);
  EXPECT_TRUE(names.ok() && names->size() == 3) << testing::PrintToString(*names);
  return !done;
}

TEST(CheckpointFaultTest, AFaultAtAnyCallLosesNothingCommitted) {
  TrainerOptions reference = SmallRun();
  reference.epochs = 1;
  const std::string expected = Reference(reference);
  for (const Tier& tier : {Tiers()[0], Tiers()[2]}) {
    for (const bool all_from_k : {false, true}) {
      for (const Crash crash : {Crash::kNone, Crash::kWorst, Crash::kCoin}) {
        // On an SSD the store makes most of the calls, which its own tests walk over.
        const int64_t stride = kSlow                           ? 1
                               : tier.store == StoreKind::kSsd ? test::ForSanitizer(97, 211)
                                                               : test::ForSanitizer(11, 29);
        // The six walks begin at different calls, so that together they meet all in memory.
        int64_t k = kSlow ? 0 : 2 * static_cast<int64_t>(crash) + (all_from_k ? 1 : 0);
        while (RunWithFault(tier, k, all_from_k, crash, static_cast<uint64_t>(k) + 1, expected) &&
               !testing::Test::HasFailure()) {
          k += stride;
        }
        EXPECT_GT(k, 60);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// A disk that is full for a while: older checkpoints go, the newest stays.
TEST(CheckpointFaultTest, AFullDiskLeavesTheNewestCheckpoint) {
  TrainerOptions reference = SmallRun();
  reference.epochs = 1;
  const std::string expected = Reference(reference);
  for (int64_t k = 0;; k += kSlow ? 1 : test::ForSanitizer(7, 19)) {
    SCOPED_TRACE(k);
    FaultyEnv env;
    HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
    const int64_t call = env.calls() + k;
    env.FailCall(call, OutOfRoomError("full"));
    TrainerOptions options = FaultRun(Tiers()[0], &env);
    options.checkpoint_every = 1;
    test::Output out;
    options.out = out.file();
    const absl::StatusOr<TrainReport> first = RunSmall(options);
    const bool done = env.faults() == 0;
    const int64_t said = NewestSaid(out.Text());
    if (!first.ok()) {
      EXPECT_THAT(std::string(first.status().message()), HasSubstr("full"));
    }
    options.out = nullptr;
    env.FailCall(call, absl::OkStatus());
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport second, RunSmall(options));
    EXPECT_EQ(EndOf(second), expected);
    EXPECT_GE(second.resumed_step, said == 0 ? -1 : said);
    if (done || testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace hotrow
