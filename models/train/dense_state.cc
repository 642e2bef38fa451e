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
#include "ops/dense_optimizer.h"
#include "ops/gradient_norm.h"

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
          .momentum2 = part(all.momentum2)};
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
  if (options.max_gradient_norm > 0) {
    HOTROW_ASSIGN_OR_RETURN(out->gradient_scale_,
                            DeviceMemory<float>::Create(1, {ctx.device, ctx.stream}));
    HOTROW_ASSIGN_OR_RETURN(out->norm_workspace_, DeviceMemory<std::byte>::Create(
                                                      GradientNormWorkspaceBytes(ctx.device, n),
                                                      {ctx.device, ctx.stream}));
  }
  if (sums != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(out->summed_, HostBuffer<float>::Create(n, HugePages::kTry));
    out->world_size_ = sums->world_size();
    out->sums_ = std::make_unique<CommLane>(std::move(sums));
  }
  if (!out->on_gpu()) return out;
  HOTROW_ASSIGN_OR_RETURN(out->host_parameters_, SharedBuffer<float>::Create(n, {ctx.device}));
  // State begins with zeros, which device memory does not, and shared memory does.
  for (auto [host, state] : {std::pair(&out->host_momentum1_, &out->momentum1_),
                             std::pair(&out->host_momentum2_, &out->momentum2_)}) {
    HOTROW_ASSIGN_OR_RETURN(*host, SharedBuffer<float>::Create(state->size(), {ctx.device}));
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, state->data(), host->data(), state->bytes()));
  }
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
  return out;
}

void DenseState::BeginSums(double loss_sum, int signal) {
  totals_[0] = loss_sum;
  totals_[1] = signal;
  bucket_end_ = static_cast<int64_t>(model_.gradients().size());
  sums_->Start(
      [this](Communicator& channel) { return channel.AllReduceSum(std::span<double>(totals_)); });
}

absl::Status DenseState::GradientsReady(int64_t begin) {
  if (begin > 0 && bucket_end_ - begin < kBucketFloats) return absl::OkStatus();
  const std::span<float> bucket =
      summed_.span().subspan(begin, std::exchange(bucket_end_, begin) - begin);
  std::copy_n(model_.gradients().begin() + begin, bucket.size(), bucket.begin());
  sums_->Start([bucket](Communicator& channel) { return channel.AllReduceSum(bucket); });
  // Of a sum over n ranks each sends 2 (n - 1) / n of the data.
  bytes_sent_ += 2 * (world_size_ - 1) * static_cast<int64_t>(bucket.size_bytes()) / world_size_;
  return absl::OkStatus();
}

absl::StatusOr<DenseState::Totals> DenseState::FinishSums() {
  TraceSpan span(ctx_.trace, "all_reduce");
  HOTROW_RETURN_IF_ERROR(sums_->WaitAll());
  return Totals{.loss_sum = totals_[0], .signal = totals_[1] != 0};
}

absl::Status DenseState::Update(float learning_rate_factor, uint32_t step_number, int64_t run_step,
                                double* gradient_norm) {
  TraceSpan span(ctx_.trace, "dense_update");
  DenseTensor all = {.parameters = model_.parameters(),
                     .gradients = model_.gradients(),
                     .momentum1 = momentum1_.span(),
                     .momentum2 = momentum2_.span()};
  if (sums_ != nullptr) all.gradients = summed_.span();
  if (options_.max_gradient_norm > 0) {
    double norm = 0;
    HOTROW_RETURN_IF_ERROR(GradientNorm(ctx_, {.gradients = all.gradients,
                                               .norm_max = options_.max_gradient_norm,
                                               .norm = on_gpu() ? gradient_norm : &norm,
                                               .scale = gradient_scale_.data(),
                                               .workspace = norm_workspace_.data(),
                                               .workspace_bytes = norm_workspace_.bytes()}));
    if (!std::isfinite(norm)) return DivergedError(options_, run_step, kGradientName);
  }
  std::vector<DenseTensor> trained;
  trained.reserve(trained_.size());
  for (const ParameterRange& range : trained_) trained.push_back(PartOf(all, range));
  return DenseUpdate(ctx_, options_.dense_optimizer, trained, learning_rate_factor, step_number,
                     gradient_scale_.data());
}

absl::Status DenseState::Load(Env& env, const SavedModel& saved) {
  const bool same_optimizer =
      saved.dense_optimizer == DenseOptimizerName(options_.dense_optimizer.kind);
  if (!on_gpu()) {
    DenseArrays<float> dense = {.parameters = model_.parameters()};
    if (same_optimizer) {
      dense.momentum1 = momentum1_.span();
      dense.momentum2 = momentum2_.span();
    }
    return ReadSavedDense(env, saved, dense);
  }
  DenseArrays<float> dense = {.parameters = host_parameters_.span()};
  if (same_optimizer) {
    dense.momentum1 = host_momentum1_.span();
    dense.momentum2 = host_momentum2_.span();
  }
  HOTROW_RETURN_IF_ERROR(ReadSavedDense(env, saved, dense));
  const auto upload = [&](std::span<float> to, std::span<const float> from) {
    return EnqueueCopy(ctx_, to.data(), from.data(), static_cast<int64_t>(from.size_bytes()));
  };
  HOTROW_RETURN_IF_ERROR(upload(model_.parameters(), dense.parameters));
  HOTROW_RETURN_IF_ERROR(upload(momentum1_.span(), dense.momentum1));
  HOTROW_RETURN_IF_ERROR(upload(momentum2_.span(), dense.momentum2));
  return WaitForStream(ctx_);
}

absl::StatusOr<DenseArrays<const float>> DenseState::OnHost() {
  DenseArrays<const float> dense = {.parameters = model_.parameters(),
                                    .momentum1 = momentum1_.span(),
                                    .momentum2 = momentum2_.span()};
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
  return hash;
}

}  // namespace hotrow
