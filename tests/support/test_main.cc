// main() of every test binary that needs no other.

#include "gtest/gtest.h"
#include "tests/support/case_reporter.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  hotrow::test::InstallCaseReporter();
  return RUN_ALL_TESTS();
}
