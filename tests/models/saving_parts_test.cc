// What saved models and checkpoints are made with: paths, names and directories.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/checkpoint_dir_impl.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/scoring_options.h"
#include "models/saving/store_paths_impl.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::IsOk;
using test::MemEnv;
using test::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(StorePathsTest, PathsAreJoinedAndTakenApart) {
  EXPECT_EQ(ParentDir("/a/b"), "/a");
  EXPECT_EQ(ParentDir("/a"), "/");
  EXPECT_EQ(ParentDir("a"), ".");
  EXPECT_EQ(WithoutEndingSlashes("/a//"), "/a");
  EXPECT_EQ(WithoutEndingSlashes("/"), "/");
  EXPECT_EQ(AbsolutePath("/a/./b/../c/"), "/a/c");
  EXPECT_EQ(JoinPath("/a/step", "../tables/"), "/a/tables");
  EXPECT_EQ(JoinPath("/a", "/b"), "/b");
}

TEST(StorePathsTest, RanksHaveDirectoriesOfTheirOwn) {
  EXPECT_EQ(RankDir("/t", 0, 1), "/t");
  EXPECT_EQ(RankDir("/t", 2, 4), "/t/rank-00002-of-00004");
  EXPECT_TRUE(IsRankDirName("rank-00002-of-00004"));
  for (const char* const name :
       {"rank-2-of-4", "rank-0000x-of-00004", "rank-00002-of-000041", ""}) {
    EXPECT_FALSE(IsRankDirName(name)) << name;
  }
}

TEST(SavedSnapshotsTest, FilesHaveTheNamesOfTheirSnapshots) {
  EXPECT_EQ(SnapshotFileName(0xabc), "0000000000000abc.snapshot");
  EXPECT_EQ(SnapshotOfFileName("0000000000000abc.snapshot"), 0xabcu);
  for (const char* const name : {"abc.snapshot", "0000000000000ABC.snapshot",
                                 "0000000000000abc.snapshot.tmp", ".snapshot"}) {
    EXPECT_EQ(SnapshotOfFileName(name), std::nullopt) << name;
  }
}

TEST(SavedSnapshotsTest, WhatARankSaysOfItsSnapshotIsUnderstood) {
  const SnapshotInfo info = {.identity = {.high = 3, .low = 5}, .table_rows = {7, 0, 9}};
  SavedModel::Part part = {.table_rows = {1, 2}};
  HOTROW_ASSERT_OK(TakeSnapshotInfo(SnapshotInfoText(info), &part));
  EXPECT_EQ(part.identity.ToHex(), info.identity.ToHex());
  EXPECT_THAT(part.table_rows, ElementsAre(7, 0, 9));
  const std::string identity = info.identity.ToHex();
  for (const std::string& text : {std::string(), std::string("3 7"), identity + " x",
                                  identity + " -1", identity + " 99999999999999999999"}) {
    EXPECT_THAT(TakeSnapshotInfo(text, &part),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(text)));
  }
}

TEST(CheckpointDirTest, NamesTellHowFarItIs) {
  EXPECT_EQ(StepOfName(CheckpointName(1000)), (StepName{1000, 0}));
  EXPECT_EQ(StepOfName(CheckpointName(1000, 12)), (StepName{1000, 12}));
  for (const char* const name :
       {"step-000000001000-", "step-000000001000-0", "step-000000001000-1x", "step-1000",
        "step-0000000010000", "step-00000000100x", "run", "step-000000001000.tmp",
        "step-000000001000.old"}) {
    EXPECT_EQ(StepOfName(name), std::nullopt) << name;
  }
  EXPECT_TRUE(IsLeftover("step-000000001000.tmp"));
  EXPECT_TRUE(IsLeftover("step-000000001000.old"));
  EXPECT_TRUE(IsLeftover("step-000000001000-1.tmp"));
  for (const char* const name : {"step-000000001000", "mine.old", "step-1.tmp", ".tmp"}) {
    EXPECT_FALSE(IsLeftover(name)) << name;
  }
}

