// Error feedback on the gradients that several ranks exchange; the ranks are threads of this
// process.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/shard_map.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int32_t kRanks = 3;
constexpr int32_t kDim = 8;
constexpr uint64_t kRows = 400;

// Rows begin at zero, and SGD takes gradients off them as they are.
EmbeddingCollectionOptions SumOptions() {
  TableConfig table = Table("t", kDim, {"f"}, SparseOptimizerKind::kSgd);
  table.optimizer.learning_rate = 1;
  table.initializer = {InitializerKind::kZeros, 0};
  EmbeddingCollectionOptions options = Options({table});
  options.max_batch_size = kRows;
  return options;
}

EmbeddingCollectionOptions Int8(int64_t feedback_bytes) {
  EmbeddingCollectionOptions options = SumOptions();
  options.ranks.backward = ExchangeType::kInt8;
  options.ranks.feedback_bytes = feedback_bytes;
  return options;
}

using RankBody = std::function<absl::Status(EmbeddingCollection&, int rank)>;

std::vector<absl::Status> OnRanks(const EmbeddingCollectionOptions& options, const RankBody& body,
                                  int32_t world_size = kRanks, int threads = 1) {
  return RunOnThreads(world_size, {.timeout_seconds = 60},
                      [&](Communicator& communicator) -> absl::Status {
                        EmbeddingCollectionOptions mine = options;
                        mine.ranks.communicator = &communicator;
                        ThreadPool pool(threads);
                        HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingCollection> tables,
                                                EmbeddingCollection::Create(mine, {.pool = &pool}));
                        return body(*tables, communicator.rank());
                      });
}

// One step in which each of the keys occurs once, with this gradient.
absl::Status StepWith(EmbeddingCollection& tables, const std::vector<uint64_t>& keys,
                      const std::function<float(uint64_t key, int32_t column)>& gradient_of) {
  Batch batch;
  batch.values = keys;
  batch.batch_size = std::ssize(keys);
  for (int64_t i = 1; i <= batch.batch_size; ++i) batch.offsets.push_back(i);
  std::vector<float> floats(keys.size() * kDim);
  floats.reserve(1);
  HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
  HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = test::RowsOf(tables, step.batch_size(), floats)}));
  for (size_t i = 0; i < keys.size(); ++i) {
    for (int32_t c = 0; c < kDim; ++c) floats[i * kDim + c] = gradient_of(keys[i], c);
  }
  return std::move(step).Update({.pooled = test::RowsOf(tables, step.batch_size(), floats)});
}

std::vector<uint64_t> AllKeys() {
  std::vector<uint64_t> keys(kRows);
  for (uint64_t key = 0; key < kRows; ++key) keys[key] = key;
  return keys;
}

// All rows, read by each rank alike: [kRows, kDim].
absl::StatusOr<std::vector<float>> ReadRows(EmbeddingCollection& tables) {
  Batch batch;
  batch.values = AllKeys();
  batch.batch_size = kRows;
  for (int64_t i = 1; i <= batch.batch_size; ++i) batch.offsets.push_back(i);
  std::vector<float> rows(kRows * kDim);
  HOTROW_RETURN_IF_ERROR(
      tables.Evaluate(batch.view(), {.pooled = test::RowsOf(tables, batch.batch_size, rows)}));
  return rows;
}

// One large column, and others below half a step of int8, which is 1/254.
float SmallGradient(int rank, int32_t column) {
  return column == 0 ? 1.0f : 0.001f * static_cast<float>(1 + (column + rank) % 3);
}

std::vector<float> RowsAfter(int64_t feedback_bytes, int steps) {
  std::vector<float> rows;
  EXPECT_THAT(OnRanks(Int8(feedback_bytes),
                      [&](EmbeddingCollection& tables, int rank) -> absl::Status {
                        for (int i = 0; i < steps; ++i) {
                          HOTROW_RETURN_IF_ERROR(StepWith(
                              tables, AllKeys(),
                              [rank](uint64_t, int32_t c) { return SmallGradient(rank, c); }));
                        }
                        HOTROW_ASSIGN_OR_RETURN(std::vector<float> mine, ReadRows(tables));
                        if (rank == 0) rows = std::move(mine);
                        return absl::OkStatus();
                      }),
              Each(IsOk()));
  return rows;
}

