#include "models/train/mllog.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/test_util.h"

namespace hotrow {
namespace {

constexpr char kPrefix[] = ":::MLLOG ";

TEST(MlLoggerTest, WritesWhatMlperfToolsRead) {
  std::vector<std::string> lines;
  MlLogger log([&lines](std::string_view line) { lines.emplace_back(line); });
  const auto now_ms = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const int64_t before = now_ms();
  log.Start("run_start");
  log.Point("global_batch_size", int64_t{2048});
  log.Point("eval_accuracy", 0.8025, {{"epoch_num", 0.05}});
  log.Point("opt_name", std::string("ad\"am\n\xff"));
  log.End("run_stop", {{"status", std::string("success")}});
  const int64_t after = now_ms();

  ASSERT_EQ(lines.size(), 5u);
  std::vector<nlohmann::ordered_json> json;
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find('\n'), std::string::npos);
    ASSERT_EQ(line.substr(0, 9), kPrefix);
    json.push_back(nlohmann::ordered_json::parse(line.substr(9), nullptr, false));
    ASSERT_TRUE(json.back().is_object()) << line;
    std::vector<std::string> keys;
    for (const auto& [key, value] : json.back().items()) keys.push_back(key);
    EXPECT_EQ(keys, (std::vector<std::string>{"namespace", "time_ms", "event_type", "key", "value",
                                              "metadata"}));
    EXPECT_EQ(json.back()["namespace"], "");
    EXPECT_GE(json.back()["time_ms"].get<int64_t>(), before);
    EXPECT_LE(json.back()["time_ms"].get<int64_t>(), after);
  }
  EXPECT_EQ(json[0]["event_type"], "INTERVAL_START");
  EXPECT_EQ(json[0]["key"], "run_start");
  EXPECT_TRUE(json[0]["value"].is_null());
  EXPECT_EQ(json[0]["metadata"], nlohmann::ordered_json::object());
  EXPECT_EQ(json[1]["event_type"], "POINT_IN_TIME");
  EXPECT_EQ(json[1]["value"], 2048);
  EXPECT_EQ(json[2]["value"], 0.8025);
  EXPECT_EQ(json[2]["metadata"]["epoch_num"], 0.05);
  EXPECT_EQ(json[3]["value"], "ad\"am\n\xef\xbf\xbd");
  EXPECT_EQ(json[4]["event_type"], "INTERVAL_END");
  EXPECT_EQ(json[4]["metadata"]["status"], "success");
}

}  // namespace
}  // namespace hotrow
