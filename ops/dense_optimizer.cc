#include "ops/dense_optimizer.h"
