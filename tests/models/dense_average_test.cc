// The running average of the dense parameters: dense_optimizer.average_decay.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_model.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::RunSmall;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDir[] = "/run/checkpoints";

// Nothing that is trained depends on a validation.
TrainerOptions AveragedRun(Env* env) {
  TrainerOptions options = test::SmallRun();
  options.schedule.lr_plateau_factor = 1;
  options.schedule.lr_plateau_patience = 0;
  options.dense_optimizer.average_decay = 0.9f;
  options.checkpoint_dir = kDir;
  options.checkpoint_every = 4;
  options.checkpoint_in_background = false;
  options.resume = true;
  options.env = env;
  return options;
}

TEST(DenseAverageTest, IsEvaluatedAndChangesNothingThatIsTrained) {
  MemEnv env, plain_env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport averaged, RunSmall(AveragedRun(&env)));
  TrainerOptions plain = AveragedRun(&plain_env);
  plain.dense_optimizer.average_decay = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(plain));
  EXPECT_EQ(averaged.digest.hash, report.digest.hash);
  EXPECT_EQ(averaged.train_logloss, report.train_logloss);
  EXPECT_NE(averaged.test.logloss, report.test.logloss);
  EXPECT_NE(averaged.dense_hash, report.dense_hash);

  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kDir));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel plain_saved, ReadCheckpoint(plain_env, kDir));
  EXPECT_TRUE(saved.dense_average);
  EXPECT_FALSE(plain_saved.dense_average);
  EXPECT_THAT(SavedModelManifest(saved), HasSubstr("\"dense_average\""));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors dense, ReadSavedDense(env, saved));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors plain_dense,
                              ReadSavedDense(plain_env, plain_saved));
  EXPECT_EQ(dense.parameters, plain_dense.parameters);
  EXPECT_EQ(dense.momentum2, plain_dense.momentum2);
  EXPECT_NE(dense.average, dense.parameters);
  EXPECT_TRUE(plain_dense.average.empty());
}

// Also where the run dies while it validates, with the average in the place of the parameters.
TEST(DenseAverageTest, ARunThatDiesGoesOnWithTheSameBits) {
  MemEnv whole_env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, RunSmall(AveragedRun(&whole_env)));
  for (const Split split : {Split::kTrain, Split::kValid}) {
    for (const int64_t every : {1, 4}) {
      SCOPED_TRACE(absl::StrCat("split ", static_cast<int>(split), ", every ", every));
      MemEnv env;
      TrainerOptions options = AveragedRun(&env);
      options.checkpoint_every = every;
      for (const int deaths : {2, 1}) {
        int left = 5 * deaths;
        const absl::Status status =
            RunSmall(options, [&](Split now, int64_t, int64_t) {
              return now == split && left-- == 0 ? absl::AbortedError("killed") : absl::OkStatus();
            }).status();
        ASSERT_THAT(status, StatusIs(absl::StatusCode::kAborted, "killed"));
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunSmall(options));
      EXPECT_GT(report.resumed_step, 0);
      EXPECT_EQ(test::EndOf(report), test::EndOf(whole));
    }
  }
}

TEST(DenseAverageTest, TravelsWithExportsAndBeginsWithTheParametersElsewhere) {
  MemEnv env;
  TrainerOptions options = AveragedRun(&env);
  HOTROW_ASSERT_OK(RunSmall(options).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kDir));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors dense, ReadSavedDense(env, saved));
  HOTROW_ASSERT_OK(
      ExportPortable({.checkpoint = kDir, .dir = "/run/export", .env = &env}).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableModel portable,
                              ReadPortableManifest(env, "/run/export", /*edited=*/false));
  EXPECT_TRUE(portable.model.dense_average);
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors exported,
                              ReadPortableDense(env, "/run/export", portable));
  EXPECT_EQ(exported.average, dense.average);

  // With another decay the run is refused; a new run takes the average along.
  options.dense_optimizer.average_decay = 0.99f;
  EXPECT_THAT(RunSmall(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          AllOf(HasSubstr("ema_decay"), HasSubstr("0.99"))));
  // Here one step that leaves the parameters where they are.
  TrainerOptions next = options;
  next.checkpoint_dir = "/run/next";
  next.init_from = kDir;
  next.epochs = 1;
  next.limit_train_batches = 1;
  next.dense_optimizer.learning_rate = 0;
  HOTROW_ASSERT_OK(RunSmall(next).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel taken, ReadCheckpoint(env, "/run/next"));
  ASSERT_EQ(taken.step, saved.step + 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors after, ReadSavedDense(env, taken));
  const double decay = (1.0 + taken.step) / (10.0 + taken.step);
  size_t unmoved = 0;
  for (size_t i = 0; i < after.average.size(); ++i) {
    if (after.parameters[i] != dense.parameters[i]) {  // a statistic of batch norm
      ASSERT_EQ(after.average[i], after.parameters[i]);
      continue;
    }
    ++unmoved;
    const double was = dense.average[i];
    ASSERT_NEAR(after.average[i], was + (1 - decay) * (dense.parameters[i] - was), 1e-6) << i;
  }
  EXPECT_GT(unmoved, after.average.size() / 2);
}

}  // namespace
}  // namespace hotrow
