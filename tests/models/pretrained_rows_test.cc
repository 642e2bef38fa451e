#include "models/train/pretrained_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "comm/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/npy.h"
#include "models/saving/checkpoint.h"
#include "models/saving/export_table.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::SmallRun;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PretrainedRowsTest, TablesAndPathsAreReadFromAFlag) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto rows, ParsePretrainedRows("a:x/y,b:C:z"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].table, "a");
  EXPECT_EQ(rows[0].path, "x/y");
  EXPECT_EQ(rows[1].path, "C:z");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto none, ParsePretrainedRows(""));
  EXPECT_TRUE(none.empty());
  for (const char* const bad : {"a", ":x", "a:", "a:x,", "a:x,b"}) {
    EXPECT_THAT(ParsePretrainedRows(bad).status(), StatusIs(kInvalid, HasSubstr("TABLE:PATH")))
        << bad;
  }
  EXPECT_THAT(ParsePretrainedRows("a:x,a:y").status(),
              StatusIs(kInvalid, HasSubstr("\"a\" comes twice")));
}

// A table of two columns in memory.
absl::StatusOr<std::unique_ptr<EmbeddingCollection>> Tables(Communicator* communicator = nullptr) {
  EmbeddingCollectionOptions options;
  options.tables = {{.name = "t", .embedding_dim = 2, .feature_names = {"f"}}};
  options.max_batch_size = 8;
  options.store = MemoryStorage{.memory_bytes = 1 << 20};
  options.ranks.communicator = communicator;
  return EmbeddingCollection::Create(options, {});
}

