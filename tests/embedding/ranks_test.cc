// Tables that several ranks share; the ranks are threads of this process.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/shard_map.h"
#include "tests/embedding/rank_training.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  }
  return std::sqrt(sum);
}

TEST(ShardMapTest, RanksTakeEqualRunsOfShards) {
  for (const int32_t ranks : {1, 2, 3, 7, 64, 4095, 4096}) {
    std::vector<int> shards(ranks);
    int32_t before = 0;
    for (uint32_t shard = 0; shard < RowHash::kNumShards; ++shard) {
      const int32_t rank = RankOfShard(shard, ranks);
      ASSERT_GE(rank, before);
      ASSERT_LT(rank, ranks);
      before = rank;
      ++shards[rank];
    }
    const auto [least, most] = std::minmax_element(shards.begin(), shards.end());
    EXPECT_LE(*most - *least, 1) << ranks;
    EXPECT_GE(*least, 1);
  }
}

TEST(RanksTest, TrainToTheModelOfOneRank) {
  RankRun run;
  run.steps = 60;
  const auto options = [](int) { return TwoWidths(); };
  const Outcome one = TrainOnRanks(1, options, run);
  RankRun none = run;
  none.steps = 0;
  const double moved = Distance(one.values, TrainOnRanks(1, options, none).values);
  ASSERT_GT(moved, 1);
  for (const int ranks : {2, 3, 4, 8}) {
    const Outcome many = TrainOnRanks(ranks, options, run);
    EXPECT_LE(Distance(many.values, one.values), 1e-5 * moved) << ranks;
    ASSERT_EQ(many.digest.tables.size(), one.digest.tables.size());
    for (size_t t = 0; t < one.digest.tables.size(); ++t) {
      EXPECT_EQ(many.digest.tables[t].rows, one.digest.tables[t].rows) << ranks;
    }
    EXPECT_EQ(many.stats.steps, one.stats.steps);
    EXPECT_EQ(many.stats.initialised_rows, one.stats.initialised_rows);
    EXPECT_EQ(many.stats.unique_keys, one.stats.unique_keys);
  }
}

// From equal rows and for given gradients a row differs by the order of its sums only.
TEST(RanksTest, OneStepOfEveryOptimizerIsWithinTheSummationBound) {
  for (const SparseOptimizerKind kind :
       {SparseOptimizerKind::kSgd, SparseOptimizerKind::kRowWiseAdagrad,
        SparseOptimizerKind::kAdagrad, SparseOptimizerKind::kAdam}) {
    RankRun run;
    run.steps = 1;
    const auto options = [kind](int) { return TwoWidths(kind); };
    const Outcome one = TrainOnRanks(1, options, run);
    const Outcome four = TrainOnRanks(4, options, run);
    ASSERT_EQ(one.values.size(), four.values.size());
    float worst = 0;
    for (size_t i = 0; i < one.values.size(); ++i) {
      worst = std::max(worst, std::abs(one.values[i] - four.values[i]));
    }
    // Gradients below 1, at most 150 of them in a row's sum, steps of 0.1.
    EXPECT_LE(worst, 0.1f * 150 * 0x1p-23f * 8) << static_cast<int>(kind);
  }
}

