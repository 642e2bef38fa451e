// What goes wrong while rows are made resident.

#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/trainer.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::BatchOf;
using ::hotrow::test::FailingAllocations;
using ::hotrow::test::FaultyEnv;
using ::hotrow::test::kBatchSize;
using ::hotrow::test::kMiB;
using ::hotrow::test::Options;
using ::hotrow::test::PutStore;
using ::hotrow::test::RandomBatch;
using ::hotrow::test::ReferenceHashes;
using ::hotrow::test::SmallTables;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::hotrow::test::Trainer;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PipelineFailureTest, AStepThatDoesNotFitAloneFailsAtItsLookupAndTheNextGoesOn) {
  EmbeddingCollectionOptions options = Options({Table("a", 64, {"f0"})});
  options.cache.bytes = 60'000;
  options.prefetch_depth = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  const Batch large = RandomBatch(1, 1, 64, 40, 1'000'000, false);
  const Batch small = RandomBatch(2, 1, 8, 1, 1000, false);
  std::vector<float> output(64 * 64);
  for (int i = 0; i < 20; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto first, tables->Prefetch(small.view()));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto second, tables->Prefetch(large.view()));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto third, tables->Prefetch(small.view()));
    HOTROW_ASSERT_OK(first.Lookup({.pooled = test::RowsOf(*tables, first.batch_size(), output)}));
    HOTROW_ASSERT_OK(
        std::move(first).Update({.pooled = test::RowsOf(*tables, first.batch_size(), output)}));
    EXPECT_THAT(second.Lookup({.pooled = test::RowsOf(*tables, second.batch_size(), output)}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("60000"), HasSubstr("64 samples"))));
    EXPECT_THAT(
        std::move(second).Update({.pooled = test::RowsOf(*tables, second.batch_size(), output)}),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("looked up")));
    HOTROW_ASSERT_OK(third.Lookup({.pooled = test::RowsOf(*tables, third.batch_size(), output)}));
    HOTROW_ASSERT_OK(
        std::move(third).Update({.pooled = test::RowsOf(*tables, third.batch_size(), output)}));
  }
  EXPECT_EQ(tables->steps(), 40);
}

// Nobody waits for a stage that found no memory. It has touched no row, and the next step goes on.
TEST(PipelineFailureTest, ABatchWithoutMemoryFailsAndTheNextGoesOn) {
  const Batch batch = RandomBatch(1, 1, 8, 1, 1000, false);
  for (const int depth : {0, 2}) {
    EmbeddingCollectionOptions options = Options({Table("a", 64, {"f0"})});
    options.cache.bytes = kMiB;
    options.prefetch_depth = depth;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    const auto train = [&](std::function<absl::Status()> ready) -> absl::Status {
      std::vector<float> values(8 * 64);
      const MatrixView<float> view = test::RowsOf(*tables, 8, values);
      HOTROW_ASSIGN_OR_RETURN(
          EmbeddingStep step,
          tables->Prefetch(batch.view(), std::make_shared<int>(), std::move(ready)));
      HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = view}));
      return std::move(step).Update({.pooled = view});
    };
    EXPECT_THAT(train([]() -> absl::Status { throw std::bad_alloc(); }),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("out of memory")));
    EXPECT_THAT(train([]() -> absl::Status { throw std::runtime_error("the caller's"); }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("the caller's")));
    HOTROW_EXPECT_OK(train([] { return absl::OkStatus(); }));
    EXPECT_EQ(tables->steps(), 1);
  }
}

