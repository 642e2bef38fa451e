#ifndef HOTROW_MODELS_ZOO_LAYERS_HISTORY_ENCODER_H_
#define HOTROW_MODELS_ZOO_LAYERS_HISTORY_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/layers/sequence_blocks.h"

namespace hotrow {

// Histories of F features that say different things of the same events, and the target that they
// are looked at for, as one sequence that goes through blocks. Row j of a sample is
//   x_j = [h_1j, ..., h_Fj] + p_n,  n = how many rows it stands before the target       [E = F D]
// The target's vectors are the last row, with p_0; a table has p_0, ..., p_L, for L = max_length.
// What the blocks make of that last row, which has seen all others, is the output:       [B, E]
// A sample without a history is its target alone. Rows of all samples go through the blocks as one
// batch, as many as there are, without padding.
//
// On the CPU. Inputs: the F targets, [B, D] each. Parameters: the table of positions [L + 1, E],
// which starts at zero; those of each block.
// Errors of Forward: InvalidArgument (histories of one sample differ in length; names features).
class HistoryEncoder : public Layer {
 public:
  struct Options {
    std::vector<int32_t> sequences;  // positions in ModelGraphOptions::unpooled_features
    std::vector<std::string> names;  // of these features, for errors
    int32_t dim = 0;                 // D
    int64_t max_batch_size = 0;
    int64_t max_length = 0;  // L
  };
  using Blocks = std::vector<std::unique_ptr<SequenceBlock>>;
  static absl::StatusOr<std::unique_ptr<HistoryEncoder>> Create(const Options& options,
                                                                Blocks blocks,
                                                                const ExecContext& ctx);

  const SequenceBlock& block(size_t number) const { return *blocks_[number]; }
  int64_t block_offset(size_t number) const { return offsets_[number]; }

  TensorShape output() const override { return {1, columns_}; }
  LayerTraits traits() const override { return {.sequences = true, .shared_rows = true}; }
  int64_t num_parameters() const override { return num_parameters_; }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  HistoryEncoder(const Options& options, Blocks blocks);
  absl::Status FindSequences(const LayerForward& pass);
  int64_t num_positions() const { return options_.max_length + 1; }

  const Options options_;
  const int32_t columns_;  // E
  const Blocks blocks_;
  std::vector<int64_t> offsets_;  // of the blocks' parameters
  int64_t num_parameters_ = 0;
  std::vector<int64_t> sequences_;         // [B + 1], of the last Forward: offsets with targets
  std::vector<DeviceMemory<float>> rows_;  // [N + B, E]: before each block, and behind the last
  DeviceMemory<float> gradient_;           // [N + B, E]
  SequenceScratch scratch_;
};

// What makes block `number` of a model.
using MakeSequenceBlock = std::function<absl::StatusOr<std::unique_ptr<SequenceBlock>>(
    const SequenceBlockOptions& options, const ExecContext& ctx)>;

// histories: positions in unpooled_features; targets: the vector of each one's target. num_heads
// comes of --num_heads, num_blocks of --num_blocks; maps_of_block: layer ids that a block takes.
struct HistoryEncoderSpec {
  std::vector<int32_t> histories;
  std::vector<std::string> names;
  std::vector<GraphValue> targets;
  int32_t num_blocks = 1;
  int32_t num_heads = 1;
  int32_t maps_of_block = 0;
  MakeSequenceBlock make_block;
};
GraphValue AddHistoryEncoder(ModelGraph& graph, std::string_view name,
                             const HistoryEncoderSpec& spec);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_HISTORY_ENCODER_H_
