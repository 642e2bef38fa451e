// hotrow trace, as an operator runs it.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "cache/access_trace.h"
#include "cache/cache_policies.h"
#include "cache/cache_policy.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteIds(std::string_view text) {
  const std::string path = test::TempDir() + "/ids.txt";
  HOTROW_EXPECT_OK(WriteFileAtomically(PosixEnv(), path, text));
  return path;
}

nlohmann::json Json(const std::vector<std::string>& arguments) {
  const ProgramResult result = RunHotrow(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return nlohmann::json::parse(result.out, nullptr, false);
}

TEST(TraceCliTest, MrcPrintsTheCurve) {
  const std::string path = WriteIds("1\n2\n3\n1\n1\n3\n2\n");
  const nlohmann::json json = Json({"trace", "mrc", path, "--rows=1,2,3", "--at=", "--json"});
  EXPECT_EQ(json["distinct"], 3);
  EXPECT_EQ(json["accesses"], 7);
  ASSERT_EQ(json["points"].size(), 3u);
  for (int size = 1; size <= 3; ++size) {
    const nlohmann::json& point = json["points"][static_cast<size_t>(size) - 1];
    EXPECT_EQ(point["size"], size);
    EXPECT_DOUBLE_EQ(point["hit_rate"].get<double>(), (size == 3 ? 4.0 : size) / 7);
  }
  const ProgramResult text = RunHotrow({"trace", "mrc", path, "--at", "0.4,1"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("7 accesses, 3 distinct keys"), HasSubstr("57.1 %")));
}

TEST(TraceCliTest, MrcSimulatesOurCache) {
  std::string ids;
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&ids, i % 2 == 0 ? i % 20 : 1000 + i, "\n");
  const std::string path = WriteIds(ids);
  for (const CachePolicyFacts& facts : CachePolicies()) {
    const std::string policy = absl::StrCat("hotrow-", std::string(facts.name));
    const nlohmann::json json =
        Json({"trace", "mrc", path, "--rows=64", "--at=", absl::StrCat("--policy=", policy),
              "--step_lookups=8", "--json"});
    EXPECT_EQ(json["points"][0]["size"], 64);
    // Ten keys come back every 20 accesses: half of the accesses, less their first uses.
    EXPECT_NEAR(json["points"][0]["hit_rate"].get<double>(), 0.4975, 1e-9) << policy;
  }
}

TEST(TraceCliTest, SampledCurvesSayWhatTheyMayBeOffBy) {
  std::string ids;
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&ids, (i * 7919) % 5000, "\n");
  const nlohmann::json json = Json(
      {"trace", "mrc", WriteIds(ids), "--at=0.5,1", "--sample_rate=0.2", "--seed=3", "--json"});
  EXPECT_NEAR(json["distinct"].get<double>(), 5000, 400);
  for (const nlohmann::json& point : json["points"]) EXPECT_TRUE(point.contains("error"));
}

TEST(TraceCliTest, InfoDescribesAFile) {
  const std::string path = WriteIds("5\n5\n5\n6\n");
  const nlohmann::json json = Json({"trace", "info", path, "--json"});
  EXPECT_EQ(json["accesses"], 4);
  EXPECT_EQ(json["distinct"], 2);
  EXPECT_EQ(json["used_once"], 1);
  EXPECT_EQ(json["format"], "text");
  const ProgramResult text = RunHotrow({"trace", "info", path});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("Zipf exponent"), HasSubstr("distinct keys")));
}

