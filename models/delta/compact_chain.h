#ifndef HOTROW_MODELS_DELTA_COMPACT_CHAIN_H_
#define HOTROW_MODELS_DELTA_COMPACT_CHAIN_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

struct CompactChainOptions {
  std::string chain;  // its directory
  // Deltas before the new base that stay, for followers that have not applied them yet.
  int64_t keep = 0;
  int64_t shard_bytes = int64_t{1} << 30;             // as in ApplyChainOptions
  int64_t memory_bytes = int64_t{256} << 20;          // as in ApplyChainOptions
  Env* env = nullptr;                                 // not owned; null: the real file system
  std::function<void(const std::string& note)> tell;  // as in ApplyChainOptions
};

struct CompactSummary {
  std::string chain;
  bool made_base = false;  // false: there was no delta behind the base
  int64_t sequence = 0;    // that the base stands for now
  int64_t step = 0;
  int64_t deltas_removed = 0;
  int64_t bases_removed = 0;
};

// Makes what a chain leads to its base, and removes the base before and deltas that nobody needs.
// The chain goes on: its id, its sequences and the digest that the next delta names stay. At any
// moment a reader finds a whole chain, before or after; one that reads what is removed begins again
// (UseChain). Deltas may be added meanwhile. Errors: those of
// ApplyChain, FailedPrecondition (another process compacts the chain). After an error or a kill the
// chain is as before or as after; the next call removes what was left behind.
absl::StatusOr<CompactSummary> CompactChain(const CompactChainOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_COMPACT_CHAIN_H_
