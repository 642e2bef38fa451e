#include <atomic>
#include <vector>

#include "base/status_macros.h"
#include "embedding/embedding_collection_impl.h"
#include "embedding/stats_fields.h"

namespace hotrow {

EmbeddingStats EmbeddingCollection::Stats() const {
  const Impl& c = *impl_;
  EmbeddingStats stats;
  stats.steps = c.steps - c.options.start.steps;
  stats.unique_keys = c.unique_keys;
  stats.tables = c.tables;
  // The device may be writing it.
  stats.initialised_rows =
      std::atomic_ref<int64_t>(*impl_->read_back_rows.data()).load(std::memory_order_relaxed);
  stats.prefetch_waits = c.prefetcher->prefetch_waits();
  stats.lookup_waits = c.lookup_waits;
  stats.lookup_wait_ns = c.lookup_wait_ns;
  c.snapshots->AddTo(&stats);
  c.evaluation->AddTo(&stats);
  c.rules->AddTo(&stats);
  for (const EmbeddingStep::Impl* const step : c.outstanding) {
    if (!step->awaits_batch()) step->batch->AddTo(&stats);  // the Prefetcher may be taking it
  }
  for (const auto& step : c.free_steps) step->batch->AddTo(&stats);
  if (c.tiers->staged()) stats.transfer_device_bytes += c.gradients->device_bytes();
  if (c.shuffle != nullptr) {
    internal::RowShuffleBytes sent = c.shuffle->bytes();
    if (c.device_rows != nullptr) {
      sent.ids += c.device_keys->bytes_sent();
      sent.rows += c.device_rows->bytes().rows;
      sent.gradients += c.device_rows->bytes().gradients;
      sent.evaluation += c.device_rows->bytes().evaluation;
      stats.transfer_device_bytes += c.device_keys->device_bytes() + c.device_rows->device_bytes();
    }
    stats.exchange_ids_bytes = sent.ids;
    stats.exchange_forward_bytes = sent.rows;
    stats.exchange_backward_bytes = sent.gradients;
    stats.exchange_evaluation_bytes = sent.evaluation;
    stats.exchange_wait_ns = c.shuffle->wait_ns();
    stats.exchange_buffer_bytes = c.shuffle->buffer_bytes();
  }
  if (c.residuals != nullptr) {
    stats.exchange_feedback_bytes = c.residuals->bytes();
    stats.exchange_feedback_keys = c.residuals->counts().keys;
    stats.exchange_feedback_hits = c.residuals->counts().hits;
  }
  c.tiers->AddTo(&stats);
  return stats;
}

absl::StatusOr<EmbeddingStats> EmbeddingCollection::GlobalStats() {
  Impl& c = *impl_;
  return c.Together("GlobalStats", [&]() -> absl::StatusOr<EmbeddingStats> {
    // A device that has failed says so in the next call that needs it.
    c.tiers->WaitForDevice();
    WaitForStream(c.ctx).IgnoreError();
    EmbeddingStats stats = Stats();
    if (c.shuffle == nullptr) return stats;
    const std::vector<int64_t> mine = PackCounts(stats);
    std::vector<int64_t> all(mine.size() * static_cast<size_t>(c.shuffle->world_size()));
    HOTROW_RETURN_IF_ERROR(c.shuffle->AllGather(mine, all));
    MergeCounts(all, &stats);
    return stats;
  });
}

}  // namespace hotrow
