// One libFuzzer program for each target: HOTROW_FUZZ_TARGET is its function.

#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hotrow::fuzz::HOTROW_FUZZ_TARGET(data, size);
  return 0;
}
