#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "base/file_hold.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class AtomicFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::string Read(const std::string& name) { return *ReadFileToString(env_, Path(name)); }
  absl::Status Write(const std::string& name, std::string_view text) {
    return WriteFileAtomically(env_, Path(name), text);
  }

  const std::string dir_ = test::TempDir();
  Env& env_ = PosixEnv();
};

TEST_F(AtomicFileTest, LinksStayAndWhatTheyLeadToIsReplaced) {
  fs::create_directory(Path("there"));
  fs::create_symlink("there/file", Path("one"));  // dangling so far
  fs::create_symlink("one", Path("two"));
  HOTROW_ASSERT_OK(Write("two", "new"));
  HOTROW_ASSERT_OK(ReplaceFile(env_, Path("one"), "newer"));
  EXPECT_TRUE(fs::is_symlink(Path("one")));
  EXPECT_TRUE(fs::is_symlink(Path("two")));
  EXPECT_EQ(Read("there/file"), "newer");
  EXPECT_FALSE(fs::exists(Path("there/file.tmp")));
  fs::create_symlink("circle", Path("circle"));
  EXPECT_THAT(Write("circle", ""),
              test::StatusIs(Code::kFailedPrecondition, HasSubstr(Path("circle"))));
}

TEST_F(AtomicFileTest, ADeviceStaysADevice) {
  if (::mknod(Path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "only root makes devices";
  }
  HOTROW_EXPECT_OK(Write("null", "into the void"));
  HOTROW_EXPECT_OK(ReplaceFile(env_, Path("null"), "into the void"));
  EXPECT_TRUE(fs::is_character_file(Path("null")));
  ASSERT_EQ(::mknod(Path("full").c_str(), S_IFCHR | 0666, makedev(1, 7)), 0);
  EXPECT_THAT(Write("full", "x"), test::StatusIs(Code::kResourceExhausted, HasSubstr("full")));
  ASSERT_EQ(::mknod(Path("disk").c_str(), S_IFBLK | 0600, makedev(7, 0)), 0);
  EXPECT_THAT(Write("disk", "x"),
              test::StatusIs(Code::kFailedPrecondition,
                             AllOf(HasSubstr(Path("disk")), HasSubstr("block device"))));
}

TEST_F(AtomicFileTest, AFifoIsWrittenOrRefusedAndStays) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(Write("fifo", "x"),
              test::StatusIs(Code::kFailedPrecondition, HasSubstr("nobody reads this FIFO")));
  const std::string text(300'000, 'x');  // more than it holds
  std::string got;
  const int fd = ::open(Path("fifo").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::fcntl(fd, F_SETFL, 0), 0);
  std::thread reader([&] {
    std::string piece(4096, '\0');
    while (got.size() < text.size()) {
      const ssize_t n = ::read(fd, piece.data(), piece.size());
      if (n > 0) got.append(piece, 0, static_cast<size_t>(n));
    }
  });
  HOTROW_EXPECT_OK(Write("fifo", text));
  reader.join();
  ::close(fd);
  EXPECT_EQ(got, text);
  EXPECT_TRUE(fs::is_fifo(Path("fifo")));
}

TEST_F(AtomicFileTest, AnOpenDescriptorIsWrittenWhereItStands) {
  const int fd = ::open(Path("log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "before ", 7), 7);
  HOTROW_EXPECT_OK(WriteFileAtomically(env_, "/dev/fd/" + std::to_string(fd), "report"));
  fs::create_symlink("/proc/self/fd/" + std::to_string(fd), Path("stdout"));
  HOTROW_EXPECT_OK(Write("stdout", " and another"));
  ASSERT_EQ(::write(fd, " after", 6), 6);
  ::close(fd);
  EXPECT_EQ(Read("log"), "before report and another after");
  EXPECT_TRUE(fs::is_symlink(Path("stdout")));
}

TEST_F(AtomicFileTest, ASocketIsRefusedByName) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  Path("s").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(Write("s", "x"), test::StatusIs(Code::kFailedPrecondition, HasSubstr("is a socket")));
  ::close(fd);
}

TEST(FileHoldTest, AHoldIsSeenByOthersAndEndsWithTheFile) {
  const std::string path = test::TempDir() + "/file";
  Env& env = PosixEnv();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto writer, env.Open(path, OpenMode::kCreate));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto reader, env.Open(path, OpenMode::kRead));
  EXPECT_FALSE(IsFileHeld(*writer));
  HoldFile(*reader);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto other, env.Open(path, OpenMode::kRead));
  HoldFile(*other);
  EXPECT_TRUE(IsFileHeld(*writer));
  reader.reset();
  EXPECT_TRUE(IsFileHeld(*writer));
  other.reset();
  EXPECT_FALSE(IsFileHeld(*writer));
}

}  // namespace
}  // namespace hotrow
