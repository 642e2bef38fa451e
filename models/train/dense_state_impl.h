#ifndef HOTROW_MODELS_TRAIN_DENSE_STATE_IMPL_H_
#define HOTROW_MODELS_TRAIN_DENSE_STATE_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device_memory.h"
#include "base/env.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "comm/communicator.h"
#include "comm/lane.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"
#include "models/train/dense_sums_impl.h"
#include "models/train/trainer_options.h"
#include "models/zoo/ctr_model.h"
#include "ops/training/dense_optimizer.h"

namespace hotrow {

// The dense parameters of a run: the state of their optimizer, the sum of their gradients over the
// ranks, and their update, which leaves the untrained ones as they are.
//
// Several ranks sum while the model computes its gradients. In each step, on all ranks alike:
// BeginSums, GradientsReady for the ranges that Backward announces, FinishSums, Update. On GPUs
// sums are enqueued, as all else (DenseSums), and nobody waits for them.
//
// Average: with dense_optimizer.average_decay a running average of the parameters is kept, with
//          which the model is evaluated (UseAverage). For untrained parameters it is a copy.
//
// Bits:    parameters and updates are the same on all ranks. Gradients are summed in the order of
//          ranks. Neither depends on the size of ctx.pool.
// Threads: one call at a time. Sums run on another thread, on GPUs on another stream.
// Errors:  OutOfRange (a gradient that is not finite), those of the communicator and the device.
class DenseState {
 public:
  // What errors call it.
  static constexpr char kGradientName[] = "gradient of the dense parameters";

  // `options` and `model` outlive it. sums: the channel of several ranks; null: alone.
  static absl::StatusOr<std::unique_ptr<DenseState>> Create(const TrainerOptions& options,
                                                            CtrModel* model,
                                                            std::unique_ptr<Communicator> sums,
                                                            const ExecContext& ctx);

  // What the ranks must know of each other after a step.
  struct Totals {
    double loss_sum = 0;
    bool signal = false;  // some rank has one
  };
  // mine: of this rank; none on a GPU, where the loss is not known yet.
  void BeginSums(std::optional<Totals> mine);
  absl::Status GradientsReady(int64_t begin);  // from here to where the call before began
  // On GPUs, in between: sums[i] becomes the sum of all ranks' values[i] for what is enqueued
  // behind FinishSums; memory of the device.
  absl::Status SumAlso(const float* values, std::span<float> sums);
  // The totals of all ranks; none on a GPU.
  absl::StatusOr<std::optional<Totals>> FinishSums();

  // Takes the gradients of the model, of several ranks their sum. step_number: of the optimizer,
  // from 1; run_step: of the run, for errors. gradient_norm: on a GPU with max_gradient_norm,
  // memory of the device for the norm, which nobody waits for: the caller looks later whether it is
  // finite. skip: as DenseUpdate's.
  absl::Status Update(float learning_rate_factor, uint32_t step_number, int64_t run_step,
                      double* gradient_norm, const uint32_t* skip = nullptr);

  // From here on the model computes with the average, and with its own parameters again: for
  // evaluation between two steps. What the calls below give does not depend on it. Without an
  // average nothing changes.
  absl::Status UseAverage(bool use);

  // Takes the parameters of a saved model, its average or else a copy of the parameters, and the
  // optimizer's state if it is of the same kind.
  absl::Status Load(Env& env, const SavedModel& saved);
  // Parameters, state and average where the host can read them: of a GPU a copy, of this moment.
  absl::StatusOr<DenseArrays<const float>> OnHost();
  // The hash of these, each array with its number as key.
  absl::StatusOr<Hash128> Hash();

  int64_t bytes_sent() const { return bytes_sent_; }  // by this rank, for sums

 private:
  DenseState(const TrainerOptions& options, CtrModel* model, const ExecContext& ctx)
      : options_(options), model_(*model), ctx_(ctx) {}
  bool on_gpu() const { return ctx_.device != Device::kCpu; }
  // The parameters of training, wherever they are.
  std::span<float> trained_parameters() {
    return uses_average_ ? average_.span() : model_.parameters();
  }
  // Brings the average's copy of untrained parameters up to date.
  absl::Status CopyUntrained();

  const TrainerOptions& options_;
  CtrModel& model_;
  const ExecContext ctx_;
  std::vector<ParameterRange> trained_;  // what the optimizer may change
  DeviceMemory<float> momentum1_;
  DeviceMemory<float> momentum2_;
  DeviceMemory<float> average_;    // while UseAverage: the parameters of training
  DeviceMemory<float> exchanged_;  // of a GPU: scratch of UseAverage
  bool uses_average_ = false;
  // What there is with max_gradient_norm.
  DeviceMemory<float> gradient_scale_;  // [1]
  DeviceMemory<std::byte> norm_workspace_;
  // Where the host reads and writes what is on a GPU.
  SharedBuffer<float> host_parameters_;
  SharedBuffer<float> host_momentum1_;
  SharedBuffer<float> host_momentum2_;
  SharedBuffer<float> host_average_;

  int32_t world_size_ = 1;
  DeviceMemory<float> summed_;  // the gradient of all ranks
  double totals_[2] = {};       // losses, signals; not of a GPU
  int64_t bucket_end_ = 0;      // gradients from here on are being summed
  int64_t bytes_sent_ = 0;
  std::unique_ptr<DenseSums> device_sums_;  // of a GPU
  std::unique_ptr<CommLane> sums_;          // else. Last: its thread writes the sums
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_DENSE_STATE_IMPL_H_
