#ifndef HOTROW_TOOLS_SERVE_GRPC_MESSAGES_IMPL_H_
#define HOTROW_TOOLS_SERVE_GRPC_MESSAGES_IMPL_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "tools/serve/infer_reply.h"
#include "tools/serve/infer_request.h"

namespace inference {
class ModelInferRequest;
class ModelInferResponse;
}  // namespace inference

// Messages of tools/serve/inference.proto as the service knows them.

namespace hotrow::internal {

// Reads a request; whether it is for the model its caller checks. Memory: that of the elements.
// Errors: InvalidArgument, which names the tensor, the position and the value, as for JSON.
absl::StatusOr<InferRequest> ReadInferMessage(const inference::ModelInferRequest& message);

// The answer to it, in the form that its inputs had: raw bytes, or numbers.
inference::ModelInferResponse MakeInferMessage(const InferRequest& request,
                                               const ModelVersion& model, int32_t num_tasks,
                                               std::span<const float> logits);

}  // namespace hotrow::internal

#endif  // HOTROW_TOOLS_SERVE_GRPC_MESSAGES_IMPL_H_
