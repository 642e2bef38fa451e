#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "ops/fused_sparse_update.h"
#include "ops/fused_sparse_update_impl.h"
#include "ops/gradient_segment_sum_impl.h"
#include "ops/half_impl.h"
#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/row_layout.h"
#include "ops/row_sum_impl.cuh"
#include "ops/sparse_optimizer_formulas_impl.h"
#include "ops/sparse_optimizer_impl.h"
#include "ops/sparse_update_impl.cuh"
#include "ops/tile_threads_impl.cuh"

// A tile takes the rows whose first lookup, of all lookups sorted by row, lies in a window of as
// many lookups as the tile has threads: one row of many lookups, or a row a thread. Each thread
// looks up what concerns one lookup of the window (its gradient, its row), so these chains of
// dependent loads run side by side; then the whole tile walks the lookups in order. Short rows are
// read and updated several at a time; a row that reaches beyond the window is walked alone.
//
// Rows of 512 lookups and more are summed in runs (HotRowRun) by a launch before, which leaves the
// sums of runs in the workspace; here they are rows whose terms are these.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "FusedSparseUpdate";
// A tile has the threads that sums of squares are made by, so narrow rows leave some idle.
constexpr int32_t kLanesMin = kMeanSquareLanes;
constexpr int kTermsInFlight = 4;       // of one row, in registers
constexpr int kBlocksPerProcessor = 2;  // at least: bounds the registers of a thread to 128
struct TableRange {
  int64_t end;  // of its rows
  uint32_t table;
};
using TableChunk = ParameterChunk<TableRange>;

__global__ void __launch_bounds__(kThreadsPerBlock)
    PlaceFeaturesKernel(const __grid_constant__ FeatureChunk features, int64_t batch_size,
                        const int64_t* offsets, PlacedFeature* placed) {
  const auto f = static_cast<int64_t>(threadIdx.x);
  if (f >= features.size) return;
  const int64_t begin = offsets[f * batch_size];
  const int64_t lookups = offsets[(f + 1) * batch_size] - begin;
  placed[f] = {features.v[f], begin, max(lookups / batch_size, int64_t{1})};
}

// From a lookup to its gradient.
struct Lookups {
  const PlacedFeature* features;
  int32_t num_features;
  int64_t batch_size;
  const int64_t* offsets;
  const float* weights;
  const int32_t* order;
  const int32_t* inverse;

  // The row of the k-th of the sorted lookups.
  __device__ int32_t RowOf(int64_t k) const { return inverse[order[k]]; }
  // What lookup j adds to its row. Bags of equal length are found at once, others by halving.
  __device__ TileTerm Term(int32_t j) const {
    int32_t f = 0;
    for (int32_t end = num_features; end - f > 1;) {
      const int32_t middle = f + (end - f) / 2;
      if (features[middle].begin <= j) {
        f = middle;
      } else {
        end = middle;
      }
    }
    const PlacedFeature& placed = features[f];
    const int64_t* const bags = offsets + int64_t{f} * batch_size;
    uint32_t b = 0;
    if (placed.feature.pooling != Pooling::kNone) {
      // 32 bits, since lookup numbers have no more, and GPUs divide those faster.
      const auto num_bags = static_cast<uint32_t>(batch_size);
      b = static_cast<uint32_t>(j - placed.begin) / static_cast<uint32_t>(placed.hotness);
      b = min(b, num_bags - 1);
      if (j < bags[b]) {
        b = LastAtMost(bags, 0, b, j);
      } else if (j >= bags[b + 1]) {
        b = LastAtMost(bags, b + 1, num_bags, j);
      }
    }
    const GradientContribution c = DescribeLookup(placed.feature, bags, b, j, weights);
    return {reinterpret_cast<const std::byte*>(c.gradient), c.scale, 0};
  }
};

// What the launches of a group of tables share.
struct FusedRows {
  Lookups lookups;
  const int64_t* row_offsets;
  int32_t row_begin;  // rows [row_begin, row_end) of the batch
  int32_t row_end;
  int32_t num_slots;  // an upper bound of those that the group's runs have
  float* run_sums;
  int64_t run_stride;
  RowTiles tiles;
  int32_t dim;

  // Of the sorted lookups. Lookups and rows have 32 bits, which saves registers.
  __device__ int32_t LookupsBefore(int32_t u) const { return static_cast<int32_t>(row_offsets[u]); }

