#include "comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "comm/nccl_library_impl.cuh"

namespace hotrow {
namespace {

using internal::NcclLibrary;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::microseconds(20);
constexpr auto kAskHostInterval = std::chrono::milliseconds(5);

// Threads: the caller's, and one that watches the calls under way (Watch). mutex_ is held by
// whoever uses the communicator or the host's channel, but for its status.
class Nccl final : public NcclCommunicator {
 public:
  Nccl(const NcclLibrary& library, int rank, int world_size, double timeout_seconds,
       std::unique_ptr<Communicator> host)
      : library_(library),
        rank_(rank),
        world_size_(world_size),
        timeout_seconds_(timeout_seconds),
        host_(std::move(host)) {}

  ~Nccl() override {
    StopWatching();
    if (comm_ == nullptr) return;
    if (failure_.ok() && Settle("NCCL ends", library_.ncclCommFinalize(comm_)).ok()) {
      library_.ncclCommDestroy(comm_);
    } else if (comm_ != nullptr) {
      library_.ncclCommAbort(comm_);
    }
  }

  absl::Status Init(const ncclUniqueId& id) {
    const std::lock_guard lock(mutex_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // every call returns at once, so that we can give up
    HOTROW_RETURN_IF_ERROR(Settle(
        "NCCL starts", library_.ncclCommInitRankConfig(&comm_, world_size_, id, rank_, &config)));
    if (absl::Status status = StartWatching(); !status.ok()) return Fail(std::move(status));
    return absl::OkStatus();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  absl::Status AllToAllV(const AllToAllVArgs& args, CudaStream stream) override {
    constexpr std::string_view kOp = "AllToAllV on the device";
    const std::lock_guard lock(mutex_);
    HOTROW_RETURN_IF_ERROR(failure_);
    HOTROW_RETURN_IF_ERROR(
        CheckCounts(kOp, "send_", args.send, args.send_bytes, args.send_offsets));
    HOTROW_RETURN_IF_ERROR(
        CheckCounts(kOp, "recv_", args.recv, args.recv_bytes, args.recv_offsets));
    const auto self = static_cast<size_t>(rank_);
    if (args.send_bytes[self] != args.recv_bytes[self]) {
      return Refuse(kOp, absl::StrCat("rank ", rank_, " sends ", args.send_bytes[self],
                                      " bytes to itself and expects ", args.recv_bytes[self]));
    }
    const char* const send = static_cast<const char*>(args.send);
    char* const recv = static_cast<char*>(args.recv);
    if (args.send_bytes[self] > 0) {
      HOTROW_RETURN_IF_ERROR(CopyOwn(send + args.send_offsets[self], recv + args.recv_offsets[self],
                                     args.send_bytes[self], stream));
    }
    HOTROW_RETURN_IF_ERROR(Settle(kOp, library_.ncclGroupStart()));
    ncclResult_t result = ncclSuccess;
    for (int p = 0; p < world_size_; ++p) {
      const auto i = static_cast<size_t>(p);
      if (p == rank_) continue;
      if (args.send_bytes[i] > 0) {
        Keep(result,
             library_.ncclSend(send + args.send_offsets[i], static_cast<size_t>(args.send_bytes[i]),
                               ncclInt8, p, comm_, stream));
      }
      if (args.recv_bytes[i] > 0) {
        Keep(result,
             library_.ncclRecv(recv + args.recv_offsets[i], static_cast<size_t>(args.recv_bytes[i]),
                               ncclInt8, p, comm_, stream));
      }
    }
    Keep(result, library_.ncclGroupEnd());
    return Begun(kOp, result, stream);
  }

  absl::Status AllReduceSum(float* data, int64_t count, CudaStream stream) override {
    return AllReduce(data, count, ncclFloat32, stream);
  }
  absl::Status AllReduceSum(double* data, int64_t count, CudaStream stream) override {
    return AllReduce(data, count, ncclFloat64, stream);
  }
  absl::Status AllReduceSum(int64_t* data, int64_t count, CudaStream stream) override {
    return AllReduce(data, count, ncclInt64, stream);
  }

  absl::Status AllGather(const void* mine, int64_t bytes, void* all, CudaStream stream) override {
    constexpr std::string_view kOp = "AllGather on the device";
    const std::lock_guard lock(mutex_);
    HOTROW_RETURN_IF_ERROR(failure_);
    if (bytes < 0) return Refuse(kOp, absl::StrCat("bytes is negative: ", bytes));
    if (bytes == 0) return absl::OkStatus();
    return Begun(
        kOp, library_.ncclAllGather(mine, all, static_cast<size_t>(bytes), ncclInt8, comm_, stream),
        stream);
  }

  absl::Status AllGatherV(const void* mine, std::span<const int64_t> bytes,
                          std::span<const int64_t> offsets, void* all, CudaStream stream) override {
    constexpr std::string_view kOp = "AllGatherV on the device";
    const std::lock_guard lock(mutex_);
    HOTROW_RETURN_IF_ERROR(failure_);
    HOTROW_RETURN_IF_ERROR(CheckCounts(kOp, "", all, bytes, offsets));
    const auto self = static_cast<size_t>(rank_);
    char* const to = static_cast<char*>(all);
    if (bytes[self] > 0) {
      HOTROW_RETURN_IF_ERROR(CopyOwn(mine, to + offsets[self], bytes[self], stream));
    }
    HOTROW_RETURN_IF_ERROR(Settle(kOp, library_.ncclGroupStart()));
    ncclResult_t result = ncclSuccess;
    for (int p = 0; p < world_size_; ++p) {
      const auto i = static_cast<size_t>(p);
      if (p == rank_) continue;
      if (bytes[self] > 0) {
        Keep(result,
             library_.ncclSend(mine, static_cast<size_t>(bytes[self]), ncclInt8, p, comm_, stream));
      }
      if (bytes[i] > 0) {
        Keep(result, library_.ncclRecv(to + offsets[i], static_cast<size_t>(bytes[i]), ncclInt8, p,
                                       comm_, stream));
      }
    }
    Keep(result, library_.ncclGroupEnd());
    return Begun(kOp, result, stream);
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root, CudaStream stream) override {
    constexpr std::string_view kOp = "Broadcast on the device";
    const std::lock_guard lock(mutex_);
    HOTROW_RETURN_IF_ERROR(failure_);
    if (bytes < 0) return Refuse(kOp, absl::StrCat("bytes is negative: ", bytes));
    if (root < 0 || root >= world_size_) {
      return Refuse(kOp, absl::StrCat("root must lie in [0, ", world_size_, "), got ", root));
    }
    if (bytes == 0) return absl::OkStatus();
    return Begun(kOp,
                 library_.ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclInt8, root,
                                        comm_, stream),
                 stream);
  }

  absl::Status Wait(CudaStream stream) override {
    for (Clock::time_point asked = Clock::now();;) {
      // What is silent, or fails, the other thread finds out. Its failure comes first: calls that
      // it has ended leave the stream idle, too.
      const cudaError_t error = cudaStreamQuery(stream);
      {
        const std::lock_guard lock(mutex_);
        HOTROW_RETURN_IF_ERROR(failure_);
        if (error != cudaSuccess && error != cudaErrorNotReady) {
          return Fail(CudaToStatus(error, "cudaStreamQuery"));
        }
        if (const Clock::time_point now = Clock::now(); now - asked >= kAskHostInterval) {
          asked = now;
          if (absl::Status status = host_->status(); !status.ok()) return Fail(std::move(status));
        }
      }
      if (error == cudaSuccess) return absl::OkStatus();
      std::this_thread::sleep_for(kPoll);
    }
  }

  absl::Status status() override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  // The first error that is one; NCCL's "in progress" counts as success until then.
  static void Keep(ncclResult_t& result, ncclResult_t next) {
    if (result == ncclSuccess || (result == ncclInProgress && next != ncclSuccess)) result = next;
  }

 private:
  template <typename T>
  absl::Status AllReduce(T* data, int64_t count, ncclDataType_t type, CudaStream stream) {
    constexpr std::string_view kOp = "AllReduceSum on the device";
    const std::lock_guard lock(mutex_);
    HOTROW_RETURN_IF_ERROR(failure_);
    if (count < 0) return Refuse(kOp, absl::StrCat("count is negative: ", count));
    if (count == 0) return absl::OkStatus();
    return Begun(kOp,
                 library_.ncclAllReduce(data, data, static_cast<size_t>(count), type, ncclSum,
                                        comm_, stream),
                 stream);
  }

  absl::Status CopyOwn(const void* from, void* to, int64_t bytes, CudaStream stream) {
    if (from == to) return absl::OkStatus();
    const cudaError_t error =
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream);
    return error == cudaSuccess ? absl::OkStatus() : Fail(CudaToStatus(error, "cudaMemcpyAsync"));
  }

