// Runs hotrow as an operator does: arguments in, exit status and output out.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gtest/gtest.h"
#include "store/host/host_store.h"
#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// 300 rows of 32 bytes in table 4, 20 of 400 bytes in table 11, and a snapshot.
std::string MakeStore() {
  const std::string path = test::TempDir() + "/store";
  SsdStoreOptions options;
  options.path = path;
  options.tables = {{4, 32}, {11, 400}};
  options.memory_budget_bytes = int64_t{16} << 20;
  options.disk_budget_bytes = int64_t{2} << 20;
  options.chunk_bytes = 16 << 10;
  options.segment_bytes = 64 << 10;
  auto store = SsdStore::Open(options);
  HOTROW_EXPECT_OK(store);
  if (!store.ok()) return path;
  const std::vector<std::byte> row(400, std::byte{7});
  std::vector<RowKey> keys;
  for (uint64_t key = 0; key < 300; ++key) keys.push_back({key, 4});
  for (uint64_t key = 0; key < 20; ++key) keys.push_back({key, 11});
  const std::vector<const std::byte*> rows(keys.size(), row.data());
  HOTROW_EXPECT_OK((*store)->InsertOrAssign(keys, rows));
  HOTROW_EXPECT_OK((*store)->PrepareSnapshot(77));
  HOTROW_EXPECT_OK((*store)->CommitSnapshot(77));
  HOTROW_EXPECT_OK((*store)->Close());
  return path;
}

void FlipByte(const std::string& path, int64_t offset) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                              PosixEnv().Open(path, OpenMode::kReadWrite));
  std::byte byte;
  HOTROW_ASSERT_OK(ReadFull(*file, offset, std::span(&byte, 1)));
  byte ^= std::byte{0x20};
  HOTROW_ASSERT_OK(WriteFull(*file, offset, std::span(&byte, 1)));
}

// The one file of the store that has records.
std::string SegmentOf(const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = PosixEnv().ListDir(path);
  HOTROW_EXPECT_OK(names);
  for (const std::string& name : *names) {
    const std::string file = absl::StrCat(path, "/", name);
    const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), file);
    HOTROW_EXPECT_OK(text);
    if (text->substr(0, 8) == "HOTROWSG") return file;
  }
  ADD_FAILURE() << "no segment has a header";
  return path;
}

bool HasRocksDb() { return !absl::IsUnimplemented(RocksStoreOptions().Validate()); }

TEST(HotrowCliTest, HelpNamesEveryCommand) {
  for (const char* const flag : {"--help", "-h", "help"}) {
    const ProgramResult result = RunHotrow({flag});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, AllOf(HasSubstr("Usage: hotrow COMMAND"), HasSubstr("inspect PATH"),
                                  HasSubstr("verify PATH"), HasSubstr("Exit status")));
  }
  for (const std::string command : {"inspect", "verify"}) {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{command, "--help"},
                                               {command, "DIR", "--help"},
                                               {command, "--json", "-h"},
                                               {"help", command}}) {
      const ProgramResult result = RunHotrow(arguments);
      EXPECT_EQ(result.exit_code, 0);
      EXPECT_EQ(result.err, "");
      EXPECT_THAT(result.out, AllOf(HasSubstr(absl::StrCat("Usage: hotrow ", command, " PATH")),
                                    HasSubstr("--json")));
    }
  }
}

