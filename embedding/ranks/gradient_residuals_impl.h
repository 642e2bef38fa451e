#ifndef HOTROW_EMBEDDING_RANKS_GRADIENT_RESIDUALS_IMPL_H_
#define HOTROW_EMBEDDING_RANKS_GRADIENT_RESIDUALS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/host_pages.h"
#include "ops/rows/row_codec.h"

namespace hotrow::internal {

// Counts since Create.
struct ResidualCounts {
  int64_t keys = 0;
  int64_t hits = 0;      // keys with a residual of an earlier step
  int64_t replaced = 0;  // residuals dropped to make room
  int64_t refused = 0;   // keys that found no room in their step
};

// Residuals: the encoding losses of a rank's gradients for other ranks (EncodeRowsArgs::residual).
// One row of floats for each {table, key}, for as many as a budget allows.
//
// Data:    for each row width a 4-way set-associative table by the hash of {table, key}. All memory
//          is taken in Create; HostBytesReserved counts it.
// Order:   keys with a residual keep it. Then each new key, in order, takes an empty place of its
//          set, or replaces the least recently used key, whose residual is lost, but never a key of
//          the same step. If four keys of one step fill a set, later ones have no residual in that
//          step. So the contents depend on earlier keys and steps only, not on threads or time.
// Threads: one call at a time. Find and Save use ctx.pool; its size does not change results.
class GradientResiduals {
 public:
  struct Table {
    uint32_t table = 0;  // in RowKey
    int32_t dim = 0;
  };

  // The smallest legal budget: one set of each width.
  static int64_t MinBytes(std::span<const Table> tables);
  // The budget gives all tables, of any width, the same number of rows. InvalidArgument when it is
  // below MinBytes, ResourceExhausted when the system has no memory.
  static absl::StatusOr<std::unique_ptr<GradientResiduals>> Create(std::span<const Table> tables,
                                                                   int64_t budget_bytes);

  // Finds the residuals of the N rows of the runs, whose tables are those of Create: rows[i] is the
  // residual of {table, keys[i]}, D floats; zeros for a new key; null if there is no room in this
  // step. The keys of one table are distinct. The caller writes the rows before the next call.
  // step: of this update; positive and never decreasing.
  absl::Status Find(const ExecContext& ctx, std::span<const RowRun> runs, const uint64_t* keys,
                    uint32_t step, float** rows);

  // These keys of a table have no residuals any more.
  void Erase(uint32_t table, std::span<const uint64_t> keys);

  // Everything as bytes, see docs/formats/saved_model.md: at most bytes() and about a hundred more.
  // ResourceExhausted when there is no memory for them.
  absl::StatusOr<HostBuffer<std::byte>> Save(const ExecContext& ctx) const;
  // Replaces the contents by those of Save, from where both go on alike. False, and empty, when the
  // saved one had other tables or another budget. DataLoss, and empty, when the bytes are not from
  // Save. last_step: that of the last Find before Save.
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
  // Where the residual of a row lies.
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
  // The residual of a key, marked as used in this step; null if there is none.
  float* Known(int64_t set, uint64_t key, uint32_t table, uint32_t step);
  // A place for a new residual; null: no room.
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

#endif  // HOTROW_EMBEDDING_RANKS_GRADIENT_RESIDUALS_IMPL_H_
