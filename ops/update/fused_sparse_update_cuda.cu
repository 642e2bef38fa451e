#include <algorithm>
#include <vector>

#include "base/cuda_status.h"
#include "base/hopper.cuh"
#include "base/status_macros.h"
#include "ops/half_impl.h"
#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/rows/row_layout.h"
#include "ops/rows/row_sum_impl.cuh"
#include "ops/rows/tile_threads_impl.cuh"
#include "ops/update/fused_sparse_update.h"
#include "ops/update/fused_sparse_update_impl.h"
#include "ops/update/gradient_segment_sum_impl.h"
#include "ops/update/sparse_optimizer_formulas_impl.h"
#include "ops/update/sparse_optimizer_impl.h"
#include "ops/update/sparse_update_impl.cuh"

// A tile takes a few rows that lie far apart in the batch, and walks their lookups as one stream:
// each thread looks up what concerns one lookup (its gradient) or one row (address, state), so
// these chains of dependent loads run side by side; then the quads of gradients and rows come by a
// ring in shared memory (StreamTerms), of any rows, and a row moves when its last
// lookup is added. Rows of many lookups begin first, a tile each.
//
// Rows of 512 lookups and more are summed in runs (HotRowRun) by a launch before, which leaves the
// sums of runs in the workspace; here they are rows whose terms are these.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "FusedSparseUpdate";
// A tile has the threads that sums of squares are made by, so narrow rows leave some idle.
constexpr int32_t kLanesMin = kMeanSquareLanes;
// A row of so many lookups gets its own tile, and these begin first.
constexpr int32_t kLongRow = 32;
// How many rows a thread asks whether they are long.
constexpr int32_t kChecks = 4;
// Quads of a thread that shared memory has places for. With kBlocksPerProcessor, which bounds the
// registers of a thread, that is what is under way: 24 warps of 6 KiB, 2 of 3 quads in use.
constexpr int kRingQuads = 12;
constexpr int kBlocksPerProcessor = 3;  // one fewer with kTrustRatio, which takes more registers
// The same for sums of runs, whose terms are all that is under way.
constexpr int kRunStages = 8;
constexpr int kRunBlocksPerProcessor = 4;
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
      b = LastAtMostNear(bags, 0, num_bags, min(b, num_bags - 1), j);
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
  int32_t num_checks;  // items of tiles that look for long rows, kChecks a thread
  int32_t num_groups;  // items of RowGroup::kRows rows
  int32_t num_slots;   // an upper bound of those that the group's runs have
  float* run_sums;
  int64_t run_stride;
  RowTiles tiles;
  RowTiles run_tiles;  // whole warps, which find more terms at a time
  int32_t dim;

  // How many sorted lookups come before row u. Lookups and rows have 32 bits, which saves
  // registers.
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

// A tile for each block of columns of a run. Slots that lie side by side, as those of the hottest
// rows do, go to different blocks.
__global__ void __launch_bounds__(kThreadsPerBlock, kRunBlocksPerProcessor)
    SumRunsKernel(const __grid_constant__ FusedRows args) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  const RowTiles& tiles = args.run_tiles;
  const TileThreads tile(tiles.lanes);
  const QuadRing ring = QuadRing::OfBlock(gpu::DynamicShared());
  const int64_t items = int64_t{args.num_slots} * tiles.blocks;
  const int64_t first = tiles.Tile(threadIdx.x) * gridDim.x + blockIdx.x;
  for (int64_t i = first; i < items; i += tiles.Tile(GridThreads())) {
    const auto slot = static_cast<int32_t>(tiles.blocks == 1 ? i : i / tiles.blocks);
    const FusedRows::Run run = args.RunOf(slot);
    if (run.lookups.index < 0) continue;
    const auto column =
        static_cast<int32_t>(tiles.Column(i - int64_t{slot} * tiles.blocks, tile.lane));
    const int32_t width = RowTiles::Width(args.dim, column);
    const auto n = static_cast<int32_t>(run.lookups.end - run.lookups.begin);
    IndexAhead order(tile, args.lookups.order + run.lookups.begin, n);
    const float4 sum =
        SumTileTerms<kRunStages>(tile, tile.Part(terms, 2), ring, n, column, width,
                                 [&](int32_t k) { return args.lookups.Term(order(k)); });
    if (width > 0) StoreQuad(sum, args.RunSum(run.slot) + column, width);
  }
}

