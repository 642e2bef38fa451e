#include "comm/run_together.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace hotrow {
namespace {

// What a rank says while it works; a finished rank says its status code, which is never negative.
constexpr int64_t kWorking = -1;
// ResourceExhausted, with the mark; larger than any code.
constexpr int64_t kOutOfRoom = 1000;
// Longer than any path, and than a message that somebody wants to read.
constexpr size_t kTextBytesMax = 4096;
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(64);

// What the thread that works tells the one that answers.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<absl::Status> ended;
};

// Asks all ranks, again and again, until all have finished.
absl::Status AnswerUntilAllAreDone(Communicator& channel, Progress& progress) {
  auto pause = kFirstPause;
  for (;;) {
    std::optional<absl::Status> mine;
    {
      // Less than a pause where the work ends before that.
      std::unique_lock<std::mutex> lock(progress.mutex);
      progress.changed.wait_for(lock, pause, [&] { return progress.ended.has_value(); });
      mine = progress.ended;
    }
    HOTROW_ASSIGN_OR_RETURN(const RankVerdict verdict,
                            AskRanks(channel, mine.has_value(), mine.value_or(absl::OkStatus())));
    if (verdict.all_done) return verdict.status;
    // Done here, but not elsewhere: do not ask in a tight loop.
    if (mine.has_value()) std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace

absl::StatusOr<RankVerdict> AskRanks(Communicator& channel, bool done, const absl::Status& mine) {
  if (channel.world_size() == 1) return RankVerdict{done, done ? mine : absl::OkStatus()};
  const int64_t code = IsOutOfRoom(mine) ? kOutOfRoom : static_cast<int64_t>(mine.code());
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> codes,
                          channel.AllGatherSizes(done ? code : kWorking));
  if (std::find(codes.begin(), codes.end(), kWorking) != codes.end()) return RankVerdict{};
  auto failed = std::find(codes.begin(), codes.end(), kOutOfRoom);
  if (failed == codes.end()) {
    failed = std::find(codes.begin(), codes.end(),
                       static_cast<int64_t>(absl::StatusCode::kResourceExhausted));
  }
  if (failed == codes.end()) {
    failed = std::find_if(codes.begin(), codes.end(), [](int64_t code) { return code != 0; });
  }
  if (failed == codes.end()) return RankVerdict{.all_done = true};
  // The message travels as well.
  const auto who = static_cast<int>(failed - codes.begin());
  const std::string text(who == channel.rank() ? mine.message() : absl::string_view());
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> texts, AllGatherTexts(channel, text));
  const std::string said = absl::StrCat("rank ", who, ": ", texts[static_cast<size_t>(who)]);
  return RankVerdict{true, *failed == kOutOfRoom
                               ? OutOfRoomError(said)
                               : absl::Status(static_cast<absl::StatusCode>(*failed), said)};
}

absl::Status AgreeOn(Communicator& channel, const absl::Status& mine) {
  HOTROW_ASSIGN_OR_RETURN(const RankVerdict verdict, AskRanks(channel, /*done=*/true, mine));
  HOTROW_CHECK(verdict.all_done);  // all ranks are in this call
  return verdict.status;
}

absl::Status RunTogether(Communicator& channel, absl::FunctionRef<absl::Status()> work) {
  if (channel.world_size() == 1) return work();
  Progress progress;
  absl::Status verdict;
  const auto answer = [&] {
    verdict = Caught(
        "answering other ranks", [&] { return AnswerUntilAllAreDone(channel, progress); },
        [&](const absl::Status&) { EndJobForException(&channel); });
  };
  absl::StatusOr<std::thread> answering =
      Caught("", [&] { return StartThread("answering other ranks", answer); });
  if (!answering.ok()) {
    // This rank does not work, and tells the others so here and now.
    progress.ended = answering.status();
    return AnswerUntilAllAreDone(channel, progress);
  }
  absl::Status own = Caught("", work);  // `answering` waits for all ranks
  {
    const std::lock_guard<std::mutex> lock(progress.mutex);
    progress.ended = std::move(own);
  }
  progress.changed.notify_all();
  answering->join();
  return verdict;
}

absl::Status EndJobUnlessOk(Communicator* family, absl::Status status) {
  if (family != nullptr && !status.ok()) family->Abort(std::string(status.message()));
  return status;
}

void EndJobForException(Communicator* family) noexcept {
  try {
    EndJobUnlessOk(family, StatusOfException()).IgnoreError();
  } catch (...) {  // no memory for the words either: the others hear of it by their timeout
  }
}

absl::StatusOr<std::vector<std::string>> AllGatherTexts(Communicator& channel,
                                                        std::string_view mine) {
  mine = mine.substr(0, kTextBytesMax);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                          channel.AllGatherSizes(std::ssize(mine)));
  std::vector<int64_t> offsets(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), int64_t{0});
  std::string all(static_cast<size_t>(offsets.back() + sizes.back()), '\0');
  HOTROW_RETURN_IF_ERROR(channel.AllGatherV(std::as_bytes(std::span(mine)), sizes, offsets,
                                            std::as_writable_bytes(std::span(all))));
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r) {
    texts.push_back(all.substr(static_cast<size_t>(offsets[r]), static_cast<size_t>(sizes[r])));
  }
  return texts;
}

}  // namespace hotrow
