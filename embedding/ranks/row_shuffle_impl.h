#ifndef HOTROW_EMBEDDING_RANKS_ROW_SHUFFLE_IMPL_H_
#define HOTROW_EMBEDDING_RANKS_ROW_SHUFFLE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "comm/communicator.h"
#include "comm/lane.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/table_policies.h"
#include "ops/keys/unique.h"
#include "ops/rows/row_codec.h"
#include "ops/rows/weights_precision.h"

namespace hotrow::internal {

// Dimensions: N ranks, T tables, U distinct keys that this rank wants, R keys that it is asked for
// by all ranks together, S of them distinct: those it serves.

// Distinct keys, table by table in the order of the plan.
struct TableKeys {
  std::vector<RowKey> keys;            // [U]
  std::vector<int32_t> counts;         // [U] how often each was asked for
  std::vector<int64_t> table_offsets;  // [T + 1]
  // [U] what the lookups of the batch bring to the score of each row (score_sums_impl.h); empty
  // where no table keeps scores.
  std::vector<double> scores;
};

// Who asked whom for which rows, for one batch: the result of the ID shuffle. It is kept until the
// gradients have gone the same way back.
struct ShuffledKeys {
  std::vector<int32_t> ask_order;      // [U] positions in what is wanted, by owner, then table
  std::vector<int64_t> ask_offsets;    // [N*T + 1] into ask_order; owner p, table t at p*T + t
  std::vector<int32_t> asked_rows;     // [R] positions in `served`, by asking rank, then table
  std::vector<int64_t> asked_offsets;  // [N*T + 1] into asked_rows
  TableKeys served;                    // [S]; counts: how many ranks asked
  // What training sends, where it does:
  std::vector<int32_t> lookups;  // [S] of all ranks in their batches
  std::vector<double> scores;    // [S] as in TableKeys, joined in the order of ranks
};

struct RowShuffleOptions {
  struct Table {
    uint32_t table = 0;  // in RowKey
    int32_t dim = 0;
    WeightsPrecision precision = WeightsPrecision::kFp32;  // of the rows that are served
    ScoreRule score = ScoreRule::kNone;                    // kNone: no scores are sent for its keys
  };
  bool sends_lookups = false;  // training tells owners how often each key is looked up
  std::vector<Table> tables;   // [T] in the order of the plan
  uint64_t seed = 0;
  ExchangeType forward = ExchangeType::kFp32;
  ExchangeType backward = ExchangeType::kFp32;
  ExchangeRounding rounding = ExchangeRounding::kNearest;
  int64_t feedback_bytes = 0;  // of residuals, see KeepResiduals; only compared between ranks
};

// Bytes sent to other ranks so far.
struct RowShuffleBytes {
  int64_t ids = 0;
  int64_t rows = 0;
  int64_t gradients = 0;
  int64_t evaluation = 0;  // ids, rows and marks
};

// Moves keys, rows and gradients between the ranks that share the tables of a collection.
//
//   ExchangeKeys      each rank learns which of its rows the others want       (prefetch)
//   StartRows ...     those rows travel in the forward type                    (lookup)
//   FinishRows        ... and every wanted key has an address to read from
//   StartGradients .. one gradient for each wanted row travels back, in the backward type (update)
//   FinishGradients   ... and each owner has the sum for its rows, added in rank order
//
// What belongs to this rank itself does not travel, is not rounded and not copied: its rows are
// read where they are. Rows of 16 bits are an exception: all that a rank serves are widened side by
// side first, each once however many ranks want it, so that wanted rows are floats wherever they
// come from.
//
// All calls are collective: every rank makes the same ones in the same order, on each of two
// threads: one calls ExchangeKeys for the steps to come (with its own channel), one everything
// else. Between StartX and FinishX the caller computes; one exchange of rows or gradients at a
// time.
// Errors: those of the communicator, which are final.
class RowShuffle {
 public:
  // Memory of ExchangeKeys, kept from call to call; one for each thread that calls it.
  struct Scratch {
    std::vector<int32_t> parts;
    std::vector<uint64_t> values;
    std::vector<uint64_t> asked;
    std::vector<uint32_t> ask_counts;
    std::vector<uint32_t> asked_counts;
    std::vector<int32_t> ask_lookups;
    std::vector<int32_t> asked_lookups;
    std::vector<double> ask_scores;
    std::vector<double> asked_scores;
    std::vector<LookupSegment> segments;
    std::vector<uint64_t> unique;
    HostBuffer<std::byte> workspace;
  };

  // Collective. `channel` is for rows and gradients. InvalidArgument when the ranks' options
  // differ.
  static absl::StatusOr<std::unique_ptr<RowShuffle>> Create(const RowShuffleOptions& options,
                                                            std::unique_ptr<Communicator> channel);

  // Keeps in `residuals` what gradients lose on their way from here on, and adds it to the next
  // gradient of the same key. Not owned; before the first StartGradients.
  void KeepResiduals(GradientResiduals* residuals) { residuals_ = residuals; }

  // The ID shuffle. `evaluation`: only where the bytes are counted.
  absl::Status ExchangeKeys(const ExecContext& ctx, Communicator& channel, const TableKeys& wanted,
                            bool evaluation, Scratch* scratch, ShuffledKeys* out);
  // The same on the channel for rows and gradients.
  absl::Status ExchangeKeysInTurn(const ExecContext& ctx, const TableKeys& wanted, bool evaluation,
                                  Scratch* scratch, ShuffledKeys* out);

