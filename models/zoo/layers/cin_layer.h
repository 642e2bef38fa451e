#ifndef HOTROW_MODELS_ZOO_LAYERS_CIN_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_CIN_LAYER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/interactions/cin_products.h"
#include "ops/layers/mlp.h"

namespace hotrow {

// The compressed interaction network of xDeepFM (Lian et al. 2018). A sample is a matrix X_0 with a
// row for each of F features and D columns. Layer k makes H_k rows of it, each a weighted sum of
// the products, column by column, of all rows of X_{k-1} with all rows of X_0:
//   X_k[h, d] = b_k[h] + sum_ij W_k[h, i, j] X_{k-1}[i, d] X_0[j, d]
// The output is the sum over d of every row of every X_k, k > 0: [B, H_1 + ... + H_L].
//
// The products of layer k are a matrix of B D rows and H_{k-1} F columns, which is kept for the way
// back, and W_k a map of it: a linear Mlp; the rest is ops/interactions/cin_products.h. Memory
// grows with B D F (F + H_1 + ...). It works on the CPU or a GPU. The maps multiply in fp32 on
// both, with any precision of the model's other products, since what one layer rounds is a factor
// in the next.
//
// Parameters: W_k row-major [H_k, H_{k-1} F] and b_k of each layer, as ops/layers/mlp.h lays them
// out and draws them.
class CinLayer : public Layer {
 public:
  struct Options {
    TensorShape fields;
    std::vector<int32_t> sizes;  // H_k
    int32_t first_layer_id = 0;  // MlpOptions
    int64_t max_batch_size = 0;
  };
  // ctx says where it works; see Mlp::Create.
  static absl::StatusOr<std::unique_ptr<CinLayer>> Create(const Options& options,
                                                          const ExecContext& ctx);

  // Where W_k (k from 0) and b_k lie in its part.
  int64_t weight_offset(int32_t layer) const { return levels_[Index(layer)].offset; }
  int64_t bias_offset(int32_t layer) const {
    return weight_offset(layer) + levels_[Index(layer)].map->bias_offset(0);
  }

  TensorShape output() const override;
  LayerTraits traits() const override;
  int64_t num_parameters() const override;
  std::vector<InnerLayer> inner_layers() const override;
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  // What makes X_k: rows (b, d), columns h.
  struct Level {
    std::unique_ptr<Mlp> map;
    int64_t offset = 0;             // of its parameters
    int64_t rows = 0;               // H_k
    int64_t rows_before = 0;        // H_{k-1}
    int64_t first_output = 0;       // column
    DeviceMemory<float> products;   // [B D, H_{k-1} F]
    DeviceMemory<float> values;     // [B D, H_k]
    DeviceMemory<float> gradients;  // the same
  };

  explicit CinLayer(const Options& options) : options_(options) {}
  static size_t Index(int32_t layer) { return static_cast<size_t>(layer); }
  absl::Status Allocate(const ExecContext& ctx);
  // X_{k-1} and X_0, and where the products of level k go.
  CinProductsArgs ProductsArgs(size_t k, int64_t batch_size);
  Mlp::BackwardArgs ArgsOf(Level& level, const LayerBackward& pass);

  const Options options_;
  std::vector<Level> levels_;
  DeviceMemory<float> inputs_;             // X_0: [B D, F]
  DeviceMemory<float> inputs_gradient_;    // the same
  DeviceMemory<float> product_gradients_;  // of one level
};

// fields [B, F D] -> [B, sum of the sizes]. flag: that gives the sizes, for errors.
GraphValue AddCin(ModelGraph& graph, std::string_view name, GraphValue fields,
                  const std::string& flag, const std::vector<int32_t>& sizes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_CIN_LAYER_H_
