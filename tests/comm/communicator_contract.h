#ifndef HOTROW_TESTS_COMM_COMMUNICATOR_CONTRACT_H_
#define HOTROW_TESTS_COMM_COMMUNICATOR_CONTRACT_H_

// What every kind of Communicator must do. A kind joins by one line in its own test binary:
//
//   INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorContractTest, testing::ValuesIn(...), ...);
//
// Include this header from that file only: it defines the tests.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "comm/lane.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/comm/collectives.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

using RankMain = std::function<absl::Status(Communicator&)>;

struct CommunicatorKind {
  std::string name;
  int world_size = 1;
  // Makes a family of world_size ranks, runs rank_main for each rank of this process, and returns
  // what those returned. When ranks are processes, all of them run the same test.
  std::function<std::vector<absl::Status>(int world_size, const CommunicatorOptions& options,
                                          const RankMain& rank_main)>
      run;
};

inline std::ostream& operator<<(std::ostream& out, const CommunicatorKind& kind) {
  return out << kind.name << "On" << kind.world_size;
}

inline std::string KindName(const testing::TestParamInfo<CommunicatorKind>& info) {
  return absl::StrCat(info.param.name, "On", info.param.world_size);
}

class CommunicatorContractTest : public testing::TestWithParam<CommunicatorKind> {
 protected:
  static int n() { return GetParam().world_size; }
  static std::vector<absl::Status> Run(const CommunicatorOptions& options,
                                       const RankMain& rank_main) {
    return GetParam().run(n(), options, rank_main);
  }
  // Every rank must return OK.
  static void RunOk(const RankMain& rank_main, const CommunicatorOptions& options = {}) {
    for (const absl::Status& status : Run(options, rank_main)) HOTROW_EXPECT_OK(status);
  }
};

// What a test says that is not so, as the status of a rank.
inline absl::Status Wrong(const Communicator& c, const std::string& what) {
  return absl::InternalError(absl::StrCat("rank ", c.rank(), " of ", c.world_size(), ": ", what));
}

