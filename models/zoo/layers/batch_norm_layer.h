#ifndef HOTROW_MODELS_ZOO_LAYERS_BATCH_NORM_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_BATCH_NORM_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "ops/layers/batch_norm.h"

namespace hotrow {

// Batch normalization (Ioffe & Szegedy 2015) with what follows it in an MLP: [B, H] -> [B, H].
//   y = dropout(relu(gamma (x - mean) / sqrt(variance + kEpsilon) + beta)), column by column
// Training takes mean and variance of the whole batch, over all its slices, and evaluation the
// running ones, which EndStep moves by kMomentum towards those of the batch. As in PyTorch the
// batch is normalized with the variance over N samples, and the running one moves towards that over
// N - 1.
//
// Parameters: gamma [H], which start as ones, beta [H], zeros; untrained: the running mean [H],
//             zeros, and variance [H], ones.
// Bits:       sums over the batch are double, block by block of kBlockRows samples, then over the
//             slices (ops/layers/batch_norm.h). So a batch gives the same bits on any pool, and on
//             any number of ranks the same but for the rounding of these sums.
// Slices:     sums over them are the host's: on a GPU a pass with LayerForward::sum_over_slices
//             waits for the stream, twice a step. A batch that is whole waits for nothing.
class BatchNormLayer : public Layer {
 public:
  static constexpr double kEpsilon = kBatchNormEpsilon;
  static constexpr double kMomentum = 0.1;
  static constexpr int64_t kBlockRows = kBatchNormBlockRows;

  struct Options {
    int32_t columns = 0;  // H
    bool relu = false;
    float dropout = 0;     // [0, 1)
    uint64_t seed = 0;     // of dropout
    int32_t layer_id = 0;  // in dropout's counters
    int64_t max_batch_size = 0;
  };
  static absl::StatusOr<std::unique_ptr<BatchNormLayer>> Create(const Options& options,
                                                                const ExecContext& ctx);

  // Where gamma and beta lie in its part.
  int64_t gamma_offset() const { return 0; }
  int64_t beta_offset() const { return options_.columns; }
  int64_t mean_offset() const { return 2 * int64_t{options_.columns}; }
  int64_t variance_offset() const { return 3 * int64_t{options_.columns}; }

  TensorShape output() const override { return {1, options_.columns}; }
  LayerTraits traits() const override;
  int64_t num_parameters() const override { return 4 * int64_t{options_.columns}; }
  int64_t num_untrained() const override { return 2 * int64_t{options_.columns}; }
  absl::Status EndStep(const ExecContext& ctx, int64_t samples, float* parameters) override;
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  explicit BatchNormLayer(const Options& options) : options_(options) {}
  BatchNormScale scale() { return {scale_.data(), scale_.data() + options_.columns}; }
  // Forward of the last pass; its output is not there.
  BatchNormArgs ArgsOf(int64_t batch_size, const TensorView& x, const float* parameters);
  // Replaces sums_ by what all slices have, which are *samples samples, this slice's before.
  absl::Status SumOverSlices(const ExecContext& ctx, const SliceSums& sum, int64_t* samples);
  absl::Status Drop(const ExecContext& ctx, int64_t rows, const TensorView& data) const;
  size_t columns() const { return static_cast<size_t>(options_.columns); }

  const Options options_;
  DeviceMemory<std::byte> workspace_;
  DeviceMemory<double> sums_;        // [2 H]
  DeviceMemory<double> moments_;     // [2 H], of the last Forward for training
  DeviceMemory<float> scale_;        // [2 H]
  SharedBuffer<double> slice_sums_;  // sums_ on the host, and the number of samples
  // Where the last Forward for training came from.
  int64_t samples_ = 0;  // of all slices
  uint32_t step_ = 0;
  const uint32_t* device_step_ = nullptr;
  int64_t first_sample_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_BATCH_NORM_LAYER_H_
