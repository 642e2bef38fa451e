#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/machine_limits.h"
#include "base/status_macros.h"
#include "models/saving/portable_model.h"
#include "store/store_facts.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ImportOptions options;
  std::string store = "memory";
  bool json = false;
  FlagSet flags("hotrow import");
  flags.AddString("store", "WORD", &store,
                  absl::StrCat("kind of store: ", StoreWords(nullptr, "or")));
  flags.AddString("store_path", "DIR", &options.store_path,
                  absl::StrCat("directory of an ", StoreWords(&StoreFacts::on_disk, "or"),
                               " store; it must be missing or empty"));
  flags.DescribeDefault("CHECKPOINT/store");
  flags.AddBytes("store_bytes", &options.store_bytes,
                 "memory of the store. memory: all rows; ssd: index and buffers");
  flags.DescribeDefault("80 % of the memory; with rocksdb 256 MiB");
  flags.AddBytes("disk_bytes", &options.disk_bytes, "disk budget of the store while it is filled");
  flags.DescribeDefault("three times its rows");
  flags.AddBytes("memory_bytes", &options.memory_bytes,
                 "memory of buffers, for tables of any size");
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
  absl::StatusOr<StoreKind> kind = ParseStoreKind(store);
  if (!kind.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store=", store, ": ", std::string(kind.status().message())));
  }
  options.store = *kind;
  if (options.store_bytes == 0) {
    const int64_t filling_bytes = FactsOf(*kind).filling_bytes;
    options.store_bytes = filling_bytes > 0 ? filling_bytes : UsableMemoryBytes() / 10 * 8;
  }
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
