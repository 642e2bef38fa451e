// Rare values that count as one: counting, the file, and how it meets other training data.

#include "models/data/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <span>

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/philox.h"
#include "models/data/table_source.h"
#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr uint64_t kLastKey = ~uint64_t{0};

TEST(VocabularyTest, KeptKeysAreASet) {
  const KeptKeys kept("t", 2, 0, {7, kLastKey, 1});
  EXPECT_THAT(kept.keys(), ElementsAre(1, 7, kLastKey));
  for (const uint64_t key : {uint64_t{1}, uint64_t{7}, kLastKey}) EXPECT_TRUE(kept.Contains(key));
  for (const uint64_t key : {uint64_t{2}, kLastKey - 1}) EXPECT_FALSE(kept.Contains(key));
  RandomStream random(3, RandomPurpose::kTest);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 5000; ++i) keys.push_back(random.Below(1 << 20) * 4 + 1);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  const KeptKeys many("t", 2, 0, keys);
  for (const uint64_t key : keys) {
    ASSERT_TRUE(many.Contains(key));
    ASSERT_FALSE(many.Contains(key + 1));
  }
}

TEST(VocabularyTest, CounterCountsLikeAMap) {
  RandomStream random(4, RandomPurpose::kTest);
  KeyCounter counter;
  std::map<uint64_t, uint64_t> expected;
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t key = random.Below(1 + random.Below(40'000)) << 40;
    ++expected[key];
    if (counter.full()) counter.Grow();
    counter.Add(key);
  }
  EXPECT_EQ(counter.distinct(), static_cast<int64_t>(expected.size()));
  for (const uint64_t min_count : {uint64_t{1}, uint64_t{2}, uint64_t{10}}) {
    std::vector<uint64_t> keys = counter.KeysFrom(min_count);
    std::sort(keys.begin(), keys.end());
    std::vector<uint64_t> wanted;
    for (const auto& [key, count] : expected) {
      if (count >= min_count) wanted.push_back(key);
    }
    EXPECT_EQ(keys, wanted);
  }
}

// Keys whose Mix64 ends in zeros: its steps are undone in the opposite order.
std::vector<uint64_t> KeysOfOneSlot(uint64_t count) {
  const auto inverse = [](uint64_t factor) {
    uint64_t x = factor;  // right in 3 bits, then in twice as many each time
    for (int i = 0; i < 5; ++i) x *= 2 - factor * x;
    return x;
  };
  std::vector<uint64_t> keys;
  for (uint64_t i = 1; i <= count; ++i) {
    uint64_t x = i << 40;
    x ^= x >> 33;
    x *= inverse(0xc4ceb9fe1a85ec53);
    x ^= x >> 33;
    x *= inverse(0xff51afd7ed558ccd);
    x ^= x >> 33;
    keys.push_back(x);
  }
  return keys;
}

// Without a salt this takes billions of steps.
TEST(VocabularyTest, ChosenKeysDoNotSlowItDown) {
  const std::vector<uint64_t> keys = KeysOfOneSlot(100'000);
  ASSERT_EQ(Mix64(keys[7]), uint64_t{8} << 40);
  const std::clock_t begin = std::clock();  // of this process, however busy the machine is
  KeyCounter counter;
  for (const uint64_t key : keys) {
    if (counter.full()) {
      ASSERT_LT(std::clock() - begin, CLOCKS_PER_SEC) << counter.distinct();
      counter.Grow();
    }
    counter.Add(key);
  }
  const KeptKeys kept("t", 1, 0, keys);
  for (const uint64_t key : keys) ASSERT_TRUE(kept.Contains(key));
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC);
}

TEST(VocabularyTest, ResultsDoNotDependOnTheSalt) {
  std::vector<uint64_t> keys[2];
  for (auto& out : keys) {
    KeyCounter counter;
    for (uint64_t key = 0; key < 3000; ++key) {
      if (counter.full()) counter.Grow();
      counter.Add(key % 2000);
    }
    out = counter.KeysFrom(2);
    EXPECT_EQ(out.size(), 1000u);
  }
  EXPECT_NE(keys[0], keys[1]);  // slots differ, which says that the salts do
  EXPECT_EQ(Vocabulary({KeptKeys("t", 2, 5000, keys[0])}).Encode(),
            Vocabulary({KeptKeys("t", 2, 5000, keys[1])}).Encode());
}

TEST(VocabularyTest, FileGoesThereAndBack) {
  const Vocabulary vocabulary(
      {KeptKeys("site", 10, uint64_t{1} << 63, {5, 3, kLastKey}), KeptKeys("", 2, 100, {})});
  const std::string bytes = vocabulary.Encode();
  HOTROW_ASSERT_OK_AND_ASSIGN(const Vocabulary read, Vocabulary::Decode(bytes, "f"));
  ASSERT_EQ(read.tables().size(), 2u);
  EXPECT_THAT(read.Find("site")->keys(), ElementsAre(3, 5, kLastKey));
  EXPECT_EQ(read.Find("site")->min_count(), 10u);
  EXPECT_EQ(read.Find("site")->unknown_key(), uint64_t{1} << 63);
  EXPECT_EQ(read.Find("")->unknown_key(), 100u);
  EXPECT_EQ(read.Find("other"), nullptr);
  EXPECT_EQ(read.Encode(), bytes);
}

TEST(VocabularyTest, DamageIsNoticed) {
  const std::string bytes = Vocabulary({KeptKeys("site", 10, uint64_t{1} << 63, {5, 3})}).Encode();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 4;
    EXPECT_THAT(Vocabulary::Decode(damaged, "/m/vocabulary"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/m/vocabulary: damaged: ")))
        << i;
    EXPECT_FALSE(Vocabulary::Decode(bytes.substr(0, i), "f").ok()) << i;
  }
  EXPECT_FALSE(Vocabulary::Decode(bytes + "x", "f").ok());
}

TEST(VocabularyTest, AnotherVersionIsNotDamage) {
  for (const auto& [version, remedy] :
       {std::pair('\2', "a newer hotrow"), std::pair('\0', "the hotrow that wrote it")}) {
    std::string bytes = Vocabulary({KeptKeys("site", 10, 0, {5, 3})}).Encode();
    bytes[8] = version;
    const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes).first(12)));
    std::memcpy(&bytes[12], &crc, sizeof crc);
    EXPECT_THAT(Vocabulary::Decode(bytes, "/m/vocabulary"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat("/m/vocabulary: vocabulary of version ", int{version},
                                      "; this build reads version 1; open it with ", remedy)));
  }
}

