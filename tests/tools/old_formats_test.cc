// Checkpoints and stores that an older version wrote: tests/fixtures.

#include <array>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gtest/gtest.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/portable_tables.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

struct OldCheckpoint {
  std::string version;  // a folder of tests/fixtures
  std::string name;
  std::string tables_hash;  // that its writer reported
  std::vector<std::string> store_flags;
};
void PrintTo(const OldCheckpoint& old, std::ostream* out) {
  *out << old.version << ", " << old.name;
}

// Unpacks an archive; returns the directory of its checkpoints.
std::string Unpack(const std::string& version, const std::string& name) {
  const std::string dir = test::TempDir();
  const std::string archive = absl::StrCat(HOTROW_FIXTURES, "/", version, "/", name, ".tar.xz");
  const ProgramResult unpacked =
      RunProgram({.arguments = {HOTROW_CMAKE, "-E", "tar", "xf", archive}, .directory = dir});
  EXPECT_EQ(unpacked.exit_code, 0) << unpacked;
  return absl::StrCat(dir, "/", name, "/ck");
}

std::string HashOfTables(const CheckpointReport& report) {
  Hash128 sum;
  for (const PortableDigest& table : report.tables) sum += table.hash;
  return sum.ToHex();
}

class OldFormatsTest : public testing::TestWithParam<OldCheckpoint> {};

TEST_P(OldFormatsTest, AreReadAndTrainOn) {
  const OldCheckpoint& old = GetParam();
  const std::string dir = Unpack(old.version, old.name);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                              VerifyCheckpoint(PosixEnv(), dir, /*store_bytes=*/0));
  EXPECT_THAT(report.damage, testing::IsEmpty());
  EXPECT_EQ(report.rows, 581);
  EXPECT_EQ(HashOfTables(report), old.tables_hash);

  // Goes on in the same store, which so gets the formats of today.
  if (old.name == "saved" || old.name == "ssd_ranks") return;
  std::vector<std::string> arguments = {
      HOTROW_DLRM_BINARY,
      "--data=synthetic:tables=3,rows=200,zipf=0.9,samples=2k,valid=200,test=200",
      "--embedding_dim=4",
      "--dense_arch_layer_sizes=8-4",
      "--over_arch_layer_sizes=8-1",
      "--batch_size=64",
      "--threads=1",
      "--cache_bytes=min",
      "--checkpoint_every=10",
      "--checkpoint_dir=" + dir,
      "--epochs=2",
      "--resume"};
  for (const std::string& flag : old.store_flags) arguments.push_back(flag);
  if (!old.store_flags.empty()) arguments.push_back("--store_path=" + dir + "/store");
  const ProgramResult trained = RunProgram({.arguments = arguments});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport after,
                              VerifyCheckpoint(PosixEnv(), dir, /*store_bytes=*/0));
  EXPECT_THAT(after.damage, testing::IsEmpty());
  EXPECT_EQ(after.model.step, 64);
  EXPECT_TRUE(after.model.parts[0].identity.known());
}

std::vector<OldCheckpoint> OldCheckpoints() {
  std::vector<OldCheckpoint> all;
  // By version: the hash of one rank's tables, and of two ranks'.
  for (const auto& [version, one, two] : {std::array{"1990f9b", "0aa95231b8133c4fe49ef92b096b1adb",
                                                     "bac531d9c073b13a761b670bb33e6d6e"},
                                          std::array{"717bc0a", "ea51b5babd35c685649d1f59bf2d12f4",
                                                     "2f649445f29ce60804979e94db390a36"}}) {
    all.push_back({version, "memory", one, {}});
    all.push_back(
        {version, "ssd", one, {"--store=ssd", "--disk_bytes=2MiB", "--store_bytes=4MiB"}});
#if HOTROW_HAVE_ROCKSDB
    all.push_back({version, "rocksdb", one, {"--store=rocksdb", "--disk_bytes=64MiB"}});
#endif
    all.push_back({version, "ssd_ranks", two, {}});
    all.push_back({version, "saved", one, {}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OldFormatsTest, testing::ValuesIn(OldCheckpoints()),
                         [](const auto& info) {
                           return absl::StrCat(info.param.name, "_of_", info.param.version);
                         });

// Not that of the build.
TEST(OldStoreTest, InspectSaysItsVersion) {
  for (const auto& [version, said] :
       {std::array{"1990f9b", "format version 2"}, std::array{"717bc0a", "format version 3"}}) {
    const ProgramResult inspected = RunHotrow({"inspect", Unpack(version, "ssd") + "/store"});
    EXPECT_EQ(inspected.exit_code, 0) << inspected;
    EXPECT_THAT(inspected.out, testing::HasSubstr(said));
  }
}

TEST(OldExportTest, IsImported) {
  const std::string dir = Unpack("717bc0a", "portable");
  const std::string made = test::TempDir() + "/made";
  const ProgramResult imported = RunHotrow({"import", dir, made});
  EXPECT_EQ(imported.exit_code, 0) << imported;
  HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                              VerifyCheckpoint(PosixEnv(), made, /*store_bytes=*/0));
  EXPECT_EQ(report.rows, 581);
  EXPECT_EQ(HashOfTables(report), "ea51b5babd35c685649d1f59bf2d12f4");
}

TEST(OldTraceTest, IsRead) {
  const ProgramResult info = RunHotrow({"trace", "info", Unpack("717bc0a", "trace") + ".trace"});
  EXPECT_EQ(info.exit_code, 0) << info;
  EXPECT_THAT(info.out, testing::HasSubstr("trace, 32 steps, 100.0 % of the keys"));
  EXPECT_THAT(info.out, testing::HasSubstr("accesses         1,247\n"));
}

}  // namespace
}  // namespace hotrow
