#ifndef HOTROW_BASE_RUN_MAIN_H_
#define HOTROW_BASE_RUN_MAIN_H_

#include <csignal>

#include "absl/functional/function_ref.h"

namespace hotrow {

// Runs `body`, the whole of a program's main(), and returns its exit status. These end the process
// with one line on stderr and status 1 instead of a signal:
//   * An exception that body throws, such as bad_alloc; its destructors have run then.
//   * An exception that no thread catches: the process exits at once, from that thread.
//   * A file larger than `ulimit -f` allows: SIGXFSZ is ignored, and the write fails with EFBIG.
//   * `ulimit -s` below 512 KiB: nothing is begun.
// Standard output that could not be written makes a status of 0 one of 1, with such a line.
// Changes these settings of the whole process, so it is for programs and not for libraries.
// program: its name, for the line.
int RunMain(const char* program, absl::FunctionRef<int()> body);

// The signals that ask a program to end in order, for a thread that waits for them: SIGINT,
// SIGTERM, and those of SIGHUP (its terminal has closed), SIGUSR1, SIGUSR2 and SIGXCPU (batch
// systems warn with them before they kill) that the process does not ignore: `nohup` means it.
sigset_t StopSignals();

}  // namespace hotrow

#endif  // HOTROW_BASE_RUN_MAIN_H_
