#ifndef HOTROW_MODELS_PROGRAMS_PROGRAMS_H_
#define HOTROW_MODELS_PROGRAMS_PROGRAMS_H_

namespace hotrow {

// The training programs, one a model: build/bin/dlrm and `hotrow train dlrm`. Each is the whole of
// a main(), as RunTrainProgram says; `x --help` is its contract.
int RunDcn(int argc, const char* const* argv);
int RunDeepFm(int argc, const char* const* argv);
int RunDin(int argc, const char* const* argv);
int RunDlrm(int argc, const char* const* argv);
int RunMmoe(int argc, const char* const* argv);
int RunPnn(int argc, const char* const* argv);
int RunWideDeep(int argc, const char* const* argv);
int RunXDeepFm(int argc, const char* const* argv);

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_PROGRAMS_H_
