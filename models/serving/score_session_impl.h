#ifndef HOTROW_MODELS_SERVING_SCORE_SESSION_IMPL_H_
#define HOTROW_MODELS_SERVING_SCORE_SESSION_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "embedding/jagged_batch.h"
#include "embedding/serving/serving_tables.h"
#include "models/data/ctr_batch.h"
#include "models/data/row_parser.h"
#include "models/data/sample_block.h"
#include "models/serving/scorer.h"
#include "models/serving/serving_model_impl.h"
#include "models/zoo/ctr_model.h"

namespace hotrow::internal {

// A version of a model: what changes with a delta. Readers see it whole.
struct ModelVersion {
  const ServingTables::View* rows = nullptr;
  std::shared_ptr<const std::vector<float>> parameters;  // of the dense part
  int64_t dense_number = 0;                              // which parameters these are; 0: the first
  int64_t step = 0;
};

// What one call of a Scorer needs for itself: an instance of the dense part, and memory that is
// used again.
//
// Memory:  what a pass of max_batch_size samples needs of rows, BytesOf, with any request:
//          each size is checked before its memory is taken. Copies of what the caller gives
//          come beside it, and go with the call where they are large.
// Threads: one call at a time.
class ScoreSession {
 public:
  // Bytes of the rows of a pass, those that are pooled and those that are not.
  static int64_t BytesOf(const ScorerOptions& options, const ServingModel& model);
  // model outlives it.
  static absl::StatusOr<std::unique_ptr<ScoreSession>> Create(const ScorerOptions& options,
                                                              const ServingModel& model);

  // What the next calls score with, and outlives them; before: the model as it was read.
  void Use(const ModelVersion& version);

  // The same as of Scorer.
  absl::Status Score(const ScoreBatch& batch, std::span<float> logits,
                     ScoreDeadline deadline = kNoDeadline);
  absl::Status ScoreCandidates(const CandidateBatch& batch, std::span<float> logits,
                               ScoreDeadline deadline = kNoDeadline);
  absl::Status ScoreLines(std::span<const std::string_view> lines, std::span<float> logits,
                          ScoreDeadline deadline = kNoDeadline);
  // Frees what only a large call needs, after it.
  void Trim();

 private:
  // A batch in one form: keys and offsets of 64 bits, from any that the caller has.
  struct Keys {
    struct Feature {
      std::span<const uint64_t> values;  // those that offsets point into, from `first` on
      std::span<const int64_t> offsets;  // [B + 1]
      std::span<const float> weights;    // that offsets point into, or empty
      int64_t first = 0;
    };
    std::vector<Feature> features;
    // What had to be converted.
    std::vector<uint64_t> own_values;
    std::vector<int64_t> own_offsets;
    std::vector<std::vector<uint64_t>> known;  // by feature, with unknown keys in their places
  };
  // Rows of a feature that is not pooled, of the samples at hand.
  struct Sequence {
    std::vector<float> rows;
    std::vector<int64_t> offsets;
    bool shared = false;  // the rows are the user's, which all candidates have
  };

  ScoreSession(const ScorerOptions& options, const ServingModel& model)
      : model_(model), rows_(&model.tables->view()), max_batch_size_(options.max_batch_size) {}

  // bags: the features of the batch where they lie apart. names: of them, for errors. features:
  // positions in the model's.
  absl::Status Take(const JaggedBatch& batch, std::span<const FeatureBags> bags,
                    std::span<const std::string> names, std::span<const int32_t> features,
                    Keys* keys) const;
  // What is wrong with the bags and keys of a feature; puts the unknown key in the place of those
  // that count as it.
  absl::Status CheckKeys(const ServingFeature& feature, Keys::Feature* keys,
                         std::vector<uint64_t>* known) const;
  // Adds to lookups_ those of the samples [begin, end) of a feature, the f-th of `keys`. They write
  // to the rows from the first on of embeddings_, or to the feature's sequence.
  absl::Status AddLookup(const Keys& keys, size_t f, const ServingFeature& feature, int64_t begin,
                         int64_t end);
  // Those of all features of candidates [begin, end).
  absl::Status AddCandidates(int64_t begin, int64_t end);
  // Gives the user's rows of a feature, looked up for the first, to so many candidates.
  void ShareUserRows(const ServingFeature& feature, int64_t candidates);
  // Pools lookups_, all together: rows on a disk are asked for once.
  absl::Status PoolAll();
  absl::Status Forward(int64_t batch_size, const float* dense, float* logits);

  const ServingModel& model_;
  const ServingTables::View* rows_;
  int64_t dense_number_ = 0;  // of the parameters that dense_ has
  const int64_t max_batch_size_;
  std::unique_ptr<CtrModel> dense_;
  std::vector<int32_t> all_features_;  // 0, 1, ...
  ServingTables::Scratch scratch_;
  std::vector<ServingLookup> lookups_;
  std::vector<float> embeddings_;    // [max_batch_size, E]
  std::vector<Sequence> sequences_;  // [unpooled features]
  std::vector<CtrModel::Sequence> sequence_views_;
  Keys keys_, user_keys_;
  // What candidates use.
  std::vector<float> dense_rows_;  // [max_batch_size, I]
  std::vector<std::string> user_names_, candidate_names_;
  std::vector<int32_t> candidate_features_;
  // What lines use.
  std::optional<RowParser> parser_;
  std::string header_;  // of files of such lines; empty: no line is taken for it
  Sample sample_;
  std::optional<SampleBlock> block_;
  std::vector<SampleRef> refs_;
  CtrBatch lines_;
  size_t text_bytes_ = 0;  // of the last lines
};

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_SERVING_SCORE_SESSION_IMPL_H_
