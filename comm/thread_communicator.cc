#include "comm/thread_communicator.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "comm/run_together.h"

namespace hotrow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorldSizeMax = 1024;

// What all ranks of a family share. One mutex and one condition serve all its channels: this
// backend is to be simple.
struct Family {
  std::mutex mutex;
  std::condition_variable changed;
  absl::Status failure;  // the first one

  // With the mutex held.
  void Fail(absl::Status status) {
    if (!failure.ok()) return;
    failure = std::move(status);
    changed.notify_all();
  }
};

// One exchange at a time. What a rank has posted may be read without the lock from the moment when
// all have come until all are done.
struct Channel {
  struct Posted {
    bool here = false;
    std::string_view op;
    std::span<const std::span<const std::byte>> send;
    std::span<const std::span<std::byte>> recv;
  };

  explicit Channel(int world_size)
      : posted(static_cast<size_t>(world_size)), left(static_cast<size_t>(world_size), false) {}

  std::vector<Posted> posted;
  std::vector<bool> left;
  int num_here = 0;
  int num_done = 0;
  uint64_t started = 0;   // exchanges that all ranks have come to
  uint64_t finished = 0;  // exchanges that all ranks are done with
  Clock::time_point last_arrival;
  std::shared_ptr<Channel> child;  // made by an exchange of the operation kDuplicate
};

