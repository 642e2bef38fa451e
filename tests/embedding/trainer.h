#ifndef HOTROW_TESTS_EMBEDDING_TRAINER_H_
#define HOTROW_TESTS_EMBEDDING_TRAINER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "embedding/storage_fields.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Training step by step over two small tables, for tests that interfere between the steps.

namespace hotrow::test {

inline constexpr int64_t kBatchSize = 48;
inline constexpr int kFeatures = 3;

// Two width classes. Initial rows of the first a device makes itself, of the second it does not.
inline EmbeddingCollectionOptions SmallTables() {
  EmbeddingCollectionOptions options =
      Options({Table("wide", 40, {"f0", "f1"}), Table("narrow", 3, {"f2"})});
  options.tables[0].initializer.kind = InitializerKind::kUniform;
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  return options;
}

// One in 32 bits, two in 16 with rows as wide as its own. Initial rows of the last two a device
// makes itself.
inline EmbeddingCollectionOptions TablesOfOneWidth() {
  EmbeddingCollectionOptions options =
      Options({Table("float", 20, {"f0"}), Table("half", 40, {"f1"}), Table("brain", 40, {"f2"})});
  options.tables[1].weights_precision = WeightsPrecision::kFp16;
  options.tables[2].weights_precision = WeightsPrecision::kBf16;
  options.tables[1].initializer.kind = InitializerKind::kUniform;
  options.tables[2].initializer.kind = InitializerKind::kConstant;
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  return options;
}

inline void PutStore(StoreKind kind, const std::string& dir, EmbeddingCollectionOptions* options) {
  StorageFields storage = FieldsOf(options->store);
  storage.kind = kind;
  storage.dir = dir;
  if (kind != StoreKind::kMemory) {
    storage.disk_bytes = 64 * kMiB;
    // An ssd store of this size writes in pieces of 32 KiB, so that rows really come from the disk.
    storage.memory_bytes = kind == StoreKind::kSsd ? 2 * kMiB : 8 * kMiB;
  }
  options->store = MakeStorage(storage);
}

inline Batch BatchOf(int step, uint64_t rows) {
  return RandomBatch(static_cast<uint64_t>(step) + 1000, kFeatures, kBatchSize, 3, rows, false);
}

// Steps of training, each with the batch of its number; some ahead, as the options say.
class Trainer {
 public:
  Trainer(EmbeddingCollection* tables, int depth, int first, int last, uint64_t rows)
      : tables_(tables), depth_(depth), next_(first), step_(first), last_(last), rows_(rows) {}

  int step() const { return step_; }  // updates done

  absl::Status Step() {
    while (next_ < last_ && static_cast<int>(ahead_.size()) <= depth_) {
      HOTROW_ASSIGN_OR_RETURN(EmbeddingStep ahead,
                              PrefetchStep(*tables_, BatchOf(next_, rows_), next_));
      ahead_.push_back(std::move(ahead));
      ++next_;
    }
    std::vector<float> output(static_cast<size_t>(kBatchSize * tables_->pooled_dim()));
    HOTROW_RETURN_IF_ERROR(ahead_.front().Lookup(
        {.pooled = test::RowsOf(*tables_, ahead_.front().batch_size(), output)}));
    std::vector<float> gradient;
    FillGradient(output, static_cast<uint64_t>(step_), &gradient);
    HOTROW_RETURN_IF_ERROR(
        std::move(ahead_.front())
            .Update({.pooled = test::RowsOf(*tables_, ahead_.front().batch_size(), gradient)}));
    ahead_.pop_front();
    ++step_;
    return absl::OkStatus();
  }

 private:
  EmbeddingCollection* tables_;
  int depth_;
  int next_;
  int step_;
  int last_;
  uint64_t rows_;
  std::deque<EmbeddingStep> ahead_;
};

// The hash after every number of steps, by tables in memory without a cache.
inline std::vector<Hash128> ReferenceHashes(const EmbeddingCollectionOptions& options, int steps,
                                            uint64_t rows) {
  std::vector<Hash128> hashes = {Hash128()};
  auto tables = EmbeddingCollection::Create(options, {});
  HOTROW_EXPECT_OK(tables);
  Trainer trainer(tables->get(), 0, 0, steps, rows);
  for (int i = 0; i < steps; ++i) {
    HOTROW_EXPECT_OK(trainer.Step());
    auto digest = (*tables)->Digest();
    HOTROW_EXPECT_OK(digest);
    hashes.push_back(digest->hash);
  }
  return hashes;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_EMBEDDING_TRAINER_H_