TEST(FeedbackRanksTest, WhatOwnersReceiveFollowsTheSumOfWhatWasSent) {
  constexpr int kSteps = 200;
  const std::vector<float> with = RowsAfter(1 << 20, kSteps);
  const std::vector<float> without = RowsAfter(0, kSteps);
  ASSERT_EQ(with.size(), kRows * kDim);
  ASSERT_EQ(without.size(), kRows * kDim);
  for (uint64_t key = 0; key < kRows; ++key) {
    const int owner = OwnerRank({key, 0}, kRanks);
    for (int32_t c = 0; c < kDim; ++c) {
      double sum = 0;
      for (int rank = 0; rank < kRanks; ++rank) sum += kSteps * double{SmallGradient(rank, c)};
      // No further off than one residual of each rank that sends, half a step of int8; and what the
      // sums of floats lose.
      const size_t at = key * kDim + static_cast<size_t>(c);
      EXPECT_NEAR(with[at], -sum, (kRanks - 1) * 0.51 / 127 + 1e-3) << key << " column " << c;
      if (c == 0) continue;
      // Without, others' small columns never arrive; the owner's own do.
      EXPECT_NEAR(without[at], -kSteps * SmallGradient(owner, c), 1e-4) << key << " column " << c;
      EXPECT_GT(std::abs(without[at] + sum), 0.4 * sum);
    }
  }
}

struct Outcome {
  Hash128 hash;
  EmbeddingStats stats;
};

absl::Status TrainSteps(EmbeddingCollection& tables, int rank, int first, int last) {
  for (int i = first; i < last; ++i) {
    RandomStream random(static_cast<uint64_t>(i * kRanks + rank), RandomPurpose::kTest);
    std::vector<uint64_t> keys;
    for (uint64_t key = 0; key < kRows; ++key) {
      if (random.Uniform() < 0.4) keys.push_back(key);
    }
    HOTROW_RETURN_IF_ERROR(StepWith(tables, keys, [&](uint64_t key, int32_t c) {
      return c == 0 ? 1.0f : static_cast<float>(0.01 * (random.Uniform() - 0.3));
    }));
  }
  return absl::OkStatus();
}

Outcome Train(const EmbeddingCollectionOptions& options, int threads = 1,
              int32_t world_size = kRanks) {
  Outcome outcome;
  EXPECT_THAT(OnRanks(
                  options,
                  [&](EmbeddingCollection& tables, int rank) -> absl::Status {
                    HOTROW_RETURN_IF_ERROR(TrainSteps(tables, rank, 0, 30));
                    HOTROW_ASSIGN_OR_RETURN(const EmbeddingStats stats, tables.GlobalStats());
                    HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
                    if (rank == 0) outcome = {digest.hash, stats};
                    return absl::OkStatus();
                  },
                  world_size, threads),
              Each(IsOk()));
  return outcome;
}

// The least: room for about eighty residuals, while a rank sends some hundred keys in a step.
constexpr int64_t kTight = 4096 + 4096;

TEST(FeedbackRanksTest, RunsRepeatBitForBitAlsoWhereRoomIsShort) {
  const Outcome none = Train(Int8(0));
  EXPECT_EQ(none.stats.exchange_feedback_bytes, 0);
  EXPECT_EQ(none.stats.exchange_feedback_keys, 0);
  for (const int64_t bytes : {kTight, int64_t{1} << 20}) {
    for (const ExchangeRounding rounding :
         {ExchangeRounding::kNearest, ExchangeRounding::kStochastic}) {
      EmbeddingCollectionOptions options = Int8(bytes);
      options.ranks.rounding = rounding;
      const Outcome first = Train(options);
      const Outcome again = Train(options, /*threads=*/2);
      EXPECT_EQ(again.hash, first.hash) << bytes;
      EXPECT_NE(first.hash, none.hash) << bytes;
      EXPECT_EQ(again.stats.exchange_feedback_hits, first.stats.exchange_feedback_hits);
      EXPECT_GT(first.stats.exchange_feedback_hits, 0);
      EXPECT_LT(first.stats.exchange_feedback_hits, first.stats.exchange_feedback_keys);
      EXPECT_LE(first.stats.exchange_feedback_bytes, kRanks * bytes);
      EXPECT_GT(first.stats.exchange_feedback_bytes, kRanks * bytes / 2);
    }
  }
}

TEST(FeedbackRanksTest, OneRankSendsNothingAndTakesNoMemory) {
  const Outcome plain = Train(SumOptions(), 1, 1);
  const Outcome outcome = Train(Int8(1 << 20), 1, 1);
  EXPECT_EQ(outcome.hash, plain.hash);
  EXPECT_EQ(outcome.stats.exchange_feedback_bytes, 0);
}

