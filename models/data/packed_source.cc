#include "models/data/packed_source.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/io_queue.h"
#include "base/math.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "models/data/packed_format.h"
#include "models/data/permutation.h"
#include "models/data/shuffle_impl.h"
#include "models/data/table_schema.h"

namespace hotrow {
namespace {

// Blocks of data that are not shuffled, which come while as many are handed out.
constexpr int64_t kBlocksInOrder = 8;
constexpr int kReadsInFlight = 32;

// Blocks that are in memory together; their samples are numbered through.
using Blocks = std::vector<std::shared_ptr<const PackedBlock>>;

// The blocks of a split in their file.
//
// Threads: Read belongs to one thread; several objects may read one file.
class BlockFile {
 public:
  static absl::StatusOr<std::unique_ptr<BlockFile>> Open(
      Env& env, const std::string& dir, const PackedManifest& manifest, Split split,
      std::shared_ptr<const std::vector<PackedBlockPlace>> places) {
    const std::string path =
        absl::StrCat(dir, "/", manifest.splits[static_cast<size_t>(split)].file);
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue,
                            env.NewIoQueue({.depth = kReadsInFlight}));
    return std::unique_ptr<BlockFile>(new BlockFile(manifest, manifest.Samples(split),
                                                    std::move(places), std::move(file),
                                                    std::move(queue)));
  }

  int64_t SamplesOf(int64_t block) const {
    return std::min(manifest_.block_samples, samples_ - block * manifest_.block_samples);
  }

  // Many at a time; each is looked at as soon as it is there. `spare` are used again.
  absl::StatusOr<Blocks> Read(std::span<const int64_t> numbers,
                              std::vector<std::shared_ptr<PackedBlock>>* spare) {
    std::vector<std::shared_ptr<PackedBlock>> blocks;
    std::vector<IoRequest> requests;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const PackedBlockPlace& place = PlaceOf(numbers[i]);
      if (spare->empty()) {
        blocks.push_back(std::make_shared<PackedBlock>());
      } else {
        blocks.push_back(std::move(spare->back()));
        spare->pop_back();
      }
      HOTROW_RETURN_IF_ERROR(blocks.back()->Reserve(place.bytes));
      requests.push_back({.file = file_.get(),
                          .offset = static_cast<int64_t>(place.offset),
                          .data = blocks.back()->bytes(),
                          .bytes = place.bytes,
                          .user_data = i});
    }
    absl::Status status;
    queue_->Run(requests, [&](IoRequest& request) {
      const int64_t number = numbers[request.user_data];
      absl::Status one = request.status;
      if (one.ok()) one = Look(number, blocks[request.user_data].get());
      if (status.ok()) status = std::move(one);
    });
    HOTROW_RETURN_IF_ERROR(status);
    return Blocks(blocks.begin(), blocks.end());
  }

 private:
  BlockFile(const PackedManifest& manifest, int64_t samples,
            std::shared_ptr<const std::vector<PackedBlockPlace>> places,
            std::unique_ptr<File> file, std::unique_ptr<IoQueue> queue)
      : manifest_(manifest),
        samples_(samples),
        places_(std::move(places)),
        file_(std::move(file)),
        queue_(std::move(queue)) {}

  const PackedBlockPlace& PlaceOf(int64_t block) const {
    return (*places_)[static_cast<size_t>(block)];
  }
  absl::Status Look(int64_t number, PackedBlock* block) const {
    const PackedBlockPlace& place = PlaceOf(number);
    const std::span<const std::byte> bytes(block->bytes(), place.bytes);
    const absl::Status opened =
        Crc32c(bytes) != place.crc
            ? absl::DataLossError("its checksum differs")
            : block->Open(manifest_, place.bytes, SamplesOf(number));
    if (opened.ok()) return opened;
    return absl::DataLossError(absl::StrCat(file_->path(), ": block ", number, " at byte ",
                                            place.offset, " is damaged: ",
                                            std::string(opened.message()),
                                            "; pack the data again"));
  }