// Functions of the caller's throw. Updates that on_update was told of have been made, and the rows
// are those of a run in which nobody throws.
TEST(PipelineFailureTest, WhatFunctionsOfTheCallerThrowIsAnErrorAndTakesNoRows) {
  constexpr int kSteps = 20;
  constexpr uint64_t kRows = 2500;
  const std::vector<Hash128> expected = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const int depth : {0, 2}) {
    EmbeddingCollectionOptions options = SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    options.prefetch_depth = depth;
    int told = 0;
    options.on_update = [&told](uint32_t, std::span<const RowKey>, std::span<const int32_t>) {
      if (++told % 3 == 0) throw std::runtime_error("the caller's");
    };
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    auto trainer = std::make_unique<Trainer>(tables.get(), depth, 0, kSteps, kRows);
    int thrown = 0;
    while (tables->steps() < kSteps) {
      const absl::Status status = trainer->Step();
      if (status.ok()) continue;
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInternal, HasSubstr("on_update: the caller's")));
      ++thrown;
      trainer.reset();
      trainer = std::make_unique<Trainer>(tables.get(), depth, static_cast<int>(tables->steps()),
                                          kSteps, kRows);
    }
    trainer.reset();
    EXPECT_GT(thrown, 5);
    EXPECT_THAT(
        tables->EraseIf("wide",
                        [](const StoredRow&) -> bool { throw std::runtime_error("the caller's"); }),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("the caller's")));
    EXPECT_THAT(tables->ForEachRow("wide",
                                   [](uint64_t, std::span<const float>) -> absl::Status {
                                     throw std::runtime_error("the caller's");
                                   }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("the caller's")));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.hash, expected[kSteps]);
  }
}

// Each allocation of a step fails in turn, alone or with all that follow in the same call. The
// tables are as after so many updates as they count, or no call may follow.
TEST(PipelineFailureTest, AStepWithoutMemoryIsNoneOrEndsTheTables) {
  enum class Call { kPrefetch, kLookup, kUpdate, kCancel, kEnd };
  constexpr uint64_t kRows = 2500;
  const std::vector<Hash128> expected = ReferenceHashes(SmallTables(), 2, kRows);
  int broken = 0;
  int whole = 0;
  const auto run = [&](bool cached, Call call, int64_t good) -> bool {
    EmbeddingCollectionOptions options = SmallTables();
    if (cached) options.cache.bytes = *EmbeddingCollection::MinCacheBytes(options);
    auto tables = *EmbeddingCollection::Create(options, {});
    {
      Trainer trainer(tables.get(), 0, 0, 1, kRows);
      HOTROW_EXPECT_OK(trainer.Step());
    }
    const Batch batch = BatchOf(1, kRows);
    std::vector<float> output(static_cast<size_t>(kBatchSize * tables->pooled_dim()));
    std::vector<float> gradient(output.size());
    int64_t failed = 0;
    const auto fails = [&](Call now, const auto& work) -> absl::Status {
      if (now != call) return work();
      const FailingAllocations no_memory(good, good % 2 == 0 ? 1 : FailingAllocations::kAllOthers);
      absl::Status status = work();
      failed = no_memory.failed();
      return status;
    };
    const auto step_once = [&]() -> absl::Status {
      EmbeddingStep step;
      HOTROW_RETURN_IF_ERROR(fails(Call::kPrefetch, [&]() -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(step, tables->Prefetch(batch.view()));
        return absl::OkStatus();
      }));
      const EmbeddingOutput to = {.pooled = test::RowsOf(*tables, kBatchSize, output)};
      HOTROW_RETURN_IF_ERROR(fails(Call::kLookup, [&] { return step.Lookup(to); }));
      if (call == Call::kCancel) {
        return fails(Call::kCancel, [&]() -> absl::Status {
          step = EmbeddingStep();
          return absl::OkStatus();
        });
      }
      test::FillGradient(output, 1, &gradient);
      const EmbeddingGradient from = {.pooled = test::RowsOf(*tables, kBatchSize, gradient)};
      return fails(Call::kUpdate, [&] { return std::move(step).Update(from); });
    };
    const absl::Status status = step_once();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    }
    const absl::StatusOr<CollectionDigest> digest = tables->Digest();
    if (digest.ok()) {
      ++whole;
      EXPECT_EQ(digest->hash, expected[static_cast<size_t>(tables->steps())]);
    } else {
      ++broken;
      EXPECT_EQ(digest.status().code(), absl::StatusCode::kResourceExhausted) << digest.status();
      EXPECT_EQ(tables->Prefetch(batch.view()).status().code(),
                absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(tables->snapshots().Prepare(1).code(), absl::StatusCode::kResourceExhausted);
    }
    return failed > 0;
  };
  for (const bool cached : {true, false}) {
    for (int call = 0; call < static_cast<int>(Call::kEnd); ++call) {
      for (int64_t good = 0;; ++good) {
        SCOPED_TRACE(testing::Message()
                     << "cached " << cached << ", call " << call << ", allocation " << good);
        if (!run(cached, static_cast<Call>(call), good)) break;
      }
    }
  }
  EXPECT_GT(broken, 0);
  EXPECT_GT(whole, 0);
}

