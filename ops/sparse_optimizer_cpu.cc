#include "ops/sparse_optimizer.h"
