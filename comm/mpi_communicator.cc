// One file of 710 lines on purpose: notices, deadlines and the progress of messages are one
// protocol, whose state a call of MPI may change in each of its parts.

#include "comm/mpi_communicator.h"

// The C++ bindings of Open MPI, which we do not use, do not compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

using Clock = std::chrono::steady_clock;

// Tags. An exchange cannot begin before the rank has heard of every other in the one before, so two
// numbers would tell exchanges of a channel apart; more make a stray message easier to see.
constexpr int kNoticeTag = 0;
constexpr int kTagsPerChannel = 256;

// A message begins with a header, and its bytes come along where they are this few; more follow in
// separate pieces. So a rank knows what a peer sends before it lets MPI write anything to the
// buffers of its caller, and the receive that is posted blindly is as large as any that may come.
// That is no luxury: a receive of Open MPI that copies straight from the sender's memory writes
// past its end where the sender has more. Header and bytes together stay below 4 KiB, where
// transports send at once.
constexpr int64_t kFirstBytes = 4032;
// How much of an operation's name a header has.
constexpr size_t kOpBytes = 24;

// How often a waiting rank looks for notices.
constexpr auto kNoticeInterval = std::chrono::milliseconds(1);
// How a rank waits: it polls for a while, then yields the processor at every empty poll (which with
// other busy threads on the machine costs a time slice), and then naps between polls. Each begins
// after a fixed time and that which its bytes take at some rate, counted from the last progress.
constexpr auto kSpinAtLeast = std::chrono::microseconds(50);
constexpr double kSpinBytesPerSecond = 1e9;
constexpr auto kYieldAtLeast = std::chrono::milliseconds(1);
constexpr double kYieldBytesPerSecond = 200e6;
constexpr auto kNap = std::chrono::microseconds(50);
// How long a rank that gives up listens to the others, as a share of the timeout and at most.
constexpr double kListenShare = 0.25;
constexpr double kListenSecondsMax = 1;
double ListenSeconds(double timeout_seconds) {
  return std::min(kListenSecondsMax, kListenShare * timeout_seconds);
}
// Cancelled receives are waited for this long.
constexpr auto kCancelGrace = std::chrono::milliseconds(100);

std::atomic<bool> any_family_failed = false;

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

absl::Status MpiToStatus(int error, std::string_view what) {
  if (error == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) length = 0;
  return absl::InternalError(
      absl::StrCat(std::string(what), ": ", std::string(text, static_cast<size_t>(length))));
}

#define HOTROW_MPI_RETURN_IF_ERROR(expression) \
  HOTROW_RETURN_IF_ERROR(MpiToStatus(expression, #expression))

// The longest of all families of this process: after so long without an answer ranks are given up.
std::atomic<double> longest_timeout_seconds{0};

// Ends MPI once all ranks are at their end. MPI_Finalize would wait for ever for a rank that
// failed. And where ranks die while another is inside it, the mpirun of Open MPI 4.1.4 crashes or
// hangs, in 17 of 240 runs. So the ranks meet before it, in a wait that ends.
void FinalizeAtExit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  // The others have been told of a failure, or find it out, and do not come.
  if (finalized != 0 || any_family_failed.load()) return;
  // Later than those who miss this rank say so: mpirun ends them as soon as it leaves.
  const double timeout = longest_timeout_seconds.load();
  const double seconds = timeout + 2 * ListenSeconds(timeout);
  const auto deadline = Clock::now() + Seconds(seconds);
  MPI_Request all_are_here = MPI_REQUEST_NULL;
  int done = 0;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &all_are_here) == MPI_SUCCESS) {
    while (MPI_Test(&all_are_here, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0 &&
           Clock::now() < deadline) {
      std::this_thread::sleep_for(kNap);
    }
  }
  if (done == 0) {
    std::fprintf(stderr, "MPI_Finalize: another rank has not ended for %g s; leaving without it\n",
                 seconds);
    std::_Exit(EXIT_FAILURE);
  }
  MPI_Finalize();
}

