#include "models/data/synthetic.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "models/data/metrics.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

std::unique_ptr<DataSource> Open(const SyntheticOptions& options) {
  auto source = OpenSynthetic(options);
  HOTROW_EXPECT_OK(source);
  return *std::move(source);
}

// One sample of a batch, in a form that compares.
struct Sample {
  std::vector<float> dense;
  std::vector<std::vector<uint64_t>> bags;
  float label = 0;
  float probability = 0;
  auto operator<=>(const Sample&) const = default;
};

void AppendSamples(const CtrBatch& batch, size_t features, std::vector<Sample>* samples) {
  const auto b = static_cast<size_t>(batch.batch_size);
  const size_t dense = batch.dense.size() / std::max<size_t>(b, 1);
  for (size_t i = 0; i < b; ++i) {
    Sample sample;
    sample.dense.assign(batch.dense.begin() + static_cast<int64_t>(i * dense),
                        batch.dense.begin() + static_cast<int64_t>((i + 1) * dense));
    for (size_t f = 0; f < features; ++f) {
      sample.bags.emplace_back(batch.values.begin() + batch.offsets[f * b + i],
                               batch.values.begin() + batch.offsets[f * b + i + 1]);
    }
    sample.label = batch.labels[i];
    sample.probability = batch.true_probability[i];
    samples->push_back(sample);
  }
}

// Reads up to `count` samples from `first` on, batch_size at a time.
std::vector<Sample> Read(DataSource& source, Split split, int64_t epoch, int64_t first,
                         int64_t count, int64_t batch_size) {
  std::vector<Sample> samples;
  auto reader = source.OpenSplit(split, epoch, first);
  HOTROW_EXPECT_OK(reader);
  CtrBatch batch;
  while (static_cast<int64_t>(samples.size()) < count) {
    const int64_t left = count - static_cast<int64_t>(samples.size());
    HOTROW_EXPECT_OK((*reader)->Next(std::min(batch_size, left), &batch));
    if (batch.batch_size == 0) break;
    AppendSamples(batch, source.schema().features.size(), &samples);
    EXPECT_EQ((*reader)->position(), first + static_cast<int64_t>(samples.size()));
  }
  return samples;
}

CtrBatch ReadBatch(DataSource& source, Split split, int64_t count) {
  CtrBatch batch;
  auto reader = source.OpenSplit(split, 0, 0);
  HOTROW_EXPECT_OK(reader);
  HOTROW_EXPECT_OK((*reader)->Next(count, &batch));
  return batch;
}

SyntheticOptions SmallOptions() {
  return {.tables = 3,
          .rows = 1000,
          .hotness_min = 0,
          .hotness_max = 5,
          .dense = 5,
          .shared = 2,
          .samples = 700,
          .valid = 300,
          .test = 200,
          .seed = 9};
}

TEST(SyntheticTest, StartingAnywhereGivesTheSameSamplesAsComingBy) {
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    SyntheticOptions options = SmallOptions();
    options.seed = seed;
    const auto source = Open(options);
    RandomStream random(seed, RandomPurpose::kTest);
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      for (const int64_t epoch : {0, 3}) {
        const auto all = Read(*source, split, epoch, 0, 1'000'000, 1'000'000);
        const auto size = static_cast<int64_t>(all.size());
        // First samples at random and at both ends, batches of all kinds.
        for (int64_t first : {int64_t{0}, size, size - 1, int64_t(random.Below(all.size()))}) {
          for (const int64_t batch_size : {1, 7, 128, 129, 1000}) {
            const auto part = Read(*source, split, epoch, first, 1'000'000, batch_size);
            ASSERT_EQ(part, std::vector<Sample>(all.begin() + first, all.end()));
          }
        }
      }
    }
  }
}

SyntheticOptions ResidentOptions() {
  SyntheticOptions options = SmallOptions();
  options.resident = 150;
  return options;
}

