#ifndef HOTROW_TOOLS_DIRECTORY_KIND_H_
#define HOTROW_TOOLS_DIRECTORY_KIND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// The kind of a path, by the names of the files in it.
enum class DirectoryKind {
  kMissing,
  kFile,
  kEmpty,
  kSsdStore,       // docs/formats/ssd_store.md
  kRocksStore,     // a RocksStore
  kHostStore,      // snapshots of a HostStore, docs/formats/host_snapshot.md
  kSavedModel,     // a saved model or one checkpoint, docs/formats/saved_model.md
  kCheckpoints,    // of a training run, models/saving/checkpoint.h
  kPortableModel,  // docs/formats/portable.md
  kDeltaChain,     // docs/formats/delta.md
  kPackedData,     // docs/formats/packed_data.md
  kOther,
};

// Errors: those of the file system.
absl::StatusOr<DirectoryKind> KindOfDirectory(Env& env, const std::string& path);
// "an SSD store", "no file or directory".
const char* NameOf(DirectoryKind kind);

// OK when the path is an SSD store. Errors: NotFound or InvalidArgument, which says what the path
// is instead. For commands that also take a checkpoint or an export.
absl::Status ExpectSsdStore(Env& env, const std::string& path);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_DIRECTORY_KIND_H_
