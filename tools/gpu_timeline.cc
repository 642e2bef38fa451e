// What a process does with its GPU, in time: kernels, copies, fills, the calls that asked for them,
// and the stages of base/trace.h, all on the clock of CUPTI. The driver loads this library:
//
//   CUDA_INJECTION64_PATH=libgpu_timeline.so GPU_TIMELINE=FILE PROGRAM ...
//   NVTX_INJECTION64_PATH=libgpu_timeline.so    as well, for the stages
//
// At the end FILE is a trace in Chrome's format (ui.perfetto.dev opens it), and standard error has
// a table: for each name the time in all, how many, the median and the longest.
// GPU_TIMELINE_SKIP_MS and GPU_TIMELINE_MS name a window, counted from the first record; by default
// it is all. A bundle's ./run sets the paths where GPU_TIMELINE is set.

#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

enum Row { kDevice, kCalls, kStages };  // of the timeline; a row has a track a stream or thread
constexpr const char* kRows[] = {"GPU, by stream", "CUDA calls, by thread", "stages, by thread"};

struct Event {
  uint64_t begin;  // ns
  uint64_t end;
  Row row;
  uint32_t track;
  uint64_t bytes;
  std::string name;
};

// CUPTI calls back from its own threads, also while the process exits: never destroyed.
struct Timeline {
  std::mutex mutex;
  std::vector<Event> events;
  std::map<uint32_t, size_t> open;  // marker -> its event
};
Timeline& TheTimeline() {
  static auto* const timeline = new Timeline();
  return *timeline;
}

// A kernel's name without what it is called with: namespaces and arguments of templates stay.
std::string KernelName(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? text.get() : mangled;
  for (const std::string_view noise :
       {"(anonymous namespace)::", "<unnamed>::", "hotrow::internal::", "void "}) {
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  }
  return name.substr(0, std::min(name.find('('), size_t{100}));
}

std::string CopyName(const CUpti_ActivityMemcpy6& copy) {
  const auto end_of = [](uint8_t kind) {
    return kind == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE     ? "device"
           : kind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE ? "pageable memory"
                                                         : "host";
  };
  return std::string("copy, ") + end_of(copy.srcKind) + " to " + end_of(copy.dstKind);
}

