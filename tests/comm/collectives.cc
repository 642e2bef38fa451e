#include "tests/comm/collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/status_macros.h"

namespace hotrow::test {
namespace {

// What stands before, between and behind the parts of a buffer; nobody may write to it.
constexpr std::byte kGap{0xee};

// Byte i of what `from` has for `to` in this call.
std::byte Value(uint64_t call, int from, int to, int64_t i) {
  const uint64_t seed =
      Mix64(call ^ Mix64(static_cast<uint64_t>(from) * 0x10001u + static_cast<uint64_t>(to) + 1));
  return static_cast<std::byte>(Mix64(seed + static_cast<uint64_t>(i) / 8) >> (8 * (i % 8)));
}

// Part p of a buffer: what rank p gets or gives, with gaps between and in any order.
struct Parts {
  std::vector<int64_t> bytes;
  std::vector<int64_t> offsets;
  std::vector<std::byte> data;

  // Backwards for some, so that offsets do not grow with the rank.
  void Lay(bool backwards, int64_t gap) {
    const size_t n = bytes.size();
    offsets.resize(n);
    int64_t end = gap;
    for (size_t i = 0; i < n; ++i) {
      const size_t p = backwards ? n - 1 - i : i;
      offsets[p] = end;
      end += bytes[p] + gap;
    }
    data.assign(static_cast<size_t>(end), kGap);
  }
  void Fill(size_t p, uint64_t call, int from, int to) {
    for (int64_t i = 0; i < bytes[p]; ++i) {
      data[static_cast<size_t>(offsets[p] + i)] = Value(call, from, to, i);
    }
  }
};

absl::Status Compare(const Communicator& c, const char* what, const std::vector<std::byte>& got,
                     const std::vector<std::byte>& expected) {
  if (got == expected) return absl::OkStatus();
  const auto at = std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin();
  return absl::InternalError(absl::StrCat(what, ": rank ", c.rank(), " of ", c.world_size(),
                                          ": byte ", at, " of ", got.size(), " is wrong"));
}

absl::Status RandomAllToAllV(Communicator& c, uint64_t call, RandomStream& random,
                             const auto& draw_bytes) {
  const int n = c.world_size();
  std::vector<std::vector<int64_t>> sizes(static_cast<size_t>(n));  // [from][to]
  // Sometimes a rank has nothing for anybody, or gets nothing.
  const int mute = static_cast<int>(random.Below(static_cast<uint64_t>(2 * n)));
  const int deaf = static_cast<int>(random.Below(static_cast<uint64_t>(2 * n)));
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      const int64_t bytes = draw_bytes();
      sizes[static_cast<size_t>(from)].push_back(from == mute || to == deaf ? 0 : bytes);
    }
  }
  const auto self = static_cast<size_t>(c.rank());
  Parts send;
  Parts recv;
  send.bytes = sizes[self];
  for (const auto& row : sizes) recv.bytes.push_back(row[self]);
  send.Lay(random.Below(2) == 0, 3);
  recv.Lay(random.Below(2) == 0, 5);
  Parts expected = recv;
  for (int p = 0; p < n; ++p) {
    send.Fill(static_cast<size_t>(p), call, c.rank(), p);
    expected.Fill(static_cast<size_t>(p), call, p, c.rank());
  }
  HOTROW_RETURN_IF_ERROR(c.AllToAllV(
      {send.data.data(), send.bytes, send.offsets, recv.data.data(), recv.bytes, recv.offsets}));
  return Compare(c, "AllToAllV", recv.data, expected.data);
}

absl::Status RandomAllGather(Communicator& c, uint64_t call, RandomStream& random, bool fixed,
                             const auto& draw_bytes) {
  const int n = c.world_size();
  const auto self = static_cast<size_t>(c.rank());
  Parts all;
  all.bytes.assign(static_cast<size_t>(n), draw_bytes());
  if (!fixed) {
    for (int64_t& bytes : all.bytes) bytes = draw_bytes();
  }
  all.Lay(!fixed && random.Below(2) == 0, fixed ? 0 : 3);
  Parts expected = all;
  for (int p = 0; p < n; ++p) expected.Fill(static_cast<size_t>(p), call, p, 0);
  const std::span<std::byte> own = std::span(all.data).subspan(
      static_cast<size_t>(all.offsets[self]), static_cast<size_t>(all.bytes[self]));
  std::vector<std::byte> mine;
  for (int64_t i = 0; i < all.bytes[self]; ++i) mine.push_back(Value(call, c.rank(), 0, i));
  std::span<const std::byte> from = mine;
  if (random.Below(2) == 0) {  // in place
    std::copy(mine.begin(), mine.end(), own.begin());
    from = own;
  }
  HOTROW_RETURN_IF_ERROR(fixed ? c.AllGather(from, all.data)
                               : c.AllGatherV(from, all.bytes, all.offsets, all.data));
  return Compare(c, fixed ? "AllGather" : "AllGatherV", all.data, expected.data);
}

absl::Status RandomBroadcast(Communicator& c, uint64_t call, RandomStream& random,
                             const auto& draw_bytes) {
  const int root = static_cast<int>(random.Below(static_cast<uint64_t>(c.world_size())));
  std::vector<std::byte> expected(static_cast<size_t>(draw_bytes()));
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = Value(call, root, 0, static_cast<int64_t>(i));
  }
  std::vector<std::byte> data(expected.size(), kGap);
  if (c.rank() == root) data = expected;
  HOTROW_RETURN_IF_ERROR(c.Broadcast(data, root));
  return Compare(c, "Broadcast", data, expected);
}

