#ifndef HOTROW_OPS_KEYS_TELL_HOST_H_
#define HOTROW_OPS_KEYS_TELL_HOST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// On a CUDA device `from` is memory that the device reaches, `to` and `flag` page-locked memory of
// the host (base/device_flag.h).
struct TellHostArgs {
  const int64_t* from = nullptr;  // [N]
  int64_t* to = nullptr;          // [N]
  int64_t num_numbers = 0;        // N: a few, since one block copies them
  uint64_t* flag = nullptr;       // [1]
  uint64_t flag_value = 0;

  absl::Status Validate() const;
};

// Copies numbers to the host and sets the flag when they are there. Whoever sees the flag may also
// read what earlier work of the stream has written to page-locked memory.
absl::Status TellHost(const ExecContext& ctx, const TellHostArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_KEYS_TELL_HOST_H_
