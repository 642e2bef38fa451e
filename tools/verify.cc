#include <cstdio>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/status_macros.h"
#include "models/data/packed_format.h"
#include "models/data/packed_source.h"
#include "models/delta/apply_chain.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/portable_model.h"
#include "models/train/report.h"
#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"
#include "tools/command.h"
#include "tools/directory_kind.h"
#include "tools/model_report.h"
#include "tools/store_report.h"
#include "tools/stored_keys.h"

namespace hotrow {
namespace {

constexpr int64_t kBufferBytes = int64_t{64} << 20;

// "good", "2 damaged".
std::string Verdict(int64_t damage) {
  return damage == 0 ? "good" : FormatCount(damage) + " damaged";
}

absl::StatusOr<int> VerifyStore(const std::string& path, bool json) {
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
                Verdict(damage).c_str());
  }
  return damage == 0 ? kExitGood : kExitDamage;
}

absl::StatusOr<int> VerifyRocks(const std::string& path, bool json) {
  HOTROW_ASSIGN_OR_RETURN(const RocksStoreReport report, VerifyRocksStore(path));
  const int64_t damage = DamageCount(report);
  if (json) {
    std::fputs(StoreReportJson(path, report).c_str(), stdout);
  } else {
    std::fputs(DamageText(report).c_str(), stdout);
    const std::string rows = report.rows < 0 ? std::string() : FormatCount(report.rows) + " rows, ";
    std::printf("%s: %s%s in %s table files, %s snapshots: %s\n", path.c_str(), rows.c_str(),
                FormatBytes(report.live_bytes).c_str(), FormatCount(report.table_files).c_str(),
                FormatCount(static_cast<int64_t>(report.snapshots.size())).c_str(),
                Verdict(damage).c_str());
  }
  return damage == 0 ? kExitGood : kExitDamage;
}

void PrintModel(const CheckpointReport& report) {
  for (const std::string& line : report.damage) std::printf("%s\n", line.c_str());
  const std::string verdict = Verdict(static_cast<int64_t>(report.damage.size()));
  if (report.model.tables.empty()) {  // its manifest cannot be read
    std::printf("%s: %s\n", report.model.dir.c_str(), verdict.c_str());
    return;
  }
  const std::string rows = report.tables.empty() ? "" : FormatCount(report.rows) + " rows, ";
  std::printf("%s: %s%s tables, %s dense parameters, step %s: %s\n", report.model.dir.c_str(),
              rows.c_str(), FormatCount(static_cast<int64_t>(report.model.tables.size())).c_str(),
              FormatCount(report.model.num_parameters).c_str(),
              FormatCount(report.model.step).c_str(), verdict.c_str());
}

absl::StatusOr<int> VerifyModel(const std::string& path, int64_t store_bytes, bool json) {
  HOTROW_ASSIGN_OR_RETURN(const CheckpointReport report,
                          VerifyCheckpoint(PosixEnv(), path, store_bytes));
  if (json) {
    std::fputs(CheckpointReportJson(path, report).c_str(), stdout);
  } else {
    PrintModel(report);
  }
  return report.damage.empty() ? kExitGood : kExitDamage;
}

// All of a directory: a line with the verdict on each, oldest first. JSON is that of the newest,
// with the damage of all.
absl::StatusOr<int> VerifyAll(const std::string& path, int64_t store_bytes, bool json) {
  HOTROW_ASSIGN_OR_RETURN(std::vector<CheckpointReport> reports,
                          VerifyCheckpoints(PosixEnv(), path, store_bytes));
  int64_t damage = 0;
  for (const CheckpointReport& report : reports) {
    damage += static_cast<int64_t>(report.damage.size());
    if (!json) PrintModel(report);
  }
  if (json && reports.size() > 0) {
    CheckpointReport& newest = reports.back();
    std::vector<std::string> lines;
    for (const CheckpointReport& report : reports) {
      lines.insert(lines.end(), report.damage.begin(), report.damage.end());
      if (&report == &newest || report.damage.empty()) continue;
      const std::string& dir = report.model.dir;
      newest.damaged_checkpoints.push_back(dir.substr(dir.rfind('/') + 1));
    }
    newest.damage = std::move(lines);
    std::fputs(CheckpointReportJson(path, newest).c_str(), stdout);
  }
  return damage == 0 ? kExitGood : kExitDamage;
}