TEST(HotrowCliTest, TellsItsVersion) {
  const ProgramResult result = RunHotrow({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              testing::MatchesRegex("hotrow [0-9]+\\.[0-9]+\\.[0-9]+(, commit [0-9a-f]{12})?\n"));
}

TEST(HotrowCliTest, WrongUsageIsOneLineAndStatusTwo) {
  ExpectRefused({}, HasSubstr("export, import, inspect"));
  ExpectRefused({"help", "inspekt"}, HasSubstr("\"inspekt\""));
  ExpectRefused({"inspekt"}, AllOf(HasSubstr("\"inspekt\""), HasSubstr("export, import, inspect")));
  for (const std::string command : {"inspect", "verify"}) {
    ExpectRefused({command}, AllOf(HasSubstr("PATH is missing"),
                                   HasSubstr(absl::StrCat("hotrow ", command, " PATH"))));
    ExpectRefused({command, "--json"}, HasSubstr("PATH is missing"));
    ExpectRefused({command, "a", "b"}, HasSubstr("unexpected argument \"b\""));
    ExpectRefused({command, "a", "--jsn"}, HasSubstr("did you mean --json"));
    ExpectRefused({command, "--json=5", "a"}, HasSubstr("--json=5: takes true or false"));
  }
}

TEST(HotrowCliTest, TrainIsTheProgramOfTheModel) {
  EXPECT_THAT(RunHotrow({"train", "--help"}).out, HasSubstr("Models: bst, dcn"));
  const ProgramResult help = RunHotrow({"train", "dlrm", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("Usage: dlrm"), HasSubstr("--interaction")));
  // A line for each model, its name first.
  EXPECT_THAT(RunHotrow({"train", "--list"}).out,
              AllOf(StartsWith("bst        Behavior"), HasSubstr("\ndcn        Deep & Cross"),
                    HasSubstr("\nwide_deep  Wide & Deep"), HasSubstr("\nxdeepfm    xDeepFM")));
  EXPECT_THAT(RunHotrow({"train", "dlrm", "--help=tiers"}).out,
              StartsWith("Tiers\n  --store=KIND"));
  EXPECT_THAT(RunHotrow({"serve", "--help=batch"}).out, StartsWith("Batches\n  --batch"));
  ExpectRefused({"train"}, HasSubstr("which model? There are: bst, dcn"));
  ExpectRefused({"train", "resnet"}, HasSubstr("no model \"resnet\"; there are: bst"));
  test::ExpectOneLineError(RunHotrow({"train", "dcn", "--dnc_version=1"}), 2,
                           AllOf(StartsWith("dcn: "), HasSubstr("did you mean --dcn_version")));
}

TEST(HotrowCliTest, OtherDirectoriesAreNamedForWhatTheyAre) {
  const std::string dir = test::TempDir();
  const auto touch = [&](const std::string& path) {
    HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path, "x"));
  };
  for (const char* const name : {"empty", "rocks", "model", "other", "lost"}) {
    HOTROW_ASSERT_OK(PosixEnv().CreateDirs(absl::StrCat(dir, "/", name)));
  }
  touch(dir + "/file");
  touch(dir + "/rocks/LIVE");
  touch(dir + "/rocks/TABLES");
  touch(dir + "/model/manifest.json");
  touch(dir + "/other/notes.txt");
  touch(dir + "/lost/segment-000000");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<HostStore> store,
                                HostStore::Open({.tables = {{0, 16}},
                                                 .budget_bytes = int64_t{16} << 20,
                                                 .snapshot_dir = dir + "/host"}));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  }
  for (const char* const command : {"inspect", "verify"}) {
    ExpectRefused(
        {command, dir + "/missing"},
        AllOf(HasSubstr(dir + "/missing: is no file or directory"),
              HasSubstr("give a checkpoint, an export, or the directory of an SSD store")));
    ExpectRefused({command, dir + "/file"}, HasSubstr("is a file"));
    ExpectRefused({command, dir + "/empty"}, HasSubstr("is an empty directory"));
    if (HasRocksDb()) {
      const ProgramResult rocks = RunHotrow({command, dir + "/rocks"});
      EXPECT_EQ(rocks.exit_code, 1);
      EXPECT_THAT(rocks.err, AllOf(HasSubstr(dir + "/rocks/snapshots"), HasSubstr("is missing")));
    } else {
      ExpectRefused({command, dir + "/rocks"}, HasSubstr("this build has no RocksDB"));
    }
    const ProgramResult model = RunHotrow({command, dir + "/model"});
    EXPECT_EQ(model.exit_code, 1);
    EXPECT_THAT(model.err, AllOf(HasSubstr(dir + "/model/manifest.json"), HasSubstr("damaged")));
    ExpectRefused({command, dir + "/host"}, HasSubstr("is the snapshots of a memory store"));
    ExpectRefused({command, dir + "/other"}, HasSubstr("is a directory of something else"));
    ExpectRefused({command, dir + "/lost"}, HasSubstr("the file MANIFEST is missing"));
  }
}