class RanksBitsTest : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(RanksBitsTest, DependOnNothingButTheNumberOfRanks) {
  const auto [ranks, halves] = GetParam();
  RankRun run;
  const auto plain = [halves = halves](int) {
    const EmbeddingCollectionOptions out = TwoWidths(SparseOptimizerKind::kRowWiseAdagrad);
    return halves ? InHalves(out) : out;
  };
  const Outcome expected = TrainOnRanks(ranks, plain, run);
  EXPECT_EQ(TrainOnRanks(ranks, plain, run).digest.hash, expected.digest.hash) << "again";
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const bool smallest : {true, false}) {
      for (const int depth : {0, 2}) {
        const std::string dir = TempDir();
        const auto options = [&](int rank) {
          EmbeddingCollectionOptions out = plain(rank);
          PutStore(store, absl::StrCat(dir, "/", rank), &out);
          // The least budget depends on the number of ranks: that of one is enough for all.
          out.cache.bytes = kMiB;
          out.cache.bytes = *EmbeddingCollection::MinCacheBytes(out) * (smallest ? 1 : 4);
          out.prefetch_depth = depth;
          out.evaluation_staging_bytes = 64 << 10;
          return out;
        };
        RankRun same = run;
        same.threads = depth == 0 ? 1 : 2;
        same.begin_early = depth == 0;
        same.evaluate_every = 3;
        const Outcome outcome = TrainOnRanks(ranks, options, same);
        EXPECT_EQ(outcome.digest.hash, expected.digest.hash)
            << StoreKindName(store) << " smallest " << smallest << " depth " << depth;
        EXPECT_EQ(outcome.values, expected.values);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, RanksBitsTest,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Bool()));

// Where each key has one lookup there is nothing to sum, and then not even the number of ranks
// shows: which rank keeps a row has no part in how it is rounded.
TEST(RanksTest, KeysWithOneLookupHaveTheSameBitsOnAnyNumberOfRanks) {
  constexpr int64_t kSamples = 48;
  constexpr uint64_t kKeys = 97;  // a prime above it
  for (const SparseOptimizerKind kind : {SparseOptimizerKind::kSgd, SparseOptimizerKind::kAdam}) {
    // Every table in every precision.
    for (const bool halves : {false, true}) {
      SCOPED_TRACE(absl::StrCat(std::string(SparseOptimizerName(kind)), " halves ", halves));
      const auto options_of = [&](int) {
        EmbeddingCollectionOptions options =
            Options({Table("a", 17, {"f0"}, kind), Table("b", 1, {"f1"}, kind),
                     Table("c", 64, {"f2"}, kind), Table("d", 64, {"f3"}, kind)});
        for (size_t t = 0; halves && t < 3; ++t) {
          options.tables[t].weights_precision =
              t == 1 ? WeightsPrecision::kBf16 : WeightsPrecision::kFp16;
        }
        // One of 16 bits and one of 32 decay as a whole, another is frozen.
        if (halves) options.tables[1].read_only_features = {"f1"};
        for (const size_t t : {size_t{0}, size_t{3}}) {
          if (!halves) break;
          options.tables[t].optimizer.weight_decay = 0.05f;
          options.tables[t].optimizer.weight_decay_mode = WeightDecayMode::kTable;
        }
        return options;
      };
      const auto train = [&](int ranks) {
        Outcome outcome;
        ExpectAllOk(OnRanks(
            ranks, 1, options_of, [&](EmbeddingCollection& tables, int rank) -> absl::Status {
              std::vector<float> gradient;
              for (int i = 0; i < 10; ++i) {
                Batch whole;
                whole.batch_size = kSamples;
                for (uint64_t f = 0; f < 4; ++f) {
                  for (uint64_t b = 0; b < kSamples; ++b) {
                    whole.values.push_back((b * 7 + static_cast<uint64_t>(i) * 13 + f) % kKeys);
                    whole.offsets.push_back(std::ssize(whole.values));
                  }
                }
                const int64_t begin = kSamples * rank / ranks;
                const Batch mine = Slice(whole, 4, begin, kSamples * (rank + 1) / ranks);
                HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(mine.view()));
                std::vector<float> output(
                    static_cast<size_t>(mine.batch_size * tables.pooled_dim()));
                HOTROW_RETURN_IF_ERROR(
                    step.Lookup({.pooled = test::RowsOf(tables, step.batch_size(), output)}));
                Gradient(output, begin, tables.pooled_dim(), i, &gradient);
                HOTROW_RETURN_IF_ERROR(std::move(step).Update(
                    {.pooled = test::RowsOf(tables, step.batch_size(), gradient)}));
              }
              HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
              HOTROW_ASSIGN_OR_RETURN(std::vector<float> values, ReadAll(tables, rank, 2 * kKeys));
              if (rank == 0) outcome = {digest, tables.Stats(), std::move(values)};
              return absl::OkStatus();
            }));
        return outcome;
      };
      const Outcome one = train(1);
      EXPECT_EQ(one.digest.tables[0].rows, static_cast<int64_t>(kKeys));
      for (const int ranks : {2, 4}) {
        const Outcome many = train(ranks);
        EXPECT_EQ(many.digest.hash, one.digest.hash) << ranks;
        EXPECT_EQ(many.values, one.values) << ranks;
        EXPECT_GT(many.stats.exchange_forward_bytes, 0);
      }
    }
  }
}

