#ifndef HOTROW_OPS_PRODUCTS_PROCESSOR_KIND_H_
#define HOTROW_OPS_PRODUCTS_PROCESSOR_KIND_H_

#include <string>

namespace hotrow {

// Names the kernels of matrix products on this processor: the library, its version and its
// instruction set ("oneDNN 2.6.3 avx512_core_amx"). Processors of one kind give the same bits;
// others may sum in another order. The environment may lower the instruction set
// (ONEDNN_MAX_CPU_ISA); the name then says so.
std::string ProcessorKind();

}  // namespace hotrow

#endif  // HOTROW_OPS_PRODUCTS_PROCESSOR_KIND_H_
