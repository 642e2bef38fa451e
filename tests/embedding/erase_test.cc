// Rows that are erased by key: against a plain map, over every store, cache and number of ranks,
// with kills and snapshots in between.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/rows/row_init.h"
#include "tests/embedding/store_kinds.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Above;
using ::hotrow::test::Batch;
using ::hotrow::test::FaultyEnv;
using ::hotrow::test::kMiB;
using ::hotrow::test::PutAbove;
using ::hotrow::test::PutStore;
using ::hotrow::test::RowsOf;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kTables = 3;
constexpr int32_t kDims[kTables] = {4, 20, 4};
constexpr int64_t kPooledDim = 28;
constexpr uint64_t kKeys = 400;   // of each table
constexpr int64_t kSamples = 24;  // of all ranks together, with one lookup in each table
constexpr float kLearningRate = 0.25f;

EmbeddingCollectionOptions PlainOptions() {
  EmbeddingCollectionOptions options = test::Options({});
  for (int t = 0; t < kTables; ++t) {
    TableConfig table =
        Table(absl::StrCat("t", t), kDims[t], {absl::StrCat("f", t)}, SparseOptimizerKind::kSgd);
    table.optimizer.learning_rate = kLearningRate;
    table.max_hotness = 1;
    options.tables.push_back(table);
  }
  return options;
}

// What the tables must hold.
class Model {
 public:
  // As the key is now, or as it begins.
  std::vector<float> Row(int table, uint64_t key) const {
    const auto there = rows_[table].find(key);
    return there == rows_[table].end() ? InitialRow(table, key) : there->second;
  }
  bool Has(int table, uint64_t key) const { return rows_[table].contains(key); }
  int64_t size(int table) const { return std::ssize(rows_[table]); }

  static float Gradient(float weight, uint64_t key, int64_t step, int32_t column) {
    const auto kind = static_cast<uint64_t>(step) * 13 + key * 7 + static_cast<uint64_t>(column);
    return 0.3f * weight + 0.01f * static_cast<float>(kind % 11) - 0.05f;
  }
  void Update(int table, uint64_t key, int64_t step) {
    std::vector<float> row = Row(table, key);
    for (int32_t c = 0; c < kDims[table]; ++c) {
      const float change = kLearningRate * Gradient(row[c], key, step, c);
      row[c] = row[c] - change;
    }
    rows_[table][key] = std::move(row);
    last_steps_[table][key] = step + 1;
  }
  void Erase(int table, uint64_t key) {
    rows_[table].erase(key);
    last_steps_[table].erase(key);
  }
  void Write(int table, uint64_t key, std::vector<float> row, int64_t steps) {
    rows_[table][key] = std::move(row);
    last_steps_[table][key] = std::max<int64_t>(steps, 1);
  }
  // By key.
  const std::map<uint64_t, int64_t>& last_steps(int table) const { return last_steps_[table]; }

 private:
  static std::vector<float> InitialRow(int table, uint64_t key) {
    const EmbeddingCollectionOptions options = PlainOptions();
    const RowLayout layout = RowLayout::For(kDims[table], SparseOptimizerKind::kSgd);
    std::vector<float> row(static_cast<size_t>(layout.row_bytes) / sizeof(float));
    auto* const bytes = reinterpret_cast<std::byte*>(row.data());
    HOTROW_EXPECT_OK(InitRows({}, {.initializer = options.tables[table].initializer,
                                   .layout = &layout,
                                   .seed = options.seed,
                                   .table = static_cast<uint32_t>(table),
                                   .num_rows = 1,
                                   .keys = &key,
                                   .rows = &bytes}));
    row.resize(static_cast<size_t>(kDims[table]));
    return row;
  }

  std::map<uint64_t, std::vector<float>> rows_[kTables];
  std::map<uint64_t, int64_t> last_steps_[kTables];
};

