#ifndef HOTROW_STORE_ROCKS_ROCKS_LIVE_STATE_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_LIVE_STATE_IMPL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/held_directory.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/rocks/rocks_store.h"

namespace hotrow::internal {

class RocksEngine;

// Which database of a RocksStore's directory is the present state: the file LIVE, the directories
// live-<number>, and the lock that keeps others out. What opening needs is checked before anything
// changes; a crash at any time leaves the state before or the one after.
//
// Threads: Open comes first; NoteFlushed may be called from any.
class RocksLiveState {
 public:
  // `options` outlives it.
  explicit RocksLiveState(const RocksStoreOptions& options) : options_(options) {}

  // Makes the store where there is none, or opens its present state, or the snapshot that the
  // options name, by engine.Open.
  absl::Status Open(RocksEngine& engine);
  // The writes up to this one are in files: from now on a database that lacks them is damaged.
  absl::Status NoteFlushed(uint64_t last);
  // Before files of the store are made, replaced or removed by their paths.
  absl::Status CheckInPlace() const { return directory_->CheckInPlace(); }

 private:
  std::string PathOf(std::string_view name) const;
  absl::Status Make(const RocksDirectory& directory, RocksEngine& engine);
  absl::Status OpenExisting(const RocksDirectory& directory, RocksEngine& engine);
  // What opening needs is there and whole; these change nothing.
  absl::Status CheckLive(const RocksDirectory& directory);
  absl::StatusOr<RocksSnapshot> CheckSnapshot() const;
  absl::Status OpenSnapshot(const RocksDirectory& directory, const RocksSnapshot& snapshot,
                            RocksEngine& engine);
  absl::Status RemoveUnfinishedSnapshots() const;
  absl::Status RemoveOtherLiveDirs(const RocksDirectory& directory) const;
  absl::Status WriteLive(const RocksLive& live);

  const RocksStoreOptions& options_;
  std::optional<HeldDirectory> directory_;  // from Open on
  std::unique_ptr<RocksDirLock> lock_;
  std::mutex mutex_;  // guards live_ and the file LIVE
  RocksLive live_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_LIVE_STATE_IMPL_H_
