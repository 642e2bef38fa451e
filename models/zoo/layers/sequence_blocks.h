#ifndef HOTROW_MODELS_ZOO_LAYERS_SEQUENCE_BLOCKS_H_
#define HOTROW_MODELS_ZOO_LAYERS_SEQUENCE_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/zoo/ctr_model.h"
#include "ops/layers/mlp.h"
#include "ops/layers/self_attention.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

class OnnxGraph;

// The rows of a batch of sequences on their way through a block, end to end: [N, E], those of
// sample b from offsets[b] - offsets[0] on. All in host memory.
struct SequencePass {
  int64_t batch_size = 0;
  const int64_t* offsets = nullptr;  // [B + 1]; they and x stay until Backward
  int64_t num_rows = 0;              // N
  const float* parameters = nullptr;
  const float* x = nullptr;

  // Forward.
  float* y = nullptr;
  bool training = false;
  uint32_t step = 0;
  int64_t parameters_number = 0;  // as CtrModel::Input

  // Backward.
  float* gradient = nullptr;             // [N, E]: that of y, to be replaced by that of x
  float* parameter_gradients = nullptr;  // overwritten
};

// What all blocks may use in their Backward.
struct SequenceScratch {
  DeviceMemory<float> rows[2];  // [N, E]
  DeviceMemory<float> wide;     // [N, 4 E]
  DeviceMemory<std::byte> workspace;

  static absl::StatusOr<SequenceScratch> Create(int64_t max_batch_size, int64_t max_length,
                                                int32_t columns, const ExecContext& ctx);
};

// Sequences in an ONNX graph: L rows each of a history, of which there may be fewer, and the
// target.
struct OnnxSequenceRows {
  std::string x;        // [B, L + 1, E]; the target is the last row
  std::string mask;     // [B, 1, 1, L + 1], bool: which rows there are; others are any numbers
  std::string numbers;  // [B, L, 1], INT64: how many rows a history's row stands before the target
  std::string length;   // [B, 1, 1], INT64: rows of the history
};

struct SequenceBlockOptions {
  int32_t columns = 0;    // E
  int32_t num_heads = 1;  // a divisor of E
  int64_t max_batch_size = 0;
  int64_t max_length = 0;  // rows of a sequence
  uint64_t seed = 0;
  int32_t first_layer_id = 0;  // of its maps
  DensePrecision precision = DensePrecision::kFp32;
};

// A part that rows of sequences go through, as many of them as before: what transformers stack.
// Contracts of threads and errors: Layer. On the CPU.
class SequenceBlock {
 public:
  virtual ~SequenceBlock() = default;
  virtual int64_t num_parameters() const = 0;  // padded to 64 bytes
  virtual void InitParameters(uint64_t seed, std::span<float> parameters) const = 0;
  virtual void Describe(DenseLayers* layers) const = 0;
  // Gives what becomes of rows.x.
  virtual std::string ToOnnx(OnnxGraph& graph, const std::string& name, const float* parameters,
                             const OnnxSequenceRows& rows) const = 0;
  virtual absl::Status Forward(const ExecContext& ctx, const SequencePass& pass) = 0;
  virtual absl::Status Backward(const ExecContext& ctx, const SequencePass& pass,
                                SequenceScratch* scratch) = 0;
};

// A linear map of a block and where its parameters lie in the block's.
struct SequenceMap {
  std::unique_ptr<Mlp> mlp;
  int64_t offset = 0;
};

// The block of BST (Chen et al. 2019, "Behavior Sequence Transformer for E-commerce Recommendation
// in Alibaba", arXiv 1905.06874), with ReLU in the place of LeakyReLU and without dropout, since a
// row has no number in the whole batch that a slice could know:
//   s = norm(x + W_o attention(W_q x, W_k x, W_v x)),   y = norm(s + W_2 relu(W_1 s))
// Attention is softmax of all rows of a sequence to each other; each map has a bias; W_1 makes 4 E
// columns, as in Vaswani et al. 2017.
class TransformerBlock : public SequenceBlock {
 public:
  static constexpr int32_t kNumMaps = 4;  // layer ids that it takes
  static absl::StatusOr<std::unique_ptr<TransformerBlock>> Create(
      const SequenceBlockOptions& options, const ExecContext& ctx);