absl::Status StartMpi() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return absl::FailedPreconditionError(
        "MPI: has been ended by MPI_Finalize, and cannot start again");
  }
  int initialized = 0;
  MPI_Initialized(&initialized);
  int granted = MPI_THREAD_SINGLE;
  if (initialized == 0) {
    HOTROW_MPI_RETURN_IF_ERROR(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted));
    std::atexit(FinalizeAtExit);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  } else {
    HOTROW_MPI_RETURN_IF_ERROR(MPI_Query_thread(&granted));
  }
  if (granted < MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(
        "MPI: does not grant MPI_THREAD_MULTIPLE, which channels on several threads need; use an "
        "MPI built with it, and MPI_Init_thread where the program starts MPI itself");
  }
  return absl::OkStatus();
}

// What a rank that gives up tells the others; one message of fixed size.
struct Notice {
  enum Kind : int32_t { kAbort, kSilence };
  int32_t kind = kAbort;
  int32_t origin = 0;       // the rank that gave up
  int32_t num_missing = 0;  // kSilence: ranks that it waited for; more than fit are left out
  int32_t missing[60] = {};
  char text[1024] = {};  // kAbort: the failure; kSilence: the operation; ends with 0

  void SetText(std::string_view value) {
    const size_t length = std::min(value.size(), sizeof(text) - 1);
    std::memcpy(text, value.data(), length);
    text[length] = 0;
  }
};
static_assert(std::is_trivially_copyable_v<Notice>);

// What a rank sends before the bytes of a message.
struct Header {
  char op[kOpBytes] = {};   // the collective; ends with 0 where it is shorter
  uint64_t exchange = 0;    // how many exchanges the channel has had before
  int64_t bytes = 0;        // of the message, without this
  int64_t piece_bytes = 0;  // message_bytes_max of the sender
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == kOpBytes + 24);

// The beginnings of messages, one from and one to each rank.
struct Firsts {
  explicit Firsts(int world_size)
      : incoming(static_cast<size_t>(world_size * kFirstBytes)),
        outgoing(static_cast<size_t>(world_size * kFirstBytes)) {}
  std::byte* from(int peer) { return incoming.data() + int64_t{peer} * kFirstBytes; }
  std::byte* to(int peer) { return outgoing.data() + int64_t{peer} * kFirstBytes; }

  std::vector<std::byte> incoming;
  std::vector<std::byte> outgoing;
};

// Notices that MPI is at work on.
struct Mail {
  Notice incoming;
  MPI_Request incoming_request = MPI_REQUEST_NULL;
  std::vector<std::unique_ptr<Notice>> outgoing;
  std::vector<MPI_Request> outgoing_requests;
};

// What the channels of a process's end share: MPI's communicator, the failure, and notices.
class Family {
 public:
  static absl::StatusOr<std::shared_ptr<Family>> Create(const CommunicatorOptions& options);
  Family() = default;
  Family(const Family&) = delete;
  ~Family();

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int64_t max_channels() const { return max_channels_; }
  int NextChannel() { return next_channel_.fetch_add(1); }

  // The failure that this rank knows of; with `look` also what others have told meanwhile.
  absl::Status status(bool look);
  // Fails the family with Unavailable(text) here and on all other ranks.
  void Abort(const std::string& text);
  // Ends the family. `silent` are those that this rank has waited for in vain; none when it joins
  // since others have told of theirs, which says that it is alive itself. Listens to the others
  // before it names the culprit; returns what the family has failed with.
  absl::Status GiveUp(std::string_view op, const std::set<int>& silent);
  // As status(true), and does not wait for an exchange to find out about a suspicion.
  absl::Status Inquire();
  // Whether others have told of a silent rank, so that those who wait should say whom they miss.
  bool suspicion() const { return suspicion_.load(); }

