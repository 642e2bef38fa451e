#include "base/env.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/held_directory.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Whole blocks of memory for direct transfers, all of this letter.
class Blocks {
 public:
  Blocks(int64_t bytes, char letter) {
    // From 1 MiB up the memory is mapped, so aligned for any device.
    auto buffer = HostBuffer<std::byte>::Create(std::max<int64_t>(bytes, 1 << 20), HugePages::kTry);
    HOTROW_EXPECT_OK(buffer);
    buffer_ = *std::move(buffer);
    bytes_ = std::span(buffer_.data(), static_cast<size_t>(bytes));
    std::fill(bytes_.begin(), bytes_.end(), static_cast<std::byte>(letter));
  }
  std::span<std::byte> bytes() { return bytes_; }
  std::string text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  HostBuffer<std::byte> buffer_;
  std::span<std::byte> bytes_;
};

struct EnvKind {
  const char* name;
  std::function<std::unique_ptr<Env>()> make;  // null: the real file system
  const char* parent = nullptr;                // of the real one; null: where temporary files go
};

// The contract of Env, for every kind of it.
class EnvTest : public testing::TestWithParam<EnvKind> {
 protected:
  void SetUp() override {
    if (GetParam().make != nullptr) {
      owned_ = GetParam().make();
      dir_ = "/dir";
      HOTROW_ASSERT_OK(env().CreateDirs(dir_));
    } else if (GetParam().parent != nullptr) {
      if (!std::filesystem::is_directory(GetParam().parent)) {
        GTEST_SKIP() << "there is no " << GetParam().parent;
      }
      dir_ = std::string(GetParam().parent) + "/hotrow_test_XXXXXX";
      ASSERT_NE(::mkdtemp(dir_.data()), nullptr) << dir_;
      mine_ = dir_;
    } else {
      dir_ = test::TempDir();
    }
  }
  void TearDown() override {
    if (!mine_.empty()) std::filesystem::remove_all(mine_);
  }

  Env& env() { return owned_ != nullptr ? *owned_ : PosixEnv(); }
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }

  void Write(const std::string& name, std::string_view text) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path(name), OpenMode::kTruncate));
    HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes(text)));
    HOTROW_ASSERT_OK(file->Close());
  }
  std::string Read(const std::string& name) {
    auto text = ReadFileToString(env(), Path(name));
    HOTROW_EXPECT_OK(text);
    return text.ok() ? *std::move(text) : "";
  }
  bool Exists(const std::string& name) {
    const auto exists = env().Exists(Path(name));
    HOTROW_EXPECT_OK(exists);
    return exists.ok() && *exists;
  }
  std::vector<std::string> List() {
    auto names = env().ListDir(dir_);
    HOTROW_EXPECT_OK(names);
    return names.ok() ? *std::move(names) : std::vector<std::string>{};
  }

  std::unique_ptr<Env> owned_;
  std::string dir_;
  std::string mine_;  // to be removed
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, EnvTest,
    testing::Values(EnvKind{"Posix", nullptr}, EnvKind{"PosixTmpfs", nullptr, "/dev/shm"},
                    EnvKind{"Mem", [] { return std::make_unique<test::MemEnv>(); }},
                    EnvKind{"FaultyMem", [] { return std::make_unique<test::FaultyEnv>(); }}),
    [](const auto& info) { return info.param.name; });

TEST_P(EnvTest, WhatIsWrittenIsRead) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
  EXPECT_EQ(file->path(), Path("a"));
  HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes("hello")));
  HOTROW_ASSERT_OK(WriteFull(*file, 3, Bytes("p me")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t size, file->Size());
  EXPECT_EQ(size, 7);
  std::string text(4, ' ');
  HOTROW_ASSERT_OK(ReadFull(*file, 2, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, "lp m");
  HOTROW_ASSERT_OK(file->Sync());
  HOTROW_ASSERT_OK(file->Close());
  EXPECT_EQ(Read("a"), "help me");
}

TEST_P(EnvTest, EmptyFileEmptyReadEmptyWrite) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
  HOTROW_EXPECT_OK(WriteFull(*file, 10, {}));
  HOTROW_EXPECT_OK(ReadFull(*file, 10, {}));
  EXPECT_EQ(*file->Size(), 0);
  EXPECT_EQ(Read("a"), "");
}