TEST(SyntheticResidentTest, TheFirstPassIsAsDrawnAndTheOthersDifferInIdsAlone) {
  const SyntheticOptions options = ResidentOptions();
  const auto source = Open(options);
  // 700 samples are four passes and 100 samples more; the next epoch goes on from there.
  std::vector<Sample> all = Read(*source, Split::kTrain, 0, 0, 1'000'000, 64);
  ASSERT_EQ(all.size(), 700u);
  for (const Sample& sample : Read(*source, Split::kTrain, 1, 0, 1'000'000, 64)) {
    all.push_back(sample);
  }
  // The same samples of a source that draws them, sorted: it gives them in another order.
  SyntheticOptions drawn = options;
  drawn.resident = 0;
  drawn.samples = 150;
  std::vector<Sample> expected = Read(*Open(drawn), Split::kTrain, 0, 0, 1'000'000, 64);
  std::vector<Sample> first(all.begin(), all.begin() + 150);
  std::sort(expected.begin(), expected.end());
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, expected);

  int64_t same_bags = 0;
  int64_t bags = 0;
  for (size_t i = 150; i < all.size(); ++i) {
    const Sample& sample = all[i];
    const Sample& base = all[i % 150];
    ASSERT_EQ(sample.dense, base.dense);
    ASSERT_EQ(sample.label, base.label);
    ASSERT_EQ(sample.probability, base.probability);
    for (size_t f = 0; f < sample.bags.size(); ++f) {
      ASSERT_EQ(sample.bags[f].size(), base.bags[f].size());
      for (const uint64_t id : sample.bags[f]) ASSERT_LT(id, 1000u);
      ++bags;
      same_bags += sample.bags[f] == base.bags[f] && !sample.bags[f].empty() ? 1 : 0;
    }
  }
  // The hottest id of a table is always itself, others seldom are.
  EXPECT_LT(same_bags, bags / 4);
}

TEST(SyntheticResidentTest, EachPassIsABijectionOfTheIdsOfATable) {
  SyntheticOptions options = ResidentOptions();
  options.shared = 1;
  const auto source = Open(options);
  const std::vector<Sample> all = Read(*source, Split::kTrain, 0, 0, 450, 64);
  for (size_t pass : {1, 2}) {
    for (size_t table = 0; table < 3; ++table) {
      std::map<uint64_t, uint64_t> image;
      std::map<uint64_t, uint64_t> origin;
      for (size_t i = 0; i < 150; ++i) {
        for (size_t f = 0; f < 4; ++f) {
          if (f != table && (f < 3 || table != 0)) continue;  // feature 3 looks up table 0
          for (size_t j = 0; j < all[i].bags[f].size(); ++j) {
            const uint64_t from = all[i].bags[f][j];
            const uint64_t to = all[pass * 150 + i].bags[f][j];
            ASSERT_EQ(image.emplace(from, to).first->second, to);
            ASSERT_EQ(origin.emplace(to, from).first->second, from);
          }
        }
      }
      EXPECT_GT(image.size(), 100u);
    }
  }
}

TEST(SyntheticResidentTest, StartingAnywhereAndAnyBatchGiveTheSameSamples) {
  const auto source = Open(ResidentOptions());
  const auto all = Read(*source, Split::kTrain, 2, 0, 1'000'000, 1'000'000);
  ASSERT_EQ(all.size(), 700u);
  for (const int64_t first : {0, 1, 99, 100, 350, 699, 700}) {
    for (const int64_t batch_size : {1, 7, 149, 150, 151, 400}) {
      ASSERT_EQ(Read(*source, Split::kTrain, 2, first, 1'000'000, batch_size),
                std::vector<Sample>(all.begin() + first, all.end()))
          << first << " " << batch_size;
    }
  }
}

TEST(SyntheticResidentTest, HeldOutSplitsAndTheIdentityOfOtherDataAreAsEver) {
  SyntheticOptions options = SmallOptions();
  const auto drawn = Open(options);
  options.resident = 150;
  const auto resident = Open(options);
  EXPECT_EQ(Read(*resident, Split::kValid, 0, 0, 1'000'000, 64),
            Read(*drawn, Split::kValid, 0, 0, 1'000'000, 64));
  const auto identity = *drawn->Identity();
  EXPECT_EQ(identity[0].second, "tables=3,rows=1000,zipf=1.05,hotness=0-5,dense=5,shared=2,seed=9");
  EXPECT_EQ((*resident->Identity())[0].second, identity[0].second + ",resident=150");
}

