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
  // The model without the places of its parts; rows and hashes of the tables are in `tables`.
  SavedModel model;
  std::vector<PortableTable> tables;  // in the order of model.tables
  std::string dense_file;             // relative to the directory
  std::optional<uint32_t> dense_crc;  // none: not known, or not to be compared
};

inline constexpr char kPortableFormat[] = "hotrow.portable_model";

// Whether the directory has a manifest of the portable form, in any state.
absl::StatusOr<bool> IsPortableModel(Env& env, const std::string& dir);

// Reads the manifest. edited: the arrays were changed on purpose, so checksums, hashes and numbers
// of rows are ignored. Errors: FailedPrecondition (no manifest, or a version that this build does
// not read), InvalidArgument (a member is missing or wrong; names it, what was found and what was
// expected).
absl::StatusOr<PortableModel> ReadPortableManifest(Env& env, const std::string& dir, bool edited);

// OK when tables have whole rows, to train on. FailedPrecondition: some are codes, made to be
// scored with alone; the remedy. dir: for the error.
absl::Status CheckHasWeights(const std::string& dir, const PortableModel& portable);

// The text of the manifest. All members of `portable` must be filled in.
std::string PortableManifest(const PortableModel& portable);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_MANIFEST_H_