  const PackedManifest& manifest_;
  const int64_t samples_;
  const std::shared_ptr<const std::vector<PackedBlockPlace>> places_;
  const std::unique_ptr<File> file_;
  const std::unique_ptr<IoQueue> queue_;
};

// Which samples of an epoch stand where: groups of blocks follow each other, and the samples of a
// group are mixed, or not.
class EpochOrder {
 public:
  EpochOrder(int64_t samples, int64_t block_samples, int64_t blocks_per_group, bool shuffled,
             uint64_t seed, int64_t epoch)
      : samples_(samples),
        block_samples_(block_samples),
        blocks_per_group_(blocks_per_group),
        shuffled_(shuffled),
        seed_(seed),
        epoch_(epoch) {
    const int64_t blocks = CeilDiv(samples, block_samples);
    const int64_t missing = blocks * block_samples - samples;  // of the last block of the file
    group_begin_ = {0};
    bool last_block_came = false;
    for (int64_t g = 0; group_begin_.back() < samples; ++g) {
      const std::vector<int64_t> members = BlocksOf(g);
      last_block_came = last_block_came || members.back() == blocks - 1;
      const int64_t end = std::min((g + 1) * blocks_per_group, blocks) * block_samples;
      group_begin_.push_back(end - (last_block_came ? missing : 0));
    }
  }

  int64_t num_groups() const { return static_cast<int64_t>(group_begin_.size()) - 1; }
  int64_t GroupBegin(int64_t group) const { return group_begin_[static_cast<size_t>(group)]; }
  // Of a sample, or of the end.
  int64_t GroupOf(int64_t position) const {
    return std::upper_bound(group_begin_.begin(), group_begin_.end(), position) -
           group_begin_.begin() - 1;
  }
  // Their numbers in the file, ascending: so the short one, the last of the file, comes last.
  std::vector<int64_t> BlocksOf(int64_t group) const {
    const int64_t blocks = CeilDiv(samples_, block_samples_);
    const int64_t begin = group * blocks_per_group_;
    std::vector<int64_t> members(
        static_cast<size_t>(std::min(blocks_per_group_, blocks - begin)));
    std::iota(members.begin(), members.end(), begin);
    if (shuffled_ && blocks > blocks_per_group_) {
      const Permutation order = BlockOrder(blocks, seed_, epoch_);
      for (int64_t& block : members) {
        block = static_cast<int64_t>(order(static_cast<uint64_t>(block)));
      }
      std::sort(members.begin(), members.end());
    }
    return members;
  }
  // Null: in order.
  std::unique_ptr<Permutation> SamplesOf(int64_t group) const {
    if (!shuffled_) return nullptr;
    return std::make_unique<Permutation>(
        WindowOrder(GroupBegin(group + 1) - GroupBegin(group), seed_, epoch_, group));
  }

 private:
  const int64_t samples_;
  const int64_t block_samples_;
  const int64_t blocks_per_group_;
  const bool shuffled_;
  const uint64_t seed_;
  const int64_t epoch_;
  std::vector<int64_t> group_begin_;
};

// Samples as a batch takes them: runs of neighbours, or one by one.
struct Run {
  const PackedBlock* block;
  int64_t begin;
  int64_t length;
};

template <int kWidth>
void CopyIds(const std::byte* from, int64_t n, uint64_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = PackedId(from, kWidth, i);
}
void CopyIds(const std::byte* from, int32_t width, int64_t n, uint64_t* to) {
  switch (width) {
    case 1: return CopyIds<1>(from, n, to);
    case 2: return CopyIds<2>(from, n, to);
    case 3: return CopyIds<3>(from, n, to);
    case 4: return CopyIds<4>(from, n, to);
    case 5: return CopyIds<5>(from, n, to);
    case 6: return CopyIds<6>(from, n, to);
    case 7: return CopyIds<7>(from, n, to);
    default: std::memcpy(to, from, static_cast<size_t>(n) * sizeof *to);
  }
}

