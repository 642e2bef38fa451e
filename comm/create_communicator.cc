#include "comm/create_communicator.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parse_word.h"
#include "base/status_macros.h"
#include "comm/mpi_communicator.h"
#include "comm/thread_communicator.h"

namespace hotrow {

absl::StatusOr<CommKind> ParseCommKind(std::string_view name) {
  constexpr EnumWord<CommKind> kWords[] = {
      {"auto", CommKind::kAuto}, {"single", CommKind::kSingle}, {"mpi", CommKind::kMpi}};
  return ParseWord(kWords, "communicator", name);
}

absl::StatusOr<CommKind> ChooseCommKind(const RankEnvironment& environment) {
  // mpirun -n 1 needs no MPI, and a build without it can serve it.
  if (environment.world_size == 1) return CommKind::kSingle;
  if (environment.launcher == Launcher::kTorchrun) {
    return absl::UnimplementedError(absl::StrCat(
        "WORLD_SIZE=", environment.world_size, ", RANK=", environment.rank,
        ": processes that torchrun starts cannot exchange host data yet; start them with mpirun"));
  }
  return CommKind::kMpi;
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
    CommKind kind, const CommunicatorOptions& options) {
  if (kind == CommKind::kAuto) {
    HOTROW_ASSIGN_OR_RETURN(const RankEnvironment environment, DetectRankEnvironment());
    HOTROW_ASSIGN_OR_RETURN(kind, ChooseCommKind(environment));
  }
  if (kind == CommKind::kMpi) return CreateMpiCommunicator(options);
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Communicator>> ends,
                          CreateThreadCommunicators(1, options));
  return std::move(ends[0]);
}

}  // namespace hotrow
