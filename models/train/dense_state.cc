#include "models/train/dense_state_impl.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/device_stream.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "models/saving/dense_file.h"
#include "models/train/non_finite_impl.h"
#include "ops/training/dense_optimizer.h"
#include "ops/training/gradient_norm.h"

namespace hotrow {
namespace {

// Several ranks: gradients are summed in pieces of at least this many floats (1 MiB), while
// backward goes on.
constexpr int64_t kBucketFloats = 1 << 18;

// What is left of n parameters without `untrained`.
std::vector<ParameterRange> TrainedRanges(int64_t n, std::span<const ParameterRange> untrained) {
  std::vector<ParameterRange> ranges;
  int64_t begin = 0;
  for (const ParameterRange& hole : untrained) {
    if (hole.begin > begin) ranges.push_back({begin, hole.begin});
    begin = hole.end;
  }
  if (n > begin) ranges.push_back({begin, n});
  return ranges;
}

// A range of what the optimizer works on. State that it does not keep stays empty.
DenseTensor PartOf(const DenseTensor& all, const ParameterRange& range) {
  const auto part = [&range](auto floats) {
    if (floats.empty()) return floats;
    return floats.subspan(static_cast<size_t>(range.begin),
                          static_cast<size_t>(range.end - range.begin));
  };
  return {.parameters = part(all.parameters),
          .gradients = part(all.gradients),
          .momentum1 = part(all.momentum1),
          .momentum2 = part(all.momentum2),
          .average = part(all.average)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseState>> DenseState::Create(const TrainerOptions& options,
                                                               CtrModel* model,
                                                               std::unique_ptr<Communicator> sums,
                                                               const ExecContext& ctx) {
  std::unique_ptr<DenseState> out(new DenseState(options, model, ctx));
  const auto n = static_cast<int64_t>(model->parameters().size());
  out->trained_ = TrainedRanges(n, model->untrained_parameters());
  const int32_t state_arrays = DenseStateArrays(options.dense_optimizer.kind);
  const auto take = [&](DeviceMemory<float>* memory) {
    auto taken = DeviceMemory<float>::Create(n, {ctx.device, ctx.stream, HugePages::kTry});
    if (!taken.ok()) return taken.status();
    *memory = *std::move(taken);
    return absl::OkStatus();
  };
  if (state_arrays >= 1) HOTROW_RETURN_IF_ERROR(take(&out->momentum1_));
  if (state_arrays >= 2) HOTROW_RETURN_IF_ERROR(take(&out->momentum2_));
  if (options.dense_optimizer.average_decay > 0) {
    HOTROW_RETURN_IF_ERROR(take(&out->average_));
    if (out->on_gpu()) HOTROW_RETURN_IF_ERROR(take(&out->exchanged_));
    HOTROW_RETURN_IF_ERROR(
        EnqueueCopy(ctx, out->average_.data(), model->parameters().data(), out->average_.bytes()));
  }
  if (options.max_gradient_norm > 0) {
    HOTROW_ASSIGN_OR_RETURN(out->gradient_scale_,
                            DeviceMemory<float>::Create(1, {ctx.device, ctx.stream}));
    HOTROW_ASSIGN_OR_RETURN(out->norm_workspace_, DeviceMemory<std::byte>::Create(
                                                      GradientNormWorkspaceBytes(ctx.device, n),
                                                      {ctx.device, ctx.stream}));
  }
  if (sums != nullptr) {
    HOTROW_RETURN_IF_ERROR(take(&out->summed_));
    out->world_size_ = sums->world_size();
    if (out->on_gpu()) {
      HOTROW_ASSIGN_OR_RETURN(out->device_sums_, DenseSums::Create(*sums, ctx.device, n));
    } else {
      out->sums_ = std::make_unique<CommLane>(std::move(sums));
    }
  }
  if (!out->on_gpu()) return out;
  HOTROW_ASSIGN_OR_RETURN(out->host_parameters_, SharedBuffer<float>::Create(n, {ctx.device}));
  // State begins with zeros, which device memory does not, and shared memory does.
  for (auto [host, state] : {std::pair(&out->host_momentum1_, &out->momentum1_),
                             std::pair(&out->host_momentum2_, &out->momentum2_)}) {
    HOTROW_ASSIGN_OR_RETURN(*host, SharedBuffer<float>::Create(state->size(), {ctx.device}));
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, state->data(), host->data(), state->bytes()));
  }
  HOTROW_ASSIGN_OR_RETURN(out->host_average_,
                          SharedBuffer<float>::Create(out->average_.size(), {ctx.device}));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
  return out;
}

void DenseState::BeginSums(std::optional<Totals> mine) {
  bucket_end_ = static_cast<int64_t>(model_.gradients().size());
  if (!mine.has_value()) return;
  totals_[0] = mine->loss_sum;
  totals_[1] = mine->signal ? 1 : 0;
  sums_->Start(
      [this](Communicator& channel) { return channel.AllReduceSum(std::span<double>(totals_)); });
}

absl::Status DenseState::GradientsReady(int64_t begin) {
  if (begin > 0 && bucket_end_ - begin < kBucketFloats) return absl::OkStatus();
  const std::span<float> bucket =
      summed_.span().subspan(begin, std::exchange(bucket_end_, begin) - begin);
  if (on_gpu()) {
    HOTROW_RETURN_IF_ERROR(device_sums_->Start(ctx_, model_.gradients().data() + begin, bucket));
  } else {
    std::copy_n(model_.gradients().begin() + begin, bucket.size(), bucket.begin());
    sums_->Start([bucket](Communicator& channel) { return channel.AllReduceSum(bucket); });
  }
  // Each of n ranks sends 2 (n - 1) / n of the data of a sum.
  bytes_sent_ += 2 * (world_size_ - 1) * static_cast<int64_t>(bucket.size_bytes()) / world_size_;
  return absl::OkStatus();
}

absl::Status DenseState::SumAlso(const float* values, std::span<float> sums) {
  const int64_t bytes = std::ssize(sums) * static_cast<int64_t>(sizeof(float));
  bytes_sent_ += 2 * (world_size_ - 1) * bytes / world_size_;
  return device_sums_->Start(ctx_, values, sums);
}

absl::StatusOr<std::optional<DenseState::Totals>> DenseState::FinishSums() {
  TraceSpan span(ctx_.trace, "all_reduce");
  if (on_gpu()) {
    HOTROW_RETURN_IF_ERROR(device_sums_->Finish(ctx_));
    return std::nullopt;
  }
  HOTROW_RETURN_IF_ERROR(sums_->WaitAll());
  return Totals{.loss_sum = totals_[0], .signal = totals_[1] != 0};
}

absl::Status DenseState::Update(float learning_rate_factor, uint32_t step_number, int64_t run_step,
                                double* gradient_norm, const uint32_t* skip) {
  TraceSpan span(ctx_.trace, "dense_update");
  DenseTensor all = {.parameters = model_.parameters(),
                     .gradients = model_.gradients(),
                     .momentum1 = momentum1_.span(),
                     .momentum2 = momentum2_.span(),
                     .average = average_.span()};
  if (!summed_.empty()) all.gradients = summed_.span();
  if (options_.max_gradient_norm > 0) {
    double norm = 0;
    HOTROW_RETURN_IF_ERROR(GradientNorm(ctx_, {.gradients = all.gradients,
                                               .norm_max = options_.max_gradient_norm,
                                               .norm = on_gpu() ? gradient_norm : &norm,
                                               .scale = gradient_scale_.data(),
                                               .workspace = norm_workspace_.data(),
                                               .workspace_bytes = norm_workspace_.bytes()}));
    if (!std::isfinite(norm)) {
      return DivergedError(options_, run_step, kGradientName,
                           FindGradient(ctx_, &model_, all.gradients));
    }
  }
  std::vector<DenseTensor> trained;
  trained.reserve(trained_.size());
  for (const ParameterRange& range : trained_) trained.push_back(PartOf(all, range));
  return DenseUpdate(ctx_, options_.dense_optimizer, trained, learning_rate_factor, step_number,
                     gradient_scale_.data(), skip);
}

absl::Status DenseState::CopyUntrained() {
  if (average_.empty()) return absl::OkStatus();
  for (const ParameterRange& range : model_.untrained_parameters()) {
    const int64_t bytes = (range.end - range.begin) * static_cast<int64_t>(sizeof(float));
    const float* from = model_.parameters().data() + range.begin;
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, average_.data() + range.begin, from, bytes));
  }
  return absl::OkStatus();
}

