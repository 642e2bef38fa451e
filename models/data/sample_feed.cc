#include "models/data/sample_feed.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "models/data/table_reader.h"

namespace hotrow {
namespace {

// Blocks for each thread: one that it parses while its last one waits to be taken.
constexpr size_t kBlocksOfThread = 2;
// Samples of a block where no thread takes part: they are copied out of the L1 cache.
constexpr int64_t kInlineSamples = 16;
constexpr char kParsing[] = "parsing records";  // where exceptions come from

ParsedSamples NoSamples(const TableSchema& schema) {
  return {.samples = SampleBlock(static_cast<int32_t>(schema.dense.size()),
                                 static_cast<int32_t>(schema.categorical.size()),
                                 static_cast<int32_t>(schema.labels.size())),
          .places = {}};
}

void Append(const Sample& sample, RecordPlace place, ParsedSamples* parsed) {
  parsed->samples.Append(sample);
  parsed->places.push_back(place);
}

void Clear(ParsedSamples* parsed) {
  parsed->samples.Clear();
  parsed->places.clear();
}

class InlineFeed : public SampleFeed {
 public:
  InlineFeed(const TableSchema* schema, std::vector<std::string> paths, OpenText open,
             const Vocabulary* vocabulary)
      : reader_(schema, std::move(paths), std::move(open), vocabulary),
        parsed_(NoSamples(*schema)) {}

  absl::StatusOr<const ParsedSamples*> Next() override {
    Clear(&parsed_);
    while (!ended_ && parsed_.samples.size() < kInlineSamples) {
      const absl::StatusOr<bool> found = reader_.Next(&sample_);
      if (found.ok() && *found) {
        Append(sample_, reader_.place(), &parsed_);
      } else {
        ended_ = true;
        status_ = found.status();
      }
    }
    if (parsed_.samples.size() > 0) return &parsed_;
    if (!status_.ok()) return status_;
    return nullptr;
  }
  std::string TextOf(RecordPlace place) const override { return reader_.TextOf(place); }

 private:
  TableReader reader_;
  Sample sample_;
  ParsedSamples parsed_;
  bool ended_ = false;
  absl::Status status_;  // told once all samples are
};

// Blocks of a ring, in the order of the files. A thread takes the next free one, cuts records into
// it while no other does, and then parses them beside the others. Next hands out the blocks one
// after the other, and each is free again with the call after.
class ThreadedFeed : public SampleFeed {
 public:
  ThreadedFeed(const TableSchema* schema, std::vector<std::string> paths, OpenText open,
               const Vocabulary* vocabulary, int32_t threads, int64_t block_text_bytes)
      : block_text_bytes_(static_cast<size_t>(block_text_bytes)),
        files_(schema, std::move(paths), std::move(open), vocabulary) {
    for (size_t i = 0; i < kBlocksOfThread * static_cast<size_t>(threads); ++i) {
      ring_.push_back(std::make_unique<Block>(NoSamples(*schema)));
    }
    for (int32_t i = 0; i < threads; ++i) {
      absl::StatusOr<std::thread> thread =
          StartThread("parsing records (--reader_threads)", [this] { Run(); });
      if (!thread.ok()) {
        status_ = thread.status();
        return;
      }
      threads_.push_back(*std::move(thread));
    }
  }

  ~ThreadedFeed() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    may_cut_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadedFeed(const ThreadedFeed&) = delete;
  ThreadedFeed& operator=(const ThreadedFeed&) = delete;

  absl::StatusOr<const ParsedSamples*> Next() override {
    if (!status_.ok()) return status_;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      Block& block = BlockOf(taken_);
      if (!handed_out_) {
        is_parsed_.wait(lock, [&] { return taken_ < cut_ ? block.parsed : ended_; });
        if (taken_ == cut_) return nullptr;
        handed_out_ = true;
        if (block.out.samples.size() > 0) return &block.out;
      }
      if (!block.status.ok()) return status_ = block.status;
      handed_out_ = false;
      block.parsed = false;
      ++taken_;
      may_cut_.notify_one();
    }
  }
  std::string TextOf(RecordPlace place) const override { return files_.TextOf(place); }

 private:
  // Belongs to the thread that cuts and parses it until `parsed`, then to Next.
  struct Block {
    explicit Block(ParsedSamples samples) : out(std::move(samples)) {}

    std::string text;                         // records of one file, one after the other
    std::vector<size_t> ends;                 // of each in text
    std::vector<RecordPlace> places;          // of each
    std::shared_ptr<const RowParser> parser;  // of their file
    ParsedSamples out;
    absl::Status status;  // what is wrong behind the samples
    bool parsed = false;  // guarded by mutex_
  };
  // A thread's own.
  struct Worker {
    std::shared_ptr<const RowParser> made_of;
    std::optional<RowParser> parser;
    Sample sample;
  };

