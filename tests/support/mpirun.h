#ifndef HOTROW_TESTS_SUPPORT_MPIRUN_H_
#define HOTROW_TESTS_SUPPORT_MPIRUN_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/run_program.h"

// Programs under mpirun. The including target defines HOTROW_MPI_ENVIRONMENT, HOTROW_MPIEXEC and
// HOTROW_MPIEXEC_NUMPROC_FLAG.
namespace hotrow::test {

// `command` on `ranks` ranks, with the output of all ranks joined. By default mpirun ends all ranks
// when one dies by a signal. With recovery it leaves the others alone and always returns 0.
inline Program Mpirun(int ranks, bool recovery, const std::vector<std::string>& command) {
  Program program;
  program.arguments = {HOTROW_MPIEXEC, HOTROW_MPIEXEC_NUMPROC_FLAG, absl::StrCat(ranks)};
  program.arguments.insert(program.arguments.end(), command.begin(), command.end());
  program.environment = absl::StrSplit(HOTROW_MPI_ENVIRONMENT, '|');
  program.environment.push_back(absl::StrCat("OMPI_MCA_orte_enable_recovery=", recovery ? 1 : 0));
  program.joined = true;
  program.timeout_seconds = 120;
  return program;
}

// With recovery; each rank's last line is "rank R ended with STATUS".
inline Program MpirunSayingHowRanksEnd(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> shell = {"/bin/sh", "-c",
                                    "\"$@\"; echo rank $OMPI_COMM_WORLD_RANK ended with $?", "sh"};
  shell.insert(shell.end(), command.begin(), command.end());
  return Mpirun(ranks, /*recovery=*/true, shell);
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_MPIRUN_H_