absl::StatusOr<int> VerifyPack(const std::string& path, bool json) {
  HOTROW_ASSIGN_OR_RETURN(const PackedReport report, VerifyPackedData(PosixEnv(), path));
  if (json) {
    std::fputs(PackedDataJson(path, report.manifest, &report.damage).c_str(), stdout);
  } else {
    for (const std::string& line : report.damage) std::printf("%s\n", line.c_str());
    std::string text = PackedDataText(path, report.manifest);
    text.pop_back();  // the end of the line
    std::printf("%s: %s\n", text.c_str(), Verdict(std::ssize(report.damage)).c_str());
  }
  return report.damage.empty() ? kExitGood : kExitDamage;
}

// What --absent does.
absl::StatusOr<int> ShowAbsent(const std::string& path, const std::string& list,
                               int64_t store_bytes, bool json) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<NamedKey> keys, ReadKeyList(PosixEnv(), list));
  HOTROW_ASSIGN_OR_RETURN(const StoredKeysReport report,
                          FindStoredKeys(PosixEnv(), path, keys, store_bytes));
  std::fputs(
      (json ? StoredKeysJson(path, keys, report) : StoredKeysText(path, keys, report)).c_str(),
      stdout);
  return report.found.empty() ? kExitGood : kExitDamage;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  bool json = false;
  int64_t store_bytes = 0;
  std::string absent;
  FlagSet flags("hotrow verify");
  flags.AddString(
      "absent", "FILE", &absent,
      "show instead that no row of these keys is stored: a line \"TABLE,KEY\" for each");
  flags.AddSwitch("json", &json, "print one JSON object, with all damage");
  flags.AddBytes("store_bytes", &store_bytes,
                 "memory for the index of the SSD store of a checkpoint, about 10 bytes a row; 0: "
                 "no limit");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  const std::string& path = operands[0];
  if (!absent.empty()) return ShowAbsent(path, absent, store_bytes, json);
  HOTROW_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(PosixEnv(), path));
  if (kind == DirectoryKind::kCheckpoints) return VerifyAll(path, store_bytes, json);
  if (kind == DirectoryKind::kSavedModel) return VerifyModel(path, store_bytes, json);
  if (kind == DirectoryKind::kPortableModel) {
    HOTROW_ASSIGN_OR_RETURN(const PortableSummary summary,
                            VerifyPortable(PosixEnv(), path, kBufferBytes));
    std::fputs((json ? PortableSummaryJson(summary) : PortableSummaryText(summary)).c_str(),
               stdout);
    return kExitGood;
  }
  if (kind == DirectoryKind::kDeltaChain) {
    HOTROW_ASSIGN_OR_RETURN(const ChainSummary summary,
                            VerifyChain(PosixEnv(), path, kBufferBytes));
    std::fputs((json ? ChainSummaryJson(summary) : ChainSummaryText(summary)).c_str(), stdout);
    return kExitGood;
  }
  if (kind == DirectoryKind::kPackedData) {
    return VerifyPack(path, json);
  }
  if (kind == DirectoryKind::kRocksStore) return VerifyRocks(path, json);
  HOTROW_RETURN_IF_ERROR(ExpectSsdStore(PosixEnv(), path));
  return VerifyStore(path, json);
}

}  // namespace

const Command kVerifyCommand = {
    .name = "verify",
    .operands = "PATH",
    .summary = "reads a whole checkpoint, store or export and lists damage",
    .details =
        "PATH is as in `hotrow inspect`, but all checkpoints of a directory are read, each with\n"
        "its own verdict. Nothing is written. A run may go on meanwhile, and of its open store "
        "the\n"
        "snapshots of the checkpoints are read; a store that is PATH itself must be closed.\n"
        "The command checks\n"
        "  of a checkpoint     manifest, dense parameters and every row, with all checksums, and\n"
        "                      rows and hashes of tables if the manifest has them\n"
        "  of an SSD store     every record of the present state and of all snapshots, the "
        "footers\n"
        "                      that list them, the manifest and the index image\n"
        "  of a RocksDB store  every file of the present state and of all snapshots, and every "
        "row\n"
        "                      of the present state\n"
        "  of an export        every file, up to the first that is wrong\n"
        "  of a chain          the same of its base and of all deltas\n"
        "  of packed data      every block\n"
        "Each damage is a line: file, offset, description, and table and key if known. The last\n"
        "line is a summary.\n"
        "\n"
        "With --absent, a checkpoint, a directory of them, an export or a chain is read for rows\n"
        "of those keys, in every checkpoint, or the base and every delta. Each that is found is a\n"
        "line. Rows that have aged count until they are dropped. docs/row_life.md has the rest.\n"
        "\n"
        "Exit status: 0 all is good, 1 damage or a key that is there, 2 it cannot\n"
        "be opened.\n",
    .run = Run};

}  // namespace hotrow