TEST(RanksTest, RowsOfSixteenBitsLoseNothingInAnExchangeOfTheirType) {
  const RankRun run;
  for (const auto& [precision, type] : {std::pair(WeightsPrecision::kFp16, ExchangeType::kFp16),
                                        std::pair(WeightsPrecision::kBf16, ExchangeType::kBf16)}) {
    const auto options_of = [precision = precision](ExchangeType forward,
                                                    ExchangeRounding rounding) {
      return [=](int) {
        EmbeddingCollectionOptions options = TwoWidths();
        for (TableConfig& table : options.tables) table.weights_precision = precision;
        options.ranks.forward = forward;
        options.ranks.rounding = rounding;
        return options;
      };
    };
    const Outcome wide =
        TrainOnRanks(3, options_of(ExchangeType::kFp32, ExchangeRounding::kNearest), run);
    for (const ExchangeRounding rounding :
         {ExchangeRounding::kNearest, ExchangeRounding::kStochastic}) {
      const Outcome narrow = TrainOnRanks(3, options_of(type, rounding), run);
      EXPECT_EQ(narrow.digest.hash, wide.digest.hash) << ExchangeTypeName(type);
      EXPECT_EQ(2 * narrow.stats.exchange_forward_bytes, wide.stats.exchange_forward_bytes);
    }
  }
}

TEST(RanksTest, EmptyBatchesAreFine) {
  // Fewer samples than ranks, and none at all.
  for (const int64_t batch_size : {0, 1, 3}) {
    RankRun run;
    run.batch_size = batch_size;
    run.steps = 4;
    const auto options = [](int) { return TwoWidths(); };
    const Outcome one = TrainOnRanks(1, options, run);
    const Outcome five = TrainOnRanks(5, options, run);
    EXPECT_EQ(five.digest.tables[0].rows, one.digest.tables[0].rows);
    EXPECT_EQ(five.stats.steps, 4);
  }
}

TEST(RanksTest, BytesAreThoseOfDistinctRows) {
  constexpr int kRanks = 4;
  constexpr int64_t kSamples = 4000;
  const auto options_for = [&](ExchangeType type) {
    return [type](int) {
      EmbeddingCollectionOptions options = Options({Table("t", 64, {"f0", "f1"})});
      options.max_batch_size = kSamples;
      options.ranks.forward = type;
      options.ranks.backward = type;
      return options;
    };
  };
  RankRun run;
  run.batch_size = kSamples;
  run.steps = 2;
  run.rows = 5000;
  // What has to travel: each distinct key of a rank's batch that another rank keeps.
  int64_t pairs = 0;
  for (int step = 0; step < run.steps; ++step) {
    const Batch whole = RandomBatch(static_cast<uint64_t>(step) + 100, 2, kSamples, run.max_hotness,
                                    run.rows, step % 2 == 1);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Batch mine = Slice(whole, 2, kSamples * rank / kRanks, kSamples * (rank + 1) / kRanks);
      const std::set<uint64_t> distinct(mine.values.begin(), mine.values.end());
      for (const uint64_t key : distinct) pairs += OwnerRank({key, 0}, kRanks) != rank ? 1 : 0;
    }
  }
  const EmbeddingStats fp32 = TrainOnRanks(kRanks, options_for(ExchangeType::kFp32), run).stats;
  EXPECT_GE(fp32.exchange_ids_bytes, 8 * pairs);
  EXPECT_LE(static_cast<double>(fp32.exchange_ids_bytes), 1.02 * 8 * static_cast<double>(pairs));
  EXPECT_EQ(fp32.exchange_forward_bytes, 256 * pairs);
  EXPECT_EQ(fp32.exchange_backward_bytes, 256 * pairs);
  const EmbeddingStats int8 = TrainOnRanks(kRanks, options_for(ExchangeType::kInt8), run).stats;
  EXPECT_EQ(int8.exchange_forward_bytes, 68 * pairs);
  EXPECT_LE(static_cast<double>(int8.exchange_backward_bytes),
            0.27 * 256 * static_cast<double>(pairs));
}

