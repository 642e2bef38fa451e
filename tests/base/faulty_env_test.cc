#include "tests/support/faulty_env.h"

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "base/io_queue.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// The faulty Env is a measuring instrument: these tests say what it does, so that a green fault
// test elsewhere means something.
namespace hotrow::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::unique_ptr<File> Create(Env& env, const std::string& path, std::string_view text) {
  auto file = env.Open(path, OpenMode::kTruncate);
  HOTROW_EXPECT_OK(file);
  HOTROW_EXPECT_OK(WriteFull(**file, 0, Bytes(text)));
  return *std::move(file);
}

TEST(MemEnvTest, UnsyncedBytesAreLost) {
  MemEnv env;
  const auto file = Create(env, "/a", "synced");
  HOTROW_ASSERT_OK(file->Sync());
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes("SYNCED and more")));
  env.DropUnsyncedData();
  EXPECT_EQ(*ReadFileToString(env, "/a"), "synced");
}

TEST(MemEnvTest, UnsyncedTruncationIsUndone) {
  MemEnv env;
  const auto file = Create(env, "/a", "synced");
  HOTROW_ASSERT_OK(file->Sync());
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  HOTROW_ASSERT_OK(file->Truncate(0));
  HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes("S")));
  env.DropUnsyncedData();
  EXPECT_EQ(*ReadFileToString(env, "/a"), "synced");
}

TEST(MemEnvTest, FileWithoutSyncedEntryIsLostThoughItsBytesWereSynced) {
  MemEnv env;
  HOTROW_ASSERT_OK(Create(env, "/a", "x")->Sync());
  env.DropUnsyncedData();
  EXPECT_THAT(*env.ListDir("/"), IsEmpty());
}

TEST(MemEnvTest, EntryWithoutSyncedBytesIsAnEmptyFile) {
  MemEnv env;
  Create(env, "/a", "x");
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  env.DropUnsyncedData();
  EXPECT_EQ(*ReadFileToString(env, "/a"), "");
}

TEST(MemEnvTest, DirectoryNeedsItsParentSynced) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs("/d/e"));
  HOTROW_ASSERT_OK(Create(env, "/d/e/a", "x")->Sync());
  HOTROW_ASSERT_OK(env.SyncDir("/d/e"));
  HOTROW_ASSERT_OK(env.SyncDir("/"));  // but not /d
  env.DropUnsyncedData();
  EXPECT_THAT(*env.ListDir("/"), ElementsAre("d"));
  EXPECT_THAT(*env.ListDir("/d"), IsEmpty());
}

TEST(MemEnvTest, UnsyncedRemovalAndRenameAreUndone) {
  MemEnv env;
  for (const char* const path : {"/a", "/b", "/c"}) {
    HOTROW_ASSERT_OK(Create(env, path, path)->Sync());
  }
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  HOTROW_ASSERT_OK(env.Remove("/a"));
  HOTROW_ASSERT_OK(env.Rename("/b", "/c"));
  env.DropUnsyncedData();
  EXPECT_THAT(*env.ListDir("/"), ElementsAre("a", "b", "c"));
  EXPECT_EQ(*ReadFileToString(env, "/c"), "/c");
  HOTROW_ASSERT_OK(env.Remove("/a"));
  HOTROW_ASSERT_OK(env.Rename("/b", "/c"));
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  env.DropUnsyncedData();
  EXPECT_THAT(*env.ListDir("/"), ElementsAre("c"));
  EXPECT_EQ(*ReadFileToString(env, "/c"), "/b");
}

TEST(MemEnvTest, RenameBetweenDirectoriesNeedsBothSynced) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs("/d"));
  HOTROW_ASSERT_OK(Create(env, "/a", "x")->Sync());
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  HOTROW_ASSERT_OK(env.Rename("/a", "/d/a"));
  HOTROW_ASSERT_OK(env.SyncDir("/d"));
  env.DropUnsyncedData();
  EXPECT_THAT(*env.ListDir("/"), ElementsAre("a", "d"));
  EXPECT_EQ(*ReadFileToString(env, "/d/a"), "x");
}

TEST(MemEnvTest, FilesOpenAtThePowerLossAreDead) {
  MemEnv env;
  const auto file = Create(env, "/a", "x");
  HOTROW_ASSERT_OK(file->Sync());
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  env.DropUnsyncedData();
  EXPECT_THAT(file->WriteAt(0, Bytes("y")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("power")));
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(file->Close().ok());
  EXPECT_EQ(*ReadFileToString(env, "/a"), "x");
}