// The keys of a step, [tables][samples], distinct in each table; small ones more often.
std::vector<std::vector<uint64_t>> KeysOfStep(uint64_t seed, int64_t step) {
  RandomStream random(seed * 1000 + static_cast<uint64_t>(step), RandomPurpose::kTest);
  std::vector<std::vector<uint64_t>> keys(kTables);
  for (std::vector<uint64_t>& of_table : keys) {
    std::set<uint64_t> drawn;
    while (std::ssize(of_table) < kSamples) {
      const double u = random.Uniform();
      const auto key = static_cast<uint64_t>(u * u * static_cast<double>(kKeys));
      if (drawn.insert(key).second) of_table.push_back(key);
    }
  }
  return keys;
}

// One rank's part in a story of steps, erasures, snapshots and kills that the seed tells: all ranks
// tell the same one.
class Story {
 public:
  Story(EmbeddingCollectionOptions options, int rank, int ranks, uint64_t seed)
      : options_(std::move(options)),
        rank_(rank),
        ranks_(ranks),
        seed_(seed),
        random_(seed, RandomPurpose::kTest) {}

  // directories: where each rank keeps its store.
  absl::Status Tell(const std::vector<std::string>& directories) {
    for (int life = 0; life < 3; ++life) {
      options_.start = {};
      if (snapshot_ != 0) {
        for (const std::string& dir : directories) {
          options_.start.from.push_back({.snapshot = snapshot_, .dir = dir});
        }
        options_.start.steps = saved_step_;
      } else if (life > 0) {
        options_.start.start_over = true;
      }
      model_ = saved_;
      step_ = saved_step_;
      HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(options_, {}));
      const absl::Status lived = Live();
      ahead_.clear();  // a kill: nothing is closed
      const EmbeddingStats stats = tables_->Stats();
      evictions_ += stats.tiers[0].evictions;
      tables_.reset();
      HOTROW_RETURN_IF_ERROR(lived);
    }
    return absl::OkStatus();
  }

  int64_t evictions() const { return evictions_; }
  int64_t erased() const { return erased_; }          // rows that were there
  int64_t erased_old() const { return erased_old_; }  // of them, by age
  int64_t writes() const { return writes_; }
  int64_t came_back() const { return came_back_; }  // of them, looked up again

 private:
  absl::Status Live() {
    HOTROW_RETURN_IF_ERROR(Check());
    for (int i = 0; i < 24; ++i) {
      const uint64_t what = random_.Below(10);
      if (what < 6) {
        HOTROW_RETURN_IF_ERROR(Step());
      } else if (what < 7) {
        HOTROW_RETURN_IF_ERROR(Erase());
      } else if (what < 8) {
        HOTROW_RETURN_IF_ERROR(random_.Below(2) == 0 ? Erase() : WriteRows());
      } else if (what < 9) {
        HOTROW_RETURN_IF_ERROR(Check());
      } else {
        HOTROW_RETURN_IF_ERROR(TakeSnapshot());
      }
    }
    return Check();
  }

  // Keys with and without rows, on any tier. Every rank gives some, whoever keeps them.
  absl::Status WriteRows() {
    ahead_.clear();
    const auto table = static_cast<int>(random_.Below(kTables));
    const int32_t dim = kDims[table];
    std::vector<uint64_t> mine;
    std::vector<float> weights;
    for (uint64_t n = random_.Below(60); n > 0; --n) {
      const uint64_t key = random_.Below(kKeys);
      std::vector<float> row(static_cast<size_t>(dim));
      for (float& weight : row) weight = static_cast<float>(random_.Uniform()) - 0.5f;
      const bool own = key % static_cast<uint64_t>(ranks_) == static_cast<uint64_t>(rank_);
      if (own && std::find(mine.begin(), mine.end(), key) != mine.end()) continue;
      if (own) {
        mine.push_back(key);
        weights.insert(weights.end(), row.begin(), row.end());
      }
      // A key that comes twice counts once, as on the rank that gives it.
      if (!written_.insert(key).second) continue;
      gone_[table].erase(key);
      model_.Write(table, key, std::move(row), step_);
    }
    written_.clear();
    ++writes_;
    return tables_->WriteRows(absl::StrCat("t", table), mine,
                              {weights.data(), std::ssize(mine), dim});
  }

  absl::Status Step() {
    while (std::ssize(ahead_) <= options_.prefetch_depth) {
      Batch batch;
      const std::vector<std::vector<uint64_t>> keys = KeysOfStep(seed_, step_ + std::ssize(ahead_));
      batch.batch_size = last_sample() - first_sample();
      for (const std::vector<uint64_t>& of_table : keys) {
        for (int64_t s = first_sample(); s < last_sample(); ++s) {
          batch.values.push_back(of_table[s]);
          batch.offsets.push_back(std::ssize(batch.values));
        }
      }
      HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch(batch.view()));
      ahead_.push_back(std::move(step));
    }
    EmbeddingStep step = std::move(ahead_.front());
    ahead_.pop_front();
    std::vector<float> output(static_cast<size_t>(step.batch_size() * kPooledDim) + 1);
    HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = RowsOf(*tables_, step.batch_size(), output)}));
    const std::vector<std::vector<uint64_t>> keys = KeysOfStep(seed_, step_);
    std::vector<float> gradient(output.size());
    for (int64_t s = first_sample(); s < last_sample(); ++s) {
      size_t at = static_cast<size_t>((s - first_sample()) * kPooledDim);
      for (int t = 0; t < kTables; ++t) {
        const std::vector<float> row = model_.Row(t, keys[t][s]);
        for (int32_t c = 0; c < kDims[t]; ++c, ++at) {
          EXPECT_EQ(output[at], row[c])
              << "step " << step_ << " table " << t << " key " << keys[t][s];
          gradient[at] = Model::Gradient(output[at], keys[t][s], step_, c);
        }
      }
    }
    HOTROW_RETURN_IF_ERROR(std::move(step).Update(
        {.pooled = RowsOf(*tables_, last_sample() - first_sample(), gradient)}));
    for (int t = 0; t < kTables; ++t) {
      for (const uint64_t key : keys[t]) {
        came_back_ += gone_[t].erase(key);
        model_.Update(t, key, step_);
      }
    }
    ++step_;
    return absl::OkStatus();
  }

  // Each rank names its own keys, some of them twice, many without a row.
  absl::Status Erase() {
    if (random_.Below(3) == 0) return EraseOld();
    const auto table = static_cast<int>(random_.Below(kTables));
    std::vector<uint64_t> mine;
    for (int rank = 0; rank < ranks_; ++rank) {
      const uint64_t n = random_.Below(40);
      for (uint64_t i = 0; i < n; ++i) {
        const double u = random_.Uniform();
        const auto key = static_cast<uint64_t>(u * u * static_cast<double>(kKeys));
        if (rank == rank_) mine.push_back(key);
        if (model_.Has(table, key)) {
          ++erased_;
          gone_[table].insert(key);
        }
        model_.Erase(table, key);
      }
    }
    return tables_->Erase(absl::StrCat("t", table), mine);
  }

  // Two thirds of the rows that were not updated lately.
  absl::Status EraseOld() {
    const auto table = static_cast<int>(random_.Below(kTables));
    const auto line = static_cast<int64_t>(random_.Below(static_cast<uint64_t>(step_) + 2));
    const auto wanted = [line](uint64_t key, int64_t last_step) {
      return last_step < line && key % 3 != 0;
    };
    int64_t mine = 0;
    const std::map<uint64_t, int64_t> before = model_.last_steps(table);
    for (const auto& [key, last_step] : before) {
      if (!wanted(key, last_step)) continue;
      if (OwnerRank({key, static_cast<uint32_t>(table)}, ranks_) == rank_) ++mine;
      ++erased_;
      ++erased_old_;
      gone_[table].insert(key);
      model_.Erase(table, key);
    }
    HOTROW_ASSIGN_OR_RETURN(const int64_t erased,
                            tables_->EraseIf(absl::StrCat("t", table), [&](const StoredRow& row) {
                              return wanted(row.key, row.last_step);
                            }));
    EXPECT_EQ(erased, mine) << "table " << table << " line " << line;
    return absl::OkStatus();
  }

  absl::Status TakeSnapshot() {
    const auto snapshot = static_cast<SnapshotId>(++snapshots_);
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Begin(snapshot));
    const Model then = model_;
    const int64_t step = step_;
    for (uint64_t i = random_.Below(3); i > 0; --i) HOTROW_RETURN_IF_ERROR(Step());
    if (random_.Below(2) == 0) HOTROW_RETURN_IF_ERROR(Erase());
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Wait());
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Commit(snapshot));
    saved_ = then;
    saved_step_ = step;
    snapshot_ = snapshot;
    return absl::OkStatus();
  }

  // All keys, in an order of each rank's own.
  absl::Status Check() {
    for (int t = 0; t < kTables; ++t) {
      std::vector<uint64_t> keys(kKeys);
      std::iota(keys.begin(), keys.end(), 0);
      std::rotate(keys.begin(), keys.begin() + rank_ * 50, keys.end());
      std::vector<float> rows(kKeys * static_cast<size_t>(kDims[t]));
      const auto found = std::make_unique<bool[]>(kKeys);
      HOTROW_RETURN_IF_ERROR(tables_->ReadRows(
          absl::StrCat("t", t), keys, {rows.data(), kKeys, kDims[t]}, {found.get(), kKeys}));
      for (size_t i = 0; i < kKeys; ++i) {
        EXPECT_EQ(found[i], model_.Has(t, keys[i])) << "table " << t << " key " << keys[i];
        const std::vector<float> row = model_.Row(t, keys[i]);
        EXPECT_TRUE(
            std::equal(row.begin(), row.end(), rows.begin() + static_cast<int64_t>(i) * kDims[t]))
            << "table " << t << " key " << keys[i];
      }
    }
    if (random_.Below(2) == 0) return absl::OkStatus();
    HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables_->Digest());
    for (int t = 0; t < kTables; ++t) EXPECT_EQ(digest.tables[t].rows, model_.size(t)) << t;
    return absl::OkStatus();
  }

  int64_t first_sample() const { return kSamples * rank_ / ranks_; }
  int64_t last_sample() const { return kSamples * (rank_ + 1) / ranks_; }

  EmbeddingCollectionOptions options_;
  const int rank_;
  const int ranks_;
  const uint64_t seed_;
  RandomStream random_;

  std::unique_ptr<EmbeddingCollection> tables_;
  std::deque<EmbeddingStep> ahead_;
  Model model_;
  int64_t step_ = 0;
  Model saved_;
  int64_t saved_step_ = 0;
  SnapshotId snapshot_ = 0;
  int64_t snapshots_ = 0;
  std::set<uint64_t> gone_[kTables];
  int64_t evictions_ = 0;
  int64_t erased_ = 0;
  int64_t erased_old_ = 0;
  int64_t came_back_ = 0;
  int64_t writes_ = 0;
  std::set<uint64_t> written_;  // of WriteRows
};