TEST(RanksTest, RoundedExchangeStaysNearAndRepeats) {
  RankRun run;
  run.steps = 20;
  const Outcome exact = TrainOnRanks(
      3, [](int) { return TwoWidths(); }, run);
  RankRun none = run;
  none.steps = 0;
  const double moved = Distance(exact.values, TrainOnRanks(
                                                  3, [](int) { return TwoWidths(); }, none)
                                                  .values);
  const std::vector<std::tuple<ExchangeType, ExchangeRounding, double>> cases = {
      {ExchangeType::kFp16, ExchangeRounding::kNearest, 1e-3},
      {ExchangeType::kBf16, ExchangeRounding::kNearest, 1e-2},
      {ExchangeType::kInt8, ExchangeRounding::kNearest, 3e-2},
      {ExchangeType::kInt8, ExchangeRounding::kStochastic, 6e-2}};
  for (const auto& [type, rounding, bound] : cases) {
    const auto options = [type = type, rounding = rounding](int) {
      EmbeddingCollectionOptions out = TwoWidths();
      out.ranks.forward = out.ranks.backward = type;
      out.ranks.rounding = rounding;
      return out;
    };
    const Outcome rounded = TrainOnRanks(3, options, run);
    const double distance = Distance(rounded.values, exact.values);
    EXPECT_LE(distance, bound * moved) << ExchangeTypeName(type);
    EXPECT_GT(distance, 0) << ExchangeTypeName(type) << ": was it rounded at all?";
    EXPECT_EQ(TrainOnRanks(3, options, run).digest.hash, rounded.digest.hash);
  }
}

TEST(RanksTest, CancelledStepsLeaveTheRanksInStep) {
  RankRun run;
  run.steps = 5;
  const auto plain = [](int) { return TwoWidths(); };
  const Outcome expected = TrainOnRanks(3, plain, run);
  Hash128 hash;
  ExpectAllOk(OnRanks(
      3, 1,
      [&](int rank) {
        EmbeddingCollectionOptions out = plain(rank);
        out.prefetch_depth = 3;
        return out;
      },
      [&](EmbeddingCollection& tables, int rank) -> absl::Status {
        // Some of them begun; dropped in another order on each rank.
        std::vector<EmbeddingStep> dropped;
        for (int i = 0; i < 4; ++i) {
          const Batch batch =
              RandomBatch(static_cast<uint64_t>(i * 3 + rank) + 7000, 4, 16, 3, 400, false);
          HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
          dropped.push_back(std::move(step));
        }
        HOTROW_RETURN_IF_ERROR(dropped[0].BeginLookup());
        if (rank == 1) std::reverse(dropped.begin(), dropped.end());
        for (EmbeddingStep& step : dropped) step = EmbeddingStep();
        HOTROW_RETURN_IF_ERROR(TrainSteps(tables, 3, rank, 3, run));
        HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
        if (rank == 0) hash = digest.hash;
        return absl::OkStatus();
      }));
  EXPECT_EQ(hash, expected.digest.hash);
}

// --- Errors

