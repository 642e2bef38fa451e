#ifndef HOTROW_MODELS_DELTA_DELTA_CHAIN_H_
#define HOTROW_MODELS_DELTA_DELTA_CHAIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/unique_id.h"
#include "models/delta/delta_manifest.h"
#include "models/delta/delta_rows.h"
#include "models/saving/dense_file.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/saved_model.h"

namespace hotrow {

class PartialDir;

// A chain of deltas: a directory with a model and what changed in it since, delta by delta
// (docs/formats/delta.md, docs/deltas.md). A follower reads the chain again whenever it likes and
// sees each delta whole or not at all, also where the writer dies.

// A link of a chain, as the next one names it.
struct ChainLink {
  int64_t sequence = 0;  // 0: the base
  int64_t step = 0;
  Hash128 digest;
  std::vector<UniqueId> source;  // identities of the snapshots, by rank; empty: not known
};

struct DeltaChain {
  std::string dir;
  ChainManifest manifest;
  PortableModel base;
  std::vector<DeltaManifest> deltas;  // those behind the base, ascending

  std::string base_dir() const { return dir + "/" + manifest.base_dir; }
  std::string delta_dir(int64_t sequence) const { return dir + "/" + DeltaDirName(sequence); }
  ChainLink head() const;
};

// Whether the directory has a chain's first file, in any state.
absl::StatusOr<bool> IsChain(Env& env, const std::string& dir);

// Reads and checks all manifests of a chain: that every delta up to the newest is there once, in
// its place, of this chain, and names the one before; that tables are those of the base. Reads no
// rows. Errors: NotFound (no chain there), DataLoss, FailedPrecondition and InvalidArgument as the
// format page lists them; all name the file.
absl::StatusOr<DeltaChain> ReadChain(Env& env, const std::string& dir);
// Calls `use` with the chain. Where reading or `use` fails and the chain was compacted meanwhile,
// so that files it had may have gone, both are done again with the chain as it is then.
absl::Status UseChain(Env& env, const std::string& dir,
                      absl::FunctionRef<absl::Status(DeltaChain chain)> use);
// Whether its first file says something else than `manifest` now.
bool WasCompacted(Env& env, const std::string& dir, const ChainManifest& manifest);

// Whether a chain may begin there: in a directory that is not there, or has nothing but what a
// CreateChain that was killed has left.
absl::StatusOr<bool> MayBeginChain(Env& env, const std::string& dir);

// For followers, who have a chain as they have read it and the link that they have applied last.
// The sequences behind `sequence` that are there, ascending, all of them up to the highest. Reads
// no manifests. Errors: DataLoss (one is missing), InvalidArgument (a name that is none).
absl::StatusOr<std::vector<int64_t>> ListDeltas(Env& env, const std::string& dir, int64_t sequence);
// OK if a delta may stand behind the link `before`: it is of this chain, names that link, and has
// the base's tables. Otherwise the errors of ReadChain.
absl::Status CheckNextLink(const DeltaChain& chain, const ChainLink& before,
                           const DeltaManifest& delta);

struct CreateChainOptions {
  std::string checkpoint;                     // of the base, as ReadCheckpoint takes it
  std::string dir;                            // made, unless it is there and MayBeginChain
  DeltaForm form;                             // of the deltas
  int64_t shard_bytes = int64_t{1} << 30;     // as in ExportOptions
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers
  int64_t store_bytes = 0;                    // as in ExportOptions
  const char* store_option = "--store_bytes";
  Env* env = nullptr;  // not owned; null: the real file system
};
// Makes a chain without deltas: whole, or nothing that IsChain. Errors: those of ExportPortable.
absl::StatusOr<DeltaChain> CreateChain(const CreateChainOptions& options);

// The snapshots' identities of a checkpoint, by rank; empty where one is not known.
std::vector<UniqueId> SourceOf(const SavedModel& checkpoint);

// One delta that is being written behind the head of a chain. Parts are files of path(), which any
// rank may write (DeltaRowsWriter, with file_id and tables()); then one rank commits. The
// destructor removes what was not committed. One thread at a time.
class DeltaWriter {
 public:
  // model: what the delta leads to; its tables, features and vocabulary must be the base's
  // (FailedPrecondition, naming the first that is not), its step not less than the head's. Also
  // FailedPrecondition: another process writes the same delta.
  static absl::StatusOr<std::unique_ptr<DeltaWriter>> Create(Env& env, const DeltaChain& chain,
                                                             const SavedModel& model);
  ~DeltaWriter();

  const std::string& path() const;
  int64_t sequence() const { return manifest_.sequence; }
  DeltaFileId file_id(int32_t part, int32_t num_parts) const;
  const std::vector<DeltaTable>& tables() const { return tables_; }
  const DeltaForm& form() const { return manifest_.form; }

  // Makes the delta durable and visible. `model` as for Create, with rows and hashes of its tables
  // where they are known, blob_bytes where it has blobs; its other files are not read.
  absl::StatusOr<DeltaManifest> Commit(SavedModel model, std::vector<DeltaPart> parts,
                                       const DenseArrays<const float>& dense);

 private:
  explicit DeltaWriter(Env& env);

  Env& env_;
  std::unique_ptr<PartialDir> partial_;
  DeltaManifest manifest_;
  std::vector<DeltaTable> tables_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_DELTA_CHAIN_H_
