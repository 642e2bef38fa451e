#ifndef HOTROW_OPS_PROCESSOR_KIND_H_
#define HOTROW_OPS_PROCESSOR_KIND_H_

#include <string>

namespace hotrow {

// What decides the kernels of matrix products on this machine's processor, in a few words: the
// library, its version and the instruction set that it uses ("oneDNN 2.6.3 avx512_core_amx"). The
// same inputs give the same bits on processors of one kind; on others sums may be made in another
// order. The environment may lower the instruction set (ONEDNN_MAX_CPU_ISA), which shows here.
std::string ProcessorKind();

}  // namespace hotrow

#endif  // HOTROW_OPS_PROCESSOR_KIND_H_