TEST(RanksTest, OtherOptionsOfARankAreNamed) {
  const auto statuses = OnRanks(
      3, 1,
      [](int rank) {
        EmbeddingCollectionOptions options = TwoWidths();
        if (rank == 2) options.ranks.forward = ExchangeType::kInt8;
        return options;
      },
      [](EmbeddingCollection&, int) { return absl::OkStatus(); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("ranks.forward is fp32 on ranks 0, 1 and int8 on rank 2")));
  }
}

TEST(RanksTest, AnotherPrecisionOfARankIsNamed) {
  const auto statuses = OnRanks(
      2, 1, [](int rank) { return rank == 1 ? InHalves(TwoWidths()) : TwoWidths(); },
      [](EmbeddingCollection&, int) { return absl::OkStatus(); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("tables[0] is"), HasSubstr("weights_precision fp32"),
                               HasSubstr("on rank 0 and"), HasSubstr("on rank 1"))));
  }
}

TEST(RanksTest, ARankThatCannotOpenIsNamedEverywhere) {
  const auto statuses = OnRanks(
      3, 1,
      [](int rank) {
        EmbeddingCollectionOptions options = TwoWidths();
        options.cache.bytes = rank == 1 ? 1000 : kMiB * 16;
        return options;
      },
      [](EmbeddingCollection&, int) { return absl::OkStatus(); });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("cache.bytes: the cache budget is 1000 bytes")));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("rank 1: EmbeddingCollectionOptions.cache.bytes: the cache "
                                   "budget is 1000 bytes")));
  }
}

TEST(RanksTest, ARankWithoutRoomEndsTheJobAndIsNamed) {
  const auto statuses = OnRanks(
      4, 1,
      [](int rank) {
        EmbeddingCollectionOptions options = TwoWidths();
        // Room for the index, not for the rows.
        if (rank == 3) std::get<MemoryStorage>(options.store).memory_bytes = 40 << 10;
        return options;
      },
      [](EmbeddingCollection& tables, int rank) {
        RankRun run;
        run.steps = 50;
        run.rows = 40000;
        return TrainSteps(tables, 0, rank, 4, run);
      });
  EXPECT_THAT(statuses[3], StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("budget")));
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 3 ended the job"), HasSubstr("budget"))));
  }
}

// Each call with an argument that rank 1 alone has wrong: rank 0, which is in the call, is told.
TEST(RanksTest, WhatOneRankRefusesEndsTheOthersAtOnce) {
  using Call = std::function<absl::Status(EmbeddingCollection&, bool wrong)>;
  const Batch batch = RandomBatch(1, 4, 8, 3, 50, false);
  std::vector<float> rooms[2];  // of a rank each
  const auto view = [&](EmbeddingCollection& tables, bool wrong, bool rank_1) {
    rooms[rank_1].resize(static_cast<size_t>(batch.batch_size * tables.pooled_dim()));
    MatrixView<float> out = test::RowsOf(tables, batch.batch_size, rooms[rank_1]);
    out.cols -= wrong;
    return out;
  };
  const uint64_t keys[] = {1};
  const std::pair<Call, const char*> calls[] = {
      {[&](EmbeddingCollection& tables, bool wrong) {
         JaggedBatch bad = batch.view();
         bad.batch_size += wrong;
         return tables.Prefetch(bad).status();
       },
       "x 9 samples"},
      {[&](EmbeddingCollection& tables, bool wrong) -> absl::Status {
         HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
         return step.Lookup({.pooled = view(tables, wrong, wrong)});
       },
       "EmbeddingOutput.pooled"},
      {[&](EmbeddingCollection& tables, bool wrong) -> absl::Status {
         HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
         HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = view(tables, false, wrong)}));
         return std::move(step).Update({.pooled = view(tables, false, wrong)}, wrong ? -1 : 1);
       },
       "learning_rate_factor"},
      {[&](EmbeddingCollection& tables, bool wrong) {
         return tables.Evaluate(batch.view(), {.pooled = view(tables, wrong, wrong)});
       },
       "EmbeddingOutput.pooled"},
      {[&](EmbeddingCollection& tables, bool wrong) {
         return tables.Erase(wrong ? "none" : "narrow", keys);
       },
       "there is no table \"none\""},
      {[&](EmbeddingCollection& tables, bool wrong) {
         return tables.EraseIf(wrong ? "none" : "narrow", [](const StoredRow&) { return false; })
             .status();
       },
       "there is no table \"none\""},
      {[&](EmbeddingCollection& tables, bool wrong) {
         return tables.EndJobUnlessOk(wrong ? absl::InvalidArgumentError("the caller's")
                                            : tables.Digest().status());
       },
       "the caller's"}};
  for (const auto& [call, text] : calls) {
    const auto statuses = OnRanks(
        2, 1, [](int) { return TwoWidths(); },
        [&](EmbeddingCollection& tables, int rank) { return call(tables, rank == 1); });
    EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable,
                                      AllOf(HasSubstr("rank 1 ended the job"), HasSubstr(text))));
  }
}

