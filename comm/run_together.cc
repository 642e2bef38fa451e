#include "comm/run_together.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// What a rank says while it works; a finished rank says its status code, which is never negative.
constexpr int64_t kWorking = -1;
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(64);

// Asks all ranks, again and again, until all have finished. Their codes.
absl::StatusOr<std::vector<int64_t>> WaitForAll(Communicator& channel, std::mutex& mutex,
                                                std::condition_variable& changed,
                                                const int64_t& code) {
  auto pause = kFirstPause;
  for (;;) {
    int64_t mine = kWorking;
    {
      // Less than a pause where the work ends before that.
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait_for(lock, pause, [&] { return code != kWorking; });
      mine = code;
    }
    HOTROW_ASSIGN_OR_RETURN(std::vector<int64_t> codes, channel.AllGatherSizes(mine));
    if (std::find(codes.begin(), codes.end(), kWorking) == codes.end()) return codes;
    // Done here, but not elsewhere: do not ask in a tight loop.
    if (mine != kWorking) std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace

absl::Status RunTogether(Communicator& channel, absl::FunctionRef<absl::Status()> work) {
  if (channel.world_size() == 1) return work();
  std::mutex mutex;
  std::condition_variable changed;
  int64_t code = kWorking;
  absl::StatusOr<std::vector<int64_t>> codes;
  std::thread answering([&] { codes = WaitForAll(channel, mutex, changed, code); });
  const absl::Status own = work();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    code = static_cast<int64_t>(own.code());
  }
  changed.notify_all();
  answering.join();
  HOTROW_RETURN_IF_ERROR(codes.status());
  const auto failed = std::find_if(codes->begin(), codes->end(), [](int64_t c) { return c != 0; });
  if (failed == codes->end()) return absl::OkStatus();
  // The message travels as well.
  const auto root = static_cast<int>(failed - codes->begin());
  const std::string mine(own.message());
  int64_t size = std::ssize(mine);
  HOTROW_RETURN_IF_ERROR(
      channel.Broadcast(std::as_writable_bytes(std::span<int64_t>(&size, 1)), root));
  std::string message = mine;
  message.resize(static_cast<size_t>(size));
  if (channel.rank() == root) message = mine;
  HOTROW_RETURN_IF_ERROR(channel.Broadcast(std::as_writable_bytes(std::span(message)), root));
  if (!own.ok()) return own;
  return absl::Status(static_cast<absl::StatusCode>(*failed),
                      absl::StrCat("rank ", root, ": ", message));
}

}  // namespace hotrow
