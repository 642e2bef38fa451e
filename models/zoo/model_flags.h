#ifndef HOTROW_MODELS_ZOO_MODEL_FLAGS_H_
#define HOTROW_MODELS_ZOO_MODEL_FLAGS_H_

#include <string>

#include "base/flag_set.h"

namespace hotrow {

// The flags that say what a model is made of are those of its training program, and those that a
// saved model records as its shape, of which CreateModelOfKind makes it again. Here are those that
// many models share; the others are beside each model.

// Words for --help of flags that models share.
struct SharedFlagsHelp {
  std::string dense_arch;          // of --dense_arch_layer_sizes, where Options has it
  std::string dense_arch_default;  // what to call its default
  std::string over_arch;
};

// Those that many models share, as far as Options has their fields.
template <typename Options>
void AddSharedModelFlags(Options* options, const SharedFlagsHelp& help, FlagSet* set) {
  if constexpr (requires { options->dense_arch_layer_sizes; }) {
    set->Add("dense_arch_layer_sizes", SizesFlag(&options->dense_arch_layer_sizes),
             help.dense_arch);
    set->DescribeDefault(help.dense_arch_default);
  }
  set->Add("over_arch_layer_sizes", SizesFlag(&options->over_arch_layer_sizes), help.over_arch);
  set->Add("dropout", RealFlag(&options->dropout, 0, 0.99),
           "share of hidden units that a step leaves out");
  set->Add("batch_norm", SwitchFlag(&options->batch_norm),
           "normalize the inputs of each ReLU over the batch");
}

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MODEL_FLAGS_H_