  Block& BlockOf(int64_t number) { return *ring_[static_cast<size_t>(number) % ring_.size()]; }

  void Run() {
    Worker worker;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      may_cut_.wait(lock, [this] {
        const bool has_room = cut_ - taken_ < static_cast<int64_t>(ring_.size());
        return stop_ || ended_ || (!cutting_ && has_room);
      });
      if (stop_ || ended_) return;
      cutting_ = true;
      const int64_t number = cut_++;
      Block& block = BlockOf(number);
      lock.unlock();
      const bool last = Cut(&block);
      lock.lock();
      cutting_ = false;
      if (last) End();
      may_cut_.notify_one();
      lock.unlock();
      const auto parse = [&]() -> absl::Status {
        Parse(&block, &worker);
        return absl::OkStatus();
      };
      Caught(kParsing, parse, [&](const absl::Status& thrown) {
        Clear(&block.out);  // the last of them may be there in part
        block.status = thrown;
      }).IgnoreError();
      lock.lock();
      block.parsed = true;
      if (!block.status.ok()) End();
      if (number == taken_) is_parsed_.notify_one();
    }
  }

  // Nothing more is cut. mutex_ is held.
  void End() {
    ended_ = true;
    may_cut_.notify_all();
    is_parsed_.notify_one();
  }

  // Fills a block with records; true: it is the last one. One thread at a time.
  bool Cut(Block* block) {
    block->text.clear();
    block->ends.clear();
    block->places.clear();
    const absl::StatusOr<bool> more = Caught(
        kParsing, [&] { return CutRecords(block); },
        [&](const absl::Status&) { block->ends.clear(); });  // whose places may be missing
    block->status = more.status();
    return !more.ok() || !*more;
  }

  absl::StatusOr<bool> CutRecords(Block* block) {
    while (true) {
      if (!file_is_open_) {
        HOTROW_ASSIGN_OR_RETURN(file_is_open_, files_.OpenNext());
        if (!file_is_open_) return false;
      }
      block->parser = files_.parser();
      while (block->text.size() < block_text_bytes_) {
        std::string_view record;
        HOTROW_ASSIGN_OR_RETURN(file_is_open_, files_.Next(&record));
        if (!file_is_open_) break;
        block->text.append(record);
        block->ends.push_back(block->text.size());
        block->places.push_back(files_.place());
      }
      if (!block->ends.empty()) return true;
    }
  }

  void Parse(Block* block, Worker* worker) {
    Clear(&block->out);
    if (block->ends.empty()) return;
    if (worker->made_of != block->parser) {
      worker->made_of = block->parser;
      worker->parser.emplace(*block->parser);
    }
    size_t begin = 0;
    for (size_t i = 0; i < block->ends.size(); begin = block->ends[i++]) {
      const auto record = std::string_view(block->text).substr(begin, block->ends[i] - begin);
      bool dropped = false;
      const absl::Status status = worker->parser->Parse(record, &worker->sample, &dropped);
      if (!status.ok()) {
        // Comes before what the files may say behind these records.
        block->status = files_.At(block->places[i], status);
        return;
      }
      if (!dropped) Append(worker->sample, block->places[i], &block->out);
    }
  }

  const size_t block_text_bytes_;
  RecordFiles files_;          // used by the thread that cuts; TextOf and At by all
  bool file_is_open_ = false;  // of the thread that cuts
  std::vector<std::unique_ptr<Block>> ring_;

  std::mutex mutex_;  // guards all below
  std::condition_variable may_cut_;
  std::condition_variable is_parsed_;  // the next block to hand out is, or nothing comes
  bool cutting_ = false;
  bool ended_ = false;  // nothing more will be cut
  bool stop_ = false;
  int64_t cut_ = 0;    // blocks that were cut or are being cut
  int64_t taken_ = 0;  // blocks that are free again

  // These two are Next's.
  bool handed_out_ = false;  // block number taken_ is
  absl::Status status_;      // the first error

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<SampleFeed> NewSampleFeed(const TableSchema* schema, std::vector<std::string> paths,
                                          OpenText open, const Vocabulary* vocabulary,
                                          int32_t threads, int64_t block_text_bytes) {
  HOTROW_CHECK(threads >= 1);
  HOTROW_CHECK(threads <= kMaxReaderThreads);
  if (threads == 1) {
    return std::make_unique<InlineFeed>(schema, std::move(paths), std::move(open), vocabulary);
  }
  return std::make_unique<ThreadedFeed>(schema, std::move(paths), std::move(open), vocabulary,
                                        threads, block_text_bytes);
}

}  // namespace hotrow