 private:
  absl::Status PostReceive();                       // with mutex_ held
  void ReadNotices();                               // with mutex_ held
  void Tell(const Notice& notice);                  // with mutex_ held
  void Fail(absl::Status status);                   // with mutex_ held
  bool FlushNotices();                              // with mutex_ held; whether all have been sent
  absl::Status Verdict(std::string_view op) const;  // with mutex_ held

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int world_size_ = 1;
  int64_t max_channels_ = 0;
  double timeout_seconds_ = 0;
  std::atomic<int> next_channel_ = 1;  // 0 is for notices
  std::atomic<bool> failed_ = false;
  std::atomic<bool> suspicion_ = false;

  std::mutex mutex_;  // guards what follows
  absl::Status failure_;
  std::unique_ptr<Mail> mail_ = std::make_unique<Mail>();
  std::set<int> suspects_;
  std::set<int> speakers_;  // who told of a silent rank, and so is none
};

absl::StatusOr<std::shared_ptr<Family>> Family::Create(const CommunicatorOptions& options) {
  const auto family = std::make_shared<Family>();
  family->timeout_seconds_ = options.timeout_seconds;
  HOTROW_MPI_RETURN_IF_ERROR(MPI_Comm_rank(MPI_COMM_WORLD, &family->rank_));
  HOTROW_MPI_RETURN_IF_ERROR(MPI_Comm_size(MPI_COMM_WORLD, &family->world_size_));
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  HOTROW_MPI_RETURN_IF_ERROR(MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request));
  const auto deadline = Clock::now() + Seconds(options.timeout_seconds);
  for (int done = 0; done == 0;) {
    HOTROW_MPI_RETURN_IF_ERROR(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) break;
    if (Clock::now() > deadline) {
      any_family_failed = true;
      return absl::DeadlineExceededError(absl::StrCat("MPI: rank ", family->rank_, " of ",
                                                      family->world_size_,
                                                      " made a communicator, and "
                                                      "not all others did within ",
                                                      options.timeout_seconds, " s"));
    }
    sched_yield();
  }
  HOTROW_MPI_RETURN_IF_ERROR(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  family->comm_ = comm;
  void* tag_max = nullptr;
  int found = 0;
  HOTROW_MPI_RETURN_IF_ERROR(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_max, &found));
  // MPI promises 32767 at least.
  const int64_t tags = found != 0 ? *static_cast<int*>(tag_max) : 32767;
  family->max_channels_ = (tags + 1) / kTagsPerChannel;
  const std::lock_guard lock(family->mutex_);
  HOTROW_RETURN_IF_ERROR(family->PostReceive());
  return family;
}

// Where the buffers of failed families go: MPI may still write to them.
void KeepForGood(std::shared_ptr<void> buffers) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(buffers));
}

Family::~Family() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0 || comm_ == MPI_COMM_NULL) return;
  if (failed_.load()) {  // nothing may wait for ranks that are gone
    KeepForGood(std::move(mail_));
    return;
  }
  MPI_Cancel(&mail_->incoming_request);
  MPI_Wait(&mail_->incoming_request, MPI_STATUS_IGNORE);
  MPI_Comm_free(&comm_);
}

absl::Status Family::PostReceive() {
  return MpiToStatus(MPI_Irecv(&mail_->incoming, sizeof(mail_->incoming), MPI_BYTE, MPI_ANY_SOURCE,
                               kNoticeTag, comm_, &mail_->incoming_request),
                     "MPI_Irecv of notices");
}

void Family::ReadNotices() {
  while (mail_->incoming_request != MPI_REQUEST_NULL) {
    int done = 0;
    if (MPI_Test(&mail_->incoming_request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0)
      return;
    if (mail_->incoming.kind == Notice::kAbort) {
      Fail(absl::UnavailableError(mail_->incoming.text));
    } else {
      speakers_.insert(mail_->incoming.origin);
      for (int i = 0; i < mail_->incoming.num_missing; ++i)
        suspects_.insert(mail_->incoming.missing[i]);
      suspicion_ = true;
    }
    if (!PostReceive().ok()) return;
  }
}

void Family::Fail(absl::Status status) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  failed_ = true;
  any_family_failed = true;
}

