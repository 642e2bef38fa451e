#include "tools/model_report.h"

#include <nlohmann/json.hpp>

#include "models/saving/store_paths.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CheckpointReport OfRanks(int32_t world_size) {
  CheckpointReport report;
  report.model.dir = "/c/step-000000000005";
  report.model.is_checkpoint = true;
  for (int32_t r = 0; r < world_size; ++r) {
    report.model.parts.push_back({.store = r == 0 ? "memory" : "ssd",
                                  .tables_dir = RankDir("/rows", r, world_size),
                                  .snapshot = static_cast<SnapshotId>(100 + r)});
    report.part_rows.push_back(r == 1 ? -1 : 7000 + r);
  }
  return report;
}

TEST(ModelReportTest, EachRankHasALineWithItsStore) {
  const std::string text = CheckpointReportText("/c", OfRanks(3));
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0         7,000 rows, memory, snapshot 100 in "
                                    "/rows/rank-00000-of-00003\n"),
                          HasSubstr("rank 1         unknown rows, ssd, snapshot 101 in "
                                    "/rows/rank-00001-of-00003\n"),
                          HasSubstr("rank 2         7,002 rows, ssd, snapshot 102 in "
                                    "/rows/rank-00002-of-00003\n")));
  EXPECT_THAT(
      CheckpointReportText("/c", OfRanks(1)),
      AllOf(HasSubstr("store          memory, snapshot 100 in /rows\n"), Not(HasSubstr("rank 0"))));
}

TEST(ModelReportTest, JsonHasAStoreForEachRank) {
  for (const int32_t world_size : {1, 3}) {
    const nlohmann::json json =
        nlohmann::json::parse(CheckpointReportJson("/c", OfRanks(world_size)), nullptr, false);
    ASSERT_EQ(json["stores"].size(), static_cast<size_t>(world_size));
    EXPECT_EQ(json["stores"][0], nlohmann::json({{"rank", 0},
                                                 {"kind", "memory"},
                                                 {"dir", RankDir("/rows", 0, world_size)},
                                                 {"snapshot", 100},
                                                 {"identity", nullptr},
                                                 {"rows", 7000}}));
    if (world_size == 1) continue;
    EXPECT_EQ(json["stores"][1]["rows"], nullptr);
    EXPECT_EQ(json["stores"][2]["dir"], "/rows/rank-00002-of-00003");
  }
}

TEST(ModelReportTest, TablesSayTheirPrecision) {
  CheckpointReport report = OfRanks(1);
  report.model.tables = {{.name = "users", .dim = 17, .optimizer = "sgd", .rows = 10},
                         {.name = "items",
                          .dim = 17,
                          .optimizer = "sgd",
                          .weights_precision = WeightsPrecision::kFp16,
                          .rows = 10}};
  const std::string text = CheckpointReportText("/c", report);
  // 17 columns and a step, padded to 16 bytes.
  EXPECT_THAT(text, testing::ContainsRegex("users +17 +fp32 +sgd +10 +800 B\n"));
  EXPECT_THAT(text, testing::ContainsRegex("items +17 +fp16 +sgd +10 +480 B\n"));
  const nlohmann::json json =
      nlohmann::json::parse(CheckpointReportJson("/c", report), nullptr, false);
  EXPECT_EQ(json["tables"][0]["weights_precision"], "fp32");
  EXPECT_EQ(json["tables"][1]["weights_precision"], "fp16");
  EXPECT_EQ(json["tables"][1]["row_bytes"], 48);
}

TEST(ModelReportTest, AChainWithoutDeltasSaysSo) {
  ChainSummary summary = {.chain = "/chain", .base_sequence = 4, .base_step = 152, .sequence = 4};
  EXPECT_THAT(ChainSummaryText(summary), HasSubstr("base of step 152, no deltas, step "));
  summary.sequence = 6;
  EXPECT_THAT(ChainSummaryText(summary), HasSubstr(", deltas 5 to 6, step "));
}

}  // namespace
}  // namespace hotrow
