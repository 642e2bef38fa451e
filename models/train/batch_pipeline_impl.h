#ifndef HOTROW_MODELS_TRAIN_BATCH_PIPELINE_IMPL_H_
#define HOTROW_MODELS_TRAIN_BATCH_PIPELINE_IMPL_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "base/trace.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/train/batch_reader.h"

namespace hotrow {

// A batch between its prefetch and its update; the end of an epoch has no step.
struct BatchInFlight {
  std::shared_ptr<BatchReader::Item> item;
  EmbeddingStep step;
};

// The batches of training on their way to the step: read, and their rows prefetched a bounded
// number of steps ahead. A batch lies where it was read until its step has ended. Destroying it
// cancels the steps that wait.
//
// Threads: one call at a time, on the thread that calls the collection.
// Errors:  those of the data source and of EmbeddingCollection::Prefetch.
class BatchPipeline {
 public:
  // depth: steps that wait behind the front. `data`, `tables` and `trace` outlive it; trace: null:
  // none.
  BatchPipeline(DataSource* data, const BatchReaderOptions& options, EmbeddingCollection* tables,
                int32_t depth, TraceRecorder* trace);

  // Reads and prefetches until `depth` steps wait behind the one at the front. A batch that could
  // not be prefetched stays: see PrefetchAgain.
  absl::Status Fill();
  bool empty() const { return batches_.empty(); }
  bool ended() const { return data_ended_ && empty(); }  // nothing is left, nothing comes
  BatchInFlight& front() { return batches_.front(); }
  void Pop();
  // Cancels what is prefetched and asks for it again, in order.
  absl::Status PrefetchAgain();

 private:
  absl::Status Prefetch(BatchInFlight* batch);

  EmbeddingCollection& tables_;
  const int32_t depth_;
  TraceRecorder* const trace_;
  BatchReader reader_;
  std::deque<BatchInFlight> batches_;
  int64_t outstanding_ = 0;  // steps in batches_
  bool data_ended_ = false;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_BATCH_PIPELINE_IMPL_H_
