// LoadNccl of the emulated GPU: the functions of tests/emulated_gpu/emulated_nccl.cc, which are
// linked.

#include "comm/nccl_library_impl.cuh"

namespace hotrow::internal {

absl::StatusOr<const NcclLibrary*> LoadNccl() {
#define HOTROW_NCCL_TAKE(name) .name = &::name,
  static constexpr NcclLibrary kEmulated = {HOTROW_NCCL_FUNCTIONS(HOTROW_NCCL_TAKE)};
#undef HOTROW_NCCL_TAKE
  return &kEmulated;
}

}  // namespace hotrow::internal
