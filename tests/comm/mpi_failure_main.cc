// What mpi_failure_test runs under mpirun: calls one collective over and over, until a rank, the
// victim, dies or stops in the midst of it. The others say what they got and exit with 3.
//
//   mpi_failure_main COLLECTIVE BYTES VICTIM kill|stop|exit|sleep SECONDS_OF_TIMEOUT
//
// kill: by SIGKILL; stop: by SIGSTOP; exit: leaves with status 0; sleep: does something else.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/create_communicator.h"
#include "tests/comm/collectives.h"

namespace hotrow::test {
namespace {

constexpr int kCallsBefore = 20;

int Main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("mpi_failure_main: takes five arguments\n", stderr);
    return 2;
  }
  const auto collective = static_cast<Collective>(std::atoi(argv[1]));
  const int64_t bytes = std::atoll(argv[2]);
  const int victim = std::atoi(argv[3]);
  const std::string how = argv[4];
  CommunicatorOptions options;
  options.timeout_seconds = std::atof(argv[5]);
  auto c = CreateCommunicator(CommKind::kMpi, options);
  if (!c.ok()) {
    std::fprintf(stderr, "%s\n", c.status().ToString().c_str());
    return 2;
  }
  const int rank = (*c)->rank();
  for (int call = 0; call < 1'000'000; ++call) {
    if (rank == victim && call == kCallsBefore) {
      if (how == "exit") return 0;
      if (how == "sleep") std::this_thread::sleep_for(std::chrono::seconds(3600));
      const int signal = how == "kill" ? SIGKILL : SIGSTOP;
      // In the midst of some call: the thread does not know of which part.
      std::thread([signal] {
        std::this_thread::sleep_for(std::chrono::microseconds(1500));
        ::kill(::getpid(), signal);
      }).detach();
    }
    const absl::Status status = Call(**c, collective, bytes);
    if (status.ok()) continue;
    // One write, so that lines of different ranks do not mix.
    std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace hotrow::test

int main(int argc, char** argv) { return hotrow::test::Main(argc, argv); }