// What is popular changes, a step at a time.
TEST(SyntheticDriftTest, NewIdsBecomePopularAndOldOnesFade) {
  const SyntheticOptions options = {.tables = 1,
                                    .rows = 1000,
                                    .zipf = 1.5,
                                    .dense = 0,
                                    .samples = 40'000,
                                    .valid = 4000,
                                    .test = 4000,
                                    .drift = 200,
                                    .seed = 3};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenSynthetic(options));
  const auto most_popular = [&](Split split, int64_t epoch, int64_t first, int64_t count) {
    std::map<uint64_t, int> lookups;
    for (const Sample& sample : Read(*source, split, epoch, first, count, 500)) {
      ++lookups[sample.bags[0][0]];
    }
    EXPECT_LT(lookups.rbegin()->first, 1000u);
    return std::max_element(lookups.begin(), lookups.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  };
  // 200 samples for each new id, which is looked up by two in five of them.
  std::set<uint64_t> popular;
  for (int64_t i = 0; i < 200; ++i) popular.insert(most_popular(Split::kTrain, 0, 200 * i, 200));
  EXPECT_EQ(popular.size(), 200u);
  EXPECT_NE(most_popular(Split::kTrain, 1, 0, 200), most_popular(Split::kTrain, 0, 0, 200));
  const uint64_t last = most_popular(Split::kTrain, 1, 0, 200);
  EXPECT_EQ(most_popular(Split::kTest, 0, 0, 4000), last);
  EXPECT_EQ(most_popular(Split::kValid, 0, 0, 4000), last);
  EXPECT_EQ(Read(*source, Split::kTrain, 0, 777, 10, 10),
            Read(*source, Split::kTrain, 0, 777, 10, 3));
  for (const std::string key : {"drift", "seconds"}) {
    EXPECT_THAT(ParseSyntheticOptions(key + "=5,resident=10", 0),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(key + " and")));
  }
}

TEST(SyntheticTest, ASecondSourceOfTheSameSeedIsTheSameAndOfAnotherSeedIsNot) {
  SyntheticOptions options = SmallOptions();
  const auto a = Read(*Open(options), Split::kTrain, 0, 0, 700, 100);
  EXPECT_EQ(a, Read(*Open(options), Split::kTrain, 0, 0, 700, 100));
  options.seed += uint64_t{1} << 40;
  EXPECT_NE(a, Read(*Open(options), Split::kTrain, 0, 0, 700, 100));
}

TEST(SyntheticTest, EpochsOrderTheSameTrainingSamplesAnew) {
  const auto source = Open(SmallOptions());
  auto epoch0 = Read(*source, Split::kTrain, 0, 0, 1000, 64);
  auto epoch1 = Read(*source, Split::kTrain, 1, 0, 1000, 64);
  ASSERT_EQ(epoch0.size(), 700u);
  int equal = 0;
  for (size_t i = 0; i < 700; ++i) equal += epoch0[i] == epoch1[i] ? 1 : 0;
  EXPECT_LT(equal, 10);  // 1 is expected
  std::sort(epoch0.begin(), epoch0.end());
  std::sort(epoch1.begin(), epoch1.end());
  EXPECT_EQ(epoch0, epoch1);
  EXPECT_EQ(std::adjacent_find(epoch0.begin(), epoch0.end()), epoch0.end());
}

TEST(SyntheticTest, HeldOutSplitsAreTheSameInEveryEpochAndShareNoSample) {
  const auto source = Open(SmallOptions());
  std::set<std::vector<float>> dense;
  size_t samples = 0;
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto epoch0 = Read(*source, split, 0, 0, 1000, 64);
    for (const Sample& sample : epoch0) dense.insert(sample.dense);
    samples += epoch0.size();
    if (split != Split::kTrain) {
      EXPECT_EQ(epoch0, Read(*source, split, 5, 0, 1000, 64));
    }
  }
  EXPECT_EQ(samples, 1200u);
  EXPECT_EQ(dense.size(), 1200u);
}

