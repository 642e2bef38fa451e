#include "tests/store/row_store_contract.h"

#include "store/host_store.h"

namespace hotrow::test {
namespace {

RowStoreKind HostStoreKind() {
  return {.name = "HostStore",
          .open = [](const RowStoreSetup& setup) -> absl::StatusOr<std::unique_ptr<RowStore>> {
            return HostStore::Open({.tables = setup.tables,
                                    .budget_bytes = setup.budget_bytes,
                                    .snapshot_dir = setup.dir,
                                    .open_at = setup.open_at,
                                    .env = setup.env});
          },
          .store_name = "host store"};
}

INSTANTIATE_TEST_SUITE_P(HostStore, RowStoreContractTest, testing::Values(HostStoreKind()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hotrow::test
