#include "comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// Up to here every rank sends its whole vector to every other and sums for itself: one exchange
// instead of two.
constexpr int64_t kGatherReduceBytes = int64_t{8} << 10;
// Longer vectors are reduced in pieces of this size, which bounds the scratch memory.
constexpr int64_t kReducePieceBytes = int64_t{16} << 20;
// From here a broadcast spreads slices, which the ranks then exchange: the root sends its data
// twice instead of n-1 times.
constexpr int64_t kSlicedBroadcastBytes = int64_t{64} << 10;

// Slice `part` of `parts` nearly equal ones of [0, total): where it begins. part = parts: the end.
int64_t SliceBegin(int64_t total, int64_t parts, int64_t part) {
  return total / parts * part + std::min(part, total % parts);
}

template <typename T, typename Size>
void AddTo(T* sum, const T* next, Size size) {
  for (size_t i = 0; i < size; ++i) {
    if constexpr (std::is_integral_v<T>) {
      sum[i] = static_cast<T>(static_cast<uint64_t>(sum[i]) + static_cast<uint64_t>(next[i]));
    } else {
      sum[i] += next[i];
    }
  }
}

// data becomes x0 + x1 + ..., where data holds x of rank `self` and the others lie behind each
// other in `scratch`, whose part `self` is not used. In blocks that stay in the first-level cache.
template <typename T>
void SumInOrder(std::span<T> data, const std::byte* scratch, size_t n, size_t self) {
  constexpr size_t kBlock = 4096 / sizeof(T);
  alignas(64) T sum[kBlock];
  alignas(64) T next[kBlock];
  const size_t stride = data.size_bytes();
  for (size_t begin = 0; begin < data.size(); begin += kBlock) {
    const size_t size = std::min(kBlock, data.size() - begin);
    for (size_t p = 0; p < n; ++p) {
      T* const to = p == 0 ? sum : next;
      if (p == self) {
        std::memcpy(to, data.data() + begin, size * sizeof(T));
      } else {
        std::memcpy(to, scratch + p * stride + begin * sizeof(T), size * sizeof(T));
      }
      if (p == 0) continue;
      // The compiler makes vector code of a number that it knows.
      if (size == kBlock) {
        AddTo(sum, next, std::integral_constant<size_t, kBlock>());
      } else {
        AddTo(sum, next, size);
      }
    }
    std::memcpy(data.data() + begin, sum, size * sizeof(T));
  }
}

}  // namespace

absl::Status CommunicatorOptions::Validate() const {
  if (!(timeout_seconds > 0 && timeout_seconds <= 86400)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CommunicatorOptions: timeout_seconds must lie in (0, 86400], got ", timeout_seconds));
  }
  if (message_bytes_max < 1 || message_bytes_max > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("CommunicatorOptions: message_bytes_max must lie in [1, 2^31 - 1], got ",
                     message_bytes_max));
  }
  return absl::OkStatus();
}

// Holds the channel for one call; a second thread is told instead of mixing up two collectives.
class Communicator::InUse {
 public:
  InUse(Communicator& communicator, std::string_view op) : communicator_(communicator) {
    if (communicator.in_use_.exchange(true, std::memory_order_acquire)) {
      const std::string message =
          absl::StrCat(std::string(op), ": rank ", communicator.rank_,
                       " is in another call of this channel, on another thread; give each thread "
                       "a channel of its own with Duplicate()");
      communicator.DoAbort(communicator.AbortText(message));
      status_ = absl::FailedPreconditionError(message);
    }
  }
  ~InUse() {
    if (status_.ok()) communicator_.in_use_.store(false, std::memory_order_release);
  }
  const absl::Status& status() const { return status_; }

 private:
  Communicator& communicator_;
  absl::Status status_;
};

Communicator::Communicator(int rank, int world_size, const CommunicatorOptions& options)
    : rank_(rank),
      world_size_(world_size),
      options_(options),
      send_(static_cast<size_t>(world_size)),
      recv_(static_cast<size_t>(world_size)) {
  HOTROW_CHECK(rank >= 0 && rank < world_size);
}

