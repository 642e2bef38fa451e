#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "models/delta/apply_chain.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ApplyChainOptions options;
  bool json = false;
  FlagSet flags("hotrow apply");
  flags.AddInt("until", -1, INT32_MAX, &options.until, "the last delta that is applied");
  flags.DescribeDefault("the newest");
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
    std::fprintf(stderr, "hotrow apply: %s (--memory_bytes)\n", note.c_str());
  };
  options.dir = operands[1];
  HOTROW_ASSIGN_OR_RETURN(const PortableSummary summary, ApplyChain(options));
  std::fputs((json ? PortableSummaryJson(summary) : PortableSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kApplyCommand = {
    .name = "apply",
    .operands = "CHAIN DIR",
    .summary = "applies a chain of deltas to its base, and writes the model as .npy arrays",
    .details =
        "CHAIN is a directory that `hotrow export --since` writes (docs/deltas.md). DIR gets what\n"
        "`hotrow export` of the newest checkpoint would have written, but for the order of rows.\n"
        "Every link, file and row is checked; what is missing, damaged, out of order or of\n"
        "another chain is named, and no DIR is made. `hotrow import` makes a checkpoint of DIR.\n",
    .run = Run};

}  // namespace hotrow
