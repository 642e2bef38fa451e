#ifndef HOTROW_BASE_TRACE_H_
#define HOTROW_BASE_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace hotrow {

class Env;

// Collects named spans of time. Totals per name are always kept (they feed the report's `stages`).
// Single events are kept only with `keep_events`, up to kMaxEvents; more are counted as dropped.
//
// Threads: all methods may run concurrently.
class TraceRecorder {
 public:
  static constexpr int64_t kMaxEvents = 4'000'000;  // 32 bytes each: 128 MB at the very most

  struct StageTotal {
    std::string name;
    double ms = 0;  // wall time inside the span, summed over all spans of the name
    int64_t count = 0;
  };

  explicit TraceRecorder(bool keep_events);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // `name` must outlive the recorder: use string literals.
  void Record(const char* name, int64_t begin_ns, int64_t end_ns);

  // Totals in the order in which the names were first seen.
  std::vector<StageTotal> StageTotals() const;
  int64_t events_dropped() const;

  // Writes a Chrome trace ("traceEvents" of complete events, microseconds), which Perfetto and
  // chrome://tracing open. Errors: those of Env.
  absl::Status WriteChromeTrace(Env& env, const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Monotonic clock, nanoseconds.
int64_t NowNanos();

namespace internal {
#ifdef HOTROW_HAVE_NVTX
// A range of the calling thread in the NVTX domain "hotrow". Ranges of a thread must nest.
void BeginNvtxRange(const char* name);
void EndNvtxRange();
#else
inline void BeginNvtxRange(const char*) {}
inline void EndNvtxRange() {}
#endif
}  // namespace internal

// Records the time from construction to destruction. A null recorder costs one comparison. In
// builds with CUDA a span is also an NVTX range, even with a null recorder, so that a profiler
// shows it with the kernels; without a profiler that costs about 2 ns. Calls of
// TraceRecorder::Record make no range: the span has ended before its name is known.
//
// Use:     as a local variable, so that spans of a thread nest and end where they began.
class TraceSpan {
 public:
  TraceSpan(TraceRecorder* recorder, const char* name)
      : recorder_(recorder), name_(name), begin_ns_(recorder == nullptr ? 0 : NowNanos()) {
    internal::BeginNvtxRange(name);
  }
  ~TraceSpan() {
    internal::EndNvtxRange();
    if (recorder_ != nullptr) recorder_->Record(name_, begin_ns_, NowNanos());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceRecorder* recorder_;
  const char* name_;
  int64_t begin_ns_;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_TRACE_H_
