#include "models/data/packed_source.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "models/data/packed_format.h"
#include "models/data/slice_batch.h"
#include "models/data/table_source.h"
#include "models/json/sealed_json.h"
#include "models/saving/packed_writer.h"
#include "tests/models/file_builders.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::FaultyEnv;
using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kTrain = 1003;
constexpr int64_t kBlock = 64;
constexpr auto kFp16 = PackedPrecision::kFp16;

// Samples from number `first` on. Sample i has the dense feature i / 4, keys i and 2^33 + i, and,
// if asked for, i % 4 values i in a bag.
std::string Text(int64_t samples, bool bags, int64_t first = 0) {
  std::string text = bags ? "y,x,id,wide,bag\n" : "y,x,id,wide\n";
  for (int64_t i = first; i < first + samples; ++i) {
    absl::StrAppend(&text, i % 3 == 0 ? 1 : 0, ",", 0.25 * static_cast<double>(i), ",", i, ",",
                    (int64_t{1} << 33) + i);
    if (bags) text += ',';
    for (int64_t j = 0; bags && j < i % 4; ++j) absl::StrAppend(&text, i, "|");
    text += '\n';
  }
  return text;
}

// A source of one batch.
class OneBatch : public DataSource, public DataReader {
 public:
  explicit OneBatch(CtrBatch batch) : batch_(std::move(batch)) {
    if (batch_.batch_size == 0) return;
    schema_.features.resize((batch_.offsets.size() - 1) / static_cast<size_t>(batch_.batch_size));
    schema_.num_dense = static_cast<int32_t>(std::ssize(batch_.dense) / batch_.batch_size);
  }
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t, int64_t) override {
    auto reader = std::make_unique<OneBatch>(batch_);
    reader->ended_ = split != Split::kTrain;
    return reader;
  }
  absl::Status Next(int64_t, CtrBatch* batch) override {
    *batch = ended_ ? CtrBatch() : batch_;
    ended_ = true;
    return absl::OkStatus();
  }
  int64_t position() const override { return 0; }

 private:
  DataSchema schema_;
  CtrBatch batch_;
  bool ended_ = false;
};

class PackedSourceTest : public testing::TestWithParam<bool> {  // P: with bags
 protected:
  PackedSourceTest() {
    WriteFileOrDie(env_, "/d/train", Text(kTrain, GetParam()));
    WriteFileOrDie(env_, "/d/valid", Text(37, GetParam()));
    WriteFileOrDie(env_, "/d/test", Text(5, GetParam()));
  }

  std::unique_ptr<DataSource> OpenText(const FileSourceOptions& options) {
    auto schema = ParseTableSchema(
        absl::StrCat(R"({"name": "numbered",
      "files": {"train": ["train"], "valid": ["valid"], "test": ["test"]}, "columns": [
        {"name": "y", "role": "label"}, {"name": "x", "role": "dense"},
        {"name": "id", "role": "categorical", "key": "integer"},
        {"name": "wide", "role": "categorical", "key": "integer"})",
                     GetParam() ? R"(, {"name": "bag", "role": "categorical", "key": "integer",
                                        "separator": "|"})"
                                : "",
                     "]}"),
        "/d/schema.json");
    HOTROW_CHECK(schema.ok());
    auto source = OpenTableSource(*schema, options, env_);
    HOTROW_CHECK(source.ok());
    return *std::move(source);
  }
  absl::StatusOr<PackedManifest> Pack(Env& env, PackOptions options = {}) {
    const auto text = OpenText({.memory_bytes = 0, .in_order = true});
    if (options.dir.empty()) options.dir = "/packed";
    if (options.block_samples == PackOptions().block_samples) options.block_samples = kBlock;
    options.source = "table:/d/schema.json";
    options.env = &env;
    return PackData(*text, options);
  }
  absl::StatusOr<std::unique_ptr<DataSource>> Open(const FileSourceOptions& options,
                                                   const std::vector<std::string>& dirs = {
                                                       "/packed"}) {
    return OpenPackedSource(dirs, options, env_);
  }

  // Some blocks of kTrain, so that several groups make an epoch.
  static FileSourceOptions InGroups(int32_t threads = 1) {
    return {.seed = 7, .memory_bytes = 20'000, .threads = {.reading = threads}};
  }

  MemEnv env_;
};

