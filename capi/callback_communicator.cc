#include "capi/callback_communicator_impl.h"

#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/handles_impl.h"

namespace hotrow::capi {
namespace {

constexpr int32_t kWorldSizeMax = 4096;

// Each channel asks every few milliseconds while it waits for a device, and a transport asks other
// machines, or waits until its interpreter is free.
constexpr auto kAskInterval = std::chrono::milliseconds(20);

using Clock = std::chrono::steady_clock;
using Text = std::array<char, 1024>;

// What the channels of a family share.
class Family {
 public:
  explicit Family(const hotrow_communicator_callbacks& callbacks) : callbacks_(callbacks) {}

  const hotrow_communicator_callbacks& callbacks() const { return callbacks_; }

  absl::Status failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // Keeps the first failure, tells the others, and returns the one that counts.
  absl::Status Fail(absl::Status status) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
      failure_ = status;
    }
    const std::lock_guard lock(first_mutex_);
    if (callbacks_.abort != nullptr && !first_released_) {
      callbacks_.abort(callbacks_.user, std::string(status.message()).c_str());
    }
    return status;
  }
  // The failure, or what the transport has heard of another rank's.
  absl::Status Ask() {
    HOTROW_RETURN_IF_ERROR(failure());
    if (callbacks_.status == nullptr) return absl::OkStatus();
    Text text = {};
    hotrow_status code = HOTROW_OK;
    {
      // Who has just been told, or waits for the answer, tells all.
      const std::unique_lock lock(first_mutex_, std::try_to_lock);
      if (!lock.owns_lock() || Clock::now() < next_ask_) return absl::OkStatus();
      if (!first_released_) code = callbacks_.status(callbacks_.user, text.data(), text.size());
      next_ask_ = Clock::now() + kAskInterval;
    }
    if (code == HOTROW_OK) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = StatusOf(code, &text);
    return failure_;
  }
  // What a callback returned that is not HOTROW_OK, and its text.
  absl::Status StatusOf(hotrow_status code, Text* text) const {
    text->back() = '\0';
    const auto known = code > 0 && code <= HOTROW_DATA_LOSS ? static_cast<absl::StatusCode>(code)
                                                            : absl::StatusCode::kUnknown;
    if (text->front() != '\0') return absl::Status(known, text->data());
    return absl::Status(known, absl::StrCat("rank ", callbacks_.rank, "'s transport returned ",
                                            hotrow_status_name(code)));
  }
  // Ends a channel. `user` of the first one is that of abort and status, too.
  void Release(void* user, bool first) {
    if (first) {
      const std::lock_guard lock(first_mutex_);
      first_released_ = true;
    }
    if (callbacks_.release != nullptr) callbacks_.release(user);
  }

 private:
  const hotrow_communicator_callbacks callbacks_;
  std::mutex mutex_;
  absl::Status failure_;
  std::mutex first_mutex_;  // from asking whether the first channel is there to the end of its call
  bool first_released_ = false;
  Clock::time_point next_ask_;  // not before; first_mutex_ guards it
};

class CallbackCommunicator final : public Communicator {
 public:
  CallbackCommunicator(const CommunicatorOptions& options, std::shared_ptr<Family> family,
                       void* user, bool first)
      : Communicator(family->callbacks().rank, family->callbacks().world_size, options),
        family_(std::move(family)),
        user_(user),
        first_(first) {}

  ~CallbackCommunicator() override { family_->Release(user_, first_); }

