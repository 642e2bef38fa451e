#ifndef HOTROW_TOOLS_SERVE_SCORE_REQUEST_H_
#define HOTROW_TOOLS_SERVE_SCORE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/row_parser.h"
#include "models/data/table_schema.h"
#include "models/serving/scorer.h"
#include "tools/serve/infer_request.h"

// What a request asks of a Scorer: the tensors of an InferRequest, checked against a model and laid
// out as the Scorer takes them. docs/serving_http.md has the tensors as clients see them.

namespace hotrow {

// How texts of a model's features become keys: as the fields of its lines do. Two are equal where
// each text has the same keys.
class TextKeys {
 public:
  static absl::StatusOr<TextKeys> Of(const TableSchema& schema);
  const RowParser& parser() const { return *parser_; }
  bool operator==(const TextKeys& other) const { return rules_ == other.rules_; }

 private:
  std::string rules_;  // the text of schema_
  // Shared by the copies: the parser points to the schema.
  std::shared_ptr<const TableSchema> schema_;
  std::shared_ptr<const RowParser> parser_;
};

// What of a model a request must fit. Two versions of a model that clients cannot tell apart are
// equal.
struct ModelSignature {
  std::vector<std::string> features;  // in the Scorer's order
  int32_t num_dense = 0;              // I
  int32_t num_tasks = 1;              // T
  std::optional<TextKeys> texts;      // none: the model takes neither texts nor lines
  // "dense" and "lines", or ":dense" and ":lines" where a feature has that name.
  std::string dense_name = "dense";
  std::string lines_name = "lines";

  // Errors: FailedPrecondition, for names of features that requests could not tell apart.
  static absl::StatusOr<ModelSignature> Of(const Scorer& scorer);
  // The same of parts, for tests. schema: of these features; null: there is none.
  static absl::StatusOr<ModelSignature> Of(std::vector<std::string> features, int32_t num_dense,
                                           int32_t num_tasks, const TableSchema* schema);
  bool operator==(const ModelSignature&) const = default;
};

// Keys of some features, feature-major as in JaggedBatch, with offsets alone.
struct KeyBags {
  int64_t batch_size = 0;
  std::vector<uint64_t> keys;
  std::vector<int64_t> offsets = {0};  // [features * batch_size + 1]

  JaggedBatch view() const { return {batch_size, std::span(keys), std::span(offsets)}; }
};

enum class ScoreKind {
  kSamples,     // whole samples: joined with other requests of this kind
  kLines,       // lines of text: joined with other requests of this kind
  kCandidates,  // a user with candidates: scored alone
};

struct ScoreRequest {
  ScoreKind kind = ScoreKind::kSamples;
  int64_t num_samples = 0;  // B, N or lines
  // kSamples: of all features. kCandidates: of those of the candidates.
  KeyBags bags;
  std::vector<float> dense;  // [num_samples, I], or the columns of the candidates
  // kCandidates, as in CandidateBatch.
  std::vector<int32_t> user_features;
  KeyBags user_bags;
  std::vector<int32_t> user_dense_columns;
  std::vector<float> user_dense;
  // kLines
  std::vector<std::string> lines;
};

// Takes the tensors of a request. samples_max: more samples than that are refused before memory is
// taken for them. Errors: InvalidArgument, which names the tensor, the position and the value.
// (Keys beyond num_embeddings and fields of lines are the Scorer's to judge.)
absl::StatusOr<ScoreRequest> MakeScoreRequest(InferRequest* request,
                                              const ModelSignature& signature, int64_t samples_max);

// A request with its scores.
struct ScoreJob {
  ScoreRequest request;
  std::shared_ptr<const ModelSignature> signature;  // that it was checked against
  ScoreDeadline deadline = kNoDeadline;             // nobody wants the scores later
  // The answer.
  absl::Status status;
  std::vector<float> logits;  // [num_samples, T]
  int64_t step = 0;           // of the model that scored
  int64_t batch_samples = 0;  // of the batch that it was scored in
};

// Scores jobs of one kind in one call of the Scorer, so that the bits are those of the joined batch
// in the order of `jobs`. Where that fails each is scored alone, so that a request fails by its own
// fault only. Scoring ends between passes when the time of all of them is over. kCandidates come
// alone. Answers Aborted to a job whose signature is another one than
// the scorer's.
void ScoreJobs(const Scorer& scorer, const ModelSignature& signature,
               std::span<ScoreJob* const> jobs);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_SCORE_REQUEST_H_
