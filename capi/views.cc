#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/host_registration.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "capi/call_impl.h"
#include "capi/views_impl.h"

namespace hotrow::capi {
namespace {

// No address of a process on x86-64 is as high.
constexpr uintptr_t kAddressesEnd = uintptr_t{1} << 56;
// Numbers of a gradient that a task looks at.
constexpr int64_t kFiniteGrain = int64_t{1} << 16;

bool IsFinite(const float* values, int64_t n) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t bad = 0;  // without branches: a vector at a time
  for (int64_t i = 0; i < n; ++i) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
  }
  return bad == 0;
}

absl::Status CheckFinite(ThreadPool* pool, const MatrixView<const float>& view,
                         std::string_view name) {
  std::atomic<bool> finite = true;
  const int64_t grain = std::max<int64_t>(1, kFiniteGrain / std::max<int64_t>(1, view.cols));
  ParallelFor(pool, view.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = view.data + r * view.stride;  // <= TakeMatrix's size
      if (!IsFinite(row, view.cols)) finite = false;
    }
  });
  for (int64_t r = 0; !finite && r < view.rows; ++r) {
    for (int64_t c = 0; c < view.cols; ++c) {
      const float value = view.data[r * view.stride + c];  // <= TakeMatrix's size
      if (std::isfinite(value)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient: ", std::string(name), "[", r, ", ", c, "] is ", value,
          ", must be finite; no row has moved: leave the step out, or scale the loss down"));
    }
  }
  return absl::OkStatus();
}

// `Out` is a variant of spans.
template <typename Out, typename T>
absl::Status TakeTyped(const void* data, int64_t count, std::string_view name, Out* out) {
  HOTROW_ASSIGN_OR_RETURN(*out, TakeArray<T>(data, count, name));
  return absl::OkStatus();
}

absl::Status WrongType(std::string_view name, int32_t type, std::string_view legal) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), ": is ", type, ", must be ", std::string(legal)));
}

absl::Status TakeBagSpan(const void* data, int32_t type, int64_t count, std::string_view name,
                         BagSpan* out) {
  if (type == HOTROW_INT64) return TakeTyped<BagSpan, int64_t>(data, count, name, out);
  if (type == HOTROW_INT32) return TakeTyped<BagSpan, int32_t>(data, count, name, out);
  return WrongType("bags_type", type, "HOTROW_INT64 or HOTROW_INT32");
}

// scores: or null.
absl::StatusOr<FeatureBags> TakeBags(const hotrow_bags& in, const float* scores, int64_t num_bags) {
  FeatureBags out;
  HOTROW_RETURN_IF_ERROR(CheckCount(in.num_values, "num_values"));
  if (in.values_type == HOTROW_UINT64) {
    HOTROW_RETURN_IF_ERROR(
        (TakeTyped<IdSpan, uint64_t>(in.values, in.num_values, "values", &out.values)));
  } else if (in.values_type == HOTROW_INT64) {
    HOTROW_RETURN_IF_ERROR(
        (TakeTyped<IdSpan, int64_t>(in.values, in.num_values, "values", &out.values)));
  } else if (in.values_type == HOTROW_INT32) {
    HOTROW_RETURN_IF_ERROR(
        (TakeTyped<IdSpan, int32_t>(in.values, in.num_values, "values", &out.values)));
  } else {
    return WrongType("values_type", in.values_type, "HOTROW_UINT64, HOTROW_INT64 or HOTROW_INT32");
  }
  if ((in.offsets == nullptr) == (in.lengths == nullptr)) {
    return absl::InvalidArgumentError(
        in.offsets == nullptr ? "offsets and lengths: are null; give one of them"
                              : "offsets and lengths: both are given; leave one of them null");
  }
  if (in.offsets != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        TakeBagSpan(in.offsets, in.bags_type, num_bags + 1, "offsets", &out.offsets));
  } else {
    HOTROW_RETURN_IF_ERROR(
        TakeBagSpan(in.lengths, in.bags_type, num_bags, "lengths", &out.lengths));
  }
  if (in.weights != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(out.weights, TakeArray<float>(in.weights, in.num_values, "weights"));
  }
  if (scores != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(out.scores, TakeArray<float>(scores, in.num_values, "scores"));
  }
  return out;
}

