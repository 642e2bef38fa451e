#include "comm/tcp_rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// A port that nobody listens at, for the moment.
int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// A connection to the port, as somebody makes it who is not one of us.
int Knock(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 500; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
    ::close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

using Results = std::vector<absl::StatusOr<std::string>>;

// One thread for each of the options, rank 0 after the others.
Results Meet(const std::vector<TcpRendezvousOptions>& processes, const std::string& message) {
  Results results(processes.size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (size_t i = processes.size(); i-- > 0;) {
    threads.emplace_back([&, i] { results[i] = TcpBroadcast(processes[i], message); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<TcpRendezvousOptions> Processes(int world_size, double timeout_seconds) {
  std::vector<TcpRendezvousOptions> processes;
  const int port = FreePort();
  for (int rank = 0; rank < world_size; ++rank) {
    processes.push_back({rank, world_size, "127.0.0.1", port, timeout_seconds});
  }
  return processes;
}

TEST(TcpRendezvousTest, AllRanksGetTheMessageOfRankZero) {
  for (const int world_size : {1, 2, 5}) {
    for (const int64_t bytes : {0, 128, kTcpRendezvousBytesMax}) {
      const std::string message(static_cast<size_t>(bytes), '\x7f');
      for (const auto& result : Meet(Processes(world_size, 20), message)) {
        HOTROW_ASSERT_OK(result);
        EXPECT_EQ(*result, message);
      }
    }
  }
}

TEST(TcpRendezvousTest, ByNameAsWell) {
  auto processes = Processes(2, 20);
  for (TcpRendezvousOptions& options : processes) options.host = "localhost";
  for (const auto& result : Meet(processes, "id")) HOTROW_EXPECT_OK(result);
}

TEST(TcpRendezvousTest, RanksThatDoNotComeAreNamed) {
  auto processes = Processes(4, 0.5);
  processes.erase(processes.begin() + 3);
  processes.erase(processes.begin() + 1);
  const Results results = Meet(processes, "id");
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   HasSubstr("rank 1, rank 3 did not come within 0.5 s")));
  EXPECT_THAT(results[1], AnyOf(StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2")),
                                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2"))));
}

TEST(TcpRendezvousTest, AnAbsentRankZeroIsNamed) {
  auto processes = Processes(2, 0.3);
  processes.erase(processes.begin());
  const std::string where = absl::StrCat("rendezvous at 127.0.0.1:", processes[0].port);
  EXPECT_THAT(Meet(processes, "id")[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       testing::AllOf(HasSubstr(where), HasSubstr("could not reach rank 0"),
                                      HasSubstr("refused"))));
}

TEST(TcpRendezvousTest, TwoProcessesOfOneRankAreTold) {
  auto processes = Processes(3, 20);
  processes[2].rank = 1;
  for (const auto& result : Meet(processes, "id")) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("two processes say that they are rank 1")));
  }
}

TEST(TcpRendezvousTest, DifferentWorldSizesAreTold) {
  auto processes = Processes(2, 20);
  processes[1].world_size = 3;
  for (const auto& result : Meet(processes, "id")) {
    EXPECT_THAT(
        result,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("rank 0 expects 2 ranks, but a process says that it is rank 1")));
  }
}

TEST(TcpRendezvousTest, StrangersAtThePortDoNoHarm) {
  const auto processes = Processes(2, 20);
  Results results(2, absl::UnknownError("not run"));
  std::thread zero([&] { results[0] = TcpBroadcast(processes[0], "id"); });
  const int silent = Knock(processes[0].port);
  const int gone = Knock(processes[0].port);
  ::close(gone);
  const int other = Knock(processes[0].port);
  const std::string request = "GET / HTTP/1.1\r\nHost: somebody else\r\n\r\n";
  EXPECT_GT(::send(other, request.data(), request.size(), MSG_NOSIGNAL), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  results[1] = TcpBroadcast(processes[1], "");
  zero.join();
  for (const auto& result : results) {
    HOTROW_ASSERT_OK(result);
    EXPECT_EQ(*result, "id");
  }
  ::close(silent);
  ::close(other);
}

TEST(TcpRendezvousTest, ATakenPortIsNamed) {
  auto processes = Processes(2, 1);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(processes[0].port));
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  EXPECT_THAT(TcpBroadcast(processes[0], "id"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("HOTROW_RENDEZVOUS_PORT")));
  ::close(fd);
}

TEST(TcpRendezvousTest, BadOptionsAreNamed) {
  const auto expect = [](const TcpRendezvousOptions& options, const char* text) {
    EXPECT_THAT(TcpBroadcast(options, "id"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect({.rank = 2, .world_size = 2, .host = "a", .port = 1}, "got 2 of 2");
  expect({.rank = 0, .world_size = 0}, "rank must lie in [0, world_size), got 0 of 0");
  expect({.rank = 0, .world_size = 2, .port = 1}, "host must be given");
  expect({.rank = 0, .world_size = 2, .host = "a", .port = 0}, "port must lie in [1, 65535]");
  expect({.rank = 0, .world_size = 1, .timeout_seconds = 0}, "timeout_seconds");
  EXPECT_THAT(TcpBroadcast({}, std::string(kTcpRendezvousBytesMax + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 65536 bytes")));
}

}  // namespace
}  // namespace hotrow::test
