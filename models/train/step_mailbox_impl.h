#ifndef HOTROW_MODELS_TRAIN_STEP_MAILBOX_IMPL_H_
#define HOTROW_MODELS_TRAIN_STEP_MAILBOX_IMPL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"

namespace hotrow {

// What passes between the host and a GPU in a step of training, through page-locked memory and
// without a wait in the step: dense features, labels, offsets and the number of the step on their
// way up; the loss and other numbers on their way down, which are read when later steps have been
// enqueued. Dense features and labels travel from where they lie, page-locked memory in training.
//
// A step:  Keep, Upload, kernels that write numbers(), Post. A step that does not come to its Post
//          leaves nothing behind: the next one takes its place. Evaluation only uploads.
// Threads: one call at a time; work is enqueued on the stream of the context. On the CPU everything
//          is done on return.
// Errors:  ResourceExhausted (no memory; Create), those of the device.
class StepMailbox {
 public:
  // Steps that are posted and not read, at most.
  static constexpr int64_t kUnreadMax = 3;

  struct Shape {
    int64_t dense_max = 0;    // floats of dense features of a batch, at most
    int64_t labels_max = 0;   // of labels
    int64_t offsets_max = 0;  // numbers of UploadOffsets
    int64_t num_numbers = 0;  // a step leaves for the host
  };
  static absl::StatusOr<std::unique_ptr<StepMailbox>> Create(const ExecContext& ctx,
                                                             const Shape& shape);
  // Copies of a step that was given up may still be under way, and its memory serves others next.
  ~StepMailbox() { WaitForStream(ctx_).IgnoreError(); }
  StepMailbox(const StepMailbox&) = delete;
  StepMailbox& operator=(const StepMailbox&) = delete;

  // What the next UploadDense and UploadLabels read: kept until their step is read, or until
  // a step takes the place of this one.
  absl::Status Keep(std::shared_ptr<const void> owner);
  // Copies what the host has to the device; returns where it is there until the next call.
  absl::StatusOr<const float*> UploadDense(std::span<const float> dense);
  absl::StatusOr<const float*> UploadLabels(std::span<const float> labels);
  absl::StatusOr<const int64_t*> UploadOffsets(std::span<const int64_t> offsets);
  absl::StatusOr<const uint32_t*> UploadStep(uint32_t number);

  // Memory of the device: [num_numbers], of the step in hand.
  double* numbers() { return numbers_.data(); }
  // All kernels of the step are enqueued. At most kUnreadMax steps are unread then.
  absl::Status Post();

  int64_t num_unread() const { return posted_ - read_; }
  // The numbers of the oldest unread step, until the next Read. Waits until its kernels are done,
  // not for those of later steps.
  absl::StatusOr<std::span<const double>> Read();

 private:
  // The step in hand has one, and each unread one.
  static constexpr int64_t kSlots = kUnreadMax + 1;
  template <typename T>
  struct Upload {
    SharedBuffer<T> memory;
    DeviceEvent copied;  // the host may write `memory` again
  };
  struct Slot {
    std::shared_ptr<const void> owner;  // may go behind the next two
    DeviceEvent dense_copied, labels_copied;
    Upload<int64_t> offsets;
    Upload<uint32_t> step;
    SharedBuffer<double> numbers;
    DeviceEvent done;
  };

  explicit StepMailbox(const ExecContext& ctx) : ctx_(ctx) {}
  Slot& in_hand() { return slots_[static_cast<size_t>(posted_ % kSlots)]; }
  absl::StatusOr<const float*> Send(std::span<const float> items, DeviceEvent* copied,
                                    DeviceMemory<float>* to);
  template <typename T>
  absl::StatusOr<const T*> Send(std::span<const T> items, Upload<T>* upload, DeviceMemory<T>* to);

  const ExecContext ctx_;
  // One for all steps: the stream keeps their order.
  DeviceMemory<float> dense_;
  DeviceMemory<float> labels_;
  DeviceMemory<int64_t> offsets_;
  DeviceMemory<uint32_t> step_;
  DeviceMemory<double> numbers_;
  std::array<Slot, kSlots> slots_;
  int64_t posted_ = 0;
  int64_t read_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_STEP_MAILBOX_IMPL_H_