std::string Communicator::AbortText(std::string_view message) const {
  return absl::StrCat("rank ", rank_, " ended the job: ", std::string(message));
}

absl::Status Communicator::Refuse(std::string_view op, std::string_view message) {
  const std::string text = absl::StrCat(std::string(op), ": ", std::string(message), " (rank ",
                                        rank_, " of ", world_size_, ")");
  DoAbort(AbortText(text));
  return absl::InvalidArgumentError(text);
}

absl::Status Communicator::CheckCounts(std::string_view op, std::string_view field,
                                       const void* data, std::span<const int64_t> bytes,
                                       std::span<const int64_t> offsets, int64_t limit) {
  const std::string name(field);
  const auto n = static_cast<size_t>(world_size_);
  if (bytes.size() != n || offsets.size() != n) {
    return Refuse(op, absl::StrCat(name, "bytes and ", name,
                                   "offsets must have an entry for each "
                                   "rank, got ",
                                   bytes.size(), " and ", offsets.size()));
  }
  for (size_t p = 0; p < n; ++p) {
    if (bytes[p] < 0) {
      return Refuse(op, absl::StrCat(name, "bytes[", p, "] is negative: ", bytes[p]));
    }
    if (bytes[p] == 0) continue;
    if (data == nullptr) {
      return Refuse(op, absl::StrCat(name, "bytes[", p, "] is ", bytes[p], ", without data"));
    }
    if (offsets[p] < 0 || offsets[p] > limit - bytes[p]) {
      return Refuse(op, absl::StrCat(name, "offsets[", p, "] must lie in [0, ", limit - bytes[p],
                                     "] for ", bytes[p], " bytes, got ", offsets[p]));
    }
  }
  return absl::OkStatus();
}

// Sends send_ and receives recv_. What a rank has for itself is copied last, while no other waits.
absl::Status Communicator::ExchangeAndCopyOwn(std::string_view op) {
  HOTROW_RETURN_IF_ERROR(DoExchange(op, send_, recv_));
  const ConstBytes from = send_[static_cast<size_t>(rank_)];
  const Bytes to = recv_[static_cast<size_t>(rank_)];
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
  return absl::OkStatus();
}

absl::Status Communicator::AllToAllV(const AllToAllVArgs& args) {
  constexpr std::string_view kOp = "AllToAllV";
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const InUse in_use(*this, kOp);
  HOTROW_RETURN_IF_ERROR(in_use.status());
  HOTROW_RETURN_IF_ERROR(
      CheckCounts(kOp, "send_", args.send, args.send_bytes, args.send_offsets, kNoLimit));
  HOTROW_RETURN_IF_ERROR(
      CheckCounts(kOp, "recv_", args.recv, args.recv_bytes, args.recv_offsets, kNoLimit));
  const auto self = static_cast<size_t>(rank_);
  if (args.send_bytes[self] != args.recv_bytes[self]) {
    return Refuse(kOp, absl::StrCat("rank ", rank_, " sends ", args.send_bytes[self],
                                    " bytes to itself and expects ", args.recv_bytes[self]));
  }
  for (size_t p = 0; p < send_.size(); ++p) {
    send_[p] = {};
    recv_[p] = {};
    if (args.send_bytes[p] > 0) {
      send_[p] = {static_cast<const std::byte*>(args.send) + args.send_offsets[p],
                  static_cast<size_t>(args.send_bytes[p])};
    }
    if (args.recv_bytes[p] > 0) {
      recv_[p] = {static_cast<std::byte*>(args.recv) + args.recv_offsets[p],
                  static_cast<size_t>(args.recv_bytes[p])};
    }
  }
  return ExchangeAndCopyOwn(kOp);
}

absl::Status Communicator::GatherBlocks(std::string_view op, ConstBytes mine,
                                        std::span<const int64_t> bytes,
                                        std::span<const int64_t> offsets, std::byte* all) {
  for (size_t p = 0; p < send_.size(); ++p) {
    send_[p] = mine;
    recv_[p] = {};
    if (bytes[p] > 0) recv_[p] = {all + offsets[p], static_cast<size_t>(bytes[p])};
  }
  return ExchangeAndCopyOwn(op);
}

