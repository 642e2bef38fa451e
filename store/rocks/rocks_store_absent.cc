// What a build without RocksDB has instead of the sources of RocksStore.

#include "store/rocks/rocks_store.h"

namespace hotrow {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError(
      "RocksDB store: this build has no RocksDB; install librocksdb-dev and configure with "
      "-DHOTROW_ROCKSDB=ON");
}

}  // namespace

absl::Status RocksStoreOptions::Validate() const { return Absent(); }

absl::StatusOr<std::unique_ptr<RowStore>> OpenRocksStore(const RocksStoreOptions& options) {
  return Absent();
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenRocksSnapshot(
    const SnapshotReaderOptions& options) {
  return Absent();
}

absl::StatusOr<RocksStoreReport> InspectRocksStore(const std::string& path) { return Absent(); }
absl::StatusOr<RocksStoreReport> VerifyRocksStore(const std::string& path) { return Absent(); }
absl::StatusOr<RocksStoreReport> VerifyRocksSnapshot(const std::string& path, SnapshotId snapshot) {
  return Absent();
}

}  // namespace hotrow
