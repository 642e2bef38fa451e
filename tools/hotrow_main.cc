#include "tools/command.h"

int main(int argc, char** argv) { return hotrow::RunCommandLine(argc, argv); }
