#include "embedding/stats.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exposition.h"
#include "base/exposition_reader.h"
#include "embedding/stats_fields.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/metrics_text.h"

namespace hotrow {
namespace {

using test::Options;
using test::Table;
using test::Value;

MetricFamilies Parsed(const EmbeddingStats& stats) {
  auto families = ParseExposition(MetricsText(stats));
  HOTROW_EXPECT_OK(families);
  return families.ok() ? *families : MetricFamilies();
}

// Counts that are all different.
EmbeddingStats Numbered() {
  EmbeddingStats stats;
  int64_t next = 1'000'000'007;
  for (const auto& field : EmbeddingStatsFields()) stats.*field.count = next++;
  for (const char* const name : {"device_cache", "cache", "ssd"}) {
    TierStats& tier = stats.tiers.emplace_back();
    for (const auto& field : TierStatsFields()) tier.*field.count = next++;
    tier.name = name;
    tier.SetWriteAmplification();
  }
  for (const char* const name : {"users", "items"}) {
    TableStats& table = stats.tables.emplace_back();
    for (const auto& field : TableStatsFields()) table.*field.count = next++;
    for (StepHistogram* const ages : {&table.update_gaps, &table.ages}) {
      for (int64_t& count : ages->counts) count = next++;
      ages->sum = next++;
    }
    table.name = name;
  }
  return stats;
}

TEST(CollectionMetricsTest, EachCountIsThere) {
  const EmbeddingStats stats = Numbered();
  std::set<double> values;
  for (const auto& [name, family] : Parsed(stats)) {
    EXPECT_TRUE(name.starts_with("hotrow_")) << name;
    EXPECT_FALSE(family.help.empty()) << name;
    EXPECT_TRUE(family.help.ends_with(".")) << name;
    EXPECT_EQ(family.kind == "counter", name.ends_with("_total")) << name;
    EXPECT_EQ(family.kind == "histogram", name == "hotrow_row_age_steps") << name;
    EXPECT_FALSE(family.samples.empty()) << name;
    std::set<std::map<std::string, std::string>> labels;
    for (const MetricSample& sample : family.samples) {
      std::map<std::string, std::string> of = sample.labels;
      of["sample"] = sample.name;
      EXPECT_TRUE(labels.insert(of).second) << name;
      values.insert(sample.value);
    }
  }
  const auto expect_one = [&values](int64_t count, const std::string& what) {
    const auto plain = static_cast<double>(count);
    EXPECT_TRUE(values.contains(plain) || values.contains(1e-9 * plain)) << what;
  };
  for (const auto& field : EmbeddingStatsFields()) expect_one(stats.*field.count, field.name);
  const auto of_tier = [&](size_t tier, std::set<std::string> names) {
    for (const auto& field : TierStatsFields()) {
      if (!names.contains(field.name)) continue;
      expect_one(stats.tiers[tier].*field.count, absl::StrCat(tier, " ", field.name));
      names.erase(field.name);
    }
    EXPECT_TRUE(names.empty()) << *names.begin();
  };
  of_tier(0, {"lookups", "lookup_hits", "unique_keys", "unique_hits", "budget_bytes", "used_bytes",
              "peak_bytes", "evictions", "dirty_writebacks"});
  of_tier(1, {"unique_keys", "unique_hits", "budget_bytes", "used_bytes", "peak_bytes", "evictions",
              "dirty_writebacks"});
  std::set<std::string> all;
  for (const auto& field : TierStatsFields()) all.insert(field.name);
  all.erase("evictions");
  all.erase("dirty_writebacks");
  of_tier(2, all);
  for (const TableStats& table : stats.tables) {
    for (const auto& field : TableStatsFields()) expect_one(table.*field.count, field.name);
    for (const StepHistogram* const ages : {&table.update_gaps, &table.ages}) {
      int64_t up_to = 0;
      for (const int64_t count : ages->counts) expect_one(up_to += count, "ages");
    }
    expect_one(table.update_gaps.sum, "sum of ages");
  }
}

TEST(CollectionMetricsTest, TheHierarchyHitsWhereAnyMemoryHasTheRow) {
  EmbeddingStats stats;
  stats.tiers.resize(2);
  stats.tiers[0].name = "cache";
  stats.tiers[0].lookups = 100;
  stats.tiers[0].lookup_hits = 80;
  stats.tiers[1].name = "ssd";
  stats.tiers[1].lookups = 20;
  stats.tiers[1].lookup_hits = 15;
  const MetricFamilies over_disk = Parsed(stats);
  EXPECT_EQ(Value(over_disk, "hotrow_hit_ratio"), 0.8);
  EXPECT_EQ(Value(over_disk, "hotrow_memory_hits_total"), 80);
  EXPECT_EQ(Value(over_disk, "hotrow_new_key_lookups_total"), 5);
  EXPECT_TRUE(over_disk.contains("hotrow_disk_bytes"));
  stats.tiers[1].name = "memory";
  const MetricFamilies in_memory = Parsed(stats);
  EXPECT_EQ(Value(in_memory, "hotrow_hit_ratio"), 0.95);
  EXPECT_FALSE(in_memory.contains("hotrow_disk_bytes"));
  // Host memory between a device and a disk counts keys alone.
  stats.tiers[1].name = "ssd";
  stats.tiers.insert(stats.tiers.begin() + 1, TierStats{.name = "cache", .unique_hits = 7});
  const MetricFamilies three = Parsed(stats);
  EXPECT_EQ(Value(three, "hotrow_memory_hits_total"), 87);
  EXPECT_EQ(three.at("hotrow_tier_lookups_total").samples.size(), 2U);
  EXPECT_EQ(three.at("hotrow_tier_unique_keys_total").samples.size(), 3U);
}

TEST(CollectionMetricsTest, ACollectionThatHasDoneNothingHasZerosAndNoRatioOfThem) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto tables,
      EmbeddingCollection::Create(Options({Table("a \"b\"\n\xc3\xbc", 4, {"f0"})}), {}));
  const MetricFamilies families = Parsed(tables->Stats());
  EXPECT_EQ(Value(families, "hotrow_hit_ratio"), 0);
  EXPECT_EQ(Value(families, "hotrow_table_lookups_total", {{"table", "a \"b\"\n\xc3\xbc"}}), 0);
}

