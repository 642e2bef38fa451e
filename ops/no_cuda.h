#ifndef HOTROW_OPS_NO_CUDA_H_
#define HOTROW_OPS_NO_CUDA_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hotrow::internal {

// What an op that has CPU loops only answers on a CUDA device.
inline absl::Status NoCudaKernel(std::string_view op) {
  return absl::UnimplementedError(absl::StrCat(std::string(op), " has no CUDA kernel yet"));
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_NO_CUDA_H_
