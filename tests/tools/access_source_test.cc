#include "tools/access_source.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "cache/miss_ratio_curve.h"
#include "tests/models/file_builders.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/trace_analysis.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteTemp(std::string_view bytes) {
  const std::string path = test::TempDir() + "/ids";
  HOTROW_EXPECT_OK(WriteFileAtomically(PosixEnv(), path, bytes));
  return path;
}

absl::StatusOr<std::vector<uint64_t>> ReadAll(const std::string& path,
                                              AccessFormat format = AccessFormat::kAuto) {
  auto source = AccessSource::Open(PosixEnv(), path, format);
  if (!source.ok()) return source.status();
  std::vector<uint64_t> keys;
  AccessBlock block;
  while (true) {
    const absl::StatusOr<bool> more = (*source)->Next(&block);
    if (!more.ok()) return more.status();
    if (!*more) return keys;
    keys.insert(keys.end(), block.keys.begin(), block.keys.end());
  }
}

void ExpectKeys(std::string_view bytes, const std::vector<uint64_t>& expected,
                AccessFormat format = AccessFormat::kAuto) {
  const absl::StatusOr<std::vector<uint64_t>> keys = ReadAll(WriteTemp(bytes), format);
  HOTROW_ASSERT_OK(keys);
  EXPECT_EQ(*keys, expected);
}

TEST(AccessSourceTest, ReadsText) {
  ExpectKeys("1\n2\n 3 \n\n# note\n0x1f\n-1\n18446744073709551615\n-9223372036854775808\n0\n",
             {1, 2, 3, 31, UINT64_MAX, UINT64_MAX, uint64_t{1} << 63, 0});
  ExpectKeys("7\r\n8", {7, 8});
  ExpectKeys(test::Gzip("5\n6\n"), {5, 6});
}

TEST(AccessSourceTest, ReadsBinaryOfBothOrders) {
  const std::string big("\0\0\0\0\0\0\1\2\xff\xff\xff\xff\xff\xff\xff\xfe", 16);
  ExpectKeys(big, {258, UINT64_MAX - 1});
  ExpectKeys(big, {uint64_t{0x0201} << 48, 0xfeffffffffffffff}, AccessFormat::kInt64Le);
}

TEST(AccessSourceTest, ReadsNpyOfAnyShapeAndWidth) {
  using test::NpyDictionary;
  using test::NpyWithHeader;
  ExpectKeys(
      NpyWithHeader(NpyDictionary("<i8", "(2,)"), test::Little(9, 8) + test::Little(UINT64_MAX, 8)),
      {9, UINT64_MAX});
  ExpectKeys(NpyWithHeader(NpyDictionary("<i4", "(1, 2)"),
                           test::Little(9, 4) + test::Little(0xffffffff, 4)),
             {9, UINT64_MAX});
  ExpectKeys(
      NpyWithHeader(NpyDictionary("<u4", "(2,)"), test::Little(9, 4) + test::Little(0xffffffff, 4)),
      {9, 0xffffffff});
}

void ExpectRefusal(std::string_view bytes, absl::StatusCode code,
                   const testing::Matcher<const std::string&>& message,
                   AccessFormat format = AccessFormat::kAuto) {
  EXPECT_THAT(ReadAll(WriteTemp(bytes), format).status(), test::StatusIs(code, message));
}

