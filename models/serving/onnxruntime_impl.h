#ifndef HOTROW_MODELS_SERVING_ONNXRUNTIME_IMPL_H_
#define HOTROW_MODELS_SERVING_ONNXRUNTIME_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"

// What is used here of onnxruntime's C interface, onnxruntime_c_api.h. No build needs that header
// or links the library: a model that wants it loads it.

extern "C" {
struct OrtAllocator;
struct OrtEnv;
struct OrtMemoryInfo;
struct OrtRunOptions;
struct OrtSession;
struct OrtSessionOptions;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;

// What the one function that the library exports, OrtGetApiBase, gives.
struct OrtApiBase {
  // The functions, by number; null: the library is older than this version of the interface.
  const void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
}

namespace hotrow::internal {

// OrtApi is a struct of pointers to functions that grows at its end alone, so that each keeps its
// number. These are of its first version. Functions that return OrtStatus* return null for success.
#define HOTROW_ORT_FUNCTIONS(F)                                                                   \
  F(2, GetErrorMessage, const char*(const OrtStatus*))                                            \
  F(3, CreateEnv, OrtStatus*(int logging_level, const char* log_id, OrtEnv**))                    \
  F(8, CreateSessionFromArray,                                                                    \
    OrtStatus*(const OrtEnv*, const void* model, size_t bytes, const OrtSessionOptions*,          \
               OrtSession**))                                                                     \
  F(9, Run,                                                                                       \
    OrtStatus*(OrtSession*, const OrtRunOptions*, const char* const* input_names,                 \
               const OrtValue* const* inputs, size_t num_inputs, const char* const* output_names, \
               size_t num_outputs, OrtValue** outputs))                                           \
  F(10, CreateSessionOptions, OrtStatus*(OrtSessionOptions**))                                    \
  F(24, SetIntraOpNumThreads, OrtStatus*(OrtSessionOptions*, int threads))                        \
  F(30, SessionGetInputCount, OrtStatus*(const OrtSession*, size_t*))                             \
  F(31, SessionGetOutputCount, OrtStatus*(const OrtSession*, size_t*))                            \
  F(33, SessionGetInputTypeInfo, OrtStatus*(const OrtSession*, size_t index, OrtTypeInfo**))      \
  F(34, SessionGetOutputTypeInfo, OrtStatus*(const OrtSession*, size_t index, OrtTypeInfo**))     \
  F(36, SessionGetInputName,                                                                      \
    OrtStatus*(const OrtSession*, size_t index, OrtAllocator*, char** name))                      \
  F(37, SessionGetOutputName,                                                                     \
    OrtStatus*(const OrtSession*, size_t index, OrtAllocator*, char** name))                      \
  F(49, CreateTensorWithDataAsOrtValue,                                                           \
    OrtStatus*(const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* shape,              \
               size_t num_dims, int element_type, OrtValue**))                                    \
  F(55, CastTypeInfoToTensorInfo,                                                                 \
    OrtStatus*(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**))                            \
  F(60, GetTensorElementType, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int*))                 \
  F(61, GetDimensionsCount, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*))                \
  F(62, GetDimensions,                                                                            \
    OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t num_dims))                 \
  F(69, CreateCpuMemoryInfo, OrtStatus*(int allocator_type, int memory_type, OrtMemoryInfo**))    \
  F(76, AllocatorFree, OrtStatus*(OrtAllocator*, void*))                                          \
  F(78, GetAllocatorWithDefaultOptions, OrtStatus*(OrtAllocator**))                               \
  F(92, ReleaseEnv, void(OrtEnv*))                                                                \
  F(93, ReleaseStatus, void(OrtStatus*))                                                          \
  F(94, ReleaseMemoryInfo, void(OrtMemoryInfo*))                                                  \
  F(95, ReleaseSession, void(OrtSession*))                                                        \
  F(96, ReleaseValue, void(OrtValue*))                                                            \
  F(98, ReleaseTypeInfo, void(OrtTypeInfo*))                                                      \
  F(100, ReleaseSessionOptions, void(OrtSessionOptions*))

struct OnnxRuntime {
#define HOTROW_ORT_MEMBER(number, name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  HOTROW_ORT_FUNCTIONS(HOTROW_ORT_MEMBER)
#undef HOTROW_ORT_MEMBER
  std::string version;
};

inline constexpr int kOrtLogFatal = 4;         // ORT_LOGGING_LEVEL_FATAL: errors are returned
inline constexpr int kOrtFloat = 1;            // ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
inline constexpr int kOrtDeviceAllocator = 0;  // OrtDeviceAllocator
inline constexpr int kOrtDefaultMemory = 0;    // OrtMemTypeDefault

// Loads the library of this path or name, which stays loaded; empty: "libonnxruntime.so", as the
// loader finds it. FailedPrecondition: there is none, or it is none of onnxruntime's; names the
// remedy.
absl::StatusOr<OnnxRuntime> LoadOnnxRuntime(const std::string& library);

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_SERVING_ONNXRUNTIME_IMPL_H_