 protected:
  absl::Status DoExchange(std::string_view op, std::span<const ConstBytes> send,
                          std::span<const Bytes> recv) override {
    HOTROW_RETURN_IF_ERROR(family_->failure());
    std::vector<const void*> from;
    std::vector<int64_t> from_bytes;
    std::vector<void*> to;
    std::vector<int64_t> to_bytes;
    for (int p = 0; p < world_size(); ++p) {
      const auto i = static_cast<size_t>(p);
      const bool own = p == rank();
      from.push_back(own ? nullptr : send[i].data());
      from_bytes.push_back(own ? 0 : std::ssize(send[i]));
      to.push_back(own ? nullptr : recv[i].data());
      to_bytes.push_back(own ? 0 : std::ssize(recv[i]));
    }
    Text text = {};
    const hotrow_status code =
        calls().exchange(user_, std::string(op).c_str(), from.data(), from_bytes.data(), to.data(),
                         to_bytes.data(), options().timeout_seconds, text.data(), text.size());
    return Verdict(op, code, &text);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoDuplicate() override {
    HOTROW_RETURN_IF_ERROR(family_->failure());
    Text text = {};
    void* channel = nullptr;
    const hotrow_status code = calls().duplicate(user_, &channel, text.data(), text.size());
    HOTROW_RETURN_IF_ERROR(Verdict("Duplicate", code, &text));
    return std::make_unique<CallbackCommunicator>(options(), family_, channel, /*first=*/false);
  }

  void DoAbort(std::string_view text) override {
    family_->Fail(absl::UnavailableError(std::string(text))).IgnoreError();
  }

  absl::Status DoStatus() override { return family_->Ask(); }

 private:
  const hotrow_communicator_callbacks& calls() const { return family_->callbacks(); }

  absl::Status Verdict(std::string_view op, hotrow_status code, Text* text) {
    if (code == HOTROW_OK) return absl::OkStatus();
    const absl::Status said = family_->StatusOf(code, text);
    return family_->Fail(absl::Status(
        said.code(), absl::StrCat(std::string(op), ": ", std::string(said.message()))));
  }

  const std::shared_ptr<Family> family_;
  void* const user_;
  const bool first_;  // of its family
};

hotrow_communicator_callbacks DefaultCallbacks() {
  return {.struct_size = sizeof(hotrow_communicator_callbacks),
          .timeout_seconds = CommunicatorOptions().timeout_seconds};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeCallbackCommunicator(
    const hotrow_communicator_callbacks& callbacks) {
  if (callbacks.world_size < 1 || callbacks.world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError(absl::StrCat("callbacks.world_size: is ",
                                                   callbacks.world_size, ", must lie in [1, ",
                                                   kWorldSizeMax, "]"));
  }
  if (callbacks.rank < 0 || callbacks.rank >= callbacks.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "callbacks.rank: is ", callbacks.rank, ", must lie in [0, ", callbacks.world_size, ")"));
  }
  HOTROW_RETURN_IF_ERROR(
      NotNull(reinterpret_cast<const void*>(callbacks.exchange), "callbacks.exchange"));
  HOTROW_RETURN_IF_ERROR(
      NotNull(reinterpret_cast<const void*>(callbacks.duplicate), "callbacks.duplicate"));
  CommunicatorOptions options;
  options.timeout_seconds = callbacks.timeout_seconds;
  HOTROW_RETURN_IF_ERROR(options.Validate());
  return std::make_unique<CallbackCommunicator>(options, std::make_shared<Family>(callbacks),
                                                callbacks.user, /*first=*/true);
}

}  // namespace hotrow::capi

using namespace hotrow::capi;  // NOLINT: what follows is the C interface

extern "C" {

void hotrow_communicator_callbacks_default(hotrow_communicator_callbacks* callbacks,
                                           uint64_t struct_size) {
  WriteDefault(DefaultCallbacks(), callbacks, struct_size);
}

hotrow_status hotrow_communicator_create(const hotrow_communicator_callbacks* callbacks,
                                         hotrow_communicator** communicator) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    HOTROW_ASSIGN_OR_RETURN(const hotrow_communicator_callbacks taken,
                            TakeStruct(callbacks, DefaultCallbacks(), "callbacks"));
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<hotrow::Communicator> channel,
                            MakeCallbackCommunicator(taken));
    *communicator = new hotrow_communicator{{}, std::move(channel)};
    return absl::OkStatus();
  });
}

void hotrow_communicator_destroy(hotrow_communicator* communicator) {
  CallVoid([&] { Destroy(communicator); });
}

hotrow_status hotrow_communicator_abort(hotrow_communicator* communicator, const char* message) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    HOTROW_RETURN_IF_ERROR(NotNull(message, "message"));
    if (communicator->forked()) return absl::OkStatus();  // the job is not this process's
    communicator->channel->Abort(message);
    return absl::OkStatus();
  });
}

}  // extern "C"
