#ifndef HOTROW_COMM_MPI_COMMUNICATOR_H_
#define HOTROW_COMM_MPI_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace hotrow {

// Whether this build has MPI (HOTROW_MPI).
bool HaveMpi();

// Makes a family between all processes that mpirun started (MPI_COMM_WORLD) and returns this
// process's end. Collective. Families do not see each other's messages or failures.
//
// MPI:        any MPI-3 with MPI_THREAD_MULTIPLE. The first call initialises MPI, unless the
//             program has; MPI is then finalized at exit, unless a family has failed. MPI_Finalize
//             would wait for a silent rank, but a process that leaves without it makes mpirun end
//             the others. So after a failure leave by exit() or return from main with a status
//             other than 0. No MPI error handler aborts the process.
// Messages:   MPI_Isend and MPI_Irecv, all of an exchange at once, and a loop of MPI_Testsome that
//             looks at the clock. Channels differ by tag, so Duplicate opens nothing in MPI.
// Waiting:    polls for as long as its bytes may take, then yields the processor at each empty
//             poll, then sleeps 50 us between polls and leaves the core to other threads.
// Failures:   a rank that gives up tells the others which ranks it misses, and listens for a
//             quarter of the timeout, at most a second: a rank that reports missing ranks itself is
//             alive and no suspect. So all ranks name the same culprit.
// mpirun:     kills all processes as soon as one dies by a signal, exits with a status other than
// 0,
//             or exits without MPI_Finalize. Its message then names the rank; ours may not appear.
//             With --enable-recovery it leaves them running.
// The end:    of a family's last channel is collective if nothing has failed (MPI_Comm_free), and
//             so is that of the program (MPI_Finalize). The first has no timeout. Before the second
//             the ranks wait for each other, for the timeout and half of it (at most 2 s more); a
//             process that has waited so long says so and exits with status 1.
//
// Errors: Unimplemented (a build without MPI), FailedPrecondition (an MPI without threads; after
//         MPI_Finalize), InvalidArgument (options), DeadlineExceeded (not every process made a
//         family), Internal (MPI's errors, in its words).
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(
    const CommunicatorOptions& options);

}  // namespace hotrow

#endif  // HOTROW_COMM_MPI_COMMUNICATOR_H_