TEST_P(EnvTest, WritingBehindTheEndLeavesZeros) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
  HOTROW_ASSERT_OK(WriteFull(*file, 9000, Bytes("x")));
  EXPECT_EQ(Read("a"), std::string(9000, '\0') + "x");
}

TEST_P(EnvTest, ReadsEndAtTheEndOfTheFile) {
  Write("a", "12345");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kRead));
  std::byte buffer[10];
  EXPECT_EQ(*file->ReadAt(3, buffer), 2);
  EXPECT_EQ(*file->ReadAt(5, buffer), 0);
  EXPECT_EQ(*file->ReadAt(500, buffer), 0);
  EXPECT_THAT(ReadFull(*file, 3, buffer),
              test::StatusIs(Code::kDataLoss, AllOf(HasSubstr(Path("a")), HasSubstr("byte 5"),
                                                    HasSubstr("offset 3"))));
}

TEST_P(EnvTest, OpenModes) {
  EXPECT_THAT(env().Open(Path("a"), OpenMode::kRead),
              test::StatusIs(Code::kNotFound, HasSubstr("open " + Path("a"))));
  EXPECT_THAT(env().Open(Path("a"), OpenMode::kReadWrite),
              test::StatusIs(Code::kNotFound, HasSubstr(Path("a"))));
  EXPECT_FALSE(Exists("a"));
  Write("a", "text");
  HOTROW_EXPECT_OK(env().Open(Path("a"), OpenMode::kCreate));
  EXPECT_EQ(Read("a"), "text");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kReadWrite));
    HOTROW_EXPECT_OK(WriteFull(*file, 0, Bytes("T")));
  }
  EXPECT_EQ(Read("a"), "Text");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kRead));
    EXPECT_THAT(file->WriteAt(0, Bytes("x")),
                test::StatusIs(Code::kFailedPrecondition, HasSubstr("write " + Path("a"))));
    EXPECT_FALSE(file->Truncate(0).ok());
  }
  HOTROW_EXPECT_OK(env().Open(Path("a"), OpenMode::kTruncate));
  EXPECT_EQ(Read("a"), "");
}

TEST_P(EnvTest, TruncateCutsAndGrows) {
  Write("a", "12345");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kReadWrite));
  HOTROW_ASSERT_OK(file->Truncate(2));
  EXPECT_EQ(Read("a"), "12");
  HOTROW_ASSERT_OK(file->Truncate(4));
  EXPECT_EQ(Read("a"), std::string("12\0\0", 4));
}

TEST_P(EnvTest, ClosedFileSaysSo) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
  HOTROW_ASSERT_OK(file->Close());
  EXPECT_THAT(file->WriteAt(0, Bytes("x")),
              test::StatusIs(Code::kFailedPrecondition, HasSubstr(Path("a"))));
  EXPECT_THAT(file->Sync(), test::StatusIs(Code::kFailedPrecondition, HasSubstr(Path("a"))));
  EXPECT_THAT(file->Close(), test::StatusIs(Code::kFailedPrecondition, HasSubstr(Path("a"))));
}

TEST_P(EnvTest, CreateDirsMakesParentsAndRepeats) {
  HOTROW_ASSERT_OK(env().CreateDirs(Path("x/y/z/")));
  HOTROW_ASSERT_OK(env().CreateDirs(Path("x//y/z")));
  EXPECT_TRUE(Exists("x/y/z"));
  Write("x/y/file", "1");
  EXPECT_FALSE(env().CreateDirs(Path("x/y/file")).ok());
  EXPECT_FALSE(env().CreateDirs(Path("x/y/file/deeper")).ok());
  EXPECT_EQ(env().CreateDirs("").code(), Code::kNotFound);
}

