#include "models/train/batch_pipeline_impl.h"

#include <utility>

#include "base/status_macros.h"

namespace hotrow {

BatchPipeline::BatchPipeline(DataSource* data, const BatchReaderOptions& options,
                             EmbeddingCollection* tables, int32_t depth, TraceRecorder* trace)
    : tables_(*tables), depth_(depth), trace_(trace), reader_(data, options) {}

absl::Status BatchPipeline::Prefetch(BatchInFlight* batch) {
  if (batch->item->ends_epoch()) return absl::OkStatus();
  TraceSpan span(trace_, "prefetch");
  HOTROW_ASSIGN_OR_RETURN(batch->step, tables_.Prefetch(batch->item->batch.sparse(), batch->item));
  return absl::OkStatus();
}

absl::Status BatchPipeline::Fill() {
  while (!data_ended_ && outstanding_ <= depth_) {
    BatchInFlight next;
    {
      TraceSpan span(trace_, "data");
      HOTROW_ASSIGN_OR_RETURN(next.item, reader_.Next());
    }
    if (next.item == nullptr) {
      data_ended_ = true;
      break;
    }
    if (!next.item->ends_epoch()) ++outstanding_;
    batches_.push_back(std::move(next));
    HOTROW_RETURN_IF_ERROR(Prefetch(&batches_.back()));
  }
  return absl::OkStatus();
}

void BatchPipeline::Pop() {
  if (!front().item->ends_epoch()) --outstanding_;
  batches_.pop_front();
}

absl::Status BatchPipeline::PrefetchAgain() {
  for (auto it = batches_.rbegin(); it != batches_.rend(); ++it) it->step = EmbeddingStep();
  for (BatchInFlight& batch : batches_) HOTROW_RETURN_IF_ERROR(Prefetch(&batch));
  return absl::OkStatus();
}

}  // namespace hotrow