  struct Run {
    HotRowRun lookups;
    int32_t row;
    int32_t slot;
  };
  // The run of the i-th slot of the group, with index -1 if no row has it.
  __device__ Run RunOf(int32_t i) const {
    const auto slot = static_cast<int32_t>(LookupsBefore(row_begin) / HotRowRun::kLength + i);
    const int64_t lookup = HotRowRun::LookupOf(slot);
    if (lookup >= LookupsBefore(row_end)) return {{}, 0, slot};
    const int32_t u = lookups.RowOf(lookup);
    return {HotRowRun::Of(slot, row_offsets[u], row_offsets[u + 1]), u, slot};
  }
  __device__ float* RunSum(int32_t slot) const { return run_sums + slot * run_stride; }
};

// A tile for each block of columns of a run.
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor + 1)
    SumRunsKernel(const __grid_constant__ FusedRows args) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  const TileThreads tile(args.tiles.lanes);
  const int64_t items = int64_t{args.num_slots} * args.tiles.blocks;
  for (int64_t i = args.tiles.Tile(GridThread()); i < items; i += args.tiles.Tile(GridThreads())) {
    const auto slot = static_cast<int32_t>(args.tiles.blocks == 1 ? i : i / args.tiles.blocks);
    const FusedRows::Run run = args.RunOf(slot);
    if (run.lookups.index < 0) continue;
    const auto column =
        static_cast<int32_t>(args.tiles.Column(i - int64_t{slot} * args.tiles.blocks, tile.lane));
    const int32_t width = RowTiles::Width(args.dim, column);
    const int32_t* const order = args.lookups.order + run.lookups.begin;
    const float4 sum = SumTileTerms<kTermsInFlight>(
        tile, tile.Part(terms, 2), static_cast<int32_t>(run.lookups.end - run.lookups.begin),
        column, width, [&](int32_t k) { return args.lookups.Term(order[k]); });
    if (width > 0) StoreQuad(sum, args.RunSum(run.slot) + column, width);
  }
}

// Of a row as one thread finds it for all: where its last lookup is.
struct alignas(16) TileRow {
  std::byte* row;
  float state;
  int32_t u;
};

// What a tile shares, an array of the block cut into the parts of tiles.
struct TileMemory {
  TileTerm* terms;  // two a thread
  TileRow* rows;
  float4* columns;  // of formulas that sum over a row
};

struct FusedUpdate {
  std::byte* const* rows;
  const uint64_t* keys;  // null where nothing is rounded
  RowParts parts;
  int64_t step_offset;
  uint64_t rounding_seed;
  uint32_t step;
  bool moves;  // false: only the last step is written
  unsigned long long* new_rows;
  const uint32_t* skip;  // null, or where it is not 0 nothing is done
};

// A tile at work on rows. All threads of the tile make each call together.
template <typename Formula, WeightsPrecision kPrecision>
class TileUpdater {
 public:
  // memory: of the block.
  __device__ TileUpdater(const StepNumbers<float>& numbers, const FusedRows& batch,
                         const FusedUpdate& update, const TableChunk& tables,
                         const TileMemory& memory)
      : numbers_(numbers),
        batch_(batch),
        update_(update),
        tables_(tables),
        tile_(batch.tiles.lanes),
        memory_{tile_.Part(memory.terms, 2), tile_.Part(memory.rows), tile_.Part(memory.columns)} {}

  // Rows [begin, end) that are to be walked one by one.
  struct Slow {
    int32_t begin = 0;
    int32_t end = 0;
  };

  // The hot row whose first run has the i-th slot of the group.
  __device__ Slow HotRow(int32_t i) const {
    const FusedRows::Run run = batch_.RunOf(i);
    if (run.lookups.index != 0) return {};
    return {run.row, run.row + 1};
  }

