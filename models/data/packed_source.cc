#include "models/data/packed_source.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/io_queue.h"
#include "base/math.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "models/data/packed_batches_impl.h"
#include "models/data/packed_format.h"
#include "models/data/permutation.h"
#include "models/data/shuffle_impl.h"
#include "models/data/slice_batch.h"
#include "models/data/table_schema.h"

namespace hotrow {
namespace {

// Blocks of data that are not shuffled, which come while as many are handed out.
constexpr int64_t kBlocksInOrder = 8;
constexpr int kReadsInFlight = 32;
// Blocks that become rows while as many are read, at most: some 35 MB of Criteo's.
constexpr int64_t kBlocksToRows = kReadsInFlight;

// What is mixed with each other: blocks, or their samples as rows.
struct Group {
  PackedBlocks blocks;
  std::shared_ptr<PackedRows> rows;  // null: the blocks are there
};

// Memory of groups that are done with, to be used again.
struct Spare {
  std::vector<std::shared_ptr<PackedBlock>> blocks;
  std::vector<std::shared_ptr<PackedRows>> rows;

  // What nobody else has.
  void Take(PackedBlocks from) {
    for (auto& block : from)
      blocks.push_back(std::const_pointer_cast<PackedBlock>(std::move(block)));
  }
  void Take(Group from) {
    Take(std::move(from.blocks));
    if (from.rows != nullptr) rows.push_back(std::move(from.rows));
  }
};

// A split of all packs: their blocks, one pack after the other.
struct SplitBlocks {
  struct Block {
    PackedBlockPlace place;
    int32_t samples = 0;
    int32_t file = 0;  // in `files`
  };
  struct PackFile {
    std::string dir;
    std::string path;
    uint32_t index_crc = 0;
    int64_t first_block = 0;
  };
  explicit SplitBlocks(Split of) : split(of) {}

  const Split split;
  std::vector<PackFile> files;
  std::vector<Block> blocks;

  int64_t size() const { return std::ssize(blocks); }
  const Block& at(int64_t block) const { return blocks[static_cast<size_t>(block)]; }
  const PackFile& file_of(int64_t block) const {
    return files[static_cast<size_t>(at(block).file)];
  }

