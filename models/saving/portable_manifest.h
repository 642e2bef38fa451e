#ifndef HOTROW_MODELS_SAVING_PORTABLE_MANIFEST_H_
#define HOTROW_MODELS_SAVING_PORTABLE_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// What the manifest of the portable form says.
struct PortableModel {
  // Without the places of its parts; rows and hashes of the tables are in `tables`.
  SavedModel model;
  std::vector<PortableTable> tables;  // in the order of model.tables
  std::string dense_file;             // relative to the directory
  std::optional<uint32_t> dense_crc;  // none: not known, or not to be compared
};

inline constexpr char kPortableFormat[] = "hotrow.portable_model";

// Whether the directory has a manifest that says it is of the portable form, whatever its state.
absl::StatusOr<bool> IsPortableModel(Env& env, const std::string& dir);

// Reads the manifest. With `edited`, checksums, hashes and numbers of rows are left out: the arrays
// were changed on purpose. Errors: FailedPrecondition (there is none; a newer version),
// InvalidArgument (a member that is missing or wrong: it may have been edited; names it, what was
// found and what was expected).
absl::StatusOr<PortableModel> ReadPortableManifest(Env& env, const std::string& dir, bool edited);

// The manifest, whose members are all filled in.
std::string PortableManifest(const PortableModel& portable);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_MANIFEST_H_
