#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "models/train/step_mailbox_impl.h"

namespace hotrow {
namespace {

// Room for n elements in memory of kind `Memory`; nothing may have none.
template <typename T, typename Memory>
absl::Status TakeBuffer(int64_t n, const Memory& memory, Buffer<T, Memory>* buffer) {
  auto taken = Buffer<T, Memory>::Create(std::max<int64_t>(n, 1), memory);
  if (!taken.ok()) return taken.status();
  *buffer = *std::move(taken);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepMailbox>> StepMailbox::Create(const ExecContext& ctx,
                                                                 const Shape& shape) {
  std::unique_ptr<StepMailbox> out(new StepMailbox(ctx));
  const MemoryOfDevice there = {.device = ctx.device, .stream = ctx.stream};
  const SharedMemory here = {.device = ctx.device};
  HOTROW_RETURN_IF_ERROR(TakeBuffer(shape.dense_max, there, &out->dense_));
  HOTROW_RETURN_IF_ERROR(TakeBuffer(shape.labels_max, there, &out->labels_));
  HOTROW_RETURN_IF_ERROR(TakeBuffer(shape.offsets_max, there, &out->offsets_));
  HOTROW_RETURN_IF_ERROR(TakeBuffer(1, there, &out->step_));
  HOTROW_RETURN_IF_ERROR(TakeBuffer(shape.num_numbers, there, &out->numbers_));
  for (Slot& slot : out->slots_) {
    HOTROW_RETURN_IF_ERROR(TakeBuffer(shape.offsets_max, here, &slot.offsets.memory));
    HOTROW_RETURN_IF_ERROR(TakeBuffer(1, here, &slot.step.memory));
    HOTROW_RETURN_IF_ERROR(TakeBuffer(shape.num_numbers, here, &slot.numbers));
    for (DeviceEvent* const event : {&slot.dense_copied, &slot.labels_copied, &slot.offsets.copied,
                                     &slot.step.copied, &slot.done}) {
      HOTROW_ASSIGN_OR_RETURN(*event, DeviceEvent::Create(ctx.device));
    }
  }
  return out;
}

absl::Status StepMailbox::Keep(std::shared_ptr<const void> owner) {
  Slot& slot = in_hand();
  HOTROW_RETURN_IF_ERROR(slot.dense_copied.Wait());
  HOTROW_RETURN_IF_ERROR(slot.labels_copied.Wait());
  slot.owner = std::move(owner);
  return absl::OkStatus();
}

absl::StatusOr<const float*> StepMailbox::Send(std::span<const float> items, DeviceEvent* copied,
                                               DeviceMemory<float>* to) {
  HOTROW_CHECK(std::ssize(items) <= to->size());
  HOTROW_RETURN_IF_ERROR(
      EnqueueCopy(ctx_, to->data(), items.data(), static_cast<int64_t>(items.size_bytes())));
  HOTROW_RETURN_IF_ERROR(copied->Record(ctx_));
  return to->data();
}

template <typename T>
absl::StatusOr<const T*> StepMailbox::Send(std::span<const T> items, Upload<T>* upload,
                                           DeviceMemory<T>* to) {
  const auto size = static_cast<int64_t>(items.size());
  HOTROW_CHECK(size <= upload->memory.size());
  // Evaluation, and a step that is tried again, use the same memory as the time before.
  HOTROW_RETURN_IF_ERROR(upload->copied.Wait());
  std::copy(items.begin(), items.end(), upload->memory.begin());
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, to->data(), upload->memory.data(),
                                     static_cast<int64_t>(items.size_bytes())));
  HOTROW_RETURN_IF_ERROR(upload->copied.Record(ctx_));
  return to->data();
}

absl::StatusOr<const float*> StepMailbox::UploadDense(std::span<const float> dense) {
  return Send(dense, &in_hand().dense_copied, &dense_);
}

absl::StatusOr<const float*> StepMailbox::UploadLabels(std::span<const float> labels) {
  return Send(labels, &in_hand().labels_copied, &labels_);
}

absl::StatusOr<const int64_t*> StepMailbox::UploadOffsets(std::span<const int64_t> offsets) {
  return Send(offsets, &in_hand().offsets, &offsets_);
}

absl::StatusOr<const uint32_t*> StepMailbox::UploadStep(uint32_t number) {
  return Send(std::span<const uint32_t>(&number, 1), &in_hand().step, &step_);
}

absl::Status StepMailbox::Post() {
  HOTROW_CHECK(num_unread() < kUnreadMax);
  Slot& slot = in_hand();
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, slot.numbers.data(), numbers_.data(), numbers_.bytes()));
  HOTROW_RETURN_IF_ERROR(slot.done.Record(ctx_));
  ++posted_;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const double>> StepMailbox::Read() {
  HOTROW_CHECK(num_unread() > 0);
  Slot& slot = slots_[static_cast<size_t>(read_ % kSlots)];
  HOTROW_RETURN_IF_ERROR(slot.done.Wait());
  ++read_;
  slot.owner.reset();
  return std::as_const(slot.numbers).span();
}

}  // namespace hotrow
