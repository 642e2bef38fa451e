#include "base/run_main.h"
#include "tools/command.h"

int main(int argc, char** argv) {
  return hotrow::RunMain("hotrow", [&] { return hotrow::RunCommandLine(argc, argv); });
}
