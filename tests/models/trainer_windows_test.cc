// Training in the order of time (--window): what is judged when, runs that die anywhere, ranks,
// windows that come later.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/growing_source.h"
#include "models/data/windowed_source.h"
#include "models/delta/delta_chain.h"
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
using test::RunSmall;
using test::SmallModel;
using test::SmallRun;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kDay = 86'400;
// Ten days of 48 samples.
constexpr char kData[] =
    "synthetic:tables=3,rows=300,dense=2,hotness=0-3,samples=480,valid=0,test=90,drift=60,"
    "seconds=864000";
// The first five of them.
constexpr char kFiveDays[] =
    "synthetic:tables=3,rows=300,dense=2,hotness=0-3,samples=240,valid=0,test=90,drift=30,"
    "seconds=432000";
constexpr int64_t kStepsOfDay = 3;  // of 20, 20 and 8 samples
// Reads of the data: two find the windows, then each day is judged, but for the first, and trained.
constexpr int64_t kReadsBefore = 2;
constexpr int64_t kReads = kReadsBefore + 10 * kStepsOfDay + 9 * kStepsOfDay;

// With keys that wait for their rows, and rows that age.
TrainerOptions Windows() {
  TrainerOptions options = SmallRun();
  options.batch_size = 20;
  options.epochs = 1;
  options.validation_freq_within_epoch = 0;
  options.schedule = {};
  options.window_seconds = kDay;
  options.admission = {.rule = Admission::Rule::kLookups, .lookups = 2, .forget_steps = 12};
  options.admission_bytes = 64 << 10;
  options.ttl_steps = 9;
  options.settings = {{"data", kData}};
  return options;
}

TrainerOptions Saving(TrainerOptions options, Env* env, int64_t every) {
  options.env = env;
  options.checkpoint_dir = "/run/checkpoints";
  options.checkpoint_every = every;
  options.resume = true;
  // So that it is certain which of them are there.
  options.checkpoint_in_background = false;
  return options;
}

test::WatchedData::Watch AtRead(int64_t read, const std::function<absl::Status()>& act) {
  return [=, reads = std::make_shared<std::atomic<int64_t>>(0)](Split, int64_t, int64_t) {
    return (*reads)++ == read ? act() : absl::OkStatus();
  };
}
// The data end with an error, so that the run is given up there.
test::WatchedData::Watch DieAtRead(int64_t read) {
  return AtRead(read, [] { return absl::AbortedError("killed"); });
}

absl::StatusOr<TrainReport> Train(const TrainerOptions& options, int64_t die_at_read = -1,
                                  const ExecContext& ctx = {}, const char* data = kData) {
  return RunSmall(options, DieAtRead(die_at_read), ctx, data);
}

// The end of a run with all its windows.
std::string EndWithWindows(const TrainReport& report) {
  std::string text = EndOf(report);
  for (const TrainedWindow& window : report.windows) {
    absl::StrAppendFormat(&text,
                          "\n%d: %d samples, AUC %.17g, logloss %.17g of %d, best %.17g; %.17g",
                          window.number, window.samples, window.valid.auc, window.valid.logloss,
                          window.valid.samples, window.best_auc, window.train_logloss);
  }
  return text;
}

TEST(TrainerWindowsTest, EachWindowIsJudgedAndThenTrained) {
  test::Output out;
  TrainerOptions options = Windows();
  options.out = out.file();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  ASSERT_EQ(report.windows.size(), 10u);
  for (int64_t k = 0; k < 10; ++k) {
    const TrainedWindow& window = report.windows[static_cast<size_t>(k)];
    EXPECT_EQ(window.number, k);
    EXPECT_EQ(window.samples, 48);
    EXPECT_EQ(window.valid.samples, k == 0 ? 0 : 48);
    EXPECT_GT(window.train_logloss, 0);
  }
  EXPECT_EQ(report.steps, 10 * kStepsOfDay);
  EXPECT_EQ(report.samples, 480);
  EXPECT_EQ(report.epochs, 10);
  EXPECT_EQ(report.valid.logloss, report.windows.back().valid.logloss);
  EXPECT_EQ(report.train_logloss, report.windows.back().train_logloss);
  EXPECT_EQ(report.test.samples, 90);
  EXPECT_GT(report.tables.admission_rejected_keys, 0);
  EXPECT_THAT(out.Text(), AllOf(HasSubstr("windows: 10 of 1d, from 1970-01-01 to 1970-01-10"),
                                HasSubstr("window 1970-01-02, step 3: AUC "),
                                HasSubstr("before training on its 48 samples"),
                                Not(HasSubstr("without samples"))));
  EXPECT_THAT(ReportToJson(report),
              AllOf(HasSubstr("\"windows\": ["), HasSubstr("\"begin\": \"1970-01-10\""),
                    HasSubstr("\"empty_before\": 0")));
  EXPECT_THAT(FormatSummary(report), HasSubstr("of 1d; AUC of the next one"));
}