absl::Status Communicator::AllGather(std::span<const std::byte> mine, std::span<std::byte> all) {
  constexpr std::string_view kOp = "AllGather";
  const InUse in_use(*this, kOp);
  HOTROW_RETURN_IF_ERROR(in_use.status());
  const auto n = static_cast<size_t>(world_size_);
  if (all.size() != mine.size() * n) {
    return Refuse(kOp, absl::StrCat("the result must have ", n, " times the ", mine.size(),
                                    " bytes of a rank, got ", all.size()));
  }
  std::vector<int64_t> bytes(n, static_cast<int64_t>(mine.size()));
  std::vector<int64_t> offsets(n);
  for (size_t p = 0; p < n; ++p) offsets[p] = static_cast<int64_t>(p * mine.size());
  return GatherBlocks(kOp, mine, bytes, offsets, all.data());
}

absl::Status Communicator::AllGatherV(std::span<const std::byte> mine,
                                      std::span<const int64_t> bytes,
                                      std::span<const int64_t> offsets, std::span<std::byte> all) {
  constexpr std::string_view kOp = "AllGatherV";
  const InUse in_use(*this, kOp);
  HOTROW_RETURN_IF_ERROR(in_use.status());
  HOTROW_RETURN_IF_ERROR(
      CheckCounts(kOp, "", all.data(), bytes, offsets, static_cast<int64_t>(all.size())));
  const auto self = static_cast<size_t>(rank_);
  if (bytes[self] != static_cast<int64_t>(mine.size())) {
    return Refuse(kOp, absl::StrCat("bytes[", rank_, "] is ", bytes[self], ", but this rank gives ",
                                    mine.size(), " bytes"));
  }
  return GatherBlocks(kOp, mine, bytes, offsets, all.data());
}

absl::StatusOr<std::vector<int64_t>> Communicator::AllGatherSizes(int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(world_size_));
  HOTROW_RETURN_IF_ERROR(
      AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))));
  return all;
}

absl::Status Communicator::Broadcast(std::span<std::byte> data, int root) {
  constexpr std::string_view kOp = "Broadcast";
  const InUse in_use(*this, kOp);
  HOTROW_RETURN_IF_ERROR(in_use.status());
  if (root < 0 || root >= world_size_) {
    return Refuse(kOp, absl::StrCat("root must lie in [0, ", world_size_, "), got ", root));
  }
  const auto bytes = static_cast<int64_t>(data.size());
  const bool sliced = bytes >= kSlicedBroadcastBytes && world_size_ > 2;
  const auto slice = [&](int64_t p) -> Bytes {
    if (!sliced) return data;
    const int64_t begin = SliceBegin(bytes, world_size_, p);
    return data.subspan(static_cast<size_t>(begin),
                        static_cast<size_t>(SliceBegin(bytes, world_size_, p + 1) - begin));
  };
  for (size_t p = 0; p < send_.size(); ++p) {
    send_[p] = {};
    recv_[p] = {};
    if (rank_ == root) send_[p] = slice(static_cast<int64_t>(p));
  }
  recv_[static_cast<size_t>(root)] = slice(rank_);
  HOTROW_RETURN_IF_ERROR(ExchangeAndCopyOwn(kOp));
  if (!sliced) return absl::OkStatus();
  // Now every rank has its slice, the root all of them: it takes none, and gives its own.
  for (size_t p = 0; p < send_.size(); ++p) {
    const auto peer = static_cast<int64_t>(p);
    send_[p] = peer == root ? Bytes() : slice(rank_);
    recv_[p] = rank_ == root ? Bytes() : slice(peer);
  }
  send_[static_cast<size_t>(rank_)] = {};
  return ExchangeAndCopyOwn(kOp);
}

