#ifndef HOTROW_EMBEDDING_EVALUATION_IMPL_H_
#define HOTROW_EMBEDDING_EVALUATION_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/matrix_view.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/stats.h"
#include "embedding/step_impl.h"
#include "embedding/taken_batch_impl.h"
#include "embedding/tiers/step_arrays_impl.h"

namespace hotrow::internal {

// Evaluation looks batches up without a trace: rows that are not resident pass through a staging
// area, and a batch whose rows do not fit there goes in slices of its samples.
//
// Threads: the caller's, while the pipeline is paused: rows that are not pinned must stay where
//          they are until they have been read. With several ranks all call Run together, each with
//          its own batch, and no exchange of rows or gradients is under way.
// Errors:  ResourceExhausted when one sample alone does not fit; those of the tiers and the
//          communicator.
class Evaluation {
 public:
  Evaluation(const EmbeddingCollectionOptions& options, const StepParts& parts,
             const ExecContext& ctx);
  ~Evaluation() { upload_.Wait().IgnoreError(); }

  // What Run looks up; filled by TakeBatch before each Run, which takes it.
  TakenBatch& input() { return input_; }
  // The views have the shapes that the input asks for. step: of the update that is next.
  absl::Status Run(const EmbeddingOutput& output, uint32_t step);

  // The weights of keys of one table, a position in the plan, into host memory: [keys, D]. found:
  // empty, or [keys]: whether there is a row.
  absl::Status ReadRows(int32_t table, std::span<const uint64_t> keys, MatrixView<float> rows,
                        std::span<bool> found, uint32_t step);

  void AddTo(EmbeddingStats* stats) const;

 private:
  // Runs of samples whose rows fit into the staging area: where each begins, and the end of the
  // last.
  absl::StatusOr<std::vector<int64_t>> CutForStaging(const TakenBatch& batch) const;
  absl::Status EnsureStaging();
  // The most slices that any rank has.
  absl::StatusOr<int64_t> AgreeOnSlices(int64_t own);
  // Lookups whose rows fit into the staging area, whichever they are.
  int64_t SliceLookups() const;
  // Evaluates batch_.input.
  absl::Status RunSlice(const EmbeddingOutput& output, uint32_t step);
  // Finds the rows of batch_.served_keys(), as `reader` sees them: exchanges keys first where there
  // are several ranks.
  absl::Status FindRows(RowReader reader);
  // Sets batch_.at to what loops or kernels of the device read, but for the rows of other ranks.
  absl::Status PlaceArrays();
  // Several ranks: the rows of batch_.wanted from wherever they are kept; where they lie is then
  // batch_.at.value_rows.
  absl::Status FetchRows(uint32_t step);
  // The same by the host's channel, from host memory into host memory: batch_.value_rows.
  // served_rows: of what is served.
  absl::Status FetchRowsOnHost(std::span<std::byte* const> served_rows, uint32_t step);
  // Where the rows of batch_.served_keys() can be read by the host: copies where they lie on a GPU.
  absl::Status CopyToHost(std::vector<std::byte*>* rows);
  // Sets has_row_ of the keys of batch_.wanted. served_rows: memory of the host.
  absl::Status FindMarks(std::span<std::byte* const> served_rows);
  absl::Status ReadSlice(const PlannedTable& table, MatrixView<float> rows, std::span<bool> found,
                         uint32_t step);

  const StepParts parts_;
  const Plan& plan_;
  RowShuffle* const shuffle_;
  const ExecContext ctx_;
  const int64_t staging_bytes_;

  // Taken by the first Run, and grown to the largest batch seen.
  DeviceMemory<std::byte> staging_;
  TakenBatch input_;
  HostStep batch_;
  DeviceStream upload_;  // of arrays_; behind the kernels that read them the time before
  StepArrays arrays_;
  DeviceRoutes routes_;  // of the batch, several ranks
  UniqueScratch unique_;
  RowShuffle::Scratch ids_;
  DeviceMemory<const std::byte*> device_value_rows_;  // [U], several ranks with caches on devices
  // What ReadRows uses.
  std::vector<std::byte> host_bytes_;
  std::vector<std::byte*> host_rows_;    // [served keys]
  std::vector<uint8_t> served_has_row_;  // [served keys]
  std::vector<uint8_t> has_row_;         // [U]
  int64_t lookups_ = 0;
  int64_t unique_keys_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_EVALUATION_IMPL_H_
