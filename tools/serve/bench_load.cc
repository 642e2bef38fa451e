#include "tools/serve/bench_load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "tools/serve/http_client.h"

namespace hotrow {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr int32_t kClientsMax = 10'000;
constexpr int64_t kMillisMax = int64_t{1} << 31;

// What one client got.
struct ClientShare {
  absl::Status status;
  std::vector<int64_t> times_ns;
  std::map<int, int64_t> refusals;
  std::string first_refusal;
};

void RunClient(const BenchLoadOptions& options, const std::vector<BenchBody>& bodies, size_t first,
               int64_t begin_ns, int64_t end_ns, ClientShare* share) {
  const auto run = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(HttpClient client,
                            HttpClient::Connect(options.address, options.port, options.timeout_ms));
    bool counted = false;  // one at least, however slow the server or short the time
    for (size_t i = first;; ++i) {
      const BenchBody& body = bodies[i % bodies.size()];
      HttpClient::Headers headers = {{"Content-Type", "application/octet-stream"}};
      headers.emplace_back("Inference-Header-Content-Length", absl::StrCat(body.json_bytes));
      const int64_t sent_ns = NowNanos();
      if (sent_ns >= end_ns && counted) return absl::OkStatus();
      HOTROW_ASSIGN_OR_RETURN(const HttpClient::Reply reply,
                              client.Call("POST", options.path, body.bytes, headers));
      const int64_t took_ns = NowNanos() - sent_ns;
      if (sent_ns < begin_ns) continue;
      counted = true;
      if (reply.status == 200) {
        share->times_ns.push_back(took_ns);
        continue;
      }
      if (share->refusals.empty()) share->first_refusal = reply.body;
      ++share->refusals[reply.status];
    }
  };
  share->status = run();
}

absl::StatusOr<BenchLevel> RunLevel(const BenchLoadOptions& options,
                                    const std::vector<BenchBody>& bodies, int32_t clients) {
  std::vector<ClientShare> shares(static_cast<size_t>(clients));
  std::vector<std::thread> threads;
  const int64_t begin_ns = NowNanos() + options.warm_up_ms * kNanosPerMilli;
  const int64_t end_ns = begin_ns + options.seconds_ms * kNanosPerMilli;
  absl::Status status;
  for (size_t c = 0; c < shares.size(); ++c) {
    const size_t first = c * bodies.size() / shares.size();
    absl::StatusOr<std::thread> thread =
        StartThread("a client of a benchmark", [&, first, share = &shares[c]] {
          RunClient(options, bodies, first, begin_ns, end_ns, share);
        });
    if (!thread.ok()) {
      status = thread.status();
      break;
    }
    threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  HOTROW_RETURN_IF_ERROR(status);

  BenchLevel out = {.clients = clients, .seconds = static_cast<double>(options.seconds_ms) / 1000};
  std::vector<int64_t> times;
  for (const ClientShare& share : shares) {
    HOTROW_RETURN_IF_ERROR(share.status);
    times.insert(times.end(), share.times_ns.begin(), share.times_ns.end());
    for (const auto& [code, count] : share.refusals) out.refusals[code] += count;
    if (out.first_refusal.empty()) out.first_refusal = share.first_refusal;
  }
  std::sort(times.begin(), times.end());
  out.requests = std::ssize(times);
  if (times.empty()) return out;
  // The least time that a share q of the requests does not exceed.
  const auto quantile = [&](double q) {
    const double rank = std::ceil(q * static_cast<double>(times.size()));
    return static_cast<double>(times[static_cast<size_t>(std::max(rank, 1.0)) - 1]) /
           kNanosPerMilli;
  };
  out.tp50_ms = quantile(0.5);
  out.tp90_ms = quantile(0.9);
  out.tp99_ms = quantile(0.99);
  out.tp999_ms = quantile(0.999);
  out.max_ms = quantile(1);
  return out;
}

}  // namespace

absl::Status BenchLoadOptions::Validate() const {
  const auto check = [](const char* field, int64_t value, int64_t min,
                        int64_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("BenchLoadOptions.", field, " must lie in [",
                                                   min, ", ", max, "], is ", value));
  };
  HOTROW_RETURN_IF_ERROR(check("port", port, 1, 65535));
  HOTROW_RETURN_IF_ERROR(check("clients", std::ssize(clients), 1, 100));
  for (const int32_t level : clients) {
    HOTROW_RETURN_IF_ERROR(check("clients", level, 1, kClientsMax));
  }
  HOTROW_RETURN_IF_ERROR(check("seconds_ms", seconds_ms, 1, kMillisMax));
  HOTROW_RETURN_IF_ERROR(check("warm_up_ms", warm_up_ms, 0, kMillisMax));
  return check("timeout_ms", timeout_ms, 1, kMillisMax);
}

absl::StatusOr<std::vector<BenchLevel>> RunBenchLoad(const BenchLoadOptions& options,
                                                     const std::vector<BenchBody>& bodies) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  if (bodies.empty()) return absl::InvalidArgumentError("there are no requests to send");
  std::vector<BenchLevel> out;
  for (const int32_t clients : options.clients) {
    HOTROW_ASSIGN_OR_RETURN(BenchLevel level, RunLevel(options, bodies, clients));
    out.push_back(std::move(level));
  }
  return out;
}

}  // namespace hotrow
