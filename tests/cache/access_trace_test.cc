#include "cache/access_trace.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AccessTraceOptions Options(const std::string& path, double rate) {
  return {.path = path, .tables = {{3, "users"}, {8, ""}}, .sample_rate = rate, .seed = 17};
}

// `steps` steps; step s has keys s .. s + 199 in table 3, key k looked up k % 5 + 1 times, and keys
// 0 .. 9 in table 8.
void WriteSteps(AccessTraceWriter& writer, uint64_t steps) {
  for (uint64_t step = 0; step < steps; ++step) {
    std::vector<uint64_t> keys;
    std::vector<int32_t> lookups;
    for (uint64_t key = step; key < step + 200; ++key) {
      keys.push_back(key);
      lookups.push_back(static_cast<int32_t>(key % 5) + 1);
    }
    HOTROW_ASSERT_OK(writer.Add(3, keys, lookups));
    keys.resize(10);
    for (uint64_t key = 0; key < 10; ++key) keys[key] = key;
    HOTROW_ASSERT_OK(writer.Add(8, keys, {}));
    HOTROW_ASSERT_OK(writer.EndStep(step, 64));
  }
}

std::string WriteTrace(double rate, uint64_t steps) {
  const std::string path = test::TempDir() + "/trace";
  auto writer = AccessTraceWriter::Open(Options(path, rate));
  HOTROW_EXPECT_OK(writer);
  WriteSteps(**writer, steps);
  HOTROW_EXPECT_OK((*writer)->Close());
  return path;
}

TEST(AccessTraceTest, GivesBackWhatWasWritten) {
  const std::string path = WriteTrace(1, 40);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, AccessTraceReader::Open(PosixEnv(), path));
  ASSERT_EQ(reader->tables().size(), 2u);
  EXPECT_EQ(reader->tables()[0].table, 3u);
  EXPECT_EQ(reader->tables()[0].name, "users");
  EXPECT_EQ(reader->tables()[1].name, "");
  EXPECT_EQ(reader->sample_rate(), 1);
  EXPECT_EQ(reader->seed(), 17u);
  AccessTraceStep step;
  for (uint64_t s = 0; s < 40; ++s) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool more, reader->Next(&step));
    ASSERT_TRUE(more);
    EXPECT_EQ(step.step, s);
    EXPECT_EQ(step.samples, 64u);
    ASSERT_EQ(step.tables.size(), 2u);
    const AccessTraceStep::Table& users = step.tables[0];
    EXPECT_EQ(users.unique_keys, 200);
    EXPECT_EQ(users.lookups, 200 * 3);  // 40 of each of 1 .. 5
    ASSERT_EQ(users.keys.size(), 200u);
    for (uint64_t i = 0; i < 200; ++i) {
      EXPECT_EQ(users.keys[i], s + i);
      EXPECT_EQ(users.counts[i], (s + i) % 5 + 1);
    }
    EXPECT_EQ(step.tables[1].table, 8u);
    EXPECT_EQ(step.tables[1].keys.size(), 10u);
    EXPECT_EQ(step.tables[1].counts[9], 1u);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool more, reader->Next(&step));
  EXPECT_FALSE(more);
  EXPECT_TRUE(reader->complete());
}

TEST(AccessTraceTest, ASampleHasItsKeysAlwaysOrNeverAndAllCounts) {
  const std::string path = WriteTrace(0.25, 40);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, AccessTraceReader::Open(PosixEnv(), path));
  EXPECT_NEAR(reader->sample_rate(), 0.25, 1e-12);
  const KeySampler sampler(17, 3);
  AccessTraceStep step;
  for (uint64_t s = 0; s < 40; ++s) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool more, reader->Next(&step));
    ASSERT_TRUE(more);
    std::vector<uint64_t> expected;
    for (uint64_t key = s; key < s + 200; ++key) {
      if (sampler.IsSampled(key, reader->sample_limit())) expected.push_back(key);
    }
    EXPECT_EQ(step.tables[0].keys, expected);
    EXPECT_EQ(step.tables[0].unique_keys, 200);
    EXPECT_EQ(step.tables[0].lookups, 600);
  }
}