TEST_P(EnvTest, ListDirIsSortedAndComplete) {
  EXPECT_THAT(List(), IsEmpty());
  Write("b", "");
  Write("a10", "");
  Write("a9", "");
  HOTROW_ASSERT_OK(env().CreateDirs(Path("a.d/inner")));
  EXPECT_THAT(List(), ElementsAre("a.d", "a10", "a9", "b"));
  EXPECT_THAT(env().ListDir(Path("none")),
              test::StatusIs(Code::kNotFound, HasSubstr(Path("none"))));
  EXPECT_FALSE(env().ListDir(Path("b")).ok());
}

TEST_P(EnvTest, ExistsForFilesAndDirectories) {
  Write("a", "");
  EXPECT_TRUE(Exists("a"));
  EXPECT_TRUE(Exists(""));
  EXPECT_FALSE(Exists("b"));
  EXPECT_FALSE(Exists("a/b"));
}

TEST_P(EnvTest, RenameReplaces) {
  Write("a", "new");
  Write("b", "old");
  HOTROW_ASSERT_OK(env().Rename(Path("a"), Path("b")));
  EXPECT_THAT(List(), ElementsAre("b"));
  EXPECT_EQ(Read("b"), "new");
  HOTROW_EXPECT_OK(env().Rename(Path("b"), Path("b")));
  EXPECT_EQ(Read("b"), "new");
  EXPECT_THAT(env().Rename(Path("a"), Path("b")),
              test::StatusIs(Code::kNotFound, AllOf(HasSubstr(Path("a")), HasSubstr(Path("b")))));
}

TEST_P(EnvTest, RenameOfDirectories) {
  HOTROW_ASSERT_OK(env().CreateDirs(Path("d/inner")));
  Write("d/file", "1");
  Write("f", "2");
  EXPECT_FALSE(env().Rename(Path("d"), Path("f")).ok());
  EXPECT_FALSE(env().Rename(Path("f"), Path("d")).ok());
  EXPECT_FALSE(env().Rename(Path("d"), Path("d/inner/d")).ok());
  HOTROW_ASSERT_OK(env().Rename(Path("d"), Path("e")));
  EXPECT_EQ(Read("e/file"), "1");
  EXPECT_FALSE(Exists("d"));
  HOTROW_ASSERT_OK(env().CreateDirs(Path("full/x")));
  EXPECT_FALSE(env().Rename(Path("e"), Path("full")).ok());
}

TEST_P(EnvTest, RemoveTakesFilesOnlyAndRemoveDirEmptyDirectoriesOnly) {
  HOTROW_ASSERT_OK(env().CreateDirs(Path("d")));
  Write("d/a", "");
  EXPECT_FALSE(env().Remove(Path("d")).ok());
  EXPECT_FALSE(env().RemoveDir(Path("d")).ok());
  EXPECT_FALSE(env().RemoveDir(Path("d/a")).ok());
  HOTROW_EXPECT_OK(env().Remove(Path("d/a")));
  EXPECT_THAT(env().Remove(Path("d/a")), test::StatusIs(Code::kNotFound, HasSubstr(Path("d/a"))));
  HOTROW_EXPECT_OK(env().RemoveDir(Path("d")));
  EXPECT_THAT(env().RemoveDir(Path("d")), test::StatusIs(Code::kNotFound, HasSubstr(Path("d"))));
  EXPECT_THAT(List(), IsEmpty());
}

TEST_P(EnvTest, RemovedFileStaysReadableWhileOpen) {
  Write("a", "text");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kRead));
  HOTROW_ASSERT_OK(env().Remove(Path("a")));
  std::string text(4, ' ');
  HOTROW_ASSERT_OK(ReadFull(*file, 0, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, "text");
}

TEST_P(EnvTest, DirectoriesAreNotFiles) {
  HOTROW_ASSERT_OK(env().CreateDirs(Path("d")));
  for (const OpenMode mode : {OpenMode::kRead, OpenMode::kReadWrite, OpenMode::kTruncate}) {
    EXPECT_FALSE(env().Open(Path("d"), mode).ok());
  }
  Write("f", "");
  EXPECT_FALSE(env().Open(Path("f/x"), OpenMode::kCreate).ok());
  EXPECT_FALSE(env().Open("", OpenMode::kCreate).ok());
}

