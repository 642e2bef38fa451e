// Spans as a profiler sees them: the test is its own profiler, see tests/base/nvtx_probe.cc. In a
// separate binary, since NVTX looks for a profiler once in a process.

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hotrow {
namespace {

using ::testing::ElementsAre;

class Profiler : public testing::Environment {
 public:
  // Before the first span of the process.
  void SetUp() override { ::setenv("NVTX_INJECTION64_PATH", HOTROW_NVTX_PROBE, /*overwrite=*/1); }
};
[[maybe_unused]] testing::Environment* const profiler =
    testing::AddGlobalTestEnvironment(new Profiler());

// What the profiler got since the last call; the first span makes the domain.
std::vector<std::string> Calls() {
  // The library that NVTX has loaded, not another copy.
  void* const probe = ::dlopen(HOTROW_NVTX_PROBE, RTLD_NOW | RTLD_NOLOAD);
  if (probe == nullptr) return {"NVTX has not loaded " HOTROW_NVTX_PROBE};
  const auto lines = reinterpret_cast<void (*)(char*, size_t)>(::dlsym(probe, "NvtxProbeLines"));
  std::string text(1 << 16, '\0');
  lines(text.data(), text.size());
  ::dlclose(probe);
  text.resize(text.find('\0'));
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// The domain is there afterwards, and the calling thread has its number.
void MakeDomain() {
  { const TraceSpan span(nullptr, "first"); }
  Calls();
}

TEST(NvtxTest, TheFirstSpanMakesTheDomainOnce) {
  // Alone, this is the process' first span; after others the domain is there.
  { const TraceSpan span(nullptr, "first"); }
  std::vector<std::string> calls = Calls();
  ASSERT_FALSE(calls.empty());
  if (calls[0] == "1 domain hotrow") calls.erase(calls.begin());
  EXPECT_THAT(calls, ElementsAre("1 push hotrow first", "1 pop hotrow"));
  { const TraceSpan span(nullptr, "second"); }
  EXPECT_THAT(Calls(), ElementsAre("1 push hotrow second", "1 pop hotrow"));
}

TEST(NvtxTest, SpansAreNestedRangesWithAndWithoutARecorder) {
  MakeDomain();
  TraceRecorder recorder(/*keep_events=*/false);
  {
    const TraceSpan outer(&recorder, "outer");
    { const TraceSpan inner(nullptr, "inner"); }
    const TraceSpan last(&recorder, "last");
  }
  EXPECT_THAT(Calls(), ElementsAre("1 push hotrow outer", "1 push hotrow inner", "1 pop hotrow",
                                   "1 push hotrow last", "1 pop hotrow", "1 pop hotrow"));
  EXPECT_EQ(recorder.StageTotals().size(), 2u);
}

TEST(NvtxTest, AThreadHasItsOwnRanges) {
  MakeDomain();
  const TraceSpan outer(nullptr, "outer");
  Calls();
  std::thread other([] { const TraceSpan span(nullptr, "there"); });
  other.join();
  const std::vector<std::string> calls = Calls();
  ASSERT_EQ(calls.size(), 2u);
  // Pushed and popped by one thread, which is not this one.
  EXPECT_THAT(calls[0], testing::EndsWith(" push hotrow there"));
  EXPECT_EQ(calls[0][0], calls[1][0]);
  EXPECT_NE(calls[0][0], '1');
}

TEST(NvtxTest, WhatIsRecordedAfterwardsIsNoRange) {
  MakeDomain();
  TraceRecorder recorder(/*keep_events=*/false);
  recorder.Record("wait", 0, 1000);
  EXPECT_TRUE(Calls().empty());
  EXPECT_EQ(recorder.StageTotals().size(), 1u);
}

}  // namespace
}  // namespace hotrow