// Wherever a killed writer left the file, whole steps are read and the end is told apart.
TEST(AccessTraceTest, AFileThatEndsAnywhereGivesItsWholeSteps) {
  const std::string path = WriteTrace(0.1, 5);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string whole, ReadFileToString(PosixEnv(), path));
  for (size_t size = 0; size < whole.size(); ++size) {
    test::FaultyEnv env;
    HOTROW_ASSERT_OK(WriteFileAtomically(env, "/cut", whole.substr(0, size)));
    const auto reader = AccessTraceReader::Open(env, "/cut");
    if (!reader.ok()) {
      EXPECT_LT(size, 100u);  // within the header
      continue;
    }
    AccessTraceStep step;
    int steps = 0;
    while (true) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const bool more, (*reader)->Next(&step));
      if (!more) break;
      EXPECT_EQ(step.step, static_cast<uint64_t>(steps));
      ++steps;
    }
    EXPECT_LE(steps, 5);
    EXPECT_FALSE((*reader)->complete());
  }
}

TEST(AccessTraceTest, EveryFlippedByteIsFoundAndNamed) {
  const std::string path = WriteTrace(0.1, 3);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string whole, ReadFileToString(PosixEnv(), path));
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    test::FaultyEnv env;
    HOTROW_ASSERT_OK(WriteFileAtomically(env, "/bad", bytes));
    const auto reader = AccessTraceReader::Open(env, "/bad");
    absl::Status status = reader.status();
    bool complete = false;
    if (reader.ok()) {
      AccessTraceStep step;
      absl::StatusOr<bool> more = true;
      while (more.ok() && *more) more = (*reader)->Next(&step);
      status = more.status();
      complete = (*reader)->complete();
    }
    // A length that now points behind the file looks like the end of a killed writer's file.
    EXPECT_FALSE(status.ok() && complete) << "byte " << at;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("/bad")) << "byte " << at;
    }
  }
}

TEST(AccessTraceTest, TellsOtherFilesAndNewerFormatsApart) {
  const std::string path = test::TempDir() + "/other";
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path, "1\n2\n3\n"));
  EXPECT_THAT(AccessTraceReader::Open(PosixEnv(), path).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no access trace")));
  std::string newer(64, '\0');
  newer.replace(0, 12, std::string("HOTROWTR\2\0\0\0", 12));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path, newer));
  EXPECT_THAT(AccessTraceReader::Open(PosixEnv(), path).status(),
              test::StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr(path), HasSubstr("version 2"))));
}

// An error of the file is reported by the call that meets it and by every one after it.
TEST(AccessTraceTest, EveryFailedFileCallIsReported) {
  for (int64_t k = 0;; ++k) {
    test::FaultyEnv env;
    env.FailCall(k, absl::ResourceExhaustedError("injected"));
    AccessTraceOptions options = Options("/trace", 1);
    options.env = &env;
    auto writer = AccessTraceWriter::Open(options);
    absl::Status status = writer.status();
    if (status.ok()) {
      WriteSteps(**writer, 3);
      status = (*writer)->Close();
    }
    if (env.faults() == 0) {
      HOTROW_EXPECT_OK(status);
      EXPECT_GE(k, 4);  // open, header, steps, sync
      break;
    }
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("injected")))
        << "call " << k;
  }
}

TEST(AccessTraceTest, BadOptionsAreNamed) {
  const auto expect = [](const AccessTraceOptions& options, const char* what) {
    EXPECT_THAT(AccessTraceWriter::Open(options).status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  expect({.path = "", .tables = {{1, "a"}}}, "path");
  expect({.path = "x"}, "at least one table");
  expect({.path = "x", .tables = {{1, "a"}, {1, "b"}}}, "table 1 occurs twice");
  expect({.path = "x", .tables = {{1, "a"}}, .sample_rate = 0}, "sample_rate");
}

}  // namespace
}  // namespace hotrow