absl::Status Communicator::Barrier() {
  constexpr std::string_view kOp = "Barrier";
  const InUse in_use(*this, kOp);
  HOTROW_RETURN_IF_ERROR(in_use.status());
  std::fill(send_.begin(), send_.end(), ConstBytes());
  std::fill(recv_.begin(), recv_.end(), Bytes());
  return ExchangeAndCopyOwn(kOp);
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Duplicate() {
  const InUse in_use(*this, "Duplicate");
  HOTROW_RETURN_IF_ERROR(in_use.status());
  return DoDuplicate();
}

void Communicator::Abort(std::string_view message) { DoAbort(AbortText(message)); }

absl::Status Communicator::status() { return DoStatus(); }

absl::Status Communicator::AllReduceSum(std::span<float> data) { return AllReduce(data); }
absl::Status Communicator::AllReduceSum(std::span<double> data) { return AllReduce(data); }
absl::Status Communicator::AllReduceSum(std::span<int64_t> data) { return AllReduce(data); }

template <typename T>
absl::Status Communicator::AllReduce(std::span<T> data) {
  const InUse in_use(*this, "AllReduceSum");
  HOTROW_RETURN_IF_ERROR(in_use.status());
  const auto n = static_cast<size_t>(world_size_);
  // With fewer elements than ranks some ranks would have no slice.
  if (data.size_bytes() <= kGatherReduceBytes || data.size() < n) return AllReduceByGather(data);
  constexpr size_t kPiece = kReducePieceBytes / sizeof(T);
  // Pieces of nearly equal size, so that none is shorter than the number of ranks.
  const int64_t size = static_cast<int64_t>(data.size());
  const int64_t pieces = CeilDiv(size, static_cast<int64_t>(std::max(kPiece, n)));
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = SliceBegin(size, pieces, i);
    const int64_t end = SliceBegin(size, pieces, i + 1);
    HOTROW_RETURN_IF_ERROR(AllReduceBySlices(
        data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Communicator::AllReduceByGather(std::span<T> data) {
  const auto n = static_cast<size_t>(world_size_);
  const size_t bytes = data.size_bytes();
  if (scratch_.size() < n * bytes) scratch_.resize(n * bytes);
  const ConstBytes mine = std::as_bytes(data);
  for (size_t p = 0; p < n; ++p) {
    send_[p] = mine;
    recv_[p] = {scratch_.data() + p * bytes, bytes};
  }
  send_[static_cast<size_t>(rank_)] = {};
  HOTROW_RETURN_IF_ERROR(ExchangeAndCopyOwn("AllReduceSum"));
  SumInOrder(data, scratch_.data(), n, static_cast<size_t>(rank_));
  return absl::OkStatus();
}

// Each rank sums one slice and gives the sum to the others.
template <typename T>
absl::Status Communicator::AllReduceBySlices(std::span<T> data) {
  const auto n = static_cast<size_t>(world_size_);
  const auto slice = [&](size_t p) {
    const auto size = static_cast<int64_t>(data.size());
    const int64_t begin = SliceBegin(size, world_size_, static_cast<int64_t>(p));
    const int64_t end = SliceBegin(size, world_size_, static_cast<int64_t>(p) + 1);
    return data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  const auto self = static_cast<size_t>(rank_);
  const std::span<T> mine = slice(self);
  const size_t bytes = mine.size_bytes();
  if (scratch_.size() < n * bytes) scratch_.resize(n * bytes);
  for (size_t p = 0; p < n; ++p) {
    send_[p] = std::as_bytes(slice(p));
    recv_[p] = {scratch_.data() + p * bytes, bytes};
  }
  send_[self] = {};
  HOTROW_RETURN_IF_ERROR(ExchangeAndCopyOwn("AllReduceSum"));
  SumInOrder(mine, scratch_.data(), n, self);
  for (size_t p = 0; p < n; ++p) {
    send_[p] = std::as_bytes(mine);
    recv_[p] = std::as_writable_bytes(slice(p));
  }
  return ExchangeAndCopyOwn("AllReduceSum");
}

}  // namespace hotrow
