#ifndef HOTROW_BASE_DISPATCH_H_
#define HOTROW_BASE_DISPATCH_H_

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow::internal {

// Runs cpu() or cuda(stream), depending on ctx.device. No other place switches on the device.
// `cuda` is a generic lambda: a build without CUDA never instantiates it and needs no stubs.
template <typename CpuFn, typename CudaFn>
absl::Status Dispatch(const ExecContext& ctx, CpuFn&& cpu, CudaFn&& cuda) {
  if (ctx.device == Device::kCpu) return cpu();
#if HOTROW_HAVE_CUDA
  return cuda(ctx.stream);
#else
  return absl::UnimplementedError("this build has no CUDA; configure with -DHOTROW_CUDA=ON");
#endif
}

}  // namespace hotrow::internal

#endif  // HOTROW_BASE_DISPATCH_H_
