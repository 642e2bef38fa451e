#ifndef HOTROW_MODELS_DELTA_APPLY_CHAIN_H_
#define HOTROW_MODELS_DELTA_APPLY_CHAIN_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/unique_id.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_rows.h"
#include "models/saving/portable_model.h"

namespace hotrow {

struct ApplyChainOptions {
  std::string chain;                          // its directory
  std::string dir;                            // made; must not be there, or be empty
  int64_t until = -1;                         // the last sequence that is applied; -1: the newest
  int64_t shard_bytes = int64_t{1} << 30;     // of an array in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers, and of the keys that deltas name
  Env* env = nullptr;                         // not owned; null: the real file system
  // Takes what a user should know before much time goes by; null: nobody does.
  std::function<void(const std::string& note)> tell;
};

// Writes the model that a chain leads to, in the portable form. For a chain of fp32 with state it
// is the export of the checkpoint that the last delta was made of, but for the order of rows; of
// other chains tables have the optimizer sgd, which keeps no state, and there is no `training`.
// Whole or absent, as ExportPortable. Errors: those of ReadChain and of files of rows, DataLoss (a
// table's rows or hash differ from the manifest), FailedPrecondition (dir; no such sequence).
absl::StatusOr<PortableSummary> ApplyChain(const ApplyChainOptions& options);

// What a chain is.
struct ChainSummary {
  std::string chain;  // its directory
  UniqueId base_id;
  DeltaForm form;
  int64_t base_sequence = 0;
  int64_t base_step = 0;
  int64_t sequence = 0;  // of the newest link
  int64_t step = 0;
  int64_t rows = 0;    // of all deltas behind the base
  int64_t erased = 0;  // tombstones of these
  int64_t bytes = 0;   // of their files of rows
};
ChainSummary SummariseChain(const DeltaChain& chain);

// Reads all of the deltas of a chain and checks them, but for the rows and hashes of tables.
absl::Status VerifyDeltas(Env& env, DeltaChain chain);

// Reads all of a chain and checks it, but for the rows and hashes of tables that its deltas name,
// which need it to be applied. Errors: those of ApplyChain.
absl::StatusOr<ChainSummary> VerifyChain(Env& env, const std::string& dir, int64_t memory_bytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_APPLY_CHAIN_H_