// A row as one thread finds it for all.
struct alignas(16) TileRow {
  std::byte* row;
  uint64_t key;    // where it is rounded
  uint32_t table;  // the same
  float state;
  bool is_new;
};

// What a tile shares, an array of the block cut into the parts of tiles, and the ring.
struct TileMemory {
  TileTerm* terms;  // two a thread
  TileRow* rows;
  RowGroup::Span* spans;
  QuadRing ring;
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
        memory_{tile_.Part(memory.terms, 2), tile_.Part(memory.rows), tile_.Part(memory.spans),
                memory.ring},
        group_(memory_.spans),
        column_(tile_.lane * RowTiles::kColumns),
        width_(RowTiles::Width(batch.dim, column_)) {}

  // Rows that are to be walked one by one: bit i is for row first + i * stride.
  struct Slow {
    unsigned rows;
    int32_t first;
    int32_t stride;
  };

  // The long rows among `first`, first + stride, ..., one a thread.
  __device__ Slow LongRows(int32_t first, int32_t stride) const {
    const int32_t u = first + tile_.lane * stride;
    const bool is_long = u < batch_.row_end && LookupsOf(u) >= kLongRow;
    return {tile_.Ballot(is_long), first, stride};
  }

  // Updates those of rows `first`, first + stride, ..., RowGroup::kRows of them, that are not long.
  // Gives them back where they are wider than the tile.
  __device__ Slow Group(int32_t first, int32_t stride) {
    const int32_t u = first + tile_.lane * stride;
    int32_t begin = 0;
    int32_t lookups = 0;
    TileRow row = {};
    if (tile_.lane < RowGroup::kRows && u < batch_.row_end) {
      begin = batch_.LookupsBefore(u);
      lookups = batch_.LookupsBefore(u + 1) - begin;
      row.row = update_.rows[u];
      if (lookups >= kLongRow) lookups = 0;
    }
    if (batch_.tiles.blocks > 1) return {tile_.Ballot(lookups > 0), first, stride};
    group_.Place(tile_, begin, lookups);
    tile_.Sync();
    const int32_t n = group_.Count();
    // Asked for before the lookups' own chains of loads, and waited for behind them.
    if (lookups > 0) {
      if constexpr (Formula::kRowState) row.state = *RowStateAt(row.row);
      row.is_new = IsNew(row.row);
      if constexpr (kPrecision != WeightsPrecision::kFp32) {
        row.key = update_.keys[u];
        row.table = TableOf(u);
      }
    }
    if (tile_.lane < n) memory_.terms[tile_.lane] = Find(tile_.lane);
    if (lookups > 0) memory_.rows[tile_.lane] = row;
    tile_.Sync();
    gradients_ = make_float4(0, 0, 0, 0);
    StreamTerms<kStages>(tile_, memory_.terms, n, *this);
    tile_.Sync();  // before the next group's
    return {};
  }

