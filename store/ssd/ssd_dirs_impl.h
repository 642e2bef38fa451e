#ifndef HOTROW_STORE_SSD_SSD_DIRS_IMPL_H_
#define HOTROW_STORE_SSD_SSD_DIRS_IMPL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/unique_id.h"
#include "store/ssd/ssd_manifest_impl.h"

// The directories of an SsdStore, docs/formats/ssd_store.md: its home, which has all files but
// segments, and further ones, which have segments alone. They are known by identities, which the
// manifest lists in their order; a store of one directory has none.
namespace hotrow::internal {

// In each further directory: whose it is. Written once, when it becomes part of a store.
inline constexpr std::string_view kSsdDirName = "DIRECTORY";
// In the home: where that is, and the others, seen from there, for who is told of the home alone.
// Text; what it says is believed only where the identities are right. A home that is elsewhere, and
// still where it says, is a copy: the original's directories are refused to it.
inline constexpr std::string_view kSsdDirsName = "DIRECTORIES";

class SsdDirs {
 public:
  explicit SsdDirs(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  uint32_t count() const { return static_cast<uint32_t>(paths_.size()); }
  const std::string& path(uint32_t directory) const { return paths_[directory]; }  // 0: the home
  std::string SegmentPath(uint32_t directory, uint32_t slot) const;

 private:
  std::vector<std::string> paths_;
};

// Of an open store: whether the directories that it was given are those of its manifest, in their
// order, with new ones behind; fewer are right where nothing lies in the others. Changes nothing.
// Returns the identities of all for the next manifest: none of one directory. Errors:
// FailedPrecondition, naming a directory that is missing, of another store, in another's place, or
// that has segments already; InvalidArgument (one is there twice).
absl::StatusOr<std::vector<UniqueId>> CheckSsdDirs(Env& env, const SsdDirs& dirs,
                                                   const SsdManifest& manifest);
// Whether a path that is given as a home is one: FailedPrecondition where it is a further directory
// of some store.
absl::Status CheckSsdHome(Env& env, const std::string& home);
// Writes whose the new ones are, which are there and locked, before a manifest says so: a run that
// ends between the two leaves what the next one takes up.
absl::Status MarkSsdDirs(Env& env, const SsdDirs& dirs, const std::vector<UniqueId>& ids);
// Of a store that is not open: its directories, by what the home says. Errors: FailedPrecondition,
// naming what is not where it was.
absl::StatusOr<SsdDirs> FindSsdDirs(Env& env, const std::string& home, const SsdManifest& manifest);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_DIRS_IMPL_H_