class EraseTest : public testing::TestWithParam<StoreKind> {};

INSTANTIATE_TEST_SUITE_P(All, EraseTest, testing::ValuesIn(test::StoreKinds()),
                         test::NameOfStoreKind);

TEST_P(EraseTest, TheTablesAreThoseOfAPlainMap) {
  const bool slow = test::RunsSlowTests();
  std::vector<Above> all = {Above::kSmallCache, GetParam() == StoreKind::kMemory
                                                    ? Above::kNothing
                                                    : Above::kDeviceAndHost};
  if (slow || GetParam() != StoreKind::kRocksDb) {  // which opens slowly
    all.insert(all.end(), {Above::kLargeCache, Above::kDevice});
  }
  if (GetParam() == StoreKind::kMemory) all.push_back(Above::kDeviceIndexed);
  int64_t evictions = 0;
  int64_t erased = 0;
  int64_t erased_old = 0;
  int64_t came_back = 0;
  int64_t writes = 0;
  for (const uint64_t seed : test::Seeds(slow ? 10 : 1)) {
    for (const Above above : all) {
      SCOPED_TRACE(testing::Message()
                   << "HOTROW_TEST_SEED=" << seed << " above " << static_cast<int>(above));
      RandomStream random(seed, RandomPurpose::kTest);
      const std::string dir = test::TempDir();
      EmbeddingCollectionOptions options = PlainOptions();
      ASSERT_NO_FATAL_FAILURE(PutAbove(above, &options));
      PutStore(GetParam(), dir, &options);
      options.prefetch_depth = static_cast<int32_t>(random.Below(4));
      options.cache.policy = random.Below(2) == 0 ? CachePolicy::kLru : CachePolicy::kLfu;
      Story story(options, 0, 1, seed);
      HOTROW_ASSERT_OK(story.Tell({dir}));
      if (above == Above::kSmallCache) evictions += story.evictions();
      erased += story.erased();
      erased_old += story.erased_old();
      came_back += story.came_back();
      writes += story.writes();
    }
  }
  EXPECT_GT(evictions, 0);
  EXPECT_GT(erased, 0);
  EXPECT_GT(erased_old, 0);
  EXPECT_GT(came_back, 0);
  EXPECT_GT(writes, 0);
}