// Makes batches of runs of samples, a column after the other, so that what is written is written
// from its beginning to its end, and what is read of a block lies close together.
class BatchMaker {
 public:
  BatchMaker(const PackedManifest& manifest, ThreadPool* pool)
      : manifest_(manifest),
        pool_(pool),
        num_features_(static_cast<int64_t>(manifest.schema.features.size())),
        num_labels_(static_cast<int64_t>(manifest.schema.labels.size())),
        num_dense_(manifest.schema.num_dense) {}

  void Make(std::span<const Run> runs, int64_t n, CtrBatch* batch) {
    batch->batch_size = n;
    batch->num_labels = static_cast<int32_t>(num_labels_);
    batch->labels.resize(static_cast<size_t>(n * num_labels_));
    batch->dense.resize(static_cast<size_t>(n * num_dense_));
    batch->true_probability.resize(static_cast<size_t>(manifest_.has_probability ? n : 0));
    batch->offsets.resize(static_cast<size_t>(num_features_ * n + 1));
    // Each column's place is known when the lookups of those before it are counted.
    std::vector<int64_t> begins(static_cast<size_t>(num_features_) + 1, 0);
    ParallelFor(pool_, num_features_, 1, [&](int64_t f, int64_t) {
      int64_t sum = 0;
      for (const Run& run : runs) {
        const std::vector<uint32_t>& begin_of = run.block->feature(f).begins;
        sum += begin_of.empty() ? run.length
                                : begin_of[static_cast<size_t>(run.begin + run.length)] -
                                      begin_of[static_cast<size_t>(run.begin)];
      }
      begins[static_cast<size_t>(f) + 1] = sum;
    });
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    batch->values.resize(static_cast<size_t>(begins.back()));
    batch->weights.resize(static_cast<size_t>(manifest_.has_weights ? begins.back() : 0));
    batch->offsets[0] = 0;
    // The dense columns lie together in each sample: they are one more.
    ParallelFor(pool_, num_features_ + 1, 1, [&](int64_t column, int64_t) {
      if (column == 0) {
        CopyDense(runs, batch);
      } else {
        CopyFeature(runs, column - 1, n, begins[static_cast<size_t>(column) - 1], batch);
      }
    });
  }

 private:
  void CopyDense(std::span<const Run> runs, CtrBatch* batch) const {
    float* dense = batch->dense.data();
    float* label = batch->labels.data();
    float* probability = batch->true_probability.data();
    for (const Run& run : runs) {
      const float* const from = run.block->dense() + run.begin * num_dense_;
      dense = std::copy_n(from, run.length * num_dense_, dense);
      const uint8_t* const labels = run.block->labels() + run.begin * num_labels_;
      label = std::copy_n(labels, run.length * num_labels_, label);
      if (manifest_.has_probability) {
        probability = std::copy_n(run.block->probability() + run.begin, run.length, probability);
      }
    }
  }

  void CopyFeature(std::span<const Run> runs, int64_t f, int64_t n, int64_t begin,
                   CtrBatch* batch) const {
    uint64_t* value = batch->values.data() + begin;
    float* weight = batch->weights.data() + (manifest_.has_weights ? begin : 0);
    int64_t* offset = batch->offsets.data() + f * n + 1;  // the end of each bag
    for (const Run& run : runs) {
      const PackedBlock::Feature& feature = run.block->feature(f);
      const std::vector<uint32_t>& begins = feature.begins;
      const auto begin_of = [&](int64_t i) {
        return begins.empty() ? i : int64_t{begins[static_cast<size_t>(i)]};
      };
      const int64_t first = begin_of(run.begin);
      const int64_t lookups = begin_of(run.begin + run.length) - first;
      CopyIds(feature.values + first * feature.width, feature.width, lookups, value);
      if (feature.weights != nullptr) {
        weight = std::copy_n(feature.weights + first, lookups, weight);
      }
      if (begins.empty()) {
        for (int64_t i = 1; i <= run.length; ++i) *offset++ = begin + i;
      } else {
        for (int64_t i = 1; i <= run.length; ++i) {
          *offset++ = begin + begin_of(run.begin + i) - first;
        }
      }
      value += lookups;
      begin += lookups;
    }
  }

