#include "tools/serve/http_server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/serve/http_client.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kLongMs = 60'000;  // longer than any case takes

// Answers with what it got.
HttpReply Echo(const HttpRequest& request) {
  return {.content_type = "text/plain",
          .headers = {{"X-Path", std::to_string(request.path.size())}},
          .body = absl::StrCat(request.method, " ", request.path, " ", request.body.size(), " ",
                               request.body.substr(0, 20))};
}

struct Served {
  ConnectionCounts counts;
  std::unique_ptr<HttpServer> server;

  explicit Served(HttpServerOptions options = {}, HttpServer::Handler handler = Echo) {
    if (options.transfer_ms == HttpServerOptions().transfer_ms) options.transfer_ms = kLongMs;
    auto started = HttpServer::Start(options, std::move(handler), &counts);
    HOTROW_EXPECT_OK(started);
    if (started.ok()) server = *std::move(started);
  }
  HttpClient Connect() const {
    auto client = HttpClient::Connect("127.0.0.1", server->port(), kLongMs);
    HOTROW_EXPECT_OK(client);
    return *std::move(client);
  }
  // What comes back for these bytes, until the server closes.
  std::string Ask(const std::string& bytes) const {
    HttpClient client = Connect();
    HOTROW_EXPECT_OK(client.Send(bytes));
    const auto reply = client.ReceiveToEnd();
    return reply.ok() ? *reply : reply.status().ToString();
  }
};

std::string Post(const std::string& body, const std::string& headers = "") {
  return absl::StrCat("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n",
                      headers, "\r\n", body);
}

TEST(HttpServerTest, AnswersRequestsOfOneConnection) {
  const Served served;
  HttpClient client = served.Connect();
  for (int i = 0; i < 20; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply,
                                client.Call("POST", "/a/b%20c?x=1", std::string(i * 1000, 'z')));
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.body, StartsWith(absl::StrCat("POST /a/b c ", i * 1000)));
    EXPECT_EQ(reply.headers.at("content-type"), "text/plain");
    EXPECT_EQ(reply.headers.at("x-path"), "6");
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto got, client.Call("GET", "/g", ""));
    EXPECT_EQ(got.body, "GET /g 0 ");
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto head, client.Call("HEAD", "/g", ""));
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.headers.at("content-length"), "10");
  }
  EXPECT_EQ(served.counts.accepted.value(), 1);
  EXPECT_EQ(served.counts.unparsed.value(), 0);
}

// curl says so of what it sends, if it is told nothing else.
TEST(HttpServerTest, TheTypeOfABodyDoesNotMatter) {
  const Served served;
  EXPECT_THAT(served.Ask(Post("{\"a\":1}",
                              "Content-Type: application/x-www-form-urlencoded\r\n"
                              "Connection: close\r\n")),
              EndsWith("POST /p 7 {\"a\":1}"));
  EXPECT_THAT(served.Ask(Post(std::string(20'000, 'x'),
                              "Content-Type: application/x-www-form-urlencoded\r\n"
                              "Connection: close\r\n")),
              HasSubstr("POST /p 20000 xxx"));
}

TEST(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  const Served served;
  HttpClient client = served.Connect();
  std::string all;
  for (int i = 0; i < 50; ++i) all += Post(absl::StrCat("body", i));
  HOTROW_ASSERT_OK(client.Send(all));
  for (int i = 0; i < 50; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, client.Receive());
    EXPECT_THAT(reply.body, EndsWith(absl::StrCat(" body", i)));
  }
}

TEST(HttpServerTest, ARequestMayComeByteByByte) {
  const Served served;
  HttpClient client = served.Connect();
  for (const char c : Post("hello") + "GET /x HTTP/1.0\r\n\r\n") {
    HOTROW_ASSERT_OK(client.Send(std::string(1, c)));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, client.Receive());
  EXPECT_EQ(reply.body, "POST /p 5 hello");
  // HTTP/1.0 closes.
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string rest, client.ReceiveToEnd());
  EXPECT_THAT(rest, EndsWith("GET /x 0 "));
}