TEST_P(EnvTest, SyncDirNeedsADirectory) {
  Write("f", "");
  HOTROW_EXPECT_OK(env().SyncDir(dir_));
  EXPECT_FALSE(env().SyncDir(Path("f")).ok());
  EXPECT_THAT(env().SyncDir(Path("none")),
              test::StatusIs(Code::kNotFound, HasSubstr(Path("none"))));
}

TEST_P(EnvTest, ConcurrentReadsAndWritesOfOneFile) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
  HOTROW_ASSERT_OK(file->Truncate(4 * 1000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&file, t] {
      const std::string mine(100, static_cast<char>('a' + t));
      for (int64_t offset = t * 1000; offset < t * 1000 + 1000; offset += 100) {
        HOTROW_EXPECT_OK(WriteFull(*file, offset, Bytes(mine)));
        std::string back(100, ' ');
        HOTROW_EXPECT_OK(ReadFull(*file, offset, std::as_writable_bytes(std::span(back))));
        EXPECT_EQ(back, mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Read("a"), std::string(1000, 'a') + std::string(1000, 'b') + std::string(1000, 'c') +
                           std::string(1000, 'd'));
}

TEST_P(EnvTest, WriteFileAtomicallyReplacesAndLeavesNoTemporary) {
  HOTROW_ASSERT_OK(WriteFileAtomically(env(), Path("a"), "one"));
  HOTROW_ASSERT_OK(WriteFileAtomically(env(), Path("a"), "two"));
  EXPECT_EQ(Read("a"), "two");
  EXPECT_THAT(List(), ElementsAre("a"));
  EXPECT_THAT(WriteFileAtomically(env(), Path("none/a"), "x"),
              test::StatusIs(Code::kNotFound, HasSubstr(Path("none/a.tmp"))));
}

TEST_P(EnvTest, BufferedFilesTakeAnyAlignment) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
  EXPECT_FALSE(file->direct());
  EXPECT_EQ(file->block_bytes(), 1);
}

TEST_P(EnvTest, DirectFilesMoveWholeBlocks) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().OpenDirect(Path("a"), OpenMode::kCreate));
  const int64_t block = file->block_bytes();
  ASSERT_EQ(block & (block - 1), 0);
  EXPECT_EQ(file->direct(), block > 1);
  EXPECT_TRUE(block == 1 || block >= 512);
  const int64_t bytes = 8 * std::max<int64_t>(block, 512);
  Blocks written(bytes, 'w');
  HOTROW_ASSERT_OK(WriteFull(*file, bytes, written.bytes()));
  EXPECT_EQ(*file->Size(), 2 * bytes);
  Blocks read(2 * bytes, '?');
  HOTROW_ASSERT_OK(ReadFull(*file, 0, read.bytes()));
  EXPECT_EQ(read.text(), std::string(bytes, '\0') + written.text());
  HOTROW_ASSERT_OK(file->Sync());
  EXPECT_EQ(Read("a"), read.text());  // the page cache sees it, too
  EXPECT_EQ(*file->ReadAt(2 * bytes, read.bytes()), 0);
}

TEST_P(EnvTest, DirectReadEndsWithinABlockAtTheEndOfTheFile) {
  Write("a", "12345");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().OpenDirect(Path("a"), OpenMode::kRead));
  Blocks read(8192, '?');
  EXPECT_EQ(*file->ReadAt(0, read.bytes()), 5);
  EXPECT_EQ(read.text().substr(0, 5), "12345");
}