// A day as validation data.
class DayAsValidation : public DataSource {
 public:
  DayAsValidation(DataSource* data, int64_t day) : data_(*data), days_(data, kDay), day_(day) {}
  absl::Status Read() { return days_.Read(); }
  const DataSchema& schema() const override { return data_.schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    return split == Split::kValid ? days_.OpenSplit(Split::kTrain, day_, first_sample)
                                  : data_.OpenSplit(split, epoch, first_sample);
  }

 private:
  DataSource& data_;
  WindowedSource days_;
  const int64_t day_;
};

// By a run that knows no windows, over batches that no border cuts.
TEST(TrainerWindowsTest, AWindowIsJudgedByTheModelOfTheWindowsBeforeIt) {
  TrainerOptions options = Windows();
  options.batch_size = 24;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  for (const int64_t days : {1, 5, 9}) {
    SCOPED_TRACE(days);
    TrainerOptions plain = options;
    plain.window_seconds = 0;
    plain.limit_train_batches = 2 * days;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, OpenDataSource(kData, 5));
    DayAsValidation split(data.get(), days);
    HOTROW_ASSERT_OK(split.Read());
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport expected,
                                RunTraining(plain, split, SmallModel(plain), {}));
    const TrainedWindow& window = report.windows[static_cast<size_t>(days)];
    EXPECT_EQ(window.valid.samples, expected.valid.samples);
    EXPECT_EQ(window.valid.auc, expected.valid.auc);
    EXPECT_EQ(window.valid.logloss, expected.valid.logloss);
  }
  options.window_seconds = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport plain, Train(options));
  EXPECT_EQ(plain.digest.hash.ToHex(), report.digest.hash.ToHex());
  EXPECT_EQ(plain.dense_hash, report.dense_hash);
}

TEST(TrainerWindowsTest, ARunThatDiesAnywhereEndsWithTheSameBitsAndMetrics) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  const std::string expected = EndWithWindows(whole);
  ThreadPool pool(2);
  std::set<int64_t> resumed_inside;  // a window, by the step
  for (const bool on_disk : {false, true}) {
    for (int64_t read = kReadsBefore; read < kReads; read += test::RunsSlowTests() ? 1
                                                             : on_disk             ? 17
                                                                                   : 5) {
      SCOPED_TRACE(absl::StrCat(on_disk ? "ssd" : "memory", ", killed at read ", read));
      MemEnv env;
      TrainerOptions options = Saving(Windows(), &env, /*every=*/2);
      options.keep_checkpoints = 1;
      if (on_disk) {
        options.store = StoreKind::kSsd;
        options.store_path = "/run/rows";
        options.disk_bytes = int64_t{16} << 20;
        options.cache_bytes = kSmallestCache;
        options.prefetch_depth = 2;
        options.checkpoint_in_background = true;
      }
      ASSERT_THAT(Train(options, read), StatusIs(absl::StatusCode::kAborted, "killed"));
      // Once more, soon, with batches that are read ahead.
      const absl::Status again = Train(options, kReadsBefore + 4, {.pool = &pool}).status();
      ASSERT_TRUE(again.ok() || absl::IsAborted(again)) << again;
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
      ASSERT_EQ(EndWithWindows(report), expected);
      if (report.resumed_step % kStepsOfDay != 0) resumed_inside.insert(report.resumed_step);
    }
  }
  EXPECT_GE(resumed_inside.size(), 3u) << "nothing was tested";
}

