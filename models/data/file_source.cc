#include "models/data/file_source.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "models/data/sample_feed.h"
#include "models/data/shuffle_impl.h"

namespace hotrow {
namespace {

constexpr int64_t kIdentityBytes = 64 << 10;  // of a file's beginning, and of its end

constexpr int64_t kReadSamples = 1'024;
constexpr int64_t kCheckSamples = 1'024;  // samples between two looks at the memory used
class MemoryReader : public DataReader {
 public:
  // order is null for file order.
  MemoryReader(const DataSchema& schema, const SampleBlocks& blocks, int64_t size,
               std::unique_ptr<Permutation> order, int64_t position)
      : schema_(schema),
        blocks_(blocks),
        size_(size),
        order_(std::move(order)),
        position_(position) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    refs_.resize(static_cast<size_t>(std::min(max_batch_size, size_ - position_)));
    for (SampleRef& ref : refs_) {
      int64_t at = position_++;
      if (order_ != nullptr) at = static_cast<int64_t>((*order_)(static_cast<uint64_t>(at)));
      ref.block = blocks_[static_cast<size_t>(at / SampleFiles::kBlockSamples)].get();
      ref.index = at % SampleFiles::kBlockSamples;
    }
    GatherSamples(refs_, schema_.num_dense, static_cast<int32_t>(schema_.features.size()), batch,
                  static_cast<int32_t>(schema_.labels.size()));
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }

 private:
  const DataSchema& schema_;
  const SampleBlocks& blocks_;
  const int64_t size_;
  const std::unique_ptr<Permutation> order_;
  int64_t position_;
  std::vector<SampleRef> refs_;
};

// Validation and test data that are too large for memory.
class StreamReader : public DataReader {
 public:
  StreamReader(const DataSchema& schema, std::unique_ptr<SampleStream> stream, int64_t position)
      : stream_(std::move(stream)),
        block_(schema.num_dense, static_cast<int32_t>(schema.features.size()),
               static_cast<int32_t>(schema.labels.size())),
        position_(position) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    block_.Clear();
    HOTROW_RETURN_IF_ERROR(stream_->Read(max_batch_size, &block_));
    refs_.resize(static_cast<size_t>(block_.size()));
    for (size_t i = 0; i < refs_.size(); ++i) refs_[i] = {&block_, static_cast<int64_t>(i)};
    GatherSamples(refs_, block_.num_dense(), block_.num_features(), batch, block_.num_labels());
    position_ += block_.size();
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }

 private:
  const std::unique_ptr<SampleStream> stream_;
  SampleBlock block_;
  int64_t position_;
  std::vector<SampleRef> refs_;
};

// Training data that is too large for memory. While one window is handed out, shuffled, the next
// one is read: as many samples as were handed out, so that no batch waits for a whole window.
class WindowReader : public DataReader {
 public:
  WindowReader(const DataSchema& schema, std::unique_ptr<SampleStream> stream,
               const FileSourceOptions& options, int64_t epoch)
      : schema_(schema), stream_(std::move(stream)), options_(options), epoch_(epoch) {
    current_ = NewBlock();
    next_ = NewBlock();
  }

