#ifndef HOTROW_STORE_SSD_SSD_OPENING_IMPL_H_
#define HOTROW_STORE_SSD_SSD_OPENING_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "store/host/host_memory_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_live_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_store.h"
#include "store/ssd/ssd_tables_impl.h"

// The steps by which an SsdStore finds its state when it is opened. They write nothing that a later
// opening would see: SsdCommits::Begin makes the state the present one.
//
// Threads: one, before any other uses the store. The store's lock file is held.
namespace hotrow::internal {

// The state to open, as a manifest: the latest one, the snapshot that was asked for, or an empty
// state, with sizes chosen by the budgets, where there is no store. Errors: FailedPrecondition (no
// such snapshot, or one of another identity; segments without a manifest; a newer format),
// InvalidArgument (the tables or sizes), DataLoss (no copy of the manifest is whole).
absl::StatusOr<SsdManifest> ChooseSsdState(Env& env, const SsdStoreOptions& options);

// The first epoch for a run that opens this state.
uint64_t FirstSsdEpoch(const SsdManifest& manifest);

// Gives the log the segments of the state and its snapshots, and the free ones. Adds files that
// belong to no state to *surplus_files. Errors: those of SsdLog::Adopt and of the directories.
absl::Status AdoptSsdSegments(Env& env, const SsdManifest& manifest, SsdLog& log,
                              std::vector<std::string>* surplus_files);

struct OpenedSsdIndex {
  std::unique_ptr<SsdIndex> index;
  bool from_image = false;
};
// The index of the state, from its image where that is whole, otherwise from the segments; counts
// the live rows. Errors: DataLoss (a record or footer that cannot be read; other counts of rows
// than the manifest says), ResourceExhausted (memory).
absl::StatusOr<OpenedSsdIndex> OpenSsdIndex(Env& env, const SsdStoreOptions& options,
                                            const SsdManifest& manifest, const SsdTables& tables,
                                            SsdLog& log, SsdLive& live, MemoryBudget& budget);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_OPENING_IMPL_H_