TEST(AccessSourceTest, BadInputIsNamedWithItsPlace) {
  using enum absl::StatusCode;
  ExpectRefusal("1\n2\nx3\n", kInvalidArgument,
                AllOf(HasSubstr("ids: line 3: \"x3\""), HasSubstr("--format")));
  ExpectRefusal("18446744073709551616\n", kInvalidArgument, HasSubstr("line 1"));
  ExpectRefusal("-9223372036854775809\n", kInvalidArgument, HasSubstr("line 1"));
  ExpectRefusal(std::string(11, '\1'), kDataLoss,
                AllOf(HasSubstr("offset 8"), HasSubstr("last 3 bytes")));
  ExpectRefusal("", kInvalidArgument, HasSubstr("is empty"));
  ExpectRefusal(test::NpyWithHeader(test::NpyDictionary("<f4", "(1,)"), "abcd"), kInvalidArgument,
                AllOf(HasSubstr("<f4"), HasSubstr("astype")));
  ExpectRefusal(test::NpyWithHeader(test::NpyDictionary("<i8", "(2,)"), test::Little(1, 8)),
                kDataLoss, HasSubstr("1 more ids"));
  ExpectRefusal("1\n", kInvalidArgument, HasSubstr("no access trace"), AccessFormat::kTrace);
  EXPECT_THAT(ReadAll("/no/such/file").status(),
              test::StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/file")));
  EXPECT_THAT(ParseAccessFormat("csv").status(),
              test::StatusIs(kInvalidArgument, AllOf(HasSubstr("csv"), HasSubstr("int64be"))));
}

// Packed with `printf '1\n2\n3\n' | xz`.
TEST(AccessSourceTest, UnpacksXzOrSaysWhatToDo) {
  const std::string plain = WriteTemp("1\n2\n3\n");
  const std::string packed = plain + ".xz";
  if (test::RunProgram({.arguments = {"xz", "-k", plain}}).exit_code != 0) {
    GTEST_SKIP() << "there is no xz here to pack a file with";
  }
#if HOTROW_HAVE_LZMA
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<uint64_t> keys, ReadAll(packed));
  EXPECT_EQ(keys, (std::vector<uint64_t>{1, 2, 3}));
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(PosixEnv(), packed));
  for (size_t size = 7; size < bytes.size(); ++size) {
    ExpectRefusal(bytes.substr(0, size), absl::StatusCode::kDataLoss, HasSubstr("ends early"));
  }
  for (size_t at = 6; at < bytes.size(); ++at) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(ReadAll(WriteTemp(bad)).ok()) << "byte " << at;
  }
#else
  EXPECT_THAT(ReadAll(packed).status(),
              test::StatusIs(absl::StatusCode::kUnimplemented,
                             AllOf(HasSubstr("liblzma"), HasSubstr("xz -d"))));
#endif
}

TEST(AccessSourceTest, ReadsRecordedTraces) {
  const std::string path = test::TempDir() + "/trace";
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto writer,
      AccessTraceWriter::Open({.path = path, .tables = {{1, "a"}, {2, "b"}}, .sample_rate = 1}));
  const std::vector<uint64_t> keys = {4, 5, 6};
  HOTROW_ASSERT_OK(writer->Add(1, keys, {}));
  HOTROW_ASSERT_OK(writer->Add(2, std::span(keys).first(1), {}));
  HOTROW_ASSERT_OK(writer->EndStep(0, 8));
  HOTROW_ASSERT_OK(writer->Close());
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source,
                              AccessSource::Open(PosixEnv(), path, AccessFormat::kAuto));
  EXPECT_EQ(source->format(), AccessFormat::kTrace);
  ASSERT_EQ(source->tables().size(), 2u);
  AccessBlock block;
  HOTROW_ASSERT_OK_AND_ASSIGN(bool more, source->Next(&block));
  EXPECT_TRUE(more);
  EXPECT_EQ(block.table, 1u);
  EXPECT_EQ(block.keys, keys);
  EXPECT_FALSE(block.ends_step);
  HOTROW_ASSERT_OK_AND_ASSIGN(more, source->Next(&block));
  EXPECT_EQ(block.table, 2u);
  EXPECT_TRUE(block.ends_step);
  HOTROW_ASSERT_OK_AND_ASSIGN(more, source->Next(&block));
  EXPECT_FALSE(more);
  EXPECT_TRUE(source->complete());
}

// --- The real trace
// ---------------------------------------------------------------------------------

std::string RealTracePath() {
  const char* dir = std::getenv("HOTROW_DATA");
  return absl::StrCat(dir != nullptr ? dir : HOTROW_SOURCE_DIR "/../shared/data",
                      "/traces/scarab-recs.trace.xz");
}

const std::vector<double> kFractions = {0.01, 0.05, 0.1, 0.2};

#define READ_REAL_TRACE_OR_SKIP(keys)                                                            \
  if (std::FILE* probe = std::fopen(RealTracePath().c_str(), "r")) {                             \
    std::fclose(probe);                                                                          \
  } else {                                                                                       \
    GTEST_SKIP() << "no real trace at " << RealTracePath() << "; set HOTROW_DATA to its folder"; \
  }                                                                                              \
  if (!HOTROW_HAVE_LZMA) GTEST_SKIP() << "the real trace is .xz and liblzma is not here";        \
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<uint64_t> keys, ReadAll(RealTracePath()))