  absl::Status CheckCounts(std::string_view op, const char* name, const void* data,
                           std::span<const int64_t> bytes, std::span<const int64_t> offsets) {
    const auto n = static_cast<size_t>(world_size_);
    if (bytes.size() != n || offsets.size() != n) {
      return Refuse(op, absl::StrCat(name, "bytes and ", name,
                                     "offsets must have an entry for "
                                     "each rank, got ",
                                     bytes.size(), " and ", offsets.size()));
    }
    for (size_t p = 0; p < n; ++p) {
      if (bytes[p] < 0 || (bytes[p] > 0 && (offsets[p] < 0 || data == nullptr))) {
        return Refuse(op, absl::StrCat(name, "bytes[", p, "] and ", name, "offsets[", p,
                                       "] must not be negative, nor the data be null, got ",
                                       bytes[p], " and ", offsets[p]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Refuse(std::string_view op, std::string_view message) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        std::string(op), ": ", std::string(message), " (rank ", rank_, " of ", world_size_, ")")));
  }

  // Ends the work on the device and tells the other ranks.
  absl::Status Fail(absl::Status status) {
    if (!failure_.ok()) return failure_;
    failure_ = std::move(status);
    host_->Abort(std::string(failure_.message()));
    if (comm_ != nullptr) library_.ncclCommAbort(std::exchange(comm_, nullptr));
    return failure_;
  }

  absl::Status ErrorOf(std::string_view op, ncclResult_t result) const {
    const std::string text =
        absl::StrCat(std::string(op), ": NCCL: ", library_.ncclGetErrorString(result), ": ",
                     comm_ == nullptr ? "" : library_.ncclGetLastError(comm_), " (rank ", rank_,
                     " of ", world_size_, ")");
    return result == ncclRemoteError ? absl::UnavailableError(text) : absl::InternalError(text);
  }

  // Looks at the clock and, now and then, at what other ranks have told on the host.
  absl::Status LookAround(std::string_view op, Clock::time_point begin, Clock::time_point& asked) {
    const Clock::time_point now = Clock::now();
    if (now - asked >= kAskHostInterval) {
      asked = now;
      if (absl::Status status = host_->status(); !status.ok()) return Fail(std::move(status));
    }
    if (now - begin < std::chrono::duration<double>(timeout_seconds_)) return absl::OkStatus();
    // Who does not come here either is the silent one.
    if (absl::Status status = host_->Barrier(); !status.ok()) return Fail(std::move(status));
    return Fail(absl::DeadlineExceededError(
        absl::StrCat(std::string(op), ": not done after ", timeout_seconds_,
                     " s: a rank is silent, or the ranks' calls do not fit (rank ", rank_, " of ",
                     world_size_, ")")));
  }

  // Waits until NCCL has taken the call in.
  absl::Status Settle(std::string_view op, ncclResult_t result) {
    const Clock::time_point begin = Clock::now();
    Clock::time_point asked = begin;
    while (result == ncclInProgress) {
      ncclResult_t state = ncclSuccess;
      result = library_.ncclCommGetAsyncError(comm_, &state);
      if (result == ncclSuccess) result = state;
      if (result != ncclInProgress) break;
      HOTROW_RETURN_IF_ERROR(LookAround(op, begin, asked));
      std::this_thread::sleep_for(kPoll);
    }
    return result == ncclSuccess ? absl::OkStatus() : Fail(ErrorOf(op, result));
  }

  // Settles a call that was enqueued on `stream`, and has it watched.
  absl::Status Begun(std::string_view op, ncclResult_t result, CudaStream stream) {
    HOTROW_RETURN_IF_ERROR(Settle(op, result));
    UnderWay call = {.op = op, .begin = Clock::now()};
    if (spare_.empty()) {
      auto event = CreateEvent();
      if (!event.ok()) return Fail(event.status());
      call.end = *std::move(event);
    } else {
      call.end = std::move(spare_.back());
      spare_.pop_back();
    }
    if (const cudaError_t error = cudaEventRecord(call.end.get(), stream); error != cudaSuccess) {
      return Fail(CudaToStatus(error, "cudaEventRecord"));
    }
    under_way_.push_back(std::move(call));
    if (under_way_.size() == 1) changed_.notify_all();
    return absl::OkStatus();
  }

  absl::Status StartWatching() {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device_));
    const auto watch = [this]() -> absl::Status {
      Watch();
      return absl::OkStatus();
    };
    const auto fail = [this](const absl::Status& thrown) {
      const std::lock_guard lock(mutex_);
      Fail(thrown).IgnoreError();
    };
    HOTROW_ASSIGN_OR_RETURN(watch_, StartThread("watching collective calls", [watch, fail] {
                              Caught("watching collective calls", watch, fail).IgnoreError();
                            }));
    return absl::OkStatus();
  }
  void StopWatching() {
    if (!watch_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    watch_.join();
  }

  // Ends the calls under way when one of them fails or is silent. So whoever waits for the device,
  // by any means, waits no longer than that.
  void Watch() {
    const auto guard = CudaDeviceGuard::Set(device_);
    // A graph that another thread captures is none of this one's concern: it may ask for events.
    auto mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    std::unique_lock lock(mutex_);
    if (!guard.ok()) Fail(guard.status()).IgnoreError();
    Clock::time_point progress;  // when a call was last seen to end
    Clock::time_point asked;
    while (!stopping_ && failure_.ok()) {
      if (under_way_.empty()) {
        changed_.wait(lock);
        continue;
      }
      if (const Clock::time_point now = Clock::now(); now - asked >= kAskHostInterval) {
        asked = now;
        // Without the lock, which those take who enqueue: a lent transport may need its time.
        lock.unlock();
        absl::Status status = host_->status();
        lock.lock();
        if (!status.ok()) Fail(std::move(status)).IgnoreError();
        continue;
      }
      if (LookAtCalls(progress, asked).ok()) changed_.wait_for(lock, kAskHostInterval);
    }
  }

  absl::Status LookAtCalls(Clock::time_point& progress, Clock::time_point& asked) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = library_.ncclCommGetAsyncError(comm_, &state);
    if (result != ncclSuccess) state = result;
    if (state != ncclSuccess && state != ncclInProgress) {
      return Fail(ErrorOf(under_way_.front().op, state));
    }
    while (!under_way_.empty()) {
      const cudaError_t error = cudaEventQuery(under_way_.front().end.get());
      if (error == cudaErrorNotReady) break;
      if (error != cudaSuccess) return Fail(CudaToStatus(error, "cudaEventQuery"));
      spare_.push_back(std::move(under_way_.front().end));
      under_way_.pop_front();
      progress = Clock::now();
    }
    if (under_way_.empty()) return absl::OkStatus();
    const UnderWay& first = under_way_.front();
    return LookAround(first.op, std::max(first.begin, progress), asked);
  }

