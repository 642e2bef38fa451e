#include <array>
#include <cstring>
#include <vector>

#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/philox.h"
#include "base/warp.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

constexpr int kWarpsPerBlock = 4;

struct alignas(32) Problem {
  std::array<uint8_t, 32> bytes;
  uint32_t lanes = 0;
  uint8_t value = 0;
};

// Everything that one warp answers about one problem.
struct Answer {
  uint32_t match = 0;
  WayScore min;
  uint32_t ballot = 0;
  int first_lane = 0;
  int num_lanes = 0;
  int once_runs = 0;
};

// `lane_answers` gets what each lane saw: [warps * 32].
__global__ void AnswerKernel(const Problem* problems, int64_t num_problems, Answer* lane_answers,
                             int* once_runs) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
  if (w >= num_problems) return;  // warp-uniform: all lanes of a warp share w
  const Problem& p = problems[w];
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(&p.bytes);
  Answer answer;
  answer.match = CudaWarp::MatchByte(bytes, p.value);
  answer.min = CudaWarp::MinByte(bytes, p.lanes);
  answer.ballot =
      CudaWarp::Ballot(p.lanes, [bytes, &p](int lane) { return bytes[lane] > p.value; });
  answer.first_lane = CudaWarp::FirstLane(p.lanes);
  answer.num_lanes = CudaWarp::CountLanes(p.lanes);
  CudaWarp::Once([once_runs, w] { ++once_runs[w]; });
  answer.once_runs = once_runs[w];
  lane_answers[w * CudaWarp::kLanes + CudaWarp::Lane()] = answer;
}

// The same with one thread a problem.
__global__ void AnswerByThreadKernel(const Problem* problems, int64_t num_problems,
                                     Answer* answers) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= num_problems) return;
  const Problem& p = problems[i];
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(&p.bytes);
  Answer answer;
  answer.match = CudaThread::MatchByte(bytes, p.value);
  answer.min = CudaThread::MinByte(bytes, p.lanes);
  answer.ballot =
      CudaThread::Ballot(p.lanes, [bytes, &p](int lane) { return bytes[lane] > p.value; });
  answer.first_lane = CudaThread::FirstLane(p.lanes);
  answer.num_lanes = CudaThread::CountLanes(p.lanes);
  CudaThread::Once([&answer] { ++answer.once_runs; });
  answers[i] = answer;
}

Answer HostAnswer(const Problem& p) {
  Answer answer;
  answer.match = HostWarp::MatchByte(p.bytes.data(), p.value);
  answer.min = HostWarp::MinByte(p.bytes.data(), p.lanes);
  answer.ballot = HostWarp::Ballot(
      p.lanes, [&p](int lane) { return p.bytes[static_cast<size_t>(lane)] > p.value; });
  answer.first_lane = HostWarp::FirstLane(p.lanes);
  answer.num_lanes = HostWarp::CountLanes(p.lanes);
  HostWarp::Once([&answer] { ++answer.once_runs; });
  return answer;
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
    if (i % 10 == 0) p.bytes.fill(255);
    p.value =
        random.Below(2) == 0 ? p.bytes[random.Below(32)] : static_cast<uint8_t>(random.Below(256));
    p.lanes = random.Next32();
    if (i % 7 == 0) p.lanes = 0;
    if (i % 7 == 1) p.lanes = ~0u;
  }
  return problems;
}

// One answer a lane, or one a problem.
absl::StatusOr<std::vector<Answer>> RunOnGpu(const std::vector<Problem>& problems, bool by_thread) {
  const int64_t answers_each = by_thread ? 1 : 32;
  const auto n = static_cast<int64_t>(problems.size());
  HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
  HOTROW_ASSIGN_OR_RETURN(auto input, DeviceBuffer<Problem>::Create(n, stream.get()));
  HOTROW_ASSIGN_OR_RETURN(auto output,
                          DeviceBuffer<Answer>::Create(answers_each * n, stream.get()));
  HOTROW_ASSIGN_OR_RETURN(auto once_runs, DeviceBuffer<int>::Create(n, stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(input.data(), problems.data(),
                                              static_cast<size_t>(input.bytes()),
                                              cudaMemcpyHostToDevice, stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(once_runs.data(), 0, static_cast<size_t>(once_runs.bytes()), stream.get()));
  const auto blocks = static_cast<unsigned>((n + kWarpsPerBlock - 1) / kWarpsPerBlock);
  if (by_thread) {
    AnswerByThreadKernel<<<static_cast<unsigned>((n + 63) / 64), 64, 0, stream.get()>>>(
        input.data(), n, output.data());
  } else {
    AnswerKernel<<<blocks, 32 * kWarpsPerBlock, 0, stream.get()>>>(input.data(), n, output.data(),
                                                                   once_runs.data());
  }
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  std::vector<Answer> answers(static_cast<size_t>(answers_each * n));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(answers.data(), output.data(),
                                              static_cast<size_t>(output.bytes()),
                                              cudaMemcpyDeviceToHost, stream.get()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream.get()));
  return answers;
}

void ExpectAnswersOfHostWarp(bool by_thread) {
  const size_t answers_each = by_thread ? 1 : 32;
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    const std::vector<Problem> problems = RandomProblems(seed);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<Answer> answers, RunOnGpu(problems, by_thread));
    ASSERT_EQ(answers.size(), answers_each * problems.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(testing::Message()
                   << "problem " << i / answers_each << ", lane " << i % answers_each);
      const Answer want = HostAnswer(problems[i / answers_each]);
      const Answer& got = answers[i];
      ASSERT_EQ(got.match, want.match);
      ASSERT_EQ(got.min.way, want.min.way);
      ASSERT_EQ(got.min.score, want.min.score);
      ASSERT_EQ(got.ballot, want.ballot);
      ASSERT_EQ(got.first_lane, want.first_lane);
      ASSERT_EQ(got.num_lanes, want.num_lanes);
      ASSERT_EQ(got.once_runs, 1);
    }
  }
}

TEST(CudaWarpTest, EveryLaneAnswersAsHostWarp) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectAnswersOfHostWarp(/*by_thread=*/false);
}

TEST(CudaWarpTest, AThreadAnswersAsHostWarp) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectAnswersOfHostWarp(/*by_thread=*/true);
}

}  // namespace
}  // namespace hotrow
