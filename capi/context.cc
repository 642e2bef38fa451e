#include <sched.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/device.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/handles_impl.h"

namespace hotrow::capi {
namespace {

constexpr int32_t kThreadsMax = 1024;

hotrow_context_options DefaultContext() { return {.struct_size = sizeof(hotrow_context_options)}; }

// The processors of this process: what taskset or a container leaves it.
int32_t NumProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(CPU_COUNT(&set), 1, kThreadsMax);
}

absl::StatusOr<std::shared_ptr<ContextState>> MakeState(const hotrow_context_options& options) {
  auto state = std::make_shared<ContextState>();
  const std::string_view device = options.device == nullptr ? "cpu" : TextOf(options.device);
  if (device != DeviceName(Device::kCpu) && device != DeviceName(Device::kCuda)) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.device: is \"", std::string(device), "\", must be cpu or cuda"));
  }
  if (device == DeviceName(Device::kCuda)) state->exec.device = Device::kCuda;
  if (options.cuda_stream != nullptr && state->exec.device == Device::kCpu) {
    return absl::InvalidArgumentError("options.cuda_stream: is given, the device is cpu");
  }
  HOTROW_ASSIGN_OR_RETURN(const int devices, NumDevices(state->exec.device));
  if (options.device_index < 0 || options.device_index >= devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.device_index: is ", options.device_index, ", must lie in [0, ",
                     devices, "), the ", std::string(device), " devices of this machine"));
  }
  state->exec.device_index = options.device_index;
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat("options.threads: is ", options.threads,
                                                   ", must lie in [0, ", kThreadsMax, "]"));
  }
  state->pool =
      std::make_unique<ThreadPool>(options.threads == 0 ? NumProcessors() : options.threads);
  HOTROW_RETURN_IF_ERROR(state->pool->status());
  state->exec.pool = state->pool.get();
  if (state->exec.device == Device::kCuda && options.cuda_stream == nullptr) {
    HOTROW_ASSIGN_OR_RETURN(const DeviceScope scope, DeviceScope::Enter(state->exec));
    HOTROW_ASSIGN_OR_RETURN(state->stream, DeviceStream::Create(Device::kCuda));
    state->exec = state->stream->On(state->exec);
    return state;
  }
  state->exec.stream = static_cast<CudaStream>(options.cuda_stream);
  HOTROW_RETURN_IF_ERROR(CheckStream(state->exec, "options.cuda_stream"));
  return state;
}

}  // namespace

absl::Status CheckStream(const ExecContext& ctx, std::string_view name) {
  HOTROW_ASSIGN_OR_RETURN(const int of_stream, DeviceOfStream(ctx));
  if (of_stream == ctx.device_index) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(name), ": is of device ", of_stream, ", and options.device_index is ",
      ctx.device_index, "; make the stream when that device is the current one"));
}

absl::StatusOr<DeviceScope> DeviceScope::Enter([[maybe_unused]] const ExecContext& exec) {
  DeviceScope scope;
#if HOTROW_HAVE_CUDA
  if (exec.device == Device::kCuda) {
    HOTROW_ASSIGN_OR_RETURN(CudaDeviceGuard guard, CudaDeviceGuard::Set(exec.device_index));
    scope.guard_.emplace(std::move(guard));
  }
#endif
  return scope;
}

ContextState::~ContextState() {
  if (!stream.has_value()) return;
  const absl::StatusOr<DeviceScope> scope = DeviceScope::Enter(exec);
  stream.reset();
}

absl::StatusOr<std::shared_ptr<ContextState>> StateOf(const hotrow_context* context) {
  if (context != nullptr) {
    HOTROW_RETURN_IF_ERROR(Usable(context, "context"));
    return context->state;
  }
  return MakeState(DefaultContext());
}

}  // namespace hotrow::capi

using namespace hotrow::capi;  // NOLINT: what follows is the C interface

extern "C" {

void hotrow_context_options_default(hotrow_context_options* options, uint64_t struct_size) {
  WriteDefault(DefaultContext(), options, struct_size);
}

hotrow_status hotrow_context_create(const hotrow_context_options* options,
                                    hotrow_context** context) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(context, "context"));
    hotrow_context_options taken = DefaultContext();
    if (options != nullptr) {
      HOTROW_ASSIGN_OR_RETURN(taken, TakeStruct(options, DefaultContext(), "options"));
    }
    HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<ContextState> state, MakeState(taken));
    *context = new hotrow_context{{}, std::move(state)};
    return absl::OkStatus();
  });
}

void hotrow_context_destroy(hotrow_context* context) {
  CallVoid([&] { Destroy(context); });
}

}  // extern "C"