// What the caller's thread throws on rank 1 alone: rank 0 is told while rank 1 is still there.
TEST(RanksTest, WhatOneRankThrowsEndsTheOthersAtOnce) {
  std::barrier<> both(2);
  const auto statuses = OnRanks(
      2, 1,
      [](int rank) {
        EmbeddingCollectionOptions options = TwoWidths();
        options.on_update = [rank](uint32_t, std::span<const RowKey>, std::span<const int32_t>) {
          if (rank == 1) throw std::bad_alloc();
        };
        return options;
      },
      [&both](EmbeddingCollection& tables, int) {
        const absl::Status status = [&]() -> absl::Status {
          const Batch batch = RandomBatch(1, 4, 8, 3, 50, false);
          std::vector<float> values(static_cast<size_t>(8 * tables.pooled_dim()));
          const MatrixView<float> view = test::RowsOf(tables, 8, values);
          HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
          HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = view}));
          HOTROW_RETURN_IF_ERROR(std::move(step).Update({.pooled = view}));
          return tables.Digest().status();
        }();
        both.arrive_and_wait();
        return status;
      },
      /*timeout_seconds=*/5);
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kResourceExhausted, "on_update: out of memory"));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable,
                                    HasSubstr("rank 1 ended the job: on_update: out of memory")));
}

TEST(RanksTest, ARankThatLeavesIsNamed) {
  const auto statuses = OnRanks(
      3, 1, [](int) { return TwoWidths(); },
      [](EmbeddingCollection& tables, int rank) {
        RankRun run;
        run.steps = rank == 1 ? 2 : 6;
        return TrainSteps(tables, 0, rank, 3, run);
      });
  HOTROW_EXPECT_OK(statuses[1]);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 has left")));
  }
}

// The gradients of the step are on their way in the memory that rows of a lookup would go to.
TEST(RanksTest, NoLookupBehindBeginUpdate) {
  // Both are behind the call before: what one is refused then ends the job.
  std::barrier<> both(2);
  ExpectAllOk(OnRanks(
      2, 1, [](int) { return TwoWidths(); },
      [&both](EmbeddingCollection& tables, int) -> absl::Status {
        const Batch batch = RandomBatch(1, 4, 8, 3, 50, false);
        std::vector<float> output(static_cast<size_t>(8 * tables.pooled_dim()));
        HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
        HOTROW_RETURN_IF_ERROR(
            step.Lookup({.pooled = test::RowsOf(tables, step.batch_size(), output)}));
        const absl::Status begun =
            step.BeginUpdate({.pooled = test::RowsOf(tables, step.batch_size(), output)});
        both.arrive_and_wait();
        HOTROW_RETURN_IF_ERROR(begun);
        EXPECT_THAT(step.Lookup({.pooled = test::RowsOf(tables, step.batch_size(), output)}),
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("BeginUpdate")));
        EXPECT_THAT(step.BeginLookup(),
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("BeginUpdate")));
        return absl::OkStatus();  // an error of several ranks is final
      }));
}