absl::Status DenseState::UseAverage(bool use) {
  if (average_.empty() || use == uses_average_) return absl::OkStatus();
  if (use) HOTROW_RETURN_IF_ERROR(CopyUntrained());
  const std::span<float> parameters = model_.parameters();
  if (on_gpu()) {
    const auto copy = [&](float* to, const float* from) {
      return EnqueueCopy(ctx_, to, from, average_.bytes());
    };
    HOTROW_RETURN_IF_ERROR(copy(exchanged_.data(), parameters.data()));
    HOTROW_RETURN_IF_ERROR(copy(parameters.data(), average_.data()));
    HOTROW_RETURN_IF_ERROR(copy(average_.data(), exchanged_.data()));
  } else {
    std::swap_ranges(parameters.begin(), parameters.end(), average_.data());
  }
  uses_average_ = use;
  return absl::OkStatus();
}

absl::Status DenseState::Load(Env& env, const SavedModel& saved) {
  const bool same_optimizer =
      saved.dense_optimizer == DenseOptimizerName(options_.dense_optimizer.kind);
  DenseArrays<float> dense = {.parameters = model_.parameters()};
  DenseArrays<float> device = {.parameters = model_.parameters()};
  const auto also = [&](DeviceMemory<float>& here, SharedBuffer<float>& host,
                        std::span<float> DenseArrays<float>::*array) {
    device.*array = here.span();
    dense.*array = on_gpu() ? host.span() : here.span();
  };
  if (on_gpu()) dense.parameters = host_parameters_.span();
  if (same_optimizer) {
    also(momentum1_, host_momentum1_, &DenseArrays<float>::momentum1);
    also(momentum2_, host_momentum2_, &DenseArrays<float>::momentum2);
  }
  if (saved.dense_average) also(average_, host_average_, &DenseArrays<float>::average);
  HOTROW_RETURN_IF_ERROR(ReadSavedDense(env, saved, dense));
  if (on_gpu()) {
    for (const auto array : {&DenseArrays<float>::parameters, &DenseArrays<float>::momentum1,
                             &DenseArrays<float>::momentum2, &DenseArrays<float>::average}) {
      HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, (device.*array).data(), (dense.*array).data(),
                                         static_cast<int64_t>((device.*array).size_bytes())));
    }
  }
  if (!saved.dense_average) {
    HOTROW_RETURN_IF_ERROR(
        EnqueueCopy(ctx_, average_.data(), model_.parameters().data(), average_.bytes()));
  }
  return WaitForStream(ctx_);
}