std::vector<CtrBatch> Batches(DataSource& source, Split split, int64_t epoch, int64_t first_sample,
                              int64_t batch_size) {
  std::vector<CtrBatch> batches;
  auto reader = source.OpenSplit(split, epoch, first_sample);
  HOTROW_CHECK(reader.ok());
  int64_t position = first_sample;
  do {
    EXPECT_EQ((*reader)->position(), position);
    batches.emplace_back();
    HOTROW_EXPECT_OK((*reader)->Next(batch_size, &batches.back()));
    position += batches.back().batch_size;
  } while (batches.back().batch_size > 0);
  return batches;
}

void ExpectEqual(const std::vector<CtrBatch>& a, const std::vector<CtrBatch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].batch_size, b[i].batch_size);
    EXPECT_EQ(a[i].labels, b[i].labels);
    EXPECT_EQ(a[i].dense, b[i].dense);
    EXPECT_EQ(a[i].values, b[i].values);
    EXPECT_EQ(a[i].offsets, b[i].offsets);
    EXPECT_EQ(a[i].weights, b[i].weights);
    EXPECT_EQ(a[i].true_probability, b[i].true_probability);
  }
}

// The first feature's keys, which are the numbers of the samples.
std::vector<uint64_t> Ids(DataSource& source, int64_t epoch, int64_t first_sample,
                          int64_t batch_size) {
  std::vector<uint64_t> ids;
  for (const CtrBatch& batch : Batches(source, Split::kTrain, epoch, first_sample, batch_size)) {
    for (int64_t b = 0; b < batch.batch_size; ++b) {
      const auto i = static_cast<size_t>(b);
      ids.push_back(batch.values[i]);
      EXPECT_EQ(batch.dense[i], 0.25f * static_cast<float>(batch.values[i]));
      EXPECT_EQ(batch.values[i + static_cast<size_t>(batch.batch_size)],
                batch.values[i] + (uint64_t{1} << 33));
    }
  }
  return ids;
}

TEST_P(PackedSourceTest, GivesTheBatchesOfTheTextItWasMadeOf) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const PackedManifest pack, Pack(env_));
  EXPECT_EQ(pack.schema.train_samples, kTrain);
  EXPECT_EQ(pack.schema.test_samples, 5);
  HOTROW_EXPECT_OK(VerifyPackedData(env_, "/packed"));
  HOTROW_ASSERT_OK(Pack(env_, {.dir = "/half", .dense_precision = kFp16}));
  const FileSourceOptions options = {.seed = 7};
  const auto text = OpenText(options);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, Open(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto half, Open(options, {"/half"}));
  EXPECT_EQ(packed->schema().name, "numbered");
  ASSERT_NE(packed->table_schema(), nullptr);
  for (const int64_t batch_size : {1, 50, 64, 2000}) {
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      SCOPED_TRACE(testing::Message()
                   << std::string(WordOf(kSplitWords, split)) << ", batches of " << batch_size);
      if (batch_size == 1 && split == Split::kTrain) continue;
      const std::vector<CtrBatch> expected = Batches(*text, split, 3, 0, batch_size);
      ExpectEqual(Batches(*packed, split, 3, 0, batch_size), expected);
      ExpectEqual(Batches(*half, split, 3, 0, batch_size), expected);  // fp16 has these numbers
    }
  }
  EXPECT_THAT(Open(options, {"/packed", "/half"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("precision of dense")));
}

