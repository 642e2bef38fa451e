#include "tests/emulated_gpu/emulated_nccl.h"

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated_gpu/emulated_gpu.h"

namespace hotrow::emulated {
namespace {

enum class Kind { kAllGather, kBroadcast, kAllReduce };

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return "ncclAllGather";
    case Kind::kBroadcast:
      return "ncclBroadcast";
    case Kind::kAllReduce:
      return "ncclAllReduce";
  }
  return "";
}

size_t BytesOf(ncclDataType_t type) { return type == ncclInt8 ? 1 : type == ncclFloat32 ? 4 : 8; }

// Bytes on their way from one rank to another: where they lie at the sender, until they are copied.
struct Message {
  const void* data = nullptr;
  size_t bytes = 0;
  bool taken = false;
  bool withdrawn = false;  // the sender has aborted; its memory may be gone
};

// What one rank brings to a collective.
struct Part {
  const void* send = nullptr;
  void* recv = nullptr;
};

// A collective that some ranks have come to. `kind` to `root` are those of the first to come.
struct Meeting {
  Kind kind = Kind::kAllGather;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int root = 0;
  std::vector<Part> parts;
  int here = 0;
  int left = 0;  // they look at it no more
  bool done = false;
  bool abandoned = false;  // by a rank that had come: it can never be complete
};

// What the ranks of a communicator share.
struct World {
  explicit World(int num_ranks)
      : size(num_ranks),
        messages(static_cast<size_t>(num_ranks) * static_cast<size_t>(num_ranks)) {}

  std::deque<std::shared_ptr<Message>>& Between(int from, int to) {
    return messages[static_cast<size_t>(from) * static_cast<size_t>(size) +
                    static_cast<size_t>(to)];
  }

  const int size;
  // Guards all of the world and of its communicators. Bytes are copied under it, so nobody leaves
  // while its memory is read.
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  std::vector<std::deque<std::shared_ptr<Message>>> messages;
  std::map<int64_t, Meeting> meetings;  // by number
};

}  // namespace
}  // namespace hotrow::emulated

// What work on streams needs of a communicator, which it may outlive.
struct NcclEnd {
  std::shared_ptr<hotrow::emulated::World> world;
  int rank = 0;
  bool blocking = true;
  // Guarded by the world's mutex.
  bool aborted = false;
  bool finalizing = false;
  int64_t calls = 0;     // made so far
  int64_t finished = 0;  // done, in the order in which they were made
  int64_t meetings = 0;  // collectives among them
};
struct ncclComm {
  std::shared_ptr<NcclEnd> end;
};

namespace hotrow::emulated {
namespace {

std::atomic<int> communicators{0};
constexpr int kRanksMax = 64;
std::atomic<int> errors_of_ranks[kRanksMax];

struct Worlds {
  std::mutex mutex;
  uint64_t next_id = 1;
  std::map<uint64_t, std::weak_ptr<World>> by_id;

