#ifndef HOTROW_EMBEDDING_RANKS_GRADIENT_RESIDUALS_H_
#define HOTROW_EMBEDDING_RANKS_GRADIENT_RESIDUALS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "ops/row_codec.h"

namespace hotrow::internal {

// What was looked for since Create.
struct ResidualCounts {
  int64_t keys = 0;
  int64_t hits = 0;      // had their residual from a step before
  int64_t replaced = 0;  // residuals that were lost to make room
  int64_t refused = 0;   // keys without room in their step
};

// What a rank's gradients have lost so far on their way to other ranks (EncodeRowsArgs::residual):
// one row of floats for a {table, key}, for as many of them as a budget allows.
//
// Data:    for each row width a table of sets of four, cut by the hash of {table, key}. All memory
//          is taken in Create, and counts as HostBytesReserved says.
// Order:   keys that have a residual keep it; then the new ones, in their order, each take an empty
//          place of their set, or that of the key that was longest unused, whose residual is lost;
//          never that of a key of the same step. Where four keys of one step have a set to
//          themselves, those behind them have no residual in that step. So what is kept is a
//          function of the keys and steps before and of nothing else: not of threads, nor of time.
// Threads: one call at a time. Find and Save spread over ctx.pool, with the same result for any.
class GradientResiduals {
 public:
  struct Table {
    uint32_t table = 0;  // in RowKey
    int32_t dim = 0;
  };

  // The least budget that Create takes: one set of each width.
  static int64_t MinBytes(std::span<const Table> tables);
  // The budget is shared so that each table, whatever its width, gets as many rows as any other.
  // InvalidArgument when it is below MinBytes, ResourceExhausted when the system has no memory.
  static absl::StatusOr<std::unique_ptr<GradientResiduals>> Create(std::span<const Table> tables,
                                                                   int64_t budget_bytes);

  // Of the N rows of the runs, with the tables of Create: rows[i] becomes the residual of
  // {table, keys[i]}, D floats, zeros where the key is new, or null where there is no room in this
  // step. The keys of one table are distinct. The caller writes the rows before the next call.
  // step: of this update, above 0 and no less than in the call before.
  absl::Status Find(const ExecContext& ctx, std::span<const RowRun> runs, const uint64_t* keys,
                    uint32_t step, float** rows);

  // All of it as bytes, see docs/formats/saved_model.md: no more than bytes(), plus a hundred or
  // so. ResourceExhausted when there is no memory for them.
  absl::StatusOr<HostBuffer<std::byte>> Save(const ExecContext& ctx) const;
  // Takes what Save gave in the place of what is here; from then on it goes on as that one would
  // have. False, and nothing is here, when that one had other tables or another budget. DataLoss,
  // and nothing is here, when the bytes cannot be what Save gave. last_step: of the last Find
  // before Save.
  absl::StatusOr<bool> Load(std::span<const std::byte> bytes, uint32_t last_step);

  int64_t bytes() const { return bytes_; }  // reserved
  int64_t capacity_rows() const { return kWays * num_sets_; }
  const ResidualCounts& counts() const { return counts_; }

 private:
  static constexpr int64_t kWays = 4;
  // Four of them are a cache line.
  struct Slot {
    uint64_t key = 0;
    uint32_t table = 0;
    uint32_t step = 0;  // of its last use; 0: empty. The empty ones are the last of their set.
  };
  struct Width {
    int32_t dim = 0;
    int64_t first_set = 0;
    int64_t num_sets = 0;
    HostBuffer<float> rows;  // [num_sets, kWays, dim]
  };
  // Of a row that is looked for.
  struct Place {
    int64_t set = 0;
    int32_t run = 0;
  };

  GradientResiduals() = default;
  Width& WidthOf(uint32_t table) { return widths_[width_of_[table]]; }
  float* RowOf(Width& width, int64_t set, int64_t way) {
    return width.rows.data() + ((set - width.first_set) * kWays + way) * width.dim;
  }
  int64_t UsedWays(int64_t set) const;
  // The residual of a key that is there, which is used in this step; otherwise null.
  float* Known(int64_t set, uint64_t key, uint32_t table, uint32_t step);
  // A place for a new one; null: there is no room.
  float* Take(int64_t set, uint64_t key, uint32_t table, uint32_t step, ResidualCounts* counts);
  void Clear();
  absl::Status LoadWidth(Width* width, int64_t rows, uint32_t last_step, const std::byte* slots,
                         const std::byte* floats);

  std::vector<Width> widths_;      // by dim
  std::vector<int32_t> width_of_;  // [tables by number] into widths_; -1: no such table
  int64_t num_sets_ = 0;           // of all widths
  int64_t bytes_ = 0;
  HostBuffer<Slot> slots_;  // [num_sets_, kWays]
  ResidualCounts counts_;

  // Scratch of Find.
  std::vector<Place> places_;          // [N]
  std::vector<int32_t> parts_;         // [N]
  std::vector<int32_t> order_;         // [N]
  std::vector<int64_t> part_offsets_;  // [parts + 1]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_RANKS_GRADIENT_RESIDUALS_H_