constexpr const char* kSchema = R"json({
  "name": "clicks",
  "files": ["/log"], "split": {"modulo": 4, "valid": [3], "test": []},
  "columns": [
    {"name": "y", "role": "label"},
    {"name": "site", "role": "categorical", "key": "integer", "min_count": 2, "missing": 500},
    {"name": "other_site", "role": "categorical", "key": "integer", "table": "site",
     "min_count": 2, "separator": "|"},
    {"name": "app", "role": "categorical", "key": "integer", "num_embeddings": 10, "min_count": 3},
    {"name": "all", "role": "categorical", "key": "integer"}]})json";
constexpr uint64_t kUnknown = uint64_t{1} << 63;

// All keys of a split in file order; training data are put into it first.
std::vector<uint64_t> Keys(DataSource& source, Split split) {
  auto reader = source.OpenSplit(split, 0, 0);
  HOTROW_CHECK(reader.ok());
  CtrBatch batch;
  HOTROW_CHECK((*reader)->Next(1000, &batch).ok());
  return {batch.values.begin(), batch.values.end()};
}

TEST(MinCountTest, RareValuesOfTheTrainingDataAreOneValue) {
  MemEnv env;
  // Sample 3 is for validation: what it has is not counted.
  WriteFileOrDie(env, "/log",
                 "y,site,other_site,app,all\n"
                 "1,7,8|9,1,1\n"
                 "0,8,,1,2\n"
                 "1,,7,2,3\n"
                 "0,9,7|8|9|5,2,4\n"
                 "1,1,2,1,5\n"
                 "1,3,4,2,6\n"
                 "1,6,10,3,7\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(kSchema, "s"));
  for (const int64_t memory : {int64_t{1} << 20, int64_t{0}}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto source,
                                OpenTableSource(schema, {.memory_bytes = memory}, env));
    const Vocabulary* const vocabulary = source->vocabulary();
    ASSERT_NE(vocabulary, nullptr);
    ASSERT_EQ(vocabulary->tables().size(), 2u);
    // Both columns of the table count: 7 and 8 occur twice, 9 once. The key of missing values is
    // kept with any count.
    EXPECT_THAT(vocabulary->Find("site")->keys(), ElementsAre(7, 8));
    EXPECT_THAT(vocabulary->Find("app")->keys(), ElementsAre(1));
    EXPECT_EQ(source->schema().features[0].num_embeddings, 0);
    EXPECT_EQ(source->schema().features[2].num_embeddings, 11);
    EXPECT_THAT(Keys(*source, Split::kValid),
                ElementsAre(kUnknown, 7, 8, kUnknown, kUnknown, 10, 4));
    std::vector<uint64_t> train = Keys(*source, Split::kTrain);
    EXPECT_EQ(std::count(train.begin(), train.end(), 500), 1);
    EXPECT_EQ(std::count(train.begin(), train.end(), kUnknown), 7);
  }
}