  // Updates the rows that begin and end in [window, window + lanes) of the sorted lookups, of which
  // the group's end at `end`. Gives the others that begin there, but for hot ones.
  __device__ Slow Window(int32_t window, int32_t end) {
    const int32_t lookups = min(tile_.lanes, end - window);
    const int32_t window_end = window + lookups;
    const int32_t k = window + tile_.lane;
    int32_t j = 0;
    int32_t u = 0;
    int32_t row_begin = -1;
    int32_t row_end = 0;
    if (tile_.lane < lookups) {
      j = batch_.lookups.order[k];
      u = batch_.lookups.inverse[j];
      row_begin = batch_.LookupsBefore(u);
      row_end = batch_.LookupsBefore(u + 1);
    }
    const bool begins = row_begin >= window;
    // Formulas and sums of wide rows take several blocks of columns.
    const bool fast = begins && row_end <= window_end && batch_.tiles.blocks == 1;
    const unsigned slow = tile_.Ballot(begins && !fast && k == row_begin &&
                                       HotRowRun::Count(row_end - row_begin) == 1);
    UpdateShortRows(fast, j, u, k == row_begin, k + 1 == row_end);
    if (slow == 0) return {};
    // They are neighbours: only the last row of a window can be hot.
    const int32_t first = batch_.lookups.RowOf(window + __ffs(static_cast<int>(slow)) - 1);
    return {first, first + __popc(slow)};
  }

  // A row of any width and number of lookups, from what they have left of it in memory.
  __device__ void UpdateRow(int32_t u) {
    const int32_t begin = batch_.LookupsBefore(u);
    const int32_t lookups = batch_.LookupsBefore(u + 1) - begin;
    const auto runs = static_cast<int32_t>(HotRowRun::Count(lookups));
    std::byte* const row = update_.rows[u];
    RowStep step = {.first_update = IsNew(row)};
    float state = Formula::kRowState ? *RowStateAt(row) : 0.0f;
    const uint64_t key = kPrecision == WeightsPrecision::kFp32 ? 0 : update_.keys[u];
    const uint32_t table = kPrecision == WeightsPrecision::kFp32 ? 0 : TableOf(u);
    float4 gradients = make_float4(0, 0, 0, 0);
    float squares = 0;
    float direction_squares = 0;
    // What needs the whole row comes first, in passes of its own over the blocks of columns.
    constexpr int kMean = 0;
    constexpr int kTrust = 1;
    constexpr int kMove = 2;
    constexpr int kFirst = Formula::kRowState ? kMean : Formula::kTrustRatio ? kTrust : kMove;
#pragma unroll 1
    for (int pass = kFirst; pass <= kMove; ++pass) {
      if (pass == kTrust && !Formula::kTrustRatio) continue;
      if (pass == kTrust) squares = 0;
#pragma unroll 1
      for (int32_t block = 0; block < batch_.tiles.blocks; ++block) {
        const auto column = static_cast<int32_t>(batch_.tiles.Column(block, tile_.lane));
        const int32_t width = RowTiles::Width(batch_.dim, column);
        // Wide rows: summed anew, out of the caches, rather than kept.
        if (pass == kFirst || batch_.tiles.blocks > 1) {
          gradients = SumTileTerms<kTermsInFlight>(
              tile_, memory_.terms, runs > 1 ? runs : lookups, column, width, [&](int32_t i) {
                if (runs > 1) {
                  const float* const sum =
                      batch_.RunSum(static_cast<int32_t>(begin / HotRowRun::kLength) + i);
                  return TileTerm{reinterpret_cast<const std::byte*>(sum), 1.0f, 0};
                }
                return batch_.lookups.Term(batch_.lookups.order[begin + i]);
              });
        }
        RowQuads x = {};
        if (width > 0) x = LoadRowQuads<Formula, kPrecision>(update_.parts, row, column, width);
        if constexpr (Formula::kRowState) {
          if (pass == kMean) squares = AddSquares(squares, Seen(gradients, x.w), block);
        }
        if constexpr (Formula::kTrustRatio) {
          if (pass == kTrust) {
            squares = AddSquares(squares, x.w, block);
            direction_squares =
                AddSquares(direction_squares, Directions(step.rate, gradients, x), block);
          }
        }
        if (pass == kMove && width > 0 && update_.moves) {
          MoveAndStore(step, gradients, key, table, &x, row, column, width);
        }
      }
      if constexpr (Formula::kRowState) {
        if (pass == kMean) step.rate = RateOf(squares, &state);
      }
      if constexpr (Formula::kTrustRatio) {
        if (pass == kTrust) step.trust_rate = TrustRateOf(squares, direction_squares);
      }
    }
    // All have read the last step and the state: the sums brought them together since.
    if (tile_.lane == 0) EndRow(row, step.first_update, state);
  }

  __device__ unsigned new_rows() const { return new_rows_; }

 private:
  // How many short rows or their lookups are under way at a time: up to eight quads of a thread, if
  // the formula leaves registers for them.
  static constexpr int kRowsInFlight = Formula::kTrustRatio ? 1 : 8 / (2 + Formula::kColumnStates);

