#ifndef HOTROW_TESTS_SUPPORT_MPIRUN_H_
#define HOTROW_TESTS_SUPPORT_MPIRUN_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/run_program.h"

// Programs under mpirun. Whoever includes this has HOTROW_MPI_ENVIRONMENT, HOTROW_MPIEXEC and
// HOTROW_MPIEXEC_NUMPROC_FLAG defined by its target.
namespace hotrow::test {

// This command on so many ranks, with the output of all in one. mpirun itself ends all processes
// when one dies by a signal; with recovery it leaves that to them, and returns 0 whatever becomes
// of them.
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

// The same; each rank ends with a line "rank R ended with STATUS".
inline Program MpirunSayingHowRanksEnd(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> shell = {"/bin/sh", "-c",
                                    "\"$@\"; echo rank $OMPI_COMM_WORLD_RANK ended with $?", "sh"};
  shell.insert(shell.end(), command.begin(), command.end());
  return Mpirun(ranks, /*recovery=*/true, shell);
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_MPIRUN_H_
