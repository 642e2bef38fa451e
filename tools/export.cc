#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/delta/export_delta.h"
#include "models/saving/portable_model.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ExportOptions options;
  std::string since;
  std::string precision;
  bool weights_only = false;
  bool json = false;
  FlagSet flags("hotrow export");
  flags.AddString("since", "CHECKPOINT", &since,
                  "write what changed since this checkpoint, as the next delta of the chain DIR");
  flags.AddString("precision", "WORD", &precision,
                  "with --since, of a new chain: weights in fp32, fp16, bf16 or int8");
  flags.DescribeDefault("fp32");
  flags.AddSwitch("weights_only", &weights_only,
                  "with --since, of a new chain: without the state of optimizers");
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
  if (!since.empty()) {
    ExportDeltaOptions delta = {.since = since,
                                .checkpoint = options.checkpoint,
                                .chain = options.dir,
                                .shard_bytes = options.shard_bytes,
                                .memory_bytes = options.memory_bytes,
                                .store_bytes = options.store_bytes};
    if (!precision.empty() || weights_only) {
      delta.form = DeltaForm{.state = !weights_only};
      if (!precision.empty()) {
        const absl::StatusOr<ExchangeType> type = ParseExchangeType(precision);
        if (!type.ok()) {
          return absl::InvalidArgumentError(
              absl::StrCat("--precision=", precision, ": ", std::string(type.status().message())));
        }
        delta.form->precision = *type;
      }
    }
    HOTROW_ASSIGN_OR_RETURN(const DeltaSummary summary, ExportDelta(delta));
    std::fputs((json ? DeltaSummaryJson(summary) : DeltaSummaryText(summary)).c_str(), stdout);
    return kExitGood;
  }
  if (!precision.empty() || weights_only) {
    return absl::InvalidArgumentError(
        "--precision and --weights_only are of deltas; give --since, too");
  }
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
        "docs/formats/portable.md describes the files. `hotrow import` reverses it.\n"
        "\n"
        "With --since, DIR is a chain of deltas (docs/deltas.md): made, with that checkpoint as\n"
        "its base, if it is not there; otherwise its newest link must be of that checkpoint.\n",
    .run = Run};

}  // namespace hotrow
