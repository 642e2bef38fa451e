#include "embedding/stats.h"

#include <set>
#include <string>
#include <vector>

#include "embedding/stats_fields.h"
#include "gtest/gtest.h"

namespace hotrow {
namespace {

// Sets every field to another number, through the table; returns how many there are.
template <typename Struct>
int64_t Number(std::span<const StatsField<Struct>> fields, int64_t first, Struct* stats) {
  for (const StatsField<Struct>& field : fields) stats->*field.count = first++;
  return std::ssize(fields);
}

// With as many fields as the struct has members this means that each member is there once.
template <typename Struct>
void ExpectDistinct(std::span<const StatsField<Struct>> fields) {
  Struct stats;
  Number(fields, 1, &stats);
  std::set<std::string> names;
  int64_t next = 1;
  for (const StatsField<Struct>& field : fields) {
    EXPECT_EQ(stats.*field.count, next++) << field.name;
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
  }
}

TEST(StatsTest, EachFieldIsInTheTableOnce) {
  ExpectDistinct(TierStatsFields());
  ExpectDistinct(TableStatsFields());
  ExpectDistinct(EmbeddingStatsFields());
}

TEST(StatsTest, CountsOfRanksAddUpAndOfStepsAndPausesTheLargestCounts) {
  EmbeddingStats first;
  first.tiers.resize(2);
  first.tiers[0].used_bytes = 10;
  first.tiers[1].bytes_written = 30;
  first.tiers[1].payload_bytes_written = 20;
  first.tables.resize(2);
  first.tables[0].lookups = 6;
  first.tables[1].store_unique_misses = 4;
  first.steps = 7;
  first.unique_keys = 100;
  first.snapshot_pause_ns_max = 5;
  EmbeddingStats second = first;
  second.tiers[0].used_bytes = 1;
  second.tiers[1].bytes_written = 10;
  second.tiers[1].payload_bytes_written = 0;
  second.tables[0].lookups = 1000;
  second.unique_keys = 11;
  second.snapshot_pause_ns_max = 9;

  std::vector<int64_t> rows = PackCounts(first);
  const std::vector<int64_t> more = PackCounts(second);
  ASSERT_EQ(rows.size(), more.size());
  rows.insert(rows.end(), more.begin(), more.end());
  EmbeddingStats all = second;
  MergeCounts(rows, &all);
  EXPECT_EQ(all.tiers[0].used_bytes, 11);
  EXPECT_EQ(all.tiers[1].bytes_written, 40);
  EXPECT_EQ(all.tiers[1].payload_bytes_written, 20);
  EXPECT_EQ(all.tiers[1].write_amplification, 2);
  EXPECT_EQ(all.tables[0].lookups, 1006);
  EXPECT_EQ(all.tables[0].unique_keys, 0);
  EXPECT_EQ(all.tables[1].store_unique_misses, 8);
  EXPECT_EQ(all.steps, 7);
  EXPECT_EQ(all.unique_keys, 111);
  EXPECT_EQ(all.snapshot_pause_ns_max, 9);
}

}  // namespace
}  // namespace hotrow
