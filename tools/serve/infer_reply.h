#ifndef HOTROW_TOOLS_SERVE_INFER_REPLY_H_
#define HOTROW_TOOLS_SERVE_INFER_REPLY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/serve/infer_request.h"
#include "tools/serve/score_request.h"
#include "tools/serve/serve_metrics.h"

// What the Open Inference Protocol v2 answers, as bytes of HTTP.

namespace hotrow {

// Whether the outputs that a request wishes are there. Errors: InvalidArgument, naming those that
// are.
absl::Status CheckOutputs(const InferRequest& request);

// What the answer tells of the model.
struct ModelVersion {
  std::string name;
  int64_t step = 0;  // its version
};

// Whether a request is for the model. version: none is any. Errors: NotFound, naming the one that
// is there.
absl::Status CheckModel(const ModelVersion& model, std::string_view name,
                        std::optional<std::string_view> version);

// Calls `put` with each output that a request wishes, in its order, and with its numbers: `scores`
// and `logits`, [samples, tasks] each. Errors: the first of `put`.
absl::Status EachOutput(
    const InferRequest& request, std::span<const float> logits,
    absl::FunctionRef<absl::Status(const OutputWish& wish, std::span<const float> numbers)> put);

struct InferReply {
  std::string body;
  std::optional<int64_t> json_bytes;  // of the body, if binary tensors follow
};

// The answer by HTTP: outputs are FP32 [samples, tasks]. Numbers in JSON have 9 digits, which
// bring the same floats back. Errors: OutOfRange (a number that is not finite, which JSON has no
// word for; names the remedy).
absl::StatusOr<InferReply> MakeInferReply(const InferRequest& request, const ModelVersion& model,
                                          int32_t num_tasks, std::span<const float> logits);

// {"error": message}; bytes that are not UTF-8 become U+FFFD.
std::string ErrorJson(std::string_view message);

// What this server is. endpoints: "GET /v2/models/NAME", with NAME for the model's.
std::string ServerJson(const ModelVersion& model, std::span<const char* const> endpoints);
std::string ServerMetadataJson();
// line_columns: of lines, if the model takes them.
std::string ModelMetadataJson(const ModelVersion& model, const ModelSignature& signature,
                              const std::vector<std::string>& labels,
                              const std::vector<std::string>& line_columns);
std::string ModelReadyJson(const ModelVersion& model, bool ready);
// The models of this server: one. As the repository extension of Triton has it.
std::string RepositoryIndexJson(const ModelVersion& model, bool ready);
// As the statistics extension of Triton has it; no batch sizes apart, and no cache of replies.
std::string StatisticsJson(const ModelVersion& model, const InferStatistics& statistics);
// The configuration as that extension of Triton has it, which its tools ask for.
std::string ModelConfigJson(const ModelVersion& model, const ModelSignature& signature);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_INFER_REPLY_H_