TEST(TrainerWindowsTest, ACheckpointStandsAtEachBorder) {
  MemEnv env;
  const TrainerOptions options = Saving(Windows(), &env, /*every=*/0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  // Two steps behind the border of day 6.
  const int64_t read = kReadsBefore + 6 * 2 * kStepsOfDay + 2;
  ASSERT_THAT(Train(options, read), StatusIs(absl::StatusCode::kAborted, "killed"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  EXPECT_EQ(report.resumed_step, 6 * kStepsOfDay);
  EXPECT_EQ(EndWithWindows(report), EndWithWindows(whole));
}

TEST(TrainerWindowsTest, ASignalInAJudgementOrAWindowChangesNothing) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  for (const int64_t read : {3, 5, 6, 7, 9, 30, 33}) {
    SCOPED_TRACE(read);
    MemEnv env;
    TrainerOptions options = Saving(Windows(), &env, /*every=*/0);
    std::atomic<int> signal{0};
    options.stop_signal = &signal;
    const auto stop = AtRead(read, [&] {
      signal = 15;
      return absl::OkStatus();
    });
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport stopped, RunSmall(options, stop, {}, kData));
    EXPECT_EQ(stopped.stopped_by_signal, 15);
    EXPECT_LT(stopped.steps, whole.steps);
    signal = 0;
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
    EXPECT_EQ(report.resumed_step, stopped.steps);
    EXPECT_EQ(EndWithWindows(report), EndWithWindows(whole));
  }
}

TEST(TrainerWindowsTest, DeltasGoWithWindows) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  const std::string dir = test::TempDir();
  TrainerOptions options = Saving(Windows(), nullptr, /*every=*/2);
  options.checkpoint_dir = dir + "/checkpoints";
  options.checkpoint_in_background = true;
  options.delta_dir = dir + "/chain";
  options.delta_every = 4;
  ASSERT_THAT(Train(options, kReads / 2), StatusIs(absl::StatusCode::kAborted, "killed"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  EXPECT_EQ(EndWithWindows(report), EndWithWindows(whole));
  test::ExpectChainIsTheEnd(dir);
  // The first window's border comes before step 4.
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(PosixEnv(), dir + "/chain"));
  EXPECT_EQ(chain.manifest.base_step, kStepsOfDay);
}

TEST(TrainerWindowsTest, WindowsThatCameBehindTheLastAreTrainedAsIfTheyHadBeenThere) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  MemEnv env;
  const TrainerOptions options = Saving(Windows(), &env, /*every=*/0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Train(options, -1, {}, kFiveDays));
  EXPECT_EQ(first.windows.size(), 5u);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  EXPECT_EQ(report.resumed_step, 5 * kStepsOfDay);
  EXPECT_EQ(EndWithWindows(report), EndWithWindows(whole));
  // Others are refused by name.
  constexpr char kOther[] =
      "synthetic:tables=3,rows=300,dense=2,hotness=0-3,samples=470,valid=0,test=90,drift=60,"
      "seconds=864000";
  EXPECT_THAT(Train(options, -1, {}, kOther),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("window 1 was that of 1970-01-01 with 48 samples, and is "
                                       "that of 1970-01-01 with 47"),
                             HasSubstr("the data of then"))));
  EXPECT_THAT(Train(options, -1, {}, kFiveDays),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("window 6 was that of 1970-01-06 with 48 samples, and is not")));
}

// Five days are there at first, and ten at the fourth look.
TEST(TrainerWindowsTest, ARunThatFollowsTrainsWindowsOnceTheyAreWhole) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  MemEnv env;
  TrainerOptions options = Saving(Windows(), &env, /*every=*/0);
  options.follow_seconds = 1;
  int64_t looks = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, GrowingSource::Open([&](const SavedVocabulary*) {
                                return OpenDataSource(looks++ < 3 ? kFiveDays : kData, 5);
                              }));
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                              RunTraining(options, *data, SmallModel(options), {}));
  ASSERT_EQ(report.windows.size(), 9u);
  EXPECT_EQ(report.epochs, 9);
  for (size_t k = 0; k < 9; ++k) {
    EXPECT_EQ(report.windows[k].valid.logloss, whole.windows[k].valid.logloss);
    EXPECT_EQ(report.windows[k].train_logloss, whole.windows[k].train_logloss);
  }
  // The last one is trained by who does not wait.
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport rest, Train(Saving(Windows(), &env, /*every=*/0)));
  EXPECT_EQ(rest.resumed_step, 9 * kStepsOfDay);
  EXPECT_EQ(EndWithWindows(rest), EndWithWindows(whole));
}

TEST(TrainerWindowsTest, ASignalEndsTheWait) {
  MemEnv env;
  TrainerOptions options = Saving(Windows(), &env, /*every=*/0);
  options.follow_seconds = 600;
  std::atomic<int> signal{0};
  options.stop_signal = &signal;
  int64_t looks = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, GrowingSource::Open([&](const SavedVocabulary*) {
                                if (looks++ == 2) signal = 15;
                                return OpenDataSource(kFiveDays, 5);
                              }));
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                              RunTraining(options, *data, SmallModel(options), {}));
  EXPECT_EQ(report.stopped_by_signal, 15);
  EXPECT_EQ(report.steps, 4 * kStepsOfDay);
  EXPECT_THAT(report.checkpoint, HasSubstr("/run/checkpoints/"));
}