  // What StreamTerms asks of the group's lookups.
  __device__ TileTerm Find(int32_t i) const {
    const RowGroup::Term at = group_.At(i);
    TileTerm term = batch_.lookups.Term(batch_.lookups.order[at.lookup]);
    term.flags = (at.is_first ? kFirst : 0) | (at.is_last ? kLast : 0) |
                 static_cast<unsigned>(at.row) * kRowOne;
    return term;
  }
  __device__ void Ask(int32_t stage, const TileTerm& term) const {
    float4* const place = Place(stage);
    AskQuad(GradientAt(term), width_, place);
    if ((term.flags & kLast) == 0 || !RowsWhole()) return;
    std::byte* const row = memory_.rows[term.flags / kRowOne].row;
    AskQuad<kPrecision>(row + column_ * static_cast<int32_t>(WeightBytes(kPrecision)), width_,
                        place + kThreadsPerBlock);
    const auto ask_state = [&](int32_t state) {
      AskQuad(reinterpret_cast<std::byte*>(update_.parts.StateAt(row, state, column_)), width_,
              place + (2 + state) * kThreadsPerBlock);
    };
    if constexpr (Formula::kColumnStates > 0) ask_state(0);
    if constexpr (Formula::kColumnStates > 1) ask_state(1);
  }
  __device__ void Take(int32_t stage, int32_t, const TileTerm& term) {
    float4* const place = Place(stage);
    if (width_ > 0) {
      gradients_ = AddTerm((term.flags & kFirst) != 0, term.scale,
                           TakeQuad(GradientAt(term), width_, place), gradients_);
    }
    if ((term.flags & kLast) == 0) return;
    const auto r = static_cast<int32_t>(term.flags / kRowOne);
    const TileRow row = memory_.rows[r];
    RowQuads quads = {};
    if (RowsWhole()) {
      quads.w =
          TakeQuad<kPrecision>(row.row + column_ * static_cast<int32_t>(WeightBytes(kPrecision)),
                               width_, place + kThreadsPerBlock);
      if constexpr (Formula::kColumnStates > 0) quads.s1 = place[2 * kThreadsPerBlock];
      if constexpr (Formula::kColumnStates > 1) quads.s2 = place[3 * kThreadsPerBlock];
    } else if (width_ > 0) {
      quads = LoadRowQuads<Formula, kPrecision>(update_.parts, row.row, column_, width_);
    }
    RowStep step = {.first_update = row.is_new};
    float state = row.state;
    if constexpr (Formula::kRowState) {
      step.rate = RateOf(AddSquares(0, Seen(gradients_, quads.w), 0, place), &state);
    }
    if constexpr (Formula::kTrustRatio) {
      const float squares = AddSquares(0, quads.w, 0, place);
      step.trust_rate =
          TrustRateOf(squares, AddSquares(0, Directions(step.rate, gradients_, quads), 0, place));
    }
    if (width_ > 0 && update_.moves) {
      MoveAndStore(step, gradients_, row.key, row.table, &quads, row.row, column_, width_);
    }
    if (tile_.lane == r) EndRow(row.row, step.first_update, state);
  }