  static Worlds& Get() {
    static auto* const worlds = new Worlds();
    return *worlds;
  }
};

[[noreturn]] void FailCall(const std::string& what) { Fail(("NCCL: " + what).c_str()); }

void CheckMemory(const char* call, const void* data, size_t bytes) {
  if (bytes > 0 && !DeviceReaches(data, bytes)) {
    FailCall(std::string(call) + " of memory that the device does not reach");
  }
}

// One ncclSend or ncclRecv of a group.
struct Transfer {
  bool sends = false;
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
  int peer = 0;
};

// What a thread has called since ncclGroupStart.
struct Group {
  int depth = 0;
  std::shared_ptr<NcclEnd> end;
  cudaStream_t stream = nullptr;
  std::vector<Transfer> transfers;
};
thread_local Group group;

// Waits until `ready`; false when this end was aborted.
bool Await(NcclEnd& end, std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
  end.world->changed.wait(lock, [&] { return end.aborted || ready(); });
  return !end.aborted;
}

// Enqueues a call, which `run` does once it is its turn among the calls of the communicator. `run`
// holds the world's lock when it is called and when it returns.
ncclResult_t EnqueueCall(const std::shared_ptr<NcclEnd>& end, cudaStream_t stream,
                         std::function<void(NcclEnd&, std::unique_lock<std::mutex>&)> run) {
  int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(end->world->mutex);
    number = end->calls++;
  }
  EnqueueOnStream(stream, [end, number, run = std::move(run)] {
    std::unique_lock<std::mutex> lock(end->world->mutex);
    if (Await(*end, lock, [&] { return end->finished == number; })) run(*end, lock);
    ++end->finished;
    end->world->changed.notify_all();
  });
  // A communicator that does not block says now and then that it is not that far yet.
  return !end->blocking && number % 3 == 1 ? ncclInProgress : ncclSuccess;
}

void RunTransfers(const std::vector<Transfer>& transfers, NcclEnd& end,
                  std::unique_lock<std::mutex>& lock) {
  World& world = *end.world;
  // All of them at a time: first everything sets out.
  std::vector<std::shared_ptr<Message>> sent;
  for (const Transfer& transfer : transfers) {
    if (!transfer.sends) continue;
    sent.push_back(std::make_shared<Message>(Message{transfer.from, transfer.bytes}));
    world.Between(end.rank, transfer.peer).push_back(sent.back());
  }
  world.changed.notify_all();
  bool here = true;
  for (const Transfer& transfer : transfers) {
    if (transfer.sends) continue;
    auto& queue = world.Between(transfer.peer, end.rank);
    here = Await(end, lock, [&] {
      while (!queue.empty() && queue.front()->withdrawn) queue.pop_front();
      return !queue.empty();
    });
    if (!here) break;
    Message& message = *queue.front();
    if (message.bytes != transfer.bytes) {
      FailCall("rank " + std::to_string(transfer.peer) + " sends " + std::to_string(message.bytes) +
               " bytes to rank " + std::to_string(end.rank) + ", which expects " +
               std::to_string(transfer.bytes));
    }
    std::memcpy(transfer.to, message.data, message.bytes);
    message.taken = true;
    queue.pop_front();
    world.changed.notify_all();
  }
  for (const std::shared_ptr<Message>& message : sent) {
    here = here && Await(end, lock, [&] { return message->taken; });
    if (!here) message->withdrawn = true;
  }
  if (!here) world.changed.notify_all();
}

template <typename T>
void Sum(const Meeting& meeting) {
  const auto ranks = meeting.parts.size();
  std::vector<T> sums(meeting.count);
  for (size_t i = 0; i < meeting.count; ++i) {
    const size_t first = (i * ranks / meeting.count + 1) % ranks;  // of a slice of 1/N
    for (size_t k = 0; k < ranks; ++k) {
      T x;
      std::memcpy(&x,
                  static_cast<const char*>(meeting.parts[(first + k) % ranks].send) + i * sizeof(T),
                  sizeof(T));
      sums[i] = k == 0 ? x : static_cast<T>(sums[i] + x);
    }
  }
  for (const Part& part : meeting.parts) {
    std::memcpy(part.recv, sums.data(), sums.size() * sizeof(T));
  }
}

void Complete(Meeting& meeting) {
  const size_t bytes = meeting.count * BytesOf(meeting.type);
  if (meeting.kind == Kind::kAllReduce) {
    switch (meeting.type) {
      case ncclFloat32:
        return Sum<float>(meeting);
      case ncclFloat64:
        return Sum<double>(meeting);
      case ncclInt64:
        return Sum<uint64_t>(meeting);  // wraps
      case ncclInt8:
        FailCall("ncclAllReduce of bytes");
    }
  }
  for (Part& to : meeting.parts) {
    if (meeting.kind == Kind::kBroadcast) {
      std::memmove(to.recv, meeting.parts[static_cast<size_t>(meeting.root)].send, bytes);
      continue;
    }
    for (size_t p = 0; p < meeting.parts.size(); ++p) {
      std::memmove(static_cast<char*>(to.recv) + p * bytes, meeting.parts[p].send, bytes);
    }
  }
}

// Keeps who brought what until all are there, or this end is aborted.
ncclResult_t EnqueueCollective(Kind kind, ncclComm_t comm, cudaStream_t stream, const Part& part,
                               size_t count, ncclDataType_t type, int root) {
  const std::shared_ptr<NcclEnd> end = comm->end;
  const size_t bytes = count * BytesOf(type);
  const auto size = static_cast<size_t>(end->world->size);
  if (kind != Kind::kBroadcast || end->rank == root) CheckMemory(NameOf(kind), part.send, bytes);
  CheckMemory(NameOf(kind), part.recv, kind == Kind::kAllGather ? size * bytes : bytes);
  return EnqueueCall(end, stream, [=](NcclEnd& here, std::unique_lock<std::mutex>& lock) {
    World& world = *here.world;
    const int64_t number = here.meetings++;
    Meeting& meeting = world.meetings[number];
    if (meeting.here == 0) {
      meeting = {.kind = kind, .count = count, .type = type, .root = root};
      meeting.parts.resize(size);
    } else if (meeting.kind != kind || meeting.count != count || meeting.type != type ||
               meeting.root != root) {
      FailCall("rank " + std::to_string(here.rank) + " calls " + NameOf(kind) + " of " +
               std::to_string(count) + " elements while another rank calls " +
               NameOf(meeting.kind) + " of " + std::to_string(meeting.count));
    }
    meeting.parts[static_cast<size_t>(here.rank)] = part;
    if (++meeting.here == world.size && !meeting.abandoned) {
      Complete(meeting);
      meeting.done = true;
      world.changed.notify_all();
    } else if (!Await(here, lock, [&] { return meeting.done; }) && !meeting.done) {
      meeting.abandoned = true;  // others must not read memory that may be gone
      return;
    }
    if (++meeting.left == world.size) world.meetings.erase(number);
  });
}

}  // namespace