  const PackedManifest& manifest_;
  ThreadPool* const pool_;
  const int64_t num_features_;
  const int64_t num_labels_;
  const int64_t num_dense_;
};

// Reads groups of blocks one ahead of who takes them, on a thread of its own.
class GroupReader {
 public:
  GroupReader(std::unique_ptr<BlockFile> file, std::shared_ptr<const EpochOrder> order,
              int64_t first_group)
      : file_(std::move(file)), order_(std::move(order)), next_(first_group) {}
  ~GroupReader() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  absl::Status Start() {
    HOTROW_ASSIGN_OR_RETURN(thread_, StartThread("reading packed data", [this] { Loop(); }));
    return absl::OkStatus();
  }

  // The next group. Errors stay.
  absl::StatusOr<Blocks> Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ready_; });
    if (!group_.ok()) return group_;
    ready_ = false;
    Blocks taken = *std::move(group_);
    lock.unlock();
    changed_.notify_all();
    return taken;
  }
  // A block that is not needed any more.
  void GiveBack(std::shared_ptr<const PackedBlock> block) {
    if (block.use_count() != 1) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    given_back_.push_back(std::const_pointer_cast<PackedBlock>(std::move(block)));
  }

 private:
  void Loop() {
    std::vector<std::shared_ptr<PackedBlock>> spare;
    for (; next_ < order_->num_groups(); ++next_) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !ready_; });
        if (stop_) return;
        spare.insert(spare.end(), std::make_move_iterator(given_back_.begin()),
                     std::make_move_iterator(given_back_.end()));
        given_back_.clear();
      }
      absl::StatusOr<Blocks> group = file_->Read(order_->BlocksOf(next_), &spare);
      const bool failed = !group.ok();
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        group_ = std::move(group);
        ready_ = true;
      }
      changed_.notify_all();
      if (failed) return;
    }
  }

  const std::unique_ptr<BlockFile> file_;
  const std::shared_ptr<const EpochOrder> order_;
  int64_t next_;  // group; of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  bool stop_ = false;
  absl::StatusOr<Blocks> group_ = Blocks();
  std::vector<std::shared_ptr<PackedBlock>> given_back_;
  std::thread thread_;
};

class PackedReader : public DataReader {
 public:
  // resident: all blocks of the split, or empty; then `groups` reads them.
  PackedReader(const PackedManifest& manifest, ThreadPool* pool, int64_t samples,
               std::shared_ptr<const EpochOrder> order, Blocks resident,
               std::unique_ptr<GroupReader> groups, int64_t position)
      : manifest_(manifest),
        samples_(samples),
        order_(std::move(order)),
        groups_(std::move(groups)),
        maker_(manifest, pool),
        pool_(pool),
        position_(position),
        group_(order_->GroupOf(position) - 1),
        blocks_(std::move(resident)) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    const int64_t n = std::min(max_batch_size, samples_ - position_);
    runs_.clear();
    Blocks done;  // of groups that end in this batch
    for (int64_t left = n; left > 0;) {
      if (group_ < 0 || position_ >= order_->GroupBegin(group_ + 1)) {
        HOTROW_RETURN_IF_ERROR(EnterGroup(&done));
      }
      const int64_t begin = position_ - order_->GroupBegin(group_);
      const int64_t count = std::min(left, order_->GroupBegin(group_ + 1) - position_);
      AddRuns(begin, count);
      position_ += count;
      left -= count;
    }
    maker_.Make(runs_, n, batch);
    for (std::shared_ptr<const PackedBlock>& block : done) groups_->GiveBack(std::move(block));
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }

 private:
  // The group of position_.
  absl::Status EnterGroup(Blocks* done) {
    if (groups_ != nullptr) {
      HOTROW_ASSIGN_OR_RETURN(Blocks next, groups_->Take());
      done->insert(done->end(), std::make_move_iterator(blocks_.begin()),
                   std::make_move_iterator(blocks_.end()));
      blocks_ = std::move(next);
    }
    group_ = order_->GroupOf(position_);
    permutation_ = order_->SamplesOf(group_);
    return absl::OkStatus();
  }

  // Samples [begin, begin + count) of the group in its order.
  void AddRuns(int64_t begin, int64_t count) {
    const int64_t each = manifest_.block_samples;
    const auto block = [&](int64_t i) { return blocks_[static_cast<size_t>(i / each)].get(); };
    if (permutation_ == nullptr) {
      for (int64_t end = begin + count; begin < end;) {
        const int64_t length = std::min(end, RoundUp(begin + 1, each)) - begin;
        runs_.push_back({block(begin), begin % each, length});
        begin += length;
      }
      return;
    }
    constexpr int64_t kGrain = 4096;
    const size_t at = runs_.size();
    runs_.resize(at + static_cast<size_t>(count));
    ParallelFor(pool_, count, kGrain, [&](int64_t first, int64_t end) {
      for (int64_t k = first; k < end; ++k) {
        const auto i = static_cast<int64_t>((*permutation_)(static_cast<uint64_t>(begin + k)));
        runs_[at + static_cast<size_t>(k)] = {block(i), i % each, 1};
      }
    });
  }

  const PackedManifest& manifest_;
  const int64_t samples_;
  const std::shared_ptr<const EpochOrder> order_;
  const std::unique_ptr<GroupReader> groups_;
  BatchMaker maker_;
  ThreadPool* const pool_;
  int64_t position_;
  int64_t group_;   // that of blocks_
  Blocks blocks_;
  std::unique_ptr<Permutation> permutation_;  // of the group
  std::vector<Run> runs_;
};

