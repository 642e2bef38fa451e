#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "models/saving/portable_model.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ExportOptions options;
  bool json = false;
  FlagSet flags("hotrow export");
  flags.AddBytes("shard_bytes", &options.shard_bytes,
                 "of an array in one file at most; longer ones are cut into several");
  flags.AddBytes("memory_bytes", &options.memory_bytes, "of buffers, whatever the tables' size");
  flags.AddBytes("store_bytes", &options.store_bytes,
                 "memory for the index of an SSD store, about 10 bytes a row; 0: what it takes");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.checkpoint = operands[0];
  options.dir = operands[1];
  HOTROW_ASSIGN_OR_RETURN(const PortableSummary summary, ExportPortable(options));
  std::fputs((json ? PortableSummaryJson(summary) : PortableSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kExportCommand = {
    .name = "export",
    .operands = "CHECKPOINT DIR",
    .summary = "a checkpoint as .npy arrays that numpy reads, with a manifest in JSON",
    .details =
        "CHECKPOINT is a directory of checkpoints (its newest one is taken), one of them, or what\n"
        "--save_dir has written; a store on a disk must be closed. DIR is made; it must not be\n"
        "there yet, or be empty. Every row is read with its checksum. Rows stream through "
        "buffers,\n"
        "so tables may be larger than memory. A kill leaves no DIR, or the whole.\n"
        "docs/formats/portable.md says what is in it. `hotrow import` is the way back.\n",
    .run = Run};

}  // namespace hotrow
