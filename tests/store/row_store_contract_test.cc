#include "tests/store/row_store_contract.h"

#include <string>
#include <utility>
#include <vector>

#include "store/host/host_store.h"
#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"

namespace hotrow::test {
namespace {

RowStoreKind HostStoreKind() {
  return {.name = "HostStore",
          .open = [](const RowStoreSetup& setup) -> absl::StatusOr<std::unique_ptr<RowStore>> {
            return HostStore::Open({.tables = setup.tables,
                                    .budget_bytes = setup.budget_bytes,
                                    .snapshot_dir = setup.dir,
                                    .open_at = setup.open_at,
                                    .open_at_identity = setup.open_at_identity,
                                    .env = setup.env});
          },
          .store_name = "host store",
          .open_snapshot = OpenHostSnapshot,
          .has_present_state = false,
          .keeps_commits = false};
}

INSTANTIATE_TEST_SUITE_P(HostStore, RowStoreContractTest, testing::Values(HostStoreKind()),
                         [](const auto& info) { return info.param.name; });

#ifdef HOTROW_HAVE_ROCKSDB
RowStoreKind RocksStoreKind() {
  return {.name = "RocksStore",
          .open = [](const RowStoreSetup& setup) -> absl::StatusOr<std::unique_ptr<RowStore>> {
            return OpenRocksStore({.path = setup.dir,
                                   .tables = setup.tables,
                                   .memory_budget_bytes = setup.budget_bytes,
                                   .open_at = setup.open_at,
                                   .open_at_identity = setup.open_at_identity,
                                   .read_threads = 4});
          },
          .store_name = "RocksDB store",
          .open_snapshot = OpenRocksSnapshot,
          .uses_env = false,
          .exact_memory_budget = false};
}

INSTANTIATE_TEST_SUITE_P(RocksStore, RowStoreContractTest, testing::Values(RocksStoreKind()),
                         [](const auto& info) { return info.param.name; });
#endif

RowStoreKind SsdStoreKind(std::string name, bool background, bool striped = false) {
  return {.name = std::move(name),
          .open = [=](const RowStoreSetup& setup) -> absl::StatusOr<std::unique_ptr<RowStore>> {
            std::vector<std::string> more_paths;
            if (striped) more_paths = {setup.dir + "-2"};
            return SsdStore::Open({.path = setup.dir,
                                   .more_paths = std::move(more_paths),
                                   .tables = setup.tables,
                                   .memory_budget_bytes = setup.budget_bytes,
                                   .disk_budget_bytes = int64_t{64} << 20,
                                   .open_at = setup.open_at,
                                   .open_at_identity = setup.open_at_identity,
                                   .background = background,
                                   .env = setup.env});
          },
          .store_name = "SSD store",
          .open_snapshot = OpenSsdSnapshot,
          .failed_sync_is_final = true,
          .tries_writes_again = true};
}

INSTANTIATE_TEST_SUITE_P(SsdStore, RowStoreContractTest,
                         testing::Values(SsdStoreKind("SsdStore", true),
                                         SsdStoreKind("SsdStoreWithoutThreads", false),
                                         SsdStoreKind("SsdStoreInTwoDirectories", true, true)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hotrow::test
