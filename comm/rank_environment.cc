#include "comm/rank_environment.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

using GetVariable = absl::FunctionRef<const char*(const char* name)>;

constexpr int kWorldSizeMax = 1 << 20;

absl::StatusOr<int> Number(GetVariable get, const char* name, int min, int max) {
  const char* const text = get(name);
  if (text == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: ", name, " is not set, but others of its launcher are"));
  }
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < min || value > max) {
    return absl::InvalidArgumentError(absl::StrCat("environment: ", name, "=", text,
                                                   ": must be a number in [", min, ", ", max, "]"));
  }
  return value;
}

absl::Status ReadRanks(GetVariable get, const char* size, const char* rank, const char* local_rank,
                       const char* local_size, RankEnvironment& env) {
  HOTROW_ASSIGN_OR_RETURN(env.world_size, Number(get, size, 1, kWorldSizeMax));
  HOTROW_ASSIGN_OR_RETURN(env.rank, Number(get, rank, 0, env.world_size - 1));
  env.local_rank = env.rank;
  if (get(local_rank) != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(env.local_rank, Number(get, local_rank, 0, env.world_size - 1));
  }
  if (get(local_size) != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(env.local_world_size, Number(get, local_size, 1, env.world_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankEnvironment> DetectRankEnvironment() {
  return DetectRankEnvironment([](const char* name) -> const char* { return std::getenv(name); });
}

absl::StatusOr<RankEnvironment> DetectRankEnvironment(GetVariable get) {
  RankEnvironment env;
  if (get("OMPI_COMM_WORLD_SIZE") != nullptr) {
    env.launcher = Launcher::kMpi;
    HOTROW_RETURN_IF_ERROR(ReadRanks(get, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     env));
  } else if (get("PMI_SIZE") != nullptr) {
    env.launcher = Launcher::kMpi;
    HOTROW_RETURN_IF_ERROR(
        ReadRanks(get, "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", env));
  } else if (get("WORLD_SIZE") != nullptr && get("RANK") != nullptr) {
    env.launcher = Launcher::kTorchrun;
    HOTROW_RETURN_IF_ERROR(
        ReadRanks(get, "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", env));
  }
  return env;
}

}  // namespace hotrow