  // Those of one pack more.
  absl::Status Add(Env& env, const std::string& dir, const PackedManifest& manifest) {
    const PackedManifest::SplitFile& in = manifest.splits[static_cast<size_t>(split)];
    HOTROW_ASSIGN_OR_RETURN(const std::vector<PackedBlockPlace> places,
                            ReadPackedIndex(env, dir, manifest, split));
    const auto number = static_cast<int32_t>(files.size());
    files.push_back({dir, absl::StrCat(dir, "/", in.file), in.index_crc, size()});
    int64_t left = manifest.Samples(split);
    for (const PackedBlockPlace& place : places) {
      const int64_t samples = std::min(left, manifest.block_samples);
      blocks.push_back({place, static_cast<int32_t>(samples), number});
      left -= samples;
    }
    return absl::OkStatus();
  }
};

// The files of a split.
//
// Threads: Read belongs to one thread; several objects may read one file.
class BlockFiles {
 public:
  // in_order: blocks are read in the order of the files.
  static absl::StatusOr<std::unique_ptr<BlockFiles>> Open(Env& env, const PackedManifest& manifest,
                                                          std::shared_ptr<const SplitBlocks> split,
                                                          bool in_order) {
    std::vector<std::unique_ptr<File>> files;
    for (const SplitBlocks::PackFile& pack : split->files) {
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, env.Open(pack.path, OpenMode::kRead));
      // Otherwise the system reads on behind each block. A hint; what it returns does not matter.
      if (!in_order && file->descriptor() >= 0) {
        ::posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_RANDOM);
      }
      files.push_back(std::move(file));
    }
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue,
                            env.NewIoQueue({.depth = kReadsInFlight}));
    return std::unique_ptr<BlockFiles>(
        new BlockFiles(env, manifest, std::move(split), std::move(files), std::move(queue)));
  }

  // Many at a time; each is looked at as soon as it is there.
  absl::StatusOr<PackedBlocks> Read(std::span<const int64_t> numbers, Spare* spare) {
    std::vector<std::shared_ptr<PackedBlock>> blocks;
    std::vector<IoRequest> requests;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const SplitBlocks::Block& block = split_->at(numbers[i]);
      if (spare->blocks.empty()) spare->blocks.push_back(std::make_shared<PackedBlock>());
      blocks.push_back(std::move(spare->blocks.back()));
      spare->blocks.pop_back();
      HOTROW_RETURN_IF_ERROR(blocks.back()->Reserve(block.place.bytes));
      requests.push_back({.file = files_[static_cast<size_t>(block.file)].get(),
                          .offset = static_cast<int64_t>(block.place.offset),
                          .data = blocks.back()->bytes(),
                          .bytes = block.place.bytes,
                          .user_data = i});
    }
    absl::Status status;
    queue_->Run(requests, [&](IoRequest& request) {
      const int64_t number = numbers[request.user_data];
      absl::Status one = request.status;
      if (absl::IsOutOfRange(one)) {  // it was whole when it was opened
        one = absl::DataLossError(
            absl::StrCat(std::string(one.message()), "; the file was cut; pack the data again"));
      }
      if (one.ok()) one = Look(number, blocks[request.user_data].get());
      if (status.ok() && absl::IsDataLoss(one)) one = UnlessReplaced(number, std::move(one));
      if (status.ok()) status = std::move(one);
    });
    HOTROW_RETURN_IF_ERROR(status);
    return PackedBlocks(blocks.begin(), blocks.end());
  }

 private:
  BlockFiles(Env& env, const PackedManifest& manifest, std::shared_ptr<const SplitBlocks> split,
             std::vector<std::unique_ptr<File>> files, std::unique_ptr<IoQueue> queue)
      : env_(env),
        manifest_(manifest),
        split_(std::move(split)),
        files_(std::move(files)),
        queue_(std::move(queue)) {}

  absl::Status Look(int64_t number, PackedBlock* block) const {
    const auto& [place, samples, _] = split_->at(number);
    const std::span<const std::byte> bytes(block->bytes(), place.bytes);
    const absl::Status opened = Crc32c(bytes) != place.crc
                                    ? absl::DataLossError("its checksum differs")
                                    : block->Open(manifest_, place.bytes, samples);
    if (!absl::IsDataLoss(opened)) return opened;  // no memory is no damage
    const SplitBlocks::PackFile& file = split_->file_of(number);
    return absl::DataLossError(
        absl::StrCat(file.path, ": block ", number - file.first_block, " at byte ", place.offset,
                     " is damaged: ", std::string(opened.message()), "; pack the data again"));
  }

  // The error, unless the block's pack is another one than when it was opened.
  absl::Status UnlessReplaced(int64_t number, absl::Status error) const {
    const SplitBlocks::PackFile& file = split_->file_of(number);
    const absl::StatusOr<PackedManifest> now = ReadPackedManifest(env_, file.dir);
    if (!now.ok() || now->splits[static_cast<size_t>(split_->split)].index_crc == file.index_crc) {
      return error;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        file.dir,
        ": is another pack than the one that was opened, which it has replaced; open it "
        "again, and begin again what read it"));
  }

  Env& env_;
  const PackedManifest& manifest_;
  const std::shared_ptr<const SplitBlocks> split_;
  const std::vector<std::unique_ptr<File>> files_;
  const std::unique_ptr<IoQueue> queue_;
};

// Which samples of an epoch stand where: groups of blocks follow each other, and the samples of a
// group are mixed, or not.
class EpochOrder {
 public:
  EpochOrder(const SplitBlocks& split, int64_t blocks_per_group, bool shuffled, uint64_t seed,
             int64_t epoch)
      : num_blocks_(split.size()),
        blocks_per_group_(blocks_per_group),
        shuffled_(shuffled),
        seed_(seed),
        epoch_(epoch) {
    for (int64_t g = 0; g < CeilDiv(num_blocks_, blocks_per_group_); ++g) {
      int64_t samples = 0;
      for (const int64_t block : BlocksOf(g)) samples += split.at(block).samples;
      group_begin_.push_back(group_begin_.back() + samples);
    }
  }

