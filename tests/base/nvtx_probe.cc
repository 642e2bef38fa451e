// A profiler as NVTX sees one: what NVTX_INJECTION64_PATH names. It keeps the calls that it gets as
// lines of text, which tests/base/nvtx_test.cc reads by NvtxProbeLines.

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

struct Probe {
  std::mutex mutex;  // guards all below
  std::map<std::thread::id, int> threads;
  std::string lines;  // "1 push hotrow unique\n": the number of the thread, the call, its domain
};

Probe& TheProbe() {
  static Probe* const probe = new Probe();  // outlives the threads
  return *probe;
}

// A domain's handle is its name, kept for good.
const char* DomainName(nvtxDomainHandle_t domain) {
  return domain == nullptr ? "-" : reinterpret_cast<const char*>(domain);
}

void AddLine(const std::string& line) {
  Probe& probe = TheProbe();
  const std::lock_guard<std::mutex> lock(probe.mutex);
  const int next = static_cast<int>(probe.threads.size()) + 1;
  const int thread = probe.threads.try_emplace(std::this_thread::get_id(), next).first->second;
  probe.lines += std::to_string(thread) + " " + line + "\n";
}

nvtxDomainHandle_t NVTX_API CreateDomain(const char* name) {
  AddLine(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(::strdup(name));
}

int NVTX_API Push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  const bool is_ascii = attributes->messageType == NVTX_MESSAGE_TYPE_ASCII;
  AddLine(std::string("push ") + DomainName(domain) + " " +
          (is_ascii ? attributes->message.ascii : "?"));
  return 0;
}

int NVTX_API Pop(nvtxDomainHandle_t domain) {
  AddLine(std::string("pop ") + DomainName(domain));
  return 0;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&CreateDomain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&Push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&Pop);
  return 1;
}

// The calls since the last one of these, up to size - 1 bytes of text.
__attribute__((visibility("default"))) void NvtxProbeLines(char* text, size_t size) {
  Probe& probe = TheProbe();
  const std::lock_guard<std::mutex> lock(probe.mutex);
  const size_t length = std::min(size - 1, probe.lines.size());
  std::copy_n(probe.lines.data(), length, text);
  text[length] = '\0';
  probe.lines.clear();
}

}  // extern "C"