TEST(FeedbackRanksTest, SavedResidualsGoOnAsIfNothingHadHappened) {
  for (const int64_t bytes : {kTight, int64_t{1} << 20}) {
    const Outcome whole = Train(Int8(bytes));
    std::vector<HostBuffer<std::byte>> saved(kRanks);
    // With the residuals, and without.
    for (const bool with_residuals : {true, false}) {
      std::vector<std::string> dirs;
      for (int rank = 0; rank < kRanks; ++rank) dirs.push_back(TempDir());
      const auto options_of = [&](int rank) {
        EmbeddingCollectionOptions options = Int8(bytes);
        std::get<MemoryStorage>(options.store).snapshot_dir = dirs[static_cast<size_t>(rank)];
        return options;
      };
      const auto run = [&](bool resumed,
                           const std::function<absl::Status(EmbeddingCollection&, int)>& body) {
        return RunOnThreads(kRanks, {.timeout_seconds = 60},
                            [&](Communicator& communicator) -> absl::Status {
                              EmbeddingCollectionOptions options = options_of(communicator.rank());
                              options.ranks.communicator = &communicator;
                              if (resumed) {
                                for (int rank = 0; rank < kRanks; ++rank) {
                                  options.start.from.push_back(
                                      {.snapshot = 1, .dir = dirs[static_cast<size_t>(rank)]});
                                }
                                options.start.steps = 13;
                              }
                              HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingCollection> tables,
                                                      EmbeddingCollection::Create(options, {}));
                              return body(*tables, communicator.rank());
                            });
      };
      ASSERT_THAT(run(false,
                      [&](EmbeddingCollection& tables, int rank) -> absl::Status {
                        HOTROW_RETURN_IF_ERROR(TrainSteps(tables, rank, 0, 13));
                        EXPECT_TRUE(tables.residuals().kept());
                        HOTROW_RETURN_IF_ERROR(tables.snapshots().Prepare(1));
                        HOTROW_ASSIGN_OR_RETURN(saved[static_cast<size_t>(rank)],
                                                tables.residuals().Save());
                        return tables.snapshots().Commit(1);
                      }),
                  Each(IsOk()));
      Hash128 hash;
      ASSERT_THAT(run(true,
                      [&](EmbeddingCollection& tables, int rank) -> absl::Status {
                        if (with_residuals) {
                          HOTROW_ASSIGN_OR_RETURN(
                              const bool taken,
                              tables.residuals().Load(saved[static_cast<size_t>(rank)].span()));
                          EXPECT_TRUE(taken);
                        }
                        HOTROW_RETURN_IF_ERROR(TrainSteps(tables, rank, 13, 30));
                        EXPECT_THAT(
                            tables.residuals().Load(saved[static_cast<size_t>(rank)].span()),
                            StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("before")));
                        HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
                        if (rank == 0) hash = digest.hash;
                        return absl::OkStatus();
                      }),
                  Each(IsOk()));
      EXPECT_EQ(hash == whole.hash, with_residuals) << bytes;
    }
  }
}

TEST(FeedbackRanksTest, WrongOptionsAreNamed) {
  EmbeddingCollectionOptions options = Int8(1 << 20);
  options.ranks.backward = ExchangeType::kFp32;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("ranks.feedback_bytes is 1048576"),
                                                 HasSubstr("ranks.backward is fp32"))));
  options = Int8(-1);
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("ranks.feedback_bytes=-1: takes a")));
  const int64_t least =
      internal::GradientResiduals::MinBytes(internal::ResidualTables(SumOptions()));
  EXPECT_THAT(Int8(least - 1).Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ranks.feedback_bytes"), HasSubstr("four residuals"),
                             HasSubstr(std::to_string(least)))));
  HOTROW_EXPECT_OK(Int8(least).Validate());
  // Another budget on one rank.
  const std::vector<absl::Status> statuses = RunOnThreads(
      kRanks, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
        EmbeddingCollectionOptions mine = Int8(communicator.rank() == 1 ? 2 << 20 : 1 << 20);
        mine.ranks.communicator = &communicator;
        return EmbeddingCollection::Create(mine, {}).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      AllOf(HasSubstr("rank 1"), HasSubstr("feedback")))));
}

}  // namespace
}  // namespace hotrow::test
