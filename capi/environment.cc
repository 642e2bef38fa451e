#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "capi/call_impl.h"

#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_device.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#endif

namespace hotrow::capi {
namespace {

using Json = nlohmann::ordered_json;

#if HOTROW_HAVE_CUDA
// "13.0" of 13000; "" of 0: there is none.
std::string VersionText(int number) {
  return number == 0 ? "" : absl::StrCat(number / 1000, ".", number % 1000 / 10);
}

// Makes no context on any device.
absl::Status FindDevices(Json* out) {
  int count = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties = {};
    HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
    out->push_back({{"name", properties.name},
                    {"capability", absl::StrCat(properties.major, ".", properties.minor)},
                    {"memory_bytes", properties.totalGlobalMem}});
  }
  return absl::OkStatus();
}

Json Cuda() {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  Json devices = Json::array();
  const absl::Status found = FindDevices(&devices);
  return {{"architectures", HOTROW_CUDA_ARCHITECTURES},
          {"runtime", VersionText(runtime)},
          {"driver", VersionText(driver)},
          {"devices", std::move(devices)},
          {"problem", std::string(found.message())}};
}
#else
Json Cuda() { return nullptr; }
#endif

}  // namespace
}  // namespace hotrow::capi

extern "C" {

hotrow_status hotrow_environment(char* text, uint64_t size, uint64_t* needed) {
  return hotrow::capi::Call([&]() -> absl::Status {
    const hotrow::capi::Json found = {
        {"version", hotrow::Version()}, {"commit", HOTROW_COMMIT}, {"cuda", hotrow::capi::Cuda()}};
    return hotrow::capi::GiveText(
        found.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace), text,
        size, needed);
  });
}

}  // extern "C"
