#include "models/train/progress.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string ReadBack(std::FILE* file) {
  std::rewind(file);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

class PlainProgressTest : public testing::Test {
 protected:
  PlainProgressTest() : file_(std::tmpfile()) {}
  ~PlainProgressTest() override { std::fclose(file_); }
  std::FILE* file_;
};

TEST_F(PlainProgressTest, ShortJobPrintsOnlyItsLastState) {
  {
    Progress progress(file_, "train", "samples", 1000);
    for (int i = 0; i <= 900; ++i) progress.Update(i, "loss 0.5");
  }
  const std::string text = ReadBack(file_);
  EXPECT_THAT(text, StartsWith("train  90%  "));
  EXPECT_THAT(text, HasSubstr("samples/s"));
  EXPECT_THAT(text, EndsWith("  loss 0.5\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST_F(PlainProgressTest, PrintGoesToALineOfItsOwn) {
  Progress progress(file_, "train", "samples", 10);
  progress.Update(5, "");
  progress.Print("validation AUC 0.79");
  EXPECT_EQ(ReadBack(file_), "validation AUC 0.79\n");
}

TEST_F(PlainProgressTest, AfterFinishNothingIsPrinted) {
  {
    Progress progress(file_, "job", "rows", 10);
    progress.Update(10, "");
    progress.Finish();
    const std::string text = ReadBack(file_);
    EXPECT_THAT(text, StartsWith("job 100%"));
    progress.Update(3, "late");
    progress.Print("late");
    progress.Finish();
    EXPECT_EQ(ReadBack(file_), text);
  }
  EXPECT_THAT(ReadBack(file_), Not(HasSubstr("late")));
}

TEST_F(PlainProgressTest, UnknownTotalShowsTheCount) {
  {
    Progress progress(file_, "scan", "rows", 0);
    progress.Update(12'345'678, "");
  }
  EXPECT_THAT(ReadBack(file_), StartsWith("scan 12.35 M rows  "));
  EXPECT_THAT(ReadBack(file_), Not(HasSubstr("%")));
}

TEST_F(PlainProgressTest, MoreThanTheTotalIsNotMoreThanAll) {
  {
    Progress progress(file_, "job", "rows", 10);
    progress.Update(11, "");
  }
  EXPECT_THAT(ReadBack(file_), StartsWith("job 100%"));
}

TEST_F(PlainProgressTest, TheRateLeavesOutWhatWasDoneBefore) {
  {
    Progress progress(file_, "train", "samples", 1000);
    progress.StartAt(900);
    progress.Update(900, "");
  }
  EXPECT_THAT(ReadBack(file_), StartsWith("train  90%  0 samples/s  "));
}

TEST_F(PlainProgressTest, NothingDoneIsFine) {
  { Progress progress(file_, "job", "rows", 10); }
  EXPECT_THAT(ReadBack(file_), StartsWith("job   0%  0 rows/s"));
}

// A pseudo terminal whose other side is read while the job runs.
class TerminalProgressTest : public testing::Test {
 protected:
  // Runs the job on a terminal of `columns` and returns what it wrote.
  template <typename Job>
  std::string Run(uint16_t columns, const Job& job) {
    int master = -1;
    int slave = -1;
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = columns;
    if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) return "";
    std::string text;
    // Reading fails with EIO once the other side is closed.
    std::thread reader([&] {
      char buffer[4096];
      for (ssize_t n; (n = read(master, buffer, sizeof(buffer))) > 0;) {
        text.append(buffer, static_cast<size_t>(n));
      }
    });
    std::FILE* file = fdopen(slave, "w");
    job(file);
    std::fclose(file);
    reader.join();
    close(master);
    return text;
  }

  // The lines that were drawn, without what clears them.
  static std::vector<std::string> Drawn(std::string text) {
    std::vector<std::string> lines;
    const std::string clear = "\r\x1b[K";
    for (size_t begin; (begin = text.find(clear)) != std::string::npos;) {
      text.erase(0, begin + clear.size());
      lines.push_back(text.substr(0, text.find_first_of("\r\n")));
    }
    return lines;
  }
};

TEST_F(TerminalProgressTest, RedrawsOneLineAndEndsIt) {
  const std::string text = Run(100, [](std::FILE* file) {
    Progress progress(file, "train", "samples", 1000);
    for (int i = 1; i <= 500; ++i) progress.Update(i, "loss 0.5");
  });
  if (text.empty()) GTEST_SKIP() << "no pseudo terminal here";
  const std::vector<std::string> lines = Drawn(text);
  ASSERT_GE(lines.size(), 2u);  // the first update at once, and the last state
  EXPECT_THAT(lines.front(),
              ContainsRegex("^train   0% \\[\\.{20}\\]  .* samples/s  .* left  loss"));
  EXPECT_THAT(lines.back(), StartsWith("train  50% [##########..........]  "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(text, EndsWith("\n"));
}

TEST_F(TerminalProgressTest, AJobThatMayEndEarlyShowsABound) {
  const std::string text = Run(80, [](std::FILE* file) {
    Progress progress(file, "train", "samples", 1000);
    progress.MayEndEarly();
    progress.Update(500, "");
  });
  if (text.empty()) GTEST_SKIP() << "no pseudo terminal here";
  EXPECT_THAT(text, ContainsRegex("samples/s  at most [0-9:]+ left"));
}

TEST_F(TerminalProgressTest, NeverFillsTheLastColumnNorCutsACharacter) {
  for (const uint16_t columns : {1, 2, 10, 40, 60, 80}) {
    const std::string text = Run(columns, [](std::FILE* file) {
      Progress progress(file, "train", "samples", 1000);
      progress.Update(1, "ééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé");
    });
    if (text.empty()) GTEST_SKIP() << "no pseudo terminal here";
    for (const std::string& line : Drawn(text)) {
      int characters = 0;
      for (const char c : line) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
      EXPECT_LE(characters, columns - 1) << line;
      // 0xc3 is the first of two bytes.
      EXPECT_THAT(line, Not(EndsWith("\xc3")));
    }
    EXPECT_FALSE(Drawn(text).empty());
  }
}

TEST_F(TerminalProgressTest, WithoutASizeItIsALog) {
  const std::string text = Run(0, [](std::FILE* file) {
    Progress progress(file, "train", "samples", 1000);
    for (int i = 1; i <= 500; ++i) progress.Update(i, std::string(200, 'x'));
  });
  if (text.empty()) GTEST_SKIP() << "no pseudo terminal here";
  EXPECT_THAT(text, StartsWith("train  50%  "));
  EXPECT_THAT(text, EndsWith(std::string(200, 'x') + "\r\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(TerminalProgressTest, PrintClearsTheBarAndDrawsItAgainBelow) {
  const std::string text = Run(80, [](std::FILE* file) {
    Progress progress(file, "train", "samples", 1000);
    progress.Update(500, "");
    progress.Print("validation AUC 0.79");
  });
  if (text.empty()) GTEST_SKIP() << "no pseudo terminal here";
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kvalidation AUC 0.79\r\n\r\x1b[Ktrain  50%"));
}

}  // namespace
}  // namespace hotrow
