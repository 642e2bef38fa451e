#ifndef HOTROW_MODELS_DELTA_DELTA_MANIFEST_H_
#define HOTROW_MODELS_DELTA_DELTA_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/unique_id.h"
#include "models/delta/delta_rows.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// The two kinds of manifest of a chain (docs/formats/delta.md). Both end in a checksum of their
// text.

// chain.json: what a chain begins with.
struct ChainManifest {
  UniqueId base_id;
  DeltaForm form;
  std::string base_dir;  // a name in the chain's directory
  int64_t base_step = 0;
  int64_t base_sequence = 0;  // of the delta that the base stands for; 0: none
  Hash128 base_digest;        // of the base's manifest
  Hash128 base_link;          // what the next delta names as its parent
  std::vector<UniqueId> base_source;
};

// manifest.json of a delta.
struct DeltaManifest {
  UniqueId base_id;
  DeltaForm form;
  int64_t sequence = 0;
  Hash128 parent;
  int64_t parent_step = 0;
  // Identities of the snapshots that it leads to, by rank; empty: not known.
  std::vector<UniqueId> source;
  // The model after it, without parts and vocabulary; rows and hash of tables where they are known.
  SavedModel model;
  std::optional<uint32_t> vocabulary_crc;  // none: the model has no vocabulary
  std::vector<DeltaPart> parts;
  Hash128 digest;  // of the text; filled by ReadDeltaManifest and SealDeltaManifest
};

// The digest of a manifest's text, by which the next link names it.
Hash128 LinkDigest(std::string_view text);

// "delta-00000012"
std::string DeltaDirName(int64_t sequence);
// nullopt: not such a name.
std::optional<int64_t> ParseDeltaDirName(std::string_view name);
// "base-00000012": of the sequence that it stands for
std::string BaseDirName(int64_t sequence);
// "rows-00002-of-00008"
std::string DeltaPartName(int32_t part, int32_t num_parts);

// The tables of a model, as files of rows have them. Errors: InvalidArgument (an optimizer that is
// none).
absl::StatusOr<std::vector<DeltaTable>> DeltaTablesOf(const SavedModel& model);

// The texts; all members must be filled in. The second fills in manifest->digest.
std::string ChainManifestText(const ChainManifest& manifest);
std::string SealDeltaManifest(DeltaManifest* manifest);

// Errors: DataLoss (missing or damaged), FailedPrecondition (another version). Name the file.
absl::StatusOr<ChainManifest> ReadChainManifest(Env& env, const std::string& chain_dir);
// delta_dir: of the delta; becomes model.dir.
absl::StatusOr<DeltaManifest> ReadDeltaManifest(Env& env, const std::string& delta_dir);

inline constexpr char kChainManifestName[] = "chain.json";

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_DELTA_MANIFEST_H_