TEST(HttpServerTest, ChunkedBodiesAreRead) {
  const Served served({.body_bytes_max = 100});
  const std::string head =
      "POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(served.Ask(head + "5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n"),
              EndsWith("POST /p 11 hello world"));
  std::string large;
  for (int i = 0; i < 11; ++i) large += "a\r\n0123456789\r\n";
  EXPECT_THAT(served.Ask(head + large + "0\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(served.Ask(head + "ffffffffffffffff\r\nx"), AnyOf(StartsWith("HTTP/1.1 4"), ""));
  EXPECT_THAT(served.Ask(head + "-2\r\n" + std::string(20'000, 'x')),
              AnyOf(StartsWith("HTTP/1.1 4"), ""));
  EXPECT_THAT(served.Ask(head + "zz\r\nx\r\n0\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServerTest, ExpectedContinuesAreSaid) {
  const Served served({.body_bytes_max = 100});
  HttpClient client = served.Connect();
  HOTROW_ASSERT_OK(
      client.Send("POST /p HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto interim, client.Receive());
  EXPECT_EQ(interim.status, 100);
  HOTROW_ASSERT_OK(client.Send("hi"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, client.Receive());
  EXPECT_EQ(reply.body, "POST /p 2 hi");
  HOTROW_ASSERT_OK(
      client.Send("POST /p HTTP/1.1\r\nContent-Length: 200\r\nExpect: 100-continue\r\n\r\n"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto refused, client.Receive());
  EXPECT_EQ(refused.status, 413);
}

TEST(HttpServerTest, WhatIsNotARequestIsRefusedAndTheConnectionClosed) {
  const Served served({.body_bytes_max = 1000});
  const auto expect = [&](const std::string& bytes, const char* status) {
    EXPECT_THAT(served.Ask(bytes), StartsWith(absl::StrCat("HTTP/1.1 ", status, " ")))
        << bytes.substr(0, 80);
  };
  expect("hello\r\n\r\n", "400");
  expect("GET\r\n\r\n", "400");
  expect("GET / HTTP/2.0\r\n\r\n", "400");
  expect(std::string("\0\xff\x01 GET\r\n\r\n", 11), "400");
  expect("\r\n\r\n", "400");
  expect("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400");
  expect("POST /p HTTP/1.1\r\n\r\n", "411");
  expect("POST /p HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", "413");
  expect("POST /p HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n", "413");
  expect("POST /p HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n", "400");
  expect("POST /p HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400");
  expect("POST /p HTTP/1.1\r\nContent-Length: 2x\r\n\r\nhi", "400");
  expect("POST /p HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", "400");
  expect("POST /p HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi", "400");
  expect("POST /p HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nhi", "501");
  expect(Post("hi", "Content-Encoding: gzip\r\n"), "415");
  expect(Post("hi", "Content-Type: multipart/form-data; boundary=x\r\n"), "415");
  expect("GET /p HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", "400");
  expect(absl::StrCat("GET /", std::string(2000, 'x'), " HTTP/1.1\r\n\r\n"), "414");
  expect(absl::StrCat("GET /", std::string(10'000, 'x'), " HTTP/1.1\r\n\r\n"), "414");
  expect(absl::StrCat("GET /", std::string(100'000, 'x'), " HTTP/1.1\r\n\r\n"), "431");
  expect(absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(20'000, 'x'), "\r\n\r\n"), "431");
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&many, "X", i, ": y\r\n");
  expect(many + "\r\n", "431");
  // It serves on.
  EXPECT_THAT(served.Ask("GET /x HTTP/1.0\r\n\r\n"), EndsWith("GET /x 0 "));
  EXPECT_GT(served.counts.unparsed.value(), 10);
}

// A client that sends all of what is refused reads the answer all the same.
TEST(HttpServerTest, TheRefusalOfALargeBodyArrives) {
  const Served served({.body_bytes_max = 1000});
  EXPECT_THAT(served.Ask(Post(std::string(8 << 20, 'x'))),
              AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("Connection: close\r\n"),
                    HasSubstr("8388608 bytes; this server takes at most 1000")));
}

// Headers that httplib would act upon, by regular expressions among others.
TEST(HttpServerTest, RangesAndEncodingsAreNotHonoured) {
  const Served served;
  std::string ranges = "bytes=0-0";
  while (ranges.size() < 8000) ranges += ",0-0";
  for (const std::string& header :
       {std::string("Range: bytes=0-1"), "Range: " + ranges,
        std::string("Accept-Encoding: gzip, br"), std::string("Upgrade: websocket")}) {
    const std::string reply =
        served.Ask(absl::StrCat("GET /x HTTP/1.1\r\nConnection: close\r\n", header, "\r\n\r\n"));
    EXPECT_THAT(reply, AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("GET /x 0 "))) << reply;
  }
  EXPECT_THAT(served.Ask(absl::StrCat("GET /x HTTP/1.1\r\nConnection: close\r\nRange: bytes=",
                                      std::string(8000, '1'), "\r\n\r\n")),
              StartsWith("HTTP/1.1 "));
}

TEST(HttpServerTest, HalfARequestEndsWithItsTime) {
  const Served served({.transfer_ms = 100});
  EXPECT_THAT(served.Ask("POST /p HTTP/1.1\r\nContent-Length: 10\r\n\r\nhal"),
              StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(served.Ask("POST /p HTTP/1.1\r\nContent-Le"), AnyOf(StartsWith("HTTP/1.1 408 "), ""));
  EXPECT_EQ(served.Ask(""), "");
  // One that sends a byte now and then has no more time for it.
  HttpClient slow = served.Connect();
  const int64_t begin = NowNanos();
  HOTROW_ASSERT_OK(slow.Send("POST /p HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"));
  while (slow.Send("x").ok() && NowNanos() - begin < kLongMs * kMilli) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_LT(NowNanos() - begin, kLongMs * kMilli);
}

TEST(HttpServerTest, AClientThatEndsEarlyIsOneFewer) {
  const Served served;
  {
    HttpClient client = served.Connect();
    HOTROW_ASSERT_OK(client.Send("POST /p HTTP/1.1\r\nContent-Length: 10\r\n\r\nhal"));
    client.EndSending();
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string reply, client.ReceiveToEnd());
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 400 "));
  }
  served.Connect();  // and gone
  HttpClient client = served.Connect();
  HOTROW_EXPECT_OK(client.Call("GET", "/x", ""));
}

// A hundred clients that say nothing, half of a head, half of a body, or read nothing.
TEST(HttpServerTest, ClientsThatHangStopNobody) {
  const Served served;
  std::vector<HttpClient> hanging;
  for (int i = 0; i < 100; ++i) {
    hanging.push_back(served.Connect());
    const char* const said[] = {"", "GET /x HT", "POST /p HTTP/1.1\r\nContent-Length: 10\r\n\r\nx",
                                "GET /x HTTP/1.1\r\n\r\n"};
    HOTROW_ASSERT_OK(hanging.back().Send(said[i % 4]));
  }
  HttpClient client = served.Connect();
  for (int i = 0; i < 20; ++i) HOTROW_ASSERT_OK(client.Call("GET", "/x", ""));
  EXPECT_EQ(served.counts.open, 101);
}

// More than there are places: those that are silent longest make room.
TEST(HttpServerTest, SilentClientsMakeRoom) {
  const Served served({.connections_max = 8});
  std::vector<HttpClient> hanging;
  for (int i = 0; i < 40; ++i) {
    hanging.push_back(served.Connect());
    HOTROW_ASSERT_OK(hanging.back().Send(i % 2 == 0 ? "" : "POST /p HTTP/1.1\r\nContent-"));
    if (i % 5 != 0) continue;
    HttpClient client = served.Connect();
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, client.Call("GET", "/x", ""));
    EXPECT_EQ(reply.status, 200);
  }
  EXPECT_LE(served.counts.open, 8);
  EXPECT_GE(served.counts.evicted.value(), 20);
  EXPECT_EQ(served.counts.refused.value(), 0);
}

// Lets requests in one by one.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool open = false;

  HttpReply Pass(const HttpRequest& request) {
    std::unique_lock<std::mutex> lock(mutex);
    ++inside;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    return Echo(request);
  }
  void AwaitInside(int n) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return inside >= n; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
};

TEST(HttpServerTest, PlacesOfRequestsAreNotTaken) {
  Gate gate;
  const Served served({.connections_max = 2},
                      [&](const HttpRequest& request) { return gate.Pass(request); });
  HttpClient first = served.Connect(), second = served.Connect();
  HOTROW_ASSERT_OK(first.Send("GET /1 HTTP/1.1\r\n\r\n"));
  HOTROW_ASSERT_OK(second.Send("GET /2 HTTP/1.1\r\n\r\n"));
  gate.AwaitInside(2);
  HttpClient third = served.Connect();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string refused, third.ReceiveToEnd());
  EXPECT_THAT(refused, AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1")));
  EXPECT_EQ(served.counts.refused.value(), 1);
  gate.Open();
  HOTROW_EXPECT_OK(first.Receive());
  HOTROW_EXPECT_OK(second.Receive());
}

// Requests have all places: probes are answered all the same, and nobody waits for a second.
TEST(HttpServerTest, ProbesHavePlacesOfTheirOwn) {
  Gate gate;
  std::mutex told_mutex;
  std::string told;
  const Served served({.connections_max = 1,
                       .probe_paths = {"/live"},
                       .log =
                           [&](std::string_view line) {
                             const std::lock_guard<std::mutex> lock(told_mutex);
                             told += line;
                           }},
                      [&](const HttpRequest& request) {
                        return request.path == "/live" ? Echo(request) : gate.Pass(request);
                      });
  HttpClient busy = served.Connect();
  HOTROW_ASSERT_OK(busy.Send("GET /1 HTTP/1.1\r\n\r\n"));
  gate.AwaitInside(1);
  const int64_t begin = NowNanos();
  std::vector<HttpClient> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(served.Connect());
  for (int i = 0; i < 5; ++i) {
    const std::string live = served.Ask("GET /live HTTP/1.1\r\n\r\n");
    EXPECT_THAT(live, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Connection: close")));
  }
  EXPECT_THAT(served.Ask(Post("x")),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1"), HasSubstr("places")));
  EXPECT_THAT(NowNanos() - begin, Lt(10'000 * kMilli));  // it was a second for each client
  {
    const std::lock_guard<std::mutex> lock(told_mutex);
    EXPECT_THAT(told, HasSubstr("requests have all 1 places"));
  }
  gate.Open();
  HOTROW_EXPECT_OK(busy.Receive());
}

// Each reply says that it is the last, and requests that came before the end are answered.
TEST(HttpServerTest, DrainingEndsConnectionsWithAReply) {
  Gate gate;
  const Served served({}, [&](const HttpRequest& request) { return gate.Pass(request); });
  HttpClient busy = served.Connect(), kept = served.Connect();
  HOTROW_ASSERT_OK(busy.Send("GET /1 HTTP/1.1\r\n\r\n"));
  gate.AwaitInside(1);
  served.server->Drain();
  gate.Open();
  HOTROW_ASSERT_OK(kept.Send("GET /2 HTTP/1.1\r\n\r\n"));
  for (HttpClient* const client : {&busy, &kept}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string reply, client->ReceiveToEnd());
    EXPECT_THAT(reply, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Connection: close")));
  }
  EXPECT_THAT(served.Ask("GET /3 HTTP/1.1\r\n\r\n"), HasSubstr("GET /3"));  // still taken
}

TEST(HttpServerTest, MemoryForBodiesIsLimited) {
  Gate gate;
  const Served served({.body_bytes_max = 1000, .bodies_bytes_max = 1500},
                      [&](const HttpRequest& request) { return gate.Pass(request); });
  HttpClient first = served.Connect();
  HOTROW_ASSERT_OK(first.Send(Post(std::string(1000, 'x'))));
  gate.AwaitInside(1);
  EXPECT_THAT(served.Ask(Post(std::string(600, 'x'))),
              AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("Retry-After: 1")));
  gate.Open();
  HOTROW_EXPECT_OK(first.Receive());
  HttpClient again = served.Connect();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reply, again.Call("POST", "/p", std::string(600, 'x')));
  EXPECT_EQ(reply.status, 200);
}

TEST(HttpServerTest, StopLetsRequestsEndAndTakesNoNewOnes) {
  Gate gate;
  Served served({}, [&](const HttpRequest& request) { return gate.Pass(request); });
  HttpClient busy = served.Connect(), idle = served.Connect(), reading = served.Connect();
  HOTROW_ASSERT_OK(busy.Send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"));
  gate.AwaitInside(1);
  HOTROW_ASSERT_OK(reading.Send("POST /p HTTP/1.1\r\nContent-Length: 4\r\n\r\nha"));
  while (served.counts.open < 3) std::this_thread::yield();
  // Until the server has the first half.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const int32_t port = served.server->port();
  std::thread stopping([&] { served.server->Stop(kLongMs); });
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string closed, idle.ReceiveToEnd());
  EXPECT_EQ(closed, "");
  EXPECT_THAT(HttpClient::Connect("127.0.0.1", port, kLongMs),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connect")));
  HOTROW_ASSERT_OK(reading.Send("lf"));
  gate.Open();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string answered, busy.ReceiveToEnd());
  EXPECT_THAT(answered,
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("GET /1"), Not(HasSubstr("GET /2"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string read, reading.ReceiveToEnd());
  EXPECT_THAT(read, EndsWith("POST /p 4 half"));
  stopping.join();
  EXPECT_EQ(served.counts.open, 0);
}

TEST(HttpServerTest, StopEndsWhatTakesLongerThanItsGrace) {
  Served served;
  HttpClient reading = served.Connect();
  HOTROW_ASSERT_OK(reading.Send("POST /p HTTP/1.1\r\nContent-Length: 4\r\n\r\nha"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int64_t begin = NowNanos();
  served.server->Stop(100);
  EXPECT_THAT(NowNanos() - begin, Lt(kLongMs * kMilli));
  EXPECT_EQ(served.counts.open, 0);
}

TEST(HttpServerTest, ATakenPortIsRefusedWithTheRemedy) {
  const Served served;
  ConnectionCounts counts;
  EXPECT_THAT(HttpServer::Start({.port = served.server->port()}, Echo, &counts),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("give another one")));
  EXPECT_THAT(HttpServer::Start({.address = "here"}, Echo, &counts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("127.0.0.1")));
  EXPECT_THAT(HttpServer::Start({.connections_max = 0}, Echo, &counts),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("connections_max")));
}

}  // namespace
}  // namespace hotrow