  int64_t num_blocks() const { return num_blocks_; }
  int64_t blocks_per_group() const { return blocks_per_group_; }
  int64_t num_groups() const { return static_cast<int64_t>(group_begin_.size()) - 1; }
  // Whether blocks come in the order of the files.
  bool blocks_in_order() const { return !shuffled_ || num_blocks_ <= blocks_per_group_; }
  int64_t GroupBegin(int64_t group) const { return group_begin_[static_cast<size_t>(group)]; }
  // The group of a sample, or of the end.
  int64_t GroupOf(int64_t position) const {
    return std::upper_bound(group_begin_.begin(), group_begin_.end(), position) -
           group_begin_.begin() - 1;
  }
  // Their numbers in the split, ascending.
  std::vector<int64_t> BlocksOf(int64_t group) const {
    const int64_t begin = group * blocks_per_group_;
    std::vector<int64_t> members(
        static_cast<size_t>(std::min(blocks_per_group_, num_blocks_ - begin)));
    std::iota(members.begin(), members.end(), begin);
    if (!blocks_in_order()) {
      const Permutation order = BlockOrder(num_blocks_, seed_, epoch_);
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
  const int64_t num_blocks_;
  const int64_t blocks_per_group_;
  const bool shuffled_;
  const uint64_t seed_;
  const int64_t epoch_;
  std::vector<int64_t> group_begin_ = {0};
};

// Makes groups one ahead of who takes them, on another thread.
class GroupReader {
 public:
  // The group of this number, in the memory of those that came back. Called in order, by one
  // thread.
  using Make = std::function<absl::StatusOr<Group>(int64_t number, Spare* spare)>;
  // The groups [first, end).
  static absl::StatusOr<std::unique_ptr<GroupReader>> Start(std::string_view purpose, int64_t first,
                                                            int64_t end, Make make) {
    std::unique_ptr<GroupReader> out(new GroupReader(first, end, std::move(make)));
    HOTROW_ASSIGN_OR_RETURN(out->thread_,
                            StartThread(purpose, [reader = out.get()] { reader->Loop(); }));
    return out;
  }
  ~GroupReader() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // The next group. Errors stay.
  absl::StatusOr<Group> Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ready_; });
    if (!group_.ok()) return group_;
    ready_ = false;
    Group taken = *std::move(group_);
    lock.unlock();
    changed_.notify_all();
    return taken;
  }
  // A group that is not needed any more.
  void GiveBack(Group group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    given_back_.Take(std::move(group));
  }

 private:
  GroupReader(int64_t first, int64_t end, Make make)
      : end_(end), make_(std::move(make)), next_(first) {}

  void Loop() {
    Spare spare;
    for (; next_ < end_; ++next_) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !ready_; });
        if (stop_) return;
      }
      absl::StatusOr<Group> group = Caught("packed data", [&] {
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          for (auto& block : given_back_.blocks) spare.blocks.push_back(std::move(block));
          for (auto& rows : given_back_.rows) spare.rows.push_back(std::move(rows));
          given_back_ = Spare();
        }
        return make_(next_, &spare);
      });
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

  const int64_t end_;
  const Make make_;
  int64_t next_;  // group; of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  bool stop_ = false;
  absl::StatusOr<Group> group_ = Group();
  Spare given_back_;
  std::thread thread_;
};

// Reads the blocks of an epoch in parts: up to `at_once` of a group at a time, in its order.
class BlockParts {
 public:
  BlockParts(std::unique_ptr<BlockFiles> files, std::shared_ptr<const EpochOrder> order,
             int64_t at_once)
      : files_(std::move(files)),
        order_(std::move(order)),
        at_once_(at_once),
        parts_per_group_(CeilDiv(order_->blocks_per_group(), at_once)) {}

  // Of the group's first part; only the last group can have fewer than others.
  int64_t Begin(int64_t group) const { return group * parts_per_group_; }
  int64_t End() const {
    const int64_t last = order_->num_groups() - 1;
    return Begin(last) +
           CeilDiv(order_->num_blocks() - last * order_->blocks_per_group(), at_once_);
  }