TEST(MemEnvTest, LosePowerKeepsPagesByCoin) {
  constexpr auto kPage = static_cast<size_t>(MemEnv::kPageBytes);
  const std::string old_text(8 * kPage, 'o');
  int torn = 0;
  int grown = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MemEnv env;
    const auto file = Create(env, "/a", old_text);
    HOTROW_ASSERT_OK(file->Sync());
    HOTROW_ASSERT_OK(env.SyncDir("/"));
    HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes(std::string(8 * kPage + 10, 'n'))));
    env.LosePower(seed);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env, "/a"));
    ASSERT_THAT(text.size(), testing::AnyOf(8 * kPage, 8 * kPage + 10));
    size_t new_pages = 0;
    for (size_t page = 0; page < 8; ++page) {
      const std::string_view bytes = std::string_view(text).substr(page * kPage, kPage);
      ASSERT_EQ(bytes.find_first_not_of(bytes[0]), std::string_view::npos);
      new_pages += bytes[0] == 'n' ? 1 : 0;
    }
    torn += new_pages > 0 && new_pages < 8 ? 1 : 0;
    grown += text.size() > 8 * kPage ? 1 : 0;
  }
  EXPECT_GT(torn, 10);
  EXPECT_GT(grown, 3);
  EXPECT_LT(grown, 17);
}

TEST(MemEnvTest, LosePowerNeverTouchesSyncedData) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MemEnv env;
    HOTROW_ASSERT_OK(Create(env, "/a", std::string(20000, 'x'))->Sync());
    HOTROW_ASSERT_OK(env.SyncDir("/"));
    Create(env, "/b", "unsynced");
    env.LosePower(seed);
    EXPECT_EQ(*ReadFileToString(env, "/a"), std::string(20000, 'x'));
  }
}