class PackedSource : public DataSource {
 public:
  PackedSource(std::string dir, const FileSourceOptions& options, Env& env)
      : dir_(std::move(dir)), options_(options), env_(env), pool_(options.threads.reading) {}

  absl::Status Init() {
    HOTROW_RETURN_IF_ERROR(options_.Validate());
    HOTROW_RETURN_IF_ERROR(pool_.status());
    HOTROW_ASSIGN_OR_RETURN(manifest_, ReadPackedManifest(env_, dir_));
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      HOTROW_ASSIGN_OR_RETURN(std::vector<PackedBlockPlace> places,
                              ReadPackedIndex(env_, dir_, manifest_, split));
      places_[static_cast<size_t>(split)] =
          std::make_shared<const std::vector<PackedBlockPlace>>(std::move(places));
    }
    if (!manifest_.table_schema.empty()) {
      HOTROW_ASSIGN_OR_RETURN(TableSchema schema,
                              ParseTableSchemaText(manifest_.table_schema,
                                                   absl::StrCat(dir_, "/", kPackedManifestName)));
      table_schema_ = std::make_unique<TableSchema>(std::move(schema));
    }
    HOTROW_RETURN_IF_ERROR(ReadVocabulary());
    return CheckVocabulary();
  }

  const DataSchema& schema() const override { return manifest_.schema; }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    std::vector<std::pair<std::string, std::string>> out = {{"form", "packed"}};
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      out.emplace_back(NameOfSplit(split),
                       absl::StrCat(manifest_.Samples(split), " samples, checksum ",
                                    manifest_.splits[static_cast<size_t>(split)].index_crc));
    }
    out.emplace_back("order",
                     options_.in_order ? std::string("that of the files")
                     : BlocksPerGroup(Split::kTrain) >= NumBlocks(Split::kTrain)
                         ? std::string("shuffled as a whole")
                         : absl::StrCat("shuffled in groups of ", BlocksPerGroup(Split::kTrain),
                                        " blocks"));
    return out;
  }
  const Vocabulary* vocabulary() const override {
    return vocabulary_.empty() ? nullptr : &vocabulary_;
  }
  const TableSchema* table_schema() const override { return table_schema_.get(); }

  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    const int64_t samples = manifest_.Samples(split);
    HOTROW_RETURN_IF_ERROR(CheckStart(manifest_.schema, epoch, first_sample, samples));
    const bool shuffled = split == Split::kTrain && !options_.in_order;
    const auto order = std::make_shared<const EpochOrder>(
        samples, manifest_.block_samples, BlocksPerGroup(split), shuffled, options_.seed, epoch);
    Blocks resident;
    std::unique_ptr<GroupReader> groups;
    if (first_sample == samples) {
      // Nothing is read.
    } else if (shuffled && order->num_groups() == 1) {
      HOTROW_ASSIGN_OR_RETURN(resident, Resident());
    } else {
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, OpenFile(split));
      groups = std::make_unique<GroupReader>(std::move(file), order, order->GroupOf(first_sample));
      HOTROW_RETURN_IF_ERROR(groups->Start());
    }
    return std::make_unique<PackedReader>(manifest_, &pool_, samples, order, std::move(resident),
                                          std::move(groups), first_sample);
  }

 private:
  int64_t NumBlocks(Split split) const {
    return manifest_.splits[static_cast<size_t>(split)].blocks;
  }
  const std::vector<PackedBlockPlace>& Places(Split split) const {
    return *places_[static_cast<size_t>(split)];
  }

  // All of training data that fit; of others as many as half of the memory holds.
  int64_t BlocksPerGroup(Split split) const {
    if (split != Split::kTrain || options_.in_order) return kBlocksInOrder;
    int64_t sum = 0;
    int64_t largest = 1;
    for (const PackedBlockPlace& place : Places(split)) {
      sum += place.bytes;
      largest = std::max(largest, int64_t{place.bytes});
    }
    if (sum <= options_.memory_bytes) return std::max(NumBlocks(split), int64_t{1});
    return std::max(options_.memory_bytes / 2 / largest, int64_t{1});
  }

  absl::StatusOr<std::unique_ptr<BlockFile>> OpenFile(Split split) {
    return BlockFile::Open(env_, dir_, manifest_, split, places_[static_cast<size_t>(split)]);
  }

  // All blocks of the training split, read once.
  absl::StatusOr<Blocks> Resident() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!resident_.empty()) return resident_;
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file, OpenFile(Split::kTrain));
    std::vector<int64_t> all(static_cast<size_t>(NumBlocks(Split::kTrain)));
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::shared_ptr<PackedBlock>> spare;
    HOTROW_ASSIGN_OR_RETURN(resident_, file->Read(all, &spare));
    return resident_;
  }

  absl::Status ReadVocabulary() {
    if (manifest_.vocabulary_bytes == 0) return absl::OkStatus();
    const std::string path = absl::StrCat(dir_, "/", kPackedVocabularyName);
    HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                            ReadWholeFile(env_, path, manifest_.vocabulary_bytes));
    if (static_cast<int64_t>(bytes.size()) != manifest_.vocabulary_bytes ||
        Crc32c(std::as_bytes(std::span(bytes))) != manifest_.vocabulary_crc) {
      return absl::DataLossError(
          absl::StrCat(path, ": damaged: its checksum differs; pack the data again"));
    }
    HOTROW_ASSIGN_OR_RETURN(vocabulary_, Vocabulary::Decode(bytes, path));
    return absl::OkStatus();
  }
  // Ids are what the vocabulary of the pack made of the text, which is not there any more.
  absl::Status CheckVocabulary() const {
    const SavedVocabulary* const saved = options_.saved_vocabulary;
    if (saved == nullptr || saved->vocabulary.Encode() == vocabulary_.Encode()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(dir_, ": its rare values were merged otherwise than those of the model of ",
                     saved->where, "; train on the text itself"));
  }

  const std::string dir_;
  const FileSourceOptions options_;
  Env& env_;
  ThreadPool pool_;
  PackedManifest manifest_;
  std::array<std::shared_ptr<const std::vector<PackedBlockPlace>>, 3> places_;
  std::unique_ptr<TableSchema> table_schema_;
  Vocabulary vocabulary_;
  std::mutex mutex_;  // guards what follows
  Blocks resident_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenPackedSource(const std::string& dir,
                                                             const FileSourceOptions& options,
                                                             Env& env) {
  auto source = std::make_unique<PackedSource>(dir, options, env);
  HOTROW_RETURN_IF_ERROR(source->Init());
  return source;
}

}  // namespace hotrow
