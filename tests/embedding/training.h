#ifndef HOTROW_TESTS_EMBEDDING_TRAINING_H_
#define HOTROW_TESTS_EMBEDDING_TRAINING_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "base/shared_allocator.h"
#include "base/thread_pool.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Tables, batches and whole runs for the tests of embedding/.

namespace hotrow::test {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// A batch that owns its arrays.
struct Batch {
  int64_t batch_size = 0;
  std::vector<uint64_t> values;
  std::vector<int64_t> offsets = {0};
  std::vector<float> weights;
  std::vector<float> scores;
  JaggedBatch view() const { return {batch_size, values, offsets, weights, {}, scores}; }
};

// Prefetches the batch of a step; every other one lies where copies to the device read it, until
// the collection lets go of it. What reads it later meets other numbers.
inline absl::StatusOr<EmbeddingStep> PrefetchStep(EmbeddingCollection& tables, const Batch& batch,
                                                  int number, Device device = Device::kCpu) {
  if (number % 2 == 0) return tables.Prefetch(batch.view());
  struct Lent {
    SharedVector<uint64_t> values;
    SharedVector<int64_t> offsets;
    SharedVector<float> weights;
  };
  const std::shared_ptr<Lent> lent(
      new Lent{{batch.values.begin(), batch.values.end(), SharedAllocator<uint64_t>(device)},
               {batch.offsets.begin(), batch.offsets.end(), SharedAllocator<int64_t>(device)},
               {batch.weights.begin(), batch.weights.end(), SharedAllocator<float>(device)}},
      [](Lent* arrays) {
        std::fill(arrays->values.begin(), arrays->values.end(), 0x5555);
        std::fill(arrays->offsets.begin(), arrays->offsets.end(), 0);
        std::fill(arrays->weights.begin(), arrays->weights.end(), -1.0f);
        delete arrays;
      });
  return tables.Prefetch(JaggedBatch{.batch_size = batch.batch_size,
                                     .values = std::span<const uint64_t>(lent->values),
                                     .offsets = std::span<const int64_t>(lent->offsets),
                                     .weights = lent->weights,
                                     .scores = batch.scores},
                         lent);
}

inline TableConfig Table(std::string name, int32_t dim, std::vector<std::string> features,
                         SparseOptimizerKind kind = SparseOptimizerKind::kRowWiseAdagrad) {
  TableConfig table;
  table.name = std::move(name);
  table.embedding_dim = dim;
  table.feature_names = std::move(features);
  table.optimizer.kind = kind;
  table.optimizer.learning_rate = 0.1f;
  table.initializer = {InitializerKind::kNormal, 0.5f};
  return table;
}

inline EmbeddingCollectionOptions Options(std::vector<TableConfig> tables) {
  EmbeddingCollectionOptions options;
  options.tables = std::move(tables);
  options.seed = 7;
  options.max_batch_size = 64;
  options.store = MemoryStorage{.memory_bytes = 64 * kMiB};
  return options;
}

// Hotness 0..max_hotness per bag, keys in [0, rows) with the small ones more frequent.
inline Batch RandomBatch(uint64_t seed, int num_features, int64_t batch_size, int max_hotness,
                         uint64_t rows, bool weighted) {
  RandomStream random(seed, RandomPurpose::kTest);
  Batch batch;
  batch.batch_size = batch_size;
  for (int64_t bag = 0; bag < num_features * batch_size; ++bag) {
    const uint64_t hotness = random.Below(static_cast<uint64_t>(max_hotness) + 1);
    for (uint64_t i = 0; i < hotness; ++i) {
      const double u = random.Uniform();
      batch.values.push_back(static_cast<uint64_t>(u * u * u * static_cast<double>(rows)));
      if (weighted) batch.weights.push_back(static_cast<float>(random.Uniform() + 0.5));
    }
    batch.offsets.push_back(static_cast<int64_t>(batch.values.size()));
  }
  return batch;
}

// Gives each lookup a score: a few values, some of them often.
inline void AddScores(uint64_t seed, Batch* batch) {
  RandomStream random(seed, RandomPurpose::kTest, /*stream=*/1);
  batch->scores.clear();
  for (size_t i = 0; i < batch->values.size(); ++i) {
    batch->scores.push_back(static_cast<float>(random.Below(40)) / 8 - 2);
  }
}

// The first `rows` rows of a buffer as wide as the pooled output.
template <typename Floats>
auto RowsOf(const EmbeddingCollection& tables, int64_t rows, Floats& floats) {
  auto* const data = floats.data();
  return MatrixView<std::remove_pointer_t<decltype(floats.data())>>(data, rows,
                                                                    tables.pooled_dim());
}

// A gradient that feeds values back into the tables, so that any wrong row spreads.
inline void FillGradient(const std::vector<float>& output, uint64_t step,
                         std::vector<float>* gradient) {
  gradient->resize(output.size());
  for (size_t i = 0; i < output.size(); ++i) {
    (*gradient)[i] =
        0.3f * output[i] + 0.01f * static_cast<float>((i * 7 + step * 13) % 11) - 0.05f;
  }
}

struct RunResult {
  CollectionDigest digest;
  EmbeddingStats stats;
  std::vector<float> last_output;
};

struct RunOptions {
  int steps = 12;
  int num_features = 0;
  int max_hotness = 3;
  uint64_t rows = 500;
  int64_t batch_size = 48;
  int threads = 1;
  bool weighted = false;
  bool scored = false;
  int evaluate_every = 0;  // 0: never
};

inline RunResult Train(const EmbeddingCollectionOptions& options, const RunOptions& run) {
  ThreadPool pool(run.threads);
  ExecContext ctx;
  ctx.pool = &pool;
  RunResult result;
  auto created = EmbeddingCollection::Create(options, ctx);
  HOTROW_EXPECT_OK(created);
  if (!created.ok()) return result;
  EmbeddingCollection& tables = **created;
  std::vector<Batch> batches;
  for (int i = 0; i < run.steps; ++i) {
    batches.push_back(RandomBatch(static_cast<uint64_t>(i) + 100, run.num_features, run.batch_size,
                                  run.max_hotness, run.rows, run.weighted));
    if (run.scored) AddScores(static_cast<uint64_t>(i), &batches.back());
  }
  std::deque<EmbeddingStep> ahead;
  size_t next = 0;
  std::vector<float> gradient;
  for (int i = 0; i < run.steps; ++i) {
    while (next < batches.size() && ahead.size() <= static_cast<size_t>(options.prefetch_depth)) {
      auto step = PrefetchStep(tables, batches[next], static_cast<int>(next));
      HOTROW_EXPECT_OK(step);
      if (!step.ok()) return result;
      ahead.push_back(*std::move(step));
      ++next;
    }
    result.last_output.assign(static_cast<size_t>(run.batch_size * tables.pooled_dim()), -1.0f);
    HOTROW_EXPECT_OK(ahead.front().Lookup(
        {.pooled = test::RowsOf(tables, ahead.front().batch_size(), result.last_output)}));
    if (run.evaluate_every > 0 && i % run.evaluate_every == 0) {
      Batch other = RandomBatch(static_cast<uint64_t>(i) + 999, run.num_features, run.batch_size,
                                run.max_hotness, run.rows * 2, run.weighted);
      if (run.scored) AddScores(static_cast<uint64_t>(i) + 7, &other);
      std::vector<float> output(result.last_output.size());
      HOTROW_EXPECT_OK(tables.Evaluate(other.view(),
                                       {.pooled = test::RowsOf(tables, other.batch_size, output)}));
    }
    FillGradient(result.last_output, static_cast<uint64_t>(i), &gradient);
    HOTROW_EXPECT_OK(
        std::move(ahead.front())
            .Update({.pooled = test::RowsOf(tables, ahead.front().batch_size(), gradient)}));
    ahead.pop_front();
  }
  result.stats = tables.Stats();
  auto digest = tables.Digest();
  HOTROW_EXPECT_OK(digest);
  if (digest.ok()) result.digest = *digest;
  return result;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_EMBEDDING_TRAINING_H_
