#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/thread.h"
#include "models/saving/rank_group_impl.h"

namespace hotrow {
namespace {

constexpr int64_t kPatienceMax = 16;  // milliseconds
constexpr char kPurpose[] = "writing a checkpoint";

}  // namespace

void Job::Start(bool background, std::function<absl::Status()> work) {
  HOTROW_CHECK(done_);
  Join().IgnoreError();
  if (work == nullptr) {
    status_ = absl::OkStatus();
    return;
  }
  if (!background) {
    status_ = Caught(kPurpose, work);
    return;
  }
  done_ = false;
  absl::StatusOr<std::thread> thread = Caught(kPurpose, [&] {
    return StartThread(kPurpose, [this, work = std::move(work)] {
      status_ = Caught(kPurpose, work);
      done_ = true;
    });
  });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  status_ = thread.status();
  done_ = true;
}

absl::Status Job::Join() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

absl::StatusOr<std::vector<int64_t>> RankGroup::Gather(int64_t mine) const {
  if (alone()) return std::vector<int64_t>{mine};
  return communicator_->AllGatherSizes(mine);
}

absl::StatusOr<std::vector<std::string>> RankGroup::GatherTexts(std::string_view mine) const {
  if (alone()) return std::vector<std::string>{std::string(mine)};
  return AllGatherTexts(*communicator_, mine);
}

absl::StatusOr<RankVerdict> RankGroup::Ask(bool done, const absl::Status& mine) const {
  if (alone()) return RankVerdict{done, done ? mine : absl::OkStatus()};
  return AskRanks(*communicator_, done, mine);
}

absl::Status RankGroup::Agree(const absl::Status& mine) const {
  return alone() ? mine : AgreeOn(*communicator_, mine);
}

absl::Status RankGroup::Together(absl::FunctionRef<absl::Status()> work) const {
  return alone() ? work() : RunTogether(*communicator_, work);
}

absl::Status RankGroup::TogetherOnLeader(absl::FunctionRef<absl::Status()> work) const {
  return Together([&] { return leads() ? work() : absl::OkStatus(); });
}

void Patience::Sleep() {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
  milliseconds_ = std::min(2 * milliseconds_, kPatienceMax);
}

}  // namespace hotrow