  // A call that the device has not been seen to finish.
  struct UnderWay {
    std::string_view op;  // a constant
    Clock::time_point begin;
    EventHandle end;
  };

  const NcclLibrary& library_;
  const int rank_;
  const int world_size_;
  const double timeout_seconds_;
  int device_ = 0;
  std::mutex mutex_;  // guards all that follows, but watch_
  std::condition_variable changed_;
  const std::unique_ptr<Communicator> host_;
  ncclComm_t comm_ = nullptr;  // null: not begun, or aborted
  absl::Status failure_;
  std::deque<UnderWay> under_way_;  // in order
  std::vector<EventHandle> spare_;
  bool stopping_ = false;
  std::thread watch_;
};

absl::StatusOr<const NcclLibrary*> UsableNccl() {
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  return internal::LoadNccl();
}

absl::StatusOr<ncclUniqueId> NewId(const NcclLibrary& library) {
  ncclUniqueId id;
  const ncclResult_t result = library.ncclGetUniqueId(&id);
  if (result == ncclSuccess) return id;
  return absl::InternalError(
      absl::StrCat("NCCL: ncclGetUniqueId: ", library.ncclGetErrorString(result)));
}

// NCCL would say no more than "invalid usage", or wait for ever.
absl::Status CheckOneRankEach(Communicator& channel) {
  int device = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  cudaDeviceProp properties;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  const auto mine = std::as_bytes(std::span(&properties.uuid, 1));
  std::vector<std::byte> all(mine.size() * static_cast<size_t>(channel.world_size()));
  HOTROW_RETURN_IF_ERROR(channel.AllGather(mine, all));
  const auto of_rank = [&](int p) { return all.data() + static_cast<size_t>(p) * mine.size(); };
  for (int q = 1; q < channel.world_size(); ++q) {
    for (int p = 0; p < q; ++p) {
      if (std::memcmp(of_rank(p), of_rank(q), mine.size()) != 0) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "NCCL: ranks ", p, " and ", q,
          " use the same GPU, and it needs one for each rank; start "
          "no more ranks on a machine than it has GPUs (mpirun -n, CUDA_VISIBLE_DEVICES)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool HaveNccl() { return true; }

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(Communicator& host) {
  const absl::StatusOr<const NcclLibrary*> library = UsableNccl();
  if (!library.ok()) {
    host.Abort(std::string(library.status().message()));
    return library.status();
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> channel, host.Duplicate());
  HOTROW_RETURN_IF_ERROR(CheckOneRankEach(*channel));
  ncclUniqueId id = {};
  if (channel->rank() == 0) {
    auto made = NewId(**library);
    if (!made.ok()) {
      channel->Abort(std::string(made.status().message()));
      return made.status();
    }
    id = *made;
  }
  HOTROW_RETURN_IF_ERROR(channel->Broadcast(std::as_writable_bytes(std::span(&id, 1)), 0));
  const int rank = channel->rank();
  const int world_size = channel->world_size();
  const double timeout_seconds = channel->options().timeout_seconds;
  auto nccl =
      std::make_unique<Nccl>(**library, rank, world_size, timeout_seconds, std::move(channel));
  HOTROW_RETURN_IF_ERROR(nccl->Init(id));
  return nccl;
}

}  // namespace hotrow
