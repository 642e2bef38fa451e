#include "tools/import_flags.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/machine_limits.h"
#include "store/store_facts.h"

namespace hotrow {
void AddImportFlags(FlagSet* flags, std::string* store, ImportOptions* options) {
  flags->AddString("store", "WORD", store,
                   absl::StrCat("kind of store: ", StoreWords(nullptr, "or")));
  flags->AddString("store_path", "DIR", &options->store_path,
                   absl::StrCat("directory of an ", StoreWords(&StoreFacts::on_disk, "or"),
                                " store; it must be missing or empty"));
  flags->DescribeDefault("CHECKPOINT/store");
  flags->AddBytes("store_bytes", &options->store_bytes,
                  "memory of the store. memory: all rows; ssd: index and buffers");
  flags->DescribeDefault("80 % of the memory; with rocksdb 256 MiB");
  flags->AddBytes("disk_bytes", &options->disk_bytes,
                  "disk budget of the store while it is filled");
  flags->DescribeDefault("three times its rows");
  flags->AddBytes("memory_bytes", &options->memory_bytes,
                  "memory of buffers, for tables of any size");
}

absl::Status ResolveImportFlags(const std::string& store, ImportOptions* options) {
  const absl::StatusOr<StoreKind> kind = ParseStoreKind(store);
  if (!kind.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store=", store, ": ", std::string(kind.status().message())));
  }
  options->store = *kind;
  if (options->store_bytes == 0) {
    const int64_t filling_bytes = FactsOf(*kind).filling_bytes;
    options->store_bytes = filling_bytes > 0 ? filling_bytes : UsableMemoryBytes() / 10 * 8;
  }
  return absl::OkStatus();
}

}  // namespace hotrow
