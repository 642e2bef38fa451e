#include "capi/batch_copy_impl.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/host_registration.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"

namespace hotrow::capi {
namespace {

// More than any batch that the engine takes: INT32_MAX lookups of 8 bytes, and their bags.
constexpr int64_t kBytesMax = int64_t{1} << 40;

template <typename T>
constexpr int64_t WidthOf(std::span<T>) {
  return static_cast<int64_t>(sizeof(T));
}

// Calls fn(array, name, feature) for each array that is not empty, all ids first. fn may change
// where the array is. feature: -1: all of them.
template <typename Fn>
absl::Status ForEachArray(BatchView* view, const Fn& fn) {
  const auto visit = [&](auto& bags, int64_t feature, int kind) -> absl::Status {
    const auto one = [&](auto& span, const char* name) -> absl::Status {
      return span.empty() ? absl::OkStatus() : fn(span, name, feature);
    };
    const auto any = [&](auto& variant, const char* name) {
      return std::visit([&](auto& span) { return one(span, name); }, variant);
    };
    switch (kind) {
      case 0:
        return any(bags.values, "values");
      case 1:
        HOTROW_RETURN_IF_ERROR(any(bags.offsets, "offsets"));
        return any(bags.lengths, "lengths");
      case 2:
        return one(bags.weights, "weights");
      default:
        return one(bags.scores, "scores");
    }
  };
  for (int kind = 0; kind < 4; ++kind) {
    if (view->jagged) HOTROW_RETURN_IF_ERROR(visit(view->all, -1, kind));
    for (size_t f = 0; f < view->bags.size(); ++f) {
      HOTROW_RETURN_IF_ERROR(visit(view->bags[f], static_cast<int64_t>(f), kind));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchCopy>> BatchCopy::Create(const ExecContext& ctx) {
  auto copy = std::make_unique<BatchCopy>();
  HOTROW_ASSIGN_OR_RETURN(copy->done_, DeviceEvent::Create(ctx.device));
  return copy;
}

absl::Status BatchCopy::Begin(const ExecContext& ctx, const BatchView& from,
                              const std::vector<std::string>& feature_names,
                              DeviceStream* through) {
  view_ = from;
  std::vector<bool> on_device;  // of each array
  int64_t bytes = 0;
  HOTROW_RETURN_IF_ERROR(
      ForEachArray(&view_, [&](auto& span, const char* name, int64_t feature) -> absl::Status {
        absl::StatusOr<bool> is = IsOnDevice(ctx, span.data(), name);
        if (!is.ok()) {
          return At(feature < 0 ? std::string("batch.bags[0]")
                                : absl::StrCat("feature \"",
                                               feature_names[static_cast<size_t>(feature)], "\""),
                    is.status());
        }
        on_device.push_back(*is);
        const int64_t size = std::min(kBytesMax, static_cast<int64_t>(span.size_bytes()));
        bytes = std::min(kBytesMax, RoundUp(bytes, WidthOf(span)) + size);
        return absl::OkStatus();
      }));
  if (bytes >= kBytesMax) {
    return absl::InvalidArgumentError("batch: its arrays are larger than those of any batch");
  }
  HOTROW_RETURN_IF_ERROR(memory_.Reserve(bytes, {.device = ctx.device}));
  HOTROW_RETURN_IF_ERROR(through->RunAfter(ctx.stream));
  const ExecContext on = through->On(ctx);
  int64_t at = 0;
  size_t array = 0;
  const absl::Status copied =
      ForEachArray(&view_, [&](auto& span, const char*, int64_t) -> absl::Status {
        at = RoundUp(at, WidthOf(span));
        std::byte* const to = memory_.data() + at;
        const void* const here = span.data();
        const auto size = static_cast<int64_t>(span.size_bytes());
        span = {reinterpret_cast<decltype(span.data())>(to), span.size()};
        at += size;
        if (on_device[array++]) return EnqueueCopy(on, to, here, size);
        std::memcpy(to, here, static_cast<size_t>(size));
        return absl::OkStatus();
      });
  // Also after an error: what was enqueued writes the memory.
  HOTROW_RETURN_IF_ERROR(done_.Record(*through));
  HOTROW_RETURN_IF_ERROR(through->RunBefore(ctx));
  if (!copied.ok()) done_.Wait().IgnoreError();
  return copied;
}

absl::StatusOr<std::shared_ptr<BatchCopy>> BatchCopies::Begin(
    const ExecContext& ctx, const BatchView& from, const std::vector<std::string>& feature_names) {
  if (copies_.empty()) {
    HOTROW_ASSIGN_OR_RETURN(stream_, DeviceStream::Create(ctx.device, /*is_urgent=*/true));
  }
  auto unused = std::find_if(copies_.begin(), copies_.end(),
                             [](const auto& copy) { return copy.use_count() == 1; });
  if (unused == copies_.end()) {
    HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<BatchCopy> made, BatchCopy::Create(ctx));
    copies_.push_back(std::move(made));
    unused = std::prev(copies_.end());
  }
  const std::shared_ptr<BatchCopy> copy = *unused;
  // A step that was dropped before its batch was there has not waited for it.
  HOTROW_RETURN_IF_ERROR(copy->Wait());
  HOTROW_RETURN_IF_ERROR(copy->Begin(ctx, from, feature_names, &stream_));
  return copy;
}

}  // namespace hotrow::capi