TEST(TraceCliTest, ReadsRecordedTracesTableByTable) {
  const std::string path = test::TempDir() + "/trace";
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto writer,
      AccessTraceWriter::Open(
          {.path = path, .tables = {{0, "users"}, {1, "items"}}, .sample_rate = 0.5}));
  for (uint64_t step = 0; step < 50; ++step) {
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 400; ++i) keys.push_back((step * 100 + i) % 1000);
    HOTROW_ASSERT_OK(writer->Add(0, keys, {}));
    HOTROW_ASSERT_OK(writer->Add(1, std::span(keys).first(10), {}));
    HOTROW_ASSERT_OK(writer->EndStep(step, 100));
  }
  HOTROW_ASSERT_OK(writer->Close());

  const nlohmann::json info = Json({"trace", "info", path, "--json"});
  EXPECT_EQ(info["steps"], 50);
  EXPECT_EQ(info["complete"], true);
  ASSERT_EQ(info["tables"].size(), 2u);
  EXPECT_EQ(info["tables"][0]["accesses"], 20'000);
  EXPECT_NEAR(info["tables"][0]["distinct"].get<double>(), 1000, 150);

  for (const char* const policy : {"lru", "hotrow-lru"}) {
    const nlohmann::json mrc = Json({"trace", "mrc", path, "--rows=500,1000", "--at=", "--json",
                                     absl::StrCat("--policy=", policy)});
    EXPECT_EQ(mrc["accesses"], 20'500);
    ASSERT_EQ(mrc["tables"].size(), 2u);
    EXPECT_EQ(mrc["tables"][0]["name"], "users");
    // A step has 300 of the keys of the step before, and the others come back after ten steps.
    EXPECT_NEAR(mrc["tables"][0]["points"][0]["hit_rate"].get<double>(), 0.745, 0.06) << policy;
  }
  const nlohmann::json users =
      Json({"trace", "mrc", path, "--rows=500", "--at=", "--table=users", "--json"});
  EXPECT_EQ(users["accesses"], 20'000);
  EXPECT_FALSE(users.contains("tables"));
  ExpectRefused({"trace", "mrc", path, "--table=nobody"},
                AllOf(HasSubstr("nobody"), HasSubstr("users, items")));
}

TEST(TraceCliTest, BadInputIsOneLine) {
  const std::string path = WriteIds("1\nb\n");
  ExpectRefused({"trace"}, HasSubstr("is missing"));
  ExpectRefused({"trace", "record", path}, AllOf(HasSubstr("record"), HasSubstr("info, mrc")));
  ExpectRefused({"trace", "info"}, HasSubstr("FILE is missing"));
  ExpectRefused({"trace", "info", path}, AllOf(HasSubstr("line 2"), HasSubstr("\"b\"")));
  ExpectRefused({"trace", "info", "/no/such"}, HasSubstr("/no/such"));
  ExpectRefused({"trace", "mrc", path, "--at=0"}, AllOf(HasSubstr("--at"), HasSubstr("fraction")));
  ExpectRefused({"trace", "mrc", path, "--rows=x"}, HasSubstr("--rows"));
  ExpectRefused({"trace", "mrc", path, "--at=", "--rows="}, HasSubstr("name a size"));
  ExpectRefused({"trace", "mrc", path, "--policy=arc"},
                AllOf(HasSubstr("arc"), HasSubstr("hotrow-lfu")));
  ExpectRefused({"trace", "mrc", path, "--policy=hotrow-lru", "--sample_rate=0.1"},
                HasSubstr("--sample_rate"));
  ExpectRefused({"trace", "mrc", path, "--keys_max=3"}, HasSubstr("--keys_max"));
  ExpectRefused({"trace", "mrc", path, "--format=csv"}, HasSubstr("--format"));
  ExpectRefused({"trace", "mrc", path, "--table=a"}, HasSubstr("--table"));
  ExpectRefused({"trace", "mrc", path, "--sample_rate=2"}, HasSubstr("sample_rate"));
}

TEST(TraceCliTest, HasHelp) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"trace", "--help"}, {"trace", "mrc", "--help"}, {"trace", "info", "-h"}}) {
    const ProgramResult result = RunHotrow(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("Usage: hotrow trace"));
  }
}

}  // namespace
}  // namespace hotrow
