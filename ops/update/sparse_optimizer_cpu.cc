#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "ops/half_impl.h"
#include "ops/half_vec8_impl.h"
#include "ops/prefetch.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"
#include "ops/update/sparse_optimizer_formulas_impl.h"
#include "ops/update/sparse_optimizer_impl.h"
#include "ops/update/step_history_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {

template <>
struct LaneMath<Vec8> {
  static Vec8 Set(float x) { return Vec8::Set(x); }
  static Vec8 Sqrt(Vec8 a) { return Vec8::Sqrt(a); }
  static Vec8 Pow(Vec8 a, Vec8 p) {
    float lanes[8];
    float powers[8];
    a.Store(lanes);
    p.Store(powers);
    for (int i = 0; i < 8; ++i) lanes[i] = std::pow(lanes[i], powers[i]);
    return Vec8::Load(lanes);
  }
  static Vec8 Relu(Vec8 a) { return Vec8::Relu(a); }
  static Vec8 ReluGrad(Vec8 y, Vec8 a) { return Vec8::ReluGrad(y, a); }
};

namespace {

// In an order that the kernels follow.
float SumOfLanes(Vec8 sums) {
  float lanes[8];
  sums.Store(lanes);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Mean over the columns of g^2. Lane i adds columns i, i + 8, ..., then the lanes are added in
// order: an order that depends on D only, and which the kernels follow.
template <WeightsPrecision kPrecision>
float MeanSquare(const StepNumbers<Vec8>& numbers, const std::byte* weights, const float* gradient,
                 int32_t dim) {
  Vec8 sums = Vec8::Zero();
  ForEachVec8(dim, [&](int64_t d, auto lanes) {
    const Vec8 g = numbers.Gradient(LoadLanes(gradient + d, lanes),
                                    LoadWeights<kPrecision>(weights, d, lanes));
    sums = sums + g * g;
  });
  return SumOfLanes(sums) / static_cast<float>(dim);
}

// Some columns of a row, with what state they have.
template <typename Formula, WeightsPrecision kPrecision, typename Lanes>
StepColumns<Vec8> LoadColumns(const std::byte* row, const float* state, int32_t dim, int64_t d,
                              Lanes lanes) {
  StepColumns<Vec8> x = {.w = LoadWeights<kPrecision>(row, d, lanes), .s1 = {}, .s2 = {}};
  if constexpr (Formula::kColumnStates > 0) x.s1 = LoadLanes(state + d, lanes);
  if constexpr (Formula::kColumnStates > 1) x.s2 = LoadLanes(state + dim + d, lanes);
  return x;
}

// The learning rate times the row's trust ratio. Changes nothing: the columns move afterwards, by
// the same directions.
template <typename Formula, WeightsPrecision kPrecision>
float TrustRate(const StepNumbers<float>& step, const StepNumbers<Vec8>& numbers, Vec8 rate,
                const std::byte* row, const float* state, const float* gradient, int32_t dim) {
  Vec8 weight_squares = Vec8::Zero();
  Vec8 direction_squares = Vec8::Zero();
  ForEachVec8(dim, [&](int64_t d, auto lanes) {
    StepColumns<Vec8> x = LoadColumns<Formula, kPrecision>(row, state, dim, d, lanes);
    const Vec8 g = numbers.Gradient(LoadLanes(gradient + d, lanes), x.w);
    const Vec8 direction = Formula::Direction(numbers, rate, g, x);
    weight_squares = weight_squares + x.w * x.w;
    direction_squares = direction_squares + direction * direction;
  });
  return step.learning_rate * TrustRatio(SumOfLanes(weight_squares), SumOfLanes(direction_squares));
}

// `random` gives the words of the row's columns; nothing is rounded to fp32.
template <typename Formula, WeightsPrecision kPrecision>
void UpdateRow(const StepNumbers<float>& step, const StepNumbers<Vec8>& numbers,
               const RowLayout& layout, FastestHalves::Random& random, const float* gradient,
               bool first_update, std::byte* row) {
  const int32_t dim = layout.dim;
  auto* const state1 = reinterpret_cast<float*>(row + layout.state_offset);
  float* const state2 = state1 + dim;
  Vec8 rate = Vec8::Zero();
  if constexpr (Formula::kRowState) {
    rate = Vec8::Set(Formula::RowRate(step, MeanSquare<kPrecision>(numbers, row, gradient, dim),
                                      state1 + Formula::kColumnStates * int64_t{dim}));
  }
  Vec8 trust_rate = Vec8::Zero();
  if constexpr (Formula::kTrustRatio) {
    trust_rate =
        Vec8::Set(TrustRate<Formula, kPrecision>(step, numbers, rate, row, state1, gradient, dim));
  }
  ForEachVec8(dim, [&](int64_t d, auto lanes) {
    StepColumns<Vec8> x = LoadColumns<Formula, kPrecision>(row, state1, dim, d, lanes);
    const Vec8 g = numbers.Gradient(LoadLanes(gradient + d, lanes), x.w);
    if constexpr (Formula::kTrustRatio) {
      x.w = x.w - trust_rate * Formula::Direction(numbers, rate, g, x);
    } else {
      Formula::Apply(numbers, rate, first_update, g, x);
    }
    if constexpr (Formula::kColumnStates > 0) StoreLanes(x.s1, state1 + d, lanes);
    if constexpr (Formula::kColumnStates > 1) StoreLanes(x.s2, state2 + d, lanes);
    if constexpr (kPrecision == WeightsPrecision::kFp32) {
      StoreLanes(x.w, reinterpret_cast<float*>(row) + d, lanes);
    } else {
      FastestHalves::Narrow<kPrecision, /*kStochastic=*/true>(x.w, random.Next(), row + 2 * d,
                                                              lanes);
    }
  });
}

// --- Steps that a row has missed (WeightDecayMode::kTable): each is an update with a gradient of
// zeros, to which NumbersOf has the decay added.

bool SameBits(const StepColumns<Vec8>& a, const StepColumns<Vec8>& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Columns of formulas that need nothing of the rest of the row stay in registers.
template <typename Formula>
void CatchUpColumns(const MissedSteps& missed, bool first_update, StepColumns<Vec8>* columns) {
  // How often is looked whether a step has changed nothing, so that more of its kind need not be
  // made: columns of zeros, or a decay below half a unit in the last place.
  constexpr uint32_t kLookEvery = 64;
  StepColumns<Vec8> x = *columns;
  uint32_t step = missed.after;
  for (const StepRun& run : missed.runs) {
    const uint32_t steps = run.last_step - step;
    step = run.last_step;
    if (Formula::kDividesByRate && run.numbers.learning_rate == 0) {
      first_update = false;
      continue;
    }
    const auto numbers = StepNumbers<Vec8>::From(run.numbers);
    for (uint32_t i = 0; i < steps; ++i) {
      const bool look = i % kLookEvery == kLookEvery - 1;
      const StepColumns<Vec8> before = x;
      Formula::Apply(numbers, Vec8::Zero(), first_update, numbers.Gradient(Vec8::Zero(), x.w), x);
      first_update = false;
      if (look && SameBits(before, x)) break;
    }
  }
  *columns = x;
}

// What CatchUpRow needs beside the row.
struct CatchUpOf {
  const RowLayout& layout;
  const StepHistory& history;
  uint64_t seed;
  uint32_t table;
  std::vector<float> zeros;  // [D]
};

// False: the row has missed nothing. Its last step stays as it is.
template <typename Formula, WeightsPrecision kPrecision>
bool CatchUpRow(const CatchUpOf& of, uint32_t last_step, uint64_t key, std::byte* row) {
  const MissedSteps missed = MissedSteps::Of(of.history, last_step);
  if (missed.runs.empty()) return false;
  bool first_update = last_step == 0;
  const int32_t dim = of.layout.dim;
  if constexpr (kPrecision == WeightsPrecision::kFp32 && !Formula::kRowState &&
                !Formula::kTrustRatio) {
    auto* const state = reinterpret_cast<float*>(row + of.layout.state_offset);
    ForEachVec8(dim, [&](int64_t d, auto lanes) {
      StepColumns<Vec8> x = LoadColumns<Formula, kPrecision>(row, state, dim, d, lanes);
      if constexpr (Formula::kColumnStates < 1) x.s1 = Vec8::Zero();
      if constexpr (Formula::kColumnStates < 2) x.s2 = Vec8::Zero();
      CatchUpColumns<Formula>(missed, first_update, &x);
      StoreLanes(x.w, reinterpret_cast<float*>(row) + d, lanes);
      if constexpr (Formula::kColumnStates > 0) StoreLanes(x.s1, state + d, lanes);
      if constexpr (Formula::kColumnStates > 1) StoreLanes(x.s2, state + dim + d, lanes);
    });
  } else {
    uint32_t step = missed.after;
    for (const StepRun& run : missed.runs) {
      const auto numbers = StepNumbers<Vec8>::From(run.numbers);
      const bool moves = !Formula::kDividesByRate || run.numbers.learning_rate != 0;
      while (step < run.last_step) {
        ++step;
        if (moves) {
          FastestHalves::Random random(RoundingSeed(of.seed, RoundingUse::kWeights, step, 0), key,
                                       of.table);
          UpdateRow<Formula, kPrecision>(run.numbers, numbers, of.layout, random, of.zeros.data(),
                                         first_update, row);
        }
        first_update = false;
      }
    }
  }
  return true;
}

template <typename Formula, WeightsPrecision kPrecision>
absl::Status CatchUpRows(const ExecContext& ctx, const CatchUpArgs& args) {
  // Rows may have missed many steps, and neighbours few.
  constexpr int64_t kRowsPerBlock = 16;
  const RowLayout& layout = *args.layout;
  const CatchUpOf of = {.layout = layout,
                        .history = *args.history,
                        .seed = args.seed,
                        .table = args.table,
                        .zeros = std::vector<float>(static_cast<size_t>(layout.dim))};
  const uint32_t now = args.history->steps();
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      std::byte* const row = args.rows[u];
      uint32_t last_step;
      std::memcpy(&last_step, row + layout.step_offset, sizeof(last_step));
      if (args.mark && last_step == 0) continue;
      const uint64_t key = kPrecision == WeightsPrecision::kFp32 ? 0 : args.keys[u];
      CatchUpRow<Formula, kPrecision>(of, last_step, key, row);
      if (args.mark) std::memcpy(row + layout.step_offset, &now, sizeof(now));
    }
  });
  return absl::OkStatus();
}

