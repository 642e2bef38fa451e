#include "models/data/byte_stream.h"

#include "base/philox.h"
#include "models/data/line_reader.h"
#include "tests/models/file_builders.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::FaultyEnv;
using test::Gzip;
using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

// Text that compresses, but not to nothing.
std::string RandomText(uint64_t seed, int64_t bytes) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::string text;
  while (static_cast<int64_t>(text.size()) < bytes) {
    absl::StrAppend(&text, random.Below(1000), random.Below(9) == 0 ? "\n" : "\t");
  }
  text.resize(static_cast<size_t>(bytes));
  return text;
}

absl::StatusOr<std::string> ReadAll(ByteStream& stream, size_t step) {
  std::string text;
  std::string part(step, '\0');
  while (true) {
    auto got = stream.Read(std::as_writable_bytes(std::span(part)));
    if (!got.ok()) return got.status();
    if (*got == 0) return text;
    text.append(part, 0, static_cast<size_t>(*got));
  }
}

absl::StatusOr<std::string> ReadFileText(Env& env, const std::string& path, size_t step = 100'003) {
  auto stream = OpenTextFile(env, path);
  if (!stream.ok()) return stream.status();
  return ReadAll(**stream, step);
}

TEST(ByteStreamTest, PlainAndGzipGiveTheSameText) {
  // 6 MB are more than the read-ahead holds, so its blocks are used again.
  const std::string text = RandomText(1, 6'000'000);
  MemEnv env;
  WriteFileOrDie(env, "/plain", text);
  WriteFileOrDie(env, "/gzip", Gzip(text));
  for (const char* path : {"/plain", "/gzip"}) {
    for (const size_t step : {100'003, 1 << 20, 3 << 20}) {
      const auto read = ReadFileText(env, path, step);
      HOTROW_ASSERT_OK(read);
      EXPECT_TRUE(*read == text) << path << " " << step;
    }
  }
  // One byte at a time leaves zlib with output but without input.
  const std::string small = text.substr(0, 5000);
  WriteFileOrDie(env, "/small", Gzip(small));
  EXPECT_EQ(*ReadFileText(env, "/small", 1), small);
}

TEST(ByteStreamTest, ShortFilesAreText) {
  MemEnv env;
  for (const char* text : {"", "a", "\x1f", "ab", "\x1fx"}) {
    WriteFileOrDie(env, "/file", text);
    EXPECT_EQ(*ReadFileText(env, "/file"), text);
  }
}

TEST(ByteStreamTest, GzipMembersFollowEachOtherAndZerosPad) {
  MemEnv env;
  const std::string members = Gzip("one\n") + Gzip("") + Gzip("two\n");
  WriteFileOrDie(env, "/file", members);
  EXPECT_EQ(*ReadFileText(env, "/file"), "one\ntwo\n");
  WriteFileOrDie(env, "/file", members + std::string(700'000, '\0'));
  EXPECT_EQ(*ReadFileText(env, "/file"), "one\ntwo\n");
  WriteFileOrDie(env, "/file", members + "rubbish");
  EXPECT_THAT(ReadFileText(env, "/file"),
              StatusIs(kDataLoss, HasSubstr(absl::StrCat("/file: compressed data is followed by ",
                                                         "what is neither gzip nor zeros at byte ",
                                                         members.size()))));
  WriteFileOrDie(env, "/file", members + std::string(5, '\0') + Gzip("three\n"));
  EXPECT_THAT(ReadFileText(env, "/file"), StatusIs(kDataLoss, HasSubstr("/file")));
}

TEST(ByteStreamTest, EveryTruncatedGzipIsDataLossWithFileAndOffset) {
  MemEnv env;
  const std::string whole = Gzip(RandomText(2, 400));
  for (size_t size = 2; size < whole.size(); ++size) {
    WriteFileOrDie(env, "/logs/day", whole.substr(0, size));
    EXPECT_THAT(ReadFileText(env, "/logs/day"),
                StatusIs(kDataLoss, AllOf(HasSubstr("/logs/day: "), HasSubstr("truncated"),
                                          HasSubstr(absl::StrCat("at byte ", size)))));
  }
}

// A few flips only choose another way to write the same text.
TEST(ByteStreamTest, NoFlippedBitInGzipGivesWrongText) {
  const std::string text = RandomText(3, 2000);
  const std::string whole = Gzip(text);
  int same = 0;
  for (size_t bit = 8 * 10; bit < 8 * whole.size(); ++bit) {  // behind the header
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto stream = NewInflateStream(NewMemoryStream(damaged), Compression::kGzip, "/logs/day");
    const auto read = ReadAll(*stream, 512);
    if (read.ok()) {
      EXPECT_EQ(*read, text) << bit;
      ++same;
    } else {
      EXPECT_THAT(read, StatusIs(kDataLoss, HasSubstr("/logs/day: "))) << bit;
    }
  }
  EXPECT_LT(same, static_cast<int>(whole.size() / 4));
}

TEST(ByteStreamTest, ErrorsOfTheEnvReachTheReader) {
  const std::string plain = RandomText(4, 900'000);
  for (const std::string& file : {plain, Gzip(plain)}) {
    int64_t k = 0;
    for (;; ++k) {
      FaultyEnv env;
      WriteFileOrDie(env, "/file", file);
      env.FailCall(env.calls() + k, absl::DataLossError("injected"));
      const auto text = ReadFileText(env, "/file");
      if (env.faults() == 0) {
        HOTROW_EXPECT_OK(text);
        break;
      }
      EXPECT_THAT(text, StatusIs(kDataLoss, HasSubstr("injected")));
    }
    EXPECT_GE(k, 4);  // open, size, magic and one read at least
  }
}

TEST(ByteStreamTest, ShortReadsAreNoEnd) {
  const std::string text = RandomText(5, 3'000'000);
  for (int64_t k = 3; k < 6; ++k) {
    FaultyEnv env;
    WriteFileOrDie(env, "/file", Gzip(text));
    env.ShortenCall(env.calls() + k);
    const auto read = ReadFileText(env, "/file");
    HOTROW_ASSERT_OK(read);
    EXPECT_TRUE(*read == text);
  }
}

TEST(ByteStreamTest, SkipPassesOverBytes) {
  MemEnv env;
  const std::string text = RandomText(6, 200'000);
  WriteFileOrDie(env, "/plain", text);
  WriteFileOrDie(env, "/gzip", Gzip(text));
  for (const char* path : {"/plain", "/gzip"}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto stream, OpenTextFile(env, path));
    HOTROW_ASSERT_OK(stream->Skip(0));
    HOTROW_ASSERT_OK(stream->Skip(150'001));
    EXPECT_EQ(*ReadAll(*stream, 1000), text.substr(150'001));
    HOTROW_ASSERT_OK_AND_ASSIGN(stream, OpenTextFile(env, path));
    EXPECT_THAT(stream->Skip(200'001), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("")));
  }
}

TEST(ByteStreamTest, ReadAheadMayBeGivenUpEarly) {
  const std::string text = RandomText(7, 12'000'000);
  for (int i = 0; i < 20; ++i) {
    const auto stream = NewReadAheadStream(NewMemoryStream(text));
    std::byte some[10];
    for (int j = 0; j < i % 3; ++j) HOTROW_ASSERT_OK(stream->Read(some));
  }
}

std::vector<std::string> Lines(std::string_view text) {
  LineReader reader(NewMemoryStream(text));
  std::vector<std::string> lines;
  std::string_view line;
  while (reader.Next(&line)) {
    lines.emplace_back(line);
    EXPECT_EQ(reader.line_number(), static_cast<int64_t>(lines.size()));
  }
  HOTROW_EXPECT_OK(reader.status());
  EXPECT_FALSE(reader.Next(&line));
  return lines;
}

TEST(LineReaderTest, EndsAreLfOrCrlfAndTheLastMayLackIts) {
  EXPECT_THAT(Lines(""), ElementsAre());
  EXPECT_THAT(Lines("a"), ElementsAre("a"));
  EXPECT_THAT(Lines("a\n"), ElementsAre("a"));
  EXPECT_THAT(Lines("\n"), ElementsAre(""));
  EXPECT_THAT(Lines("a\nb"), ElementsAre("a", "b"));
  EXPECT_THAT(Lines("a\r\n\r\nb\r\n"), ElementsAre("a", "", "b"));
  EXPECT_THAT(Lines("a\r\nb\r"), ElementsAre("a", "b"));
  EXPECT_THAT(Lines("a\rb\n\r\r\n"), ElementsAre("a\rb", "\r"));
}

TEST(LineReaderTest, LinesOfAnyLengthCrossTheBlocks) {
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<std::string> expected;
    std::string text;
    while (text.size() < 3 * LineReader::kBlockBytes) {
      const uint64_t most = random.Below(50) == 0 ? 2 * LineReader::kBlockBytes : 2000;
      expected.emplace_back(random.Below(most), static_cast<char>('a' + random.Below(26)));
      absl::StrAppend(&text, expected.back(), random.Below(2) == 0 ? "\n" : "\r\n");
    }
    EXPECT_TRUE(Lines(text) == expected);
  }
}

TEST(LineReaderTest, ALineWithoutEndIsAnErrorAndBoundsMemory) {
  const std::string text = "first\n" + std::string(3 * LineReader::kMaxLineBytes, '\0');
  LineReader reader(NewMemoryStream(text));
  std::string_view line;
  ASSERT_TRUE(reader.Next(&line));
  EXPECT_FALSE(reader.Next(&line));
  EXPECT_THAT(reader.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("longer than 16777216 bytes")));
}

}  // namespace
}  // namespace hotrow