  __device__ uint32_t* LastStepAt(std::byte* row) const {
    return reinterpret_cast<uint32_t*>(row + update_.step_offset);
  }
  __device__ bool IsNew(std::byte* row) const { return *LastStepAt(row) == 0; }
  __device__ float* RowStateAt(std::byte* row) const {
    return update_.parts.StateAt(row, Formula::kColumnStates, 0);
  }
  __device__ uint32_t TableOf(int32_t u) const { return tables_.v[FindRange(tables_, u)].table; }

  // By one thread of the tile.
  __device__ void EndRow(std::byte* row, bool first_update, float state) {
    if constexpr (Formula::kRowState) *RowStateAt(row) = state;
    *LastStepAt(row) = update_.step;
    new_rows_ += first_update ? 1 : 0;
  }

  // The rows of the threads that say `fast`, each the thread of lookup j of row u, which is the
  // first or last of its row or not. Tiles are as wide as the rows.
  __device__ void UpdateShortRows(bool fast, int32_t j, int32_t u, bool is_first, bool is_last) {
    constexpr unsigned kFirst = 1;
    constexpr unsigned kLast = 2;
    constexpr unsigned kNew = 4;
    const unsigned threads = tile_.Ballot(fast);  // neighbours: slow rows begin behind all of them
    if (threads == 0) return;
    const int32_t begin = __ffs(static_cast<int>(threads)) - 1;
    const int32_t end = begin + __popc(threads);
    if (fast) {
      TileTerm term = batch_.lookups.Term(j);
      TileRow row = {nullptr, 0.0f, u};
      term.flags = (is_first ? kFirst : 0) | (is_last ? kLast : 0);
      if (is_last) {
        row.row = update_.rows[u];
        if constexpr (Formula::kRowState) row.state = *RowStateAt(row.row);
        if (IsNew(row.row)) term.flags |= kNew;
      }
      memory_.terms[tile_.lane] = term;
      memory_.rows[tile_.lane] = row;
    }
    tile_.Sync();
    const int32_t column = tile_.lane * RowTiles::kColumns;
    const int32_t width = RowTiles::Width(batch_.dim, column);
    const bool rows_whole = width == RowTiles::kColumns && update_.parts.quads_aligned;
    float4 gradients = make_float4(0, 0, 0, 0);
    for (int32_t i = begin; i < end; i += kRowsInFlight) {
      float4 x[kRowsInFlight];
      RowQuads quads[kRowsInFlight];
#pragma unroll
      for (int q = 0; q < kRowsInFlight; ++q) {
        if (i + q >= end || width == 0) continue;
        const TileTerm& term = memory_.terms[i + q];
        x[q] = LoadQuad(reinterpret_cast<const float*>(term.row) + column, width);
        if ((term.flags & kLast) == 0) continue;
        std::byte* const row = memory_.rows[i + q].row;
        quads[q] = rows_whole
                       ? LoadRowQuads<Formula, kPrecision, /*kWhole=*/true>(update_.parts, row,
                                                                            column, width)
                       : LoadRowQuads<Formula, kPrecision>(update_.parts, row, column, width);
      }
#pragma unroll
      for (int q = 0; q < kRowsInFlight; ++q) {
        if (i + q >= end) break;  // the whole tile
        const TileTerm& term = memory_.terms[i + q];
        gradients = AddTerm((term.flags & kFirst) != 0, term.scale, x[q], gradients);
        if ((term.flags & kLast) == 0) continue;
        const TileRow row = memory_.rows[i + q];
        RowStep step = {.first_update = (term.flags & kNew) != 0};
        float state = row.state;
        if constexpr (Formula::kRowState) {
          step.rate = RateOf(AddSquares(0, Seen(gradients, quads[q].w), 0), &state);
        }
        if constexpr (Formula::kTrustRatio) {
          const float squares = AddSquares(0, quads[q].w, 0);
          step.trust_rate =
              TrustRateOf(squares, AddSquares(0, Directions(step.rate, gradients, quads[q]), 0));
        }
        uint64_t key = 0;
        uint32_t table = 0;
        if constexpr (kPrecision != WeightsPrecision::kFp32) {
          key = update_.keys[row.u];
          table = TableOf(row.u);
        }
        if (width > 0 && update_.moves) {
          MoveAndStore(step, gradients, key, table, &quads[q], row.row, column, width);
        }
        if (tile_.lane == i + q) EndRow(row.row, step.first_update, state);
      }
    }
    tile_.Sync();  // before the next window's terms
  }