TEST_P(EraseTest, AnyNumberOfRanksHasTheTablesOfAPlainMap) {
  for (const uint64_t seed : test::Seeds(test::RunsSlowTests() ? 10 : 1)) {
    RandomStream random(seed, RandomPurpose::kTest);
    const int ranks = 2 + static_cast<int>(random.Below(2));
    const auto depth = static_cast<int32_t>(random.Below(3));
    const auto above = static_cast<Above>(GetParam() == StoreKind::kMemory ? random.Below(3)
                                                                           : 1 + random.Below(2));
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed << " ranks " << ranks);
    std::vector<std::string> dirs;
    const std::string dir = test::TempDir();
    for (int rank = 0; rank < ranks; ++rank) dirs.push_back(absl::StrCat(dir, "/", rank));
    const std::vector<absl::Status> told = RunOnThreads(
        ranks, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
          EmbeddingCollectionOptions options = PlainOptions();
          PutAbove(above, &options);
          PutStore(GetParam(), dirs[communicator.rank()], &options);
          options.prefetch_depth = depth;
          options.evaluation_staging_bytes = 4000;
          options.ranks.communicator = &communicator;
          Story story(options, communicator.rank(), ranks, seed);
          HOTROW_RETURN_IF_ERROR(story.Tell(dirs));
          EXPECT_GT(story.erased(), 0);
          return absl::OkStatus();
        });
    for (const absl::Status& status : told) HOTROW_EXPECT_OK(status);
  }
}