  absl::Status Init(int64_t first_sample) {
    window_ = first_sample / options_.window_samples;
    const int64_t skip = window_ * options_.window_samples;
    HOTROW_ASSIGN_OR_RETURN(const int64_t skipped, stream_->Skip(skip));
    HOTROW_RETURN_IF_ERROR(ReadNext(options_.window_samples));
    StartNext();
    used_ = first_sample - skip;
    if (skipped < skip || used_ > current_->size()) {
      return BeyondEnd(schema_, first_sample, skipped + current_->size());
    }
    position_ = first_sample;
    return absl::OkStatus();
  }

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    refs_.clear();
    while (static_cast<int64_t>(refs_.size()) < max_batch_size) {
      if (used_ == current_->size()) {
        HOTROW_RETURN_IF_ERROR(ReadNext(options_.window_samples));
        if (next_->size() == 0) break;
        ++window_;
        StartNext();
      }
      const auto at = static_cast<int64_t>((*order_)(static_cast<uint64_t>(used_++)));
      refs_.push_back({current_.get(), at});
    }
    GatherSamples(refs_, schema_.num_dense, static_cast<int32_t>(schema_.features.size()), batch,
                  static_cast<int32_t>(schema_.labels.size()));
    for (std::unique_ptr<SampleBlock>& block : handed_out_) free_.push_back(std::move(block));
    handed_out_.clear();
    position_ += batch->batch_size;
    return ReadNext(batch->batch_size);
  }
  int64_t position() const override { return position_; }

 private:
  std::unique_ptr<SampleBlock> NewBlock() {
    if (free_.empty()) {
      return std::make_unique<SampleBlock>(schema_.num_dense,
                                           static_cast<int32_t>(schema_.features.size()),
                                           static_cast<int32_t>(schema_.labels.size()));
    }
    std::unique_ptr<SampleBlock> block = std::move(free_.back());
    free_.pop_back();
    block->Clear();
    return block;
  }

  // Up to n samples more for the next window, as far as it goes.
  absl::Status ReadNext(int64_t n) {
    const int64_t wanted = std::min(n, options_.window_samples - next_->size());
    if (ended_ || wanted == 0) return absl::OkStatus();
    const int64_t before = next_->size();
    HOTROW_RETURN_IF_ERROR(stream_->Read(wanted, next_.get()));
    ended_ = next_->size() - before < wanted;
    return absl::OkStatus();
  }

  // Window number window_ becomes the current one. refs_ may still name samples of the one before.
  void StartNext() {
    handed_out_.push_back(std::move(current_));
    current_ = std::move(next_);
    next_ = NewBlock();
    used_ = 0;
    order_.reset();
    if (current_->size() == 0) return;
    order_ = std::make_unique<Permutation>(
        WindowOrder(current_->size(), options_.seed, epoch_, window_));
  }

  const DataSchema& schema_;
  const std::unique_ptr<SampleStream> stream_;
  const FileSourceOptions options_;
  const int64_t epoch_;
  int64_t position_ = 0;
  int64_t window_ = 0;
  std::unique_ptr<Permutation> order_;    // of current_
  std::unique_ptr<SampleBlock> current_;  // whole
  std::unique_ptr<SampleBlock> next_;     // as far as it is read
  int64_t used_ = 0;                      // samples of current_ handed out
  bool ended_ = false;                    // the stream has
  std::vector<SampleRef> refs_;
  std::vector<std::unique_ptr<SampleBlock>> handed_out_;
  std::vector<std::unique_ptr<SampleBlock>> free_;
};

class FileSource : public DataSource {
 public:
  FileSource(std::unique_ptr<SampleFiles> files, const FileSourceOptions& options)
      : files_(std::move(files)), options_(options), schema_(files_->schema()) {}

