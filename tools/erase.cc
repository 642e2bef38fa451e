#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "models/saving/portable_model.h"
#include "models/train/report.h"
#include "tools/command.h"
#include "tools/import_flags.h"
#include "tools/model_report.h"
#include "tools/stored_keys.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  std::string keys_file;
  std::string store = "memory";
  bool json = false;
  ExportOptions from;
  ImportOptions to;
  FlagSet flags("hotrow erase");
  flags.AddString("keys", "FILE", &keys_file,
                  "the keys: a line for each, TABLE,KEY with the key in decimal");
  AddImportFlags(&flags, &store, &to);
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  if (keys_file.empty()) {
    return absl::InvalidArgumentError("--keys is missing; give a file of TABLE,KEY lines");
  }
  from.store_bytes = to.store_bytes;  // as given; 0: no limit
  HOTROW_RETURN_IF_ERROR(ResolveImportFlags(store, &to));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<NamedKey> keys, ReadKeyList(PosixEnv(), keys_file));
  for (const NamedKey& key : keys) from.without[key.table].push_back(key.key);
  from.checkpoint = operands[0];
  from.memory_bytes = to.memory_bytes;
  to.checkpoint = operands[1];
  HOTROW_ASSIGN_OR_RETURN(const PortableSummary summary, CopyWithout(from, to));
  if (json) {
    std::fputs(PortableSummaryJson(summary).c_str(), stdout);
  } else {
    std::printf("%s%s of %s keys had rows, which are left out\n",
                PortableSummaryText(summary).c_str(), FormatCount(summary.rows_left_out).c_str(),
                FormatCount(static_cast<int64_t>(keys.size())).c_str());
  }
  return kExitGood;
}

}  // namespace

const Command kEraseCommand = {
    .name = "erase",
    .operands = "CHECKPOINT NEW",
    .summary = "copies a checkpoint without the rows of some keys",
    .details =
        "CHECKPOINT is a directory of checkpoints (the newest counts), one of them, or a model of\n"
        "--save_dir. NEW becomes a directory of one checkpoint that has all else, for\n"
        "--checkpoint_dir=NEW --resume, --init_from=NEW and `hotrow serve NEW`; if it exists, it\n"
        "must be empty. CHECKPOINT stays: remove it, with its store, once NEW is good. Meanwhile\n"
        "NEW.erasing holds the rows. A kill leaves no NEW or a whole one, and may leave\n"
        "NEW.erasing; remove it.\n"
        "\n"
        "`hotrow verify --absent=FILE` takes the same list, and docs/operations.md says where\n"
        "erased rows may remain.\n",
    .run = Run};

}  // namespace hotrow