TEST(CheckpointDirTest, IsThereFromItsCommitToItsRetirement) {
  MemEnv env;
  const std::string dir = "/run/ck/" + CheckpointName(3);
  const std::vector<float> parameters = {1, 2, 3};
  SavedModel model;
  const auto list = [&] {
    return ListCheckpoints(env, "/run/ck").value_or(std::vector<std::string>{"an error"});
  };
  EXPECT_THAT(list(), ElementsAre());
  for (int again = 0; again < 2; ++again) {  // what a try before has left is no obstacle
    HOTROW_ASSERT_OK(WriteUnfinished(env, dir, {.parameters = parameters}, &model));
  }
  EXPECT_EQ(model.dir, UnfinishedDir(dir));
  EXPECT_EQ(model.num_parameters, 3);
  EXPECT_THAT(list(), ElementsAre());
  HOTROW_ASSERT_OK(CommitUnfinished(env, dir, "{}"));
  EXPECT_THAT(list(), ElementsAre(CheckpointName(3)));
  for (int again = 0; again < 2; ++again) HOTROW_ASSERT_OK(RetireCheckpoint(env, dir));
  EXPECT_THAT(list(), ElementsAre());
  EXPECT_TRUE(env.Exists(RetiredDir(dir) + "/manifest.json").value_or(false));
  for (int again = 0; again < 2; ++again) HOTROW_ASSERT_OK(RemoveFlatDir(env, RetiredDir(dir)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> left, env.ListDir("/run/ck"));
  EXPECT_THAT(left, ElementsAre());
}

class PartialDirTest : public testing::Test {
 protected:
  absl::Status Put(const std::string& path) { return WriteFileAtomically(env_, path, "text"); }
  std::vector<std::string> In(const std::string& dir) {
    return env_.ListDir(dir).value_or(std::vector<std::string>{"no such directory"});
  }
  MemEnv env_;
};

TEST_F(PartialDirTest, IsThereWhenItIsCommitted) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto dir, PartialDir::Create(env_, "/run/out"));
  HOTROW_ASSERT_OK(Put(dir->path() + "/a"));
  EXPECT_FALSE(env_.Exists("/run/out").value_or(true));
  HOTROW_ASSERT_OK(dir->Commit());
  EXPECT_TRUE(dir->committed());
  env_.DropUnsyncedData();
  EXPECT_THAT(In("/run"), ElementsAre("out"));
  EXPECT_THAT(In("/run/out"), ElementsAre("a"));
  dir->Revoke();
  EXPECT_FALSE(env_.Exists("/run/out").value_or(true));
}

TEST_F(PartialDirTest, WithoutCommitNothingIsLeft) {
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto dir, PartialDir::Create(env_, "/run/out"));
    HOTROW_ASSERT_OK(env_.CreateDirs(dir->path() + "/below"));
    HOTROW_ASSERT_OK(Put(dir->path() + "/below/a"));
    dir->Revoke();  // of what was not committed: nothing
    EXPECT_TRUE(env_.Exists(dir->path() + "/below/a").value_or(false));
  }
  EXPECT_THAT(In("/run"), ElementsAre());
}

TEST_F(PartialDirTest, WhatAKillHasLeftIsNoPartOfTheNextOne) {
  HOTROW_ASSERT_OK(env_.CreateDirs("/run/out.hotrow-partial/below"));
  HOTROW_ASSERT_OK(Put("/run/out.hotrow-partial/below/old"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto dir, PartialDir::Create(env_, "/run/out"));
  HOTROW_ASSERT_OK(Put(dir->path() + "/new"));
  HOTROW_ASSERT_OK(dir->Commit());
  EXPECT_THAT(In("/run/out"), ElementsAre("new"));
}

// On the real file system: MemEnv locks nothing.
TEST(PartialDirLockTest, ASecondOneOfItsPathIsRefused) {
  const std::string path = test::TempDir() + "/out";
  Env& env = PosixEnv();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto dir, PartialDir::Create(env, path));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, dir->path() + "/a", "text"));
  EXPECT_THAT(PartialDir::Create(env, path).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(dir->path())));
  HOTROW_ASSERT_OK(dir->Commit());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> in_it, env.ListDir(path));
  EXPECT_THAT(in_it, ElementsAre("a"));
}