TEST_P(EnvTest, MisalignedDirectTransfersFailOrSucceedWhole) {
  Write("a", std::string(8192, 'x'));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().OpenDirect(Path("a"), OpenMode::kReadWrite));
  const bool must_fail = file->direct() && owned_ != nullptr;  // some file systems do not mind
  Blocks memory(8192, 'y');
  const struct {
    int64_t offset;
    std::span<std::byte> bytes;
  } misaligned[] = {{1, memory.bytes().first(4096)},
                    {0, memory.bytes().first(100)},
                    {0, memory.bytes().subspan(1, 4096)}};
  for (const auto& [offset, bytes] : misaligned) {
    const auto got = file->ReadAt(offset, bytes);
    EXPECT_FALSE(must_fail && got.ok());
    if (got.ok()) {
      EXPECT_EQ(*got, std::ssize(bytes));
    } else {
      EXPECT_THAT(got, test::StatusIs(Code::kInvalidArgument, HasSubstr("read " + Path("a"))));
    }
    std::fill(bytes.begin(), bytes.end(), std::byte{'y'});
    const auto put = file->WriteAt(offset, bytes);
    EXPECT_EQ(put.ok(), got.ok());
    if (!put.ok()) {
      EXPECT_THAT(put, test::StatusIs(Code::kInvalidArgument, HasSubstr("write " + Path("a"))));
    }
  }
  EXPECT_TRUE(!must_fail || Read("a") == std::string(8192, 'x'));
}

TEST_P(EnvTest, OpenDirectHasTheSameModes) {
  EXPECT_THAT(env().OpenDirect(Path("a"), OpenMode::kRead),
              test::StatusIs(Code::kNotFound, HasSubstr("open " + Path("a"))));
  EXPECT_FALSE(Exists("a"));
  Write("a", "text");
  HOTROW_EXPECT_OK(env().OpenDirect(Path("a"), OpenMode::kCreate));
  EXPECT_EQ(Read("a"), "text");
  HOTROW_EXPECT_OK(env().OpenDirect(Path("a"), OpenMode::kTruncate));
  EXPECT_EQ(Read("a"), "");
  HOTROW_ASSERT_OK(env().CreateDirs(Path("d")));
  EXPECT_FALSE(env().OpenDirect(Path("d"), OpenMode::kRead).ok());
}

// By the Env's own way, and by the one for file systems that have none.
TEST_P(EnvTest, AllocateGrowsWithZerosAndKeepsWhatIsThere) {
  for (const bool direct : {false, true}) {
    for (const bool rewrite : {false, true}) {
      for (const int64_t bytes : {1, 5000, 3'000'000}) {
        SCOPED_TRACE(testing::Message() << direct << rewrite << bytes);
        Write("a", "text");
        HOTROW_ASSERT_OK_AND_ASSIGN(const auto file,
                                    direct ? env().OpenDirect(Path("a"), OpenMode::kReadWrite)
                                           : env().Open(Path("a"), OpenMode::kReadWrite));
        HOTROW_ASSERT_OK(rewrite ? file->File::Allocate(bytes) : file->Allocate(bytes));
        std::string want = "text";
        want.resize(std::max<size_t>(4, static_cast<size_t>(bytes)));
        EXPECT_TRUE(Read("a") == want);
      }
    }
  }
}

TEST_P(EnvTest, AllocateOfWhatIsNoFileToWriteFails) {
  Write("a", "text");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kReadWrite));
  HOTROW_EXPECT_OK(file->Allocate(0));
  EXPECT_EQ(Read("a"), "text");
  EXPECT_THAT(file->Allocate(-1), test::StatusIs(Code::kInvalidArgument, HasSubstr(Path("a"))));
  EXPECT_THAT(file->File::Allocate(-1),
              test::StatusIs(Code::kInvalidArgument, HasSubstr(Path("a"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, env().Open(Path("a"), OpenMode::kRead));
  EXPECT_THAT(reader->Allocate(10),
              test::StatusIs(Code::kFailedPrecondition, HasSubstr(Path("a"))));
  EXPECT_FALSE(reader->File::Allocate(10).ok());
  HOTROW_ASSERT_OK(file->Close());
  EXPECT_FALSE(file->Allocate(10).ok());
  EXPECT_EQ(Read("a"), "text");
}

TEST_P(EnvTest, FreeBytesNeedsAPath) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t bytes, env().FreeBytes(dir_));
  EXPECT_GT(bytes, 0);
  EXPECT_THAT(env().FreeBytes(Path("none")),
              test::StatusIs(Code::kNotFound, HasSubstr(Path("none"))));
}

