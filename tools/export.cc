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
                 "most bytes of an array in one file; longer arrays are split");
  flags.AddBytes("memory_bytes", &options.memory_bytes,
                 "memory of buffers, for tables of any size");
  flags.AddBytes("store_bytes", &options.store_bytes,
                 "memory for the index of an SSD store, about 10 bytes a row; 0: no limit");
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
    .summary = "converts a checkpoint to .npy arrays for numpy, with a manifest in JSON",
    .details =
        "CHECKPOINT is a directory of checkpoints (the newest is exported), one of them, or a\n"
        "model of --save_dir. A store on a disk must be closed. DIR is created; if it exists, it\n"
        "must be empty. Every row is checked against its checksum. Rows stream through buffers,\n"
        "so tables may be larger than memory. A kill leaves no DIR or a whole one.\n"
        "docs/formats/portable.md describes the files. `hotrow import` reverses it.\n",
    .run = Run};

}  // namespace hotrow
