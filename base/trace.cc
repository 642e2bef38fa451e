#include "base/trace.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/env.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace hotrow {
namespace {

struct Event {
  const char* name;
  int64_t begin_ns;
  int64_t end_ns;
  int32_t thread;
};

struct Total {
  std::string name;
  int64_t ns = 0;
  int64_t count = 0;
};

void AppendJsonString(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

void AppendEvent(const Event& event, int64_t origin_ns, std::string& out) {
  out += "{\"name\":";
  AppendJsonString(event.name, out);
  char fields[128];
  std::snprintf(fields, sizeof(fields),
                ",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":1,\"tid\":%d}",
                static_cast<double>(event.begin_ns - origin_ns) * 1e-3,
                static_cast<double>(event.end_ns - event.begin_ns) * 1e-3, event.thread);
  out += fields;
}

}  // namespace

struct TraceRecorder::State {
  explicit State(bool keep) : keep_events(keep) {}

  const bool keep_events;
  const int64_t origin_ns = NowNanos();  // events are written relative to this

  std::mutex mutex;  // guards all below
  std::vector<Total> totals;
  // One literal may have an address per source file, so addresses are only a shortcut to the name.
  std::unordered_map<const char*, size_t> index_of_address;
  std::deque<Event> events;  // does not move what it holds when it grows
  std::unordered_map<std::thread::id, int32_t> thread_numbers;  // small numbers read better
  int64_t events_dropped = 0;

  Total& TotalOf(const char* name) {
    if (const auto known = index_of_address.find(name); known != index_of_address.end()) {
      return totals[known->second];
    }
    const auto same = std::find_if(totals.begin(), totals.end(),
                                   [name](const Total& total) { return total.name == name; });
    const auto index = static_cast<size_t>(same - totals.begin());
    if (same == totals.end()) totals.push_back({.name = name});
    index_of_address.emplace(name, index);
    return totals[index];
  }

  void Keep(const char* name, int64_t begin_ns, int64_t end_ns) {
    if (static_cast<int64_t>(events.size()) >= kMaxEvents) {
      ++events_dropped;
      return;
    }
    const auto next = static_cast<int32_t>(thread_numbers.size() + 1);
    const int32_t thread =
        thread_numbers.try_emplace(std::this_thread::get_id(), next).first->second;
    events.push_back({name, begin_ns, end_ns, thread});
  }

  // Up to `count` events from `first` on: recording goes on while a file is written.
  std::vector<Event> CopyEvents(size_t first, size_t count) {
    const std::lock_guard<std::mutex> lock(mutex);
    const size_t end = std::min(events.size(), first + count);
    return {events.begin() + static_cast<ptrdiff_t>(std::min(first, end)),
            events.begin() + static_cast<ptrdiff_t>(end)};
  }
};

TraceRecorder::TraceRecorder(bool keep_events) : state_(std::make_unique<State>(keep_events)) {}
TraceRecorder::~TraceRecorder() = default;

void TraceRecorder::Record(const char* name, int64_t begin_ns, int64_t end_ns) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto keep = [&]() -> absl::Status {
    Total& total = state_->TotalOf(name);
    total.ns += end_ns - begin_ns;
    ++total.count;
    if (state_->keep_events) state_->Keep(name, begin_ns, end_ns);
    return absl::OkStatus();
  };
  // Spans end in destructors, which must not throw.
  if (!Caught("", keep).ok()) ++state_->events_dropped;
}

std::vector<TraceRecorder::StageTotal> TraceRecorder::StageTotals() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<StageTotal> stages;
  stages.reserve(state_->totals.size());
  for (const Total& total : state_->totals) {
    stages.push_back({total.name, static_cast<double>(total.ns) * 1e-6, total.count});
  }
  return stages;
}

int64_t TraceRecorder::events_dropped() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->events_dropped;
}

absl::Status TraceRecorder::WriteChromeTrace(Env& env, const std::string& path) const {
  constexpr size_t kEventsPerWrite = 8192;  // about 1 MB of text
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kTruncate));
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  int64_t offset = 0;
  for (size_t first = 0;;) {
    const std::vector<Event> events = state_->CopyEvents(first, kEventsPerWrite);
    for (size_t i = 0; i < events.size(); ++i) {
      text += first + i == 0 ? "\n" : ",\n";
      AppendEvent(events[i], state_->origin_ns, text);
    }
    if (events.empty()) text += "\n]}\n";
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, offset, std::as_bytes(std::span(text))));
    if (events.empty()) return file->Close();
    offset += static_cast<int64_t>(text.size());
    text.clear();
    first += events.size();
  }
}

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace hotrow