// What holds when the disk, in `dir` and of `pages` pages of 4096 bytes, gets full.
void ExpectFullDiskIsNamed(Env& env, const std::string& dir, int64_t pages) {
  const std::string path = dir + "/a";
  for (const bool rewrite : {false, true}) {
    SCOPED_TRACE(rewrite);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open(path, OpenMode::kTruncate));
    HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes("text")));
    const auto allocate = [&](int64_t bytes) {
      return rewrite ? file->File::Allocate(bytes) : file->Allocate(bytes);
    };
    EXPECT_THAT(
        allocate((pages + 1) * 4096),
        test::StatusIs(Code::kResourceExhausted,
                       AllOf(HasSubstr(path), HasSubstr(absl::StrCat((pages + 1) * 4096)))));
    EXPECT_EQ(*ReadFileToString(env, path), "text");
    EXPECT_EQ(*env.FreeBytes(dir), (pages - 1) * 4096);

    // A hole needs room as well.
    HOTROW_ASSERT_OK(file->Truncate(pages * 4096));
    EXPECT_EQ(*env.FreeBytes(dir), (pages - 1) * 4096);
    HOTROW_ASSERT_OK(allocate(pages * 4096));
    EXPECT_EQ(*env.FreeBytes(dir), 0);
    HOTROW_EXPECT_OK(WriteFull(*file, 0, Bytes(std::string(pages * 4096, 'x'))));
    EXPECT_THAT(file->WriteAt(pages * 4096, Bytes("y")),
                test::StatusIs(Code::kResourceExhausted, HasSubstr("write " + path + " at offset " +
                                                                   absl::StrCat(pages * 4096))));
    HOTROW_ASSERT_OK(file->Truncate(4096));
    EXPECT_EQ(*env.FreeBytes(dir), (pages - 1) * 4096);
    // A write that does not fit takes what does.
    EXPECT_EQ(*file->WriteAt(4096, Bytes(std::string(pages * 4096, 'x'))), (pages - 1) * 4096);
    HOTROW_ASSERT_OK(env.Remove(path));
  }
}

TEST(MemEnvSpaceTest, FullDiskIsNamed) {
  test::MemEnv env;
  EXPECT_GT(*env.FreeBytes("/"), int64_t{1} << 60);
  HOTROW_ASSERT_OK(env.CreateDirs("/d"));
  env.SetCapacity(16 * 4096 + 1);
  ExpectFullDiskIsNamed(env, "/d", 16);
}

TEST(MemEnvSpaceTest, RoomComesBackByRaisingRemovingAndReplacing) {
  test::MemEnv env;
  env.SetCapacity(2 * 4096);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/a", "1"));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/b", "1"));
  EXPECT_THAT(WriteFileAtomically(env, "/c", "1"),
              test::StatusIs(Code::kResourceExhausted, HasSubstr("/c.tmp")));
  HOTROW_ASSERT_OK(env.Rename("/a", "/b"));
  HOTROW_EXPECT_OK(WriteFileAtomically(env, "/c", "1"));
  env.SetCapacity(4096);
  EXPECT_EQ(*env.FreeBytes("/"), 0);
  HOTROW_ASSERT_OK(env.Remove("/b"));
  EXPECT_EQ(*env.FreeBytes("/"), 0);
  env.SetCapacity(2 * 4096);
  EXPECT_EQ(*env.FreeBytes("/"), 4096);
}

TEST(MemEnvSpaceTest, PowerLossGivesRoomBackWithTheBytes) {
  test::MemEnv env;
  env.SetCapacity(4 * 4096);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/a", "1"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open("/a", OpenMode::kReadWrite));
  HOTROW_ASSERT_OK(file->Allocate(4 * 4096));
  EXPECT_EQ(*env.FreeBytes("/"), 0);
  env.DropUnsyncedData();
  EXPECT_EQ(*env.FreeBytes("/"), 3 * 4096);
}

TEST(MemEnvDirectTest, BlockIsSettable) {
  test::MemEnv env;
  EXPECT_EQ((*env.OpenDirect("/a", OpenMode::kCreate))->block_bytes(), 512);
  env.SetDirectBlockBytes(4096);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.OpenDirect("/a", OpenMode::kCreate));
  EXPECT_EQ(file->block_bytes(), 4096);
  Blocks memory(4096, 'x');
  EXPECT_FALSE(file->WriteAt(512, memory.bytes()).ok());
  HOTROW_EXPECT_OK(file->WriteAt(4096, memory.bytes()));
  env.SetDirectBlockBytes(1);
  EXPECT_FALSE((*env.OpenDirect("/a", OpenMode::kCreate))->direct());
}