// Before its first capacity is kept: five rows in the second of two tables.
TEST(CollectionMetricsTest, ScoresAreThoseOfLivingRows) {
  EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0"}), Table("b", 4, {"f1"})});
  options.tables[1].score = ScoreRule::kLast;
  options.tables[1].max_rows = 3;
  options.tables[1].max_rows_by = RowOrder::kScore;
  options.row_limit_steps = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
  for (int step = 1; step <= 2; ++step) {
    test::Batch batch = {.batch_size = 1,
                         .values = {1, 11, 12, 13, 14, 15},
                         .offsets = {0, 1, 6},
                         .weights = {},
                         .scores = {0, -20, 0, 0.5f, 100, 1e9f}};
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep next, tables->Prefetch(batch.view()));
    std::vector<float> output(static_cast<size_t>(tables->pooled_dim()), 0.5f);
    HOTROW_ASSERT_OK(next.Lookup({.pooled = test::RowsOf(*tables, 1, output)}));
    if (step == 2) break;  // the capacity is kept at the end of the second step
    HOTROW_ASSERT_OK(std::move(next).Update({.pooled = test::RowsOf(*tables, 1, output)}));
  }
  const EmbeddingStats stats = tables->Stats();
  ScoreHistogram scores;
  for (const float score : {-20.0f, 0.0f, 0.5f, 100.0f, 1e9f}) scores.Add(score);
  EXPECT_TRUE(stats.tables[1].scores == scores);
  EXPECT_TRUE(stats.tables[0].scores == ScoreHistogram());
  EXPECT_GT(stats.row_count_bytes, int64_t{2} << 20);
  const MetricFamilies families = Parsed(stats);
  const auto rows = [&](const char* bound) {
    return Value(families, "hotrow_living_row_scores", {{"table", "b"}, {"le", bound}});
  };
  EXPECT_EQ(rows("-64"), 0);
  EXPECT_EQ(rows("-16"), 1);
  EXPECT_EQ(rows("-0.25"), 1);
  EXPECT_EQ(rows("0"), 2);
  EXPECT_EQ(rows("1"), 3);
  EXPECT_EQ(rows("256"), 4);
  EXPECT_EQ(rows("+Inf"), 5);
  EmbeddingStats sum = stats;
  const std::vector<int64_t> once = PackCounts(stats);
  std::vector<int64_t> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  MergeCounts(twice, &sum);
  EXPECT_EQ(sum.tables[1].scores.counts.back(), 2);
  EXPECT_EQ(sum.row_count_bytes, 2 * stats.row_count_bytes);
}

