// Runs under mpirun, the same tests in the same order on every rank; see tests/comm/CMakeLists.txt.

#include "comm/mpi_communicator.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>

#include "base/buffer.h"
#include "comm/create_communicator.h"
#include "comm/rank_environment.h"
#include "tests/comm/communicator_contract.h"
#include "tests/support/case_reporter.h"
#include "tests/support/status_matchers.h"

namespace hotrow::test {
namespace {

std::vector<CommunicatorKind> MpiKinds() {
  const auto environment = DetectRankEnvironment();
  const int world_size = environment.ok() ? environment->world_size : 1;
  return {
      {"Mpi", world_size, [](int n, const CommunicatorOptions& options, const RankMain& rank_main) {
         auto c = CreateMpiCommunicator(options);
         if (!c.ok()) return std::vector<absl::Status>{c.status()};
         if ((*c)->world_size() != n) return std::vector<absl::Status>{Wrong(**c, "not n")};
         return std::vector<absl::Status>{rank_main(**c)};
       }}};
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorContractTest, testing::ValuesIn(MpiKinds()), KindName);

TEST(MpiCommunicatorTest, FamiliesAreIndependent) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto first, CreateMpiCommunicator({}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto second, CreateMpiCommunicator({}));
  if (first->rank() == 0) first->Abort("only this one");
  EXPECT_FALSE(AwaitFailure(*first).ok());
  HOTROW_EXPECT_OK(RandomCalls(*second, 1, 20, 10'000));
  HOTROW_EXPECT_OK(second->status());
}

TEST(MpiCommunicatorTest, ManyChannels) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto first, CreateMpiCommunicator({}));
  std::vector<std::unique_ptr<Communicator>> channels;
  for (int i = 0; i < 100; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(channels.emplace_back(), first->Duplicate());
  }
  // Tags of a channel come round after 256 exchanges.
  for (int i = 0; i < 600; ++i) HOTROW_ASSERT_OK(channels[7]->Barrier());
  for (const auto& channel : channels) HOTROW_ASSERT_OK(RandomCalls(*channel, 3, 2, 1000));
}

TEST(MpiCommunicatorTest, TheFactoryFindsMpirun) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto c, CreateCommunicator(CommKind::kAuto, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RankEnvironment environment, DetectRankEnvironment());
  EXPECT_EQ(c->rank(), environment.rank);
  EXPECT_EQ(c->world_size(), environment.world_size);
  HOTROW_EXPECT_OK(c->Barrier());
}

TEST(MpiCommunicatorTest, BadOptionsAreNamed) {
  EXPECT_THAT(CreateMpiCommunicator({.timeout_seconds = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("timeout_seconds")));
}

// Label slow: 4.3 GiB of memory. One message of more than 2^31 bytes, which is more than MPI
// counts.
TEST(MpiSlowTest, MoreThan31BitsOfBytes) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto c, CreateMpiCommunicator({.timeout_seconds = 120}));
  ASSERT_GE(c->world_size(), 2);
  const int64_t bytes = (int64_t{1} << 31) + 12345;
  const auto n = static_cast<size_t>(c->world_size());
  std::vector<int64_t> send_bytes(n);
  std::vector<int64_t> recv_bytes(n);
  const std::vector<int64_t> offsets(n);
  HostBuffer<uint8_t> data;
  if (c->rank() == 0) send_bytes[1] = bytes;
  if (c->rank() == 1) recv_bytes[0] = bytes;
  const auto value = [](int64_t i) { return static_cast<uint8_t>((i * 31) ^ (i >> 23)); };
  if (c->rank() <= 1) {
    HOTROW_ASSERT_OK_AND_ASSIGN(data, HostBuffer<uint8_t>::Create(bytes));
  }
  if (c->rank() == 0) {
    for (int64_t i = 0; i < bytes; ++i) data[i] = value(i);
  }
  HOTROW_ASSERT_OK(
      c->AllToAllV({data.data(), send_bytes, offsets, data.data(), recv_bytes, offsets}));
  if (c->rank() == 1) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < bytes; ++i) wrong += data[i] != value(i);
    EXPECT_EQ(wrong, 0);
  }
}

// Only rank 0 reports what went well; the others say what did not.
class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_,
                 result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                 result.message());
  }

 private:
  const int rank_;
};

}  // namespace
}  // namespace hotrow::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  hotrow::test::InstallCaseReporter();
  const auto environment = hotrow::DetectRankEnvironment();
  const int rank = environment.ok() ? environment->rank : 0;
  if (rank != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new hotrow::test::FailuresOnly(rank));
  }
  const int result = RUN_ALL_TESTS();
  // After the tests that make families fail, the library would leave without this, so that mpirun
  // ends the job; here all ranks are alive.
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0 && result == 0) MPI_Finalize();
  return result;
}
