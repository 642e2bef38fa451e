#ifndef HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_H_
#define HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/enum_words.h"
#include "base/exec_context.h"

namespace hotrow {

struct RowLayout;
class StepHistory;

enum class SparseOptimizerKind {
  kSgd,                 // state: none
  kMomentum,            // state: momentum1 [D]
  kAdagrad,             // state: momentum1 [D], the sum of squares
  kRowWiseAdagrad,      // state: momentum1 [1], the sum over steps of the mean square of the row's
                        // gradient
  kAdam,                // state: momentum1 [D], momentum2 [D]
  kPartialRowWiseAdam,  // state: momentum1 [D], momentum2 [1]
  kFtrl,                // state: z [D], n [D]
  kLamb,                // state: momentum1 [D], momentum2 [D]
  kPartialRowWiseLamb,  // state: momentum1 [D], momentum2 [1]
};

// Properties of an optimizer besides its formula, which declares them
// (sparse_optimizer_formulas_impl.h).
struct SparseOptimizerFacts {
  SparseOptimizerKind kind;
  std::string_view name;  // "rowwise_adagrad"
  int32_t column_states;  // floats of state for each column: D of the first, D of the second
  bool row_state;         // one more float for the row, behind them
  int32_t accumulator;    // which of these arrays begins at initial_accumulator; -1: none
};
// All of them, in the order of SparseOptimizerKind.
std::span<const SparseOptimizerFacts> SparseOptimizers();
const SparseOptimizerFacts& FactsOf(SparseOptimizerKind kind);

// The kind of a name. The error of an unknown one lists all.
absl::StatusOr<SparseOptimizerKind> ParseSparseOptimizer(std::string_view name);
std::string_view SparseOptimizerName(SparseOptimizerKind kind);

enum class WeightDecayMode {
  kL2,         // g += weight_decay * w before the optimizer sees g
  kDecoupled,  // w -= learning_rate * weight_decay * w beside the step (Loshchilov & Hutter 2019);
               // LAMB: the direction of the step has weight_decay * w in it
  // kL2 on the whole table in each step, as frameworks have it whose gradients are dense: a row
  // that a step does not touch has the gradient weight_decay * w there, and its momentum goes on.
  // It is done when the row is next updated or read, step by step, with the bits that updating all
  // rows in each step would give, and as much arithmetic at most. CPU only.
  kTable,
};
inline constexpr EnumWord<WeightDecayMode> kWeightDecayModeWords[] = {
    {"l2", WeightDecayMode::kL2},
    {"decoupled", WeightDecayMode::kDecoupled},
    {"table", WeightDecayMode::kTable}};

struct SparseOptimizerConfig {
  SparseOptimizerKind kind = SparseOptimizerKind::kRowWiseAdagrad;
  float learning_rate = 0.01f;  // the schedule's factor is given per step, see SparseUpdateArgs
  float eps = 1e-8f;            // Adagrad, Adam, LAMB
  float beta1 = 0.9f;           // momentum, Adam, LAMB
  float beta2 = 0.999f;         // Adam, LAMB
  float weight_decay = 0;
  WeightDecayMode weight_decay_mode = WeightDecayMode::kL2;
  float initial_accumulator = 0;  // Adagrad, row-wise Adagrad; FTRL's n
  // FTRL-proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches"), with
  // TensorFlow's sign: the per-coordinate rate falls as n^lr_power, lr_power <= 0.
  float lr_power = -0.5f;
  // The first update of a row starts from its initial weights. kDecoupled weight decay is refused.
  float l1 = 0;
  float l2 = 0;  // the paper's lambda_2: adds l2 / 2 |w|^2 (TensorFlow's option is half of it)
  float ftrl_beta = 0;  // the paper's beta: the rate is learning_rate / (ftrl_beta + n^-lr_power)

  absl::Status Validate() const;  // names the field, the limit and the value it got
  friend bool operator==(const SparseOptimizerConfig&, const SparseOptimizerConfig&) = default;
};

// How many floats of state a row of `dim` columns carries.
int32_t SparseStateFloats(SparseOptimizerKind kind, int32_t dim);

// Dimensions: U rows, D columns.
//
// On a CUDA device rows, gradients, what they point to, keys and new_rows are memory that the
// device reaches; `layout` is host memory, read before the call returns.
struct SparseUpdateArgs {
  SparseOptimizerConfig config;
  const RowLayout* layout = nullptr;
  int64_t num_rows = 0;              // U
  std::byte* const* rows = nullptr;  // [U], distinct, 16-byte aligned, layout->row_bytes each
  const float* const* gradients = nullptr;  // [U], D floats each
  float learning_rate_factor = 1;           // from the learning-rate schedule
  uint32_t step = 0;  // of the table, counted from 1; Adam's bias correction uses it
  // What stochastic rounding draws from, see ops/rows/weights_precision.h; unused when
  // layout->precision is fp32.
  uint64_t seed = 0;
  uint32_t table = 0;
  const uint64_t* keys = nullptr;  // [U], of the rows
  // Null, or one number that grows by the number of rows whose last step was 0.
  int64_t* new_rows = nullptr;
  // kTable: the steps before this one; otherwise null.
  const StepHistory* history = nullptr;
  // Null, or one number where the rows are: where it is not 0, nothing changes
  // (ops/training/loss_scale.h).
  const uint32_t* skip = nullptr;

  absl::Status Validate() const;
};

// Applies one step to each row in place and writes `step` as the row's last step. Lazy: rows that
// the batch does not touch do not move, and their momentum does not decay, but for kTable. Each row
// is computed alone, so results do not depend on threads or on the order of rows. Formulas stand
// beside the code, with their sources.
//
// A CUDA device gives the CPU's bits: the same operations and order of sums, each rounded on its
// own.
// Exception: FTRL with an lr_power other than -0.5, whose powers come from another library and
// differ by a few units in the last place.
absl::Status SparseUpdate(const ExecContext& ctx, const SparseUpdateArgs& args);

// Dimensions: U rows, D columns, in host memory.
struct CatchUpArgs {
  SparseOptimizerConfig config;  // kTable
  const RowLayout* layout = nullptr;
  const StepHistory* history = nullptr;  // required
  int64_t num_rows = 0;                  // U
  std::byte* const* rows = nullptr;      // as in SparseUpdateArgs
  // What stochastic rounding draws from, as in SparseUpdateArgs.
  uint64_t seed = 0;
  uint32_t table = 0;
  const uint64_t* keys = nullptr;  // [U]
  // For rows that are kept: history->steps() becomes their last step, and those that no step has
  // updated, which have none, stay as they are. Otherwise last steps stay: for copies that are
  // read.
  bool mark = false;

  absl::Status Validate() const;
};

// Brings each row in place to where kTable has it after the last step of the history. Doing so at
// any time, any number of times, changes no bit of what follows. Unimplemented on a GPU.
absl::Status CatchUp(const ExecContext& ctx, const CatchUpArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_H_
