#ifndef HOTROW_MODELS_ZOO_LAYERS_BATCH_NORM_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_BATCH_NORM_LAYER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/zoo/layers/layer.h"

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
//             slices. So a batch gives the same bits on any pool, and on any number of ranks the
//             same but for the rounding of these sums.
class BatchNormLayer : public Layer {
 public:
  static constexpr double kEpsilon = 1e-5;
  static constexpr double kMomentum = 0.1;
  static constexpr int64_t kBlockRows = 256;

  struct Options {
    int32_t columns = 0;  // H
    bool relu = false;
    float dropout = 0;     // [0, 1)
    uint64_t seed = 0;     // of dropout
    int32_t layer_id = 0;  // in dropout's counters
    int64_t max_batch_size = 0;
  };
  explicit BatchNormLayer(const Options& options);

  // Where they lie in its part.
  int64_t gamma_offset() const { return 0; }
  int64_t beta_offset() const { return options_.columns; }
  int64_t mean_offset() const { return 2 * int64_t{options_.columns}; }
  int64_t variance_offset() const { return 3 * int64_t{options_.columns}; }

  TensorShape output() const override { return {1, options_.columns}; }
  LayerTraits traits() const override;
  int64_t num_parameters() const override { return 4 * int64_t{options_.columns}; }
  int64_t num_untrained() const override { return 2 * int64_t{options_.columns}; }
  void EndStep(float* parameters) override;
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  // What a running variance is divided by.
  float InverseDeviation(double variance) const;
  // Two sums for each column over the rows of the batch, into sums_: add(first row, last row, to).
  template <typename Add>
  void SumRows(const ExecContext& ctx, int64_t rows, const Add& add);
  absl::Status Drop(const ExecContext& ctx, int64_t rows, const TensorView& data) const;
  size_t columns() const { return static_cast<size_t>(options_.columns); }

  const Options options_;
  std::vector<double> block_sums_;  // [blocks, 2 H]
  std::vector<double> sums_;        // [2 H], and the number of samples
  // Of the last Forward for training, where it came from.
  int64_t samples_ = 0;  // of all slices
  uint32_t step_ = 0;
  int64_t first_sample_ = 0;
  std::vector<double> batch_mean_, batch_variance_;  // [H]
  // What Forward subtracts and multiplies by: [H] each.
  std::vector<float> mean_, inverse_deviation_;
  std::vector<float> gradients_;  // of gamma and beta
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_BATCH_NORM_LAYER_H_