TEST(HotrowCliTest, InspectTellsWhatAStoreHolds) {
  const std::string path = MakeStore();
  const ProgramResult text = RunHotrow({"inspect", path});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out, AllOf(HasSubstr("an SSD store, format version 3"), HasSubstr("320, "),
                              HasSubstr("64.0 KiB"), HasSubstr("77"), HasSubstr("committed")));
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"inspect", path, "--json"}, {"inspect", "--json", path}}) {
    const ProgramResult result = RunHotrow(arguments);
    EXPECT_EQ(result.exit_code, 0);
    const auto json = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(json["kind"], "ssd_store");
    EXPECT_EQ(json["path"], path);
    EXPECT_EQ(json["rows"], 320);
    EXPECT_EQ(json["records"], 320);
    EXPECT_EQ(json["live_bytes"], 300 * 32 + 20 * 400);
    EXPECT_EQ(json["segment_bytes"], 64 << 10);
    EXPECT_EQ(json["has_index_image"], true);
    ASSERT_EQ(json["tables"].size(), 2u);
    EXPECT_EQ(json["tables"][0]["table"], 4);
    EXPECT_EQ(json["tables"][0]["rows"], 300);
    EXPECT_EQ(json["tables"][1]["table"], 11);
    EXPECT_EQ(json["tables"][1]["row_bytes"], 400);
    EXPECT_EQ(json["tables"][1]["bytes"], 20 * 400);
    ASSERT_EQ(json["snapshots"].size(), 1u);
    EXPECT_EQ(json["snapshots"][0]["id"], 77);
    EXPECT_EQ(json["snapshots"][0]["rows"], 320);
    EXPECT_EQ(json["snapshots"][0]["identity"].get<std::string>().size(), 32u);
    EXPECT_EQ(json["damage_count"], 0);
  }
}

TEST(HotrowCliTest, VerifyNamesTheBadRecordAndSetsTheStatus) {
  const std::string path = MakeStore();
  const ProgramResult good = RunHotrow({"verify", path});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  EXPECT_EQ(good.err, "");
  EXPECT_THAT(good.out, AllOf(HasSubstr("320 records"), HasSubstr("1 snapshots: good")));
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 1) << good.out;

  const std::string segment = SegmentOf(path);
  FlipByte(segment, 4096 + 56 + 30);  // the second row: 24 + 32 bytes each
  const ProgramResult bad = RunHotrow({"verify", path});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_EQ(bad.err, "");
  EXPECT_THAT(bad.out, AllOf(HasSubstr(absl::StrCat(segment, ": offset ", 4096 + 56,
                                                    ": the row of key 1 of table 4 is damaged")),
                             HasSubstr("1 damaged")));
  EXPECT_EQ(std::count(bad.out.begin(), bad.out.end(), '\n'), 2) << bad.out;
  const auto json = nlohmann::json::parse(RunHotrow({"verify", path, "--json"}).out, nullptr,
                                          /*allow_exceptions=*/false);
  EXPECT_EQ(json["damage_count"], 1);
  EXPECT_EQ(json["damage"][0]["file"], segment);
  EXPECT_EQ(json["damage"][0]["offset"], 4096 + 56);

  // No copy of the manifest is whole: that is damage, not wrong usage.
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path + "/MANIFEST", "something else"));
  const ProgramResult lost = RunHotrow({"verify", path});
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_EQ(lost.out, "");
  EXPECT_THAT(lost.err, HasSubstr(path + "/MANIFEST: offset 0"));
}

TEST(HotrowCliTest, PackedDataAreInspectedAndAllDamageIsListed) {
  const std::string path = test::TempDir() + "/packed";
  const ProgramResult packed =
      RunHotrow({"pack", "--block_samples=50",
                 "synthetic:tables=2,rows=500,samples=400,valid=50,test=50,dense=2", path});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  const ProgramResult shown = RunHotrow({"inspect", path});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("400 train"), HasSubstr("  labels: label\n"),
                               HasSubstr("  feature cat_1: table t_cat_1, keys below 500")));
  EXPECT_THAT(RunHotrow({"verify", path}).out, HasSubstr(" a sample: good\n"));
  FlipByte(path + "/train.pack", 40);
  FlipByte(path + "/valid.pack", 40);
  const ProgramResult bad = RunHotrow({"verify", path});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.out, AllOf(HasSubstr("train.pack: block 0"), HasSubstr("valid.pack: block 0"),
                             HasSubstr(": 2 damaged\n")));
  const auto json = nlohmann::json::parse(RunHotrow({"verify", path, "--json"}).out, nullptr,
                                          /*allow_exceptions=*/false);
  EXPECT_EQ(json["damage_count"], 2);
  EXPECT_EQ(json["feature_list"][1]["name"], "cat_1");
}