TEST(SyntheticTest, BatchesAreWellFormed) {
  for (const auto& [hotness_min, hotness_max] :
       {std::pair(1, 1), std::pair(4, 4), std::pair(0, 8), std::pair(0, 1), std::pair(3, 5)}) {
    SyntheticOptions options = SmallOptions();
    options.hotness_min = hotness_min;
    options.hotness_max = hotness_max;
    options.samples = 4000;
    const auto source = Open(options);
    const CtrBatch batch = ReadBatch(*source, Split::kTrain, 3000);
    ASSERT_EQ(batch.batch_size, 3000);
    ASSERT_EQ(batch.dense.size(), 3000u * 5);
    ASSERT_EQ(batch.labels.size(), 3000u);
    ASSERT_EQ(batch.true_probability.size(), 3000u);
    ASSERT_EQ(batch.offsets.size(), 5u * 3000 + 1);
    ASSERT_EQ(batch.offsets.front(), 0);
    ASSERT_EQ(batch.offsets.back(), static_cast<int64_t>(batch.values.size()));
    EXPECT_TRUE(batch.weights.empty());
    std::vector<int64_t> lengths(static_cast<size_t>(hotness_max) + 1);
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const int64_t length = batch.offsets[i + 1] - batch.offsets[i];
      ASSERT_GE(length, hotness_min);
      ASSERT_LE(length, hotness_max);
      ++lengths[static_cast<size_t>(length)];
    }
    const double expected = 15'000.0 / (hotness_max - hotness_min + 1);
    for (int length = hotness_min; length <= hotness_max; ++length) {
      EXPECT_NEAR(static_cast<double>(lengths[static_cast<size_t>(length)]), expected,
                  6 * std::sqrt(expected));
    }
    for (const uint64_t id : batch.values) ASSERT_LT(id, 1000u);
    for (const float label : batch.labels) ASSERT_TRUE(label == 0 || label == 1);
  }
}

TEST(SyntheticTest, AnEmptyBatchEndsTheSplitAndStaysTheEnd) {
  SyntheticOptions options = SmallOptions();
  options.samples = 5;
  const auto source = Open(options);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(Split::kTrain, 0, 2));
  CtrBatch batch;
  HOTROW_ASSERT_OK(reader->Next(2, &batch));
  EXPECT_EQ(batch.batch_size, 2);
  HOTROW_ASSERT_OK(reader->Next(2, &batch));
  EXPECT_EQ(batch.batch_size, 1);
  for (int i = 0; i < 2; ++i) {
    HOTROW_ASSERT_OK(reader->Next(2, &batch));
    EXPECT_EQ(batch.batch_size, 0);
    EXPECT_EQ(batch.offsets, SharedVector<int64_t>{0});
    EXPECT_TRUE(batch.values.empty());
    EXPECT_TRUE(batch.labels.empty());
    EXPECT_EQ(reader->position(), 5);
  }
  EXPECT_THAT(reader->Next(0, &batch), StatusIs(absl::StatusCode::kInvalidArgument, _));
}

TEST(SyntheticTest, PositionsOutsideTheSplitAreErrors) {
  const auto source = Open(SmallOptions());
  HOTROW_EXPECT_OK(source->OpenSplit(Split::kTest, 0, 200));
  EXPECT_THAT(source->OpenSplit(Split::kTest, 0, 201),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("201")));
  EXPECT_THAT(source->OpenSplit(Split::kTrain, 0, -1),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("-1")));
  EXPECT_THAT(source->OpenSplit(Split::kTrain, -1, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("epoch")));
}