  absl::Status Init() {
    HOTROW_ASSIGN_OR_RETURN(in_memory_, files_->Load(options_.memory_bytes, &splits_));
    if (!in_memory_) {
      splits_ = {};
      return absl::OkStatus();
    }
    int64_t* const sizes[] = {&schema_.train_samples, &schema_.valid_samples,
                              &schema_.test_samples};
    for (size_t i = 0; i < splits_.size(); ++i) {
      *sizes[i] = 0;
      for (const auto& block : splits_[i]) *sizes[i] += block->size();
    }
    if (schema_.train_samples > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(schema_.name, ": no sample goes to the training split"));
  }

  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    return files_->Identity();
  }
  const Vocabulary* vocabulary() const override { return files_->vocabulary(); }
  const TableSchema* table_schema() const override { return files_->table_schema(); }

  absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample) override {
    if (Shuffles(split)) return DataSource::PlaceOf(split, sample);
    HOTROW_ASSIGN_OR_RETURN(std::string place, files_->PlaceOf(split, sample));
    return place.empty() ? DataSource::PlaceOf(split, sample) : place;
  }

  // Files of all splits are read once.
  absl::Status ReadAll(int64_t batch_size, TakeBatch take) override {
    if (in_memory_ || !options_.in_order) return DataSource::ReadAll(batch_size, take);
    const auto num_features = static_cast<int32_t>(schema_.features.size());
    const auto num_labels = static_cast<int32_t>(schema_.labels.size());
    std::vector<SampleBlock> blocks(3, SampleBlock(schema_.num_dense, num_features, num_labels));
    std::vector<SampleRef> refs;
    CtrBatch batch;
    const auto pass_on = [&](Split split) -> absl::Status {
      SampleBlock& block = blocks[static_cast<size_t>(split)];
      if (block.size() == 0) return absl::OkStatus();
      refs.resize(static_cast<size_t>(block.size()));
      for (size_t i = 0; i < refs.size(); ++i) refs[i] = {&block, static_cast<int64_t>(i)};
      GatherSamples(refs, schema_.num_dense, num_features, &batch, num_labels);
      block.Clear();
      return take(split, batch);
    };
    HOTROW_RETURN_IF_ERROR(files_
                               ->ReadAll([&](Split split, const SampleBlock& samples, int64_t begin,
                                             int64_t end) -> absl::StatusOr<bool> {
                                 SampleBlock& block = blocks[static_cast<size_t>(split)];
                                 while (begin < end) {
                                   const int64_t most =
                                       std::min(end - begin, batch_size - block.size());
                                   block.Append(samples, begin, begin + most);
                                   begin += most;
                                   if (block.size() == batch_size)
                                     HOTROW_RETURN_IF_ERROR(pass_on(split));
                                 }
                                 return true;
                               })
                               .status());
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      HOTROW_RETURN_IF_ERROR(pass_on(split));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    HOTROW_RETURN_IF_ERROR(CheckStart(schema_, epoch, first_sample, /*size=*/-1));
    if (in_memory_) return OpenMemory(split, epoch, first_sample);
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SampleStream> stream,
                            files_->OpenStream(split, StreamUse::kReading));
    if (Shuffles(split)) {
      auto reader = std::make_unique<WindowReader>(schema_, std::move(stream), options_, epoch);
      HOTROW_RETURN_IF_ERROR(reader->Init(first_sample));
      return reader;
    }
    HOTROW_ASSIGN_OR_RETURN(const int64_t skipped, stream->Skip(first_sample));
    if (skipped < first_sample) return BeyondEnd(schema_, first_sample, skipped);
    return std::make_unique<StreamReader>(schema_, std::move(stream), first_sample);
  }

 private:
  bool Shuffles(Split split) const { return split == Split::kTrain && !options_.in_order; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenMemory(Split split, int64_t epoch,
                                                         int64_t first_sample) const {
    const int64_t size = split == Split::kTrain   ? schema_.train_samples
                         : split == Split::kValid ? schema_.valid_samples
                                                  : schema_.test_samples;
    if (first_sample > size) return BeyondEnd(schema_, first_sample, size);
    std::unique_ptr<Permutation> order;
    if (Shuffles(split)) {
      order = std::make_unique<Permutation>(WindowOrder(size, options_.seed, epoch, 0));
    }
    return std::make_unique<MemoryReader>(schema_, splits_[static_cast<size_t>(split)], size,
                                          std::move(order), first_sample);
  }

  const std::unique_ptr<SampleFiles> files_;
  const FileSourceOptions options_;
  DataSchema schema_;
  bool in_memory_ = false;
  std::array<SampleBlocks, 3> splits_;
};

}  // namespace