TEST(MinCountTest, MemoryIsBounded) {
  MemEnv env;
  std::string text = "y,site,other_site,app,all\n";
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&text, "1,", i, ",1,1,1\n");
  WriteFileOrDie(env, "/log", text);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(kSchema, "s"));
  EXPECT_THAT(OpenTableSource(schema, {.vocabulary_bytes = 40'000}, env),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("/log:"), HasSubstr("table \"site\" for \"min_count\""),
                             HasSubstr("give the column a \"modulo\""))));
  HOTROW_EXPECT_OK(OpenTableSource(schema, {.vocabulary_bytes = 400'000}, env));
}

TEST(MinCountTest, AValueThatHasTheKeyOfRareOnesIsRefused) {
  MemEnv env;
  WriteFileOrDie(env, "/log",
                 "y,site,other_site,app,all\n1,1,1,1,1\n1,1,-9223372036854775808,1,1\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(kSchema, "s"));
  EXPECT_THAT(OpenTableSource(schema, {}, env),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/log:3: column \"other_site\" has the key"),
                             HasSubstr("give another key as \"unknown\""))));
}

TEST(MinCountTest, ASavedVocabularyIsTakenOrJoined) {
  MemEnv env;
  WriteFileOrDie(env, "/log",
                 "y,site,other_site,app,all\n1,7,7,1,1\n1,8,8,1,1\n1,5,9,1,1\n1,1,1,1,1\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(kSchema, "s"));
  SavedVocabulary saved = {.vocabulary = Vocabulary({KeptKeys("site", 2, kUnknown, {5, 8}),
                                                     KeptKeys("app", 3, 10, {2})}),
                           .where = "--init_from=/m"};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto joined,
                              OpenTableSource(schema, {.saved_vocabulary = &saved}, env));
  EXPECT_THAT(joined->vocabulary()->Find("site")->keys(), ElementsAre(5, 7, 8));
  EXPECT_THAT(joined->vocabulary()->Find("app")->keys(), ElementsAre(1, 2));
  saved.final = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto taken,
                              OpenTableSource(schema, {.saved_vocabulary = &saved}, env));
  EXPECT_EQ(taken->vocabulary()->Encode(), saved.vocabulary.Encode());

  const auto refused = [&](Vocabulary other, const char* message) {
    saved.vocabulary = std::move(other);
    EXPECT_THAT(OpenTableSource(schema, {.saved_vocabulary = &saved}, env),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("--init_from=/m: table"), HasSubstr(message))));
  };
  refused(Vocabulary({KeptKeys("site", 2, kUnknown, {5})}), "\"app\" merges rare values in this");
  refused(Vocabulary({KeptKeys("site", 2, kUnknown, {5}), KeptKeys("app", 3, 10, {}),
                      KeptKeys("all", 3, 10, {})}),
          "\"all\" merges rare values there");
  refused(Vocabulary({KeptKeys("site", 2, 4, {5}), KeptKeys("app", 3, 10, {})}),
          "\"site\" has the key 4 for rare values there");
}

}  // namespace
}  // namespace hotrow