TEST(SyntheticTest, ReadersOfOneSourceMayRunConcurrently) {
  const auto source = Open(SmallOptions());
  const auto expected = Read(*source, Split::kTrain, 1, 0, 700, 100);
  std::vector<Sample> got[4];
  std::vector<std::thread> threads;
  for (auto& samples : got) {
    threads.emplace_back([&] { samples = Read(*source, Split::kTrain, 1, 0, 700, 90); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& samples : got) EXPECT_EQ(samples, expected);
}

// The ids of a table, hottest first, have the frequencies of Zipf's law; which id is hot differs
// from table to table, hot ids are no neighbours, and a shared feature has the same hot ids.
TEST(SyntheticTest, IdsFollowZipfScatteredOverTheTable) {
  const auto source = Open({.tables = 2, .rows = 1000, .zipf = 1, .shared = 1, .samples = 100'000});
  constexpr int64_t kSamples = 100'000;
  const CtrBatch batch = ReadBatch(*source, Split::kTrain, kSamples);
  std::vector<uint64_t> hottest[3];
  for (size_t f = 0; f < 3; ++f) {
    std::vector<std::pair<int64_t, uint64_t>> counts(1000);
    for (uint64_t id = 0; id < 1000; ++id) counts[id] = {0, id};
    for (int64_t i = 0; i < kSamples; ++i) {
      --counts[batch.values[f * kSamples + static_cast<size_t>(i)]].first;  // negative: descending
    }
    std::sort(counts.begin(), counts.end());
    double harmonic = 0;
    for (int place = 1; place <= 1000; ++place) harmonic += 1.0 / place;
    for (size_t rank = 0; rank < 5; ++rank) {
      const double expected = kSamples / harmonic / static_cast<double>(rank + 1);
      EXPECT_NEAR(static_cast<double>(-counts[rank].first), expected, 6 * std::sqrt(expected));
      hottest[f].push_back(counts[rank].second);
    }
    EXPECT_NE(hottest[f][0] + 1, hottest[f][1]);
  }
  EXPECT_NE(hottest[0], hottest[1]);
  EXPECT_EQ(hottest[0], hottest[2]);
}

TEST(SyntheticTest, DenseFeaturesHaveMeanZeroAndVarianceOne) {
  for (const int64_t dense : {1, 2, 13}) {
    const auto source = Open({.tables = 1, .rows = 10, .dense = dense, .samples = 50'000});
    const CtrBatch batch = ReadBatch(*source, Split::kTrain, 50'000);
    for (int64_t d = 0; d < dense; ++d) {
      double sum = 0;
      double squares = 0;
      for (int64_t i = 0; i < 50'000; ++i) {
        const double x = batch.dense[static_cast<size_t>(i * dense + d)];
        sum += x;
        squares += x * x;
      }
      EXPECT_NEAR(sum / 50'000, 0, 6 / std::sqrt(50'000.0));
      EXPECT_NEAR(squares / 50'000, 1, 6 * std::sqrt(2 / 50'000.0));
    }
  }
}

// Labels are drawn from the planted probabilities: in each band of probability the click rate is
// the mean probability, and the whole has the rate and the AUC that the header promises.
TEST(SyntheticTest, LabelsFollowThePlantedProbabilities) {
  const SyntheticOptions specs[] = {
      {},
      {.tables = 8},
      {.tables = 1},
      {.tables = 4, .zipf = 0, .shared = 3},
      {.zipf = 2},
      {.tables = 5, .rows = 2, .hotness_min = 0, .hotness_max = 8},
      {.tables = 1, .rows = 1},
      {.tables = 3, .rows = 1'000'000'000, .hotness_min = 4, .hotness_max = 4},
  };
  for (SyntheticOptions options : specs) {
    SCOPED_TRACE(testing::Message() << options.tables << " tables, " << options.rows << " rows");
    options.seed = 3;
    const auto source = Open(options);
    const CtrBatch batch = ReadBatch(*source, Split::kTest, 30'000);
    double expected[10] = {};
    double variance[10] = {};
    double clicks[10] = {};
    for (size_t i = 0; i < 30'000; ++i) {
      const double p = batch.true_probability[i];
      const int band = std::min(9, static_cast<int>(p * 10));
      expected[band] += p;
      variance[band] += p * (1 - p);
      clicks[band] += batch.labels[i];
    }
    for (int band = 0; band < 10; ++band) {
      EXPECT_NEAR(clicks[band], expected[band], 5 * std::sqrt(variance[band]) + 3) << band;
    }
    const double rate = std::accumulate(clicks, clicks + 10, 0.0) / 30'000;
    EXPECT_GT(rate, 0.23);
    EXPECT_LT(rate, 0.27);
    const double auc = Auc(batch.true_probability, batch.labels);
    EXPECT_GT(auc, 0.77);
    EXPECT_LT(auc, 0.84);
  }
}

// Without anything to learn from, the planted probability is the click rate.
TEST(SyntheticTest, OneIdAndNoDenseFeatureIsACoin) {
  const auto source = Open({.tables = 1, .rows = 1, .dense = 0, .samples = 1000});
  const CtrBatch batch = ReadBatch(*source, Split::kTrain, 1000);
  EXPECT_TRUE(batch.dense.empty());
  for (const float p : batch.true_probability) EXPECT_NEAR(p, 0.25, 1e-4);
}

// The effects live in ids and dense features, so a model can find them: samples that agree in all
// inputs agree in their probability.
TEST(SyntheticTest, TheProbabilityIsAFunctionOfTheInputs) {
  const auto source = Open({.tables = 3, .rows = 4, .dense = 0, .samples = 5000});
  const auto samples = Read(*source, Split::kTrain, 0, 0, 5000, 512);
  std::map<std::vector<std::vector<uint64_t>>, float> probability;
  std::set<float> values;
  for (const Sample& sample : samples) {
    const auto [it, added] = probability.try_emplace(sample.bags, sample.probability);
    EXPECT_EQ(it->second, sample.probability);
    values.insert(sample.probability);
  }
  EXPECT_EQ(probability.size(), 64u);
  EXPECT_GT(values.size(), 60u);
}

}  // namespace
}  // namespace hotrow
