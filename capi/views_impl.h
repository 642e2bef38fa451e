#ifndef HOTROW_CAPI_VIEWS_IMPL_H_
#define HOTROW_CAPI_VIEWS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/matrix_view.h"
#include "base/status_macros.h"
#include "embedding/embedding_step.h"
#include "embedding/jagged_batch.h"
#include "hotrow/hotrow.h"

// The caller's arrays as views. Checks what the C++ side cannot see: null and unaligned pointers,
// unknown types, counts below 0.

namespace hotrow::capi {

// Most entries of a list that a collection has one of for each table or feature.
inline constexpr int64_t kListMax = int64_t{1} << 20;
// InvalidArgument unless it lies in [0, most].
absl::Status CheckCount(int64_t count, std::string_view name, int64_t most = INT64_MAX);
// InvalidArgument unless an array of `count` elements of `size` bytes may begin there: it is not
// null, aligned, and ends before addresses do. All counts and sizes of callers come through here.
// name: for the error.
absl::Status CheckArray(const void* data, int64_t count, size_t size, size_t align,
                        std::string_view name);
template <typename T>
absl::StatusOr<std::span<const T>> TakeArray(const void* data, int64_t count,
                                             std::string_view name) {
  HOTROW_RETURN_IF_ERROR(CheckArray(data, count, sizeof(T), alignof(T), name));
  return std::span<const T>(static_cast<const T*>(data), static_cast<size_t>(count));
}

// Adds `count` texts, of which none may be null. name: for the error, as in "num_NAME".
absl::Status TakeTexts(const char* const* texts, int64_t count, std::string_view name,
                       std::vector<std::string>* out);

// A batch in either of its two forms.
struct BatchView {
  bool jagged = false;
  bool on_device = false;         // arrays may lie in memory of a GPU
  JaggedBatch all;                // jagged
  std::vector<FeatureBags> bags;  // not jagged
  FeatureBatch features() const { return {.batch_size = all.batch_size, .features = bags}; }
};
// device: what reads it; where that is none but the CPU, on_device is refused.
absl::StatusOr<BatchView> TakeBatch(const hotrow_batch* batch,
                                    const std::vector<std::string>& feature_names,
                                    Device device = Device::kCpu);

absl::StatusOr<MatrixView<float>> TakeMatrix(const hotrow_matrix& matrix, std::string_view name);
// Also InvalidArgument where ctx's device does not reach a matrix ...
absl::StatusOr<EmbeddingOutput> TakeOutput(const ExecContext& ctx, const hotrow_matrix* pooled,
                                           const hotrow_matrix* unpooled, int64_t num_unpooled);
// ... or a number of a gradient is not finite, in host memory.
absl::StatusOr<EmbeddingGradient> TakeGradient(const ExecContext& ctx, const hotrow_matrix* pooled,
                                               const hotrow_matrix* unpooled, int64_t num_unpooled);

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_VIEWS_IMPL_H_