void Family::Tell(const Notice& notice) {
  for (int p = 0; p < world_size_; ++p) {
    if (p == rank_) continue;
    mail_->outgoing.push_back(std::make_unique<Notice>(notice));
    MPI_Request request = MPI_REQUEST_NULL;
    // Who cannot be told is perhaps the one that is gone.
    if (MPI_Isend(mail_->outgoing.back().get(), sizeof(Notice), MPI_BYTE, p, kNoticeTag, comm_,
                  &request) == MPI_SUCCESS) {
      mail_->outgoing_requests.push_back(request);
    }
  }
}

bool Family::FlushNotices() {
  if (mail_->outgoing_requests.empty()) return true;
  int done = 0;
  return MPI_Testall(static_cast<int>(mail_->outgoing_requests.size()),
                     mail_->outgoing_requests.data(), &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
         done != 0;
}

absl::Status Family::status(bool look) {
  if (!look && !failed_.load()) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  if (failure_.ok() && look) ReadNotices();
  return failure_;
}

void Family::Abort(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return;
  Fail(absl::UnavailableError(text));
  Notice notice;
  notice.kind = Notice::kAbort;
  notice.origin = rank_;
  notice.SetText(text);
  Tell(notice);
  // Small messages leave at once, or with a little help.
  const auto deadline = Clock::now() + kCancelGrace;
  while (!FlushNotices() && Clock::now() < deadline) sched_yield();
}

absl::Status Family::GiveUp(std::string_view op, const std::set<int>& silent) {
  // Other channels of this process wait here, and find the failure.
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  Notice notice;
  notice.kind = Notice::kSilence;
  notice.origin = rank_;
  for (const int p : silent) {
    if (notice.num_missing == static_cast<int32_t>(std::size(notice.missing))) break;
    notice.missing[notice.num_missing++] = p;
  }
  notice.SetText(op);
  Tell(notice);
  suspects_.insert(silent.begin(), silent.end());
  speakers_.insert(rank_);
  const auto deadline = Clock::now() + Seconds(ListenSeconds(timeout_seconds_));
  while (Clock::now() < deadline && failure_.ok()) {
    FlushNotices();
    ReadNotices();
    std::this_thread::sleep_for(kNap);
  }
  Fail(Verdict(op));
  return failure_;
}

absl::Status Family::Inquire() {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) ReadNotices();
  if (failure_.ok() && suspicion_.load()) Fail(Verdict("status"));
  return failure_;
}