// A step that finds no room is given up, and that finds no memory either: outside of all that
// expects it, it ended the process or left its step waiting.
TEST(PipelineFailureTest, AStepIsGivenUpWithoutMemory) {
  const Batch large = RandomBatch(1, 1, 64, 40, 1'000'000, false);
  bool fails = true;
  for (int64_t good = 0; fails; ++good) {
    SCOPED_TRACE(testing::Message() << "allocation " << good);
    EmbeddingCollectionOptions options = Options({Table("a", 64, {"f0"})});
    options.cache.bytes = 60'000;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    absl::Status status;
    {
      const FailingAllocations no_memory(good, FailingAllocations::kAllOthers);
      status = tables->Prefetch(large.view()).status();
      fails = no_memory.failed() > 0;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

// A read or write of the disk fails now and then. Steps that meet it fail and are taken again; in
// the end nothing is lost and nothing was updated twice.
TEST(PipelineFailureTest, StepsThatFailOverABadDiskCanBeTakenAgain) {
  constexpr int kSteps = 60;
  constexpr uint64_t kRows = 2500;
  const std::vector<Hash128> expected = ReferenceHashes(SmallTables(), kSteps, kRows);
  int failures = 0;
  for (const uint64_t seed : test::Seeds(8)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    FaultyEnv env;
    EmbeddingCollectionOptions options = SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    // With room for two steps one is placed, on rows that both have, while the other's read fails.
    options.cache.bytes *= 1 + static_cast<int64_t>(seed % 2);
    options.prefetch_depth = static_cast<int32_t>(seed % 4);
    PutStore(StoreKind::kSsd, "/store", &options);
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    auto trainer =
        std::make_unique<Trainer>(tables.get(), options.prefetch_depth, 0, kSteps, kRows);
    while (trainer->step() < kSteps) {
      if (random.Below(3) == 0) {
        env.FailCall(env.calls() + static_cast<int64_t>(random.Below(20)),
                     absl::UnavailableError("injected"));
      }
      const absl::Status status = trainer->Step();
      if (status.ok()) continue;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("injected")));
      ++failures;
      const int at = trainer->step();
      trainer.reset();
      trainer = std::make_unique<Trainer>(tables.get(), options.prefetch_depth, at, kSteps, kRows);
    }
    trainer.reset();
    // Faults that nobody has met yet must not meet what follows.
    for (int i = 0; i < 20; ++i) env.Exists("/store").IgnoreError();
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.hash, expected[kSteps]);
  }
  EXPECT_GT(failures, 10);
}

// The store is full: the step that pushes rows out of the cache says so, nothing hangs, and a
// snapshot that needs the room says so too. What is there can be read.
TEST(PipelineFailureTest, AFullStoreUnderACacheIsNamed) {
  for (const int depth : {0, 2}) {
    EmbeddingCollectionOptions options = SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    options.prefetch_depth = depth;
    std::get<MemoryStorage>(options.store).memory_bytes = 512 << 10;
    test::MemEnv env;
    std::get<MemoryStorage>(options.store).snapshot_dir = "/snapshots";
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    Trainer trainer(tables.get(), depth, 0, 1000, 1'000'000);
    absl::Status status;
    while (status.ok() && trainer.step() < 1000) status = trainer.Step();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("524288")));
    EXPECT_THAT(tables->Flush(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("524288")));
    EXPECT_THAT(tables->snapshots().Prepare(1),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("524288")));
    EXPECT_THAT(trainer.Step(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("524288")));
    std::vector<float> output(static_cast<size_t>(kBatchSize * tables->pooled_dim()));
    HOTROW_EXPECT_OK(
        tables->Evaluate(BatchOf(1, 100).view(),
                         {.pooled = test::RowsOf(*tables, BatchOf(1, 100).batch_size, output)}));
  }
}

}  // namespace
}  // namespace hotrow
