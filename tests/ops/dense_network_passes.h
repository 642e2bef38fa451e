#ifndef HOTROW_TESTS_OPS_DENSE_NETWORK_PASSES_H_
#define HOTROW_TESTS_OPS_DENSE_NETWORK_PASSES_H_

// What the tests of Mlp and of CrossNetwork do alike.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "gtest/gtest.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

// What a pass of training makes of a few numbers, on the caller's thread. Rows lie side by side.
struct SmallPass {
  std::vector<float> y, dx, parameter_gradients;

  std::vector<float> Gradients(int64_t begin, int64_t n) const {
    const auto at = parameter_gradients.begin() + begin;
    return {at, at + n};
  }
};
template <typename Net>
SmallPass RunSmallPass(Net& net, const std::vector<float>& parameters, const std::vector<float>& x,
                       std::vector<float> dy, int64_t batch_size) {
  const std::vector<float> unused(parameters.size(), std::numeric_limits<float>::quiet_NaN());
  SmallPass out = {.y = dy, .dx = x, .parameter_gradients = unused};
  const int64_t x_stride = std::ssize(x) / batch_size;
  const int64_t y_stride = std::ssize(dy) / batch_size;
  HOTROW_EXPECT_OK(net.Forward({}, {.parameters = parameters.data(),
                                    .x = x.data(),
                                    .x_stride = x_stride,
                                    .batch_size = batch_size,
                                    .y = out.y.data(),
                                    .y_stride = y_stride,
                                    .training = true}));
  HOTROW_EXPECT_OK(net.Backward({}, {.parameters = parameters.data(),
                                     .dy = dy.data(),
                                     .dy_stride = y_stride,
                                     .dx = out.dx.data(),
                                     .dx_stride = x_stride,
                                     .parameter_gradients = out.parameter_gradients.data()}));
  return out;
}

// The ranges that Backward has to report: the layers, the last one first.
template <typename Net>
std::vector<std::pair<int64_t, int64_t>> LayerRanges(const Net& net) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t end = net.num_parameters();
  for (int32_t l = net.num_layers(); l-- > 0;) {
    ranges.emplace_back(net.weight_offset(l), end);
    end = net.weight_offset(l);
  }
  return ranges;
}

// A pass that makes `want`, as without reports: each range is final when it is reported, to the
// thread that called. `forward` and `backward` say where inputs lie; outputs go elsewhere.
template <typename Net, typename Result>
void ExpectLayersAreReported(const ExecContext& ctx, Net& net, typename Net::ForwardArgs forward,
                             typename Net::BackwardArgs backward, const Result& want) {
  constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();
  Result got = want;
  std::fill(got.parameter_gradients.begin(), got.parameter_gradients.end(), kNothing);
  std::vector<float> early = got.parameter_gradients;  // each range when it was reported
  std::vector<std::pair<int64_t, int64_t>> reported;
  const std::thread::id caller = std::this_thread::get_id();
  forward.y = got.y.data();
  backward.dx = got.dx.data();
  backward.parameter_gradients = got.parameter_gradients.data();
  backward.gradients_ready = [&](int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    reported.emplace_back(begin, end);
    std::copy(got.parameter_gradients.begin() + begin, got.parameter_gradients.begin() + end,
              early.begin() + begin);
    return absl::OkStatus();
  };
  HOTROW_ASSERT_OK(net.Forward(ctx, forward));
  HOTROW_ASSERT_OK(net.Backward(ctx, backward));
  EXPECT_EQ(reported, LayerRanges(net));
  EXPECT_TRUE(got == want);
  EXPECT_EQ(Bits(early), Bits(want.parameter_gradients));
}

// An error of the report of this number, from 0, is the error of Backward and the last report.
template <typename Net>
void ExpectAFailedReportEndsBackward(const ExecContext& ctx, Net& net,
                                     typename Net::ForwardArgs forward,
                                     typename Net::BackwardArgs backward, int fail_at) {
  std::vector<float> gradients(static_cast<size_t>(net.num_parameters()));
  int reports = 0;
  backward.parameter_gradients = gradients.data();
  backward.gradients_ready = [&](int64_t, int64_t) {
    return reports++ == fail_at ? absl::UnavailableError("rank 3 is gone") : absl::OkStatus();
  };
  HOTROW_ASSERT_OK(net.Forward(ctx, forward));
  EXPECT_THAT(net.Backward(ctx, backward),
              StatusIs(absl::StatusCode::kUnavailable, "rank 3 is gone"));
  EXPECT_EQ(reports, fail_at + 1);
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_DENSE_NETWORK_PASSES_H_
