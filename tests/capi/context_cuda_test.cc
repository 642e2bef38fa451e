#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/host_registration.h"
#include "capi/batch_copy_impl.h"
#include "hotrow/hotrow.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Contexts of a GPU: those of the emulated one, of which the test has two.
namespace hotrow {
namespace {

using ::testing::HasSubstr;

struct Made {
  hotrow_status status = HOTROW_OK;
  std::string message;
};
Made Make(void* stream, int32_t device_index) {
  hotrow_context_options options;
  hotrow_context_options_default(&options, sizeof(options));
  options.device = "cuda";
  options.cuda_stream = stream;
  options.device_index = device_index;
  hotrow_context* context = nullptr;
  Made made = {.status = hotrow_context_create(&options, &context)};
  if (made.status != HOTROW_OK) made.message = hotrow_error_message();
  hotrow_context_destroy(context);
  return made;
}

TEST(CapiContextTest, AStreamIsOfTheDeviceThatIsNamed) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const int devices, NumDevices(Device::kCuda));
  for (int device = 0; device < devices; ++device) {
    HOTROW_ASSERT_OK(UseDevice({.device = Device::kCuda, .device_index = device}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeviceStream stream, DeviceStream::Create(Device::kCuda));
    EXPECT_EQ(Make(stream.get(), device).message, "");
    if (devices == 1) continue;
    const Made other = Make(stream.get(), (device + 1) % devices);
    EXPECT_EQ(other.status, HOTROW_INVALID_ARGUMENT);
    EXPECT_THAT(other.message, HasSubstr("options.cuda_stream: is of device " +
                                         std::to_string(device) + ", and options.device_index is"));
  }
  HOTROW_ASSERT_OK(UseDevice({.device = Device::kCuda, .device_index = 0}));
  EXPECT_EQ(Make(nullptr, devices - 1).message, "");  // its own stream
}

// Arrays of a batch on a GPU, and the stream of the caller that wrote them.
class BatchCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    HOTROW_REQUIRE_GPU_OR_SKIP();
    HOTROW_ASSERT_OK(UseDevice(ctx_));
    HOTROW_ASSERT_OK_AND_ASSIGN(stream_, DeviceStream::Create(Device::kCuda));
    ctx_ = stream_.On(ctx_);
  }
  template <typename T>
  std::span<const T> Put(const std::vector<T>& numbers) {
    const int64_t bytes = std::ssize(numbers) * static_cast<int64_t>(sizeof(T));
    auto memory = DeviceBuffer<std::byte>::Create(bytes, stream_.get());
    HOTROW_EXPECT_OK(memory);
    HOTROW_EXPECT_OK(stream_.Copy(memory->data(), numbers.data(), bytes));
    arrays_.push_back(*std::move(memory));
    return {reinterpret_cast<const T*>(arrays_.back().data()), numbers.size()};
  }

  ExecContext ctx_ = {.device = Device::kCuda};
  DeviceStream stream_;
  std::vector<DeviceBuffer<std::byte>> arrays_;
  const std::vector<std::string> names_ = {"item", "word"};
};

TEST_F(BatchCopyTest, HasTheBatchWithIdsEndToEnd) {
  const std::vector<int64_t> items = {7, 8, 9}, words = {1, 2, 3, 4, 5};
  const std::vector<int32_t> lengths = {2, 0, 3};
  const std::vector<int64_t> offsets = {0, 1, 2, 3};
  const std::vector<float> weights = {1, 2, 3};
  capi::BatchView view = {.on_device = true};
  view.all.batch_size = 3;
  view.bags = {{.values = Put(items), .offsets = std::span(offsets), .weights = Put(weights)},
               {.values = Put(words), .lengths = Put(lengths)}};
  capi::BatchCopies copies;
  const capi::BatchCopy* first = nullptr;
  for (int again = 0; again < 2; ++again) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto copy, copies.Begin(ctx_, view, names_));
    HOTROW_ASSERT_OK(copy->Wait());
    const auto same = [](const auto& got, const auto& want) {
      EXPECT_TRUE(std::ranges::equal(got, want));
      EXPECT_TRUE(IsPageLocked(Device::kCuda, got.data(), static_cast<int64_t>(got.size_bytes())));
    };
    const std::vector<FeatureBags>& bags = copy->view().bags;
    const auto ids = [&](size_t f) { return std::get<std::span<const int64_t>>(bags[f].values); };
    same(ids(0), items);
    same(ids(1), words);
    EXPECT_EQ(ids(0).data() + 3, ids(1).data());
    same(std::get<std::span<const int64_t>>(bags[0].offsets), offsets);
    same(std::get<std::span<const int32_t>>(bags[1].lengths), lengths);
    same(bags[0].weights, weights);
    if (again == 0) first = copy.get();
    EXPECT_EQ(copy.get(), first);  // its memory is used again
    // In the order of the stream they may be overwritten: the copy before was taken.
    HOTROW_ASSERT_OK(stream_.Copy(arrays_[0].data(), weights.data(), 8));
    HOTROW_ASSERT_OK(stream_.Copy(arrays_[0].data(), items.data(), 8));
  }
  HOTROW_ASSERT_OK(stream_.Wait());
}

TEST_F(BatchCopyTest, MemoryOfAnotherGpuAndOfTheHostIsNamed) {
  const std::vector<int64_t> items = {7, 8, 9};
  const std::span<const int64_t> there = Put(items);
  EXPECT_THAT(CheckReached(ctx_, items.data(), "pooled.data"),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("pooled.data: is memory of the host")));
  HOTROW_EXPECT_OK(CheckReached(ctx_, there.data(), "pooled.data"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const int devices, NumDevices(Device::kCuda));
  if (devices == 1) GTEST_SKIP() << "needs two devices";
  ExecContext other = {.device = Device::kCuda, .device_index = 1};
  HOTROW_ASSERT_OK(UseDevice(other));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeviceStream stream, DeviceStream::Create(Device::kCuda));
  other = stream.On(other);
  capi::BatchView view = {.on_device = true};
  view.bags = {{.values = there}, {.values = there}};
  capi::BatchCopies copies;
  EXPECT_THAT(copies.Begin(other, view, names_).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("feature \"item\": values: is memory of GPU 0, and the "
                                       "tables are on GPU 1")));
  EXPECT_THAT(CheckReached(other, there.data(), "x"),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x: is memory of GPU")));
  HOTROW_ASSERT_OK(UseDevice(ctx_));
}

}  // namespace
}  // namespace hotrow
