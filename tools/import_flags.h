#ifndef HOTROW_TOOLS_IMPORT_FLAGS_H_
#define HOTROW_TOOLS_IMPORT_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "base/flag_set.h"
#include "models/saving/portable_model.h"

namespace hotrow {

// Flags of a command that makes a checkpoint: the store of its rows, and budgets.
void AddImportFlags(FlagSet* flags, std::string* store, ImportOptions* options);

// Sets the kind of store that --store names, and the bytes that it has by default. Errors:
// InvalidArgument.
absl::Status ResolveImportFlags(const std::string& store, ImportOptions* options);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_IMPORT_FLAGS_H_