template <typename Formula, WeightsPrecision kPrecision>
absl::Status UpdateRows(const ExecContext& ctx, const SparseUpdateArgs& args,
                        const StepNumbers<float>& step) {
  constexpr int64_t kRowsPerBlock = 128;
  const RowLayout& layout = *args.layout;
  const uint64_t seed = kPrecision == WeightsPrecision::kFp32 ? 0 : UpdateSeed(args);
  const bool moves = !Formula::kDividesByRate || step.learning_rate != 0;
  // Rows lie scattered. Gradients usually lie side by side, where asking for them here got in the
  // way of the hardware's prefetcher and doubled the time of an update (measured).
  const auto prefetch = [&](int64_t u) { PrefetchForWrite(args.rows[u], layout.row_bytes); };
  std::optional<CatchUpOf> catch_up;
  if (args.history != nullptr) {
    catch_up.emplace(CatchUpOf{.layout = layout,
                               .history = *args.history,
                               .seed = args.seed,
                               .table = args.table,
                               .zeros = std::vector<float>(static_cast<size_t>(layout.dim))});
  }
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    const auto numbers = StepNumbers<Vec8>::From(step);
    int64_t new_rows = 0;
    for (int64_t u = begin; u < std::min(begin + kPrefetchRowsAhead, end); ++u) prefetch(u);
    for (int64_t u = begin; u < end; ++u) {
      if (u + kPrefetchRowsAhead < end) prefetch(u + kPrefetchRowsAhead);
      std::byte* const row = args.rows[u];
      HOTROW_DCHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0);
      uint32_t last_step;
      std::memcpy(&last_step, row + layout.step_offset, sizeof(last_step));
      bool first_update = last_step == 0;
      new_rows += first_update ? 1 : 0;
      const uint64_t key = kPrecision == WeightsPrecision::kFp32 ? 0 : args.keys[u];
      if (catch_up.has_value() && CatchUpRow<Formula, kPrecision>(*catch_up, last_step, key, row)) {
        first_update = false;
      }
      if (moves) {
        FastestHalves::Random random(seed, key, args.table);
        UpdateRow<Formula, kPrecision>(step, numbers, layout, random, args.gradients[u],
                                       first_update, row);
      }
      std::memcpy(row + layout.step_offset, &args.step, sizeof(args.step));
    }
    if (args.new_rows != nullptr && new_rows > 0) {
      std::atomic_ref<int64_t>(*args.new_rows).fetch_add(new_rows, std::memory_order_relaxed);
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status SparseUpdateCpu(const ExecContext& ctx, const SparseUpdateArgs& args) {
  if (args.skip != nullptr && *args.skip != 0) return absl::OkStatus();
  return WithFormula(args.config, [&](auto formula) {
    return WithPrecision(args.layout->precision, [&](auto precision) {
      return UpdateRows<decltype(formula), precision()>(ctx, args, NumbersOf(args));
    });
  });
}

absl::Status CatchUpCpu(const ExecContext& ctx, const CatchUpArgs& args) {
  return WithFormula(args.config, [&](auto formula) {
    return WithPrecision(args.layout->precision, [&](auto precision) {
      return CatchUpRows<decltype(formula), precision()>(ctx, args);
    });
  });
}

}  // namespace hotrow::internal
