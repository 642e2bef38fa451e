#ifndef HOTROW_MODELS_SERVING_ONNX_DENSE_IMPL_H_
#define HOTROW_MODELS_SERVING_ONNX_DENSE_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/zoo/ctr_model.h"

namespace hotrow::internal {

// The dense part of a model as a file of ONNX, run by onnxruntime. Float tensors, B samples:
// inputs "embeddings" [B, E], pooled, and "dense" [B, I] (a file may lack one that it does not
// read); output "logits" [B, T].
class OnnxDense {
 public:
  struct Columns {
    int64_t embeddings = 0;  // E
    int64_t dense = 0;       // I
  };
  // library: as LoadOnnxRuntime takes it. file: the bytes of the file; `where` names it in errors.
  // FailedPrecondition: no onnxruntime, one that does not take the file, or a file of other inputs
  // and outputs.
  static absl::StatusOr<std::shared_ptr<const OnnxDense>> Open(const std::string& library,
                                                               const std::string& file,
                                                               const std::string& where,
                                                               const Columns& columns);
  virtual ~OnnxDense() = default;

  virtual int32_t num_tasks() const = 0;  // T
  // Any number of threads at once; each call runs on its own.
  virtual absl::Status Run(int64_t batch_size, const float* embeddings, const float* dense,
                           float* logits) const = 0;
};

// The same for one session, as a model without parameters that cannot be trained.
std::unique_ptr<CtrModel> NewOnnxModel(std::shared_ptr<const OnnxDense> dense);

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_SERVING_ONNX_DENSE_IMPL_H_