// A real file system of 16 pages, seen by one thread alone.
TEST(PosixEnvTest, FullDiskIsNamed) {
  const std::string dir = test::TempDir();
  std::string skipped;
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=65536") != 0) {
      skipped = std::strerror(errno);
      return;
    }
    ExpectFullDiskIsNamed(PosixEnv(), dir, 16);
  }).join();
  if (!skipped.empty()) GTEST_SKIP() << "no small file system to be had: mount: " << skipped;
}

// Who reads asks for no permission to write, and where nobody can write nobody needs a lock.
TEST(PosixEnvTest, ASharedLockNeedsNoPermissionToWrite) {
  const std::string dir = test::TempDir();
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/LOCK", ""));
  std::string skipped;
  std::thread([&] {
    if (::unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(dir.c_str(), dir.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, dir.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
      skipped = std::string("this process may not mount: ") + std::strerror(errno);
      return;
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto there,
                                PosixEnv().LockFile(dir + "/LOCK", LockMode::kShared));
    HOTROW_EXPECT_OK(PosixEnv().LockFile(dir + "/LOCK", LockMode::kShared).status());
    HOTROW_EXPECT_OK(PosixEnv().LockFile(dir + "/none", LockMode::kShared).status());
    EXPECT_FALSE(PosixEnv().LockFile(dir + "/none", LockMode::kExclusive).ok());
  }).join();
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

// Who has a lock is known of any file but a directory, and a FIFO makes nobody wait for a writer.
TEST(PosixEnvTest, ALockThatIsAFifoIsTakenAtOnce) {
  const std::string dir = test::TempDir();
  ASSERT_EQ(::mkfifo((dir + "/fifo").c_str(), 0600), 0);
  for (const LockMode mode : {LockMode::kShared, LockMode::kExclusive}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto lock, PosixEnv().LockFile(dir + "/fifo", mode));
    EXPECT_THAT(PosixEnv().LockFile(dir + "/fifo", LockMode::kExclusive).status(),
                test::StatusIs(Code::kFailedPrecondition, HasSubstr("somebody else holds")));
    EXPECT_THAT(PosixEnv().LockFile(dir, mode).status(),
                test::StatusIs(Code::kInvalidArgument, HasSubstr("is a directory")));
  }
}

// Every call fails once: the old text stays until the new one is whole, and no .tmp is left.
TEST(WriteFileAtomicallyTest, EveryFailingCallLeavesOldOrNewText) {
  int64_t k = 0;
  for (;; ++k) {
    SCOPED_TRACE(k);
    test::FaultyEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs("/d"));
    HOTROW_ASSERT_OK(env.SyncDir("/"));
    HOTROW_ASSERT_OK(WriteFileAtomically(env, "/d/a", "old"));
    env.FailCall(env.calls() + k, absl::DataLossError("injected"));
    const absl::Status status = WriteFileAtomically(env, "/d/a", "new");
    if (env.faults() == 0) {
      HOTROW_EXPECT_OK(status);
      break;
    }
    EXPECT_THAT(status, test::StatusIs(Code::kDataLoss, "injected"));
    EXPECT_THAT(*env.ListDir("/d"), ElementsAre("a"));
    EXPECT_THAT(*ReadFileToString(env, "/d/a"), testing::AnyOf("old", "new"));
    env.DropUnsyncedData();
    EXPECT_THAT(*ReadFileToString(env, "/d/a"), "old");
  }
  EXPECT_EQ(k, 6);  // open, write, sync, close, rename, sync of the directory
}