// Samples from the third day on come later.
class Gap : public DataSource {
 public:
  explicit Gap(std::unique_ptr<DataSource> base, int64_t seconds = 3 * kDay)
      : base_(std::move(base)), seconds_(seconds) {}
  const DataSchema& schema() const override { return base_->schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    HOTROW_ASSIGN_OR_RETURN(auto reader, base_->OpenSplit(split, epoch, first_sample));
    return std::make_unique<Reader>(std::move(reader), seconds_);
  }

 private:
  class Reader : public DataReader {
   public:
    Reader(std::unique_ptr<DataReader> base, int64_t seconds)
        : base_(std::move(base)), seconds_(seconds) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      HOTROW_RETURN_IF_ERROR(base_->Next(max_batch_size, batch));
      for (int64_t& time : batch->times) time += time >= 2 * kDay ? seconds_ : 0;
      return absl::OkStatus();
    }
    int64_t position() const override { return base_->position(); }

   private:
    std::unique_ptr<DataReader> base_;
    const int64_t seconds_;
  };

  std::unique_ptr<DataSource> base_;
  const int64_t seconds_;
};

// As a foreign pack may have them.
TEST(TrainerWindowsTest, TimesOfNoYearAreRefused) {
  for (const int64_t seconds : {int64_t{1} << 62, -(int64_t{1} << 62)}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto data, OpenDataSource(kFiveDays, 5));
    Gap gap(std::move(data), seconds);
    const absl::Status read = WindowedSource(&gap, kDay).Read();
    EXPECT_EQ(read.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(read.message(), HasSubstr("years 0 to 9999"));
  }
}

TEST(TrainerWindowsTest, WindowsWithoutSamplesAreSaidAndLeftOut) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Train(Windows()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto data, OpenDataSource(kData, 5));
  Gap gap(std::move(data));
  test::Output out;
  TrainerOptions options = Windows();
  options.out = out.file();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                              RunTraining(options, gap, SmallModel(options), {}));
  EXPECT_EQ(EndOf(report), EndOf(whole));
  ASSERT_EQ(report.windows.size(), 10u);
  EXPECT_EQ(report.windows[2].number, 5);
  EXPECT_EQ(EmptyBefore(report.windows, 2), 3);
  EXPECT_THAT(out.Text(), AllOf(HasSubstr("window 1970-01-06, step 6: AUC "),
                                HasSubstr("48 samples; 3 before it without samples")));
  EXPECT_THAT(ReportToJson(report), HasSubstr("\"empty_before\": 3"));
}

TEST(TrainerWindowsTest, AModelThatTrainingStartsFromIsJudgedOnTheFirstWindow) {
  MemEnv env;
  TrainerOptions options = Windows();
  options.env = &env;
  options.save_dir = "/run/model";
  HOTROW_ASSERT_OK(Train(options));
  options.save_dir.clear();
  options.init_from = "/run/model";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  EXPECT_EQ(report.windows[0].valid.samples, 48);
  EXPECT_EQ(report.epochs, 10);
}

