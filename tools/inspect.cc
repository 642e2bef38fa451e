#include <cstdio>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/status_macros.h"
#include "models/data/packed_format.h"
#include "models/delta/apply_chain.h"
#include "models/delta/delta_chain.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables_reader.h"
#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"
#include "tools/command.h"
#include "tools/directory_kind.h"
#include "tools/model_report.h"
#include "tools/store_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  bool json = false;
  int64_t store_bytes = 0;
  FlagSet flags("hotrow inspect");
  flags.AddSwitch("json", &json, "print one JSON object; what is unknown is null");
  flags.AddBytes("store_bytes", &store_bytes,
                 "memory for counting the rows of a checkpoint in an SSD store, about 10 bytes a "
                 "row; 0: no limit");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  const std::string& path = operands[0];
  const auto print = [&](const std::string& text, bool good) {
    std::fputs(text.c_str(), stdout);
    return good ? kExitGood : kExitDamage;
  };
  HOTROW_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(PosixEnv(), path));
  if (kind == DirectoryKind::kSavedModel || kind == DirectoryKind::kCheckpoints) {
    HOTROW_ASSIGN_OR_RETURN(const CheckpointReport report,
                            InspectCheckpoint(PosixEnv(), path, store_bytes));
    return print(json ? CheckpointReportJson(path, report) : CheckpointReportText(path, report),
                 report.damage.empty());
  }
  if (kind == DirectoryKind::kDeltaChain) {
    HOTROW_ASSIGN_OR_RETURN(const DeltaChain chain, ReadChain(PosixEnv(), path));
    const ChainSummary summary = SummariseChain(chain);
    return print(json ? ChainSummaryJson(summary) : ChainSummaryText(summary), true);
  }
  if (kind == DirectoryKind::kPackedData) {
    HOTROW_ASSIGN_OR_RETURN(const PackedManifest pack, ReadPackedManifest(PosixEnv(), path));
    return print(
        json ? PackedDataJson(path, pack) : PackedDataText(path, pack) + PackedColumnsText(pack),
        true);
  }
  if (kind == DirectoryKind::kPortableModel) {
    HOTROW_ASSIGN_OR_RETURN(const PortableModel portable,
                            ReadPortableManifest(PosixEnv(), path, /*edited=*/false));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> rows,
                            CheckPortableTables({.dir = path}, portable.tables));
    return print(
        json ? PortableModelJson(path, portable, rows) : PortableModelText(path, portable, rows),
        true);
  }
  if (kind == DirectoryKind::kRocksStore) {
    HOTROW_ASSIGN_OR_RETURN(const RocksStoreReport report, InspectRocksStore(path));
    return print(json ? StoreReportJson(path, report) : StoreReportText(path, report),
                 DamageCount(report) == 0);
  }
  HOTROW_RETURN_IF_ERROR(ExpectSsdStore(PosixEnv(), path));
  HOTROW_ASSIGN_OR_RETURN(const SsdStoreReport report, InspectSsdStore(PosixEnv(), path));
  return print(json ? StoreReportJson(path, report) : StoreReportText(path, report),
               DamageCount(report) == 0);
}

}  // namespace

const Command kInspectCommand = {
    .name = "inspect",
    .operands = "PATH",
    .summary = "shows the contents of a checkpoint, store or export: tables, rows, bytes, places",
    .details =
        "PATH is a checkpoint (one of them, a directory of them, whose newest is shown, or a\n"
        "model of --save_dir), the directory of an SSD or RocksDB store that no program has open,\n"
        "an export of `hotrow export`, a chain of deltas, or packed data. The command reads "
        "manifests\n"
        "and footers and writes nothing. It counts rows as far as it can without reading them;\n"
        "`hotrow verify` reads them, too. The write amplification of a RocksDB store is known\n"
        "only while it is open.\n",
    .run = Run};

}  // namespace hotrow
