#ifndef HOTROW_OPS_LAYERS_INNER_LAYER_H_
#define HOTROW_OPS_LAYERS_INNER_LAYER_H_

#include <cstdint>

#include "base/non_finite.h"

namespace hotrow {

// One of the layers that a network, or a part of a model, is made of, for who must say where a
// number came from.
struct InnerLayer {
  int64_t parameters_end = 0;  // its parameters begin where those of the layer before end
  NumbersView output;          // of the last Forward, in training; data is null: it is not kept
};

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_INNER_LAYER_H_