template <typename T>
absl::Status RandomAllReduce(Communicator& c, uint64_t call, int64_t bytes) {
  const auto value = [&](int rank, int64_t i) {
    const uint64_t bits =
        Mix64(call ^ Mix64(static_cast<uint64_t>(rank) + 77) ^ Mix64(static_cast<uint64_t>(i)));
    return static_cast<T>(static_cast<double>(bits >> 40) * 0.37);
  };
  const int64_t size = bytes / static_cast<int64_t>(sizeof(T));
  std::vector<T> data;
  std::vector<T> expected;
  for (int64_t i = 0; i < size; ++i) {
    data.push_back(value(c.rank(), i));
    expected.push_back(value(0, i));
    for (int p = 1; p < c.world_size(); ++p) expected.back() += value(p, i);
  }
  HOTROW_RETURN_IF_ERROR(c.AllReduceSum(std::span<T>(data)));
  if (data.empty() || std::memcmp(data.data(), expected.data(), size * sizeof(T)) == 0) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("AllReduceSum: rank ", c.rank(), ": wrong bits, ", size, " elements"));
}

}  // namespace

std::vector<Collective> AllCollectives() {
  return {Collective::kAllToAllV,       Collective::kAllReduceSmall, Collective::kAllReduceSlices,
          Collective::kAllGather,       Collective::kAllGatherV,     Collective::kBroadcast,
          Collective::kBroadcastSlices, Collective::kBarrier,        Collective::kDuplicate};
}

std::string CollectiveName(Collective collective) {
  switch (collective) {
    case Collective::kAllToAllV:
      return "AllToAllV";
    case Collective::kAllReduceSmall:
    case Collective::kAllReduceSlices:
      return "AllReduceSum";
    case Collective::kAllGather:
      return "AllGather";
    case Collective::kAllGatherV:
      return "AllGatherV";
    case Collective::kBroadcast:
    case Collective::kBroadcastSlices:
      return "Broadcast";
    case Collective::kBarrier:
      return "Barrier";
    case Collective::kDuplicate:
      return "Duplicate";
  }
  return "";
}

absl::Status Call(Communicator& c, Collective collective, int64_t bytes) {
  const auto n = static_cast<size_t>(c.world_size());
  const auto size = static_cast<size_t>(bytes);
  std::vector<int64_t> counts(n, bytes);
  std::vector<int64_t> offsets(n);
  for (size_t p = 0; p < n; ++p) offsets[p] = static_cast<int64_t>(p) * bytes;
  switch (collective) {
    case Collective::kAllToAllV: {
      const std::vector<std::byte> send(n * size);
      std::vector<std::byte> recv(n * size);
      return c.AllToAllV({send.data(), counts, offsets, recv.data(), counts, offsets});
    }
    case Collective::kAllReduceSmall: {
      std::vector<float> data(std::min<size_t>(size / 4, 1000));
      return c.AllReduceSum(std::span<float>(data));
    }
    case Collective::kAllReduceSlices: {
      std::vector<double> data(std::max<size_t>(size / 8, 2000));
      return c.AllReduceSum(std::span<double>(data));
    }
    case Collective::kAllGather: {
      const std::vector<std::byte> mine(size);
      std::vector<std::byte> all(n * size);
      return c.AllGather(mine, all);
    }
    case Collective::kAllGatherV: {
      const std::vector<std::byte> mine(size);
      std::vector<std::byte> all(n * size);
      return c.AllGatherV(mine, counts, offsets, all);
    }
    case Collective::kBroadcast: {
      std::vector<std::byte> data(std::min<size_t>(size, 60'000));
      return c.Broadcast(data, 0);
    }
    case Collective::kBroadcastSlices: {
      std::vector<std::byte> data(std::max<size_t>(size, 70'000));
      return c.Broadcast(data, c.world_size() - 1);
    }
    case Collective::kBarrier:
      return c.Barrier();
    case Collective::kDuplicate:
      return c.Duplicate().status();
  }
  return absl::OkStatus();
}

absl::Status RandomCalls(Communicator& c, uint64_t seed, int count, int64_t max_bytes) {
  RandomStream random(seed, RandomPurpose::kTest);
  // Very different sizes, often none.
  const auto draw_bytes = [&]() -> int64_t {
    switch (random.Below(4)) {
      case 0:
        return 0;
      case 1:
        return static_cast<int64_t>(random.Below(20));
      case 2:
        return static_cast<int64_t>(random.Below(static_cast<uint64_t>(max_bytes) / 16 + 1));
      default:
        return static_cast<int64_t>(random.Below(static_cast<uint64_t>(max_bytes) + 1));
    }
  };
  for (int i = 0; i < count; ++i) {
    const uint64_t call = random.Next64();
    absl::Status status;
    switch (random.Below(8)) {
      case 0:
      case 1:
        status = RandomAllToAllV(c, call, random, draw_bytes);
        break;
      case 2:
        status = RandomAllGather(c, call, random, true, draw_bytes);
        break;
      case 3:
        status = RandomAllGather(c, call, random, false, draw_bytes);
        break;
      case 4:
        status = RandomBroadcast(c, call, random, draw_bytes);
        break;
      case 5:
        status = c.Barrier();
        break;
      case 6:
        status = RandomAllReduce<float>(c, call, draw_bytes());
        break;
      default:
        status = random.Below(2) == 0 ? RandomAllReduce<double>(c, call, draw_bytes())
                                      : RandomAllReduce<int64_t>(c, call, draw_bytes());
    }
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(std::string(status.message()), " [call ", i,
                                                      " of seed ", seed, "]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow::test
