#include <cstdio>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/status_macros.h"
#include "store/ssd_store.h"
#include "tools/command.h"
#include "tools/directory_kind.h"
#include "tools/store_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  bool json = false;
  FlagSet flags("hotrow inspect");
  flags.AddSwitch("json", &json, "print one JSON object; what is unknown is null");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  const std::string& path = operands[0];
  HOTROW_RETURN_IF_ERROR(ExpectSsdStore(PosixEnv(), path));
  HOTROW_ASSIGN_OR_RETURN(const SsdStoreReport report, InspectSsdStore(PosixEnv(), path));
  std::fputs((json ? StoreReportJson(path, report) : StoreReportText(path, report)).c_str(),
             stdout);
  return DamageCount(report) == 0 ? kExitGood : kExitDamage;
}

}  // namespace

const Command kInspectCommand = {
    .name = "inspect",
    .operands = "STORE",
    .summary = "what a store holds: tables, rows, bytes, segments, snapshots",
    .details =
        "STORE is the directory of an SSD store that no program has open. Manifest and footers "
        "are\n"
        "read, nothing is written; rows are counted as an open would find them. `hotrow verify`\n"
        "checks the rows too. How many bytes were written for each byte of rows is known to the\n"
        "running store alone.\n",
    .run = Run};

}  // namespace hotrow
