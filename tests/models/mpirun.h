#ifndef HOTROW_TESTS_MODELS_MPIRUN_H_
#define HOTROW_TESTS_MODELS_MPIRUN_H_

#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

// Programs under mpirun. Whoever includes this has HOTROW_MPI_ENVIRONMENT, HOTROW_MPIEXEC and
// HOTROW_MPIEXEC_NUMPROC_FLAG defined by its target.
namespace hotrow::test {

struct Outcome {
  int exit_status = 0;  // -1: by a signal
  std::string output;   // of all ranks, both streams where the command joins them
};

inline Outcome Shell(const std::string& command) {
  Outcome outcome;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {.exit_status = -1, .output = "popen failed"};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// One word for a shell.
inline std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// What stands before a command that is to run on so many ranks. mpirun itself ends all processes
// when one dies by a signal; with recovery it leaves that to them, and returns 0 whatever becomes
// of them.
inline std::string Mpirun(int ranks, bool recovery) {
  return absl::StrCat("env ", HOTROW_MPI_ENVIRONMENT,
                      " OMPI_MCA_orte_enable_recovery=", recovery ? 1 : 0, " timeout -k 5 120 '",
                      HOTROW_MPIEXEC, "' ", HOTROW_MPIEXEC_NUMPROC_FLAG, " ", ranks, " ");
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_MPIRUN_H_
