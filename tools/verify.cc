#include <cstdio>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/status_macros.h"
#include "models/report.h"
#include "store/ssd_store.h"
#include "tools/command.h"
#include "tools/directory_kind.h"
#include "tools/store_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  bool json = false;
  FlagSet flags("hotrow verify");
  flags.AddSwitch("json", &json, "print one JSON object, with all damage");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  const std::string& path = operands[0];
  HOTROW_RETURN_IF_ERROR(ExpectSsdStore(PosixEnv(), path));
  HOTROW_ASSIGN_OR_RETURN(const SsdStoreReport report, VerifySsdStore(PosixEnv(), path));
  const int64_t damage = DamageCount(report);
  if (json) {
    std::fputs(StoreReportJson(path, report).c_str(), stdout);
  } else {
    std::fputs(DamageText(report).c_str(), stdout);
    const std::string records =
        report.records < 0 ? std::string() : FormatCount(report.records) + " records, ";
    std::printf("%s: %s%s in %s segments, %s snapshots: %s\n", path.c_str(), records.c_str(),
                FormatBytes(report.used_bytes).c_str(), FormatCount(report.segments).c_str(),
                FormatCount(static_cast<int64_t>(report.snapshots.size())).c_str(),
                damage == 0 ? "good" : (FormatCount(damage) + " damaged").c_str());
  }
  return damage == 0 ? kExitGood : kExitDamage;
}

}  // namespace

const Command kVerifyCommand = {
    .name = "verify",
    .operands = "STORE",
    .summary = "reads all of a store, checks every checksum, names what is damaged",
    .details =
        "STORE is the directory of an SSD store that no program has open. Every record of the\n"
        "present state and of all snapshots is read and checked, with the footers that list them,\n"
        "the manifest and the index image; nothing is written. Each damage is a line: file, "
        "offset,\n"
        "what it is, with table and key where they are known; a last line sums up. Exit status 0\n"
        "says that all is good, 1 that something is damaged, 2 that the store cannot be opened.\n",
    .run = Run};

}  // namespace hotrow
