#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/serving/onnxruntime_impl.h"

namespace hotrow::internal {
namespace {

// Of 1.12, the oldest release whose operators docs/onnx.md asks for.
constexpr uint32_t kApiVersion = 12;
constexpr char kDefaultName[] = "libonnxruntime.so";
// Where a caller names the library.
constexpr char kWhere[] = "--onnxruntime, HOTROW_ONNXRUNTIME or ScorerOptions.onnxruntime";

}  // namespace

absl::StatusOr<OnnxRuntime> LoadOnnxRuntime(const std::string& library) {
  const std::string name = library.empty() ? kDefaultName : library;
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its dense part is ONNX, and onnxruntime, which runs it, cannot be loaded (", dlerror(),
        "); install it (pip install onnxruntime) and name its library, "
        "onnxruntime/capi/libonnxruntime.so.*, in ",
        kWhere));
  }
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (base == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(name,
                     ": is no library of onnxruntime's, it has no OrtGetApiBase; name "
                     "onnxruntime/capi/libonnxruntime.so.* in ",
                     kWhere));
  }
  const void* const* const functions = base()->GetApi(kApiVersion);
  const std::string version = base()->GetVersionString();
  if (functions == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, ": onnxruntime ", version, " is too old; use one from 1.", kApiVersion, " on"));
  }
  OnnxRuntime out = {.version = version};
#define HOTROW_ORT_TAKE(number, name, ...) \
  out.name =                               \
      reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(const_cast<void*>(functions[number]));
  HOTROW_ORT_FUNCTIONS(HOTROW_ORT_TAKE)
#undef HOTROW_ORT_TAKE
  return out;
}

}  // namespace hotrow::internal
