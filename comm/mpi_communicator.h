#ifndef HOTROW_COMM_MPI_COMMUNICATOR_H_
#define HOTROW_COMM_MPI_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace hotrow {

// Whether this build has MPI (HOTROW_MPI).
bool HaveMpi();

// This process's end of a new family between all processes that mpirun started (MPI_COMM_WORLD).
// Collective over them; families do not see each other's messages or failures.
//
// MPI:        any MPI-3 that grants MPI_THREAD_MULTIPLE. Started here by the first call, unless the
//             program has done so, and then ended at exit, unless a family has failed: a process
//             that leaves without MPI_Finalize is what makes mpirun end the others, where
//             MPI_Finalize would wait for the silent one. So leave by exit() or return from main,
//             with a status other than 0. No MPI error handler aborts the process.
// Messages:   MPI_Isend and MPI_Irecv, all of an exchange at once, and a loop of MPI_Testsome that
//             looks at the clock. Channels differ by tag, so Duplicate opens nothing in MPI.
// Waiting:    polls for as long as its bytes explain, then yields the processor at each empty poll,
//             then sleeps 50 us between polls, and so leaves the core to those who compute.
// Failures:   a rank that gives up tells the others which ranks it misses, and listens a little
//             (a quarter of the timeout, a second at most): a rank that says so itself is alive,
//             and no longer a suspect. So all ranks name the same culprit.
// mpirun:     ends all processes by a signal as soon as one dies by a signal, or exits with a
//             status other than 0, or without MPI_Finalize; then its message is seen, which names
//             the rank, and perhaps not ours. With --enable-recovery it leaves them to us.
// The end:    of a family's last channel is collective where nothing has failed (MPI_Comm_free),
//             and so is that of the program (MPI_Finalize). The first has no timeout. Before the
//             second the ranks wait for each other; a process that has waited for the timeout and
//             half of it (2 s more at most) says so and ends with status 1.
//
// Errors: Unimplemented (a build without MPI), FailedPrecondition (an MPI without threads; after
//         MPI_Finalize), InvalidArgument (options), DeadlineExceeded (not every process made a
//         family), Internal (MPI's own errors, in its words).
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(
    const CommunicatorOptions& options);

}  // namespace hotrow

#endif  // HOTROW_COMM_MPI_COMMUNICATOR_H_
