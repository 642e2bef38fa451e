#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "store/host/host_memory_impl.h"
#include "store/host/host_snapshot_impl.h"
#include "store/host/host_store.h"

namespace hotrow {

namespace {

using internal::BudgetedBuffer;
using internal::MemoryBudget;

constexpr int64_t kStagingBytes = int64_t{1} << 20;

class HostSnapshotReader final : public SnapshotReader {
 public:
  HostSnapshotReader(Env& env, const SnapshotReaderOptions& options)
      : env_(env),
        snapshot_(options.snapshot),
        identity_(options.identity),
        path_(absl::StrCat(options.path, "/", internal::SnapshotFileName(options.snapshot))),
        budget_(options.memory_budget_bytes == 0 ? std::numeric_limits<int64_t>::max()
                                                 : options.memory_budget_bytes,
                "reading a snapshot of a host store", options.memory_option) {}

  absl::Status Open(const std::string& dir) {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(dir));
    if (!exists) {
      return absl::NotFoundError(absl::StrCat(dir, ": there is no directory of snapshots"));
    }
    if (snapshot_ == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          dir, ": a host store has nothing on disk but its snapshots; name one that is not 0"));
    }
    HOTROW_ASSIGN_OR_RETURN(const bool has_snapshot, env_.Exists(path_));
    if (!has_snapshot) {
      return absl::FailedPreconditionError(absl::StrCat(dir, ": there is no snapshot ", snapshot_));
    }
    // A quarter of what there is, so that blocks have room.
    const int64_t staging = std::min(kStagingBytes, std::max<int64_t>(budget_.budget() / 4, 1));
    HOTROW_ASSIGN_OR_RETURN(staging_, BudgetedBuffer<std::byte>::Create(staging, budget_));
    HOTROW_ASSIGN_OR_RETURN(
        contents_, internal::ReadSnapshotContents(env_, path_, snapshot_, staging_.span()));
    return CheckSnapshotIdentity(path_, contents_.info, identity_);
  }

  std::span<const StoreTable> tables() const override { return contents_.tables; }
  int64_t rows() const override { return contents_.num_rows; }
  const SnapshotInfo& info() const override { return contents_.info; }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override {
    return internal::VisitSnapshot(env_, path_, snapshot_, staging_.span(), budget_, visit);
  }

 private:
  Env& env_;
  const SnapshotId snapshot_;
  const UniqueId identity_;
  const std::string path_;
  MemoryBudget budget_;
  BudgetedBuffer<std::byte> staging_;
  internal::SnapshotContents contents_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenHostSnapshot(
    const SnapshotReaderOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Env& env = options.env == nullptr ? PosixEnv() : *options.env;
  auto reader = std::make_unique<HostSnapshotReader>(env, options);
  HOTROW_RETURN_IF_ERROR(reader->Open(options.path));
  return std::unique_ptr<SnapshotReader>(std::move(reader));
}

}  // namespace hotrow
