#include "ops/gradient_segment_sum.h"