SampleBlock* BlocksBuilder::block() {
  if (blocks_->empty() || blocks_->back()->size() == SampleFiles::kBlockSamples) {
    if (!blocks_->empty()) {
      blocks_->back()->ShrinkToFit();
      full_bytes_ += blocks_->back()->bytes();
    }
    blocks_->push_back(std::make_unique<SampleBlock>(num_dense_, num_features_, num_labels_));
  }
  return blocks_->back().get();
}

int64_t BlocksBuilder::bytes() const {
  return full_bytes_ + (blocks_->empty() ? 0 : blocks_->back()->bytes());
}

absl::StatusOr<bool> SampleFiles::ReadAll(TakeSamples take) const {
  SampleBlock block(schema().num_dense, static_cast<int32_t>(schema().features.size()),
                    static_cast<int32_t>(schema().labels.size()));
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SampleStream> stream,
                            OpenStream(split, StreamUse::kLoading));
    while (true) {
      block.Clear();
      HOTROW_RETURN_IF_ERROR(stream->Read(kReadSamples, &block));
      if (block.size() == 0) break;
      HOTROW_ASSIGN_OR_RETURN(const bool more, take(split, block, 0, block.size()));
      if (!more) return false;
    }
  }
  return true;
}

absl::StatusOr<bool> SampleFiles::Load(int64_t max_bytes,
                                       std::array<SampleBlocks, 3>* splits) const {
  BlocksBuilder builders[] = {
      {schema(), &(*splits)[0]}, {schema(), &(*splits)[1]}, {schema(), &(*splits)[2]}};
  const auto fits = [&] {
    return builders[0].bytes() + builders[1].bytes() + builders[2].bytes() <= max_bytes;
  };
  int64_t unchecked = 0;
  HOTROW_ASSIGN_OR_RETURN(
      const bool all, ReadAll([&](Split split, const SampleBlock& samples, int64_t begin,
                                  int64_t end) -> absl::StatusOr<bool> {
        unchecked += end - begin;
        while (begin < end) {
          SampleBlock* const block = builders[static_cast<size_t>(split)].block();
          const int64_t most = std::min(end - begin, kBlockSamples - block->size());
          block->Append(samples, begin, begin + most);
          begin += most;
        }
        if (unchecked < kCheckSamples) return true;
        unchecked = 0;
        return fits();
      }));
  return all && fits();
}

absl::Status FileSourceOptions::Validate() const {
  if (memory_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("FileSourceOptions.memory_bytes is ", memory_bytes, ", at least 0"));
  }
  if (window_samples < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("FileSourceOptions.window_samples is ", window_samples, ", at least 1"));
  }
  if (vocabulary_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("FileSourceOptions.vocabulary_bytes is ", vocabulary_bytes, ", at least 1"));
  }
  for (const int32_t n : {threads.opening, threads.reading}) {
    if (n >= 1 && n <= kMaxReaderThreads) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "reader_threads is ", n, ", expected a whole number in [1, ", kMaxReaderThreads, "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> IdentityOfFiles(
    Env& env, const std::vector<std::string>& paths) {
  std::vector<std::pair<std::string, std::string>> out;
  std::vector<std::byte> bytes;
  for (const std::string& path : paths) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    const int64_t part = std::min(size, kIdentityBytes);
    uint32_t crc = 0;
    for (const int64_t begin : {int64_t{0}, size - part}) {
      bytes.resize(static_cast<size_t>(part));
      HOTROW_RETURN_IF_ERROR(ReadFull(*file, begin, bytes));
      crc = Crc32c(bytes, crc);
    }
    out.emplace_back(absl::StrCat("file ", out.size() + 1, " of ", paths.size()),
                     absl::StrFormat("%s of %d bytes, checksum of both ends %08x",
                                     path.substr(path.find_last_of('/') + 1), size, crc));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenFileSource(std::unique_ptr<SampleFiles> files,
                                                           const FileSourceOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto source = std::make_unique<FileSource>(std::move(files), options);
  HOTROW_RETURN_IF_ERROR(source->Init());
  return source;
}

}  // namespace hotrow