  absl::StatusOr<Group> Read(int64_t part, Spare* spare) {
    if (const int64_t group = part / parts_per_group_; group != group_) {
      group_ = group;
      members_ = order_->BlocksOf(group);
    }
    const int64_t begin = part % parts_per_group_ * at_once_;
    const int64_t count = std::min(at_once_, std::ssize(members_) - begin);
    HOTROW_ASSIGN_OR_RETURN(PackedBlocks blocks,
                            files_->Read(std::span(members_).subspan(static_cast<size_t>(begin),
                                                                     static_cast<size_t>(count)),
                                         spare));
    return Group{std::move(blocks), nullptr};
  }

 private:
  const std::unique_ptr<BlockFiles> files_;
  const std::shared_ptr<const EpochOrder> order_;
  const int64_t at_once_;
  const int64_t parts_per_group_;
  int64_t group_ = -1;  // of members_
  std::vector<int64_t> members_;
};

// The samples of a group as rows. Its parts are laid out as they come, so that the disk reads the
// next one meanwhile; the pool's threads share the blocks of a part.
absl::StatusOr<Group> MakeRows(const PackedManifest& manifest, ThreadPool* pool, int64_t samples,
                               GroupReader* parts, Spare* spare) {
  if (spare->rows.empty()) spare->rows.push_back(std::make_shared<PackedRows>(manifest));
  std::shared_ptr<PackedRows> rows = std::move(spare->rows.back());
  spare->rows.pop_back();
  HOTROW_RETURN_IF_ERROR(rows->Reset(samples));
  std::vector<int64_t> first;  // of each block
  for (int64_t at = 0; at < samples;) {
    HOTROW_ASSIGN_OR_RETURN(Group part, parts->Take());
    first.clear();
    for (const auto& block : part.blocks) {
      first.push_back(at);
      at += block->samples();
    }
    pool->ParallelFor(std::ssize(first), 1, [&](int64_t i, int64_t) {
      rows->Add(*part.blocks[static_cast<size_t>(i)], first[static_cast<size_t>(i)]);
    });
    parts->GiveBack(std::move(part));
  }
  return Group{{}, std::move(rows)};
}

