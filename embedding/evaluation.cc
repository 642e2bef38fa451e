#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/evaluation_impl.h"

namespace hotrow::internal {

Evaluation::Evaluation(const EmbeddingCollectionOptions& options, const Plan& plan,
                       const ExecContext& ctx, Tiers* tiers, RowShuffle* shuffle)
    : plan_(plan),
      ctx_(ctx),
      staging_bytes_(options.evaluation_staging_bytes),
      tiers_(tiers),
      shuffle_(shuffle) {
  batch_.alone = shuffle == nullptr;
  batch_.staged = tiers->staged();
}

absl::Status Evaluation::RunSlice(const JaggedBatch& batch, const EmbeddingOutput& output,
                                  uint32_t step) {
  StepBatch& s = batch_;
  // What was enqueued for the slice before may still read its arrays.
  HOTROW_RETURN_IF_ERROR(s.upload.RunAfter(ctx_.stream));
  s.Assign(batch);
  HOTROW_RETURN_IF_ERROR(s.FindUnique(ctx_.OnHost(), plan_, batch, &unique_));
  if (shuffle_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        shuffle_->ExchangeKeysInTurn(ctx_, s.wanted, /*evaluation=*/true, &ids_, &s.shuffled));
  }
  HOTROW_RETURN_IF_ERROR(tiers_->Read(ctx_, s.served(), staging_.data(), &s.rows));
  lookups_ += s.num_lookups;
  unique_keys_ += std::ssize(s.served().keys);
  HOTROW_RETURN_IF_ERROR(s.PlaceArrays(/*grouped=*/false));
  if (shuffle_ == nullptr) return s.Pool(ctx_, plan_, output);
  HOTROW_RETURN_IF_ERROR(shuffle_->StartRows(ctx_, s.shuffled, s.rows, step, /*evaluation=*/true));
  s.value_rows.resize(s.wanted.keys.size());
  HOTROW_RETURN_IF_ERROR(shuffle_->FinishRows(ctx_, s.shuffled, s.rows, s.value_rows));
  s.at.value_rows = s.value_rows.data();
  return s.Pool(ctx_, plan_, output);
}

absl::StatusOr<std::vector<int64_t>> Evaluation::CutForStaging(const JaggedBatch& batch) const {
  // Of several ranks each may be asked for the rows of all of them.
  const int64_t ranks = shuffle_ == nullptr ? 1 : shuffle_->world_size();
  const int64_t slice_lookups = staging_bytes_ / plan_.classes.back().row_bytes / ranks;
  const auto num_features = static_cast<int64_t>(plan_.features.size());
  if (std::ssize(batch.values) <= slice_lookups) return std::vector<int64_t>{0, batch.batch_size};
  std::vector<int64_t> cuts = {0};
  int64_t lookups = 0;
  for (int64_t b = 0; b < batch.batch_size; ++b) {
    int64_t n = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      const int64_t bag = f * batch.batch_size + b;
      n += batch.offsets[bag + 1] - batch.offsets[bag];
    }
    if (n > slice_lookups) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "evaluation_staging_bytes: sample ", b, " alone has ", n, " lookups, which need ",
          n * plan_.classes.back().row_bytes * ranks, " bytes; the budget is ", staging_bytes_));
    }
    if (lookups + n > slice_lookups) {
      cuts.push_back(b);
      lookups = 0;
    }
    lookups += n;
  }
  cuts.push_back(batch.batch_size);
  return cuts;
}

absl::Status Evaluation::Run(const JaggedBatch& batch, const EmbeddingOutput& output,
                             uint32_t step) {
  if (staging_.empty()) {
    HOTROW_ASSIGN_OR_RETURN(batch_.upload, DeviceStream::Create(ctx_.device));
    HOTROW_ASSIGN_OR_RETURN(
        staging_, DeviceMemory<std::byte>::Create(staging_bytes_,
                                                  {ctx_.device, ctx_.stream, HugePages::kTry}));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> cuts, CutForStaging(batch));
  const auto own_slices = static_cast<int64_t>(cuts.size()) - 1;
  int64_t slices = own_slices;
  if (shuffle_ != nullptr) {
    // All ranks serve each other in every slice, also when their own batch has ended.
    std::vector<int64_t> of_ranks(shuffle_->world_size());
    HOTROW_RETURN_IF_ERROR(shuffle_->AllGather({&own_slices, 1}, of_ranks));
    slices = *std::max_element(of_ranks.begin(), of_ranks.end());
  }
  if (slices == 1) return RunSlice(batch, output, step);

  const auto num_features = static_cast<int64_t>(plan_.features.size());
  std::vector<uint64_t> values;
  std::vector<int64_t> offsets;
  std::vector<float> weights;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t begin = slice < own_slices ? cuts[slice] : batch.batch_size;
    const int64_t end = slice < own_slices ? cuts[slice + 1] : batch.batch_size;
    values.clear();
    weights.clear();
    offsets.assign(1, 0);
    EmbeddingOutput part = output;
    const int64_t stride = output.pooled_stride == 0 ? plan_.pooled_dim : output.pooled_stride;
    if (output.pooled != nullptr) part.pooled = output.pooled + begin * stride;
    part.pooled_stride = stride;
    for (int64_t f = 0; f < num_features; ++f) {
      const PlannedFeature& feature = plan_.features[f];
      const int64_t* const bags = batch.offsets.data() + f * batch.batch_size;
      if (feature.unpooled_index >= 0) {
        part.unpooled[feature.unpooled_index] =
            output.unpooled[feature.unpooled_index] + (bags[begin] - bags[0]) * feature.dim;
      }
      const auto base = static_cast<int64_t>(values.size());
      values.insert(values.end(), batch.values.begin() + bags[begin],
                    batch.values.begin() + bags[end]);
      if (!batch.weights.empty()) {
        weights.insert(weights.end(), batch.weights.begin() + bags[begin],
                       batch.weights.begin() + bags[end]);
      }
      for (int64_t b = begin; b < end; ++b) offsets.push_back(base + bags[b + 1] - bags[begin]);
    }
    HOTROW_RETURN_IF_ERROR(RunSlice({end - begin, values, offsets, weights}, part, step));
  }
  return absl::OkStatus();
}

void Evaluation::AddTo(EmbeddingStats* stats) const {
  stats->evaluation_lookups += lookups_;
  stats->evaluation_unique_keys += unique_keys_;
  batch_.AddTo(stats);
  if (tiers_->staged()) stats->transfer_device_bytes += staging_.bytes();
}

}  // namespace hotrow::internal
