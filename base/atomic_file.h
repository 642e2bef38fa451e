#ifndef HOTROW_BASE_ATOMIC_FILE_H_
#define HOTROW_BASE_ATOMIC_FILE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/env.h"

namespace hotrow {

// WriteFileAtomically (base/env.h) for bytes that are not one text: `write` fills the empty file
// that it is given. Its error ends the write, and path stays as it was.
absl::Status WriteFileAtomicallyWith(Env& env, const std::string& path,
                                     absl::FunctionRef<absl::Status(File& file)> write);

}  // namespace hotrow

#endif  // HOTROW_BASE_ATOMIC_FILE_H_