// One table of two has a capacity. Key 1 comes in every step, key 2 in steps 1 and 120, key 3 in
// step 128 alone. Steps 64 and 128 are sampled.
TEST(CollectionMetricsTest, AgesAreThoseOfRowsThatComeAgainAndOfRowsThatAreThere) {
  for (const int64_t cache_bytes : {int64_t{0}, 4 * test::kMiB}) {
    SCOPED_TRACE(cache_bytes);
    EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0"}), Table("b", 4, {"f1"})});
    options.cache.bytes = cache_bytes;
    options.tables[1].max_rows = 100;
    options.row_limit_steps = 10;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
    for (int step = 1; step <= 130; ++step) {
      std::vector<uint64_t> keys = {1};
      if (step == 1 || step == 120 || step == 128) keys.push_back(2);
      if (step == 128) keys.push_back(3);
      const auto n = static_cast<int64_t>(keys.size());
      test::Batch batch = {
          .batch_size = 1, .values = keys, .offsets = {0, n, 2 * n}, .weights = {}};
      batch.values.insert(batch.values.end(), keys.begin(), keys.end());
      HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep next, tables->Prefetch(batch.view()));
      std::vector<float> output(static_cast<size_t>(tables->pooled_dim()), 0.5f);
      HOTROW_ASSERT_OK(next.Lookup({.pooled = test::RowsOf(*tables, 1, output)}));
      HOTROW_ASSERT_OK(std::move(next).Update({.pooled = test::RowsOf(*tables, 1, output)}));
    }
    const EmbeddingStats stats = tables->Stats();
    StepHistogram gaps;
    gaps.Add(1, 2);
    gaps.Add(8);
    EXPECT_TRUE(stats.tables[0].update_gaps == gaps);
    EXPECT_TRUE(stats.tables[1].update_gaps == gaps);
    EXPECT_TRUE(stats.tables[0].ages == StepHistogram());
    StepHistogram ages;
    ages.Add(130 - 121, 3);  // all were updated in steps 121 to 130
    EXPECT_TRUE(stats.tables[1].ages == ages);
    const MetricFamilies families = Parsed(stats);
    EXPECT_EQ(Value(families, "hotrow_row_age_steps_count", {{"table", "b"}}), 3);
    EXPECT_EQ(families.at("hotrow_row_age_steps").samples.back().value, 3);
    EXPECT_EQ(Value(families, "hotrow_living_rows", {{"table", "b"}, {"le", "4"}}), 0);
    EXPECT_EQ(Value(families, "hotrow_living_rows", {{"table", "b"}, {"le", "16"}}), 3);
    EXPECT_EQ(Value(families, "hotrow_living_rows", {{"table", "b"}, {"le", "+Inf"}}), 3);
    // The sum of two ranks that both have them.
    EmbeddingStats sum = stats;
    const std::vector<int64_t> once = PackCounts(stats);
    std::vector<int64_t> rows = once;
    rows.insert(rows.end(), once.begin(), once.end());
    MergeCounts(rows, &sum);
    EXPECT_EQ(sum.tables[1].ages.counts[2], 6);
    EXPECT_EQ(sum.tables[0].update_gaps.sum, 2 * gaps.sum);
  }
}

