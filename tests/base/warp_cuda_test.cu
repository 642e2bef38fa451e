#include <array>
#include <cstring>
#include <vector>

#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/macros.h"
#include "base/philox.h"
#include "base/warp.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

struct alignas(64) Problem {
  std::array<uint16_t, 32> tags;
  std::array<uint8_t, 32> bytes;
  uint32_t lanes = 0;
  uint16_t tag = 0;
  uint8_t value = 0;
  uint8_t mask = 0;
};

// Everything that is asked about one problem.
struct Answer {
  uint32_t match = 0;
  uint32_t match_masked = 0;
  uint32_t match_tag = 0;
  WayScore min;
  uint32_t ballot = 0;
  int first_lane = 0;
  int num_lanes = 0;
  int once_runs = 0;
};

#pragma nv_exec_check_disable
template <typename Warp>
HOTROW_HOST_DEVICE Answer AnswerOf(const Problem& p) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&p.bytes);
  Answer answer;
  answer.match = Warp::MatchByte(bytes, p.value);
  answer.match_masked = Warp::MatchByte(bytes, static_cast<uint8_t>(p.value & p.mask), p.mask);
  answer.match_tag = Warp::MatchTag(reinterpret_cast<const uint16_t*>(&p.tags), p.tag);
  answer.min = Warp::MinByte(bytes, p.lanes);
  answer.ballot = Warp::Ballot(p.lanes, [bytes, &p](int lane) { return bytes[lane] > p.value; });
  answer.first_lane = Warp::FirstLane(p.lanes);
  answer.num_lanes = Warp::CountLanes(p.lanes);
  Warp::Once([&answer] { ++answer.once_runs; });
  return answer;
}

template <typename Thread>
__global__ void AnswerKernel(const Problem* problems, int64_t num_problems, Answer* answers) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < num_problems) answers[i] = AnswerOf<Thread>(problems[i]);
}

// Few distinct bytes in half of the problems, so that matches and ties are common; no lane, all
// lanes and only bytes of 255 on purpose.
std::vector<Problem> RandomProblems(uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<Problem> problems(1001);
  for (size_t i = 0; i < problems.size(); ++i) {
    Problem& p = problems[i];
    const uint64_t range = random.Below(2) == 0 ? 3 : 256;
    const uint64_t base = random.Below(257 - range);
    for (uint8_t& b : p.bytes) b = static_cast<uint8_t>(base + random.Below(range));
    for (uint16_t& t : p.tags) {
      t = static_cast<uint16_t>(base + random.Below(range) + 256 * random.Below(3));
    }
    p.tag = random.Below(2) == 0 ? p.tags[random.Below(32)] : static_cast<uint16_t>(base);
    p.mask = static_cast<uint8_t>(random.Below(256));
    if (i % 10 == 0) p.bytes.fill(255);
    p.value =
        random.Below(2) == 0 ? p.bytes[random.Below(32)] : static_cast<uint8_t>(random.Below(256));
    p.lanes = random.Next32();
    if (i % 7 == 0) p.lanes = 0;
    if (i % 7 == 1) p.lanes = ~0u;
  }
  return problems;
}

template <typename Thread>
absl::StatusOr<std::vector<Answer>> RunOnGpu(const std::vector<Problem>& problems) {
  const auto n = static_cast<int64_t>(problems.size());
  HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
  HOTROW_ASSIGN_OR_RETURN(auto input, DeviceBuffer<Problem>::Create(n, stream.get()));
  HOTROW_ASSIGN_OR_RETURN(auto output, DeviceBuffer<Answer>::Create(n, stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(input.data(), problems.data(),
                                              static_cast<size_t>(input.bytes()),
                                              cudaMemcpyHostToDevice, stream.get()));
  AnswerKernel<Thread><<<static_cast<unsigned>((n + 63) / 64), 64, 0, stream.get()>>>(
      input.data(), n, output.data());
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  std::vector<Answer> answers(problems.size());
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(answers.data(), output.data(),
                                              static_cast<size_t>(output.bytes()),
                                              cudaMemcpyDeviceToHost, stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream.get()));
  return answers;
}

template <typename Thread>
void ExpectAnswersOfHostWarp() {
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    const std::vector<Problem> problems = RandomProblems(seed);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<Answer> answers, RunOnGpu<Thread>(problems));
    ASSERT_EQ(answers.size(), problems.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "problem " << i);
      const Answer want = AnswerOf<HostWarp>(problems[i]);
      const Answer& got = answers[i];
      ASSERT_EQ(got.match, want.match);
      ASSERT_EQ(got.match_masked, want.match_masked);
      ASSERT_EQ(got.match_tag, want.match_tag);
      ASSERT_EQ(got.min.way, want.min.way);
      ASSERT_EQ(got.min.score, want.min.score);
      ASSERT_EQ(got.ballot, want.ballot);
      ASSERT_EQ(got.first_lane, want.first_lane);
      ASSERT_EQ(got.num_lanes, want.num_lanes);
      ASSERT_EQ(got.once_runs, 1);
    }
  }
}

TEST(CudaThreadTest, AnswersAsHostWarp) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectAnswersOfHostWarp<CudaThread>();
}

TEST(CudaThreadTest, AnswersAlikeThroughRelaxedLoadsAndThoseOfLines) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectAnswersOfHostWarp<RacingCudaThread>();
  ExpectAnswersOfHostWarp<BasicCudaThread<LineLoads>>();
}

}  // namespace
}  // namespace hotrow