  const SequenceMap& projections() const { return projections_; }    // E -> [q, k, v], 3 E
  const SequenceMap& output() const { return output_; }              // E -> E
  const SequenceMap& feed_forward() const { return feed_forward_; }  // E -> 4 E -> E
  // Where gamma and beta [E] lie, one behind the other.
  int64_t first_norm() const { return first_norm_; }
  int64_t second_norm() const { return second_norm_; }

  int64_t num_parameters() const override { return num_parameters_; }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  void Describe(DenseLayers* layers) const override;
  std::string ToOnnx(OnnxGraph& graph, const std::string& name, const float* parameters,
                     const OnnxSequenceRows& rows) const override;
  absl::Status Forward(const ExecContext& ctx, const SequencePass& pass) override;
  absl::Status Backward(const ExecContext& ctx, const SequencePass& pass,
                        SequenceScratch* scratch) override;

 private:
  explicit TransformerBlock(const SequenceBlockOptions& options) : options_(options) {}
  SelfAttentionArgs AttentionOf(const SequencePass& pass);
  int64_t columns() const { return options_.columns; }

  const SequenceBlockOptions options_;
  SequenceMap projections_, output_, feed_forward_;
  int64_t first_norm_ = 0;
  int64_t second_norm_ = 0;
  int64_t num_parameters_ = 0;
  DeviceMemory<float> projected_;    // [N, 3 E]
  DeviceMemory<float> attended_;     // [N, E]
  DeviceMemory<float> normalizers_;  // [N, H]
  DeviceMemory<float> first_sum_;    // [N, E], before the first norm
  DeviceMemory<float> normed_;       // [N, E], behind it
  DeviceMemory<float> second_sum_;   // [N, E]
};

// The block of HSTU (Zhai et al. 2024, "Actions Speak Louder than Words: Trillion-Parameter
// Sequential Transducers for Generative Recommendations", arXiv 2402.17152):
//   [u, v, q, k] = silu(W_1 norm(x)),   y = x + W_2 (norm(attention(q, k, v)) o u)
// Attention is causal and has no softmax: weights are silu of scores, over the most rows that a
// sequence may have. To a score comes a learned number for the distance of its two rows, the same
// for all heads; as times of rows do not come to a model, there is none for those.
class HstuBlock : public SequenceBlock {
 public:
  static constexpr int32_t kNumMaps = 2;
  static absl::StatusOr<std::unique_ptr<HstuBlock>> Create(const SequenceBlockOptions& options,
                                                           const ExecContext& ctx);

  const SequenceMap& projections() const { return projections_; }  // E -> [u, v, q, k], 4 E
  const SequenceMap& output() const { return output_; }            // E -> E
  int64_t first_norm() const { return first_norm_; }
  int64_t second_norm() const { return second_norm_; }
  int64_t position_bias() const { return position_bias_; }  // [2 max_length - 1], zeros at first

  int64_t num_parameters() const override { return num_parameters_; }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  void Describe(DenseLayers* layers) const override;
  std::string ToOnnx(OnnxGraph& graph, const std::string& name, const float* parameters,
                     const OnnxSequenceRows& rows) const override;
  absl::Status Forward(const ExecContext& ctx, const SequencePass& pass) override;
  absl::Status Backward(const ExecContext& ctx, const SequencePass& pass,
                        SequenceScratch* scratch) override;

 private:
  explicit HstuBlock(const SequenceBlockOptions& options) : options_(options) {}
  SelfAttentionArgs AttentionOf(const SequencePass& pass);
  int64_t columns() const { return options_.columns; }

  const SequenceBlockOptions options_;
  SequenceMap projections_, output_;
  int64_t first_norm_ = 0;
  int64_t second_norm_ = 0;
  int64_t position_bias_ = 0;
  int64_t num_parameters_ = 0;
  DeviceMemory<float> first_normed_;   // [N, E]
  DeviceMemory<float> projected_;      // [N, 4 E]
  DeviceMemory<float> activated_;      // [N, 4 E]: u, v, q, k
  DeviceMemory<float> attended_;       // [N, E]
  DeviceMemory<float> second_normed_;  // [N, E]
  DeviceMemory<float> gated_;          // [N, E]
  DeviceMemory<std::byte> workspace_;  // of attention's gradient
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_SEQUENCE_BLOCKS_H_
