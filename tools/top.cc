// hotrow top: the numbers of a run, live.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/env.h"
#include "base/exposition_reader.h"
#include "base/fetch_text.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/text_server.h"
#include "base/trace.h"
#include "tools/command.h"
#include "tools/top_screen.h"

namespace hotrow {
namespace {

constexpr int64_t kAnswerMs = 5000;
// A run that says nothing new for so long has rates of 0.
constexpr double kStaleSeconds = 10;
constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

absl::StatusOr<MetricFamilies> Fetch(const TopSource& source) {
  std::string text;
  if (source.file.empty()) {
    HOTROW_ASSIGN_OR_RETURN(text, FetchText(source.server, kAnswerMs, kExpositionBytesMax));
  } else {
    absl::StatusOr<std::string> read = ReadWholeFile(PosixEnv(), source.file, kExpositionBytesMax);
    if (!read.ok()) {
      return absl::Status(read.status().code(),
                          absl::StrCat(std::string(read.status().message()),
                                       "; SOURCE is a port, ADDRESS:PORT or a file of metrics"));
    }
    text = *std::move(read);
  }
  absl::StatusOr<MetricFamilies> families = ParseExposition(text);
  if (families.ok() || source.file.empty()) return families;
  return absl::InvalidArgumentError(absl::StrCat(
      source.file, ": is no file of metrics: ", std::string(families.status().message())));
}

// What is to be said of numbers that are old: a step takes long, or the process is gone and has
// left its file. Empty: they are new, or the run is over, or they do not tell the time.
std::string AgeText(const TopState& state) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double age = now - state.unix_seconds;
  if (state.over() || state.unix_seconds == 0 || age < kStaleSeconds) return std::string();
  return absl::StrFormat(
      "\n  NUMBERS OF %.0f s AGO: a step, an evaluation or --metrics_every is long, or the run is "
      "gone\n",
      age);
}

// How far apart two states are, by their own clock where they tell the time.
double SecondsBetween(const TopState& before, const TopState& now, double waited) {
  const double told = now.unix_seconds - before.unix_seconds;
  return before.unix_seconds > 0 && told > 0 ? told : waited;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  double every = 2;
  int64_t count = 0;
  int64_t tables = 20;
  FlagSet flags("hotrow top");
  flags.AddReal("every", 0.1, 3600, &every, "seconds between two screens");
  flags.AddInt("count", 0, int64_t{1} << 40, &count, "screens to show; 0: until the run is over");
  flags.AddInt("tables", 0, 100'000, &tables, "tables to show, those with the most lookups");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  HOTROW_ASSIGN_OR_RETURN(const TopSource source, ParseTopSource(operands[0]));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;

  MetricFamilies before;  // none: rates are those since the process began
  TopState before_state;
  int64_t before_ns = 0;
  for (int64_t screen = 1;; ++screen) {
    absl::StatusOr<MetricFamilies> now = Fetch(source);
    if (!now.ok()) {
      if (screen == 1) return now.status();
      std::printf("%s\n", std::string(now.status().message()).c_str());
      return kExitGood;  // the run is over
    }
    const TopState state = TopStateOf(*now);
    const double waited = 1e-9 * static_cast<double>(NowNanos() - before_ns);
    const double seconds = screen == 1 ? state.unix_seconds - state.start_seconds
                                       : SecondsBetween(before_state, state, waited);
    std::printf("%s%s%s%s", terminal ? kClearScreen : "",
                TopScreen(before, *now, seconds, tables).c_str(), AgeText(state).c_str(),
                terminal ? "" : "\n");
    std::fflush(stdout);
    if (screen == count || state.over()) return kExitGood;
    // Numbers that have not changed since the last screen say nothing of the time between.
    const bool changed = screen == 1 || state.unix_seconds == 0 ||
                         state.unix_seconds != before_state.unix_seconds || waited > kStaleSeconds;
    if (changed) {
      before = *std::move(now);
      before_state = state;
      before_ns = NowNanos();
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

}  // namespace

const Command kTopCommand = {
    "top", "SOURCE", "shows the numbers of a run or a server, live",
    "SOURCE is what a run was given or says: the port of --metrics_port, ADDRESS:PORT, or the\n"
    "file of --metrics_file; or the port of `hotrow serve`, or of metrics_port in Python. Rates\n"
    "are those since the screen before; of the first screen since the run began. Into a file or\n"
    "a pipe the screens follow each other. docs/metrics.md explains the numbers. It ends with\n"
    "the run.\n",
    Run};

}  // namespace hotrow
