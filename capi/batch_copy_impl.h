#ifndef HOTROW_CAPI_BATCH_COPY_IMPL_H_
#define HOTROW_CAPI_BATCH_COPY_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "capi/views_impl.h"

namespace hotrow::capi {

// BatchCopy is a batch of which arrays lie in memory of a GPU, copied to page-locked memory of the
// host, where the engine reads it: ids end to end, which it then need not copy again.
class BatchCopy {
 public:
  BatchCopy() = default;
  // What is enqueued writes the memory.
  ~BatchCopy() { done_.Wait().IgnoreError(); }
  BatchCopy(const BatchCopy&) = delete;
  BatchCopy& operator=(const BatchCopy&) = delete;

  // Of the current GPU.
  static absl::StatusOr<std::unique_ptr<BatchCopy>> Create(const ExecContext& ctx);

  // Enqueues on `through` the copies of arrays of ctx's GPU, behind what ctx.stream has and before
  // what that gets later; copies those of the host at once. The copy before is over and unused.
  // InvalidArgument names an array of another GPU.
  absl::Status Begin(const ExecContext& ctx, const BatchView& from,
                     const std::vector<std::string>& feature_names, DeviceStream* through);
  // The copy, to be read once Wait has returned OK.
  const BatchView& view() const { return view_; }
  // Until the copies of Begin are done. Any thread.
  absl::Status Wait() const { return done_.Wait(); }

 private:
  BatchView view_;
  SharedBuffer<std::byte> memory_;
  DeviceEvent done_;
};

// The copies of a collection's batches, used again when nobody has them any more. One thread.
class BatchCopies {
 public:
  // As BatchCopy::Begin, with a stream of its own.
  absl::StatusOr<std::shared_ptr<BatchCopy>> Begin(const ExecContext& ctx, const BatchView& from,
                                                   const std::vector<std::string>& feature_names);

 private:
  DeviceStream stream_;
  std::vector<std::shared_ptr<BatchCopy>> copies_;
};

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_BATCH_COPY_IMPL_H_
