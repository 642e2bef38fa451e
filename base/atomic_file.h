#ifndef HOTROW_BASE_ATOMIC_FILE_H_
#define HOTROW_BASE_ATOMIC_FILE_H_

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// Where the bytes of an output file go.
struct OutputPlace {
  std::string path;  // behind the links, the last one included; it need not exist
  // A device, a FIFO or an open descriptor (/dev/stdout, /dev/fd/63): written from end to end, and
  // never replaced. It is no file of an Env.
  bool in_place = false;

  // What is written and gets the name `path` at the end.
  std::string temporary() const { return path + ".tmp"; }
};

// Finds out what `path` is; opens and changes nothing. Errors: FailedPrecondition (a block device,
// a socket, links in a circle), which names it.
absl::StatusOr<OutputPlace> FindOutput(const std::string& path);

// All that writes aside and renames a file over another goes through these functions, so that a
// device stays a device and a link a link (tests/check_layering.sh looks for renames).

// WriteFileAtomically (base/env.h) for bytes that are not one text: `write` fills the empty file
// that it is given, from its beginning to its end. Its error ends the write, and path stays as it
// was. A path that is written in place (OutputPlace) has the bytes up to the error.
absl::Status WriteFileAtomicallyWith(Env& env, const std::string& path,
                                     absl::FunctionRef<absl::Status(File& file)> write);
// WriteFileAtomically for a file that soon is written again: readers see the old text or the new,
// a power cut may leave neither.
absl::Status ReplaceFile(Env& env, const std::string& path, std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_BASE_ATOMIC_FILE_H_
