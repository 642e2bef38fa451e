// The ranges of base/trace.h. NVTX's functions look for a profiler when the first of them is
// called, and from then on do nothing where there is none.

#include <nvtx3/nvToolsExt.h>

#include "base/trace.h"

namespace hotrow::internal {
namespace {

// Null without a profiler. Made once, so a thread's ranges all begin and end alike.
nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("hotrow");
  return domain;
}

}  // namespace

void BeginNvtxRange(const char* name) {
  const nvtxDomainHandle_t domain = Domain();
  if (domain == nullptr) return;
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain, &attributes);
}

void EndNvtxRange() {
  const nvtxDomainHandle_t domain = Domain();
  if (domain != nullptr) nvtxDomainRangePop(domain);
}

}  // namespace hotrow::internal