TEST_P(PackedSourceTest, EpochsOfGroupsArePermutationsOfTheirOwn) {
  HOTROW_ASSERT_OK(Pack(env_));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, Open(InGroups()));
  std::set<std::vector<uint64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<uint64_t> ids = Ids(*packed, epoch, 0, 50);
    orders.insert(ids);
    // Samples that were neighbours come from one group at most now and then.
    EXPECT_FALSE(std::is_sorted(ids.begin(), ids.begin() + 100));
    std::sort(ids.begin(), ids.end());
    std::vector<uint64_t> all(kTrain);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(ids, all);
  }
  EXPECT_EQ(orders.size(), 3u);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto in_order, Open({.in_order = true}));
  const std::vector<uint64_t> ids = Ids(*in_order, 1, 0, 50);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
}

TEST_P(PackedSourceTest, AnyStartBatchSizeAndNumberOfThreadsGiveTheSameOrder) {
  HOTROW_ASSERT_OK(Pack(env_));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto one, Open(InGroups(1)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto four, Open(InGroups(4)));
  const std::vector<uint64_t> ids = Ids(*one, 2, 0, 64);
  EXPECT_EQ(Ids(*four, 2, 0, 700), ids);
  for (int64_t first = 0; first <= kTrain; first += first < 128 ? 31 : 175) {
    SCOPED_TRACE(first);
    EXPECT_EQ(Ids(*four, 2, first, 97), std::vector<uint64_t>(ids.begin() + first, ids.end()));
  }
  EXPECT_THAT(one->OpenSplit(Split::kTrain, 0, kTrain + 1).status(),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("the split has 1003 samples")));
}

TEST_P(PackedSourceTest, WithoutTheBytesOfIdsAsInTheFirstPacksTheBatchesAreTheSame) {
  HOTROW_ASSERT_OK(Pack(env_));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env_, "/packed/pack.json"));
  auto json = *OpenSealedJson(text);
  EXPECT_EQ(json["features"][0]["id_bytes"], 2);
  EXPECT_EQ(json["features"][1]["id_bytes"], 5);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto now, Open(InGroups()));
  const std::vector<CtrBatch> expected = Batches(*now, Split::kTrain, 1, 5, 90);
  for (auto& feature : json["features"]) feature.erase("id_bytes");
  WriteFileOrDie(env_, "/packed/pack.json", SealJson(json));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto first, Open(InGroups(2)));
  ExpectEqual(Batches(*first, Split::kTrain, 1, 5, 90), expected);

  json["features"][1]["id_bytes"] = 4;
  WriteFileOrDie(env_, "/packed/pack.json", SealJson(json));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto wrong, Open(InGroups()));
  const auto reader = wrong->OpenSplit(Split::kTrain, 0, 0);
  CtrBatch batch;
  EXPECT_THAT(reader.ok() ? (*reader)->Next(10, &batch) : reader.status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the head of feature 1 is wrong")));
}

