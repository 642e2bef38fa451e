#ifndef HOTROW_COMM_LANE_H_
#define HOTROW_COMM_LANE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace hotrow {

// The non-blocking form of a Communicator: a channel with its own thread, which runs calls in
// the order of Start, while other threads compute.
//
//   CommLane lane(*std::move(channel));  // of Duplicate()
//   const int64_t ticket = lane.Start([&](Communicator& c) { return c.AllReduceSum(gradients); });
//   ... compute, without touching `gradients` ...
//   HOTROW_RETURN_IF_ERROR(lane.Wait(ticket));
//
// All ranks start the same work in the same order. Work may also compute (pack, call, unpack).
// Threads: all methods may run concurrently. Starts from several threads must have the same order
//          on all ranks.
// Errors:  failing work ends the lane: later work does not run, and Wait for it or for later work
//          returns its error. Work that throws fails (StatusOfException of base/thread.h), and the
//          channel's family with it. A failed communicator fails its calls within its timeout. If
//          the system has no thread for the lane, the channel's family and all work fail with
//          Unavailable.
class CommLane {
 public:
  using Work = std::function<absl::Status(Communicator&)>;

  explicit CommLane(std::unique_ptr<Communicator> channel);
  CommLane(const CommLane&) = delete;
  CommLane& operator=(const CommLane&) = delete;
  // Waits for all work that has been started.
  ~CommLane();

  // Returns at once, with the ticket of this work: 0, 1, 2, ...
  int64_t Start(Work work);
  // Returns when this work and all earlier work is done; OK if all succeeded. May be called any
  // number of times.
  absl::Status Wait(int64_t ticket);
  // Waits for everything started so far.
  absl::Status WaitAll();

  // Communicator::Abort of the channel, from any thread.
  void Abort(std::string_view message) { channel_->Abort(message); }

 private:
  void Run();

  const std::unique_ptr<Communicator> channel_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Work> queue_;
  int64_t started_ = 0;
  int64_t done_ = 0;
  int64_t failed_at_ = -1;  // the ticket that failed_ belongs to
  absl::Status failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hotrow

#endif  // HOTROW_COMM_LANE_H_