  __device__ void MoveAndStore(const RowStep& step, float4 gradients, uint64_t key, uint32_t table,
                               RowQuads* quads, std::byte* row, int32_t column,
                               int32_t width) const {
    MoveQuads<Formula>(numbers_, step, gradients, quads);
    StoreRowQuads<Formula, kPrecision>(update_.parts, *quads, update_.rounding_seed, key, table,
                                       row, column, width);
  }

  // The gradients that the formula sees.
  __device__ float4 Seen(float4 g, float4 w) const {
    return make_float4(numbers_.Gradient(g.x, w.x), numbers_.Gradient(g.y, w.y),
                       numbers_.Gradient(g.z, w.z), numbers_.Gradient(g.w, w.w));
  }
  // The directions of the step, with kTrustRatio.
  __device__ float4 Directions(float rate, float4 gradients, const RowQuads& x) const {
    const auto of = [&](float g, float w, float s1, float s2) {
      StepColumns<float> column = {w, s1, s2};
      return Formula::Direction(numbers_, rate, numbers_.Gradient(g, w), column);
    };
    return make_float4(
        of(gradients.x, x.w.x, x.s1.x, x.s2.x), of(gradients.y, x.w.y, x.s1.y, x.s2.y),
        of(gradients.z, x.w.z, x.s1.z, x.s2.z), of(gradients.w, x.w.w, x.s1.w, x.s2.w));
  }

  // MeanSquare and TrustRate of sparse_optimizer_cpu.cc: thread i of eight adds the squares of
  // columns i, i + 8, ... of a block to its sum. The threads' columns go by shared memory.
  __device__ float AddSquares(float sum, float4 mine, int32_t block) const {
    memory_.columns[tile_.lane] = mine;
    tile_.Sync();
    const auto* const of_block = reinterpret_cast<const float*>(memory_.columns);
    const int32_t width = batch_.tiles.lanes * RowTiles::kColumns;
    const int32_t n = min(batch_.dim - block * width, width);
#pragma unroll 4
    for (int32_t d = tile_.lane % kMeanSquareLanes; d < n; d += kMeanSquareLanes) {
      sum = sum + of_block[d] * of_block[d];
    }
    tile_.Sync();  // before they write the next
    return sum;
  }
  __device__ float RateOf(float squares, float* state) const {
    return Formula::RowRate(
        numbers_, SumOfLanes(tile_.mask, squares) / static_cast<float>(batch_.dim), state);
  }
  __device__ float TrustRateOf(float weight_squares, float direction_squares) const {
    return numbers_.learning_rate * TrustRatio(SumOfLanes(tile_.mask, weight_squares),
                                               SumOfLanes(tile_.mask, direction_squares));
  }

  const StepNumbers<float>& numbers_;
  const FusedRows& batch_;
  const FusedUpdate& update_;
  const TableChunk& tables_;
  const TileThreads tile_;
  const TileMemory memory_;
  unsigned new_rows_ = 0;  // of this thread
};

// Hot rows first, since their sums are long, then a tile for each window.
template <typename Formula, WeightsPrecision kPrecision>
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor)
    FusedUpdateKernel(const __grid_constant__ StepNumbers<float> numbers,
                      const __grid_constant__ FusedRows batch,
                      const __grid_constant__ FusedUpdate update,
                      const __grid_constant__ TableChunk tables) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  __shared__ TileRow rows[kThreadsPerBlock];
  __shared__ float4 columns[kThreadsPerBlock];
  if (update.skip != nullptr && *update.skip != 0) return;
  const int32_t lanes = batch.tiles.lanes;
  TileUpdater<Formula, kPrecision> updater(numbers, batch, update, tables, {terms, rows, columns});
  const int32_t first = batch.LookupsBefore(batch.row_begin);
  const int32_t end = batch.LookupsBefore(batch.row_end);
  const auto items =
      batch.num_slots + static_cast<int32_t>(batch.tiles.Tile(end - first + lanes - 1));
  for (auto i = static_cast<int32_t>(batch.tiles.Tile(GridThread())); i < items;
       i += static_cast<int32_t>(batch.tiles.Tile(GridThreads()))) {
    const auto slow = i < batch.num_slots
                          ? updater.HotRow(i)
                          : updater.Window(first + (i - batch.num_slots) * lanes, end);
    for (int32_t u = slow.begin; u < slow.end; ++u) updater.UpdateRow(u);
  }
  if (update.new_rows != nullptr) AddOfBlock(updater.new_rows(), update.new_rows);
}

}  // namespace

