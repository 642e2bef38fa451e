#ifndef HOTROW_TESTS_SUPPORT_PROGRAM_PATH_H_
#define HOTROW_TESTS_SUPPORT_PROGRAM_PATH_H_

#include <string>
#include <string_view>

namespace hotrow::test {

// Where a program of this build lies: test binaries are in bin/tests, programs in bin, in a build
// as in a bundle (tools/gpu_bundle.sh). No path of the build machine is needed.
std::string ProgramPath(std::string_view name);

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_PROGRAM_PATH_H_
