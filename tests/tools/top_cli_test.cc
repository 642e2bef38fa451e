// hotrow top, as an operator runs it.

#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/text_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Ten seconds after the beginning.
std::string Text(const std::string& state) {
  return "# TYPE hotrow_run_info gauge\n"
         "hotrow_run_info{model=\"dlrm\",device=\"cpu\",store=\"memory\"} 1\n"
         "# TYPE hotrow_run_state gauge\n"
         "hotrow_run_state{state=\"" +
         state +
         "\"} 1\n"
         "hotrow_run_start_timestamp_seconds 1700000000\n"
         "hotrow_metrics_timestamp_seconds 1700000010\n"
         "# TYPE hotrow_samples_total counter\n"
         "hotrow_samples_total 5000\n";
}

std::string Write(const std::string& text) {
  std::string file = test::TempDir() + "/run.prom";
  HOTROW_EXPECT_OK(WriteFileAtomically(PosixEnv(), file, text));
  return file;
}

TEST(TopCliTest, ShowsAFileOnce) {
  const ProgramResult result = RunHotrow({"top", Write(Text("training")), "--count=1"});
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_THAT(result.out, AllOf(HasSubstr("dlrm on the cpu over memory: training"),
                                HasSubstr("500 samples/s"), Not(HasSubstr("\x1b"))));
  // They are years old.
  EXPECT_THAT(result.out, HasSubstr("NUMBERS OF "));
}

TEST(TopCliTest, EndsWithTheRun) {
  const ProgramResult result = RunHotrow({"top", Write(Text("finished"))});
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_THAT(result.out, AllOf(HasSubstr("finished"), Not(HasSubstr("NUMBERS OF"))));
}

TEST(TopCliTest, ShowsAPortAgainAndAgain) {
  const auto text = std::make_shared<const std::string>(Text("training"));
  auto server = TextServer::Start({}, [text] { return text; });
  HOTROW_ASSERT_OK(server);
  const ProgramResult result =
      RunHotrow({"top", std::to_string((*server)->port()), "--count=3", "--every=0.1"});
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_EQ((*server)->answered(), 3);
  // The numbers do not change, so nothing happens between two screens.
  EXPECT_THAT(result.out, AllOf(HasSubstr("500 samples/s"), HasSubstr("\n  0 samples/s")));
}

TEST(TopCliTest, WhatIsNotThereIsSaidInALine) {
  ExpectRefused({"top"}, HasSubstr("SOURCE is missing"));
  ExpectRefused({"top", test::TempDir() + "/none.prom"},
                AllOf(HasSubstr("none.prom"), HasSubstr("SOURCE is a port")));
  ExpectRefused({"top", "0"}, HasSubstr("a port lies between"));
  ExpectRefused({"top", Write("no numbers at all")}, HasSubstr("is no file of metrics: line 1"));
  int32_t port = 0;
  {
    auto server = TextServer::Start({}, [] { return std::shared_ptr<const std::string>(); });
    HOTROW_ASSERT_OK(server);
    port = (*server)->port();
  }
  ExpectRefused({"top", std::to_string(port)}, HasSubstr("nobody serves there"));
}

}  // namespace
}  // namespace hotrow
