#ifndef HOTROW_MODELS_CTR_MODEL_H_
#define HOTROW_MODELS_CTR_MODEL_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// The dense half of a click model: from dense features and pooled embeddings to one logit a sample.
// Parameters and their gradients lie in two flat arrays of equal length that the model owns.
//
// Dimensions: B samples, I dense features, E = width of the pooled embeddings.
// Threads:    one call at a time. Backward follows the Forward of the same batch.
class CtrModel {
 public:
  virtual ~CtrModel() = default;
  virtual std::string_view name() const = 0;

  struct Input {
    int64_t batch_size = 0;             // B
    const float* dense = nullptr;       // [B, I]
    const float* embeddings = nullptr;  // [B, E]; both stay valid until Backward
    bool training = false;
    uint32_t step = 0;  // from 1; dropout's counter
  };
  virtual absl::Status Forward(const ExecContext& ctx, const Input& input,
                               std::span<float> logits) = 0;
  // logit_gradient [B] is overwritten as scratch; embedding_gradient [B, E] and gradients() are
  // overwritten.
  virtual absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                                float* embedding_gradient) = 0;

  virtual std::span<float> parameters() = 0;
  virtual std::span<const float> gradients() const = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_CTR_MODEL_H_
