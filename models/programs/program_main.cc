// main() of each training program; HOTROW_PROGRAM is its function of programs.h.

#include "models/programs/programs.h"

int main(int argc, char** argv) { return hotrow::HOTROW_PROGRAM(argc, argv); }
