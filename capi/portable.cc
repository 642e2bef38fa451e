#include <string>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "models/saving/checkpoint.h"
#include "models/saving/portable_model.h"
#include "models/saving/training_state.h"
#include "store/store_kind.h"

namespace hotrow::capi {
namespace {

hotrow_export_options DefaultExport() {
  const ExportOptions options;
  hotrow_export_options out = {};
  out.struct_size = sizeof(out);
  out.shard_bytes = options.shard_bytes;
  out.memory_bytes = options.memory_bytes;
  return out;
}

hotrow_import_options DefaultImport() {
  hotrow_import_options out = {};
  out.struct_size = sizeof(out);
  out.memory_bytes = ImportOptions().memory_bytes;
  return out;
}

absl::Status CheckPaths(const char* from, const char* to) {
  for (const auto& [path, name] : {std::pair(from, "from"), std::pair(to, "to")}) {
    HOTROW_RETURN_IF_ERROR(NotNull(path, absl::StrCat("options.", name)));
    if (*path == '\0')
      return absl::InvalidArgumentError(absl::StrCat("options.", name, ": is \"\""));
  }
  return absl::OkStatus();
}

absl::Status CheckAtLeast(int64_t value, int64_t least, std::string_view name) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("options.", std::string(name), ": is ", value, ", must be at least ", least));
}

absl::Status Export(const hotrow_export_options& in) {
  HOTROW_RETURN_IF_ERROR(CheckPaths(in.from, in.to));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(in.shard_bytes, 1, "shard_bytes"));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(in.memory_bytes, 1, "memory_bytes"));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(in.store_memory_bytes, 0, "store_memory_bytes"));
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(PosixEnv(), in.from));
  if (saved.training != nullptr && saved.training->rows_missed_steps()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "options.from: ", saved.dir,
        ": its tables have the weight_decay_mode \"table\", and their rows have yet to make up for "
        "steps that they missed; settle the tables before the checkpoint (hotrow_settle)"));
  }
  return ExportPortable({.checkpoint = in.from,
                         .dir = in.to,
                         .shard_bytes = in.shard_bytes,
                         .memory_bytes = in.memory_bytes,
                         .store_bytes = in.store_memory_bytes,
                         .store_option = "options.store_memory_bytes"})
      .status();
}

absl::Status Import(const hotrow_import_options& in) {
  HOTROW_RETURN_IF_ERROR(CheckPaths(in.from, in.to));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(in.store_memory_bytes, 1, "store_memory_bytes"));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(in.store_disk_bytes, 0, "store_disk_bytes"));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(in.memory_bytes, 1, "memory_bytes"));
  ImportOptions options = {.dir = in.from,
                           .checkpoint = in.to,
                           .edited = in.edited != 0,
                           .store_path = std::string(TextOf(in.store_path)),
                           .store_bytes = in.store_memory_bytes,
                           .disk_bytes = in.store_disk_bytes,
                           .memory_bytes = in.memory_bytes};
  if (in.store != nullptr) {
    absl::StatusOr<StoreKind> kind = ParseStoreKind(in.store);
    HOTROW_RETURN_IF_ERROR(At("options.store", kind.status()));
    options.store = *kind;
  }
  return ImportPortable(options).status();
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow::capi;  // NOLINT: what follows is the C interface

extern "C" {

void hotrow_export_options_default(hotrow_export_options* options, uint64_t struct_size) {
  WriteDefault(DefaultExport(), options, struct_size);
}

void hotrow_import_options_default(hotrow_import_options* options, uint64_t struct_size) {
  WriteDefault(DefaultImport(), options, struct_size);
}

hotrow_status hotrow_export(const hotrow_export_options* options) {
  return Call([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const hotrow_export_options taken,
                            TakeStruct(options, DefaultExport(), "options"));
    return Export(taken);
  });
}

hotrow_status hotrow_import(const hotrow_import_options* options) {
  return Call([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const hotrow_import_options taken,
                            TakeStruct(options, DefaultImport(), "options"));
    return Import(taken);
  });
}

}  // extern "C"
