#include "base/text_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fetch_text.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLongMs = 60'000;  // longer than any case takes

using Text = std::shared_ptr<const std::string>;

std::unique_ptr<TextServer> Serve(const std::string& text, int64_t deadline_ms = kLongMs) {
  auto server =
      TextServer::Start({.deadline_ms = deadline_ms},
                        [shared = std::make_shared<const std::string>(text)] { return shared; });
  HOTROW_EXPECT_OK(server);
  return server.ok() ? *std::move(server) : nullptr;
}

absl::StatusOr<std::string> Get(const TextServer& server, int64_t timeout_ms = kLongMs) {
  return FetchText({.port = server.port()}, timeout_ms, 64 * kMiB);
}

// A client by hand: sends and receives as a test says.
class Client {
 public:
  explicit Client(int32_t port, int receive_bytes = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;

  bool connected() const { return connected_; }
  // False: the server has closed, and there is nothing to send to.
  bool Send(const std::string& text) {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) >= 0;
  }
  // Up to the end of the connection.
  std::string Receive() {
    std::string all;
    std::vector<char> bytes(1 << 16);
    for (;;) {
      const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (n <= 0) return all;
      all.append(bytes.data(), static_cast<size_t>(n));
    }
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
};

std::string Ask(const TextServer& server, const std::string& request) {
  Client client(server.port());
  EXPECT_TRUE(client.connected());
  client.Send(request);
  return client.Receive();
}

TEST(TextServerTest, GivesTheTextOfTheMoment) {
  std::atomic<int> calls{0};
  auto server = TextServer::Start(
      {}, [&] { return std::make_shared<const std::string>("call " + std::to_string(++calls)); });
  HOTROW_ASSERT_OK(server);
  EXPECT_GT((*server)->port(), 0);
  EXPECT_THAT((*server)->url(), StartsWith("http://127.0.0.1:"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string first, Get(**server));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string second, Get(**server));
  EXPECT_EQ(first, "call 1");
  EXPECT_EQ(second, "call 2");
  EXPECT_EQ((*server)->answered(), 2);
}

TEST(TextServerTest, AnswersAsHttp) {
  const std::unique_ptr<TextServer> server = Serve("the text\n");
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Ask(*server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 9\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\nthe text\n");
  EXPECT_THAT(Ask(*server, "GET /metrics?x=1 HTTP/1.0\n\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask(*server, "HEAD /metrics HTTP/1.1\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 9\r\n"), ::testing::EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask(*server, "POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  EXPECT_THAT(Ask(*server, "GET / HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("/metrics")));
  EXPECT_THAT(Ask(*server, "PRI * HTTP/2.0\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*server, "\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*server, std::string("\0\xff GET\r\n\r\n", 10)), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*server, std::string(TextServer::kRequestBytesMax + 1, 'x')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(server->answered(), 3);
}

TEST(TextServerTest, WithoutATextItSaysSo) {
  auto server = TextServer::Start({}, [] { return Text(); });
  HOTROW_ASSERT_OK(server);
  EXPECT_THAT(Get(**server), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("503")));
}

TEST(TextServerTest, ARequestMayComeInPieces) {
  const std::unique_ptr<TextServer> server = Serve("text");
  ASSERT_NE(server, nullptr);
  Client client(server->port());
  for (const char* const piece : {"GE", "T /metrics HTT", "P/1.1\r\nHost", ": x\r\n\r", "\n"}) {
    client.Send(piece);
  }
  EXPECT_THAT(client.Receive(), ::testing::EndsWith("\r\n\r\ntext"));
}

TEST(TextServerTest, ATakenPortIsRefusedWithTheRemedy) {
  const std::unique_ptr<TextServer> server = Serve("text");
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(
      TextServer::Start({.port = server->port()}, [] { return Text(); }),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("127.0.0.1:" + std::to_string(server->port())),
                     HasSubstr("another process has this port"), HasSubstr("give another one"))));
}

TEST(TextServerTest, APortIsFreeAgainAtOnce) {
  std::unique_ptr<TextServer> server = Serve("text");
  ASSERT_NE(server, nullptr);
  const int32_t port = server->port();
  HOTROW_EXPECT_OK(Get(*server));
  server = nullptr;
  HOTROW_EXPECT_OK(TextServer::Start({.port = port}, [] { return Text(); }));
}

TEST(TextServerTest, BadOptionsAreNamed) {
  const auto start = [](const TextServerOptions& options) {
    return TextServer::Start(options, [] { return Text(); }).status();
  };
  EXPECT_THAT(start({.address = "localhost.example"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("127.0.0.1")));
  EXPECT_THAT(start({.port = 70'000}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("70000")));
  EXPECT_THAT(start({.port = -1}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(start({.path = "metrics"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("path")));
  EXPECT_THAT(start({.deadline_ms = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("deadline_ms")));
  // An address of a network for examples: no machine has it.
  EXPECT_THAT(start({.address = "192.0.2.1"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no such address")));
}

// --- Clients that hang

// Ten times as many as there are places connect, and most of them say nothing.
TEST(TextServerTest, ClientsThatSayNothingKeepNobodyWaiting) {
  const std::unique_ptr<TextServer> server = Serve("text");
  ASSERT_NE(server, nullptr);
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 10 * TextServer::kClientsMax; ++i) {
    silent.push_back(std::make_unique<Client>(server->port()));
    if (i % 2 == 1) silent.back()->Send("GET /metr");
    if (i % TextServer::kClientsMax != 0) continue;
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, Get(*server));
    EXPECT_EQ(text, "text");
  }
  EXPECT_EQ(server->answered(), 10);
}

// Much more than the kernel keeps for a connection, and a client that reads none of it.
TEST(TextServerTest, AClientThatDoesNotReadHoldsUpNobody) {
  const std::string large(static_cast<size_t>(16 * kMiB), 'x');
  const std::unique_ptr<TextServer> server = Serve(large);
  ASSERT_NE(server, nullptr);
  Client client(server->port(), /*receive_bytes=*/4096);
  client.Send("GET /metrics HTTP/1.1\r\n\r\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, Get(*server));
  EXPECT_EQ(text.size(), large.size());
}

TEST(TextServerTest, AClientIsLetGoAtItsDeadlineHoweverBusyItLooks) {
  const std::unique_ptr<TextServer> server = Serve("text", /*deadline_ms=*/50);
  ASSERT_NE(server, nullptr);
  Client client(server->port());
  constexpr int kSendsMax = 1000;  // ten seconds
  std::atomic<bool> closed{false};
  int sent = 0;
  const int64_t begin = NowNanos();
  std::thread slowly([&] {
    // A byte now and then: each would restart a timeout of reads.
    while (!closed && sent < kSendsMax) {
      client.Send("x");
      ++sent;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_EQ(client.Receive(), "");
  EXPECT_GE(NowNanos() - begin, 49'000'000);
  closed = true;
  slowly.join();
  EXPECT_LT(sent, kSendsMax);
}

TEST(TextServerTest, AClientThatGoesOnTalkingIsCutOff) {
  const std::unique_ptr<TextServer> server = Serve("text");
  ASSERT_NE(server, nullptr);
  Client client(server->port());
  client.Send("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.Receive(), ::testing::EndsWith("\r\n\r\ntext"));
  const std::string more(static_cast<size_t>(kMiB), 'x');
  int sent = 0;
  while (sent < 64 && client.Send(more)) ++sent;
  EXPECT_LT(sent, 64);
}

TEST(TextServerTest, StoppingWaitsForNoClient) {
  const std::string large(static_cast<size_t>(16 * kMiB), 'x');
  std::unique_ptr<TextServer> server = Serve(large);
  ASSERT_NE(server, nullptr);
  Client silent(server->port());
  Client reads_nothing(server->port(), /*receive_bytes=*/4096);
  reads_nothing.Send("GET /metrics HTTP/1.1\r\n\r\n");
  HOTROW_EXPECT_OK(Get(*server));  // both were accepted before
  server->Stop();
  server->Stop();
  EXPECT_EQ(silent.Receive(), "");
}

// --- Fetching

TEST(FetchTextTest, NobodyThereIsSaid) {
  int32_t port = 0;
  {
    const std::unique_ptr<TextServer> server = Serve("text");
    ASSERT_NE(server, nullptr);
    port = server->port();
  }
  EXPECT_THAT(FetchText({.port = port}, kLongMs, kMiB),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody serves there")));
  EXPECT_THAT(FetchText({.address = "nowhere", .port = 1}, kLongMs, kMiB),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nowhere")));
}

TEST(FetchTextTest, AnAnswerHasABoundInBytesAndTime) {
  const std::unique_ptr<TextServer> server = Serve(std::string(static_cast<size_t>(kMiB), 'x'));
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(FetchText({.port = server->port()}, kLongMs, 1000),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 bytes")));
  // A socket that listens and never accepts.
  const int mute = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(mute, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(mute, 1), 0);
  ASSERT_EQ(::getsockname(mute, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_THAT(FetchText({.port = ntohs(address.sin_port)}, /*timeout_ms=*/50, kMiB),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no answer within 50 ms")));
  ::close(mute);
}

}  // namespace
}  // namespace hotrow
