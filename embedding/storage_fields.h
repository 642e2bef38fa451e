#ifndef HOTROW_EMBEDDING_STORAGE_FIELDS_H_
#define HOTROW_EMBEDDING_STORAGE_FIELDS_H_

#include <cstdint>
#include <string>

#include "embedding/options.h"
#include "store/store_kind.h"

namespace hotrow {

// A Storage with one set of fields for all kinds, as flags have it.
struct StorageFields {
  StoreKind kind = StoreKind::kMemory;
  std::string dir;  // path, or snapshot_dir
  int64_t memory_bytes = 0;
  int64_t disk_bytes = 0;  // kMemory: ignored
};
Storage MakeStorage(const StorageFields& fields);
StorageFields FieldsOf(const Storage& storage);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STORAGE_FIELDS_H_
