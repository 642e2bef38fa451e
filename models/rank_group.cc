#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/rank_group_impl.h"

namespace hotrow {
namespace {

// Longer than any path, and than a message that somebody wants to read.
constexpr int64_t kTextBytesMax = 4096;
constexpr int64_t kStillWorking = -1;  // no status has this code
constexpr int64_t kPatienceMax = 16;   // milliseconds

}  // namespace

void Job::Start(bool background, std::function<absl::Status()> work) {
  HOTROW_CHECK(done_);
  Join().IgnoreError();
  if (work == nullptr) {
    status_ = absl::OkStatus();
    return;
  }
  if (!background) {
    status_ = work();
    return;
  }
  done_ = false;
  thread_ = std::thread([this, work = std::move(work)] {
    status_ = work();
    done_ = true;
  });
}

absl::Status Job::Join() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

RankGroup::RankGroup(int32_t rank, int32_t world_size, RankGather gather)
    : rank_(rank), world_size_(world_size), gather_(std::move(gather)) {
  HOTROW_CHECK(world_size >= 1 && rank >= 0 && rank < world_size);
  HOTROW_CHECK(world_size == 1 || gather_ != nullptr);
}

absl::StatusOr<std::vector<int64_t>> RankGroup::Gather(int64_t mine) const {
  if (world_size_ == 1) return std::vector<int64_t>{mine};
  HOTROW_ASSIGN_OR_RETURN(std::vector<int64_t> all, gather_(mine));
  HOTROW_CHECK(std::ssize(all) == world_size_);
  return all;
}

absl::StatusOr<std::vector<std::string>> RankGroup::GatherTexts(std::string_view mine) const {
  mine = mine.substr(0, static_cast<size_t>(kTextBytesMax));
  if (world_size_ == 1) return std::vector<std::string>{std::string(mine)};
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, Gather(std::ssize(mine)));
  std::vector<std::string> texts(sizes.size());
  constexpr int64_t kPiece = sizeof(int64_t);
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  for (int64_t at = 0; at < longest; at += kPiece) {
    int64_t piece = 0;
    const int64_t left = std::clamp<int64_t>(std::ssize(mine) - at, 0, kPiece);
    if (left > 0) std::memcpy(&piece, mine.data() + at, static_cast<size_t>(left));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> pieces, Gather(piece));
    for (size_t r = 0; r < texts.size(); ++r) {
      char bytes[kPiece];
      std::memcpy(bytes, &pieces[r], sizeof(bytes));
      const int64_t take = std::clamp<int64_t>(sizes[r] - at, 0, kPiece);
      texts[r].append(bytes, static_cast<size_t>(take));
    }
  }
  return texts;
}

absl::StatusOr<RankGroup::Verdict> RankGroup::Hear(bool done, const absl::Status& mine) const {
  if (world_size_ == 1) return Verdict{done, done ? mine : absl::OkStatus()};
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> codes,
                          Gather(done ? static_cast<int64_t>(mine.code()) : kStillWorking));
  if (std::find(codes.begin(), codes.end(), kStillWorking) != codes.end()) return Verdict{};
  // Which of several failures is told: one that has a remedy, or that of the lowest rank.
  auto failed = std::find(codes.begin(), codes.end(),
                          static_cast<int64_t>(absl::StatusCode::kResourceExhausted));
  if (failed == codes.end()) {
    failed = std::find_if(codes.begin(), codes.end(), [](int64_t code) { return code != 0; });
  }
  if (failed == codes.end()) return Verdict{.all_done = true};
  const auto who = static_cast<int32_t>(failed - codes.begin());
  const std::string message = who == rank_ ? std::string(mine.message()) : std::string();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(message));
  return Verdict{true, absl::Status(static_cast<absl::StatusCode>(*failed),
                                    absl::StrCat("rank ", who, ": ", texts[who]))};
}

absl::Status RankGroup::Agree(const absl::Status& mine) const {
  HOTROW_ASSIGN_OR_RETURN(const Verdict verdict, Hear(/*done=*/true, mine));
  HOTROW_CHECK(verdict.all_done);
  return verdict.status;
}

absl::Status RankGroup::Together(bool background, std::function<absl::Status()> work) const {
  if (world_size_ == 1) return work == nullptr ? absl::OkStatus() : work();
  Job job;
  job.Start(background, std::move(work));
  for (Patience patience;; patience.Sleep()) {
    const bool done = job.done();
    HOTROW_ASSIGN_OR_RETURN(const Verdict verdict,
                            Hear(done, done ? job.Join() : absl::OkStatus()));
    if (verdict.all_done) return verdict.status;
  }
}

void Patience::Sleep() {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
  milliseconds_ = std::min(2 * milliseconds_, kPatienceMax);
}

}  // namespace hotrow