// The real file system, with a hook before each call that a commit makes.
class HookedEnv : public Env {
 public:
  std::function<void()> hook = [] {};

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    return real_.Open(path, mode);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    return real_.OpenDirect(path, mode);
  }
  absl::Status CreateDirs(const std::string& path) override { return real_.CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override {
    return real_.ListDir(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override {
    hook();
    return real_.Exists(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    hook();
    return real_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    hook();
    return real_.Remove(path);
  }
  absl::Status RemoveDir(const std::string& path) override { return real_.RemoveDir(path); }
  absl::Status SyncDir(const std::string& path) override {
    hook();
    return real_.SyncDir(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return real_.FreeBytes(path);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> LockFile(const std::string& path,
                                                     LockMode mode) override {
    return real_.LockFile(path, mode);
  }

 private:
  Env& real_ = PosixEnv();
};

// It would remove what the first one has, which would then be there without it.
TEST(PartialDirLockTest, ASecondOneIsRefusedUntilTheFirstIsThere) {
  const std::string path = test::TempDir() + "/out";
  HookedEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto dir, PartialDir::Create(env, path));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, dir->path() + "/a", "text"));
  int refused = 0;
  env.hook = [&] {
    if (!PosixEnv().Exists(dir->path()).value_or(false)) return;
    EXPECT_FALSE(PartialDir::Create(PosixEnv(), path).ok());
    ++refused;
  };
  HOTROW_ASSERT_OK(dir->Commit());
  EXPECT_GE(refused, 2);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> in_it, env.ListDir(path));
  EXPECT_THAT(in_it, ElementsAre("a"));
}

TEST_F(PartialDirTest, ATargetIsFreeWhenNothingIsThere) {
  EXPECT_THAT(CheckIsFree(env_, "/run/out"), IsOk());
  HOTROW_ASSERT_OK(env_.CreateDirs("/run/out"));
  EXPECT_THAT(CheckIsFree(env_, "/run/out"), IsOk());
  HOTROW_ASSERT_OK(Put("/run/out/a"));
  EXPECT_THAT(CheckIsFree(env_, "/run/out"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not empty")));
  EXPECT_THAT(CheckIsFree(env_, "/run/out/a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no directory")));
}

// A checkpoint whose writer keeps its own bytes beside the tables.
SavedModel WithBlobs(SavedModel::BlobBytes blobs) {
  SavedModel model;
  model.model = "custom";
  model.dense_optimizer = "sgd";
  model.step = 5;
  model.features = {{"item", "items"}};
  model.tables = {{.name = "items", .dim = 4, .optimizer = "sgd"}};
  model.dir = "/run";
  model.parts = {{.store = "memory", .tables_dir = SavedTablesDir("/run"), .snapshot = 7}};
  model.blob_bytes = std::make_shared<const SavedModel::BlobBytes>(std::move(blobs));
  return model;
}

TEST(BlobsTest, TheyComeBackByTheirNames) {
  MemEnv env;
  const std::string binary("\0\xff/", 3);
  HOTROW_ASSERT_OK(
      WriteCheckpoint(env, "/run", WithBlobs({{"model", binary}, {"a \"name\"", ""}}), {})
          .status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, "/run"));
  ASSERT_EQ(saved.blobs.size(), 2u);
  EXPECT_EQ(saved.blobs[0].name, "model");
  EXPECT_EQ(saved.blobs[1].name, "a \"name\"");
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string model, ReadSavedBlob(env, saved, saved.blobs[0]));
  EXPECT_EQ(model, binary);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string empty, ReadSavedBlob(env, saved, saved.blobs[1]));
  EXPECT_EQ(empty, "");
}

TEST(BlobsTest, ManifestsWithoutThemAreAsEver) {
  MemEnv env;
  HOTROW_ASSERT_OK(WriteCheckpoint(env, "/run", WithBlobs({}), {}).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, "/run"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string manifest,
                              ReadFileToString(env, saved.dir + "/manifest.json"));
  EXPECT_THAT(manifest, Not(HasSubstr("blobs")));
}

TEST(BlobsTest, DamageIsNamed) {
  MemEnv env;
  HOTROW_ASSERT_OK(WriteCheckpoint(env, "/run", WithBlobs({{"model", "bytes"}}), {}).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, "/run"));
  const std::string path = saved.dir + "/blob-00000";
  for (const std::string text : {"bytez", "byte", ""}) {
    HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
    EXPECT_THAT(ReadSavedBlob(env, saved, saved.blobs[0]).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                                VerifyCheckpoint(env, "/run", /*store_bytes=*/0));
    EXPECT_THAT(report.damage, Contains(HasSubstr(path))) << text;
  }
  HOTROW_ASSERT_OK(env.Remove(path));
  EXPECT_THAT(ReadSavedBlob(env, saved, saved.blobs[0]).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no such file")));
}

TEST(BlobsTest, NamesAreDistinctTexts) {
  EXPECT_THAT(CheckBlobs({{"a", ""}, {"b", ""}}), IsOk());
  EXPECT_THAT(CheckBlobs({{"a", ""}, {"a", ""}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\" is there twice")));
  EXPECT_THAT(CheckBlobs({{"", ""}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(CheckBlobs({{"\xff", ""}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
}

TEST(ScoringOptionsTest, ManifestsSetThemAmongOtherSettings) {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  ScoringOptions options;
  HOTROW_ASSERT_OK(ApplyScoringSettings(Settings{{"batch_size", "8"},
                                                 {"optimizer", "adam"},
                                                 {"table_optimizer.beta1", "0.5"},
                                                 {"frozen_tables", "users"},
                                                 {"serve_rows", "int8"},
                                                 {"precision", "bf16"}},
                                        "/model", &options));
  EXPECT_EQ(options.table_optimizer.kind, SparseOptimizerKind::kAdam);
  EXPECT_EQ(options.table_optimizer.beta1, 0.5f);
  EXPECT_EQ(options.frozen_tables, "users");
  EXPECT_EQ(options.serve_rows, ServingRows::kInt8);
  EXPECT_EQ(options.precision, DensePrecision::kBf16);
  EXPECT_THAT(ApplyScoringSettings(Settings{{"serve_rows", "int2"}}, "/model", &options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/model: its setting serve_rows is int2, which this program does "
                                 "not know")));
}

}  // namespace
}  // namespace hotrow