TEST(HotrowCliTest, MemoryForPackingThatDoesNotDoIsNamed) {
  const std::string dir = test::TempDir();
  const std::string path = dir + "/packed";
  const std::string data = "synthetic:tables=2,rows=500,samples=4000,valid=50,test=50,dense=2";
  ExpectRefused({"pack", "--memory_bytes=1MiB", data, path},
                AllOf(HasSubstr("--memory_bytes=1048576:"), HasSubstr("at least 16777216 bytes")));
  ExpectRefused({"pack", "--memory_bytes=32MiB", "--reader_threads=4", data, path},
                AllOf(HasSubstr("--memory_bytes="), HasSubstr("fewer --reader_threads")));
  const std::string wide = "synthetic:tables=400,rows=500,samples=20000,valid=50,test=50";
  const ProgramResult refused =
      RunHotrow({"pack", "--memory_bytes=16MiB", "--block_samples=20000", wide, path});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("give more --memory_bytes, or fewer --block_samples\n"));

  std::string text = "y,site\n";
  for (int i = 0; i < 250'000; ++i) absl::StrAppend(&text, "1,", i, "\n");
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/log.csv", text));
  HOTROW_ASSERT_OK(
      WriteFileAtomically(PosixEnv(), dir + "/schema.json",
                          R"({"name": "sites", "files": {"train": ["log.csv"]}, "columns": [
          {"name": "y", "role": "label"},
          {"name": "site", "role": "categorical", "key": "integer", "min_count": 2}]})"));
  ExpectRefused(
      {"pack", "--memory_bytes=16MiB", "table:" + dir + "/schema.json", path},
      AllOf(HasSubstr("for \"min_count\" takes more than 4 MiB"), HasSubstr("--memory_bytes")));
  EXPECT_EQ(RunHotrow({"pack", "--memory_bytes=16MiB", data, path}).exit_code, 0);
}

TEST(HotrowCliTest, ARocksDbStoreIsInspectedAndVerified) {
  if (!HasRocksDb()) GTEST_SKIP() << "this build has no RocksDB";
  const std::string path = test::TempDir() + "/store";
  SnapshotInfo info;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<RowStore> store,
        OpenRocksStore(
            {.path = path, .tables = {{4, 32}}, .memory_budget_bytes = kRocksMemoryMin}));
    const std::vector<std::byte> row(32, std::byte{7});
    std::vector<RowKey> keys;
    for (uint64_t key = 0; key < 1500; ++key) keys.push_back({key, 4});
    const std::vector<const std::byte*> rows(keys.size(), row.data());
    HOTROW_ASSERT_OK(store->InsertOrAssign(keys, rows));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(77));
    HOTROW_ASSERT_OK(store->CommitSnapshot(77));
    HOTROW_ASSERT_OK_AND_ASSIGN(info, store->DescribeSnapshot(77));
  }
  const ProgramResult text = RunHotrow({"inspect", path});
  EXPECT_EQ(text.exit_code, 0) << text.out;
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out, AllOf(HasSubstr("a RocksDB store"), HasSubstr("1,500"), HasSubstr("77"),
                              HasSubstr("committed"), HasSubstr(info.identity.ToHex())));
  const auto json = nlohmann::json::parse(RunHotrow({"inspect", path, "--json"}).out, nullptr,
                                          /*allow_exceptions=*/false);
  EXPECT_EQ(json["kind"], "rocksdb_store");
  EXPECT_EQ(json["rows"], 1500);
  EXPECT_EQ(json["tables"][0]["bytes"], 1500 * 32);
  ASSERT_EQ(json["snapshots"].size(), 1u);
  EXPECT_EQ(json["snapshots"][0]["identity"], info.identity.ToHex());
  EXPECT_EQ(json["snapshots"][0]["rows"], 1500);
  EXPECT_EQ(json["damage_count"], 0);

  const ProgramResult good = RunHotrow({"verify", path});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  EXPECT_EQ(good.err, "");
  EXPECT_THAT(good.out, AllOf(HasSubstr("1,500 rows"), HasSubstr("1 snapshots: good")));
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 1) << good.out;

  const std::string snapshot = path + "/snapshots/000000000000004d";
  std::string table_file;
  for (const auto& entry : std::filesystem::directory_iterator(snapshot)) {
    if (entry.path().extension() == ".sst") table_file = entry.path().string();
  }
  FlipByte(table_file, 5000);
  const ProgramResult bad = RunHotrow({"verify", path});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_EQ(bad.err, "");
  EXPECT_THAT(bad.out, AllOf(HasSubstr(table_file + ": is damaged"), HasSubstr("2 damaged")));
  const auto found = nlohmann::json::parse(RunHotrow({"verify", path, "--json"}).out, nullptr,
                                           /*allow_exceptions=*/false);
  EXPECT_EQ(found["damage_count"], 2);  // the live database has the file by another name
  FlipByte(table_file, 5000);

  std::filesystem::remove(path + "/LIVE");
  const ProgramResult lost = RunHotrow({"verify", path});
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_THAT(lost.out, AllOf(HasSubstr(path + "/LIVE is missing"), HasSubstr("1 damaged")));
}

}  // namespace
}  // namespace hotrow