TEST(TrainerWindowsTest, WhatDoesNotGoWithWindowsIsNamed) {
  const std::pair<const char*, std::function<void(TrainerOptions*)>> cases[] = {
      {"--epochs does not go with --window=1d", [](TrainerOptions* o) { o->epochs = 2; }},
      {"--limit_train_batches", [](TrainerOptions* o) { o->limit_train_batches = 5; }},
      {"--validation_freq_within_epoch",
       [](TrainerOptions* o) { o->validation_freq_within_epoch = 5; }},
      {"--early_stop_patience", [](TrainerOptions* o) { o->schedule.early_stop_patience = 1; }},
      {"--keep_best", [](TrainerOptions* o) { o->keep_best = true; }},
      {"--window must be at least 1 s", [](TrainerOptions* o) { o->window_seconds = -1; }},
      {"--follow needs --window", [](TrainerOptions* o) {
         o->window_seconds = 0;
         o->follow_seconds = 5;
       }}};
  for (const auto& [text, change] : cases) {
    TrainerOptions options = Windows();
    change(&options);
    EXPECT_THAT(Train(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
  EXPECT_THAT(Train(Windows(), -1, {}, test::kSmallData),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--window=1d"), HasSubstr("have no time"))));
}

// What each of two ranks returns.
std::vector<absl::StatusOr<TrainReport>> RunRanks(const TrainerOptions& options,
                                                  int64_t die_at_read = -1) {
  std::vector<absl::StatusOr<TrainReport>> reports(
      2, absl::StatusOr<TrainReport>(absl::UnknownError("did not run")));
  RunOnThreads(2, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    TrainerOptions mine = options;
    mine.communicator = &communicator;
    auto& report = reports[static_cast<size_t>(communicator.rank())];
    report = Train(mine, die_at_read);
    return report.status();
  });
  return reports;
}

TEST(TrainerWindowsTest, TwoRanksSeeTheSameWindowsAndGoOnInsideOne) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport one, Train(Windows()));
  const auto whole = RunRanks(Windows());
  HOTROW_ASSERT_OK(whole[0]);
  HOTROW_ASSERT_OK(whole[1]);
  EXPECT_EQ(EndWithWindows(*whole[0]), EndWithWindows(*whole[1]));
  ASSERT_EQ(whole[0]->windows.size(), 10u);
  for (size_t k = 1; k < 10; ++k) {
    EXPECT_EQ(whole[0]->windows[k].valid.samples, 48);
    // Rounding apart: sums are made in another order, and Adam takes whole steps of small ones.
    EXPECT_NEAR(whole[0]->windows[k].valid.logloss, one.windows[k].valid.logloss, 0.05);
  }
  MemEnv env;
  const TrainerOptions options = Saving(Windows(), &env, /*every=*/4);
  // In day 4, behind its second step, which is step 14.
  const auto died = RunRanks(options, kReadsBefore + 4 * 2 * kStepsOfDay + 2);
  EXPECT_FALSE(died[0].ok());
  EXPECT_FALSE(died[1].ok());
  const auto report = RunRanks(options);
  HOTROW_ASSERT_OK(report[0]);
  EXPECT_EQ(report[0]->resumed_step, 12);
  EXPECT_EQ(EndWithWindows(*report[0]), EndWithWindows(*whole[0]));
}

// Each rank looks for as long as it takes, while a thread answers the others: they wait for the
// verdict of all, or hear of it from who had it first.
TEST(TrainerWindowsTest, WhatOneRankFindsWhenItLooksForMoreIsSaidByAll) {
  TrainerOptions options = Windows();
  options.follow_seconds = 600;
  const std::vector<absl::Status> ended =
      RunOnThreads(2, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
        TrainerOptions mine = options;
        mine.communicator = &communicator;
        int64_t looks = 0;
        HOTROW_ASSIGN_OR_RETURN(const auto data, GrowingSource::Open([&](const SavedVocabulary*) {
                                  if (communicator.rank() == 1 && looks++ == 2) {
                                    return absl::StatusOr<std::unique_ptr<DataSource>>(
                                        absl::DataLossError("it is torn"));
                                  }
                                  return OpenDataSource(kFiveDays, 5);
                                }));
        return RunTraining(mine, *data, SmallModel(mine), {}).status();
      });
  for (const absl::Status& status : ended) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: it is torn"));
  }
}

TEST(TrainerWindowsTest, TheStateReadsBackAsItWasWritten) {
  TrainingState state;
  EXPECT_THAT(TrainingStateToJson(state), Not(HasSubstr("windows")));
  state.windows = {{.number = -3, .samples = 5, .train_logloss = 0.5},
                   {.number = 7,
                    .samples = 6,
                    .valid = {.samples = 6, .auc = 0.75},
                    .valid_tasks = {{.samples = 6, .auc = 0.25}},
                    .best_auc = 0.875}};
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainingState read,
                              TrainingStateFromJson(TrainingStateToJson(state)));
  ASSERT_EQ(read.windows.size(), 2u);
  EXPECT_EQ(read.windows[0].number, -3);
  EXPECT_EQ(read.windows[0].train_logloss, 0.5);
  EXPECT_EQ(read.windows[1].samples, 6);
  EXPECT_EQ(read.windows[1].valid.auc, 0.75);
  ASSERT_EQ(read.windows[1].valid_tasks.size(), 1u);
  EXPECT_EQ(read.windows[1].valid_tasks[0].auc, 0.25);
  EXPECT_EQ(read.windows[1].best_auc, 0.875);
}

}  // namespace
}  // namespace hotrow
