// What rank_kill_test runs under mpirun: a small training run of several ranks that goes on from
// its newest checkpoint, and of which one rank, the victim, is killed in the midst of an exchange
// of a stated kind. The others say why they end, and exit with 1.
//
//   rank_kill_main memory|ssd DIR EPOCHS SECONDS_OF_TIMEOUT [KIND before|halfway|after VICTIM]
//   rank_kill_main memory|ssd DIR EPOCHS SECONDS_OF_TIMEOUT anytime MILLISECONDS VICTIM SEED
//
// anytime: the victim is killed so long after it began, with anything going on. SEED, unless 0,
// draws writes that fail, on all ranks.
//
// KIND, of what is going on when it happens:
//   key_counts, keys                        ids of a step that is prefetched
//   rows, gradients                         of a step, forth and back
//   dense, loss                             sums: of dense gradients; of the loss and of signals
//   evaluation_counts, evaluation_keys,     of validation: ids, rows,
//   evaluation_rows, logits                 and what all ranks need for the metrics
//   snapshots                               all ranks have prepared a checkpoint, and tell rank 0
//                                           their snapshots' names
//   commit                                  rank 0 has written all of it but its name
//
// It is the first of its kind after a checkpoint of this very process has been committed. before:
// the victim has sent nothing; halfway: it has sent to the next rank, and nothing to the others;
// after: it has sent and received everything. With `commit` rank 0 as victim dies before or after
// it gives the name; another victim in the exchange in which the ranks tell each other how far they
// are, while rank 0 is held between the two.
//
// At the end of training rank 0 writes DIR/end: what the run has come to. The victim makes
// DIR/killed when it dies.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/io_queue.h"
#include "base/status_macros.h"
#include "comm/create_communicator.h"
#include "models/data/open_data_source.h"
#include "models/saving/checkpoint.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/faulty_env.h"

namespace hotrow::test {
namespace {

// A row travels as 4 bytes a column, its gradient as 2: so the two can be told apart.
constexpr ExchangeType kForward = ExchangeType::kFp32;
constexpr ExchangeType kBackward = ExchangeType::kFp16;
constexpr size_t kLossBytes = 16;
constexpr int64_t kSmallestSnapshotName = int64_t{1} << 32;  // models/saving/saved_model.cc
constexpr auto kMoment = std::chrono::milliseconds(100);
constexpr auto kStep = std::chrono::milliseconds(20);

enum class Moment { kBefore, kHalfway, kAfter };

// What is to happen, and what has happened so far. Shared by all channels of a process.
struct Plan {
  std::string kind;  // empty: nobody is killed
  Moment moment = Moment::kBefore;
  bool victim = false;  // this rank
  int rank = 0;
  std::string checkpoint_dir;
  std::string committing;  // a file that rank 0 makes while it is held, and one for the answer
  std::string dying;
  std::string killed;          // made right before the kill
  int64_t kill_after_ms = -1;  // anytime
  uint64_t fault_seed = 0;     // 0: no writes fail
  size_t count_bytes = 0;      // of a message that says how many keys of each table follow
  std::string newest_before;

  // Whether there is a checkpoint that was not there when this process began.
  bool armed() const {
    if (!victim || kind.empty()) return false;
    const auto names = ListCheckpoints(PosixEnv(), checkpoint_dir);
    return names.ok() && !names->empty() && names->back() != newest_before;
  }
};

bool FileExists(const std::string& path) { return PosixEnv().Exists(path).value_or(false); }
void Touch(const std::string& path) {
  PosixEnv().Open(path, OpenMode::kTruncate).status().IgnoreError();
}

[[noreturn]] void Die(const Plan& plan) {
  Touch(plan.killed);
  std::fprintf(stderr, "rank %d: killed in %s\n", plan.rank, plan.kind.c_str());
  ::kill(::getpid(), SIGKILL);
  std::abort();  // never reached
}

// The functions that a backend implements are called by its base class alone; this names them for
// whoever stands in between.
class Opened : public Communicator {
 public:
  using Communicator::DoAbort;
  using Communicator::DoExchange;
};

// A channel that is killed in the midst of an exchange. Every exchange is two of the channel below
// it, on all ranks: first each sends to the rank after it, then to all others.
class KillingCommunicator : public Communicator {
 public:
  // path: "" of the first channel, "/1" of its second duplicate, "/1/0" of the first one of that.
  KillingCommunicator(std::unique_ptr<Communicator> base, std::shared_ptr<const Plan> plan,
                      std::string path)
      : Communicator(base->rank(), base->world_size(), base->options()),
        base_(std::move(base)),
        plan_(std::move(plan)),
        path_(std::move(path)) {}