TEST_P(PackedSourceTest, SeveralPacksAreReadAsOne) {
  HOTROW_ASSERT_OK(Pack(env_));
  // The samples that follow, in blocks of another size, of which the last is shorter, too.
  constexpr int64_t kMore = 500;
  WriteFileOrDie(env_, "/d/train", Text(kMore, GetParam(), kTrain));
  HOTROW_ASSERT_OK(Pack(env_, {.dir = "/more", .block_samples = 48}));
  WriteFileOrDie(env_, "/d/train", Text(kTrain + kMore, GetParam()));
  HOTROW_ASSERT_OK(Pack(env_, {.dir = "/whole"}));
  FileSourceOptions options = {.seed = 7};
  for (options.in_order = false;; options.in_order = true) {  // as a whole, or in order
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto one, Open(options, {"/whole"}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto several, Open(options, {"/packed", "/more"}));
    EXPECT_EQ(several->schema().train_samples, kTrain + kMore);
    EXPECT_EQ(several->schema().test_samples, 10);
    ExpectEqual(Batches(*several, Split::kTrain, 1, 70, 100),
                Batches(*one, Split::kTrain, 1, 70, 100));
    if (options.in_order) break;
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto in_groups, Open(InGroups(2), {"/packed", "/more"}));
  std::vector<uint64_t> ids = Ids(*in_groups, 1, 0, 50);
  EXPECT_EQ(Ids(*in_groups, 1, 777, 64), std::vector<uint64_t>(ids.begin() + 777, ids.end()));
  std::sort(ids.begin(), ids.end());
  std::vector<uint64_t> all(kTrain + kMore);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(ids, all);

  OneBatch other({.batch_size = 1, .labels = {1}, .values = {1}, .offsets = {0, 1}});
  HOTROW_ASSERT_OK(PackData(other, {.dir = "/other", .env = &env_}));
  EXPECT_THAT(Open(options, {"/packed", "/other"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/other: its ")));
}

TEST_P(PackedSourceTest, SlicesOfRanksAreThoseOfTheWholeBatch) {
  HOTROW_ASSERT_OK(Pack(env_));
  for (const FileSourceOptions& options :
       {InGroups(2), FileSourceOptions{.seed = 7}, FileSourceOptions{.in_order = true}}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, Open(options));
    for (int32_t rank = 0; rank < 3; ++rank) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, packed->OpenSplit(Split::kTrain, 1, 2));
      for (const CtrBatch& whole : Batches(*packed, Split::kTrain, 1, 2, 125)) {
        CtrBatch slice;
        HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t size, reader->NextSlice(125, rank, 3, &slice));
        EXPECT_EQ(size, whole.batch_size);
        CtrBatch expected;
        SliceBatch(whole, GetParam() ? 3 : 2, SliceBegin(size, rank, 3),
                   SliceBegin(size, rank + 1, 3), &expected);
        ExpectEqual({slice}, {expected});
      }
    }
  }
}

TEST_P(PackedSourceTest, ADamagedPackIsNamedAndGivesNoWrongSample) {
  HOTROW_ASSERT_OK(Pack(env_));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto good, Open(InGroups()));
  const std::vector<uint64_t> right = Ids(*good, 0, 0, 100);
  for (const std::string name : {"pack.json", "train.pack"}) {
    const std::string path = "/packed/" + name;
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(env_, path));
    const size_t step = bytes.size() / test::ForSanitizer(150, 40) | 1;
    int64_t named = 0;
    for (size_t at = 0; at <= bytes.size(); at += step) {
      std::string damaged = bytes;
      if (at % 2 == 0) {
        damaged[std::min(at, bytes.size() - 1)] ^= 0x10;
      } else {
        damaged.resize(at);  // cut off
      }
      WriteFileOrDie(env_, path, damaged);
      absl::Status status;
      std::vector<uint64_t> ids;
      if (auto opened = Open(InGroups()); opened.ok()) {
        auto reader = (*opened)->OpenSplit(Split::kTrain, 0, 0);
        status = reader.status();
        CtrBatch batch;
        while (status.ok()) {
          status = (*reader)->Next(100, &batch);
          if (!status.ok() || batch.batch_size == 0) break;
          ids.insert(ids.end(), batch.values.begin(), batch.values.begin() + batch.batch_size);
        }
      } else {
        status = opened.status();
      }
      if (status.ok()) {
        EXPECT_EQ(ids, right) << name << ", byte " << at;  // what lies between blocks
        continue;
      }
      ++named;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
    }
    EXPECT_GT(named, test::ForSanitizer(30, 10)) << name;
    WriteFileOrDie(env_, path, bytes);
  }
}

