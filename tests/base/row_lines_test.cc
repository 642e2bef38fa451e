#include "base/row_lines.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "base/row_line_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

TEST(ScoreRangeTest, RangesOrderAsScoresDo) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {-kMost, -1e9f, -2.0f, -1.0f,  -0.5f, -1e-30f, 0.0f,
                                        1e-30f, 0.5f,  1.0f,  1.125f, 2.0f,  1e9f,    kMost};
  for (size_t i = 1; i < ascending.size(); ++i) {
    EXPECT_LT(ScoreRange(ascending[i - 1]), ScoreRange(ascending[i])) << ascending[i];
  }
  EXPECT_LT(ScoreRange(kMost), kScoreRanges - 1);
  for (const float score : ascending) {
    const uint32_t range = ScoreRange(score);
    EXPECT_LE(LowestScoreOf(range), score);
    EXPECT_EQ(ScoreRange(LowestScoreOf(range)), range);
    EXPECT_LT(ScoreRange(std::nextafter(LowestScoreOf(range), -kInfinity)), range);
  }
  EXPECT_EQ(ScoreRange(1.0f), ScoreRange(std::nextafter(1.0f, 2.0f)));
}

// Lines that were left out since others say more change no answer.
TEST(RowLinesTest, SayWhatAllThatWereAddedSay) {
  for (const uint64_t seed : test::Seeds(test::ForSanitizer(200, 50))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    constexpr uint32_t kSteps = 30;
    constexpr uint32_t kFirst = 0xBF80;  // the range of 1 and of those below and above
    RowLines lines;
    std::vector<ScoreLine> all;
    if (random.Below(3) == 0) lines.age = static_cast<uint32_t>(random.Below(10));
    for (int i = 0; i < 20; ++i) {
      const ScoreLine line = {static_cast<uint32_t>(1 + random.Below(kSteps)),
                              kFirst + static_cast<uint32_t>(random.Below(12))};
      lines.Add(line);
      all.push_back(line);
      EXPECT_TRUE(RowLines::AreLines(lines.scores, kSteps));
      for (uint32_t step = 0; step <= kSteps + 1; ++step) {
        for (uint32_t range = kFirst; range < kFirst + 12; ++range) {
          const float score = std::bit_cast<float>((range & 0x7FFF) << 16);
          ASSERT_EQ(ScoreRange(score), range);
          bool aged = step != 0 && step < lines.age;
          for (const ScoreLine& one : all) {
            aged = aged || (step != 0 && step <= one.step && range < one.range);
          }
          ASSERT_EQ(lines.HasAged(step, score), aged) << step << " " << range;
          std::byte row[16] = {};
          std::memcpy(row + 4, &step, sizeof(step));
          std::memcpy(row + 8, &score, sizeof(score));
          const RowLineFields fields = {.step_offset = 4, .score_offset = 8};
          ASSERT_EQ(fields.HasAged(lines, row), aged);
        }
      }
    }
  }
}

TEST(RowLinesTest, ListsThatAreNoneAreTold) {
  EXPECT_TRUE(RowLines::AreLines({}, 0));
  const std::vector<ScoreLine> good = {{3, 500}, {7, 400}};
  EXPECT_TRUE(RowLines::AreLines(good, 7));
  EXPECT_FALSE(RowLines::AreLines(good, 6));
  for (const std::vector<ScoreLine>& bad : std::vector<std::vector<ScoreLine>>{
           {{0, 5}}, {{1, 0}}, {{1, kScoreRanges}}, {{3, 5}, {3, 4}}, {{3, 5}, {4, 5}}}) {
    EXPECT_FALSE(RowLines::AreLines(bad, 100));
  }
}

}  // namespace
}  // namespace hotrow