template <typename Views>
absl::Status TakeMatrices(const ExecContext& ctx, const hotrow_matrix* pooled,
                          const hotrow_matrix* unpooled, int64_t num_unpooled, Views* out) {
  if (pooled != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(out->pooled, TakeMatrix(*pooled, "pooled"));
    HOTROW_RETURN_IF_ERROR(CheckReached(ctx, pooled->data, "pooled.data"));
  }
  HOTROW_RETURN_IF_ERROR(CheckCount(num_unpooled, "num_unpooled", kListMax));
  if (num_unpooled > 0) HOTROW_RETURN_IF_ERROR(NotNull(unpooled, "unpooled"));
  for (int64_t i = 0; i < num_unpooled; ++i) {
    HOTROW_ASSIGN_OR_RETURN(const MatrixView<float> view,
                            TakeMatrix(unpooled[i], absl::StrCat("unpooled[", i, "]")));
    HOTROW_RETURN_IF_ERROR(
        CheckReached(ctx, unpooled[i].data, absl::StrCat("unpooled[", i, "].data")));
    out->unpooled.push_back(view);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCount(int64_t count, std::string_view name, int64_t most) {
  if (count >= 0 && count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), ": is ", count, ", must ",
                   most == INT64_MAX ? "be at least 0" : absl::StrCat("lie in [0, ", most, "]")));
}

absl::Status CheckArray(const void* data, int64_t count, size_t size, size_t align,
                        std::string_view name) {
  HOTROW_RETURN_IF_ERROR(CheckCount(count, name));
  if (count > 0 && data == nullptr) return NotNull(data, name);
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % align != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": is not aligned to ", align, " bytes"));
  }
  if (count == 0 || static_cast<uint64_t>(count) <= (kAddressesEnd - address) / size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": ", count, " of ", size,
                                                 " bytes each do not fit into any memory"));
}

