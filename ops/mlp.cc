#include "ops/mlp.h"