TEST_P(PackedSourceTest, AllDamageIsListed) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const PackedManifest manifest, Pack(env_));
  HOTROW_ASSERT_OK_AND_ASSIGN(const PackedReport good, VerifyPackedData(env_, "/packed"));
  EXPECT_THAT(good.damage, IsEmpty());
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto blocks,
                              ReadPackedIndex(env_, "/packed", manifest, Split::kTrain));
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(env_, "/packed/train.pack"));
  for (const size_t block : {0, 7}) bytes[blocks[block].offset + 9] ^= 1;
  WriteFileOrDie(env_, "/packed/train.pack", bytes);
  WriteFileOrDie(env_, "/packed/valid.pack", "cut");
  HOTROW_ASSERT_OK(env_.Remove("/packed/test.pack"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const PackedReport report, VerifyPackedData(env_, "/packed"));
  EXPECT_THAT(report.damage, ElementsAre(HasSubstr("train.pack: block 0 at byte 0 is damaged"),
                                         HasSubstr("train.pack: block 7"),
                                         HasSubstr("valid.pack: damaged"), HasSubstr("test.pack")));
}

TEST_P(PackedSourceTest, OneThatWasReplacedIsNotCalledDamaged) {
  HOTROW_ASSERT_OK(Pack(env_));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, Open(InGroups()));
  for (const char* const name : {"pack.json", "train.pack", "valid.pack", "test.pack"}) {
    HOTROW_ASSERT_OK(env_.Remove(absl::StrCat("/packed/", name)));
  }
  WriteFileOrDie(env_, "/d/train", Text(kTrain, GetParam(), /*first=*/1));
  HOTROW_ASSERT_OK(Pack(env_));
  const auto reader = packed->OpenSplit(Split::kTrain, 0, 0);
  CtrBatch batch;
  EXPECT_THAT(
      reader.ok() ? (*reader)->Next(100, &batch) : reader.status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/packed: is another pack")));
}

TEST_P(PackedSourceTest, APackThatIsCutBetweenItsOpeningAndItsReadingIsNamed) {
  HOTROW_ASSERT_OK(Pack(env_));
  const std::string path = "/packed/train.pack";
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(env_, path));
  for (const FileSourceOptions& options :
       {InGroups(), FileSourceOptions{.seed = 7}, FileSourceOptions{.in_order = true}}) {
    WriteFileOrDie(env_, path, bytes);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, Open(options));
    WriteFileOrDie(env_, path, bytes.substr(0, bytes.size() / 2));
    auto reader = packed->OpenSplit(Split::kTrain, 0, 0);
    absl::Status status = reader.status();
    CtrBatch batch;
    for (int64_t at = 0; status.ok() && at < kTrain; at += 100) {
      status = (*reader)->Next(100, &batch);
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                 AllOf(HasSubstr(path), HasSubstr("the file was cut"))));
  }
}

TEST_P(PackedSourceTest, ASourceThatChangesMeanwhileIsRefusedAndAFullDiskIsNamed) {
  const auto append = [this](int64_t) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env_.Open("/d/test", OpenMode::kCreate));
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t size, file->Size());
    const std::string line = GetParam() ? "1,2,3,4,5\n" : "1,2,3,4\n";
    HOTROW_ASSERT_OK(WriteFull(*file, size, std::as_bytes(std::span(line))));
  };
  const auto replace = [this](int64_t) {  // of the same size
    std::string text = Text(37, GetParam());
    text[text.find('\n') + 1] = '0';  // the first label
    WriteFileOrDie(env_, "/d/valid", text);
  };
  for (const auto& change : {std::function<void(int64_t)>(append), {replace}}) {
    EXPECT_THAT(Pack(env_, {.on_progress = change}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("table:/d/schema.json: changed while it was read")));
  }
  env_.SetCapacity(64 << 10);
  EXPECT_THAT(Pack(env_), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("train.pack")));
  env_.SetCapacity(INT64_MAX);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> left, env_.ListDir("/"));
  EXPECT_THAT(left, testing::ElementsAre("d"));
  HOTROW_EXPECT_OK(Pack(env_));
}