absl::Status TakeTexts(const char* const* texts, int64_t count, std::string_view name,
                       std::vector<std::string>* out) {
  HOTROW_RETURN_IF_ERROR(CheckCount(count, absl::StrCat("num_", std::string(name)), kListMax));
  if (count > 0) HOTROW_RETURN_IF_ERROR(NotNull(texts, name));
  for (int64_t i = 0; i < count; ++i) {
    HOTROW_RETURN_IF_ERROR(NotNull(texts[i], absl::StrCat(std::string(name), "[", i, "]")));
    out->emplace_back(texts[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchView> TakeBatch(const hotrow_batch* in,
                                    const std::vector<std::string>& feature_names, Device device) {
  HOTROW_ASSIGN_OR_RETURN(
      const hotrow_batch batch,
      TakeStruct(in, hotrow_batch{.struct_size = sizeof(hotrow_batch)}, "batch"));
  const auto num_features = static_cast<int64_t>(feature_names.size());
  // So that no count of bags overflows.
  if (batch.batch_size < 0 ||
      batch.batch_size >= std::numeric_limits<int64_t>::max() / (num_features + 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.batch_size: is ", batch.batch_size, ", must be a number of samples"));
  }
  HOTROW_RETURN_IF_ERROR(NotNull(batch.bags, "batch.bags"));
  const auto scores_of = [&batch](int64_t f) {
    return batch.scores == nullptr ? nullptr : batch.scores[f];
  };
  if (batch.on_device < 0 || batch.on_device > 1 || batch.reserved != 0) {
    return absl::UnimplementedError(
        absl::StrCat("batch.on_device: is ", batch.on_device, ", must be 0 or 1, and reserved 0"));
  }
  if (batch.on_device != 0 && device == Device::kCpu) {
    return absl::InvalidArgumentError(
        "batch.on_device: is 1, and what reads the batch is not on a GPU; copy it to the host");
  }
  BatchView out;
  out.on_device = batch.on_device != 0;
  out.all.batch_size = batch.batch_size;
  if (batch.num_features == 0) {
    absl::StatusOr<FeatureBags> bags =
        TakeBags(batch.bags[0], scores_of(0), num_features * batch.batch_size);  // <= 2^63, above
    HOTROW_RETURN_IF_ERROR(At("batch.bags[0]", bags.status()));
    out.jagged = true;
    out.all.values = bags->values;
    out.all.offsets = bags->offsets;
    out.all.lengths = bags->lengths;
    out.all.weights = bags->weights;
    out.all.scores = bags->scores;
    return out;
  }
  if (batch.num_features != num_features) {
    return absl::InvalidArgumentError(absl::StrCat("batch.num_features: is ", batch.num_features,
                                                   ", expected ", num_features,
                                                   "; or 0, with all features in one array"));
  }
  out.bags.reserve(static_cast<size_t>(num_features));
  for (int64_t f = 0; f < num_features; ++f) {
    absl::StatusOr<FeatureBags> bags = TakeBags(batch.bags[f], scores_of(f), batch.batch_size);
    if (!bags.ok()) {
      return At(absl::StrCat("feature \"", feature_names[static_cast<size_t>(f)], "\""),
                bags.status());
    }
    out.bags.push_back(*bags);
  }
  return out;
}

absl::StatusOr<MatrixView<float>> TakeMatrix(const hotrow_matrix& matrix, std::string_view name) {
  const std::string place(name);
  if (matrix.type != HOTROW_FLOAT32) {
    return WrongType(absl::StrCat(place, ".type"), matrix.type, "HOTROW_FLOAT32");
  }
  if (matrix.reserved != 0) {
    return absl::UnimplementedError(absl::StrCat(place, ".reserved: must be 0"));
  }
  if (matrix.rows < 0 || matrix.cols < 0 || matrix.stride < matrix.cols) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": is [", matrix.rows, ", ", matrix.cols,
                                                   "] with a stride of ", matrix.stride,
                                                   ", which is no matrix"));
  }
  int64_t size = 0;  // from the first element to the last
  if (matrix.rows > 0 && matrix.cols > 0 &&
      (__builtin_mul_overflow(matrix.rows - 1, matrix.stride, &size) ||
       __builtin_add_overflow(size, matrix.cols, &size))) {
    size = INT64_MAX;
  }
  HOTROW_RETURN_IF_ERROR(
      CheckArray(matrix.data, size, sizeof(float), alignof(float), absl::StrCat(place, ".data")));
  return MatrixView<float>(static_cast<float*>(matrix.data), matrix.rows, matrix.cols,
                           matrix.stride);
}

absl::StatusOr<EmbeddingOutput> TakeOutput(const ExecContext& ctx, const hotrow_matrix* pooled,
                                           const hotrow_matrix* unpooled, int64_t num_unpooled) {
  EmbeddingOutput out;
  HOTROW_RETURN_IF_ERROR(TakeMatrices(ctx, pooled, unpooled, num_unpooled, &out));
  return out;
}

absl::StatusOr<EmbeddingGradient> TakeGradient(const ExecContext& ctx, const hotrow_matrix* pooled,
                                               const hotrow_matrix* unpooled,
                                               int64_t num_unpooled) {
  EmbeddingGradient out;
  HOTROW_RETURN_IF_ERROR(TakeMatrices(ctx, pooled, unpooled, num_unpooled, &out));
  if (ctx.device != Device::kCpu) return out;
  HOTROW_RETURN_IF_ERROR(CheckFinite(ctx.pool, out.pooled, "pooled"));
  for (size_t i = 0; i < out.unpooled.size(); ++i) {
    HOTROW_RETURN_IF_ERROR(
        CheckFinite(ctx.pool, out.unpooled[i], absl::StrCat("unpooled[", i, "]")));
  }
  return out;
}

}  // namespace hotrow::capi
