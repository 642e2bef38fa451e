#ifndef HOTROW_STORE_SNAPSHOT_H_
#define HOTROW_STORE_SNAPSHOT_H_

#include <cstdint>
#include <vector>

#include "base/unique_id.h"

namespace hotrow {

// Names a snapshot of a store. The caller chooses it (a trainer uses the step); any value but 0,
// used once.
using SnapshotId = uint64_t;

// A store's record of one of its snapshots. An id may be used again, by another run in the same
// directory or by a copy that was put back; an identity is never used again. So a manifest that
// names a snapshot keeps both, and opening it takes both.
struct SnapshotInfo {
  SnapshotId id = 0;
  bool committed = false;
  UniqueId identity;                // drawn by PrepareSnapshot; unknown: of an older version
  std::vector<int64_t> table_rows;  // of each of tables(), in that order; empty: not known
};

}  // namespace hotrow

#endif  // HOTROW_STORE_SNAPSHOT_H_
