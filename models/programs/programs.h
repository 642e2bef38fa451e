#ifndef HOTROW_MODELS_PROGRAMS_PROGRAMS_H_
#define HOTROW_MODELS_PROGRAMS_PROGRAMS_H_

#include "models/zoo/model_list.h"

namespace hotrow {

// The training programs, one a model (models/zoo/model_list.h): RunDlrm is build/bin/dlrm and
// `hotrow train dlrm`. Each is the whole of a main(), as RunTrainProgram says; `x --help` is its
// contract.
#define HOTROW_DECLARE_RUN(name, Type, what) int Run##Type(int argc, const char* const* argv);
HOTROW_MODELS(HOTROW_DECLARE_RUN)
#undef HOTROW_DECLARE_RUN

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_PROGRAMS_H_