absl::Status Family::Verdict(std::string_view op) const {
  std::set<int> silent;
  for (const int p : suspects_) {
    if (speakers_.count(p) == 0) silent.insert(p);
  }
  std::string hint;
  if (silent.empty()) {
    silent = suspects_;
    hint = ", which is alive: are all ranks in the same call?";
  }
  return absl::DeadlineExceededError(
      absl::StrCat(std::string(op), ": no answer from rank ", absl::StrJoin(silent, ", rank "),
                   " for ", timeout_seconds_, " s (", world_size_, " ranks)", hint));
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const CommunicatorOptions& options, std::shared_ptr<Family> family, int channel)
      : Communicator(family->rank(), family->world_size(), options),
        family_(std::move(family)),
        channel_(channel),
        firsts_(std::make_unique<Firsts>(family_->world_size())) {}

  ~MpiCommunicator() override {
    if (!family_->status(/*look=*/false).ok()) KeepForGood(std::move(firsts_));
  }

 protected:
  absl::Status DoExchange(std::string_view op, std::span<const ConstBytes> send,
                          std::span<const Bytes> recv) override {
    HOTROW_RETURN_IF_ERROR(family_->status(/*look=*/false));
    tag_ = channel_ * kTagsPerChannel + static_cast<int>(exchange_ % kTagsPerChannel);
    absl::Status status = Post(op, send, recv);
    if (status.ok()) status = Await(op, recv);
    ++exchange_;
    if (status.ok()) return status;
    if (absl::IsInternal(status) || absl::IsInvalidArgument(status)) {
      status = absl::Status(status.code(),
                            absl::StrCat(std::string(op), ": ", std::string(status.message())));
      family_->Abort(AbortText(std::string(status.message())));
    }
    Cancel();
    return status;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoDuplicate() override {
    const int64_t channel = family_->NextChannel();
    // The same number on all ranks, unless they duplicate in different orders.
    const auto n = static_cast<size_t>(world_size());
    std::vector<int64_t> channels(n, channel);
    const std::vector<ConstBytes> send(n, std::as_bytes(std::span(&channel, 1)));
    std::vector<Bytes> recv;
    for (int64_t& c : channels) recv.push_back(std::as_writable_bytes(std::span(&c, 1)));
    HOTROW_RETURN_IF_ERROR(DoExchange("Duplicate", send, recv));
    absl::Status status;
    for (size_t p = 0; p < n; ++p) {
      if (channels[p] == channel) continue;
      status = absl::InvalidArgumentError(
          absl::StrCat("Duplicate: rank ", rank(), " makes channel ", channel, ", rank ", p, " ",
                       channels[p], "; make a family's channels in one order on all ranks"));
    }
    if (channel >= family_->max_channels()) {
      status = absl::InvalidArgumentError(absl::StrCat("Duplicate: this MPI has tags for ",
                                                       family_->max_channels() - 1, " channels"));
    }
    if (!status.ok()) {
      family_->Abort(AbortText(std::string(status.message())));
      return status;
    }
    return std::make_unique<MpiCommunicator>(options(), family_, static_cast<int>(channel));
  }

  void DoAbort(std::string_view text) override { family_->Abort(std::string(text)); }
  absl::Status DoStatus() override { return family_->Inquire(); }

 private:
  // One request of MPI: the beginning of what goes to or comes from a rank, or a piece of the rest.
  struct Piece {
    int peer = 0;
    bool receives = false;
    bool first = false;
    bool done = false;
    int bytes = 0;  // a first one that is received: at most
  };

  // Whether the bytes of a message come along with its header.
  static bool ComesAlong(const Header& header) {
    return header.bytes <=
           std::min(kFirstBytes - static_cast<int64_t>(sizeof(Header)), header.piece_bytes);
  }

  absl::Status AddPiece(const Piece& piece, std::byte* data) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int error =
        piece.receives
            ? MPI_Irecv(data, piece.bytes, MPI_BYTE, piece.peer, tag_, family_->comm(), &request)
            : MPI_Isend(data, piece.bytes, MPI_BYTE, piece.peer, tag_, family_->comm(), &request);
    HOTROW_RETURN_IF_ERROR(MpiToStatus(error, WithPeer(piece)));
    pieces_.push_back(piece);
    requests_.push_back(request);
    return absl::OkStatus();
  }

  // What follows the header of a message in pieces. Sends do not write to `data`.
  absl::Status AddRest(int peer, bool receives, std::byte* data, int64_t bytes) {
    const int64_t most = options().message_bytes_max;
    for (int64_t begin = 0; begin < bytes; begin += most) {
      const int count = static_cast<int>(std::min(bytes - begin, most));
      HOTROW_RETURN_IF_ERROR(
          AddPiece({.peer = peer, .receives = receives, .bytes = count}, data + begin));
    }
    return absl::OkStatus();
  }

  // Each rank begins with another peer, so that not all send to one first.
  absl::Status Post(std::string_view op, std::span<const ConstBytes> send,
                    std::span<const Bytes> recv) {
    pieces_.clear();
    requests_.clear();
    bytes_ = 0;
    const int n = world_size();
    for (int i = 1; i < n; ++i) {
      const int from = (rank() - i + n) % n;
      bytes_ += static_cast<int64_t>(recv[static_cast<size_t>(from)].size());
      HOTROW_RETURN_IF_ERROR(
          AddPiece({.peer = from, .receives = true, .first = true, .bytes = int{kFirstBytes}},
                   firsts_->from(from)));
    }
    Header header;
    std::memcpy(header.op, op.data(), std::min(op.size(), kOpBytes));
    header.exchange = exchange_;
    header.piece_bytes = options().message_bytes_max;
    for (int i = 1; i < n; ++i) {
      const int to = (rank() + i) % n;
      const ConstBytes from = send[static_cast<size_t>(to)];
      header.bytes = static_cast<int64_t>(from.size());
      bytes_ += header.bytes;
      std::byte* const first = firsts_->to(to);
      std::memcpy(first, &header, sizeof(header));
      int count = sizeof(header);
      const bool along = ComesAlong(header);
      if (along && !from.empty()) {
        std::memcpy(first + count, from.data(), from.size());
        count += static_cast<int>(from.size());
      }
      HOTROW_RETURN_IF_ERROR(AddPiece({.peer = to, .first = true, .bytes = count}, first));
      if (along) continue;
      // A send only reads.
      HOTROW_RETURN_IF_ERROR(
          AddRest(to, /*receives=*/false, const_cast<std::byte*>(from.data()), header.bytes));
    }
    return absl::OkStatus();
  }

  // Returns when all pieces are done; errors as DoExchange.
  absl::Status Await(std::string_view op, std::span<const Bytes> recv) {
    const auto timeout = Seconds(options().timeout_seconds);
    const auto spin = kSpinAtLeast + Seconds(static_cast<double>(bytes_) / kSpinBytesPerSecond);
    const auto yield = kYieldAtLeast + Seconds(static_cast<double>(bytes_) / kYieldBytesPerSecond);
    Clock::time_point progress = Clock::now();
    Clock::time_point looked = progress;
    for (size_t done = 0; done < pieces_.size();) {
      finished_.resize(requests_.size());
      statuses_.resize(requests_.size());
      int finished = 0;
      const int error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(),
                                     &finished, finished_.data(), statuses_.data());
      if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) {
        return MpiToStatus(error, "MPI_Testsome");
      }
      if (finished != MPI_UNDEFINED && finished > 0) {
        for (int i = 0; i < finished; ++i) {
          const auto index = static_cast<size_t>(finished_[static_cast<size_t>(i)]);
          pieces_[index].done = true;
          // A copy: what Take posts makes pieces_ grow.
          const Piece piece = pieces_[index];
          HOTROW_RETURN_IF_ERROR(Take(op, piece, statuses_[static_cast<size_t>(i)],
                                      error == MPI_ERR_IN_STATUS,
                                      recv[static_cast<size_t>(piece.peer)]));
        }
        done += static_cast<size_t>(finished);
        progress = Clock::now();
        continue;
      }
      const Clock::time_point now = Clock::now();
      if (now - looked >= kNoticeInterval) {
        looked = now;
        HOTROW_RETURN_IF_ERROR(family_->status(/*look=*/true));
        if (now - progress >= timeout) return family_->GiveUp(op, Missing());
        if (family_->suspicion()) return family_->GiveUp(op, {});
      }
      if (now - progress >= yield) {
        std::this_thread::sleep_for(kNap);
      } else if (now - progress >= spin) {
        sched_yield();
      }
    }
    return absl::OkStatus();
  }

  static std::string WithPeer(const Piece& piece) {
    return absl::StrCat(piece.receives ? "receive from" : "send to", " rank ", piece.peer);
  }

  // A piece has come or gone. A first one that came is looked at, and what follows it is asked for.
  absl::Status Take(std::string_view op, const Piece& piece, const MPI_Status& status,
                    bool has_error, Bytes to) {
    if (has_error && status.MPI_ERROR != MPI_SUCCESS) {
      return MpiToStatus(status.MPI_ERROR, WithPeer(piece));
    }
    if (!piece.receives) return absl::OkStatus();
    int bytes = 0;
    HOTROW_MPI_RETURN_IF_ERROR(MPI_Get_count(&status, MPI_BYTE, &bytes));
    if (!piece.first) {
      return bytes == piece.bytes ? absl::OkStatus() : Misfit(piece.peer, bytes, piece.bytes);
    }
    constexpr int kHeaderBytes = sizeof(Header);
    Header header;
    if (bytes < kHeaderBytes) return Misfit(piece.peer, bytes, kHeaderBytes);
    std::memcpy(&header, firsts_->from(piece.peer), kHeaderBytes);
    const std::string_view theirs(header.op, ::strnlen(header.op, kOpBytes));
    if (theirs != op.substr(0, kOpBytes)) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank(), " calls ", std::string(op),
                                                     " while rank ", piece.peer, " calls ",
                                                     std::string(theirs)));
    }
    if (header.exchange != exchange_) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank(), " makes exchange ", exchange_, " of channel ", channel_,
                       " while rank ", piece.peer, " makes exchange ", header.exchange));
    }
    if (header.piece_bytes != options().message_bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("message_bytes_max is ", options().message_bytes_max, " on rank ", rank(),
                       " and ", header.piece_bytes, " on rank ", piece.peer));
    }
    const auto expected = static_cast<int64_t>(to.size());
    if (header.bytes != expected) return Misfit(piece.peer, header.bytes, expected);
    if (!ComesAlong(header)) return AddRest(piece.peer, /*receives=*/true, to.data(), expected);
    if (bytes != kHeaderBytes + expected) return Misfit(piece.peer, bytes - kHeaderBytes, expected);
    if (!to.empty()) {
      std::memcpy(to.data(), firsts_->from(piece.peer) + kHeaderBytes, to.size());
    }
    return absl::OkStatus();
  }

  absl::Status Misfit(int peer, int64_t bytes, int64_t expected) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", peer, " sends ", bytes, " bytes to rank ", rank(), ", which expects ", expected));
  }

  // Who has not sent what we wait for; where all have, who has not taken what we sent.
  std::set<int> Missing() const {
    std::set<int> from;
    std::set<int> to;
    for (const Piece& piece : pieces_) {
      if (!piece.done) (piece.receives ? from : to).insert(piece.peer);
    }
    return from.empty() ? to : from;
  }

  // Takes receives back, so that a late message does not land in a buffer that is gone. What has
  // been sent cannot be taken back.
  void Cancel() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (pieces_[i].receives) {
        MPI_Cancel(&requests_[i]);
      } else {
        MPI_Request_free(&requests_[i]);
      }
    }
    const auto deadline = Clock::now() + kCancelGrace;
    for (int done = 0; done == 0 && Clock::now() < deadline;) {
      if (MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
        return;
      }
      if (done == 0) sched_yield();
    }
  }

  const std::shared_ptr<Family> family_;
  const int channel_;
  std::unique_ptr<Firsts> firsts_;
  uint64_t exchange_ = 0;
  // The exchange under way.
  int tag_ = 0;
  std::vector<Piece> pieces_;
  std::vector<MPI_Request> requests_;
  std::vector<int> finished_;
  std::vector<MPI_Status> statuses_;
  int64_t bytes_ = 0;
};

}  // namespace

bool HaveMpi() { return true; }

absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(
    const CommunicatorOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_RETURN_IF_ERROR(StartMpi());
  longest_timeout_seconds = std::max(longest_timeout_seconds.load(), options.timeout_seconds);
  HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<Family> family, Family::Create(options));
  const int channel = family->NextChannel();
  return std::make_unique<MpiCommunicator>(options, std::move(family), channel);
}

}  // namespace hotrow