void PutFile(MemEnv& env, const std::string& path, const std::string& bytes) {
  HOTROW_ASSERT_OK(env.CreateDirs(path.substr(0, std::max<size_t>(path.rfind('/'), 1))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open(path, OpenMode::kCreate));
  HOTROW_ASSERT_OK(file->WriteAt(0, std::as_bytes(std::span(bytes))));
}

template <typename T>
std::string Npy(const char* dtype, const std::vector<int64_t>& shape, const std::vector<T>& data) {
  return NpyHeaderText(dtype, shape) +
         std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
}

std::vector<float> RowsOf(EmbeddingCollection& tables, const std::vector<uint64_t>& keys) {
  std::vector<float> rows(keys.size() * 2);
  HOTROW_EXPECT_OK(tables.ReadRows("t", keys, {rows.data(), std::ssize(keys), 2}));
  return rows;
}

TEST(PretrainedRowsTest, RowsComeFromCsvAndFromArrays) {
  MemEnv env;
  PutFile(env, "/rows.csv", "key,w0,w1\n7,1.5,-2\r\n18446744073709551615,0,1e-3");
  PutFile(env, "/plain.csv", "7,3,4\n");
  PutFile(env, "/dir/keys.npy", Npy<int64_t>("<i8", {2}, {9, -1}));
  PutFile(env, "/dir/weights.npy", Npy<float>("<f4", {2, 2}, {5, 6, 7, 8}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Tables());
  const auto write = [&](const char* path) {
    return WritePretrainedRows(env, {"t", path}, 2, 0, 1, tables.get());
  };
  EXPECT_EQ(write("/rows.csv").value(), 2);
  EXPECT_THAT(RowsOf(*tables, {7, ~uint64_t{0}}), ElementsAre(1.5f, -2, 0, 1e-3f));
  EXPECT_EQ(write("/plain.csv").value(), 1);
  EXPECT_THAT(RowsOf(*tables, {7}), ElementsAre(3, 4));
  EXPECT_EQ(write("/dir").value(), 2);
  EXPECT_THAT(RowsOf(*tables, {9, ~uint64_t{0}, 7}), ElementsAre(5, 6, 7, 8, 3, 4));
}

TEST(PretrainedRowsTest, WhatIsWrongIsNamedWithItsPlace) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Tables());
  const auto error = [&](const char* path) {
    return WritePretrainedRows(env, {"t", path}, 2, 0, 1, tables.get()).status();
  };
  EXPECT_FALSE(error("/none").ok());
  PutFile(env, "/a", "1,2,3\n2,3\n");
  EXPECT_THAT(error("/a"), StatusIs(kInvalid, AllOf(HasSubstr("/a:2"), HasSubstr("has 2 fields"))));
  PutFile(env, "/b", "key,a,b\n-1,2,3\n");
  EXPECT_THAT(error("/b"), StatusIs(kInvalid, AllOf(HasSubstr("/b:2"), HasSubstr("\"-1\""))));
  PutFile(env, "/c", "1,2,x\n");
  EXPECT_THAT(error("/c"), StatusIs(kInvalid, AllOf(HasSubstr("/c:1"), HasSubstr("weight 1"))));
  PutFile(env, "/d", "1,2,nan\n");
  EXPECT_THAT(error("/d"), StatusIs(kInvalid, AllOf(HasSubstr("/d: "), HasSubstr("key 1"))));
  PutFile(env, "/e/keys.npy", Npy<float>("<f4", {2}, {9, 8}));
  PutFile(env, "/e/weights.npy", Npy<float>("<f4", {2, 2}, {5, 6, 7, 8}));
  EXPECT_THAT(error("/e"), StatusIs(kInvalid, AllOf(HasSubstr("/e/keys.npy"), HasSubstr("<u8"))));
  PutFile(env, "/f/keys.npy", Npy<uint64_t>("<u8", {2}, {9, 8}));
  PutFile(env, "/f/weights.npy", Npy<float>("<f4", {2, 3}, {5, 6, 7, 8, 9, 0}));
  EXPECT_THAT(error("/f"),
              StatusIs(kInvalid, AllOf(HasSubstr("/f/weights.npy"), HasSubstr("(2, 2)"))));
  PutFile(env, "/g/keys.npy", Npy<uint64_t>("<u8", {2}, {9, 8}));
  PutFile(env, "/g/weights.npy", Npy<float>("<f4", {2, 2}, {5, 6, 7}));
  EXPECT_THAT(error("/g"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/g/weights.npy")));
}

TEST(PretrainedRowsTest, RanksGiveEachRowOnce) {
  MemEnv env;
  std::string csv;
  for (int key = 0; key < 101; ++key) absl::StrAppend(&csv, key, ",", key, ",", -key, "\n");
  PutFile(env, "/rows", csv);
  for (const absl::Status& status :
       RunOnThreads(3, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
         HOTROW_ASSIGN_OR_RETURN(const auto tables, Tables(&communicator));
         HOTROW_ASSIGN_OR_RETURN(
             const int64_t rows,
             WritePretrainedRows(env, {"t", "/rows"}, 2, communicator.rank(), 3, tables.get()));
         EXPECT_EQ(rows, 101);
         EXPECT_THAT(RowsOf(*tables, {100, 1}), ElementsAre(100, -100, 1, -1));
         HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables->Digest());
         EXPECT_EQ(digest.tables[0].rows, 101);
         return absl::OkStatus();
       })) {
    HOTROW_EXPECT_OK(status);
  }
}

// What a run exported, another starts from; a resumed run does not read it again.
TEST(PretrainedRowsTest, ARunStartsFromThem) {
  const std::string dir = test::TempDir();
  TrainerOptions first = SmallRun();
  first.save_dir = dir + "/model";
  HOTROW_ASSERT_OK(test::RunSmall(first).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(PosixEnv(), first.save_dir));
  const std::string table = saved.tables[0].name;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const ExportTableSummary exported,
      ExportTable({.model = first.save_dir, .table = table, .dir = dir + "/rows"}));
  ASSERT_GT(exported.rows, 0);

  TrainerOptions options = SmallRun();
  options.init_rows = table + ":" + dir + "/rows";
  options.frozen_tables = table;
  options.checkpoint_dir = dir + "/checkpoints";
  options.checkpoint_every = 10;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, test::RunSmall(options));
  EXPECT_EQ(report.digest.tables[0].rows, exported.rows);
  options.resume = true;
  options.epochs += 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport resumed, test::RunSmall(options));
  EXPECT_EQ(resumed.digest.tables[0].hash, report.digest.tables[0].hash);

  options = SmallRun();
  options.init_rows = "nobody:" + dir;
  EXPECT_THAT(test::RunSmall(options).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("--init_rows"), HasSubstr("\"nobody\""))));
}

}  // namespace
}  // namespace hotrow