// The power fails before each call in turn; what is on the disk then is the old text or the new,
// and the new one once OK was returned.
TEST(WriteFileAtomicallyTest, SurvivesPowerLossAtEveryCall) {
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    for (int64_t k = 0; k <= 6; ++k) {
      test::FaultyEnv env;
      HOTROW_ASSERT_OK(WriteFileAtomically(env, "/a", std::string(10000, 'o')));
      env.FailFrom(env.calls() + k, absl::UnavailableError("power"));
      const absl::Status status = WriteFileAtomically(env, "/a", std::string(9000, 'n'));
      EXPECT_EQ(status.ok(), k == 6);
      env.FailFrom(INT64_MAX, absl::OkStatus());
      env.LosePower(seed);
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env, "/a"));
      if (status.ok()) {
        EXPECT_EQ(text, std::string(9000, 'n'));
      } else {
        EXPECT_THAT(text, testing::AnyOf(std::string(10000, 'o'), std::string(9000, 'n')));
      }
    }
  }
}

TEST(FullIoTest, ShortCallsAreContinued) {
  const std::string text = "a text of some length";
  for (int64_t k = 1; k < 12; ++k) {  // call 0 is the opening
    test::FaultyEnv env;
    for (int64_t j = 0; j <= k; ++j) env.ShortenCall(j);
    HOTROW_ASSERT_OK(WriteFileAtomically(env, "/a", text));
    for (int64_t j = 0; j <= k; ++j) env.ShortenCall(env.calls() + j);
    EXPECT_EQ(*ReadFileToString(env, "/a"), text);
    EXPECT_GT(env.faults(), k > 5 ? 2 : 0);
  }
}

TEST(FullIoTest, FileThatShrinksWhileItIsReadIsDataLoss) {
  // Size() says 5, but the file ends before: what a truncation between the two calls looks like.
  test::MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env.Open("/a", OpenMode::kCreate));
  HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes("123")));
  std::byte buffer[5];
  EXPECT_THAT(ReadFull(*file, 0, buffer), test::StatusIs(Code::kDataLoss, HasSubstr("byte 3")));
}

// A file system that takes nothing must not hang the writer.
TEST(FullIoTest, WriteThatMakesNoProgressIsAnError) {
  class StuckFile : public File {
   public:
    absl::StatusOr<int64_t> ReadAt(int64_t, std::span<std::byte>) override { return 0; }
    absl::StatusOr<int64_t> WriteAt(int64_t, std::span<const std::byte>) override { return 0; }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::StatusOr<int64_t> Size() override { return 0; }
    absl::Status Truncate(int64_t) override { return absl::OkStatus(); }
    absl::Status Close() override { return absl::OkStatus(); }
    const std::string& path() const override { return path_; }

   private:
    std::string path_ = "/stuck";
  };
  StuckFile file;
  EXPECT_THAT(WriteFull(file, 0, Bytes("x")), test::StatusIs(Code::kInternal, HasSubstr("/stuck")));
}

TEST(PosixEnvTest, RelativePathsWork) {
  const std::string name = "hotrow_env_test_relative";
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), name, "x"));
  EXPECT_EQ(*ReadFileToString(PosixEnv(), name), "x");
  HOTROW_EXPECT_OK(PosixEnv().Remove(name));
}

TEST(HeldDirectoryTest, KnowsWhetherItsPathStillLeadsThere) {
  const std::string dir = test::TempDir();
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir + "/a"));
  const HeldDirectory held(dir + "/a");
  HOTROW_EXPECT_OK(held.CheckInPlace());
  const auto gone = test::StatusIs(Code::kFailedPrecondition, HasSubstr(dir + "/a: the directory"));
  HOTROW_ASSERT_OK(PosixEnv().Rename(dir + "/a", dir + "/b"));
  EXPECT_THAT(held.CheckInPlace(), gone);
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir + "/a"));  // another one
  EXPECT_THAT(held.CheckInPlace(), gone);
  HOTROW_ASSERT_OK(PosixEnv().RemoveDir(dir + "/a"));
  HOTROW_ASSERT_OK(PosixEnv().Rename(dir + "/b", dir + "/a"));
  HOTROW_EXPECT_OK(held.CheckInPlace());
  HOTROW_EXPECT_OK(HeldDirectory(dir + "/none").CheckInPlace());
}

}  // namespace
}  // namespace hotrow