 protected:
  absl::Status DoExchange(std::string_view op, std::span<const ConstBytes> send,
                          std::span<const Bytes> recv) override {
    const std::string kind = Classify(op, send, recv);
    const bool dies = kind == plan_->kind && plan_->armed() && IsTime();
    if (dies && plan_->moment == Moment::kBefore) {
      // The others have begun by then, and wait.
      std::this_thread::sleep_for(kMoment);
      Die(*plan_);
    }
    HOTROW_RETURN_IF_ERROR(Half(op, send, recv, /*first=*/true));
    if (dies && plan_->moment == Moment::kHalfway) Die(*plan_);
    HOTROW_RETURN_IF_ERROR(Half(op, send, recv, /*first=*/false));
    if (dies) Die(*plan_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoDuplicate() override {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> duplicate, base_->Duplicate());
    return std::make_unique<KillingCommunicator>(std::move(duplicate), plan_,
                                                 absl::StrCat(path_, "/", duplicates_++));
  }
  void DoAbort(std::string_view text) override { ((*base_).*(&Opened::DoAbort))(text); }
  absl::Status DoStatus() override { return base_->status(); }

 private:
  absl::Status Half(std::string_view op, std::span<const ConstBytes> send,
                    std::span<const Bytes> recv, bool first) {
    const int n = world_size();
    std::vector<ConstBytes> some_send(static_cast<size_t>(n));
    std::vector<Bytes> some_recv(static_cast<size_t>(n));
    for (int distance = 1; distance < n; ++distance) {
      if ((distance == 1) != first) continue;
      const auto to = static_cast<size_t>((rank() + distance) % n);
      const auto from = static_cast<size_t>((rank() - distance + n) % n);
      some_send[to] = send[to];
      some_recv[from] = recv[from];
    }
    return ((*base_).*(&Opened::DoExchange))(op, some_send, some_recv);
  }

  // Which exchange of the trainer this is; "" for others. By its channel, the call, and the sizes
  // of what is sent and received, so that what it says does not rest on counting steps.
  std::string Classify(std::string_view op, std::span<const ConstBytes> send,
                       std::span<const Bytes> recv) {
    const auto self = static_cast<size_t>(rank());
    const auto all_have = [&](size_t bytes) {
      for (size_t p = 0; p < send.size(); ++p) {
        if (p != self && (send[p].size() != bytes || recv[p].size() != bytes)) return false;
      }
      return true;
    };
    if (path_ == "/0") {  // of the thread that trains
      if (op == "AllGatherV") return "logits";
      if (op != "AllGather" || !all_have(sizeof(int64_t))) return "";
      int64_t mine = 0;
      std::memcpy(&mine, send[(self + 1) % send.size()].data(), sizeof(mine));
      return mine >= kSmallestSnapshotName ? "snapshots" : "commit";
    }
    if (path_ == "/1" && op == "AllReduceSum") return all_have(kLossBytes) ? "loss" : "dense";
    if (op != "AllToAllV") return "";
    const bool counts = all_have(plan_->count_bytes);
    if (path_ == "/0/0") return counts ? "key_counts" : "keys";
    if (path_ != "/0/1") return "";
    if (counts) {
      evaluation_ = 1;
      return "evaluation_counts";
    }
    if (evaluation_ == 1) {
      evaluation_ = 2;
      return "evaluation_keys";
    }
    if (evaluation_ == 2) {
      evaluation_ = 0;
      return "evaluation_rows";
    }
    // Gradients travel the way of their rows, back, in half as many bytes.
    bool back = !sent_.empty();
    for (size_t p = 0; p < sent_.size(); ++p) {
      if (p == self) continue;
      back = back && 2 * send[p].size() == received_[p] && 2 * recv[p].size() == sent_[p];
    }
    sent_.clear();
    received_.clear();
    if (back) return "gradients";
    for (size_t p = 0; p < send.size(); ++p) {
      sent_.push_back(send[p].size());
      received_.push_back(recv[p].size());
    }
    return "rows";
  }

  bool IsTime() const {
    if (plan_->kind != "commit") return true;
    if (plan_->rank == 0 || !FileExists(plan_->committing)) return false;
    Touch(plan_->dying);
    return true;
  }

  const std::unique_ptr<Communicator> base_;
  const std::shared_ptr<const Plan> plan_;
  const std::string path_;
  int duplicates_ = 0;
  // For rows and gradients: the rows sent and received last, and how far evaluation is.
  std::vector<size_t> sent_;
  std::vector<size_t> received_;
  int evaluation_ = 0;
};

// The file system, where rank 0 is held or killed as it gives a checkpoint its name.
class CommitEnv : public Env {
 public:
  explicit CommitEnv(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
    if (plan_->fault_seed == 0) return;
    const uint64_t seed = plan_->fault_seed + static_cast<uint64_t>(plan_->rank);
    faulty_.FailWrites(seed, seed % 2 == 0 ? 50 : 500, absl::DataLossError("injected"));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    const bool names = plan_->rank == 0 && plan_->kind == "commit" &&
                       absl::StartsWith(to, plan_->checkpoint_dir + "/step-") &&
                       absl::EndsWith(from, ".tmp") && named_++ > 0;
    if (!names) return base_.Rename(from, to);
    if (plan_->victim) {
      if (plan_->moment == Moment::kBefore) Die(*plan_);
      HOTROW_RETURN_IF_ERROR(base_.Rename(from, to));
      Die(*plan_);
    }
    Touch(plan_->committing);
    // Until the victim is dead, or cannot be awaited.
    for (int i = 0; i < 200 && !FileExists(plan_->dying); ++i) std::this_thread::sleep_for(kMoment);
    std::this_thread::sleep_for(2 * kMoment);
    return base_.Rename(from, to);
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    return base_.Open(path, mode);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    return base_.OpenDirect(path, mode);
  }
  absl::Status CreateDirs(const std::string& path) override { return base_.CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override {
    return base_.ListDir(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override { return base_.Exists(path); }
  absl::Status Remove(const std::string& path) override { return base_.Remove(path); }
  absl::Status RemoveDir(const std::string& path) override { return base_.RemoveDir(path); }
  absl::Status SyncDir(const std::string& path) override { return base_.SyncDir(path); }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return base_.FreeBytes(path);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> LockFile(const std::string& path,
                                                     LockMode mode) override {
    return base_.LockFile(path, mode);
  }
  absl::StatusOr<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options) override {
    return base_.NewIoQueue(options);
  }

 private:
  FaultyEnv faulty_{&PosixEnv()};
  const std::shared_ptr<const Plan> plan_;
  Env& base_ = plan_->fault_seed == 0 ? PosixEnv() : faulty_;
  std::atomic<int> named_ = 0;  // by this process
};

int Fail(const std::string& message) {
  // One write, so that lines of different ranks do not mix.
  std::fputs(absl::StrCat(message, "\n").c_str(), stderr);
  return 1;
}

// It has no name yet.
bool CheckpointIsInFlight(const Plan& plan) {
  const auto names = PosixEnv().ListDir(plan.checkpoint_dir);
  return names.ok() && std::any_of(names->begin(), names->end(), [](const std::string& name) {
           return absl::EndsWith(name, ".tmp");
         });
}

absl::Status Run(Communicator& communicator, const std::shared_ptr<Plan>& plan,
                 const std::string& store, const std::string& dir, int64_t epochs) {
  TrainerOptions options = SmallRun();
  options.epochs = epochs;
  options.communicator = &communicator;
  options.exchange_forward = kForward;
  options.exchange_backward = kBackward;
  options.cache_bytes = kSmallestCache;
  options.prefetch_depth = 2;
  if (store == "ssd") {
    options.store = StoreKind::kSsd;
    options.store_path = dir + "/rows";
    options.store_bytes = int64_t{2} << 20;
    options.disk_bytes = int64_t{64} << 20;
  }
  options.checkpoint_dir = plan->checkpoint_dir;
  options.checkpoint_every = 5;
  options.resume = true;
  CommitEnv env(plan);
  options.env = &env;

  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> small, OpenDataSource(kSmallData, 5));
  plan->count_bytes = sizeof(uint32_t) * CollectionOptions(options, small->schema()).tables.size();
  // Steps are so short that a run could be over before its first checkpoint is.
  WatchedData data(std::move(small), [&](Split split, int64_t, int64_t) {
    if (split == Split::kTrain && CheckpointIsInFlight(*plan)) std::this_thread::sleep_for(kStep);
    return absl::OkStatus();
  });
  HOTROW_ASSIGN_OR_RETURN(const TrainReport report,
                          RunTraining(options, data, SmallModel(options), {}));
  if (communicator.rank() == 0) {
    HOTROW_RETURN_IF_ERROR(WriteFileAtomically(PosixEnv(), dir + "/end", EndOf(report)));
  }
  return communicator.Barrier();
}

int Main(int argc, char** argv) {
  if (argc != 5 && argc != 8 && argc != 9) {
    return Fail("rank_kill_main: takes four, seven or eight arguments");
  }
  const std::string store = argv[1];
  const std::string dir = argv[2];
  auto plan = std::make_shared<Plan>();
  plan->checkpoint_dir = dir + "/saved";
  plan->committing = dir + "/committing";
  plan->dying = dir + "/dying";
  plan->killed = dir + "/killed";
  auto base = CreateCommunicator(CommKind::kMpi, {.timeout_seconds = std::atof(argv[4])});
  if (!base.ok()) return Fail(std::string(base.status().message()));
  const int rank = plan->rank = (*base)->rank();
  if (argc == 8) {
    const std::string moment = argv[6];
    plan->kind = argv[5];
    plan->moment = moment == "before"    ? Moment::kBefore
                   : moment == "halfway" ? Moment::kHalfway
                                         : Moment::kAfter;
    plan->victim = std::atoi(argv[7]) == rank;
  }
  if (argc == 9) {
    if (std::atoi(argv[7]) == rank) plan->kill_after_ms = std::atoll(argv[6]);
    plan->fault_seed = std::strtoull(argv[8], nullptr, 10);
  }
  const auto names = ListCheckpoints(PosixEnv(), plan->checkpoint_dir);
  if (!names.ok()) return Fail(std::string(names.status().message()));
  if (!names->empty()) plan->newest_before = names->back();

  if (plan->kill_after_ms >= 0) {
    std::thread([plan] {
      std::this_thread::sleep_for(std::chrono::milliseconds(plan->kill_after_ms));
      Die(*plan);
    }).detach();
  }
  KillingCommunicator communicator(*std::move(base), plan, "");
  const absl::Status status = Run(communicator, plan, store, dir, std::atoll(argv[3]));
  if (status.ok()) return 0;
  communicator.Abort(std::string(status.message()));
  return Fail(absl::StrCat("rank ", rank, ": ", status.message()));
}

}  // namespace
}  // namespace hotrow::test

int main(int argc, char** argv) { return hotrow::test::Main(argc, argv); }
