#ifndef HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_CONFIG_H_
#define HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_CONFIG_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/enum_words.h"

namespace hotrow {

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
  float learning_rate = 0.01f;  // the schedule's factor is given per step
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

// Steps in a row that had one factor of the learning rate: those behind the run before, up to
// last_step.
struct LearningRateRun {
  uint32_t last_step = 0;
  float factor = 1;
  friend bool operator==(const LearningRateRun&, const LearningRateRun&) = default;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_CONFIG_H_
