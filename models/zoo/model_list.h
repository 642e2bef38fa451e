#ifndef HOTROW_MODELS_ZOO_MODEL_LIST_H_
#define HOTROW_MODELS_ZOO_MODEL_LIST_H_

// The table of models: HOTROW_MODELS(M) is M(name, Type, what it is) for each of them. The name is
// CtrModel::name, the model's program, and the beginning of its files: zoo/NAME_model.{h,cc} and
// programs/NAME_program.cc. The type is in the names of its functions: MakeType in zoo/, RunType in
// programs/. CMake reads these rows, too.
#define HOTROW_MODELS(M)                                           \
  M(bst, Bst, "Behavior Sequence Transformer over histories")      \
  M(dcn, Dcn, "Deep & Cross Network, version 1 or 2")              \
  M(deepfm, DeepFm, "DeepFM: a factorization machine and an MLP")  \
  M(din, Din, "Deep Interest Network: attention over histories")   \
  M(dlrm, Dlrm, "DLRM: dot products of all pairs of vectors")      \
  M(hstu, Hstu, "HSTU: gated blocks of attention over histories")  \
  M(mmoe, Mmoe, "MMoE: several tasks over a mixture of experts")   \
  M(pnn, Pnn, "PNN: inner or outer products of vectors")           \
  M(wide_deep, WideDeep, "Wide & Deep: a linear model and an MLP") \
  M(xdeepfm, XDeepFm, "xDeepFM: a compressed interaction network and an MLP")

#endif  // HOTROW_MODELS_ZOO_MODEL_LIST_H_
