#include "models/train/batch_reader.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "models/data/slice_batch.h"

namespace hotrow {

BatchReaderOptions ReaderOptions(Split split, int64_t batch_size, int32_t rank, int32_t world_size,
                                 const ExecContext& ctx) {
  constexpr int32_t kReadAhead = 2;  // batches: one being made while one waits
  const bool has_spare_thread = ctx.pool != nullptr && ctx.pool->num_threads() > 1;
  return {.split = split,
          .batch_size = batch_size,
          .rank = rank,
          .world_size = world_size,
          .read_ahead = has_spare_thread ? kReadAhead : 0,
          .device = ctx.device};
}

BatchReader::BatchReader(DataSource* data, const BatchReaderOptions& options)
    : data_(data), options_(options), epoch_(options.first_epoch) {
  HOTROW_CHECK(0 <= options_.rank && options_.rank < options_.world_size);
  if (options_.read_ahead == 0) return;
  absl::StatusOr<std::thread> thread = StartThread("reading batches ahead", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  status_ = thread.status();
  ended_ = true;
}

BatchReader::~BatchReader() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<BatchReader::Item> BatchReader::NewItem() {
  std::unique_ptr<Item> item;
  {
    const std::lock_guard<std::mutex> lock(spares_->mutex);
    if (!spares_->items.empty()) {
      item = std::move(spares_->items.back());
      spares_->items.pop_back();
    }
  }
  if (item == nullptr) {
    item = std::make_unique<Item>();
    item->batch = CtrBatch::For(options_.device);
    const std::lock_guard<std::mutex> lock(spares_->mutex);
    spares_->items.reserve(++spares_->made);  // an item comes back in a destructor
  }
  return std::shared_ptr<Item>(item.release(), [spares = spares_](Item* used) {
    const std::lock_guard<std::mutex> lock(spares->mutex);
    spares->items.emplace_back(used);
  });
}

absl::StatusOr<std::shared_ptr<BatchReader::Item>> BatchReader::ReadOne() {
  if (epoch_ >= options_.epochs) return std::shared_ptr<Item>();
  TraceSpan span(options_.trace, "read");
  if (reader_ == nullptr) {
    const bool first = epoch_ == options_.first_epoch;
    HOTROW_ASSIGN_OR_RETURN(
        reader_, data_->OpenSplit(options_.split, epoch_, first ? options_.first_sample : 0));
    batches_in_epoch_ = first ? options_.first_batch : 0;
  }
  std::shared_ptr<Item> item = NewItem();
  item->epoch = epoch_;
  item->batch.batch_size = 0;
  item->global_batch_size = 0;
  item->first_sample = 0;
  item->global_labels.clear();
  item->global_true_probability.clear();
  if (options_.limit_batches == 0 || batches_in_epoch_ < options_.limit_batches) {
    // Page-locked memory may be refused while there is other.
    HOTROW_RETURN_IF_ERROR(
        Caught("a batch of the data, for which a lower batch size or a higher `ulimit -l` may help",
               [&] { return ReadBatch(item.get()); }));
  }
  ++batches_in_epoch_;
  if (item->ends_epoch()) {
    reader_.reset();
    ++epoch_;
  }
  return item;
}

absl::Status BatchReader::ReadBatch(Item* item) {
  const auto [rank, world_size] = std::pair(options_.rank, options_.world_size);
  if (world_size == 1 || !options_.keep_global_labels) {
    HOTROW_ASSIGN_OR_RETURN(item->global_batch_size, reader_->NextSlice(options_.batch_size, rank,
                                                                        world_size, &item->batch));
    item->first_sample = SliceBegin(item->global_batch_size, rank, world_size);
    return absl::OkStatus();
  }
  HOTROW_RETURN_IF_ERROR(reader_->Next(options_.batch_size, &whole_));
  const int64_t size = whole_.batch_size;
  if (size == 0) return absl::OkStatus();
  item->global_batch_size = size;
  item->first_sample = SliceBegin(size, rank, world_size);
  const auto num_features = static_cast<int64_t>(data_->schema().features.size());
  SliceBatch(whole_, num_features, item->first_sample,
             SliceBegin(size, int64_t{rank} + 1, world_size), &item->batch);
  item->global_labels = whole_.labels;
  item->global_true_probability = whole_.true_probability;
  return absl::OkStatus();
}

void BatchReader::Run() {
  absl::Status status = Caught("reading batches ahead", [this] { return ReadAhead(); });
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = std::move(status);
  ended_ = true;
  changed_.notify_all();
}

absl::Status BatchReader::ReadAhead() {
  while (true) {
    HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<Item> item, ReadOne());
    if (item == nullptr) return absl::OkStatus();
    std::unique_lock<std::mutex> lock(mutex_);
    ready_.push_back(std::move(item));
    changed_.notify_all();
    changed_.wait(lock, [this] {
      return stop_ || static_cast<int32_t>(ready_.size()) < options_.read_ahead;
    });
    if (stop_) return absl::OkStatus();
  }
}

absl::StatusOr<std::shared_ptr<BatchReader::Item>> BatchReader::Next() {
  if (options_.read_ahead == 0) {
    if (!status_.ok()) return status_;
    absl::StatusOr<std::shared_ptr<Item>> item = ReadOne();
    status_ = item.status();
    return item;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || !ready_.empty(); });
  if (ready_.empty()) {
    if (!status_.ok()) return status_;
    return std::shared_ptr<Item>();
  }
  std::shared_ptr<Item> item = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return item;
}

}  // namespace hotrow