TEST_P(PackedSourceTest, MemoryIsBoundedAndFewerSamplesABlockNeedLess) {
  // All of kTrain in one block takes more than 100 KB.
  int64_t done = 0;
  const PackOptions whole = {.block_samples = 4096,
                             .memory_bytes = 64 << 10,
                             .on_progress = [&](int64_t samples) { done = samples; }};
  EXPECT_THAT(Pack(env_, whole),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("table:/d/schema.json: blocks of 4096 samples"),
                             HasSubstr("more --memory_bytes, or fewer --block_samples"))));
  EXPECT_LT(done, kTrain);
  EXPECT_THAT(Open({}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/packed")));
  HOTROW_EXPECT_OK(Pack(env_, {.memory_bytes = 64 << 10}));
}

TEST_P(PackedSourceTest, AFaultOrAKillAtAnyCallLeavesNoPackOrAWholeOne) {
  for (int64_t k = 0;; k += test::ForSanitizer(1, 3)) {
    FaultyEnv env(&env_);
    const absl::Status fault = absl::ResourceExhaustedError("injected: no space");
    if (k % 2 == 0) {
      env.FailCall(k, fault);
    } else {
      env.FailFrom(k, fault);  // what was begun stays, as after a kill
    }
    const absl::StatusOr<PackedManifest> packed = Pack(env, {.block_samples = 400});
    if (env.faults() == 0) break;
    const auto opened = Open(InGroups());
    if (opened.ok()) {
      EXPECT_EQ(Ids(**opened, 0, 0, 100).size(), static_cast<size_t>(kTrain));
      for (const std::string name : {"pack.json", "train.pack", "valid.pack", "test.pack"}) {
        HOTROW_ASSERT_OK(env_.Remove("/packed/" + name));
      }
      HOTROW_ASSERT_OK(env_.RemoveDir("/packed"));
    } else {
      EXPECT_FALSE(packed.ok());
      EXPECT_THAT(opened.status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("hotrow pack")));
    }
  }
  EXPECT_THAT(Pack(env_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/packed")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, PackedSourceTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Bags" : "OneEach"; });

TEST(PackedWriterTest, KeepsIdsOfEveryWidthWeightsAndProbabilities) {
  CtrBatch batch = {.batch_size = 64};
  for (int i = 0; i < 64; ++i) {
    batch.labels.push_back(static_cast<float>(i % 2));
    batch.true_probability.push_back(0.01f * static_cast<float>(i));
    batch.values.push_back(uint64_t{0xfedcba9876543210} >> (i / 8 * 8) >> (i % 8));
    batch.weights.push_back(static_cast<float>(i) - 3.5f);
  }
  batch.offsets.resize(65);
  std::iota(batch.offsets.begin(), batch.offsets.end(), 0);
  MemEnv env;
  for (const int64_t block : {1, 8, 100}) {
    const std::string dir = absl::StrCat("/p", block);
    OneBatch source(batch);
    HOTROW_ASSERT_OK(PackData(source, {.dir = dir, .block_samples = block, .env = &env}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed,
                                OpenPackedSource({dir}, {.in_order = true}, env));
    ExpectEqual(Batches(*packed, Split::kTrain, 0, 0, 64),
                {batch, Batches(*packed, Split::kTest, 0, 0, 1)[0]});
  }
}

TEST(PackedWriterTest, SamplesThatAPackCannotHoldAreNamed) {
  CtrBatch batch = {.batch_size = 2, .labels = {1, 0.5f}, .values = {1, 2}, .offsets = {0, 1, 2}};
  MemEnv env;
  OneBatch soft(batch);
  EXPECT_THAT(PackData(soft, {.dir = "/p", .source = "soft", .env = &env}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("soft, split train, from sample 0 on: sample 1 of the batch: "
                                 "label 0.5, expected 0 or 1")));
  batch.labels = {0, 1};
  batch.values.assign(65'537, 3);
  batch.offsets = {0, 1, 65'537};
  OneBatch wide(batch);
  EXPECT_THAT(PackData(wide, {.dir = "/p", .source = "wide", .env = &env}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65536 lookups, at most")));
  EXPECT_THAT(OpenPackedSource({"/p"}, {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/p")));
}

TEST(PackedWriterTest, NumbersThatFp16CannotHoldAreNamedAndOthersAreRounded) {
  CtrBatch batch = {.batch_size = 2, .labels = {1, 0}, .values = {1, 2}, .offsets = {0, 1, 2}};
  batch.dense = {65504, 1.0f / 3, -0.0f, 70000};
  MemEnv env;
  const PackOptions options = {.dir = "/p", .dense_precision = kFp16, .env = &env};
  OneBatch large(batch);
  EXPECT_THAT(PackData(large, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sample 1 of the batch: dense feature 1 is 70000, expected one "
                                 "in [-65504, 65504] for fp16")));
  batch.dense.back() = 1e-7f;
  OneBatch small(batch);
  HOTROW_ASSERT_OK(PackData(small, options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, OpenPackedSource({"/p"}, {}, env));
  const CtrBatch read = Batches(*packed, Split::kTrain, 0, 0, 2)[0];
  const size_t first = read.values[0] == 1 ? 0 : 2;  // they are shuffled
  EXPECT_EQ(read.dense[first], 65504);
  EXPECT_EQ(read.dense[first + 1], 0x1.554p-2f);
  EXPECT_TRUE(std::signbit(read.dense[2 - first]));
  EXPECT_EQ(read.dense[3 - first], 0x1p-23f);  // the nearest multiple of 2^-24
}

TEST(PackedWriterTest, NumbersThatAreNotFiniteAreNamed) {
  CtrBatch batch = {.batch_size = 2, .labels = {1, 0}, .values = {1, 2}, .offsets = {0, 1, 2}};
  batch.weights = {1, INFINITY};
  MemEnv env;
  OneBatch weighted(batch);
  EXPECT_THAT(PackData(weighted, {.dir = "/p", .env = &env}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sample 1 of the batch: a weight of feature 0 is not finite")));
}

TEST(PackedWriterTest, TheNameIsThatOfADirectoryWhichReadersFind) {
  MemEnv env;
  OneBatch source({.batch_size = 1, .labels = {1}, .values = {1}, .offsets = {0, 1}});
  for (const std::string dir : {"", "/a,b", "."}) {
    EXPECT_THAT(PackData(source, {.dir = dir, .env = &env}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the directory's name")));
  }
  HOTROW_EXPECT_OK(PackData(source, {.dir = "/p/q/./", .env = &env}));
  HOTROW_EXPECT_OK(OpenPackedSource({"/p/q"}, {}, env));
  // The same samples by another name.
  HOTROW_EXPECT_OK(PackData(source, {.dir = "/copy", .env = &env}));
  EXPECT_THAT(OpenPackedSource({"/p/q", "/copy"}, {}, env),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("would count twice")));
}

TEST(PackedWriterTest, ASourceWithoutTrainingSamplesIsRefused) {
  MemEnv env;
  OneBatch empty({.batch_size = 0, .offsets = {0}});
  EXPECT_THAT(PackData(empty, {.dir = "/p", .source = "empty", .env = &env}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty: no sample")));
}

// Of the values of `site`, those that occur twice or more have rows of their own.
std::unique_ptr<DataSource> OpenMerged(Env& env, const std::string& lines) {
  WriteFileOrDie(env, "/log", "y,site\n" + lines);
  const auto schema = ParseTableSchema(R"({"name": "merged", "files": {"train": ["/log"]},
      "columns": [{"name": "y", "role": "label"},
                  {"name": "site", "role": "categorical", "key": "integer", "min_count": 2}]})",
                                       "/schema.json");
  HOTROW_CHECK(schema.ok());
  auto source = OpenTableSource(*schema, {.memory_bytes = 0, .in_order = true}, env);
  HOTROW_CHECK(source.ok());
  return *std::move(source);
}

TEST(PackedVocabularyTest, IsThatOfTheTextAndDamageAndAnotherOneAreNamed) {
  MemEnv env;
  const auto text = OpenMerged(env, "1,7\n0,7\n1,8\n");
  HOTROW_ASSERT_OK(PackData(*text, {.dir = "/p", .env = &env}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto packed, OpenPackedSource({"/p"}, {}, env));
  ASSERT_NE(packed->vocabulary(), nullptr);
  EXPECT_EQ(packed->vocabulary()->Encode(), text->vocabulary()->Encode());
  SavedVocabulary saved = {.vocabulary = *text->vocabulary(), .where = "/model"};
  HOTROW_EXPECT_OK(OpenPackedSource({"/p"}, {.saved_vocabulary = &saved}, env));

  const auto other = OpenMerged(env, "1,7\n0,8\n1,8\n");
  HOTROW_ASSERT_OK(PackData(*other, {.dir = "/q", .env = &env}));
  saved.vocabulary = *other->vocabulary();
  EXPECT_THAT(OpenPackedSource({"/p"}, {.saved_vocabulary = &saved}, env),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/p: its rare values"), HasSubstr("/model"))));
  EXPECT_THAT(OpenPackedSource({"/p", "/q"}, {}, env),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/q: its vocabulary is not that of /p")));

  HOTROW_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(env, "/p/vocabulary"));
  bytes.back() ^= 1;
  for (const std::string& damaged : {bytes, bytes.substr(0, bytes.size() - 1)}) {
    WriteFileOrDie(env, "/p/vocabulary", damaged);
    EXPECT_THAT(OpenPackedSource({"/p"}, {}, env),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/p/vocabulary: damaged")));
    HOTROW_ASSERT_OK_AND_ASSIGN(const PackedReport report, VerifyPackedData(env, "/p"));
    EXPECT_THAT(report.damage, ElementsAre(HasSubstr("/p/vocabulary: damaged")));
  }
  HOTROW_ASSERT_OK(env.Remove("/p/vocabulary"));
  EXPECT_THAT(OpenPackedSource({"/p"}, {}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/p/vocabulary")));
}

TEST(PackedSourceVersionTest, FilesOfAnotherKindAreNamed) {
  MemEnv env;
  OneBatch source({.batch_size = 1, .labels = {1}, .values = {1}, .offsets = {0, 1}});
  HOTROW_ASSERT_OK(PackData(source, {.dir = "/p", .env = &env}));
  WriteFileOrDie(env, "/p/train.pack", std::string(100'000, 'x'));
  EXPECT_THAT(OpenPackedSource({"/p"}, {}, env),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("/p/train.pack: damaged: the checksum of its index")));
  WriteFileOrDie(env, "/p/pack.json", SealJson({{"format", "hotrow.model"}, {"version", 1}}));
  EXPECT_THAT(OpenPackedSource({"/p"}, {}, env),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("/p/pack.json: damaged: it is no manifest of packed data")));
  // A file in the place of a directory.
  EXPECT_THAT(OpenPackedSource({"/p/train.pack"}, {}, env),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("/p/train.pack: holds no packed data")));
}

TEST(PackedSourceVersionTest, AnotherVersionIsNoDamage) {
  MemEnv env;
  OneBatch source({.batch_size = 1, .labels = {1}, .values = {1}, .offsets = {0, 1}});
  HOTROW_ASSERT_OK(PackData(source, {.dir = "/p", .env = &env}));
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text, ReadFileToString(env, "/p/pack.json"));
  auto json = *OpenSealedJson(text);
  EXPECT_TRUE(json["requires"].empty());
  auto newer = json;
  newer["version"] = 2;
  json["requires"] = {"fp16_dense", "columns_of_tomorrow"};
  for (const auto& manifest : {newer, json}) {
    WriteFileOrDie(env, "/p/pack.json", SealJson(manifest));
    EXPECT_THAT(OpenPackedSource({"/p"}, {}, env),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("newer hotrow")));
  }
  WriteFileOrDie(env, "/q/other", "");
  EXPECT_THAT(OpenPackedSource({"/q"}, {}, env),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds no packed data")));
}

}  // namespace
}  // namespace hotrow
