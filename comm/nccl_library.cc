#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/nccl_library_impl.cuh"

namespace hotrow::internal {
namespace {

// Whole in the binary, where tools/gpu_bundle.sh looks for it.
#define HOTROW_STRING_(x) #x
#define HOTROW_STRING(x) HOTROW_STRING_(x)
constexpr char kFile[] = "libnccl.so." HOTROW_STRING(NCCL_MAJOR);
#undef HOTROW_STRING
#undef HOTROW_STRING_

absl::StatusOr<NcclLibrary> Load() {
  void* const library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no usable GPU: ", kFile, ", by which ranks on GPUs talk, cannot be loaded (", dlerror(),
        "); NVIDIA's package libnccl2 and PyTorch have it: put its directory on "
        "LD_LIBRARY_PATH"));
  }
  NcclLibrary functions;
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
#define HOTROW_NCCL_FIND(name) find(#name, &functions.name);
  HOTROW_NCCL_FUNCTIONS(HOTROW_NCCL_FIND)
#undef HOTROW_NCCL_FIND
  if (missing.empty()) return functions;
  dlclose(library);
  return absl::FailedPreconditionError(
      absl::StrCat("no usable GPU: ", kFile, " is another version, it lacks ", missing));
}

}  // namespace

absl::StatusOr<const NcclLibrary*> LoadNccl() {
  static const absl::StatusOr<NcclLibrary>* const loaded = new absl::StatusOr<NcclLibrary>(Load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace hotrow::internal
