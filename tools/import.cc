#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "models/saving/portable_model.h"
#include "tools/command.h"
#include "tools/import_flags.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ImportOptions options;
  std::string store = "memory";
  bool json = false;
  FlagSet flags("hotrow import");
  AddImportFlags(&flags, &store, &options);
  flags.AddSwitch(
      "edited", &options.edited,
      "the arrays were changed on purpose: checksums, hashes and numbers of rows of the "
      "manifest are not compared");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.dir = operands[0];
  options.checkpoint = operands[1];
  HOTROW_RETURN_IF_ERROR(ResolveImportFlags(store, &options));
  HOTROW_ASSIGN_OR_RETURN(const PortableSummary summary, ImportPortable(options));
  std::fputs((json ? PortableSummaryJson(summary) : PortableSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kImportCommand = {
    .name = "import",
    .operands = "DIR CHECKPOINT",
    .summary = "makes a checkpoint from arrays of export or of numpy",
    .details =
        "DIR is an export of `hotrow export`. Arrays may have been changed by numpy: np.save over\n"
        "a file and give --edited. Sizes, dtypes and shapes are checked before anything is\n"
        "written, checksums and hashes during the import. A key that occurs twice is an error.\n"
        "CHECKPOINT is created; if it exists, it must be empty. It becomes a directory of one\n"
        "checkpoint, for --init_from=CHECKPOINT or, if DIR has the state of training, for\n"
        "--checkpoint_dir=CHECKPOINT --resume. A kill leaves none or a whole one.\n",
    .run = Run};

}  // namespace hotrow
