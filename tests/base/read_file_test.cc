#include "base/read_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// A file that says one size and has another.
class LyingFile : public File {
 public:
  LyingFile(int64_t size, int64_t bytes) : size_(size), bytes_(bytes) {}
  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    const int64_t n = std::min({bytes_ - offset, static_cast<int64_t>(bytes.size()), int64_t{3}});
    std::fill_n(bytes.begin(), n, std::byte{'x'});
    return n;
  }
  absl::StatusOr<int64_t> WriteAt(int64_t, std::span<const std::byte>) override { return 0; }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Size() override { return size_; }
  absl::Status Truncate(int64_t) override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }
  const std::string& path() const override { return path_; }

 private:
  const int64_t size_;
  const int64_t bytes_;
  const std::string path_ = "/lies";
};

class LyingEnv : public test::MemEnv {
 public:
  LyingEnv(int64_t size, int64_t bytes) : size_(size), bytes_(bytes) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string&, OpenMode) override {
    return std::make_unique<LyingFile>(size_, bytes_);
  }

 private:
  const int64_t size_;
  const int64_t bytes_;
};

TEST(ReadWholeFileTest, ReadsUpToTheLimit) {
  test::MemEnv env;
  for (const int64_t bytes : {0, 1, 4095, 4096, 4097, 20'000}) {
    const std::string text(static_cast<size_t>(bytes), 'a');
    HOTROW_ASSERT_OK(WriteFileAtomically(env, "/a", text));
    EXPECT_EQ(*ReadWholeFile(env, "/a", bytes), text);
    EXPECT_EQ(*ReadWholeFile(env, "/a", bytes + 1), text);
    if (bytes == 0) continue;
    EXPECT_THAT(
        ReadWholeFile(env, "/a", bytes - 1),
        test::StatusIs(Code::kDataLoss,
                       AllOf(HasSubstr("/a"), HasSubstr(absl::StrCat(bytes, " bytes")),
                             HasSubstr(absl::StrCat("at most ", bytes - 1)), HasSubstr("copy"))));
  }
  EXPECT_THAT(ReadWholeFile(env, "/b", 1), test::StatusIs(Code::kNotFound, HasSubstr("/b")));
}

// As files of /proc, devices and files that grow do.
TEST(ReadWholeFileTest, ASizeThatLiesIsNotTrusted) {
  for (const int64_t said : {0, 5, 9'999}) {
    LyingEnv env(said, 10'000);
    EXPECT_EQ(ReadWholeFile(env, "/lies", 10'000)->size(), 10'000u);
    EXPECT_THAT(ReadWholeFile(env, "/lies", 9'999),
                test::StatusIs(Code::kDataLoss, HasSubstr("more than 9999 bytes")));
    LyingEnv endless(said, INT64_MAX);
    EXPECT_THAT(ReadWholeFile(endless, "/lies", 1 << 20),
                test::StatusIs(Code::kDataLoss, HasSubstr("more than")));
  }
  LyingEnv shrinks(10, 5);
  EXPECT_THAT(ReadWholeFile(shrinks, "/lies", 100),
              test::StatusIs(Code::kDataLoss, HasSubstr("ends at byte 5")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string status,
                              ReadWholeFile(PosixEnv(), "/proc/self/status", 1 << 20));
  EXPECT_THAT(status, HasSubstr("VmSize"));
}

// 200 GB that take no room, and would take them in memory.
TEST(ReadWholeFileTest, ALargeFileIsRefusedBeforeItIsRead) {
  const std::string path = test::TempDir() + "/large";
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path, "x"));
  ASSERT_EQ(::truncate(path.c_str(), int64_t{200} << 30), 0);
  EXPECT_THAT(ReadWholeFile(PosixEnv(), path, kManifestBytesMax),
              test::StatusIs(Code::kDataLoss, AllOf(HasSubstr(path), HasSubstr("214748364800"))));
}

// None of them may block, and none is read.
TEST(PosixEnvTest, WhatIsNoRegularFileIsRefused) {
  const std::string dir = test::TempDir();
  const std::string fifo = dir + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string zero = dir + "/zero";
  ASSERT_EQ(::symlink("/dev/zero", zero.c_str()), 0);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {fifo, "is a FIFO"}, {zero, "is a character device"}, {"/dev/null", "is a character device"}};
  for (const auto& [path, what] : cases) {
    for (const OpenMode mode : {OpenMode::kRead, OpenMode::kReadWrite}) {
      EXPECT_THAT(PosixEnv().Open(path, mode).status(),
                  test::StatusIs(Code::kFailedPrecondition,
                                 AllOf(HasSubstr(path), HasSubstr(what), HasSubstr("regular"))));
    }
  }
  EXPECT_THAT(PosixEnv().Open(fifo, OpenMode::kTruncate).status(),
              test::StatusIs(Code::kFailedPrecondition, HasSubstr("is a FIFO")));
  EXPECT_FALSE(PosixEnv().Open(dir, OpenMode::kRead).ok());
  // What is written there is not wanted.
  HOTROW_EXPECT_OK(PosixEnv().Open("/dev/null", OpenMode::kTruncate).status());
}

}  // namespace
}  // namespace hotrow