void Keep(Timeline& timeline, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      timeline.events.push_back(
          {kernel->start, kernel->end, kDevice, kernel->streamId, 0, KernelName(kernel->name)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      timeline.events.push_back(
          {copy->start, copy->end, kDevice, copy->streamId, copy->bytes, CopyName(*copy)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      timeline.events.push_back(
          {fill->start, fill->end, kDevice, fill->streamId, fill->bytes, "memset"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME: {
      const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(record);
      const char* name = nullptr;
      cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, call->cbid, &name);
      timeline.events.push_back(
          {call->start, call->end, kCalls, call->threadId, 0, name == nullptr ? "?" : name});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MARKER: {
      const auto* marker = reinterpret_cast<const CUpti_ActivityMarker2*>(record);
      if ((marker->flags & CUPTI_ACTIVITY_FLAG_MARKER_START) != 0) {
        timeline.open[marker->id] = timeline.events.size();
        timeline.events.push_back({marker->timestamp, marker->timestamp, kStages,
                                   marker->objectId.pt.threadId, 0,
                                   marker->name == nullptr ? "?" : marker->name});
      } else if (const auto begun = timeline.open.extract(marker->id); !begun.empty()) {
        timeline.events[begun.mapped()].end = marker->timestamp;
      }
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *records = 0;
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Timeline& timeline = TheTimeline();
  const std::lock_guard<std::mutex> lock(timeline.mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
    Keep(timeline, record);
  std::free(buffer);
}

uint64_t NanosecondsFrom(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10) * 1'000'000;
}

void WriteTrace(std::FILE* file, const std::vector<Event>& events, uint64_t first) {
  std::fprintf(file, "[");
  for (int row = kDevice; row <= kStages; ++row) {
    std::fprintf(file,
                 "%s{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
                 row == 0 ? "\n" : ",\n", row, kRows[row]);
  }
  for (const Event& event : events) {
    std::fprintf(file,
                 ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"",
                 event.row, event.track, static_cast<double>(event.begin - first) / 1e3,
                 static_cast<double>(event.end - event.begin) / 1e3);
    for (const char c : event.name) {
      if (c == '"' || c == '\\') std::fputc('\\', file);
      std::fputc(c, file);
    }
    std::fprintf(file, "\",\"args\":{\"bytes\":%llu}}",
                 static_cast<unsigned long long>(event.bytes));
  }
  std::fprintf(file, "\n]\n");
}

void PrintSums(const std::vector<Event>& events) {
  std::map<std::pair<Row, std::string>, std::vector<uint64_t>> durations;
  for (const Event& event : events)
    durations[{event.row, event.name}].push_back(event.end - event.begin);
  std::vector<std::pair<uint64_t, std::string>> lines;
  for (auto& [name, of_name] : durations) {
    std::sort(of_name.begin(), of_name.end());
    uint64_t sum = 0;
    for (const uint64_t duration : of_name) sum += duration;
    char line[256];
    std::snprintf(line, sizeof line, "%-5s %10.3f ms %7zu x %10.1f us %10.1f us  %s",
                  name.first == kDevice  ? "GPU"
                  : name.first == kCalls ? "call"
                                         : "stage",
                  static_cast<double>(sum) / 1e6, of_name.size(),
                  static_cast<double>(of_name[of_name.size() / 2]) / 1e3,
                  static_cast<double>(of_name.back()) / 1e3, name.second.c_str());
    lines.emplace_back(sum, line);
  }
  std::sort(lines.rbegin(), lines.rend());
  std::fprintf(stderr, "gpu_timeline: in all, how many, median, longest\n");
  for (const auto& line : lines) std::fprintf(stderr, "%s\n", line.second.c_str());
}

void Finish() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  Timeline& timeline = TheTimeline();
  const std::lock_guard<std::mutex> lock(timeline.mutex);
  std::vector<Event>& events = timeline.events;
  std::erase_if(events,
                [](const Event& event) { return event.begin == 0; });  // what CUPTI could not time
  if (events.empty()) return;
  const auto earlier = [](const Event& a, const Event& b) { return a.begin < b.begin; };
  const uint64_t first = std::min_element(events.begin(), events.end(), earlier)->begin;
  const uint64_t from = first + NanosecondsFrom("GPU_TIMELINE_SKIP_MS", 0);
  const uint64_t length = NanosecondsFrom("GPU_TIMELINE_MS", UINT64_MAX - from);
  std::erase_if(events, [=](const Event& event) {
    return event.begin < from || event.begin - from >= length;
  });
  if (const char* const path = std::getenv("GPU_TIMELINE"); path != nullptr && *path != '\0') {
    std::FILE* const file = std::fopen(path, "w");
    if (file == nullptr) {
      std::fprintf(stderr, "gpu_timeline: GPU_TIMELINE=%s: cannot be written\n", path);
    } else {
      WriteTrace(file, events, first);
      std::fclose(file);
    }
  }
  PrintSums(events);
}

}  // namespace

// The driver's and NVTX's names for where they begin.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  cuptiActivityRegisterCallbacks(&GiveBuffer, &TakeBuffer);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_MARKER}) {
    if (const CUptiResult result = cuptiActivityEnable(kind); result != CUPTI_SUCCESS) {
      const char* text = nullptr;
      cuptiGetResultString(result, &text);
      std::fprintf(stderr, "gpu_timeline: CUPTI refuses records of kind %d: %s\n", kind,
                   text == nullptr ? "?" : text);
    }
  }
  std::atexit(&Finish);
  return 1;
}
