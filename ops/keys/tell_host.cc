#include "ops/keys/tell_host.h"

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/keys/tell_host_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status TellHostArgs::Validate() const {
  constexpr char kOp[] = "TellHost";
  if (num_numbers < 0) {
    return internal::InvalidField(kOp, "num_numbers", "must be >= 0", num_numbers);
  }
  if (flag == nullptr) return internal::NullField(kOp, "flag");
  if (num_numbers == 0) return absl::OkStatus();
  if (from == nullptr) return internal::NullField(kOp, "from");
  if (to == nullptr) return internal::NullField(kOp, "to");
  return absl::OkStatus();
}

absl::Status TellHost(const ExecContext& ctx, const TellHostArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::TellHostCpu(args); },
      [&](auto stream) { return internal::TellHostCuda(args, stream); });
}

}  // namespace hotrow