class PackedReader : public DataReader {
 public:
  // groups: null where `resident` holds all of the split, or nothing is to be read.
  PackedReader(const PackedManifest& manifest, ThreadPool* pool, int64_t samples, bool as_rows,
               std::shared_ptr<const EpochOrder> order, Group resident,
               std::unique_ptr<GroupReader> groups, int64_t position)
      : manifest_(manifest),
        pool_(pool),
        samples_(samples),
        as_rows_(as_rows),
        order_(std::move(order)),
        groups_(std::move(groups)),
        position_(position),
        number_(order_->GroupOf(position) - 1),
        group_(std::move(resident)) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    return NextSlice(max_batch_size, 0, 1, batch).status();
  }
  absl::StatusOr<int64_t> NextSlice(int64_t max_batch_size, int32_t rank, int32_t world_size,
                                    CtrBatch* batch) override {
    HOTROW_RETURN_IF_ERROR(CheckBatchSize(max_batch_size));
    const int64_t n = std::min(max_batch_size, samples_ - position_);
    const int64_t first = position_ + SliceBegin(n, rank, world_size);
    const int64_t last = position_ + SliceBegin(n, int64_t{rank} + 1, world_size);
    if (as_rows_) MakeRoomForRows(manifest_, last - first, pool_, batch);
    selection_.Clear();
    std::vector<Group> done;  // those that end in this batch
    for (const int64_t end = position_ + n; position_ < end;) {
      if (number_ < 0 || position_ >= order_->GroupBegin(number_ + 1)) {
        HOTROW_RETURN_IF_ERROR(EnterGroup(&done));
      }
      const int64_t group_begin = order_->GroupBegin(number_);
      const int64_t from = std::max(first, position_);
      position_ = std::min(end, order_->GroupBegin(number_ + 1));
      const int64_t count = std::min(last, position_) - from;
      if (count <= 0) continue;
      if (as_rows_) {
        group_.rows->Gather(*permutation_, from - group_begin, count, pool_, from - first, batch);
      } else {
        Select(from - group_begin, count);
      }
    }
    if (!as_rows_) MakeBatchOfColumns(manifest_, selection_, pool_, last - first, batch);
    for (Group& group : done) groups_->GiveBack(std::move(group));
    return n;
  }
  int64_t position() const override { return position_; }

 private:
  // The group of position_.
  absl::Status EnterGroup(std::vector<Group>* done) {
    if (groups_ != nullptr) {
      HOTROW_ASSIGN_OR_RETURN(Group next, groups_->Take());
      done->push_back(std::exchange(group_, std::move(next)));
    }
    number_ = order_->GroupOf(position_);
    permutation_ = order_->SamplesOf(number_);
    return absl::OkStatus();
  }

  // Adds the samples [begin, begin + count) of the group in its order.
  void Select(int64_t begin, int64_t count) {
    const auto first_block = static_cast<int64_t>(selection_.blocks.size());
    block_begin_ = {0};  // of the blocks of the group, and the end
    for (const auto& block : group_.blocks) {
      selection_.blocks.push_back(block.get());
      block_begin_.push_back(block_begin_.back() + block->samples());
    }
    // Adds up to `most` samples of the group in the order of its blocks; returns how many.
    const auto add = [&](int64_t i, int64_t most) {
      // Few blocks have fewer samples: the last ones of their files.
      auto block = static_cast<size_t>(i / manifest_.block_samples);
      while (block_begin_[block + 1] <= i) ++block;
      const int64_t length = std::min(block_begin_[block + 1] - i, most);
      selection_.runs.push_back({static_cast<uint32_t>(first_block + static_cast<int64_t>(block)),
                                 static_cast<uint32_t>(i - block_begin_[block]),
                                 static_cast<uint32_t>(length)});
      return length;
    };
    for (int64_t i = begin; i < begin + count;) {
      i += permutation_ == nullptr
               ? add(i, begin + count - i)
               : add(static_cast<int64_t>((*permutation_)(static_cast<uint64_t>(i))), 1);
    }
  }

  const PackedManifest& manifest_;
  ThreadPool* const pool_;
  const int64_t samples_;
  const bool as_rows_;  // of groups
  const std::shared_ptr<const EpochOrder> order_;
  const std::unique_ptr<GroupReader> groups_;
  int64_t position_;
  int64_t number_;  // of the group
  Group group_;
  std::unique_ptr<Permutation> permutation_;  // of its samples; null: they are in order
  PackedSelection selection_;
  std::vector<int64_t> block_begin_;  // of Select
};

// Empty, where a pack has none.
absl::StatusOr<Vocabulary> ReadVocabulary(Env& env, const std::string& dir,
                                          const PackedManifest& manifest) {
  if (manifest.vocabulary_bytes == 0) return Vocabulary();
  const std::string path = absl::StrCat(dir, "/", kPackedVocabularyName);
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadWholeFile(env, path, manifest.vocabulary_bytes));
  if (static_cast<int64_t>(bytes.size()) != manifest.vocabulary_bytes ||
      Crc32c(std::as_bytes(std::span(bytes))) != manifest.vocabulary_crc) {
    return absl::DataLossError(
        absl::StrCat(path, ": damaged: its checksum differs; pack the data again"));
  }
  return Vocabulary::Decode(bytes, path);
}

class PackedSource : public DataSource {
 public:
  PackedSource(const FileSourceOptions& options, Env& env)
      : options_(options), env_(env), pool_(options.threads.reading) {}

  absl::Status Init(const std::vector<std::string>& dirs) {
    HOTROW_RETURN_IF_ERROR(options_.Validate());
    HOTROW_RETURN_IF_ERROR(pool_.status());
    std::array<SplitBlocks, 3> splits = {SplitBlocks(Split::kTrain), SplitBlocks(Split::kValid),
                                         SplitBlocks(Split::kTest)};
    for (const std::string& dir : dirs) HOTROW_RETURN_IF_ERROR(Add(dir, &splits));
    for (size_t s = 0; s < splits.size(); ++s) {
      splits_[s] = std::make_shared<const SplitBlocks>(std::move(splits[s]));
    }
    manifest_.schema.sample_bytes = SampleBytes();
    if (!manifest_.table_schema.empty()) {
      HOTROW_ASSIGN_OR_RETURN(TableSchema schema,
                              ParseTableSchemaText(manifest_.table_schema,
                                                   absl::StrCat(dir_, "/", kPackedManifestName)));
      table_schema_ = std::make_unique<TableSchema>(std::move(schema));
    }
    return CheckVocabulary();
  }

