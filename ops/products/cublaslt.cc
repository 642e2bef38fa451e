#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "ops/products/cublaslt_impl.cuh"

namespace hotrow::internal {
namespace {

// Whole in the binary, where tools/gpu_bundle.sh looks for it.
#define HOTROW_STRING_(x) #x
#define HOTROW_STRING(x) HOTROW_STRING_(x)
constexpr char kFile[] = "libcublasLt.so." HOTROW_STRING(CUBLAS_VER_MAJOR);

absl::StatusOr<CublasLt> Load() {
  void* const library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no usable GPU: ", kFile, ", which multiplies matrices, cannot be loaded (", dlerror(),
        "); it comes with the CUDA Toolkit and with PyTorch: put its directory on "
        "LD_LIBRARY_PATH"));
  }
  CublasLt functions;
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
#define HOTROW_CUBLASLT_FIND(name) find(#name, &functions.name);
  HOTROW_CUBLASLT_FUNCTIONS(HOTROW_CUBLASLT_FIND)
#undef HOTROW_CUBLASLT_FIND
  if (missing.empty()) return functions;
  dlclose(library);
  return absl::FailedPreconditionError(
      absl::StrCat("no usable GPU: ", kFile, " is another version, it lacks ", missing));
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const absl::StatusOr<CublasLt>* const loaded = new absl::StatusOr<CublasLt>(Load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace hotrow::internal
