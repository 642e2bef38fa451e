#ifndef HOTROW_OPS_POOLING_H_
#define HOTROW_OPS_POOLING_H_

#include "base/enum_words.h"

namespace hotrow {

// What becomes of the rows that a bag looks up.
enum class Pooling {
  kSum,
  kMean,  // sum / number of lookups of the bag, also for weighted sums
  kNone,  // no pooling: one output row for each lookup
};
inline constexpr EnumWord<Pooling> kPoolingWords[] = {
    {"sum", Pooling::kSum}, {"mean", Pooling::kMean}, {"none", Pooling::kNone}};

}  // namespace hotrow

#endif  // HOTROW_OPS_POOLING_H_