  // served_rows[i]: where the row of keys.served.keys[i] lies, weights first, as its table has
  // them; they may change as soon as StartRows has returned, except this rank's own. step: of
  // stochastic rounding. Evaluation sends fp32.
  absl::Status StartRows(const ExecContext& ctx, const ShuffledKeys& keys,
                         std::span<std::byte* const> served_rows, uint32_t step, bool evaluation);
  // Sets wanted_rows[i] [U] to the D floats of the i-th wanted key: in memory that lasts until the
  // next StartRows or StartGradients, or in served_rows.
  absl::Status FinishRows(const ExecContext& ctx, const ShuffledKeys& keys,
                          std::span<std::byte* const> served_rows,
                          std::span<const std::byte*> wanted_rows);

  // A byte for each served key goes to the ranks that asked for it: wanted[i] [U].
  absl::Status ExchangeMarks(const ShuffledKeys& keys, std::span<const uint8_t> served,
                             std::span<uint8_t> wanted);

  // gradients[i] [U]: of the i-th wanted key, D floats; they stay until FinishGradients. step: of
  // stochastic rounding and of residuals, which are changed here.
  absl::Status StartGradients(const ExecContext& ctx, const TableKeys& wanted,
                              const ShuffledKeys& keys, std::span<float* const> gradients,
                              uint32_t step);
  // sums[i] [S] becomes the sum over the ranks that asked, in their order.
  absl::Status FinishGradients(const ExecContext& ctx, const ShuffledKeys& keys,
                               std::span<float* const> gradients, std::span<float* const> sums);

  // Whether it is between a Start and its Finish.
  bool busy() const { return ticket_ >= 0; }
  // Instead of the Finish: waits for what is under way and forgets it. Not collective.
  void Drop();

  // Collective, in turn with rows and gradients: all[p * mine.size()] on = what rank p gave.
  absl::Status AllGather(std::span<const int64_t> mine, std::span<int64_t> all);

  // The same, and adds up: counts[i] becomes the sum over all ranks.
  absl::Status AllSum(std::vector<int64_t>* counts);

  // comm/run_together.h, in turn with rows and gradients. The work runs on another thread.
  absl::Status RunTogether(absl::FunctionRef<absl::Status()> work);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  RowShuffleBytes bytes() const;
  int64_t wait_ns() const { return wait_ns_; }  // in Finish
  int64_t buffer_bytes() const {
    return out_.data.size() + in_.data.size() + (decoded_.size() + widened_.size()) * 4;
  }

 private:
  // Encoded rows of all other ranks, one after another.
  struct Message {
    std::vector<RowRun> runs;        // rows numbered without this rank's own
    std::vector<int64_t> first_run;  // [N + 1]
    std::vector<int64_t> bytes;      // [N]
    std::vector<int64_t> offsets;    // [N]
    int64_t total_bytes = 0;
    HostBuffer<std::byte> data;
  };

  RowShuffle(const RowShuffleOptions& options, std::unique_ptr<Communicator> channel);
  // A number of each wanted key of the tables that `sent` names goes the way that the keys have
  // gone; `asked` has those that came, by asking rank, then table.
  template <typename T>
  absl::Status SendAlong(Communicator& channel, const ShuffledKeys& keys,
                         absl::FunctionRef<bool(size_t table)> sent, std::span<const T> wanted,
                         std::vector<T>* ask, std::vector<T>* asked);
  // How often each key of an exchange is looked up, and its scores.
  absl::Status ExchangeLookups(Communicator& channel, const TableKeys& wanted, Scratch* scratch,
                               ShuffledKeys* out);
  absl::Status ExchangeScores(Communicator& channel, const TableKeys& wanted, Scratch* scratch,
                              ShuffledKeys* out);
  absl::Status Layout(std::span<const int64_t> offsets, ExchangeType type, Message* message) const;
  // Where there are tables of 16 bits: sets wide_rows_.
  absl::Status Widen(const ExecContext& ctx, const TableKeys& served,
                     std::span<std::byte* const> served_rows);
  const float* ServedRow(std::span<std::byte* const> served_rows, int32_t row) const {
    return widens_ ? wide_rows_[row] : reinterpret_cast<const float*>(served_rows[row]);
  }
  void StartExchange();
  absl::Status WaitExchange();
  int64_t OwnBegin(std::span<const int64_t> offsets) const;
  int64_t OwnEnd(std::span<const int64_t> offsets) const;

  const RowShuffleOptions options_;
  const int rank_;
  const int world_size_;
  const bool widens_;  // some table has rows of 16 bits
  const bool scores_;  // some table keeps scores

  Message out_;
  Message in_;
  ExchangeType in_type_ = ExchangeType::kFp32;
  HostBuffer<float> decoded_;  // rows that came in another type than fp32
  // The rows of tables of 16 bits, widened, with widens_; by served row where its floats lie, there
  // or in the row itself; and 0, 1, 2, ..., the bags and lookups that widen, each row its own.
  HostBuffer<float> widened_;
  std::vector<const float*> wide_rows_;
  std::vector<int64_t> widen_offsets_;
  std::vector<int32_t> widen_lookups_;
  // Places by row of a message.
  std::vector<const float*> out_rows_;
  std::vector<uint64_t> out_keys_;
  std::vector<float*> in_rows_;
  std::vector<float*> out_residuals_;
  std::vector<RowRun> rank_runs_;
  GradientResiduals* residuals_ = nullptr;

  std::atomic<int64_t> id_bytes_{0};
  std::atomic<int64_t> evaluation_bytes_{0};
  int64_t row_bytes_ = 0;
  int64_t gradient_bytes_ = 0;
  int64_t wait_ns_ = 0;
  int64_t ticket_ = -1;
  CommLane lane_;  // last: its thread uses the above
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_RANKS_ROW_SHUFFLE_IMPL_H_