TEST(RanksTest, NoEvaluationWhileRowsTravel) {
  std::barrier<> both(2);  // as above
  ExpectAllOk(OnRanks(
      2, 1, [](int) { return TwoWidths(); },
      [&both](EmbeddingCollection& tables, int) -> absl::Status {
        const Batch batch = RandomBatch(1, 4, 8, 3, 50, false);
        std::vector<float> output(static_cast<size_t>(8 * tables.pooled_dim()));
        HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
        const absl::Status begun = step.BeginLookup();
        both.arrive_and_wait();
        HOTROW_RETURN_IF_ERROR(begun);
        EXPECT_THAT(tables.Evaluate(batch.view(),
                                    {.pooled = test::RowsOf(tables, batch.batch_size, output)}),
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("BeginLookup")));
        return absl::OkStatus();
      }));
}

// --- Snapshots of N ranks on M

class RanksSnapshotTest : public testing::TestWithParam<StoreKind> {};

TEST_P(RanksSnapshotTest, OfAnyNumberOpenOnAnyNumber) {
  const StoreKind kind = GetParam();
  std::vector<std::pair<int, int>> cases = {{4, 1}, {4, 3}, {4, 8}, {1, 4}, {3, 3}};
  RandomStream random(Seeds(1)[0], RandomPurpose::kTest);
  for (int i = 0; i < 3; ++i) {
    cases.emplace_back(1 + random.Below(7), 1 + random.Below(7));
  }
  for (const auto& [before, after] : cases) {
    const std::string dir = TempDir();
    // Tables of 1, 7 and 4,097 rows.
    const auto options_of = [&, kind](int world_size) {
      return [&dir, world_size, kind](int rank) {
        EmbeddingCollectionOptions options = Options(
            {Table("one", 5, {"f0"}), Table("seven", 16, {"f1"}), Table("many", 5, {"f2"})});
        options.tables[0].num_embeddings = 1;
        options.tables[1].num_embeddings = 7;
        PutStore(kind, absl::StrCat(dir, "/", world_size, "/", rank), &options);
        options.cache.bytes = kind == StoreKind::kMemory ? 0 : 4 * kMiB;
        return options;
      };
    };
    const auto train = [&](EmbeddingCollection& tables, int rank, int ranks, int first) {
      for (int step = first; step < first + 6; ++step) {
        Batch whole;
        whole.batch_size = 800;
        whole.offsets = {0};
        RandomStream random(static_cast<uint64_t>(step), RandomPurpose::kTest);
        for (const uint64_t rows : {1, 7, 4097}) {
          for (int b = 0; b < 800; ++b) {
            whole.values.push_back(random.Below(rows));
            whole.offsets.push_back(static_cast<int64_t>(whole.values.size()));
          }
        }
        const Batch mine = Slice(whole, 3, 800 * rank / ranks, 800 * (rank + 1) / ranks);
        HOTROW_ASSIGN_OR_RETURN(EmbeddingStep s, tables.Prefetch(mine.view()));
        std::vector<float> values(static_cast<size_t>(mine.batch_size * tables.pooled_dim()));
        HOTROW_RETURN_IF_ERROR(s.Lookup({.pooled = test::RowsOf(tables, s.batch_size(), values)}));
        HOTROW_RETURN_IF_ERROR(
            std::move(s).Update({.pooled = test::RowsOf(tables, s.batch_size(), values)}));
      }
      return absl::OkStatus();
    };
    const auto big_batches = [&](int world_size) {
      return [inner = options_of(world_size)](int rank) {
        EmbeddingCollectionOptions options = inner(rank);
        options.max_batch_size = 800;
        return options;
      };
    };
    CollectionDigest written;
    ExpectAllOk(OnRanks(before, 1, big_batches(before),
                        [&](EmbeddingCollection& tables, int rank) -> absl::Status {
                          HOTROW_RETURN_IF_ERROR(train(tables, rank, before, 0));
                          HOTROW_RETURN_IF_ERROR(tables.snapshots().Prepare(9));
                          HOTROW_RETURN_IF_ERROR(tables.snapshots().Commit(9));
                          HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
                          if (rank == 0) written = digest;
                          // Not part of it.
                          HOTROW_RETURN_IF_ERROR(train(tables, rank, before, 6));
                          return tables.Close();
                        }));
    EXPECT_GT(written.tables[2].rows, 2000);
    CollectionDigest read;
    ExpectAllOk(OnRanks(
        after, 1,
        [&](int rank) {
          EmbeddingCollectionOptions options = big_batches(after)(rank);
          for (int part = 0; part < before; ++part) {
            options.start.from.push_back(
                {.snapshot = 9, .dir = absl::StrCat(dir, "/", before, "/", part)});
          }
          options.start.steps = 6;
          return options;
        },
        [&](EmbeddingCollection& tables, int rank) -> absl::Status {
          HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
          if (rank == 0) read = digest;
          return train(tables, rank, after, 6);
        }));
    EXPECT_EQ(read.hash, written.hash) << before << " to " << after;
    for (size_t t = 0; t < 3; ++t) EXPECT_EQ(read.tables[t].rows, written.tables[t].rows);
  }
}
INSTANTIATE_TEST_SUITE_P(Stores, RanksSnapshotTest,
                         testing::Values(StoreKind::kMemory, StoreKind::kSsd
#ifdef HOTROW_HAVE_ROCKSDB
                                         ,
                                         StoreKind::kRocksDb
#endif
                                         ));

