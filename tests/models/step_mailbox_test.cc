#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/device_stream.h"
#include "base/shared_allocator.h"
#include "gtest/gtest.h"
#include "models/train/step_mailbox_impl.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using Floats = std::vector<float>;

class StepMailboxTest : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() == Device::kCuda) HOTROW_REQUIRE_GPU_OR_SKIP();
    HOTROW_ASSERT_OK_AND_ASSIGN(stream_, DeviceStream::Create(GetParam()));
    ctx_ = stream_.On(ExecContext());
    HOTROW_ASSERT_OK_AND_ASSIGN(
        mail_, StepMailbox::Create(
                   ctx_, {.dense_max = 6, .labels_max = 3, .offsets_max = 4, .num_numbers = 2}));
  }

  // What a step's kernels would write.
  void Write(double loss, double norm) {
    const double numbers[2] = {loss, norm};
    HOTROW_ASSERT_OK(EnqueueCopy(ctx_, mail_->numbers(), numbers, sizeof(numbers)));
  }
  Floats There(const float* data, size_t size) {
    Floats out(size);
    HOTROW_EXPECT_OK(EnqueueCopy(ctx_, out.data(), data, static_cast<int64_t>(4 * size)));
    HOTROW_EXPECT_OK(WaitForStream(ctx_));
    return out;
  }
  // A batch that copies to the device read where it lies, until nobody keeps it.
  struct Lent {
    SharedVector<float> dense;
    SharedVector<float> labels;
  };
  std::shared_ptr<Lent> Lend(const Floats& dense, const Floats& labels) {
    const SharedAllocator<float> memory(GetParam());
    ++lent_;
    return {new Lent{{dense.begin(), dense.end(), memory}, {labels.begin(), labels.end(), memory}},
            [this](Lent* lent) {
              std::fill(lent->dense.begin(), lent->dense.end(), -1.0f);
              delete lent;
              --lent_;
            }};
  }
  void Upload(const Floats& dense, const Floats& labels) {
    const auto lent = Lend(dense, labels);
    HOTROW_ASSERT_OK(mail_->Keep(lent));
    HOTROW_ASSERT_OK(mail_->UploadDense(lent->dense));
    HOTROW_ASSERT_OK(mail_->UploadLabels(lent->labels));
  }
  void Step(float i) {
    Upload({i, i + 1, i + 2}, {-i});
    Write(i, 10 * i);
    HOTROW_ASSERT_OK(mail_->Post());
  }
  void ExpectRead(float i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::span<const double> numbers, mail_->Read());
    EXPECT_EQ(std::vector<double>(numbers.begin(), numbers.end()),
              (std::vector<double>{i, 10 * i}));
  }

  int lent_ = 0;  // batches that somebody keeps
  DeviceStream stream_;
  ExecContext ctx_;
  std::unique_ptr<StepMailbox> mail_;
};

TEST_P(StepMailboxTest, StepsAreReadInOrderAndWhatTheyHadUploadedGoes) {
  float next = 1;
  for (int64_t keep = 0; keep < StepMailbox::kUnreadMax; ++keep) {
    for (float i = 1; i <= 20; ++i) {
      Step(20 * static_cast<float>(keep) + i);
      while (mail_->num_unread() > keep) ExpectRead(next++);
      EXPECT_EQ(lent_, mail_->num_unread());
    }
  }
  while (mail_->num_unread() > 0) ExpectRead(next++);
  EXPECT_EQ(next, 61);
}

TEST_P(StepMailboxTest, UploadsAreThereUntilTheNext) {
  for (float i = 0; i < 5; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const float* const dense, mail_->UploadDense(Floats(6, i)));
    HOTROW_ASSERT_OK_AND_ASSIGN(const float* const labels, mail_->UploadLabels(Floats(2, -i)));
    EXPECT_EQ(There(dense, 6), Floats(6, i));
    EXPECT_EQ(There(labels, 2), Floats(2, -i));
    const std::vector<int64_t> offsets = {0, int64_t{1} << 40, static_cast<int64_t>(i)};
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t* const sent, mail_->UploadOffsets(offsets));
    std::vector<int64_t> there(3);
    HOTROW_ASSERT_OK(EnqueueCopy(ctx_, there.data(), sent, 24));
    HOTROW_ASSERT_OK(WaitForStream(ctx_));
    EXPECT_EQ(there, offsets);
    const auto number = static_cast<uint32_t>(i) + 4'000'000'000u;
    HOTROW_ASSERT_OK_AND_ASSIGN(const uint32_t* const step, mail_->UploadStep(number));
    uint32_t step_there = 0;
    HOTROW_ASSERT_OK(EnqueueCopy(ctx_, &step_there, step, 4));
    HOTROW_ASSERT_OK(WaitForStream(ctx_));
    EXPECT_EQ(step_there, number);
    EXPECT_EQ(mail_->num_unread(), 0);
  }
  HOTROW_ASSERT_OK(mail_->UploadDense({}));
}

TEST_P(StepMailboxTest, AStepWithoutAPostLeavesNothingBehind) {
  Step(1);
  Upload({8, 8, 8, 8}, {8, 8});
  Write(8, 8);
  Step(2);
  EXPECT_EQ(lent_, 2);
  ExpectRead(1);
  ExpectRead(2);
  EXPECT_EQ(mail_->num_unread(), 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, StepMailboxTest, testing::Values(Device::kCpu, Device::kCuda),
                         [](const auto& info) {
                           return info.param == Device::kCpu ? "Cpu" : "Cuda";
                         });

TEST(StepMailboxDeathTest, MoreUnreadStepsThanItHolds) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto mail, StepMailbox::Create({}, {.num_numbers = 1}));
  for (int64_t i = 0; i < StepMailbox::kUnreadMax; ++i) HOTROW_ASSERT_OK(mail->Post());
  EXPECT_DEATH((void)mail->Post(), "num_unread");
}

}  // namespace
}  // namespace hotrow
