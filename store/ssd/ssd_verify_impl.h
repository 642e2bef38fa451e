#ifndef HOTROW_STORE_SSD_SSD_VERIFY_IMPL_H_
#define HOTROW_STORE_SSD_SSD_VERIFY_IMPL_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "store/ssd/ssd_store.h"

namespace hotrow::internal {

// InspectSsdStore under the lock of the store, which is given back at the end. nullopt: there is no
// store. Errors: FailedPrecondition (the store is open, here or in another process), and those of
// InspectSsdStore.
absl::StatusOr<std::optional<SsdStoreReport>> InspectLockedSsdStore(Env& env,
                                                                    const std::string& path);

// VerifySsdStore for the segments of one snapshot alone, while the store may be open: they are held
// (base/file_hold.h). Errors: FailedPrecondition (there is no such snapshot, it has another
// identity, or it was dropped meanwhile), and those of VerifySsdStore.
absl::StatusOr<SsdStoreReport> VerifySsdSnapshot(Env& env, const std::string& path,
                                                 SnapshotId snapshot, const UniqueId& identity);
// Whether somebody has the store open, in this process or another.
absl::StatusOr<bool> IsSsdStoreOpen(Env& env, const std::string& path);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_VERIFY_IMPL_H_