// Waits until the family has failed. Bounded, so that a test ends when it does not.
inline absl::Status AwaitFailure(Communicator& c) {
  for (int i = 0; i < 6000; ++i) {
    if (const absl::Status status = c.status(); !status.ok()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return absl::OkStatus();
}

inline bool Mentions(const absl::Status& status, const std::string& text) {
  return status.message().find(text) != absl::string_view::npos;
}

TEST_P(CommunicatorContractTest, RanksAreTheirsAlone) {
  RunOk([](Communicator& c) -> absl::Status {
    if (c.world_size() != n()) return Wrong(c, "another world size");
    HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks, c.AllGatherSizes(c.rank()));
    for (size_t p = 0; p < ranks.size(); ++p) {
      if (ranks[p] != static_cast<int64_t>(p)) return Wrong(c, "ranks are not 0, 1, 2 ...");
    }
    return c.status();
  });
}

// Random sequences of all collectives, with sizes of zero and around every limit in the code,
// against what every rank can work out by itself from the seed.
TEST_P(CommunicatorContractTest, RandomCallsGiveWhatTheSeedSays) {
  for (const uint64_t seed : Seeds(6)) {
    SCOPED_TRACE(seed);
    CommunicatorOptions options;
    if (seed % 2 == 0) options.message_bytes_max = 1 + static_cast<int64_t>(seed) * 1000;
    RunOk([&](Communicator& c) { return RandomCalls(c, seed, 40, 200'000); }, options);
  }
}

TEST_P(CommunicatorContractTest, MessagesOfAnySizeAreCutAtTheLimit) {
  for (const int64_t limit : {1, 2, 7, 64}) {
    CommunicatorOptions options;
    options.message_bytes_max = limit;
    RunOk([&](Communicator& c) { return RandomCalls(c, static_cast<uint64_t>(limit), 20, 150); },
          options);
  }
}

TEST_P(CommunicatorContractTest, NothingAtAllIsFine) {
  RunOk([](Communicator& c) -> absl::Status {
    const std::vector<int64_t> zeros(static_cast<size_t>(c.world_size()));
    for (int i = 0; i < 3; ++i) {
      HOTROW_RETURN_IF_ERROR(c.AllToAllV({nullptr, zeros, zeros, nullptr, zeros, zeros}));
      HOTROW_RETURN_IF_ERROR(c.AllReduceSum(std::span<float>()));
      HOTROW_RETURN_IF_ERROR(c.AllReduceSum(std::span<double>()));
      HOTROW_RETURN_IF_ERROR(c.AllReduceSum(std::span<int64_t>()));
      HOTROW_RETURN_IF_ERROR(c.AllGather({}, {}));
      HOTROW_RETURN_IF_ERROR(c.AllGatherV({}, zeros, zeros, {}));
      HOTROW_RETURN_IF_ERROR(c.Broadcast({}, i % c.world_size()));
    }
    return c.Barrier();
  });
}

// ((x0 + x1) + x2) + ..., for vectors that go each way through the code: gathered whole, in slices,
// in pieces of slices.
// Looks at each `stride`-th sum.
template <typename T>
absl::Status CheckSums(Communicator& c, int64_t size, uint64_t seed, int64_t stride = 1) {
  const auto value = [&](int rank, int64_t i) {
    const uint64_t bits = Mix64(seed ^ Mix64(static_cast<uint64_t>(rank) * 0x10001 + 7) ^
                                static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u);
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(bits);
    } else {
      // Magnitudes from 2^-20 to 2^20: another order of additions gives other bits.
      const double magnitude = std::ldexp(1.0, static_cast<int>(bits % 41) - 20);
      return static_cast<T>((UniformFloat(static_cast<uint32_t>(bits >> 32)) - 0.5) * magnitude);
    }
  };
  std::vector<T> data(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) data[static_cast<size_t>(i)] = value(c.rank(), i);
  HOTROW_RETURN_IF_ERROR(c.AllReduceSum(std::span<T>(data)));
  for (int64_t i = 0; i < size; i += stride) {
    T sum = value(0, i);
    for (int p = 1; p < c.world_size(); ++p) {
      if constexpr (std::is_integral_v<T>) {
        sum = static_cast<T>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(value(p, i)));
      } else {
        sum += value(p, i);
      }
    }
    if (std::memcmp(&sum, &data[static_cast<size_t>(i)], sizeof(T)) != 0) {
      return Wrong(c, absl::StrCat("sum ", i, " of ", size, " has other bits"));
    }
  }
  return absl::OkStatus();
}

TEST_P(CommunicatorContractTest, SumsAreInTheOrderOfRanksToTheBit) {
  RunOk([](Communicator& c) -> absl::Status {
    for (const int64_t size : {1, 2, 3, 7, 8, 9, 1023, 2048, 2049, 30'001}) {
      HOTROW_RETURN_IF_ERROR(CheckSums<float>(c, size, 1));
      HOTROW_RETURN_IF_ERROR(CheckSums<double>(c, size, 2));
      HOTROW_RETURN_IF_ERROR(CheckSums<int64_t>(c, size, 3));
    }
    if (n() > 3) return absl::OkStatus();
    return CheckSums<float>(c, (int64_t{16} << 20) / 4 + 3, 4, 17);  // two pieces
  });
}

TEST_P(CommunicatorContractTest, ABarrierHoldsUntilAllHaveCome) {
  // Each rank says before the barrier when it came, on the clock that all share.
  RunOk([](Communicator& c) -> absl::Status {
    const auto now = [] {
      return static_cast<int64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    };
    for (int late = 0; late < c.world_size(); ++late) {
      if (c.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const int64_t came = now();
      HOTROW_RETURN_IF_ERROR(c.Barrier());
      const int64_t went = now();
      HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> all, c.AllGatherSizes(came));
      if (went < *std::max_element(all.begin(), all.end())) return Wrong(c, "went before all came");
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorContractTest, ChannelsAreIndependentAndMayRunAtTheSameTime) {
  RunOk([](Communicator& c) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> second, c.Duplicate());
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> third, second->Duplicate());
    absl::Status from_second;
    absl::Status from_lane;
    {
      std::thread thread([&] { from_second = RandomCalls(*second, 101, 60, 20'000); });
      CommLane lane(std::move(third));
      lane.Start([](Communicator& channel) { return RandomCalls(channel, 102, 30, 20'000); });
      const absl::Status from_first = RandomCalls(c, 103, 60, 20'000);
      thread.join();
      from_lane = lane.WaitAll();
      HOTROW_RETURN_IF_ERROR(from_first);
    }
    HOTROW_RETURN_IF_ERROR(from_second);
    HOTROW_RETURN_IF_ERROR(from_lane);
    // One channel may be used up while the other goes on, in an order of each rank's own.
    if (c.rank() % 2 == 0) {
      std::thread thread([&] { from_second = second->Barrier(); });
      const absl::Status from_first = c.Barrier();
      thread.join();
      HOTROW_RETURN_IF_ERROR(from_first);
      return from_second;
    }
    std::thread thread([&] { from_second = c.Barrier(); });
    const absl::Status from_first = second->Barrier();
    thread.join();
    HOTROW_RETURN_IF_ERROR(from_first);
    return from_second;
  });
}

// --- arguments that cannot be right ------------------------------------------------------------

struct BadCall {
  std::string name;
  std::function<absl::Status(Communicator&)> call;
  std::string message;  // what the error must say
};

inline std::vector<BadCall> BadCalls() {
  const auto all_to_all = [](int field, auto change) {
    return [=](Communicator& c) {
      const auto size = static_cast<size_t>(c.world_size());
      std::vector<std::byte> data(size * 4);
      std::vector<std::vector<int64_t>> counts(4, std::vector<int64_t>(size, 4));
      for (size_t p = 0; p < size; ++p) counts[1][p] = counts[3][p] = static_cast<int64_t>(4 * p);
      change(counts[static_cast<size_t>(field)]);
      std::vector<std::byte> received(size * 4);
      return c.AllToAllV(
          {data.data(), counts[0], counts[1], received.data(), counts[2], counts[3]});
    };
  };
  using Counts = std::vector<int64_t>;
  return {
      {"ShortCounts", all_to_all(0, [](Counts& v) { v.pop_back(); }), "entry for each rank"},
      {"LongOffsets", all_to_all(3, [](Counts& v) { v.push_back(0); }), "entry for each rank"},
      {"NegativeCount", all_to_all(2, [](Counts& v) { v.back() = -5; }), "is negative: -5"},
      {"NegativeOffset", all_to_all(1, [](Counts& v) { v.back() = -1; }), "got -1"},
      {"HugeOffset", all_to_all(1, [](Counts& v) { v.back() = INT64_MAX; }), "send_offsets["},
      {"OwnPart", all_to_all(0, [](Counts& v) { v.assign(v.size(), 3); }), "to itself"},
      {"NoData",
       [](Communicator& c) {
         const std::vector<int64_t> ones(static_cast<size_t>(c.world_size()), 1);
         return c.AllToAllV({nullptr, ones, ones, nullptr, ones, ones});
       },
       "without data"},
      {"GatherSize",
       [](Communicator& c) {
         std::vector<std::byte> all(static_cast<size_t>(c.world_size()) * 8 + 1);
         return c.AllGather(std::span(all).first(8), all);
       },
       "times the 8 bytes"},
      {"GatherVPastTheEnd",
       [](Communicator& c) {
         const auto size = static_cast<size_t>(c.world_size());
         std::vector<std::byte> all(size * 8 - 1);
         const std::vector<std::byte> mine(8);
         std::vector<int64_t> offsets(size);
         for (size_t p = 0; p < size; ++p) offsets[p] = static_cast<int64_t>(8 * p);
         return c.AllGatherV(mine, std::vector<int64_t>(size, 8), offsets, all);
       },
       "offsets["},
      {"GatherVOwnSize",
       [](Communicator& c) {
         const auto size = static_cast<size_t>(c.world_size());
         std::vector<std::byte> all(8);
         const std::vector<std::byte> mine(7);
         return c.AllGatherV(mine, std::vector<int64_t>(size, 8), std::vector<int64_t>(size), all);
       },
       "this rank gives 7 bytes"},
      {"Root",
       [](Communicator& c) {
         std::vector<std::byte> data(8);
         return c.Broadcast(data, c.world_size());
       },
       "root must lie in"},
      {"NegativeRoot",
       [](Communicator& c) {
         std::vector<std::byte> data(8);
         return c.Broadcast(data, -1);
       },
       "root must lie in"},
  };
}

// The last rank makes a call that cannot be right, while the others wait for it in a good one.
TEST_P(CommunicatorContractTest, BadArgumentsAreNamedAndEndTheOthersAtOnce) {
  for (const BadCall& bad : BadCalls()) {
    SCOPED_TRACE(bad.name);
    RunOk([&](Communicator& c) -> absl::Status {
      const std::string culprit = absl::StrCat("rank ", n() - 1);
      if (c.rank() == n() - 1) {
        const absl::Status status = bad.call(c);
        if (!absl::IsInvalidArgument(status) || !Mentions(status, bad.message) ||
            !Mentions(status, culprit)) {
          return Wrong(c, absl::StrCat("the bad call returned ", status.ToString()));
        }
      } else {
        const absl::Status status = c.Barrier();
        if (!absl::IsUnavailable(status) || !Mentions(status, bad.message) ||
            !Mentions(status, culprit)) {
          return Wrong(c, absl::StrCat("the waiting call returned ", status.ToString()));
        }
      }
      // For good, on every channel and for every call.
      if (c.status().ok() || c.Barrier().ok() || c.Duplicate().ok()) {
        return Wrong(c, "goes on after an error");
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(CommunicatorContractTest, SizesThatDoNotFitNameBothRanks) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  for (const int64_t more : {-3, 2}) {
    const auto statuses = Run({}, [&](Communicator& c) {
      const auto size = static_cast<size_t>(n());
      std::vector<int64_t> send(size, 8);
      const std::vector<int64_t> recv(size, 8);
      if (c.rank() == 0) send[1] += more;
      std::vector<int64_t> offsets(size);
      for (size_t p = 0; p < size; ++p) offsets[p] = static_cast<int64_t>(16 * p);
      std::vector<std::byte> data(16 * size);
      std::vector<std::byte> received(16 * size);
      const absl::Status status =
          c.AllToAllV({data.data(), send, offsets, received.data(), recv, offsets});
      // Only rank 1 need notice at once; the others hear of it, then or in the next call.
      return status.ok() ? AwaitFailure(c) : status;
    });
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("AllToAllV"));
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 0 sends"));
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 1"));
    }
  }
}

// However much a peer sends, nothing is written past what this rank has for it.
TEST_P(CommunicatorContractTest, NothingIsWrittenPastABuffer) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  constexpr int64_t kGuardBytes = 1 << 20;
  for (const int64_t sent : {int64_t{200}, int64_t{5000}, int64_t{100'000}, int64_t{4} << 20}) {
    for (const int64_t expected : {int64_t{0}, int64_t{100}, int64_t{4500}, int64_t{70'000}}) {
      if (expected >= sent) continue;
      SCOPED_TRACE(testing::Message() << sent << " bytes sent, " << expected << " expected");
      RunOk([&](Communicator& c) -> absl::Status {
        const auto size = static_cast<size_t>(n());
        std::vector<int64_t> send(size);
        std::vector<int64_t> recv(size);
        const std::vector<int64_t> offsets(size);
        if (c.rank() == 0) send[1] = sent;
        if (c.rank() == 1) recv[0] = expected;
        const std::vector<std::byte> data(static_cast<size_t>(sent), std::byte{1});
        std::vector<std::byte> received(static_cast<size_t>(expected + kGuardBytes), std::byte{2});
        const absl::Status status =
            c.AllToAllV({data.data(), send, offsets, received.data(), recv, offsets});
        const absl::Status failure = status.ok() ? AwaitFailure(c) : status;
        if (!Mentions(failure, absl::StrCat("rank 0 sends ", sent,
                                            " bytes to rank 1, which "
                                            "expects ",
                                            expected))) {
          return Wrong(c, failure.ToString());
        }
        for (int64_t i = c.rank() == 1 ? expected : 0; i < std::ssize(received); ++i) {
          if (received[static_cast<size_t>(i)] != std::byte{2}) {
            return Wrong(c, absl::StrCat("byte ", i, " was written"));
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

// Different collectives that meet, with sizes that fit and that do not: an error that names both.
TEST_P(CommunicatorContractTest, DifferentCallsAreTold) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  struct Op {
    const char* name;
    std::function<absl::Status(Communicator&, std::vector<std::byte>&)> call;
  };
  const std::vector<Op> ops = {
      {"Barrier", [](Communicator& c, std::vector<std::byte>&) { return c.Barrier(); }},
      {"Broadcast",
       [](Communicator& c, std::vector<std::byte>& data) { return c.Broadcast(data, 0); }},
      {"AllGather",
       [](Communicator& c, std::vector<std::byte>& data) {
         std::vector<std::byte> all(data.size() * static_cast<size_t>(c.world_size()));
         return c.AllGather(data, all);
       }},
      {"AllReduceSum",
       [](Communicator& c, std::vector<std::byte>& data) {
         std::vector<double> numbers(data.size() / sizeof(double));
         return c.AllReduceSum(std::span<double>(numbers));
       }},
  };
  for (const size_t bytes : {size_t{64}, size_t{1} << 20}) {
    for (const Op& mine : ops) {
      for (const Op& theirs : ops) {
        if (&mine == &theirs) continue;
        SCOPED_TRACE(testing::Message() << mine.name << " and " << theirs.name << ", " << bytes);
        RunOk([&](Communicator& c) -> absl::Status {
          std::vector<std::byte> data(bytes);
          const absl::Status status = (c.rank() == n() - 1 ? theirs : mine).call(c, data);
          const absl::Status failure = status.ok() ? AwaitFailure(c) : status;
          if (!Mentions(failure, absl::StrCat("calls ", mine.name)) ||
              !Mentions(failure, absl::StrCat("calls ", theirs.name)) ||
              !Mentions(failure, absl::StrCat("rank ", n() - 1))) {
            return Wrong(c, failure.ToString());
          }
          return absl::OkStatus();
        });
      }
    }
  }
}

TEST_P(CommunicatorContractTest, ASecondThreadInAChannelIsTold) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  RunOk([](Communicator& c) -> absl::Status {
    if (c.rank() != 0) {
      return AwaitFailure(c).ok() ? Wrong(c, "was not told") : absl::OkStatus();
    }
    absl::Status first;
    std::thread thread([&] { first = c.Barrier(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const absl::Status second = c.Barrier();
    thread.join();
    // Either may have come first.
    const absl::Status& late = absl::IsFailedPrecondition(first) ? first : second;
    const absl::Status& early = absl::IsFailedPrecondition(first) ? second : first;
    if (!absl::IsFailedPrecondition(late) || !Mentions(late, "Duplicate()") || early.ok()) {
      return Wrong(c, absl::StrCat(first.ToString(), " and ", second.ToString()));
    }
    return absl::OkStatus();
  });
}

// --- ranks that give up, leave or fall silent ----------------------------------------------------

TEST_P(CommunicatorContractTest, AbortReachesAllRanksInAllCalls) {
  for (const Collective collective : AllCollectives()) {
    SCOPED_TRACE(CollectiveName(collective));
    RunOk([&](Communicator& c) -> absl::Status {
      absl::Status status;
      if (c.rank() == n() - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        c.Abort("disk full");
        c.Abort("a second reason");  // does not count
        status = c.Barrier();
      } else {
        status = Call(c, collective, 1000);
      }
      if (!absl::IsUnavailable(status) ||
          !Mentions(status, absl::StrCat("rank ", n() - 1, " ended the job: disk full"))) {
        return Wrong(c, absl::StrCat("returned ", status.ToString()));
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(CommunicatorContractTest, AbortEndsTheOtherChannelsToo) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  RunOk([](Communicator& c) -> absl::Status {
    absl::StatusOr<std::unique_ptr<Communicator>> second = c.Duplicate();
    // Rank 0 may be further on already.
    if (c.rank() != 0 && Mentions(second.status(), "enough")) return absl::OkStatus();
    HOTROW_RETURN_IF_ERROR(second.status());
    CommLane lane(*std::move(second));
    if (c.rank() == 0) {
      c.Abort("enough");
    } else {
      lane.Start([](Communicator& channel) { return channel.Barrier(); });
    }
    const int64_t last = lane.Start([](Communicator& channel) { return channel.Barrier(); });
    const absl::Status status = lane.Wait(last);
    return Mentions(status, "enough") ? absl::OkStatus() : Wrong(c, status.ToString());
  });
}

// One rank does not come; it lives on and is told in the end. Every rank as the silent one, after a
// few calls that went well. Each number of ranks has a third of the calls; all of them, when slow.
TEST_P(CommunicatorContractTest, ASilentRankIsNamedByAllInTime) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  CommunicatorOptions options;
  options.timeout_seconds = 0.5;
  int turn = 0;
  for (const Collective collective : AllCollectives()) {
    SCOPED_TRACE(CollectiveName(collective));
    const int silent = ++turn % n();
    if (turn % 3 != n() % 3 && !RunsSlowTests()) continue;
    RunOk(
        [&](Communicator& c) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(RandomCalls(c, 5, 5, 1000));
          HOTROW_RETURN_IF_ERROR(c.Barrier());
          const std::string culprit = absl::StrCat("no answer from rank ", silent, " for");
          if (c.rank() == silent) {
            const absl::Status told = AwaitFailure(c);
            return Mentions(told, culprit) ? absl::OkStatus() : Wrong(c, told.ToString());
          }
          const auto begin = std::chrono::steady_clock::now();
          const absl::Status status = Call(c, collective, 4000);
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
          if (!absl::IsDeadlineExceeded(status) || !Mentions(status, culprit) ||
              !Mentions(status, CollectiveName(collective))) {
            return Wrong(c, absl::StrCat("returned ", status.ToString()));
          }
          // 5/4 of the timeout, and time for a busy machine.
          if (took.count() < 0.3 || took.count() > 0.5 * 1.25 + 10) {
            return Wrong(c, absl::StrCat("took ", took.count(), " s"));
          }
          return absl::OkStatus();
        },
        options);
  }
}

// A rank that is late, but comes in time, does no harm.
TEST_P(CommunicatorContractTest, LateRanksAreWaitedFor) {
  CommunicatorOptions options;
  options.timeout_seconds = 20;
  RunOk(
      [](Communicator& c) -> absl::Status {
        for (int late = 0; late < c.world_size(); ++late) {
          if (c.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          HOTROW_RETURN_IF_ERROR(RandomCalls(c, 11 + static_cast<uint64_t>(late), 3, 100'000));
        }
        return absl::OkStatus();
      },
      options);
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_COMM_COMMUNICATOR_CONTRACT_H_
