#ifndef HOTROW_EMBEDDING_STORAGE_FIELDS_H_
#define HOTROW_EMBEDDING_STORAGE_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "embedding/options.h"
#include "store/store_kind.h"

namespace hotrow {

// A Storage with one set of fields for all kinds, as flags have it.
struct StorageFields {
  StoreKind kind = StoreKind::kMemory;
  std::string dir;                     // path, or snapshot_dir
  std::vector<std::string> more_dirs;  // more_paths; of others ignored
  int64_t memory_bytes = 0;
  int64_t disk_bytes = 0;  // kMemory: ignored
};
Storage MakeStorage(const StorageFields& fields);
StorageFields FieldsOf(const Storage& storage);
// Sets the directories from a text, as flags and C have it: a list where the kind may have several
// (base/path_list.h). InvalidArgument, which does not say where the text is from.
absl::Status SetDirs(std::string_view text, StorageFields* fields);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STORAGE_FIELDS_H_
