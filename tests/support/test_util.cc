#include "tests/support/test_util.h"

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

std::string TempDir() {
  struct Cleaner {
    std::vector<std::string> paths;
    ~Cleaner() {
      for (const std::string& path : paths) {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
      }
    }
  };
  static Cleaner cleaner;
  std::string pattern = (std::filesystem::temp_directory_path() / "hotrow_test_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    ADD_FAILURE() << "mkdtemp " << pattern << " failed";
    return "";
  }
  cleaner.paths.push_back(pattern);
  return pattern;
}

}  // namespace hotrow::test