void SetNcclError(int rank, int result) {
  errors_of_ranks[rank].store(result, std::memory_order_relaxed);
}
int NumNcclCommunicators() { return communicators.load(); }

}  // namespace hotrow::emulated

using hotrow::emulated::CheckMemory;
using hotrow::emulated::EnqueueCall;
using hotrow::emulated::FailCall;
using hotrow::emulated::group;
using hotrow::emulated::Kind;
using hotrow::emulated::World;
using hotrow::emulated::Worlds;

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclInvalidArgument:
      return "invalid argument";
    default:
      return "an error of another kind";
  }
}
const char* ncclGetLastError(ncclComm_t) { return "emulated"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Worlds& worlds = Worlds::Get();
  const std::lock_guard<std::mutex> lock(worlds.mutex);
  *id = {};
  const uint64_t number = worlds.next_id++;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world_size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (rank < 0 || rank >= world_size || world_size > hotrow::emulated::kRanksMax) {
    return ncclInvalidArgument;
  }
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  std::shared_ptr<World> world;
  {
    Worlds& worlds = Worlds::Get();
    const std::lock_guard<std::mutex> lock(worlds.mutex);
    world = worlds.by_id[number].lock();
    if (world == nullptr) {
      world = std::make_shared<World>(world_size);
      worlds.by_id[number] = world;
    }
  }
  if (world->size != world_size) FailCall("ranks of worlds of different sizes meet");
  *comm = new ncclComm{std::make_shared<NcclEnd>(
      NcclEnd{.world = world, .rank = rank, .blocking = config->blocking != 0})};
  ++hotrow::emulated::communicators;
  std::unique_lock<std::mutex> lock(world->mutex);
  ++world->joined;
  world->changed.notify_all();
  if (config->blocking == 0) return ncclInProgress;
  world->changed.wait(lock, [&] { return world->joined >= world->size; });
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int world_size, ncclUniqueId id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  return ncclCommInitRankConfig(comm, world_size, id, rank, &config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const NcclEnd& end = *comm->end;
  const auto rank = static_cast<size_t>(end.rank);
  const int error = hotrow::emulated::errors_of_ranks[rank].load(std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(end.world->mutex);
  if (error != ncclSuccess) {
    *state = static_cast<ncclResult_t>(error);
  } else if (end.world->joined < end.world->size || (end.finalizing && end.finished < end.calls)) {
    *state = ncclInProgress;
  } else {
    *state = ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  NcclEnd& end = *comm->end;
  const std::lock_guard<std::mutex> lock(end.world->mutex);
  end.finalizing = true;
  return end.blocking ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const std::lock_guard<std::mutex> lock(comm->end->world->mutex);
    if (comm->end->finished < comm->end->calls)
      FailCall("a communicator ends with calls under way");
  }
  delete comm;
  --hotrow::emulated::communicators;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard<std::mutex> lock(comm->end->world->mutex);
    comm->end->aborted = true;
    comm->end->world->changed.notify_all();
  }
  delete comm;
  --hotrow::emulated::communicators;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  const std::shared_ptr<NcclEnd> end = std::exchange(group.end, nullptr);
  if (end == nullptr) return ncclSuccess;
  return EnqueueCall(end, group.stream,
                     [transfers = std::exchange(group.transfers, {})](
                         NcclEnd& here, std::unique_lock<std::mutex>& lock) {
                       hotrow::emulated::RunTransfers(transfers, here, lock);
                     });
}

namespace {

ncclResult_t AddTransfer(const hotrow::emulated::Transfer& transfer, ncclComm_t comm,
                         cudaStream_t stream) {
  if (transfer.peer < 0 || transfer.peer >= comm->end->world->size) return ncclInvalidArgument;
  // Alone it is a group of one.
  ncclGroupStart();
  if (group.end != nullptr && (group.end != comm->end || group.stream != stream)) {
    FailCall("a group of two communicators or streams, which nobody here needs");
  }
  group.end = comm->end;
  group.stream = stream;
  group.transfers.push_back(transfer);
  return ncclGroupEnd();
}

}  // namespace

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * hotrow::emulated::BytesOf(type);
  CheckMemory("ncclSend", data, bytes);
  return AddTransfer({.sends = true, .from = data, .bytes = bytes, .peer = peer}, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const size_t bytes = count * hotrow::emulated::BytesOf(type);
  CheckMemory("ncclRecv", data, bytes);
  return AddTransfer({.to = data, .bytes = bytes, .peer = peer}, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return EnqueueCollective(Kind::kAllGather, comm, stream, {send, recv}, count, type, 0);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return EnqueueCollective(Kind::kBroadcast, comm, stream, {send, recv}, count, type, root);
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return EnqueueCollective(Kind::kAllReduce, comm, stream, {send, recv}, count, type, 0);
}