  // A row of any width and number of lookups, from what they have left of it in memory.
  __device__ void UpdateRow(int32_t u) {
    const int32_t begin = batch_.LookupsBefore(u);
    const int32_t lookups = batch_.LookupsBefore(u + 1) - begin;
    const auto runs = static_cast<int32_t>(HotRowRun::Count(lookups));
    std::byte* const row = update_.rows[u];
    RowStep step = {.first_update = IsNew(row)};
    float state = Formula::kRowState ? *RowStateAt(row) : 0.0f;
    float4 gradients = make_float4(0, 0, 0, 0);
    float squares = 0;
    float direction_squares = 0;
    // What needs the whole row comes first, in its own passes over the blocks of columns.
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
        // Wide rows: summed again, out of the caches, rather than kept.
        if (pass == kFirst || batch_.tiles.blocks > 1) {
          gradients = SumTileTerms<kSumStages>(
              tile_, memory_.terms, memory_.ring, runs > 1 ? runs : lookups, column, width,
              [&](int32_t i) {
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
          if (pass == kMean)
            squares = AddSquares(squares, Seen(gradients, x.w), block, memory_.ring.At(0));
        }
        if constexpr (Formula::kTrustRatio) {
          if (pass == kTrust) {
            squares = AddSquares(squares, x.w, block, memory_.ring.At(0));
            direction_squares = AddSquares(direction_squares, Directions(step.rate, gradients, x),
                                           block, memory_.ring.At(0));
          }
        }
        if (pass == kMove && width > 0 && update_.moves) {
          constexpr bool kRounds = kPrecision != WeightsPrecision::kFp32;
          MoveAndStore(step, gradients, kRounds ? update_.keys[u] : 0, kRounds ? TableOf(u) : 0, &x,
                       row, column, width);
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
  static constexpr unsigned kFirst = 1;
  static constexpr unsigned kLast = 2;
  static constexpr unsigned kRowOne = 4;  // times the row's number in the group
  // Quads of a stage of the ring: a gradient, weights and states each.
  static constexpr int kStageQuads = 2 + Formula::kColumnStates;
  static constexpr int kStages = kRingQuads / kStageQuads;
  static constexpr int kSumStages = std::min(kRingQuads, 8);

  __device__ float4* Place(int32_t stage) const { return memory_.ring.At(stage * kStageQuads); }
  __device__ const std::byte* GradientAt(const TileTerm& term) const {
    return term.row + column_ * static_cast<int32_t>(sizeof(float));
  }
  __device__ bool RowsWhole() const {
    return width_ == RowTiles::kColumns && update_.parts.quads_aligned;
  }
  __device__ int32_t LookupsOf(int32_t u) const {
    return batch_.LookupsBefore(u + 1) - batch_.LookupsBefore(u);
  }
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
  // columns i, i + 8, ... of a block to its sum. The threads' columns go by a place of the ring
  // that they have read.
  __device__ float AddSquares(float sum, float4 mine, int32_t block, float4* place) const {
    *place = make_float4(mine.x * mine.x, mine.y * mine.y, mine.z * mine.z, mine.w * mine.w);
    tile_.Sync();
    const auto* const of_block = reinterpret_cast<const float*>(place - tile_.lane);
    const int32_t width = batch_.tiles.lanes * RowTiles::kColumns;
    const int32_t n = min(batch_.dim - block * width, width);
#pragma unroll 4
    for (int32_t d = tile_.lane % kMeanSquareLanes; d < n; d += kMeanSquareLanes) {
      sum = sum + of_block[d];
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
  RowGroup group_;
  const int32_t column_;  // of rows that are as wide as the tile or narrower
  const int32_t width_;
  float4 gradients_ = {0, 0, 0, 0};  // of the row whose lookups are being added
  unsigned new_rows_ = 0;            // of this thread
};

// Long rows first, then the groups of others. Rows of an item lie as far apart as there are items,
// since those of many lookups often are neighbours: the first of a table that a batch names.
template <typename Formula, WeightsPrecision kPrecision>
__global__ void __launch_bounds__(kThreadsPerBlock,
                                  kBlocksPerProcessor - (Formula::kTrustRatio ? 1 : 0))
    FusedUpdateKernel(const __grid_constant__ StepNumbers<float> numbers,
                      const __grid_constant__ FusedRows batch,
                      const __grid_constant__ FusedUpdate update,
                      const __grid_constant__ TableChunk tables) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  __shared__ TileRow rows[kThreadsPerBlock];
  __shared__ RowGroup::Span spans[kThreadsPerBlock];
  if (update.skip != nullptr && *update.skip != 0) return;
  TileUpdater<Formula, kPrecision> updater(
      numbers, batch, update, tables,
      {terms, rows, spans, QuadRing::OfBlock(gpu::DynamicShared())});
  const int32_t items = batch.num_checks + batch.num_groups;
  for (auto i = static_cast<int32_t>(batch.tiles.Tile(GridThread())); i < items;
       i += static_cast<int32_t>(batch.tiles.Tile(GridThreads()))) {
    const bool checks = i < batch.num_checks;
#pragma unroll 1
    for (int32_t check = 0; check < (checks ? kChecks : 1); ++check) {
      const auto slow =
          checks
              ? updater.LongRows(batch.row_begin + i + check * batch.tiles.lanes * batch.num_checks,
                                 batch.num_checks)
              : updater.Group(batch.row_begin + i - batch.num_checks, batch.num_groups);
#pragma unroll 1
      for (unsigned left = slow.rows; left != 0; left &= left - 1) {
        updater.UpdateRow(slow.first + (__ffs(static_cast<int>(left)) - 1) * slow.stride);
      }
    }
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
    const int64_t rows = group.row_end() - group.row_begin();
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
        .num_checks = static_cast<int32_t>(CeilDiv(rows, int64_t{kChecks} * tiles.lanes)),
        .num_groups = static_cast<int32_t>(CeilDiv(rows, int64_t{RowGroup::kRows})),
        .num_slots = slots == 0 ? 0 : static_cast<int32_t>(slots) + 1,
        .run_sums = reinterpret_cast<float*>(args.workspace + workspace.sums_offset),
        .run_stride = workspace.sums_stride,
        .tiles = tiles,
        .run_tiles = RowTiles::For(layout.dim, RowTiles::kLanesMax),
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
    if (batch.num_slots > 0) {
      const RowTiles& run_tiles = batch.run_tiles;
      SumRunsKernel<<<GridBlocks(int64_t{batch.num_slots} * run_tiles.blocks,
                                 kThreadsPerBlock / run_tiles.lanes),
                      kThreadsPerBlock, QuadRing::Bytes(kRunStages), stream>>>(batch);
      HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
    }
    const auto kernel = &FusedUpdateKernel<Formula, kPrecision>;
    constexpr int32_t kRingBytes = QuadRing::Bytes(kRingQuads);
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes));
    kernel<<<std::min(GridBlocks(int64_t{batch.num_checks} + batch.num_groups,
                                 kThreadsPerBlock / tiles.lanes),
                      kUpdateBlocksMax),
             kThreadsPerBlock, kRingBytes, stream>>>(numbers, batch, update, tables);
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
