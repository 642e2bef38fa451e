#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/delta/compact_chain.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  CompactChainOptions options;
  bool json = false;
  FlagSet flags("hotrow compact");
  flags.AddInt("keep", 0, INT32_MAX, &options.keep,
               "deltas before the new base that stay, for followers that are behind");
  flags.AddBytes("shard_bytes", &options.shard_bytes,
                 "most bytes of an array in one file; longer arrays are split");
  flags.AddBytes("memory_bytes", &options.memory_bytes,
                 "memory of buffers and of the keys that deltas name, for tables of any size");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.chain = operands[0];
  options.tell = [](const std::string& note) {
    std::fprintf(stderr, "hotrow compact: %s (--memory_bytes)\n", note.c_str());
  };
  HOTROW_ASSIGN_OR_RETURN(const CompactSummary summary, CompactChain(options));
  std::fputs((json ? CompactSummaryJson(summary) : CompactSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kCompactCommand = {
    .name = "compact",
    .operands = "CHAIN",
    .summary = "makes the newest link of a chain of deltas its base, and removes old links",
    .details =
        "CHAIN is a directory that `hotrow export --since` writes (docs/deltas.md). It goes on:\n"
        "the next delta follows as it would have. Followers that stand at a delta that is kept\n"
        "may stay where they are; others start again from the new base. A kill leaves the chain\n"
        "as it was or as it becomes. Deltas may be added meanwhile.\n",
    .run = Run};

}  // namespace hotrow
