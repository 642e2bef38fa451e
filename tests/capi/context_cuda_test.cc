#include <string>

#include "base/device_stream.h"
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

}  // namespace
}  // namespace hotrow
