#ifndef HOTROW_COMM_NCCL_LIBRARY_IMPL_CUH_
#define HOTROW_COMM_NCCL_LIBRARY_IMPL_CUH_

#include <nccl.h>

#include "absl/status/statusor.h"

namespace hotrow::internal {

// The functions of NCCL that we call.
#define HOTROW_NCCL_FUNCTIONS(X) \
  X(ncclAllGather)               \
  X(ncclAllReduce)               \
  X(ncclBroadcast)               \
  X(ncclCommAbort)               \
  X(ncclCommDestroy)             \
  X(ncclCommFinalize)            \
  X(ncclCommGetAsyncError)       \
  X(ncclCommInitRankConfig)      \
  X(ncclGetErrorString)          \
  X(ncclGetLastError)            \
  X(ncclGetUniqueId)             \
  X(ncclGroupEnd)                \
  X(ncclGroupStart)              \
  X(ncclRecv)                    \
  X(ncclSend)

struct NcclLibrary {
#define HOTROW_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  HOTROW_NCCL_FUNCTIONS(HOTROW_NCCL_MEMBER)
#undef HOTROW_NCCL_MEMBER
};

// The library, loaded when it is first asked for and kept. Not linked: a program with CUDA in it
// should start, and train on one GPU or none, where it is missing. Looked for as the loader looks,
// LD_LIBRARY_PATH included, in the major version that we were compiled for. FailedPrecondition "no
// usable GPU: ..." says what is missing and where to get it. Any thread.
absl::StatusOr<const NcclLibrary*> LoadNccl();

}  // namespace hotrow::internal

#endif  // HOTROW_COMM_NCCL_LIBRARY_IMPL_CUH_