TEST(FaultyEnvTest, CountsCallsOfEnvAndFiles) {
  FaultyEnv env;
  EXPECT_EQ(env.calls(), 0);
  HOTROW_ASSERT_OK(env.CreateDirs("/d"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open("/d/a", OpenMode::kCreate));
  HOTROW_EXPECT_OK(file->WriteAt(0, Bytes("x")));
  HOTROW_EXPECT_OK(file->Sync());
  HOTROW_EXPECT_OK(file->Size());
  HOTROW_EXPECT_OK(file->Truncate(3));
  HOTROW_EXPECT_OK(file->Close());
  HOTROW_EXPECT_OK(env.Rename("/d/a", "/d/b"));
  HOTROW_EXPECT_OK(env.Exists("/d/b"));
  HOTROW_EXPECT_OK(env.ListDir("/d"));
  HOTROW_EXPECT_OK(env.SyncDir("/d"));
  HOTROW_EXPECT_OK(env.Remove("/d/b"));
  HOTROW_EXPECT_OK(env.RemoveDir("/d"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto direct, env.OpenDirect("/a", OpenMode::kCreate));
  HOTROW_EXPECT_OK(direct->Allocate(3));
  HOTROW_EXPECT_OK(env.FreeBytes("/"));
  HOTROW_EXPECT_OK(env.NewIoQueue({}));
  EXPECT_EQ(env.calls(), 17);
  EXPECT_EQ(env.faults(), 0);
}

TEST(FaultyEnvTest, FailedCallDoesNothingAndFailsOnce) {
  FaultyEnv env;
  const auto file = Create(env, "/a", "old");  // calls 0 and 1
  env.FailCall(2, absl::ResourceExhaustedError("full"));
  EXPECT_THAT(file->WriteAt(0, Bytes("new")),
              StatusIs(absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(*ReadFileToString(env, "/a"), "old");
  HOTROW_EXPECT_OK(file->WriteAt(0, Bytes("new")));
  EXPECT_EQ(*ReadFileToString(env, "/a"), "new");
  EXPECT_EQ(env.faults(), 1);
}

TEST(FaultyEnvTest, CallsOfDirectFilesFailAsOthersDo) {
  FaultyEnv env;
  const auto file = Create(env, "/a", "old");
  env.FailFrom(env.calls(), absl::UnavailableError("gone"));
  EXPECT_THAT(env.OpenDirect("/b", OpenMode::kCreate),
              StatusIs(absl::StatusCode::kUnavailable, "gone"));
  EXPECT_THAT(file->Allocate(10), StatusIs(absl::StatusCode::kUnavailable, "gone"));
  EXPECT_THAT(env.FreeBytes("/"), StatusIs(absl::StatusCode::kUnavailable, "gone"));
  EXPECT_THAT(env.NewIoQueue({}), StatusIs(absl::StatusCode::kUnavailable, "gone"));
  env.FailFrom(INT64_MAX, absl::OkStatus());
  EXPECT_THAT(*env.ListDir("/"), ElementsAre("a"));
  EXPECT_EQ(*ReadFileToString(env, "/a"), "old");
}

TEST(FaultyEnvTest, FailFromFailsForGood) {
  FaultyEnv env;
  env.FailFrom(1, absl::DataLossError("dead"));
  HOTROW_EXPECT_OK(env.CreateDirs("/d"));
  EXPECT_FALSE(env.CreateDirs("/e").ok());
  EXPECT_FALSE(env.Exists("/d").ok());
  EXPECT_EQ(env.faults(), 2);
}

TEST(FaultyEnvTest, WritesFailByACoin) {
  FaultyEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                              env.Open("/file", OpenMode::kCreate));
  const std::array<std::byte, 1> byte = {};
  env.FailWrites(1, 4, absl::DataLossError("injected"));
  int failed = 0;
  for (int i = 0; i < 1000; ++i) failed += !file->WriteAt(0, byte).ok();
  EXPECT_GT(failed, 150);
  EXPECT_LT(failed, 350);
  EXPECT_EQ(env.faults(), failed);
  for (int i = 0; i < 100; ++i) HOTROW_EXPECT_OK(file->Size());
  env.FailWrites(1, 1, absl::DataLossError("injected"));
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(env.Rename("/file", "/other").ok());
  env.FailWrites(1, 0, absl::OkStatus());
  HOTROW_EXPECT_OK(file->Sync());
}

// The trap that made databases lose data: fsync fails, is called again, and says OK.
TEST(FaultyEnvTest, AfterAFailedSyncASecondOneSavesNothing) {
  FaultyEnv env;
  const auto file = Create(env, "/a", "lost");
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  env.FailCall(env.calls(), absl::DataLossError("EIO"));
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_EQ(*ReadFileToString(env, "/a"), "lost");  // the page cache still has it
  HOTROW_EXPECT_OK(file->Sync());
  env.DropUnsyncedData();
  EXPECT_EQ(*ReadFileToString(env, "/a"), std::string(4, '\0'));
}

TEST(FaultyEnvTest, ShortCallsMoveHalf) {
  FaultyEnv env;
  const auto file = Create(env, "/a", "123456789");
  env.ShortenCall(2);
  std::byte buffer[9];
  EXPECT_EQ(*file->ReadAt(0, buffer), 4);
  env.ShortenCall(3);
  EXPECT_EQ(*file->WriteAt(0, Bytes("ab")), 1);
  env.ShortenCall(4);  // nothing to halve
  EXPECT_EQ(*file->WriteAt(0, Bytes("x")), 1);
  env.ShortenCall(5);  // neither a read nor a write
  HOTROW_EXPECT_OK(file->Sync());
  EXPECT_EQ(env.faults(), 2);
  EXPECT_EQ(*ReadFileToString(env, "/a"), "x23456789");
}

TEST(FaultyEnvTest, FlipBitChangesOneBitAndSurvivesPowerLoss) {
  FaultyEnv env;
  HOTROW_ASSERT_OK(Create(env, "/a", "AAA")->Sync());
  HOTROW_ASSERT_OK(env.SyncDir("/"));
  const int64_t calls = env.calls();
  HOTROW_ASSERT_OK(env.FlipBit("/a", 8 + 1));
  EXPECT_EQ(env.calls(), calls);
  EXPECT_EQ(*ReadFileToString(env, "/a"), "ACA");
  env.DropUnsyncedData();
  EXPECT_EQ(*ReadFileToString(env, "/a"), "ACA");
  EXPECT_EQ(env.FlipBit("/a", 24).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(env.FlipBit("/none", 0).code(), absl::StatusCode::kNotFound);
}

TEST(FaultyEnvTest, WrapsTheRealFileSystemToo) {
  FaultyEnv env(&PosixEnv());
  const std::string path = TempDir() + "/a";
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, "AAA"));
  HOTROW_ASSERT_OK(env.FlipBit(path, 17));
  EXPECT_EQ(env.FlipBit(path, 24).code(), absl::StatusCode::kOutOfRange);
  env.FailCall(env.calls(), absl::DataLossError("injected"));
  EXPECT_EQ(ReadFileToString(env, path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(*ReadFileToString(env, path), "AAC");
}

}  // namespace
}  // namespace hotrow::test