  const DataSchema& schema() const override { return manifest_.schema; }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    std::vector<std::pair<std::string, std::string>> out = {{"form", "packed"}};
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      out.emplace_back(std::string(WordOf(kSplitWords, split)),
                       absl::StrCat(manifest_.Samples(split), " samples, checksum ",
                                    checksums_[static_cast<size_t>(split)]));
    }
    out.emplace_back("order", options_.in_order ? std::string("that of the files")
                              : BlocksPerGroup(Split::kTrain) >= Blocks(Split::kTrain)->size()
                                  ? std::string("shuffled as a whole")
                                  : absl::StrCat("shuffled in groups of ",
                                                 BlocksPerGroup(Split::kTrain), " blocks"));
    return out;
  }
  const Vocabulary* vocabulary() const override {
    return vocabulary_.empty() ? nullptr : &vocabulary_;
  }
  const TableSchema* table_schema() const override { return table_schema_.get(); }

  absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample) override {
    if (split == Split::kTrain && !options_.in_order) return DataSource::PlaceOf(split, sample);
    const SplitBlocks& blocks = *Blocks(split);
    int64_t of_file = 0;  // the first sample of the pack
    int64_t begin = 0;    // of the block
    for (const SplitBlocks::Block& block : blocks.blocks) {
      const bool is_first = &block == &blocks.blocks.front();
      if (!is_first && block.file != (&block - 1)->file) of_file = begin;
      begin += block.samples;
      if (sample >= begin) continue;
      return absl::StrCat(blocks.files[static_cast<size_t>(block.file)].path, ", sample ",
                          sample - of_file);
    }
    return DataSource::PlaceOf(split, sample);
  }

  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    const int64_t samples = manifest_.Samples(split);
    HOTROW_RETURN_IF_ERROR(CheckStart(manifest_.schema, epoch, first_sample, samples));
    const bool shuffled = split == Split::kTrain && !options_.in_order;
    const auto order = std::make_shared<const EpochOrder>(*Blocks(split), BlocksPerGroup(split),
                                                          shuffled, options_.seed, epoch);
    const bool as_rows = shuffled && manifest_.one_each && !manifest_.has_weights;
    Group resident;
    std::unique_ptr<GroupReader> groups;
    if (first_sample == samples) {
      // Nothing is read.
    } else if (shuffled && order->num_groups() == 1) {
      HOTROW_ASSIGN_OR_RETURN(resident, Resident(order, as_rows));
    } else {
      HOTROW_ASSIGN_OR_RETURN(groups,
                              ReadGroups(split, order, as_rows, order->GroupOf(first_sample)));
    }
    return std::make_unique<PackedReader>(manifest_, &pool_, samples, as_rows, order,
                                          std::move(resident), std::move(groups), first_sample);
  }

 private:
  // One pack more.
  absl::Status Add(const std::string& dir, std::array<SplitBlocks, 3>* splits) {
    HOTROW_ASSIGN_OR_RETURN(PackedManifest manifest, ReadPackedManifest(env_, dir));
    const bool is_first = dir_.empty();
    std::string content;  // of its splits, so that a link or a copy is known, too
    for (const auto& split : manifest.splits) absl::StrAppend(&content, split.index_crc, " ");
    if (!contents_.insert(content).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir,
                       ": holds the same samples as a pack named before it, which would count "
                       "twice; name it once"));
    }
    if (!is_first) HOTROW_RETURN_IF_ERROR(CheckFits(dir, manifest));
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const auto s = static_cast<size_t>(split);
      HOTROW_RETURN_IF_ERROR((*splits)[s].Add(env_, dir, manifest));
      absl::StrAppend(&checksums_[s], is_first ? "" : ", ", manifest.splits[s].index_crc);
    }
    HOTROW_ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(env_, dir, manifest));
    if (is_first) {
      dir_ = dir;
      manifest_ = std::move(manifest);
      vocabulary_ = std::move(vocabulary);
      return absl::OkStatus();
    }
    // Not by the checksums of the files: a file that ends in its own has the same as any other.
    if (vocabulary.Encode() != vocabulary_.Encode()) return DoesNotFit(dir, "vocabulary");
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      manifest_.Samples(split) += manifest.Samples(split);
    }
    manifest_.block_samples = std::max(manifest_.block_samples, manifest.block_samples);
    manifest_.one_each = manifest_.one_each && manifest.one_each;
    for (size_t f = 0; f < manifest_.schema.features.size(); ++f) {
      manifest_.id_bytes[f] = std::max(manifest_.id_bytes[f], manifest.id_bytes[f]);
      int64_t& most = manifest_.schema.features[f].max_hotness;
      const int64_t other = manifest.schema.features[f].max_hotness;
      most = most == 0 || other == 0 ? 0 : std::max(most, other);
    }
    return absl::OkStatus();
  }

  // Whether another pack has samples as the first one does.
  absl::Status CheckFits(const std::string& dir, const PackedManifest& other) const {
    const DataSchema& schema = manifest_.schema;
    std::string what;
    if (other.schema.labels != schema.labels) what = "labels";
    if (other.schema.num_dense != schema.num_dense) what = "number of dense features";
    // Packs of older versions have none.
    if (!other.schema.dense.empty() && !schema.dense.empty() &&
        other.schema.dense != schema.dense) {
      what = "dense features, by name,";
    }
    if (other.dense_precision != manifest_.dense_precision) what = "precision of dense features";
    if (other.schema.features.size() != schema.features.size()) what = "number of features";
    for (size_t f = 0; what.empty() && f < schema.features.size(); ++f) {
      const DataFeature& ours = schema.features[f];
      const DataFeature& theirs = other.schema.features[f];
      if (theirs.name != ours.name || theirs.table != ours.table ||
          theirs.num_embeddings != ours.num_embeddings) {
        what = absl::StrCat("feature ", f, " (", ours.name, ")");
      }
    }
    if (other.has_weights != manifest_.has_weights) what = "weights";
    if (other.has_probability != manifest_.has_probability) what = "true probability";
    if (other.has_time != manifest_.has_time) what = "time";
    if (other.table_schema != manifest_.table_schema) what = "meaning of its text";
    if (what.empty()) return absl::OkStatus();
    return DoesNotFit(dir, what);
  }
  absl::Status DoesNotFit(const std::string& dir, const std::string& what) const {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": its ", what, " is not that of ", dir_,
                     "; pack the sources of both with one schema, or as one"));
  }

  double SampleBytes() const {
    int64_t bytes = 0;
    int64_t samples = 0;
    for (const auto& split : splits_) {
      for (const SplitBlocks::Block& block : split->blocks) {
        bytes += RoundUp(int64_t{block.place.bytes}, kPackedAlignment);
        samples += block.samples;
      }
    }
    return static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(samples, 1));
  }

  const std::shared_ptr<const SplitBlocks>& Blocks(Split split) const {
    return splits_[static_cast<size_t>(split)];
  }

  // All of training data that fit; of others as many as half of the memory holds.
  int64_t BlocksPerGroup(Split split) const {
    if (split != Split::kTrain || options_.in_order) return kBlocksInOrder;
    int64_t sum = 0;
    int64_t largest = 1;
    for (const SplitBlocks::Block& block : Blocks(split)->blocks) {
      const int64_t bytes = block.place.bytes + manifest_.WidenedBytes(block.samples);
      sum += bytes;
      largest = std::max(largest, bytes);
    }
    // Of groups there are three: one is used, one waits, one is made. Those that are rows are made
    // of parts, of which there are two of at most half a group. Data that stay are held twice.
    const bool as_rows = manifest_.one_each && !manifest_.has_weights;
    if (sum <= options_.memory_bytes / (as_rows ? 2 : 1)) {
      return std::max(Blocks(split)->size(), int64_t{1});
    }
    return std::max(options_.memory_bytes / (as_rows ? 4 : 3) / largest, int64_t{1});
  }

  // The parts of groups, or their rows, from a group on.
  absl::StatusOr<std::unique_ptr<GroupReader>> ReadParts(
      Split split, const std::shared_ptr<const EpochOrder>& order, int64_t at_once,
      int64_t first_group) {
    HOTROW_ASSIGN_OR_RETURN(
        std::unique_ptr<BlockFiles> files,
        BlockFiles::Open(env_, manifest_, Blocks(split), order->blocks_in_order()));
    const auto parts = std::make_shared<BlockParts>(std::move(files), order, at_once);
    return GroupReader::Start(
        "reading packed data", parts->Begin(first_group), parts->End(),
        [parts](int64_t number, Spare* spare) { return parts->Read(number, spare); });
  }
  absl::StatusOr<std::unique_ptr<GroupReader>> ReadGroups(
      Split split, const std::shared_ptr<const EpochOrder>& order, bool as_rows,
      int64_t first_group) {
    if (!as_rows) return ReadParts(split, order, order->blocks_per_group(), first_group);
    HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<GroupReader> parts,
                            ReadParts(split, order, PartOf(*order), first_group));
    return GroupReader::Start("making rows of packed data", first_group, order->num_groups(),
                              [this, order, parts](int64_t group, Spare* spare) {
                                const int64_t samples =
                                    order->GroupBegin(group + 1) - order->GroupBegin(group);
                                return MakeRows(manifest_, &pool_, samples, parts.get(), spare);
                              });
  }
  // Blocks that become rows at a time.
  static int64_t PartOf(const EpochOrder& order) {
    return std::clamp<int64_t>(order.blocks_per_group() / 2, 1, kBlocksToRows);
  }

  // All of the training split, read once; `order` has one group.
  absl::StatusOr<Group> Resident(const std::shared_ptr<const EpochOrder>& order, bool as_rows) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (resident_.rows != nullptr || !resident_.blocks.empty()) return resident_;
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<GroupReader> groups,
                            ReadGroups(Split::kTrain, order, as_rows, 0));
    HOTROW_ASSIGN_OR_RETURN(resident_, groups->Take());
    return resident_;
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

  const FileSourceOptions options_;
  Env& env_;
  ThreadPool pool_;
  std::string dir_;          // the first one
  PackedManifest manifest_;  // its own, with the samples of all
  std::array<std::string, 3> checksums_;
  std::set<std::string> contents_;
  std::array<std::shared_ptr<const SplitBlocks>, 3> splits_;
  std::unique_ptr<TableSchema> table_schema_;
  Vocabulary vocabulary_;
  std::mutex mutex_;  // guards what follows
  Group resident_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenPackedSource(const std::vector<std::string>& dirs,
                                                             const FileSourceOptions& options,
                                                             Env& env) {
  HOTROW_CHECK(!dirs.empty());
  auto source = std::make_unique<PackedSource>(options, env);
  HOTROW_RETURN_IF_ERROR(source->Init(dirs));
  return source;
}

absl::StatusOr<PackedReport> VerifyPackedData(Env& env, const std::string& dir) {
  PackedReport report;
  HOTROW_ASSIGN_OR_RETURN(report.manifest, ReadPackedManifest(env, dir));
  const auto note = [&](const absl::Status& status) {
    if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
    report.damage.emplace_back(status.message());
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(note(ReadVocabulary(env, dir, report.manifest).status()));
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto blocks = std::make_shared<SplitBlocks>(split);
    const absl::Status added = blocks->Add(env, dir, report.manifest);
    HOTROW_RETURN_IF_ERROR(note(added));
    if (!added.ok()) continue;
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFiles> files,
                            BlockFiles::Open(env, report.manifest, blocks, /*in_order=*/true));
    Spare spare;
    for (int64_t block = 0; block < blocks->size(); ++block) {
      absl::StatusOr<PackedBlocks> read = files->Read({&block, 1}, &spare);
      HOTROW_RETURN_IF_ERROR(note(read.status()));
      if (read.ok()) spare.Take(*std::move(read));
    }
  }
  return report;
}

}  // namespace hotrow
