#include "comm/rank_environment.h"

#include <map>
#include <string>

#include "comm/create_communicator.h"
#include "comm/mpi_communicator.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

absl::StatusOr<RankEnvironment> Detect(const Variables& variables) {
  return DetectRankEnvironment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(RankEnvironmentTest, AProcessByItselfIsRankZeroOfOne) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const RankEnvironment env, Detect({}));
  EXPECT_EQ(env.launcher, Launcher::kNone);
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
}

TEST(RankEnvironmentTest, ReadsWhatEachLauncherSets) {
  const Variables open_mpi = {{"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const Variables mpich = {
      {"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  for (const Variables& variables : {open_mpi, mpich}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const RankEnvironment env, Detect(variables));
    EXPECT_EQ(env.launcher, Launcher::kMpi);
    EXPECT_EQ(env.rank, 3);
    EXPECT_EQ(env.world_size, 4);
    EXPECT_EQ(env.local_rank, 1);
    EXPECT_EQ(env.local_world_size, 2);
  }
  Variables torchrun = {{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_RANK", "1"}};
  HOTROW_ASSERT_OK_AND_ASSIGN(RankEnvironment env, Detect(torchrun));
  EXPECT_EQ(env.launcher, Launcher::kTorchrun);
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 1);  // not said
  // mpirun's own variables come first, with anything else set.
  torchrun.insert(open_mpi.begin(), open_mpi.end());
  HOTROW_ASSERT_OK_AND_ASSIGN(env, Detect(torchrun));
  EXPECT_EQ(env.launcher, Launcher::kMpi);
}

TEST(RankEnvironmentTest, ContradictionsNameTheVariable) {
  const auto expect = [](const Variables& variables, const char* text) {
    EXPECT_THAT(Detect(variables), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect({{"OMPI_COMM_WORLD_SIZE", "4"}}, "OMPI_COMM_WORLD_RANK is not set");
  expect({{"OMPI_COMM_WORLD_SIZE", "four"}}, "OMPI_COMM_WORLD_SIZE=four");
  expect({{"OMPI_COMM_WORLD_SIZE", "0"}}, "OMPI_COMM_WORLD_SIZE=0");
  expect({{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}}, "PMI_RANK=2: must be a number in [0, 1]");
  expect({{"WORLD_SIZE", "2"}, {"RANK", "-1"}}, "RANK=-1");
}

TEST(CreateCommunicatorTest, ChoosesByTheEnvironment) {
  RankEnvironment env;
  EXPECT_EQ(*ChooseCommKind(env), CommKind::kSingle);
  env.launcher = Launcher::kMpi;
  EXPECT_EQ(*ChooseCommKind(env), CommKind::kSingle);  // mpirun -n 1
  env.world_size = 2;
  EXPECT_EQ(*ChooseCommKind(env), CommKind::kMpi);
  env.launcher = Launcher::kTorchrun;
  EXPECT_THAT(ChooseCommKind(env),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("start them with mpirun")));
}

TEST(CreateCommunicatorTest, KindsHaveNames) {
  EXPECT_EQ(*ParseCommKind("auto"), CommKind::kAuto);
  EXPECT_EQ(*ParseCommKind("single"), CommKind::kSingle);
  EXPECT_EQ(*ParseCommKind("mpi"), CommKind::kMpi);
  EXPECT_THAT(ParseCommKind("gloo"), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("expected one of auto, single, mpi")));
}

TEST(CreateCommunicatorTest, ASingleProcessIsAWorldOfOne) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto c, CreateCommunicator(CommKind::kSingle, {}));
  EXPECT_EQ(c->rank(), 0);
  EXPECT_EQ(c->world_size(), 1);
  std::vector<float> data = {1, 2};
  HOTROW_EXPECT_OK(c->AllReduceSum(std::span<float>(data)));
  EXPECT_THAT(data, testing::ElementsAre(1, 2));
  EXPECT_THAT(CreateCommunicator(CommKind::kSingle, {.timeout_seconds = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout_seconds")));
}

TEST(CreateCommunicatorTest, ABuildWithoutMpiSaysSo) {
  if (HaveMpi()) GTEST_SKIP() << "this build has MPI";
  EXPECT_THAT(CreateCommunicator(CommKind::kMpi, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("libopenmpi-dev")));
}

}  // namespace
}  // namespace hotrow::test