absl::Status FusedSparseUpdateCuda(const FusedSparseUpdateArgs& args, CudaStream stream) {
  int32_t dim_max = 0;
  for (const FusedTable& table : args.tables) dim_max = std::max(dim_max, table.layout->dim);
  const auto workspace = FusedWorkspace::For(std::ssize(args.features), args.num_lookups, dim_max);
  auto* const placed = reinterpret_cast<PlacedFeature*>(args.workspace);
  HOTROW_RETURN_IF_ERROR(ForEachChunk<FeatureChunk>(
      args.features, [&](const FeatureChunk& chunk, int64_t first) -> absl::Status {
        static_assert(FeatureChunk::kCapacity <= kThreadsPerBlock);
        PlaceFeaturesKernel<<<1, kThreadsPerBlock, 0, stream>>>(
            chunk, args.batch_size, args.offsets + first * args.batch_size, placed + first);
        return LastLaunch(kOp);
      }));
  const auto launch = [&](const FusedTables& group, auto formula, auto precision) -> absl::Status {
    using Formula = decltype(formula);
    constexpr WeightsPrecision kPrecision = precision();
    const FusedTable& table = group.tables.front();
    const RowLayout& layout = *table.layout;
    const auto numbers = StepNumbers<float>::Of(table.config, args.learning_rate_factor, args.step);
    const RowTiles tiles = RowTiles::For(layout.dim, kLanesMin);
    // The runs of the group's hot rows lie in these slots, though not one behind the other.
    const int64_t slots = HotRowRun::Slots(group.num_lookups);
    const FusedRows batch = {
        .lookups = {.features = placed,
                    .num_features = static_cast<int32_t>(args.features.size()),
                    .batch_size = args.batch_size,
                    .offsets = args.offsets,
                    .weights = args.weights,
                    .order = args.lookup_order,
                    .inverse = args.inverse},
        .row_offsets = args.row_offsets,
        .row_begin = static_cast<int32_t>(group.row_begin()),
        .row_end = static_cast<int32_t>(group.row_end()),
        .num_slots = slots == 0 ? 0 : static_cast<int32_t>(slots) + 1,
        .run_sums = reinterpret_cast<float*>(args.workspace + workspace.sums_offset),
        .run_stride = workspace.sums_stride,
        .tiles = tiles,
        .dim = layout.dim};
    const FusedUpdate update = {
        .rows = args.rows,
        .keys = args.keys,
        .parts = RowParts::Of(layout, Formula::kColumnStates),
        .step_offset = layout.step_offset,
        .rounding_seed = kPrecision == WeightsPrecision::kFp32
                             ? 0
                             : RoundingSeed(args.seed, RoundingUse::kWeights, args.step, 0),
        .step = args.step,
        .moves = !Formula::kDividesByRate || numbers.learning_rate != 0,
        .new_rows = reinterpret_cast<unsigned long long*>(args.new_rows),
        .skip = args.skip};
    TableChunk tables = {};
    for (const FusedTable& of_group : group.tables) {
      tables.v[tables.size++] = {of_group.row_end, of_group.table};
    }
    const int64_t tiles_per_block = kThreadsPerBlock / tiles.lanes;
    if (batch.num_slots > 0) {
      SumRunsKernel<<<GridBlocks(int64_t{batch.num_slots} * tiles.blocks, tiles_per_block),
                      kThreadsPerBlock, 0, stream>>>(batch);
      HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
    }
    const int64_t items = batch.num_slots + CeilDiv(group.num_lookups, tiles.lanes);
    FusedUpdateKernel<Formula, kPrecision>
        <<<std::min(GridBlocks(items, tiles_per_block), kUpdateBlocksMax), kThreadsPerBlock, 0,
           stream>>>(numbers, batch, update, tables);
    return LastLaunch(kOp);
  };
  for (const FusedTables& group :
       GroupTables(args.tables, args.num_lookups, TableChunk::kCapacity)) {
    HOTROW_RETURN_IF_ERROR(WithFormula(group.tables.front().config, [&](auto formula) {
      return WithPrecision(group.tables.front().layout->precision,
                           [&](auto precision) { return launch(group, formula, precision); });
    }));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
