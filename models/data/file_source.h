#ifndef HOTROW_MODELS_DATA_FILE_SOURCE_H_
#define HOTROW_MODELS_DATA_FILE_SOURCE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/data_source.h"
#include "models/data/sample_block.h"
#include "models/data/vocabulary.h"

namespace hotrow {

// The samples of a split in file order, read once.
//
// Threads: one at a time.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  // Appends up to max_samples > 0 samples to the block; fewer only at the end, and none there.
  virtual absl::Status Read(int64_t max_samples, SampleBlock* block) = 0;
  // Passes over n samples, fewer at the end; returns how many.
  virtual absl::StatusOr<int64_t> Skip(int64_t n) = 0;
};

// A split in memory: blocks of SampleFiles::kBlockSamples samples, the last one shorter.
using SampleBlocks = std::vector<std::unique_ptr<SampleBlock>>;

// What a stream is for: all of it goes into memory while nothing else runs, or batches are made of
// it while others train on them.
enum class StreamUse { kLoading, kReading };

// Files of samples. What a kind of data implements; OpenFileSource makes a DataSource of it.
//
// Threads: all methods may run concurrently.
class SampleFiles {
 public:
  static constexpr int64_t kBlockSamples = 65'536;

  virtual ~SampleFiles() = default;
  // Names and features; numbers of samples where they are known without reading.
  virtual const DataSchema& schema() const = 0;
  virtual absl::StatusOr<std::unique_ptr<SampleStream>> OpenStream(Split split,
                                                                   StreamUse use) const = 0;
  // DataSource::Identity.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const {
    return std::vector<std::pair<std::string, std::string>>();
  }
  // DataSource::vocabulary.
  virtual const Vocabulary* vocabulary() const { return nullptr; }
  // DataSource::table_schema.
  virtual const TableSchema* table_schema() const { return nullptr; }
  // DataSource::PlaceOf of data in the order of the files; empty: there are no better words than
  // its own.
  virtual absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample) const {
    return std::string();
  }
  // Calls take with samples [begin, end) of a block until all samples of all splits came, those of
  // each split in its order; true then, and false where take said that it is enough. Split by
  // split, unless an implementation can do better.
  using TakeSamples = absl::FunctionRef<absl::StatusOr<bool>(
      Split split, const SampleBlock& samples, int64_t begin, int64_t end)>;
  virtual absl::StatusOr<bool> ReadAll(TakeSamples take) const;
  // Reads all splits into memory; false, with *splits unspecified, where they do not fit in
  // max_bytes.
  virtual absl::StatusOr<bool> Load(int64_t max_bytes, std::array<SampleBlocks, 3>* splits) const;
};

// Adds samples to a split in memory, within a number of bytes.
class BlocksBuilder {
 public:
  BlocksBuilder(const DataSchema& schema, SampleBlocks* blocks)
      : num_dense_(schema.num_dense),
        num_features_(static_cast<int32_t>(schema.features.size())),
        num_labels_(static_cast<int32_t>(schema.labels.size())),
        blocks_(blocks) {}

  // The block to append the next sample to.
  SampleBlock* block();
  int64_t bytes() const;

 private:
  int32_t num_dense_;
  int32_t num_features_;
  int32_t num_labels_;
  SampleBlocks* blocks_;
  int64_t full_bytes_ = 0;  // of all blocks but the last
};

// What SampleFiles::Identity says of these files: for each its name without folders, its size, and
// a CRC-32C of its first and last 64 KiB. Reads no more than that.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> IdentityOfFiles(
    Env& env, const std::vector<std::string>& paths);

// The vocabulary of a saved model. Must outlive opening the source.
struct SavedVocabulary {
  Vocabulary vocabulary;
  std::string where;  // names the model in errors
  // A run goes on: its values are taken as they are. Otherwise those of the new training data that
  // are frequent enough join them.
  bool final = false;
};

// Threads that parse delimited text (models/data/sample_feed.h); nothing that is read depends on
// them. 1: the thread that asks for samples parses them. In [1, kMaxReaderThreads].
struct ReaderThreads {
  int32_t opening = 1;  // while the source is opened
  int32_t reading = 1;  // of each reader of a split that is not in memory
};

struct FileSourceOptions {
  uint64_t seed = 0;
  // Splits that take at most this many bytes together, parsed, are read when the source is opened
  // and kept; every epoch shuffles the whole training split.
  int64_t memory_bytes = int64_t{512} << 20;
  // Larger ones are read again in every epoch and shuffled in windows of this many samples in file
  // order; a reader holds two windows.
  int64_t window_samples = 65'536;
  // Training samples in the order of the files, too, in every epoch.
  bool in_order = false;
  // Counting how often each value occurs (min_count) takes at most this much.
  int64_t vocabulary_bytes = int64_t{1} << 30;
  // The vocabulary of the model that training starts from, which keeps it; null: there is none.
  const SavedVocabulary* saved_vocabulary = nullptr;
  ReaderThreads threads;

  absl::Status Validate() const;
};

// Training samples come in an order that is a function of (seed, epoch), the data and the options;
// those of validation and test in file order. Opening reads up to memory_bytes.
absl::StatusOr<std::unique_ptr<DataSource>> OpenFileSource(std::unique_ptr<SampleFiles> files,
                                                           const FileSourceOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_FILE_SOURCE_H_
