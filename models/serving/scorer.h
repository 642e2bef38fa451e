#ifndef HOTROW_MODELS_SERVING_SCORER_H_
#define HOTROW_MODELS_SERVING_SCORER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "embedding/jagged_batch.h"
#include "embedding/serving/serving_rows.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

class CtrModel;
class Env;
class ServingBudget;
class Vocabulary;
struct ModelRecipe;
struct ServingReadStats;
struct TableSchema;

struct ScorerOptions {
  // Required: a model of --save_dir, a checkpoint, a directory of checkpoints (the newest counts),
  // a portable export, whole or in codes (models/serving/quantize_model.h), or a chain of deltas
  // (what its newest link leads to).
  std::string model;
  // Rows and index of all tables in memory, and what max_concurrency calls take for the rows that
  // they read; a hard limit. The copies of the dense part come on top. 0: no limit.
  int64_t memory_bytes = 0;
  // A directory on an SSD for the rows, for models that are larger than memory; memory_bytes, which
  // must then be given, has their index and a cache. One directory for each model: rows of another
  // one that lie there go. Empty: memory has all rows. docs/serving.md.
  std::string rows_dir;
  // Shared with other scorers, in the place of memory_bytes; null: it has its own.
  std::shared_ptr<ServingBudget> budget;
  // How rows are kept. As they were trained: with the weights that lookups read in training, which
  // --serve_rows may have rounded. Otherwise they take less, and scores are other numbers. Rows of
  // a model in codes are kept in these.
  ServingRows rows = ServingRows::kAsTrained;
  // The limit of the index of an ssd store, about 10 bytes a row, while its rows are read; 0: none.
  int64_t store_bytes = 0;
  // Calls that run at once; others wait. Each has its own copy of the dense parameters and buffers
  // for max_batch_size samples. 0: as many as the machine has threads.
  int32_t max_concurrency = 0;
  // Samples that go through the dense part at once, at least 1; longer batches are cut.
  int64_t max_batch_size = 1024;
  // The precision of the dense part's products; none: as it was trained, or quantized for.
  std::optional<DensePrecision> precision;
  // The library of onnxruntime, for a model whose dense part is ONNX; empty: libonnxruntime.so, as
  // the loader finds it.
  std::string onnxruntime;
  // Makes models that are not of models/zoo; null: there are none. Called once for each session.
  std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(const ModelRecipe& recipe)> create_model;
  Env* env = nullptr;  // of all files, but RocksDB's; not owned; null: the real file system
  // True ends Open and ApplyDelta with Cancelled, at the next row that they read. A LiveScorer sets
  // it when it goes; null: it has its own.
  std::shared_ptr<std::atomic<bool>> stop;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// A batch to be scored. Dimensions: B samples, F features, I dense features, T tasks.
struct ScoreBatch {
  JaggedBatch sparse;            // of feature_names(), in their order
  std::span<const float> dense;  // [B, I]
  // Instead of the arrays of `sparse`, which then has the batch size alone: one for each feature.
  std::span<const FeatureBags> features;
};

// One user with N candidates. The features of the user are given once, those of the candidates N
// times; together they are all features of the model.
struct CandidateBatch {
  int64_t num_candidates = 0;                   // N
  std::span<const int32_t> user_features;       // positions in feature_names(), ascending
  JaggedBatch user;                             // of these: B = 1
  JaggedBatch candidates;                       // of the others, in their order: B = N
  std::span<const int32_t> user_dense_columns;  // of the dense features, ascending
  std::span<const float> user_dense;            // [columns of the user]
  std::span<const float> candidate_dense;       // [N, the others]
  // As ScoreBatch::features, instead of the arrays of `user` and `candidates`.
  std::span<const FeatureBags> user_bags;
  std::span<const FeatureBags> candidate_bags;
};

// What a delta has brought.
struct AppliedDelta {
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t rows = 0;    // new, or in the place of others
  int64_t erased = 0;  // keys that lost their row: tombstones, and rows that aged
};

// When the time of a call is over, which it looks at between passes of max_batch_size samples.
using ScoreDeadline = std::chrono::steady_clock::time_point;
inline constexpr ScoreDeadline kNoDeadline = ScoreDeadline::max();

// 1 / (1 + exp(-logit)).
float ScoreProbability(float logit);

// Scores with a trained model, which it opens read only and then has in memory, or in rows_dir:
// nothing that happens to the model's directory later changes it, and only ApplyDelta changes what
// it scores. docs/serving.md.
//
// Scores: logits, [B, T] row-major. Those of a batch of up to max_batch_size samples have the bits
//         of the trainer's evaluation of that batch, unless `rows` or `precision` says otherwise;
//         of a longer one those of its parts of max_batch_size samples. Keys without a row read
//         what evaluation gives them.
// Version: a call scores with one version of the model, whole: rows and dense parameters of one
//          step, also while ApplyDelta runs.
// Threads: all const methods, any number at once, also while ApplyDelta runs. A call runs on the
//          thread that makes it; it waits only where max_concurrency others run.
// Keys:    of a table with a vocabulary those that are not in it read the row of unknown values, as
//          in lines. Ids of 32 bits must not be negative (embedding/jagged_batch.h).
// Arrays:  read where they lie. Copied are ids of 32 bits, offsets of 32 bits and lengths, which
//          become keys and offsets of 64 bits, and keys of features with unknown ones.
// Sizes:   a call takes memory for the rows of max_batch_size samples, with any request, and
//          reads the rows of a user once for all candidates. A sample must not have more values of
//          a feature whose rows are not pooled than max_hotness in training.
// Errors:  Open: FailedPrecondition (no model there, of another version, or one that this
//          program cannot score; names the remedy), DataLoss (damaged; names the file),
//          ResourceExhausted (a budget), Cancelled (the option `stop`). Scoring: InvalidArgument
//          (names feature, sample and value, or line and column), ResourceExhausted (memory),
//          DeadlineExceeded (the deadline), and with rows_dir DataLoss (a row that is needed is in
//          a damaged block; names the file). With rows_dir, Open also has FailedPrecondition
//          (another process writes rows there) and ResourceExhausted (its disk is full).
class Scorer {
 public:
  static absl::StatusOr<std::unique_ptr<Scorer>> Open(const ScorerOptions& options);
  // With rows_dir also as SaveHotKeys, whose error nobody hears.
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Makes the next delta of the chain that the scorer was opened from visible, and returns when all
  // calls score with it. dir: of the delta, "chain/delta-00000007", wherever that lies. It is read
  // and checked whole before: after an error nothing has changed, and the call may be made again.
  // Waits for calls that run; one delta at a time.
  //
  // Errors, naming the delta: DataLoss, FailedPrecondition (damaged, of another chain, not the next
  // one, or a model that must be opened again, as where tables decay as a whole), ResourceExhausted
  // (memory_bytes has no room for its rows, twice while it is applied), InvalidArgument (a weight
  // without a code); with rows_dir also where another process writes there, or the disk is full.
  absl::StatusOr<AppliedDelta> ApplyDelta(const std::string& dir);