absl::StatusOr<DenseArrays<const float>> DenseState::OnHost() {
  if (!uses_average_) HOTROW_RETURN_IF_ERROR(CopyUntrained());
  const std::span<const float> average = uses_average_ ? model_.parameters() : average_.span();
  DenseArrays<const float> dense = {
      .parameters = trained_parameters(),
      .momentum1 = momentum1_.span(),
      .momentum2 = momentum2_.span(),
      .average = average_.empty() ? std::span<const float>() : average};
  if (!on_gpu()) return dense;
  const auto download = [&](std::span<const float>* array, std::span<float> host) {
    const absl::Status copied =
        EnqueueCopy(ctx_, host.data(), array->data(), static_cast<int64_t>(array->size_bytes()));
    *array = host;
    return copied;
  };
  HOTROW_RETURN_IF_ERROR(download(&dense.parameters, host_parameters_.span()));
  HOTROW_RETURN_IF_ERROR(download(&dense.momentum1, host_momentum1_.span()));
  HOTROW_RETURN_IF_ERROR(download(&dense.momentum2, host_momentum2_.span()));
  HOTROW_RETURN_IF_ERROR(download(&dense.average, host_average_.span()));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx_));
  return dense;
}

absl::StatusOr<Hash128> DenseState::Hash() {
  HOTROW_ASSIGN_OR_RETURN(const DenseArrays<const float> dense, OnHost());
  Hash128 hash;
  uint64_t array = 0;
  for (const std::span<const float> floats : {dense.parameters, dense.momentum1, dense.momentum2}) {
    hash += HashBytes(array++, 0, std::as_bytes(floats));
  }
  if (!dense.average.empty()) hash += HashBytes(array, 0, std::as_bytes(dense.average));
  return hash;
}

}  // namespace hotrow