// What tables are said to look up and to miss, counted by hand.
TEST(CollectionMetricsTest, TablesCountTheirOwnLookups) {
  for (const int64_t cache_bytes : {int64_t{0}, 4 * test::kMiB}) {
    SCOPED_TRACE(cache_bytes);
    EmbeddingCollectionOptions options =
        Options({Table("a", 4, {"f0", "f1"}), Table("b", 4, {"f2"}), Table("c", 24, {"f3"})});
    options.cache.bytes = cache_bytes;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
    // One sample; f0: 1 1, f1: 2, f2: 1, f3: none.
    const test::Batch batch = {
        .batch_size = 1, .values = {1, 1, 2, 1}, .offsets = {0, 2, 3, 4, 4}, .weights = {}};
    for (int i = 0; i < 3; ++i) {
      HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch(batch.view()));
      std::vector<float> output(static_cast<size_t>(tables->pooled_dim()), 0.5f);
      HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, 1, output)}));
      HOTROW_ASSERT_OK(std::move(step).Update({.pooled = test::RowsOf(*tables, 1, output)}));
    }
    const EmbeddingStats stats = tables->Stats();
    ASSERT_EQ(stats.tables.size(), 3U);
    EXPECT_EQ(stats.tables[0].name, "a");
    EXPECT_EQ(stats.tables[0].lookups, 9);
    EXPECT_EQ(stats.tables[0].unique_keys, 6);
    EXPECT_EQ(stats.tables[1].lookups, 3);
    EXPECT_EQ(stats.tables[2].lookups, 0);
    // Only the first step finds no rows.
    EXPECT_EQ(stats.tables[0].store_misses, 3);
    EXPECT_EQ(stats.tables[0].store_unique_misses, 2);
    EXPECT_EQ(stats.tables[1].store_misses, 1);
    EXPECT_EQ(stats.tables[0].cache_misses, cache_bytes == 0 ? 0 : 3);
    EXPECT_EQ(stats.tables[1].cache_unique_misses, cache_bytes == 0 ? 0 : 1);
    const MetricFamilies families = Parsed(stats);
    EXPECT_EQ(Value(families, "hotrow_table_misses_total", {{"table", "a"}, {"tier", "memory"}}),
              3);
    EXPECT_EQ(families.at("hotrow_table_misses_total").samples.size(), cache_bytes == 0 ? 3U : 6U);
  }
}

// What tables miss adds up to what tiers miss, and no counter ever falls.
TEST(CollectionMetricsTest, CountersGrowAndTablesAddUpToTheirTiers) {
  EmbeddingCollectionOptions options = test::SmallTables();
  options.prefetch_depth = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
  test::PutStore(StoreKind::kSsd, test::TempDir() + "/store", &options);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
  test::Trainer trainer(tables.get(), options.prefetch_depth, 0, 30, 400);
  MetricFamilies before;
  for (int i = 0; i < 30; ++i) {
    HOTROW_ASSERT_OK(trainer.Step());
    MetricFamilies now = Parsed(tables->Stats());
    for (const auto& [name, family] : before) {
      if (family.kind != "counter") continue;
      const std::vector<MetricSample>& samples = now.at(name).samples;
      ASSERT_EQ(samples.size(), family.samples.size()) << name;
      for (size_t s = 0; s < samples.size(); ++s) {
        EXPECT_EQ(samples[s].labels, family.samples[s].labels) << name;
        EXPECT_GE(samples[s].value, family.samples[s].value) << name;
      }
    }
    before = std::move(now);
  }
  const EmbeddingStats stats = tables->Stats();
  ASSERT_EQ(stats.tiers.size(), 2U);
  TableStats sum;
  for (const TableStats& table : stats.tables) {
    for (const auto& field : TableStatsFields()) sum.*field.count += table.*field.count;
  }
  const TierStats& cache = stats.tiers[0];
  const TierStats& store = stats.tiers[1];
  EXPECT_GT(cache.lookup_hits, 0);
  EXPECT_EQ(sum.lookups, cache.lookups);
  EXPECT_EQ(sum.unique_keys, cache.unique_keys);
  EXPECT_EQ(sum.cache_misses, cache.lookups - cache.lookup_hits);
  EXPECT_EQ(sum.cache_unique_misses, cache.unique_keys - cache.unique_hits);
  EXPECT_EQ(sum.store_misses, store.lookups - store.lookup_hits);
  EXPECT_EQ(sum.store_unique_misses, store.unique_keys - store.unique_hits);
  EXPECT_GT(Value(before, "hotrow_disk_written_bytes_total", {{"tier", "ssd"}}), 0);
}

}  // namespace
}  // namespace hotrow