TEST(RealTraceTest, TheExactCurveIsThePublishedOne) {
  READ_REAL_TRACE_OR_SKIP(keys);
  EXPECT_EQ(keys.size(), 1'245'184u);
  LruCurve curve;
  const auto begin = std::chrono::steady_clock::now();
  for (const uint64_t key : keys) curve.Add(key);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("exact curve of %zu accesses: %.3f s, %.1f MB\n", keys.size(), seconds.count(),
              static_cast<double>(curve.MemoryBytes()) * 1e-6);
  EXPECT_EQ(curve.distinct(), 258'368);
  const double expected[] = {0.347, 0.517, 0.606, 0.695};
  for (size_t i = 0; i < kFractions.size(); ++i) {
    const auto rows = static_cast<int64_t>(kFractions[i] * 258'368);
    EXPECT_NEAR(curve.HitRate(rows), expected[i], 0.001) << kFractions[i];
  }
}

TEST(RealTraceTest, ATenthOfTheKeysIsEnough) {
  READ_REAL_TRACE_OR_SKIP(keys);
  LruCurve exact;
  for (const uint64_t key : keys) exact.Add(key);
  std::vector<double> errors;
  int within = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SampledLruCurve curve({.sample_rate = 0.1, .seed = seed});
    for (const uint64_t key : keys) curve.Add(key);
    EXPECT_LT(curve.MemoryBytes(), exact.MemoryBytes() / 5);
    for (const double fraction : kFractions) {
      const double rows = std::floor(fraction * 258'368);
      const double error =
          std::abs(curve.HitRate(rows) - exact.HitRate(static_cast<int64_t>(rows)));
      errors.push_back(100 * error);
      within += error <= curve.HitRateError(rows);
    }
  }
  std::sort(errors.begin(), errors.end());
  const double median = errors[errors.size() / 2];
  const double p90 = errors[errors.size() * 9 / 10];
  std::printf(
      "40 samples of a tenth: median error %.2f points, p90 %.2f, max %.2f; %d of %zu "
      "within what is stated\n",
      median, p90, errors.back(), within, errors.size());
  EXPECT_LE(median, 1.0);
  EXPECT_LE(p90, 2.5);
  EXPECT_GE(within, static_cast<int>(errors.size() * 85 / 100));
}

// --- Analysis
// ---------------------------------------------------------------------------------------

TEST(TraceAnalysisTest, FindsTheExponentOfAZipfLaw) {
  for (const double s : {0.6, 1.0, 1.3}) {
    std::vector<int64_t> counts;
    for (int rank = 1; rank <= 20'000; ++rank) {
      counts.push_back(static_cast<int64_t>(std::round(1e7 * std::pow(rank, -s))));
    }
    EXPECT_NEAR(FitZipfExponent(counts), s, 2e-3);
  }
  EXPECT_NEAR(FitZipfExponent(std::vector<int64_t>(1000, 7)), 0, 1e-3);
}

TEST(TraceAnalysisTest, CountsAHandWorkedStream) {
  TraceAnalysis analysis(1);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 64; ++i) keys.push_back(i % 2 == 0 ? 1 : i);  // 1 x 1 y 1 z ...
  analysis.Add(keys, 0);
  const TraceSummary summary = analysis.Summary();
  EXPECT_EQ(summary.accesses, 64);
  EXPECT_EQ(summary.distinct, 32);  // key 1 is among the odd numbers
  EXPECT_EQ(summary.used_once, 31);
  ASSERT_EQ(summary.keys_by_accesses.size(), 6u);
  EXPECT_EQ(summary.keys_by_accesses[5], 1);  // 33 times
  // In a window of 16 that ends at access t there are min(t + 1, 16) accesses, half of them new.
  ASSERT_GE(summary.working_sets.size(), 1u);
  EXPECT_EQ(summary.working_sets[0].window, 16);
  double held = 0;
  for (size_t end = 0; end < keys.size(); ++end) {
    std::vector<uint64_t> window(keys.begin() + static_cast<int64_t>(end < 15 ? 0 : end - 15),
                                 keys.begin() + static_cast<int64_t>(end) + 1);
    std::sort(window.begin(), window.end());
    held += static_cast<double>(std::unique(window.begin(), window.end()) - window.begin());
  }
  EXPECT_NEAR(summary.working_sets[0].distinct, held / 64, 1e-9);
}

}  // namespace
}  // namespace hotrow