constexpr std::string_view kDuplicate = "Duplicate";

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, int world_size, const CommunicatorOptions& options,
                     std::shared_ptr<Family> family, std::shared_ptr<Channel> channel)
      : Communicator(rank, world_size, options),
        family_(std::move(family)),
        channel_(std::move(channel)) {}

  ~ThreadCommunicator() override {
    const std::lock_guard lock(family_->mutex);
    channel_->left[static_cast<size_t>(rank())] = true;
    family_->changed.notify_all();
  }

 protected:
  absl::Status DoExchange(std::string_view op, std::span<const ConstBytes> send,
                          std::span<const Bytes> recv) override {
    HOTROW_RETURN_IF_ERROR(AwaitAll(op, send, recv));
    const auto self = static_cast<size_t>(rank());
    for (size_t p = 0; p < recv.size(); ++p) {
      if (p == self || recv[p].empty()) continue;
      std::memcpy(recv[p].data(), channel_->posted[p].send[self].data(), recv[p].size());
    }
    if (op == kDuplicate) child_ = channel_->child;
    AwaitDone();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoDuplicate() override {
    const std::vector<ConstBytes> send(static_cast<size_t>(world_size()));
    const std::vector<Bytes> recv(static_cast<size_t>(world_size()));
    HOTROW_RETURN_IF_ERROR(DoExchange(kDuplicate, send, recv));
    return std::make_unique<ThreadCommunicator>(rank(), world_size(), options(), family_,
                                                std::move(child_));
  }

  void DoAbort(std::string_view text) override {
    const std::lock_guard lock(family_->mutex);
    family_->Fail(absl::UnavailableError(std::string(text)));
  }

  absl::Status DoStatus() override {
    const std::lock_guard lock(family_->mutex);
    return family_->failure;
  }

 private:
  // Returns when all ranks have posted theirs, and fit together.
  absl::Status AwaitAll(std::string_view op, std::span<const ConstBytes> send,
                        std::span<const Bytes> recv) {
    std::unique_lock lock(family_->mutex);
    if (!family_->failure.ok()) return family_->failure;
    Channel& channel = *channel_;
    channel.posted[static_cast<size_t>(rank())] = {true, op, send, recv};
    channel.last_arrival = Clock::now();
    const uint64_t mine = channel.started;
    if (++channel.num_here == world_size()) {
      if (absl::Status fit = CheckFit(); !fit.ok()) {
        family_->Fail(fit);
        return fit;
      }
      if (op == kDuplicate) channel.child = std::make_shared<Channel>(world_size());
      channel.num_here = 0;
      ++channel.started;
      family_->changed.notify_all();
      return absl::OkStatus();
    }
    const auto timeout = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(options().timeout_seconds));
    while (channel.started == mine) {
      if (!family_->failure.ok()) return family_->failure;
      std::vector<int> missing;
      for (int p = 0; p < world_size(); ++p) {
        const auto i = static_cast<size_t>(p);
        if (channel.posted[i].here) continue;
        missing.push_back(p);
        if (!channel.left[i]) continue;
        family_->Fail(absl::UnavailableError(absl::StrCat(std::string(op), ": rank ", p,
                                                          " has left; rank ", rank(), " of ",
                                                          world_size(), " was waiting for it")));
        return family_->failure;
      }
      const Clock::time_point deadline = channel.last_arrival + timeout;
      if (Clock::now() >= deadline) {
        family_->Fail(absl::DeadlineExceededError(absl::StrCat(
            std::string(op), ": no answer from rank ", absl::StrJoin(missing, ", rank "), " for ",
            options().timeout_seconds, " s (", world_size(), " ranks)")));
        return family_->failure;
      }
      family_->changed.wait_until(lock, deadline);
    }
    return absl::OkStatus();
  }

  // Waits for the copies of the others, which read our memory: also when the family fails
  // meanwhile.
  void AwaitDone() {
    std::unique_lock lock(family_->mutex);
    Channel& channel = *channel_;
    channel.posted[static_cast<size_t>(rank())].here = false;
    const uint64_t mine = channel.finished;
    if (++channel.num_done == world_size()) {
      channel.num_done = 0;
      ++channel.finished;
      family_->changed.notify_all();
      return;
    }
    family_->changed.wait(lock, [&] { return channel.finished != mine; });
  }

  absl::Status CheckFit() const {
    const std::vector<Channel::Posted>& posted = channel_->posted;
    for (size_t p = 1; p < posted.size(); ++p) {
      if (posted[p].op != posted[0].op) {
        return absl::InvalidArgumentError(absl::StrCat("rank 0 calls ", std::string(posted[0].op),
                                                       " while rank ", p, " calls ",
                                                       std::string(posted[p].op)));
      }
    }
    for (size_t from = 0; from < posted.size(); ++from) {
      for (size_t to = 0; to < posted.size(); ++to) {
        const size_t sent = posted[from].send[to].size();
        const size_t expected = posted[to].recv[from].size();
        if (from == to || sent == expected) continue;
        return absl::InvalidArgumentError(absl::StrCat(std::string(posted[0].op), ": rank ", from,
                                                       " sends ", sent, " bytes to rank ", to,
                                                       ", which expects ", expected));
      }
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<Family> family_;
  const std::shared_ptr<Channel> channel_;
  std::shared_ptr<Channel> child_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadCommunicators(
    int world_size, const CommunicatorOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  if (world_size < 1 || world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("CreateThreadCommunicators: world_size must lie "
                     "in [1, ",
                     kWorldSizeMax, "], got ", world_size));
  }
  const auto family = std::make_shared<Family>();
  const auto channel = std::make_shared<Channel>(world_size);
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int rank = 0; rank < world_size; ++rank) {
    ends.push_back(
        std::make_unique<ThreadCommunicator>(rank, world_size, options, family, channel));
  }
  return ends;
}

std::vector<absl::Status> RunOnThreads(int world_size, const CommunicatorOptions& options,
                                       absl::FunctionRef<absl::Status(Communicator&)> rank_main) {
  auto ends = CreateThreadCommunicators(world_size, options);
  if (!ends.ok()) {
    return std::vector<absl::Status>(static_cast<size_t>(std::max(world_size, 1)), ends.status());
  }
  std::vector<absl::Status> statuses(ends->size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ends->size(); ++rank) {
    absl::StatusOr<std::thread> thread = StartThread("a rank", [&, rank] {
      const std::unique_ptr<Communicator> end = std::move((*ends)[rank]);
      statuses[rank] = Caught(
          "", [&] { return rank_main(*end); },
          [&](const absl::Status&) { EndJobForException(end.get()); });
    });
    if (!thread.ok()) {
      // The others would wait for this rank.
      (*ends)[rank]->Abort(std::string(thread.status().message()));
      statuses[rank] = thread.status();
      continue;
    }
    threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace hotrow
