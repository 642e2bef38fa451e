#include "tests/support/test_util.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace hotrow::test {

std::vector<uint64_t> Seeds(int count) {
  if (const char* seed = std::getenv("HOTROW_TEST_SEED"); seed != nullptr) {
    return {std::strtoull(seed, nullptr, 0)};
  }
  std::vector<uint64_t> seeds(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) seeds[static_cast<size_t>(i)] = static_cast<uint64_t>(i) + 1;
  return seeds;
}

namespace {

struct TempDirs {
  std::vector<std::string> paths;
  void Remove() {
    for (const std::string& path : paths) {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    paths.clear();
  }
  ~TempDirs() { Remove(); }
};

TempDirs& AllTempDirs() {
  static TempDirs dirs;
  return dirs;
}

}  // namespace

std::string TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "hotrow_test_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    ADD_FAILURE() << "mkdtemp " << pattern << " failed";
    return "";
  }
  AllTempDirs().paths.push_back(pattern);
  return pattern;
}

void RemoveTempDirs() { AllTempDirs().Remove(); }

double SlowShare() {
  const char* const wanted = std::getenv("HOTROW_SLOW_TESTS");
  return wanted == nullptr ? 0 : std::clamp(std::atof(wanted), 0.0, 1.0);
}

int SlowRuns(int all, int few) {
  if (!RunsSlowTests()) return few;
  return std::max(few, static_cast<int>(SlowShare() * all));
}

testing::AssertionResult OkFormat(const char* expression, const absl::Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << expression << "\n  is not OK: " << status.ToString();
}

}  // namespace hotrow::test