// Each rank asks for its own keys, most of which others keep.
TEST(RanksTest, RowsAreReadByKeyFromWhereverTheyAreKept) {
  constexpr int kRanks = 3;
  EmbeddingCollectionOptions plain = Options({Table("a", 8, {"f0"}), Table("b", 5, {"f1"})});
  plain.tables[1].weights_precision = WeightsPrecision::kBf16;
  plain.evaluation_staging_bytes = 2000;
  std::mutex mutex;
  std::set<uint64_t> there;  // in table b, on all ranks
  std::barrier all_told(kRanks);
  ExpectAllOk(OnRanks(
      kRanks, 1, [&](int) { return plain; },
      [&](EmbeddingCollection& tables, int rank) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(
            TrainSteps(tables, 0, rank, kRanks, {.steps = 4, .batch_size = 24, .rows = 100}));
        std::vector<uint64_t> keys;
        for (uint64_t i = 0; i < static_cast<uint64_t>(rank) * 25; ++i) keys.push_back(i * 3 % 150);
        const int64_t n = std::ssize(keys);
        std::vector<float> rows(static_cast<size_t>(n * 5) + 1);
        const auto found = std::make_unique<bool[]>(keys.size());
        // Some ask what is there and others do not.
        HOTROW_RETURN_IF_ERROR(
            tables.ReadRows("b", keys, {rows.data(), n, 5},
                            rank == 1 ? std::span<bool>() : std::span(found.get(), keys.size())));
        HOTROW_RETURN_IF_ERROR(tables.ForEachRow("b", [&](uint64_t key, std::span<const float>) {
          const std::lock_guard<std::mutex> lock(mutex);
          there.insert(key);
          return absl::OkStatus();
        }));
        all_told.arrive_and_wait();
        for (size_t i = 0; rank != 1 && i < keys.size(); ++i) {
          EXPECT_EQ(found[i], there.contains(keys[i])) << keys[i];
        }
        JaggedBatch batch = {.batch_size = n, .values = keys};
        std::vector<int64_t> lengths(static_cast<size_t>(n), 0);
        lengths.resize(static_cast<size_t>(2 * n), 1);
        batch.lengths = lengths;
        std::vector<float> seen(static_cast<size_t>(n * 13) + 1);
        HOTROW_RETURN_IF_ERROR(tables.Evaluate(batch, {.pooled = {seen.data(), n, 13}}));
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t d = 0; d < 5; ++d) EXPECT_EQ(rows[i * 5 + d], seen[i * 13 + 8 + d]) << i;
        }
        return absl::OkStatus();
      }));
}

}  // namespace
}  // namespace hotrow::test