// Steps that were prefetched have the rows of their keys already.
TEST(EraseOrderTest, PrefetchedStepsSeeIt) {
  for (const int64_t cache_bytes : {int64_t{0}, kMiB}) {
    EmbeddingCollectionOptions options = PlainOptions();
    options.cache.bytes = cache_bytes;
    options.prefetch_depth = 2;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    const std::vector<uint64_t> keys = {5, 6, 7};
    const std::vector<int32_t> lengths = {1, 1, 1};
    const JaggedBatch batch = {.batch_size = 1, .values = keys, .lengths = lengths};
    std::vector<float> first(kPooledDim);
    std::vector<float> output(kPooledDim);
    const MatrixView<float> view(output.data(), 1, kPooledDim);
    for (int i = 0; i < 2; ++i) {
      HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch(batch));
      HOTROW_ASSERT_OK(step.Lookup({.pooled = view}));
      if (i == 0) first = output;
      // Not in the middle of a step.
      EXPECT_THAT(tables->Erase("t1", keys),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("Erase"), HasSubstr("between two steps"))));
      HOTROW_ASSERT_OK(std::move(step).Update({.pooled = view}));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep next, tables->Prefetch(batch));
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep last, tables->Prefetch(batch));
    HOTROW_ASSERT_OK(tables->Erase("t1", keys));
    HOTROW_ASSERT_OK(next.Lookup({.pooled = view}));
    EXPECT_NE(output[0], first[0]);
    for (size_t c = 4; c < 24; ++c) EXPECT_EQ(output[c], first[c]) << c;
    // A step that goes away leaves no row behind.
    next = EmbeddingStep();
    last = EmbeddingStep();
    HOTROW_ASSERT_OK_AND_ASSIGN(CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.tables[0].rows, 1);
    EXPECT_EQ(digest.tables[1].rows, 0);
    EXPECT_THAT(
        tables->EraseIf("t9", [](const StoredRow&) { return true; }),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("EraseIf: there is no table")));
    EXPECT_THAT(tables->Erase("t9", keys), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("Erase: there is no table")));
    HOTROW_ASSERT_OK(tables->Erase("t0", {}));
  }
}