  const std::string& model_name() const;  // "dlrm"
  int64_t step() const;                   // updates that the newest version has seen
  int64_t sequence() const;               // of its link of a chain; -1: it is of no chain
  const std::vector<std::string>& feature_names() const;
  int32_t num_dense() const;
  int32_t num_tasks() const;
  const std::vector<std::string>& labels() const;  // one for each task; empty: not known
  int64_t rows() const;                            // of all tables
  int64_t table_bytes() const;                     // of these, taken of memory_bytes
  int64_t max_batch_size() const;
  ServingReadStats read_stats() const;  // of rows_dir; zeros where memory has all rows
  // Writes to rows_dir which rows the cache has, with their counts. The next scorer of a model
  // with these tables reads their rows before Open returns. Errors: those of writing a file.
  absl::Status SaveHotKeys() const;
  // What a user should know of this model: facts that it lacks, and what stands in their place.
  const std::vector<std::string>& notes() const;

  // logits: [B, T]. step: of the version that has scored; may be null.
  absl::Status Score(const ScoreBatch& batch, std::span<float> logits, int64_t* step = nullptr,
                     ScoreDeadline deadline = kNoDeadline) const;
  // logits: [N, T], those of N samples that have the user's features each.
  absl::Status ScoreCandidates(const CandidateBatch& batch, std::span<float> logits,
                               int64_t* step = nullptr, ScoreDeadline deadline = kNoDeadline) const;

  // What lines of the model's data mean, to be read without labels; null: its data were no
  // delimited text, or it was saved before models kept that.
  const TableSchema* schema() const;
  // The columns of the lines that ScoreLines takes: UnlabelledColumns of the schema.
  const std::vector<std::string>& line_columns() const;
  // Which values have their own rows; null: all have.
  const Vocabulary* vocabulary() const;
  // Lines of line_columns(). The end of a line, LF or CR LF, is no part of it; a line break within
  // one, but in quotes, and a header are InvalidArgument; a blank line is a sample as any. logits:
  // [lines, T]. FailedPrecondition where schema() is null.
  absl::Status ScoreLines(std::span<const std::string_view> lines, std::span<float> logits,
                          int64_t* step = nullptr, ScoreDeadline deadline = kNoDeadline) const;

 private:
  friend class LiveScorer;
  struct Impl;
  explicit Scorer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_SCORER_H_
