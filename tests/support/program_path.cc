#include "tests/support/program_path.h"

#include <filesystem>

namespace hotrow::test {

std::string ProgramPath(std::string_view name) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path().parent_path() / name).string();
}

}  // namespace hotrow::test
