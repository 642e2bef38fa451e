#ifndef HOTROW_MODELS_TRAIN_BATCH_READER_H_
#define HOTROW_MODELS_TRAIN_BATCH_READER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "base/shared_allocator.h"
#include "models/data/ctr_batch.h"
#include "models/data/data_source.h"

namespace hotrow {

class TraceRecorder;

struct BatchReaderOptions {
  Split split = Split::kTrain;
  int64_t epochs = 1;
  int64_t batch_size = 0;     // of the global batches
  int64_t limit_batches = 0;  // of each epoch; 0: all
  // The position to begin at: the epoch, and the samples and batches of it that are done.
  int64_t first_epoch = 0;
  int64_t first_sample = 0;
  int64_t first_batch = 0;
  // The slice of each batch that items hold, see SliceBegin (models/data/slice_batch.h).
  // world_size >= 1, 0 <= rank < world_size.
  int32_t rank = 0;
  int32_t world_size = 1;
  bool keep_global_labels = false;  // fills Item::global_labels and global_true_probability
  // Batches read ahead on a thread of the reader's own; 0: Next reads on the caller's thread.
  int32_t read_ahead = 0;
  Device device = Device::kCpu;  // copies to it read batches where they lie
  TraceRecorder* trace = nullptr;
};

// Options to read a rank's batches. One batch is read ahead if ctx.pool has a spare thread; null:
// it has none.
BatchReaderOptions ReaderOptions(Split split, int64_t batch_size, int32_t rank, int32_t world_size,
                                 const ExecContext& ctx);

// Reads a split, epoch after epoch, a bounded number of batches ahead of its user. The data source
// decides the order of the batches; reading ahead does not change it. Each of several ranks goes
// through all global batches in the same order and hands out its own slice of each; positions and
// limits count global batches and their samples.
//
// Memory:  an item is used again once nobody has it any more. It may outlive the reader.
// Threads: Next belongs to one thread; any may let go of an item.
class BatchReader {
 public:
  struct Item {
    CtrBatch batch;  // this rank's slice; may be empty if the batch has fewer samples than ranks
    int64_t epoch = 0;
    int64_t global_batch_size = 0;  // 0: marks the end of the epoch
    int64_t first_sample = 0;       // of the slice in the global batch
    // Labels of the global batch, with several ranks and if asked for; otherwise empty. The
    // probability is empty also if the data does not know it.
    SharedVector<float> global_labels;
    std::vector<float> global_true_probability;

    bool ends_epoch() const { return global_batch_size == 0; }
  };

  // `data` must outlive the reader.
  BatchReader(DataSource* data, const BatchReaderOptions& options);
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // The next batch or end of an epoch; null when all epochs are done. Errors are sticky.
  absl::StatusOr<std::shared_ptr<Item>> Next();

 private:
  // Items that nobody has.
  struct Spares {
    std::mutex mutex;
    std::vector<std::unique_ptr<Item>> items;  // with room for all that were made
    size_t made = 0;
  };

  absl::StatusOr<std::shared_ptr<Item>> ReadOne();
  absl::Status ReadBatch(Item* item);
  std::shared_ptr<Item> NewItem();
  void Run();
  absl::Status ReadAhead();

  DataSource* const data_;
  const BatchReaderOptions options_;

  // Where reading stands; used by the thread that reads.
  int64_t epoch_ = 0;
  int64_t batches_in_epoch_ = 0;
  std::unique_ptr<DataReader> reader_;
  CtrBatch whole_;  // the global batch, where its labels are kept
  const std::shared_ptr<Spares> spares_ = std::make_shared<Spares>();

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> ready_;
  bool ended_ = false;  // no item will come after those in ready_
  bool stop_ = false;
  absl::Status status_;  // told once ready_ is empty

  std::thread thread_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_BATCH_READER_H_