TEST(WriteRowsTest, WhatIsWrongIsNamedAndChangesNothing) {
  EmbeddingCollectionOptions options = PlainOptions();
  options.tables[0].num_embeddings = 100;
  options.tables[2].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  options.tables[2].optimizer.weight_decay = 0.1f;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  std::vector<float> weights(8, 1.0f);
  const auto write = [&](const char* table, std::vector<uint64_t> keys, int64_t dim) {
    return tables->WriteRows(table, keys, {weights.data(), std::ssize(keys), dim});
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(write("t9", {1}, 4), StatusIs(kInvalid, HasSubstr("WriteRows: there is no table")));
  EXPECT_THAT(write("t0", {1}, 3), StatusIs(kInvalid, HasSubstr("WriteRows: rows")));
  EXPECT_THAT(write("t0", {7, 7}, 4), StatusIs(kInvalid, HasSubstr("key 7 occurs twice")));
  EXPECT_THAT(write("t0", {7, 100}, 4),
              StatusIs(kInvalid, AllOf(HasSubstr("key 100"), HasSubstr("num_embeddings, 100"))));
  weights[6] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(write("t0", {7, 8}, 4),
              StatusIs(kInvalid, AllOf(HasSubstr("weight 2 of key 8"), HasSubstr("finite"))));
  weights[6] = 1;
  EXPECT_THAT(write("t2", {7, 8}, 4), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr("weight_decay_mode table")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
  EXPECT_EQ(digest.tables[0].rows, 0);
  HOTROW_ASSERT_OK(write("t0", {7, 8}, 4));
  HOTROW_ASSERT_OK(write("t0", {}, 4));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest after, tables->Digest());
  EXPECT_EQ(after.tables[0].rows, 2);
}

// Half-precision rows are rounded to the nearest, and the state of the optimizer begins again. A
// frozen table takes rows, too.
TEST(WriteRowsTest, RowsBeginAnewWithTheWeights) {
  EmbeddingCollectionOptions options =
      test::Options({Table("half", 2, {"f"}, SparseOptimizerKind::kSgd),
                     Table("frozen", 2, {"g"}, SparseOptimizerKind::kSgd),
                     Table("state", 2, {"h"}, SparseOptimizerKind::kAdagrad)});
  options.tables[0].weights_precision = WeightsPrecision::kBf16;
  options.tables[1].read_only_features = {"g"};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  const std::vector<uint64_t> keys = {5};
  const std::vector<float> weights = {1.001f, -3};
  const auto write = [&] {
    for (const char* const table : {"half", "frozen", "state"}) {
      HOTROW_EXPECT_OK(tables->WriteRows(table, keys, {weights.data(), 1, 2}));
    }
  };
  const std::vector<uint64_t> values = {5, 5, 5};
  const std::vector<int32_t> lengths = {1, 1, 1};
  const auto step = [&] {
    std::vector<float> output(6);
    auto next =
        tables->Prefetch(JaggedBatch{.batch_size = 1, .values = values, .lengths = lengths});
    HOTROW_EXPECT_OK(next);
    HOTROW_EXPECT_OK(next->Lookup({.pooled = {output.data(), 1, 6}}));
    const std::vector<float> read = output;
    std::fill(output.begin(), output.end(), 0.5f);
    HOTROW_EXPECT_OK(std::move(*next).Update({.pooled = {output.data(), 1, 6}}));
    return read;
  };
  write();
  EXPECT_EQ(step(), (std::vector<float>{1, -3, 1.001f, -3, 1.001f, -3}));
  const std::vector<float> once = step();
  EXPECT_EQ(once[2], 1.001f);
  EXPECT_NE(once[4], 1.001f);
  write();
  EXPECT_EQ(step(), (std::vector<float>{1, -3, 1.001f, -3, 1.001f, -3}));
  const std::vector<float> again = step();
  EXPECT_EQ(again[4], once[4]);  // as with fresh state
  EXPECT_EQ(again[5], once[5]);
}

// A store that refuses now and then: the call may be made again, and in the end nothing is left.
TEST(EraseIfTest, RowsThatDecayAsAWholeHaveNoAge) {
  EmbeddingCollectionOptions options = PlainOptions();
  options.tables[1].optimizer.weight_decay = 0.01f;
  options.tables[1].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
  const auto all = [](const StoredRow&) { return true; };
  EXPECT_THAT(tables->EraseIf("t1", all),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("t1"), HasSubstr("with Erase"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t erased, tables->EraseIf("t0", all));
  EXPECT_EQ(erased, 0);
}

TEST(EraseFailureTest, AnErasureThatFailedCanBeMadeAgain) {
  int64_t failures = 0;
  for (const uint64_t seed : test::Seeds(24)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    FaultyEnv env;
    EmbeddingCollectionOptions options = test::SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    PutStore(StoreKind::kSsd, "/store", &options);
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    test::Trainer trainer(tables.get(), 0, 0, 20, 3000);
    while (trainer.step() < 20) HOTROW_ASSERT_OK(trainer.Step());
    std::vector<uint64_t> keys(3000);
    std::iota(keys.begin(), keys.end(), 0);
    env.FailWrites(seed, 1, absl::DataLossError("injected"));
    absl::Status status = tables->Erase("wide", keys);
    failures += status.ok() ? 0 : 1;
    env.FailWrites(0, 0, absl::OkStatus());
    for (int tries = 0; !status.ok() && tries < 10; ++tries) status = tables->Erase("wide", keys);
    HOTROW_ASSERT_OK(status);
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.tables[0].rows, 0);
    EXPECT_GT(digest.tables[1].rows, 0);
  }
  EXPECT_GT(failures, 0);
}

// What gradients of a key have lost on their way is no part of the new row's.
TEST(EraseRanksTest, ResidualsGoWithTheirKeys) {
  const std::vector<absl::Status> statuses =
      RunOnThreads(2, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
        EmbeddingCollectionOptions options = test::SmallTables();
        options.ranks.communicator = &communicator;
        options.ranks.backward = ExchangeType::kInt8;
        options.ranks.feedback_bytes = kMiB;
        HOTROW_ASSIGN_OR_RETURN(auto tables, EmbeddingCollection::Create(options, {}));
        HOTROW_ASSIGN_OR_RETURN(const HostBuffer<std::byte> none, tables->residuals().Save());
        test::Trainer trainer(tables.get(), 0, 0, 3, 500);
        while (trainer.step() < 3) HOTROW_RETURN_IF_ERROR(trainer.Step());
        HOTROW_ASSIGN_OR_RETURN(const HostBuffer<std::byte> some, tables->residuals().Save());
        EXPECT_GT(some.size(), none.size());
        // One rank names the keys of both.
        std::vector<uint64_t> keys(communicator.rank() == 0 ? 500 : 0);
        std::iota(keys.begin(), keys.end(), 0);
        HOTROW_RETURN_IF_ERROR(tables->Erase("wide", keys));
        HOTROW_RETURN_IF_ERROR(tables->Erase("narrow", keys));
        HOTROW_ASSIGN_OR_RETURN(const HostBuffer<std::byte> left, tables->residuals().Save());
        EXPECT_EQ(left.size(), none.size());
        HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables->Digest());
        for (const TableDigest& table : digest.tables) EXPECT_EQ(table.rows, 0) << table.name;
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

TEST(EraseRanksTest, RanksThatNameDifferentTablesAreTold) {
  const std::vector<absl::Status> statuses =
      RunOnThreads(2, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
        EmbeddingCollectionOptions options = PlainOptions();
        options.ranks.communicator = &communicator;
        HOTROW_ASSIGN_OR_RETURN(auto tables, EmbeddingCollection::Create(options, {}));
        return tables->Erase(communicator.rank() == 0 ? "t0" : "t2", {});
      });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("\"t0\""), HasSubstr("\"t2\"")));
  }
}

}  // namespace
}  // namespace hotrow
